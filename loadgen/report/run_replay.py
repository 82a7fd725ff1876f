"""A replay beside its recording: `replay` of summary.json, and the section of report.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from loadgen.metrics.replayed import RowCount
from loadgen.metrics.window import MergedWindows
from loadgen.model.capture import RecordedTimes, Replay, SessionReplay, WriteReplay
from loadgen.report import formatting
from loadgen.report.page import figure, named, note, number, table
from loadgen.report.records import RunRecord
from loadgen.report.run_charts import ChartSeries, HoverData, described, value_axis
from loadgen.report.svg import Chart, ChartLine, clock, time_axis

_TIMES = ("avg", "p50", "p95")
_HEADS = {"rows_avg": "rows"}


def replay_document(
    replay: Replay, names: list[str], merged: MergedWindows, service_ms: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Recorded times on the server beside service times of the replay, the largest differences of averages first."""
    found = zip(names, replay.recorded, strict=False)
    compared = [_compared(name, times, merged, service_ms.get(name, {})) for name, times in found]
    return {
        "capture": replay.capture,
        "speed": replay.speed,
        "users": replay.users,
        "kept_sessions": replay.sessions is SessionReplay.KEEP,
        "writes": replay.writes is WriteReplay.REPLAY,
        "pseudonyms": replay.pseudonyms,
        "compared": sorted(compared, key=lambda one: -abs(one["slower_ms"] or 0.0)),
    }


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
    """A part of the measurement, and how many statements per second were due and sent in it."""

    from_s: float
    until_s: float
    recorded: float
    replayed: float


def arrival_spans(replay: Replay, duration_s: float, sent: Sequence[int]) -> list[ArrivalSpan]:
    """Of about a second at least, so that lines have a shape. Recorded arrivals are on the clock of the replay: their
    moments ÷ speed, once for each user."""
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
    """Statements per second as recorded and as sent, in one chart; empty where one of the two is not known."""
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
        title="Statements per second: due by the recording, and sent by the replay",
        description=described(tracks),
        x=time_axis(load.duration_s),
        y=value_axis([value for one in tracks for value in one.values]),
        lines=tuple(ChartLine(name=one.name, css=one.css, points=one.drawn, filled=one.filled) for one in tracks),
        height=150,
    )
    shown = [[one.shown(value) for value in one.values] for one in tracks]
    labels = (f"at {clock(span.from_s)}" for span in spans)
    hover.add(chart, "arrivals", zip(places, labels, strict=True), shown)
    return figure(chart, [(one.css, one.name, one.unit) for one in tracks]) + note(
        "Recorded statements are drawn at the moments they were due at in the replay, once for each user."
    )


def has_rows(replay: Mapping[str, Any]) -> bool:
    """Does the capture know rows of any statement?"""
    return any(one["recorded"].get("rows_avg") is not None for one in replay["compared"])


def rows_text(rows: float | None) -> str:
    return formatting.NONE if rows is None else f"{rows:,.1f}".removesuffix(".0")


def replayed(replay: Mapping[str, Any]) -> str:
    """Statement by statement, the largest differences first."""
    columns = ("count", *_TIMES, *(["rows_avg"] if has_rows(replay) else []))
    shown = {"count": formatting.count, "rows_avg": rows_text}
    rows = (
        (
            named(one["statement"]),
            *(
                number(part[key], shown.get(key, formatting.ms)(part[key]))
                for part in (one["recorded"], one["replayed"])
                for key in columns
            ),
            number(one["slower_ms"], formatting.ms(one["slower_ms"])),
        )
        for one in replay["compared"]
    )
    keys = [_HEADS.get(key, key) for key in columns]
    head = ("statement", *(f"{when} {key}" for when in ("recorded", "replayed") for key in keys), "slower by")
    said = table("Milliseconds: recorded on the server, and service times of the replay", head, rows)
    if has_rows(replay):
        said += note("Rows are the mean of each statement: recorded as ROWS_PRODUCED, replayed as the client got them.")
    if replay.get("users", 1) > 1:
        said += note(f"Each recorded statement was due once for each of {formatting.count(replay['users'])} users.")
    if replay["pseudonyms"]:
        said += note("Values were pseudonyms: rows, and with them times, may differ from those of the recording.")
    return said + note("Statements that failed in the recording are not in a capture: every error here is a new one.")
