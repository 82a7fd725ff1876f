"""A replay compared with its recording: the part `replay` of summary.json, and the section of report.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from loadgen.log import printable
from loadgen.metrics.recorder import RowCount
from loadgen.metrics.window import MergedWindows
from loadgen.model.capture import LeftOutReason, RecordedTimes, Replay, SessionReplay, WriteReplay
from loadgen.report import formatting
from loadgen.report.formatting import html
from loadgen.report.html_page import figure, named, note, number, table, text
from loadgen.report.records import RunRecord
from loadgen.report.run_charts import ChartSeries, HoverData, described, value_axis
from loadgen.report.svg import Chart, ChartLine, clock, time_axis
from loadgen.units import NS_PER_MS, counted
from loadgen.values import dataclass

LATE_MS = 5.0  # a statement sent more than this after its due time is late
ERRORS_MAX = 20  # statements with errors in a report
_TIMES = ("avg", "p50", "p95")
_HEADS = {"rows_avg": "rows"}


def replay_document(
    replay: Replay, names: list[str], merged: MergedWindows, service_ms: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Recorded server times compared with service times of the replay; the largest differences of averages first."""
    found = list(zip(names, replay.recorded, strict=False))
    compared = [_compared(name, times, merged, service_ms.get(name, {})) for name, times in found]
    late_ns = round(LATE_MS * NS_PER_MS)
    return {
        "capture": replay.capture,
        "speed": replay.speed,
        "users": replay.users,
        "kept_sessions": replay.sessions is SessionReplay.KEEP,
        "writes": replay.writes is WriteReplay.REPLAY,
        "pseudonyms": replay.pseudonyms,
        "coverage": _coverage(replay),
        "late": {
            "limit_ms": LATE_MS,
            "sent_late": merged.tally.whole.lag.count_from(late_ns),
            "by_client": merged.sent_late.count_from(late_ns),
            "skipped": merged.counts.skipped,
        },
        "new_errors": _new_errors(found, merged),
        "compared": sorted(compared, key=lambda one: -abs(one["slower_ms"] or 0.0)),
    }


def _coverage(replay: Replay) -> dict[str, Any] | None:
    coverage = replay.coverage
    if coverage is None:
        return None
    return {
        "history": coverage.total,
        "captured": coverage.statements,
        "left_out": dict(coverage.left_out),
        "unrecorded": coverage.unrecorded,
        "due": sum(one.count for one in replay.recorded),
    }


def _new_errors(found: Sequence[tuple[str, RecordedTimes]], merged: MergedWindows) -> list[dict[str, Any]]:
    """The failures of each statement with their most frequent kind, most failures first. A capture contains only
    statements that succeeded, so each failure is new."""
    recorded = {name: times.failed for name, times in found}
    made = []
    for name, tally in merged.tally.statements.items():
        kinds = [(group.count, key, group) for key, group in merged.tally.errors.items() if key.statement == name]
        if tally.ended.failed:
            _, key, group = max(kinds, key=lambda kind: kind[0], default=(0, None, None))
            made.append(
                {
                    "statement": name,
                    "failed": tally.ended.failed,
                    "recorded_failed": recorded.get(name, 0),
                    "category": None if key is None else key.category.value,
                    "code": None if key is None else key.code,
                    "example": "" if group is None else group.example,
                }
            )
    return sorted(made, key=lambda one: -one["failed"])


def _compared(name: str, times: RecordedTimes, merged: MergedWindows, service: Mapping[str, Any]) -> dict[str, Any]:
    tally, avg_ms = merged.tally.statements.get(name), service.get("avg")
    found = RowCount() if merged.replayed is None else merged.replayed.rows.get(name, RowCount())
    recorded_rows = RowCount(times.rows_known, times.rows)
    return {
        "statement": name,
        "recorded": {
            "count": times.count,
            "avg": times.avg_ms,
            "p50": times.p50_ms,
            "p95": times.p95_ms,
            "rows_avg": recorded_rows.avg,
        },
        "replayed": {
            "count": 0 if tally is None else tally.ended.succeeded,
            **{time: service.get(time) for time in _TIMES},
            "rows_avg": found.avg,
        },
        "slower_ms": None if avg_ms is None else round(avg_ms - times.avg_ms, 3),
    }


@dataclass(frozen=True, slots=True)
class ArrivalSpan:
    """The rates of due and of sent statements in a part of the measurement."""

    from_s: float
    until_s: float
    recorded: float
    replayed: float


def arrival_spans(replay: Replay, duration_s: float, sent: Sequence[int]) -> list[ArrivalSpan]:
    """Spans of about a second or more, so that lines are smooth. Recorded arrivals are in the time of the replay: their
    times divided by the speed, once per user."""
    until = [0, *map(sum, zip(*replay.planned, strict=True))]
    parts = len(until) - 1
    spans = max(1, min(parts, int(duration_s)))
    edges = [round(number * parts / spans) for number in range(spans + 1)]
    made = []
    for first, last in pairwise(edges):
        seconds = (last - first) * duration_s / parts
        made.append(
            ArrivalSpan(
                from_s=first * duration_s / parts,
                until_s=last * duration_s / parts,
                recorded=(until[last] - until[first]) / seconds,
                replayed=sum(sent[first:last]) / seconds,
            )
        )
    return made


