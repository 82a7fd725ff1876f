"""The summary of a run for people: verdict first, then the reasons, then the numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.log import plain

_COLUMNS = ("p50", "p90", "p95", "p99", "p999", "max", "avg")


def summary_text(summary: Mapping[str, Any], where: str | None = None) -> str:
    """Plain text of at most 100 columns, as long as names are short."""
    parts = [
        _headline(summary),
        *(f"  invalid: {_line(reason, 500)}" for reason in summary["validity"]["reasons"]),
        _thresholds(summary["thresholds"]),
        _totals(summary),
        _latencies(summary),
        _errors(summary["errors"]),
        _client(summary),
        f"files: {where}" if where else "",
    ]
    return "\n".join(part for part in parts if part)


def _headline(summary: Mapping[str, Any]) -> str:
    verdict = str(summary["verdict"]).upper()
    name, reason = _line(summary["scenario"], 80), _line(summary["exit_reason"], 500)
    return f"{verdict}  {name}  run {summary['run_id']}: {reason}"


def _thresholds(thresholds: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for threshold in thresholds:
        mark = "ok  " if threshold["passed"] else "MISS"
        value = "nothing measured" if threshold["value"] is None else f"measured {threshold['value']:.6g}"
        lines.append(f"  {mark} {_line(threshold['check'], 80)} ({value})")
    return "\n".join(lines)


def _totals(summary: Mapping[str, Any]) -> str:
    totals = summary["totals"]
    line = (
        f"{totals['qps']:,.1f} statements/s over {summary['measured_seconds']:.1f} s,"
        f" {summary['connections']} connections, {summary['workers']} workers:"
        f" {totals['succeeded']:,} succeeded, {totals['failed']:,} failed"
    )
    if totals["skipped"]:
        line += f", {totals['skipped']:,} skipped"
    if totals["cancelled"]:
        line += f", {totals['cancelled']:,} cancelled"
    return line


def _latencies(summary: Mapping[str, Any]) -> str:
    rows = [("all", summary["totals"]["succeeded"], summary["totals"]["qps"], summary["latency_ms"])]
    if summary["lag_ms"]:
        rows.append(("(lag)", summary["totals"]["succeeded"], summary["totals"]["qps"], summary["lag_ms"]))
    rows += [
        (_line(name, 30), one["succeeded"], one["qps"], one["latency_ms"])
        for name, one in summary["statements"].items()
    ]
    table = [
        ("ms", "count", "per s", *_COLUMNS),
        *((name, f"{count:,}", f"{qps:,.1f}", *_cells(times)) for name, count, qps, times in rows),
    ]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join(_row(row, widths) for row in table)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """The first column to the left, numbers to the right, wide enough to compare one run with another."""
    numbers = (f"{cell:>{max(width, 8)}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
    return " ".join((f"{cells[0]:<{widths[0]}}", *numbers))


def _cells(times: Mapping[str, Any]) -> list[str]:
    """ "-": too few samples to say. "≥": at least so much, because statements were cancelled."""
    at_least = times.get("at_least", ())
    return [
        "-" if times.get(column) is None else f"{'≥' if column in at_least else ''}{times[column]:.2f}"
        for column in _COLUMNS
    ]


def _errors(errors: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(
        f"  {error['count']:,} × {error['category']} {error['code'] or ''}: {_line(error['example'], 120)}"
        for error in errors[:10]
    )


def _client(summary: Mapping[str, Any]) -> str:
    """How loaded this side was; nothing is said when no worker has told."""
    client, said = summary["client"], []
    if client["cpu_percent_of_core"] is not None:
        said.append(f"busiest worker used {client['cpu_percent_of_core']:.0f} % of its core")
    if client["wakeup_p99_ms"] is not None:
        said.append(f"threads woke {client['wakeup_p99_ms']:.1f} ms late (p99)")
    return f"client: {', '.join(said)}" if said else ""


def _line(text: str, limit: int) -> str:
    """Foreign text on one line: a name or an error must not be able to write a line of its own."""
    return plain(" ".join(text.split()), limit)
