"""report.md: a run as a comment on a pull request. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.report import formatting
from loadgen.report.formatting import login_words, markdown
from loadgen.report.records import RunRecord
from loadgen.rules.delivered_load import percent
from loadgen.units import counted

STATEMENTS_MAX = 60  # rows; the limit of a comment is 65,536 characters
STAGES_MAX = 30
ERRORS_MAX = 10
NAME_MAX = 100
TEXT_MAX = 300

_OWN_WORD = re.compile(r"[A-Za-z0-9:. –-]+")
MARKS = {"passed": "✅", "failed": "❌", "invalid": "⚠️", "cancelled": "⏹️", "error": "❌"}


def report_markdown(record: RunRecord) -> str:
    """Verdict, thresholds, totals, times: a short report for a pull request."""
    summary = record.summary
    parts = [_head(summary), *_invalid(summary), *_warnings(summary), *_thresholds(summary)]
    parts += [
        *_totals(summary),
        *_times(record),
        *_stages(summary),
        *_find_max(summary),
        *_errors(summary),
        *_sessions(summary),
        *_client(summary),
        _foot(record),
    ]
    return "\n\n".join(parts) + "\n"


def _head(summary: Mapping[str, Any]) -> str:
    verdict = str(summary["verdict"])
    head = f"## {MARKS.get(verdict, '')} {markdown(summary['scenario'], NAME_MAX)}: {_word(verdict.upper())}"
    return head if verdict == "invalid" else f"{head}\n\n{markdown(summary['exit_reason'], TEXT_MAX)}"


def _invalid(summary: Mapping[str, Any]) -> Iterator[str]:
    reasons = summary["validity"]["reasons"]
    if reasons:
        listed = "\n".join(f"- {markdown(reason, TEXT_MAX)}" for reason in reasons[:20])
        yield f"**The numbers are not valid:**\n\n{listed}"


def _warnings(summary: Mapping[str, Any]) -> Iterator[str]:
    warnings = summary["environment"].get("warnings") or ()
    if warnings:
        listed = "\n".join(f"- {markdown(str(warning), TEXT_MAX)}" for warning in warnings[:20])
        yield f"**Warnings:**\n\n{listed}"


def _thresholds(summary: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (
            "✅ met" if one["passed"] else "❔ undecided" if formatting.is_unknown(one) else "❌ missed",
            markdown(formatting.check(one), NAME_MAX),
            formatting.judged(one),
        )
        for one in summary["thresholds"][:STATEMENTS_MAX]
    ]
    if rows:
        yield _table(("", "threshold", "measured"), rows, left=2)


def _totals(summary: Mapping[str, Any]) -> Iterator[str]:
    totals = summary["totals"]
    yield _table(
        ("per second", "offered", "succeeded", "failed", "skipped", "cancelled", "error rate"),
        [
            (
                f"**{formatting.rate(totals['qps'])}**",
                *(
                    formatting.count(totals[name])
                    for name in ("scheduled", "succeeded", "failed", "skipped", "cancelled")
                ),
                formatting.percent(totals["error_rate"]),
            )
        ],
    )
    yield (
        f"{formatting.seconds(summary['measured_seconds'])} measured, {counted(summary['connections'], 'connection')},"
        f" {counted(summary['workers'], 'worker')}.{_delivered(summary)}"
    )


def _delivered(summary: Mapping[str, Any]) -> str:
    fraction = (summary.get("delivered") or {}).get("fraction")
    return "" if fraction is None else f" Delivered load {percent(fraction)}."


def _times(record: RunRecord) -> Iterator[str]:
    summary = record.summary
    names = record.statement_names()
    rows = [("**all**", summary["totals"] | {"latency_ms": summary["latency_ms"]})]
    if summary["lag_ms"]:
        rows.append(("(lag)", {"latency_ms": summary["lag_ms"]}))
    rows += [(markdown(name, NAME_MAX), summary["statements"][name]) for name in names[:STATEMENTS_MAX]]
    samples = formatting.sample_columns([part for _, part in rows])
    yield _table(
        ("ms", *samples, "per s", *formatting.TIMES.values()),
        [
            (
                name,
                *counts,
                formatting.rate(part.get("qps")),
                *(formatting.time_of(part["latency_ms"], one) for one in formatting.TIMES),
            )
            for (name, part), counts in zip(rows, zip(*samples.values(), strict=True), strict=True)
        ],
    )
    if formatting.CUT_OFF in samples:
        yield formatting.CUT_OFF_NOTE
    if len(names) > STATEMENTS_MAX:
        yield f"{len(names) - STATEMENTS_MAX} more statements are in report.html."


def _stages(summary: Mapping[str, Any]) -> Iterator[str]:
    stages = summary.get("stages") or ()
    rows = [
        (
            markdown(stage["name"], NAME_MAX),
            formatting.level(stage),
            formatting.span(stage),
            formatting.count(stage["succeeded"]),
            formatting.rate(stage["qps"]),
            formatting.percent(stage["error_rate"]),
            *(formatting.time_of(stage["latency_ms"], one) for one in formatting.TIMES),
        )
        for stage in stages[:STAGES_MAX]
    ]
    if rows:
        head = ("stage", "load", "measured", "count", "per s", "error rate", *formatting.TIMES.values())
        yield _table(head, rows, left=3)
    if len(stages) > STAGES_MAX:
        yield f"{len(stages) - STAGES_MAX} more stages are in report.html."


def _find_max(summary: Mapping[str, Any]) -> Iterator[str]:
    found = summary["find_max"]
    if not found:
        return
    level = found["max_concurrency"]
    if level is None:
        yield f"**No number of connections held:** {markdown(str(found['reason']), TEXT_MAX)}"
        return
    yield (
        f"**{counted(level, 'connection')}** is the most that held ({markdown(str(found['result']))}):"
        f" {formatting.rate(found['qps'])} per second, p95 {formatting.found_p95(summary)} ms."
        f" {markdown(str(found['reason']), TEXT_MAX)}"
    )


def _errors(summary: Mapping[str, Any]) -> Iterator[str]:
    errors = summary["errors"]
    rows = [
        (
            formatting.count(one["count"]),
            markdown(one.get("statement") or "", NAME_MAX),
            _word(one["category"]),
            _word(str(one["code"] or "–")),
            markdown(one["example"], TEXT_MAX),
        )
        for one in errors[:ERRORS_MAX]
    ]
    if rows:
        yield _table(("failed", "statement", "category", "code", "example"), rows, left=5)
    if len(errors) > ERRORS_MAX:
        yield f"{len(errors) - ERRORS_MAX} more kinds of errors are in report.html."


def _sessions(summary: Mapping[str, Any]) -> Iterator[str]:
    sessions = summary.get("sessions")
    if sessions is not None:
        said = ", ".join(f"{formatting.count(sessions[name])} {name}" for name in ("created", "expired", "current"))
        yield f"User sessions: {said}."


def _client(summary: Mapping[str, Any]) -> Iterator[str]:
    client = summary["client"]
    yield (
        f"Load generator: busiest worker at {formatting.plain_percent(client['cpu_percent_of_core'])} of its core,"
        f" threads woke {formatting.ms(client['wakeup_p99_ms'])} ms late (p99): percentiles may be off by as much."
    )
    logins = login_words(client.get("connections") or {})
    if logins:
        yield f"Connections: {logins}."


def _foot(record: RunRecord) -> str:
    summary = record.summary
    version = markdown(str(summary["environment"].get("loadgen", "?")), 40)
    return (
        f"Run {markdown(summary['run_id'], 40)}, {_word(summary['started_at'] or 'never started')}, loadgen {version}."
    )


def _word(text: str) -> str:
    """A known word or time unchanged; anything else escaped."""
    return text if _OWN_WORD.fullmatch(text) else markdown(text, NAME_MAX)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """The first `left` columns to the left, numbers to the right."""
    rule = [":--" if column < left else "--:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))