def arrivals_chart(record: RunRecord, hover: HoverData) -> str:
    """Recorded and sent statements per second in one chart; empty if one of them is not known."""
    load = None if record.scenario is None else record.scenario.load
    sent = None if record.merged is None else record.merged.replayed
    if load is None or load.replay is None or not load.replay.planned or not load.duration_s or sent is None:
        return ""
    spans = arrival_spans(load.replay, load.duration_s, sent.sent)
    places = [(span.from_s + span.until_s) / 2 for span in spans]

    def track(name: str, css: str, values: Sequence[float], *, filled: bool = False) -> ChartSeries:
        drawn = tuple(zip(places, values, strict=True))
        return ChartSeries(
            name=name, css=css, values=values, drawn=drawn, shown=formatting.rate, unit="/s", filled=filled
        )

    tracks = [
        track("recorded", "s1", [span.recorded for span in spans], filled=True),
        track("replayed", "s2", [span.replayed for span in spans]),
    ]
    chart = Chart(
        chart_id="arrivals",
        title="Statements per second: due according to the recording, and sent by the replay",
        description=described(tracks),
        x=time_axis(load.duration_s),
        y=value_axis([value for one in tracks for value in one.values]),
        lines=tuple(ChartLine(name=one.name, css=one.css, points=one.drawn, filled=one.filled) for one in tracks),
        height=150,
        both_sides=True,
    )
    shown = [[one.shown(value) for value in one.values] for one in tracks]
    labels = (f"at {clock(span.from_s)}" for span in spans)
    hover.add(chart, "arrivals", zip(places, labels, strict=True), shown)
    return figure(chart, [(one.css, one.name, one.unit) for one in tracks]) + note(
        "Recorded statements are drawn at their due times in the replay, once for each user."
    )


def has_rows(replay: Mapping[str, Any]) -> bool:
    """Whether the capture knows the number of rows of any statement."""
    return any(one["recorded"].get("rows_avg") is not None for one in replay["compared"])


def rows_text(rows: float | None) -> str:
    return formatting.NONE if rows is None else f"{rows:,.1f}".removesuffix(".0")


def coverage_text(replay: Mapping[str, Any]) -> str:
    """The share of the history that was sent; empty if an earlier version did not store it."""
    coverage = replay.get("coverage")
    if not coverage:
        return ""
    left = "; ".join(f"{count:,} left out because {_reason(name)}" for name, count in coverage["left_out"].items())
    if coverage.get("unrecorded"):
        left = "; ".join(
            part
            for part in (left, f"{coverage['unrecorded']:,} more are not in the history (short, hybrid tables)")
            if part
        )
    return (
        f"Coverage: the capture has {coverage['captured']:,} of {counted(coverage['history'], 'statement')} of the"
        f" history, and {coverage['due']:,} were due in the replay{f'; {left}' if left else ''}."
    )


def _reason(name: str) -> str:
    known = LeftOutReason.__members__.get(name.upper())
    return printable(name, 40) if known is None else known.value


def late_text(replay: Mapping[str, Any]) -> str:
    """The number of late statements, and the side that delayed them."""
    late = replay.get("late")
    if not late:
        return ""
    return (
        f"Late: {counted(late['sent_late'], 'statement')} sent more than {late['limit_ms']:g} ms after the due time;"
        f" the client delayed {late['by_client']:,} of them, the others waited for a busy connection."
        f" Skipped: {late['skipped']:,}."
    )


def new_error_cells(replay: Mapping[str, Any]) -> list[tuple[str, int, int, str]]:
    """Rows of (statement, failures in the replay, failures in the recording, example)."""
    return [
        (
            one["statement"],
            one["failed"],
            one["recorded_failed"],
            " ".join(str(part) for part in (one["category"], one["code"], one["example"]) if part is not None),
        )
        for one in (replay.get("new_errors") or ())[:ERRORS_MAX]
    ]


NEW_ERROR_HEADS = ("new errors", "replayed", "recorded", "most frequent")
NO_NEW_ERRORS = "No statement failed that had succeeded in the recording."
NEW_ERRORS_NOTE = (
    "New errors: the capture contains only statements that succeeded, so each failure is new. The column recorded"
    " counts failures of the same statement in the history, which are not replayed."
)


def _new_errors_table(replay: Mapping[str, Any]) -> str:
    rows = [
        (named(name), *(number(count, formatting.count(count)) for count in counts), text(example, 400))
        for name, *counts, example in new_error_cells(replay)
    ]
    if not rows:
        return note(NO_NEW_ERRORS) if "new_errors" in replay else ""
    caption = "New errors by statement"
    return table(caption, ("statement", *NEW_ERROR_HEADS[1:]), rows, last_words=1) + note(NEW_ERRORS_NOTE)


def replayed(replay: Mapping[str, Any]) -> str:
    """A table of all statements, the largest differences first."""
    columns = ("count", *_TIMES, *(["rows_avg"] if has_rows(replay) else []))
    shown = {"count": formatting.count, "rows_avg": rows_text}
    rows = (
        (
            named(one["statement"]),
            number(one["slower_ms"], formatting.ms(one["slower_ms"])),
            *(
                number(part[key], shown.get(key, formatting.ms)(part[key]))
                for part in (one["recorded"], one["replayed"])
                for key in columns
            ),
        )
        for one in replay["compared"]
    )
    keys = [_HEADS.get(key, key) for key in columns]
    head = ("statement", "slower by", *(f"{when} {key}" for when in ("recorded", "replayed") for key in keys))
    body = table("Recorded server times and service times of the replay, in milliseconds", head, rows)
    if has_rows(replay):
        body += note("Rows are means per statement: recorded as ROWS_PRODUCED, replayed as counted by the client.")
    if replay.get("users", 1) > 1:
        body += note(f"Each recorded statement was due once for each of {formatting.count(replay['users'])} users.")
    if replay["pseudonyms"]:
        body += note("Values were pseudonyms, so numbers of rows and times may differ from the recording.")
    body += "".join(note(html(text)) for text in (coverage_text(replay), late_text(replay)) if text)
    return body + _new_errors_table(replay)
