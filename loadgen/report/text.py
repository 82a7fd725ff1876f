"""The summary of a run for people: verdict first, then the reasons, then the numbers. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.log import plain
from loadgen.report import figures

STATEMENTS_MAX = 50
ERRORS_MAX = 10
NAME_MAX = 30  # characters of a name in a table
REASON_MAX = 500


def summary_text(summary: Mapping[str, Any], where: str | None = None, report: str | None = None) -> str:
    """Plain text, in parts with a blank line between them; tables of at most 100 columns as long as names are short.

    `where` its files are, `report` is the one to open first.
    """
    parts = [
        [*_verdict(summary), *_thresholds(summary["thresholds"])],
        [*_totals(summary), *_sessions(summary)],
        [*_latencies(summary)],
        [*_find_max(summary["find_max"] or {})],
        [*_errors(summary["errors"])],
        [
            *_client(summary["client"]),
            *([f"report: {report}"] if report else []),
            *([f"files: {where}"] if where else []),
        ],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _verdict(summary: Mapping[str, Any]) -> Iterator[str]:
    """What made a run invalid is said once, a line for each reason."""
    verdict = str(summary["verdict"])
    head = f"{verdict.upper()}  {_line(summary['scenario'], 80)}  run {summary['run_id']}"
    yield head if verdict == "invalid" else f"{head}: {_line(summary['exit_reason'], REASON_MAX)}"
    for reason in summary["validity"]["reasons"]:
        yield f"  invalid: {_line(reason, REASON_MAX)}"
    for warning in summary["environment"].get("warnings") or ():
        yield f"  warning: {_line(str(warning), REASON_MAX)}"


def _thresholds(thresholds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for threshold in thresholds:
        mark, check = "ok  " if threshold["passed"] else "MISS", threshold["check"]
        yield f"  {mark} {_line(check, 80)}: measured {figures.measured(check, threshold['value'])}"


def _totals(summary: Mapping[str, Any]) -> Iterator[str]:
    totals = summary["totals"]
    yield (
        f"{figures.rate(totals['qps'])} statements/s over {figures.seconds(summary['measured_seconds'])},"
        f" {_many(summary['connections'], 'connection')}, {_many(summary['workers'], 'worker')}"
    )
    share = f" ({figures.percent(totals['error_rate'])})" if totals["failed"] else ""
    said = [f"{totals['succeeded']:,} succeeded", f"{totals['failed']:,} failed{share}"]
    if not summary["lag_ms"]:  # a closed loop: what is sent is what there is
        said += [f"{totals[name]:,} {name}" for name in ("skipped", "cancelled") if totals[name]]
        yield ", ".join(said)
        return
    offered, delivered = totals["scheduled"], totals["succeeded"] + totals["failed"]
    yield (
        f"{offered:,} offered{_per_s(offered, summary)}: {delivered:,} delivered{_per_s(delivered, summary)},"
        f" {totals['skipped']:,} skipped, {totals['cancelled']:,} cancelled"
    )
    yield ", ".join(said)


def _sessions(summary: Mapping[str, Any]) -> Iterator[str]:
    sessions = summary.get("sessions")
    if sessions is not None:
        yield "user sessions: " + ", ".join(f"{sessions[name]:,} {name}" for name in ("created", "expired", "current"))


def _per_s(count: int, summary: Mapping[str, Any]) -> str:
    seconds = summary["measured_seconds"]
    return f" ({figures.rate(count / seconds)}/s)" if seconds else ""


def _latencies(summary: Mapping[str, Any]) -> Iterator[str]:
    totals, statements = summary["totals"], summary["statements"]
    rows: list[tuple[str, int | None, float | None, Mapping[str, Any]]] = [
        ("all", totals["succeeded"], totals["qps"], summary["latency_ms"])
    ]
    if summary["lag_ms"]:
        rows.append(("(lag)", None, None, summary["lag_ms"]))
    rows += [
        (_line(name, NAME_MAX), one["succeeded"], one["qps"], one["latency_ms"])
        for name, one in list(statements.items())[:STATEMENTS_MAX]
    ]
    yield from _table(
        ("ms", "count", "per s", *figures.TIMES.values()),
        [
            (name, figures.count(count), figures.rate(qps), *(figures.time_of(times, one) for one in figures.TIMES))
            for name, count, qps, times in rows
        ],
    )
    if len(statements) > STATEMENTS_MAX:
        yield f"{len(statements) - STATEMENTS_MAX:,} more statements are in the report"


def _find_max(found: Mapping[str, Any]) -> Iterator[str]:
    if not found:
        return
    level = found["max_concurrency"]
    yield f"find-max: {_line(str(found['reason']), REASON_MAX)}"
    if level is not None:
        yield (
            f"at {_many(level, 'connection')}: {figures.rate(found['qps'])} statements/s,"
            f" p95 {figures.ms(found['p95_ms'])} ms, confidence {_line(str(found['confidence']), NAME_MAX)}"
        )
    steps = found["steps"]
    if not steps:
        return
    numbers = _table(
        ("step", "conns", "per s", "p95 ms", "failed"),
        [
            (
                str(step["step"]),
                figures.count(step["target"]),
                figures.rate(step["qps"]),
                figures.ms(step["p95_ms"]),
                figures.count(step["failed"]),
            )
            for step in steps
        ],
    )
    outcomes = ["outcome", *(_line(f"{step['outcome']}: {step['reason']}", 120) for step in steps)]
    yield from (f"{line}  {outcome}" for line, outcome in zip(numbers, outcomes, strict=True))


def _errors(errors: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for error in errors[:ERRORS_MAX]:
        code = "" if error["code"] is None else f" {error['code']}"
        yield f"  {error['count']:,} × {error['category']}{code}: {_line(error['example'], 120)}"
    if len(errors) > ERRORS_MAX:
        yield f"  {len(errors) - ERRORS_MAX:,} more kinds of errors are in the report"


def _client(client: Mapping[str, Any]) -> Iterator[str]:
    """How loaded this side was; nothing is said when no worker has told."""
    said = []
    if client["cpu_percent_of_core"] is not None:
        said.append(f"busiest worker used {client['cpu_percent_of_core']:.0f} % of its core")
    if client["wakeup_p99_ms"] is not None:
        mean = client.get("wakeup_mean_ms")  # not known of older runs
        average = "" if mean is None else f", {figures.ms(mean)} ms on average"
        said.append(f"threads woke {figures.ms(client['wakeup_p99_ms'])} ms late (p99{average})")
    if client["overhead_ms"] is not None:
        said.append(f"{figures.ms(client['overhead_ms'])} ms added to the server's time (median)")
    if said:
        yield f"client: {', '.join(said)}{'; SATURATED' if client['saturated'] else ''}"
    if client["wakeup_p99_ms"] is not None:
        yield f"  percentiles may be up to {figures.ms(client['wakeup_p99_ms'])} ms too high because of it"


# --- tables ----------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, numbers to the right, wide enough to compare one run with another."""
    widths = [max(map(_width, column)) for column in zip(head, *rows, strict=True)]
    for cells in (head, *rows):
        name = cells[0] + " " * (widths[0] - _width(cells[0]))
        numbers = (f"{cell:>{max(width, 8)}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
        yield " ".join((name, *numbers))


def _width(text: str) -> int:
    """Columns of a terminal: some characters take two, marks on others none."""
    return sum(
        2 if unicodedata.east_asian_width(one) in "WF" else 0 if unicodedata.category(one) in ("Mn", "Me", "Cf") else 1
        for one in text
    )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _line(text: str, limit: int) -> str:
    """Foreign text on one line: a name or an error must not be able to write a line of its own."""
    return plain(" ".join(text[: 20 * limit].split()), limit)
