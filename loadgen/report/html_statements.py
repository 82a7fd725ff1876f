"""Statements in the HTML report: a table of all of them, the heaviest over time, and their SQL."""

from __future__ import annotations

from loadgen.metrics.histogram import EMPTY
from loadgen.model.threshold import ThresholdMetric
from loadgen.report import formatting
from loadgen.report.escaping import html, html_name
from loadgen.report.html_charts import ChartSeries, Timeline, checks_of, limit_of
from loadgen.report.page_parts import code, details, named, note, number, short, table
from loadgen.report.svg import ChartLimit
from loadgen.results.records import RunRecord

ROWS_MAX = 200
CHARTED_MAX = 6  # statements with a line of their own
SQL_MAX = 30_000  # characters, of all statements together
WIDTH, HEIGHT = 540, 200
TIMES = {ThresholdMetric.P50: 500, ThresholdMetric.P95: 950, ThresholdMetric.P99: 990}


def statements(record: RunRecord, timeline: Timeline | None) -> str:
    return _table(record) + (_over_time(record, timeline) if timeline is not None else "") + _sql(record)


def _table(record: RunRecord) -> str:
    summary, names = record.summary, record.statement_names()
    cut_off = any("cut_off" in summary["statements"][name]["latency_ms"] for name in names)
    kinds = {} if record.scenario is None else {one.name: one.kind for one in record.scenario.workload.statements}

    def row(statement: str) -> list[str]:
        one = summary["statements"][statement]
        latency, tried = one["latency_ms"], one["succeeded"] + one["failed"]
        error_rate = one["failed"] / tried if tried else None
        return [
            named(statement),
            short(kinds[statement].value if statement in kinds else formatting.NONE),
            number(one["succeeded"], formatting.count(one["succeeded"])),
            number(one["failed"], formatting.count(one["failed"])),
            *([number(latency.get("cut_off", 0), formatting.count(latency.get("cut_off", 0)))] if cut_off else ()),
            f'<td class="n">{html(formatting.percent(error_rate))}</td>',
            number(one["qps"], formatting.rate(one["qps"])),
            *(number(latency.get(key), formatting.time_of(latency, key)) for key in formatting.TIMES),
        ]

    counts = ("succeeded", "failed", *((formatting.CUT_OFF,) if cut_off else ()))
    head = ("statement", "kind", *counts, "error rate", "per s", *formatting.TIMES.values())
    said = table("Times in milliseconds", head, map(row, names[:ROWS_MAX]), words=2)
    said += note(formatting.CUT_OFF_NOTE) if cut_off else ""
    return said + (note(f"{len(names) - ROWS_MAX} more are in summary.json.") if len(names) > ROWS_MAX else "")


def _over_time(record: RunRecord, timeline: Timeline) -> str:
    """Nothing for a single statement: the charts of the whole run are its own."""
    names = record.statement_names()
    if len(names) < 2:
        return ""
    heaviest = names if record.scenario is None else record.scenario.workload.heaviest(CHARTED_MAX)
    charted = [one for one in heaviest if one in record.summary["statements"]][:CHARTED_MAX]
    colours = {statement: f"s{number}" for number, statement in enumerate(charted, start=1)}
    charts = [_throughput(record, timeline, colours)]
    charts += [_percentile(record, timeline, colours, metric) for metric in TIMES]
    said = f'<div class="pair">{"".join(charts)}</div>'
    if not any(charts[1:]):
        said += note("Response times by statement were not stored for this run, or too few statements were executed.")
    if len(charted) < len(names):
        said += note(f"The charts show the {len(charted)} statements with the highest weights, of {len(names)}.")
    return said


def _throughput(record: RunRecord, timeline: Timeline, colours: dict[str, str]) -> str:
    def rates(statement: str) -> list[float | None]:
        found = []
        for point in timeline.points:
            own, all_of_it = point.statements.get(statement), point.counts.succeeded
            share = own.succeeded / all_of_it if own is not None and all_of_it else 0.0
            found.append(None if point.qps is None else point.qps * share)
        return found

    tracks = [
        timeline.track(statement, css, rates(statement), formatting.rate, unit="/s", label=False)
        for statement, css in colours.items()
    ]
    title = "Throughput by statement, per second"
    limits = _limits(record, colours, ThresholdMetric.QPS)
    return timeline.chart("statements-qps", title, tracks, limits, width=WIDTH, height=HEIGHT)


def _percentile(record: RunRecord, timeline: Timeline, colours: dict[str, str], metric: ThresholdMetric) -> str:
    def track(statement: str, css: str) -> ChartSeries:
        times = [
            record.point_times.get((point.at_s // record.span_s, point.phase), {}).get(statement, EMPTY)
            for point in timeline.points
        ]
        return timeline.percentile(statement, css, times, TIMES[metric], label=False)

    tracks = [found for statement, css in colours.items() if (found := track(statement, css)).is_known]
    if not tracks:
        return ""
    title = f"{metric.value} of the response time by statement, ms"
    limits = _limits(record, colours, metric)
    return timeline.chart(f"statements-{metric.value}", title, tracks, limits, width=WIDTH, height=HEIGHT)


def _limits(record: RunRecord, colours: dict[str, str], metric: ThresholdMetric) -> list[ChartLimit]:
    return [
        limit_of(check, passed, colours[check.statement])
        for check, passed in checks_of(record.summary)
        if check.metric is metric and check.statement in colours
    ]


def _sql(record: RunRecord) -> str:
    known = () if record.scenario is None else record.scenario.workload.statements
    limit = max(SQL_MAX // max(len(known), 1), 200)
    listed = "".join(
        f"<p><strong>{html_name(one.name)}</strong> ({one.kind.value}, weight {one.weight})</p>"
        + code(";\n".join(query.sql for query in one.queries), limit)
        for one in known[:ROWS_MAX]
    )
    return details("SQL of the statements", listed) if listed else ""
