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
        *(f"  invalid: {plain(reason)}" for reason in summary["validity"]["reasons"]),
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
    return f"{verdict}  {plain(summary['scenario'], 80)}  run {summary['run_id']}: {plain(summary['exit_reason'], 500)}"


def _thresholds(thresholds: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for threshold in thresholds:
        mark = "ok  " if threshold["passed"] else "MISS"
        value = "nothing measured" if threshold["value"] is None else f"measured {threshold['value']:.6g}"
        lines.append(f"  {mark} {plain(threshold['check'], 80)} ({value})")
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
        (plain(name, 30), one["succeeded"], one["qps"], one["latency_ms"])
        for name, one in summary["statements"].items()
    ]
    width = max(len(row[0]) for row in rows)
    head = f"{'ms':<{width}} {'count':>9} {'per s':>9} " + " ".join(f"{name:>8}" for name in _COLUMNS)
    lines = [
        f"{name:<{width}} {count:>9,} {qps:>9,.1f} " + " ".join(_cell(times.get(column)) for column in _COLUMNS)
        for name, count, qps, times in rows
    ]
    return "\n".join([head, *lines])


def _cell(value: float | None) -> str:
    return f"{'-':>8}" if value is None else f"{value:>8.2f}"


def _errors(errors: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(
        f"  {error['count']:,} × {error['category']} {error['code'] or ''}: {plain(error['example'], 120)}"
        for error in errors[:10]
    )


def _client(summary: Mapping[str, Any]) -> str:
    client = summary["client"]
    late = "" if client["wakeup_p99_ms"] is None else f", threads woke {client['wakeup_p99_ms']:.1f} ms late (p99)"
    return f"client: busiest worker used {client['cpu_percent_of_core']:.0f} % of its core{late}"
