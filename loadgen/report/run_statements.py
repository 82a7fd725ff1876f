"""Sections of report.html: statements, user sessions, stages, and the search for the maximum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.metrics.histogram import EMPTY
from loadgen.model.threshold import ThresholdMetric
from loadgen.report import formatting
from loadgen.report.formatting import html, html_name
from loadgen.report.html_page import (
    code,
    data,
    details,
    facts,
    figure,
    named,
    not_drawn,
    note,
    number,
    short,
    table,
    text,
)
from loadgen.report.records import RunRecord
from loadgen.report.run_charts import ChartSeries, Timeline, checks_of, limit_of, statement_colours
from loadgen.report.svg import Axis, Chart, ChartDot, ChartLimit, ChartLine, Point, linear_axis
from loadgen.rules.scaling import fit_scaling, scaling_text
from loadgen.units import counted, format_duration_s

ROWS_MAX = 200
SQL_MAX = 30_000  # characters of all statements together
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
    head = ("statement", "kind", *counts, "error rate", "qps", *formatting.TIMES.values())
    body = table("Times in milliseconds", head, map(row, names[:ROWS_MAX]), words=2)
    body += note(formatting.CUT_OFF_NOTE) if cut_off else ""
    return body + (note(f"{len(names) - ROWS_MAX} more are in summary.json.") if len(names) > ROWS_MAX else "")


def _over_time(record: RunRecord, timeline: Timeline) -> str:
    """Charts by statement; empty for a single statement, which the charts of the run show."""
    names = record.statement_names()
    if len(names) < 2:
        return ""
    colours = statement_colours(record)
    times = {metric: _percentile(record, timeline, colours, metric) for metric in TIMES}
    body = f'<div class="pair">{_throughput(record, timeline, colours)}{"".join(times.values())}</div>'
    missing = [metric.value for metric, chart in times.items() if not chart]
    if len(missing) == len(times):
        body += note("Response times by statement were not stored for this run, or too few statements were executed.")
    elif missing:
        body += note(f"{' and '.join(missing)} by statement: not drawn, too few samples in most of the run.")
    if len(colours) < len(names):
        body += note(f"The charts show the {len(colours)} statements with the highest weights, of {len(names)}.")
    return body


def _throughput(record: RunRecord, timeline: Timeline, colours: dict[str, str]) -> str:
    def rates(statement: str) -> list[float | None]:
        found = []
        for point in timeline.points:
            own, all_of_it = point.every_statement.get(statement), point.every_count.succeeded
            share = own.succeeded / all_of_it if own is not None and all_of_it else 0.0
            found.append(None if point.qps is None or (point.qps and not all_of_it) else point.qps * share)
        return found

    tracks = [
        timeline.track(statement, css, rates(statement), formatting.rate, unit="/s", label=False)
        for statement, css in colours.items()
    ]
    title = "qps by statement"
    limits = _limits(record, colours, ThresholdMetric.QPS)
    return timeline.chart("statements-qps", title, tracks, limits, width=WIDTH, height=HEIGHT)


def _percentile(record: RunRecord, timeline: Timeline, colours: dict[str, str], metric: ThresholdMetric) -> str:
    def track(statement: str, css: str) -> ChartSeries:
        times = [
            record.point_times.get((point.at_s // record.span_s, point.phase), {}).get(statement, EMPTY)
            for point in timeline.points
        ]
        return timeline.percentile(statement, css, times, TIMES[metric], label=False)

    found = [track(statement, css) for statement, css in colours.items()]
    tracks = [one for one in found if one.is_known]
    if not tracks:
        return ""
    name, title = f"statements-{metric.value}", f"{metric.value} by statement, ms"
    limits = _limits(record, {one.name: one.css for one in tracks}, metric)
    missing = not_drawn({one.name: formatting.TOO_FEW for one in found if not one.is_known})
    return timeline.chart(name, title, tracks, limits, width=WIDTH, height=HEIGHT, missing=missing)


def _limits(record: RunRecord, colours: dict[str, str], metric: ThresholdMetric) -> list[ChartLimit]:
    return [
        limit_of(judged, colours[judged.check.statement])
        for judged in checks_of(record.summary)
        if judged.check.metric is metric and judged.check.statement in colours
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


COUNTS = ("created", "expired", "current")


def sessions(record: RunRecord) -> str:
    """created = expired + current, over all workers."""
    found = record.summary["sessions"]
    rows = [[number(found[name], formatting.count(found[name])) for name in COUNTS]]
    body = table("Sessions of logical users, over the whole run", COUNTS, rows, words=0)
    if record.scenario is not None:
        rules = record.scenario.sessions
        metadata = ", ".join(f"{key}={value}" for key, value in rules.metadata.items())
        body += facts(
            [
                ("users", formatting.count(rules.count)),
                ("affinity", rules.affinity.value),
                ("time to live", format_duration_s(rules.ttl_s)),
                ("metadata", html(metadata, 1_000)),
            ]
        )
    return body + note(
        "Expired: unused for the time to live, or the connection was lost. Current: alive at the end of the load."
    )


STEPS_WIDTH = 420
STEP_HEAD = (
    *("step", "connections", "succeeded", "failed", "error rate", "qps"),
    *("p50", "p95", "p99", "queue", "outcome"),
)
REASON_MAX = 2_000  # characters
SIGNS = '<span class="s3">● held</span><span class="s2">✕ did not hold</span>'
LIMITED = '<span class="s5">○ limited by the client</span>'
HELD, CLIENT_LIMIT = "STABLE", "CLIENT_LIMIT"  # outcomes; all others mean that the level did not hold


def stages(record: RunRecord) -> str:
    """The measurements of each stage."""
    rows = (
        [
            named(stage["name"]),
            short(formatting.level(stage)),
            short(formatting.span(stage)),
            number(stage["succeeded"], formatting.count(stage["succeeded"])),
            number(stage["error_rate"], formatting.percent(stage["error_rate"])),
            number(stage["qps"], formatting.rate(stage["qps"])),
            *(
                number(stage["latency_ms"].get(key), formatting.time_of(stage["latency_ms"], key))
                for key in formatting.TIMES
            ),
        ]
        for stage in record.summary["stages"][:ROWS_MAX]
    )
    head = ("stage", "load", "measured", "succeeded", "error rate", "qps", *formatting.TIMES.values())
    return table("Stages; times in milliseconds", head, rows, words=3)


_CELLS = {HELD: "ok", CLIENT_LIMIT: "limited"}


def max_concurrency(found: Mapping[str, Any]) -> str:
    level = found.get("max_concurrency")
    return data(level, formatting.bounded(formatting.count(level), at_least=formatting.is_bounded(found)))


def find_max(record: RunRecord) -> str:
    """The result of a search for the maximum, and its steps."""
    found = record.summary["find_max"]
    kinds = {"TRUE_MAX": "TRUE_MAX: the limit itself was found", "BOUNDED_MAX": "BOUNDED_MAX: a lower bound"}
    failed = found.get("failed_at")
    answer = facts(
        [
            ("max concurrency", max_concurrency(found)),
            ("result", html(kinds.get(str(found.get("result")), str(found.get("result") or "")))),
            ("did not hold", data(failed, formatting.count(failed)) if failed is not None else ""),
            ("because", html(str(found.get("failed_outcome") or ""))),
            ("qps", data(found.get("qps"), formatting.rate(found.get("qps")))),
            ("p95", f"{data(found.get('p95_ms'), formatting.found_p95(record.summary))} ms"),
            ("confidence", html(str(found.get("confidence") or ""))),
        ]
    )
    answer += note(html(str(found.get("reason") or ""), REASON_MAX))
    if record.steps:
        answer += table("Steps in order; times in milliseconds", STEP_HEAD, _steps(record), words=0, last_words=2)
        answer += note(formatting.STEPS_NOTE)
    return answer + _charts(record)


def _steps(record: RunRecord) -> Iterator[Sequence[str]]:
    """The row of each step, and a row with the reason of its outcome."""
    for step in record.steps[:ROWS_MAX]:
        yield (
            number(step.number, str(step.number)),
            number(step.target, formatting.count(step.target)),
            number(step.succeeded, formatting.count(step.succeeded)),
            number(step.failed, formatting.count(step.failed)),
            number(step.error_rate, formatting.percent(step.error_rate)),
            number(step.qps, formatting.rate(step.qps)),
            *(
                number(step.latency_ms.get(key), formatting.time_of(step.latency_ms, key))
                for key in ("p50", "p95", "p99")
            ),
            text("yes" if step.queue_seen else ""),
            f'<td class="{_CELLS.get(step.outcome, "miss")}">{html(step.outcome)}</td>',
        )
        if step.outcome != HELD or step.reason != "held":
            yield (f'<td class="reason" colspan="{len(STEP_HEAD)}"><span>{html(step.reason, REASON_MAX)}</span></td>',)


def _charts(record: RunRecord) -> str:
    steps = record.steps
    if not steps:
        return ""
    connections = linear_axis(max(step.target for step in steps), ticks=6, whole=True)
    signs = SIGNS + (LIMITED if any(step.outcome == CLIENT_LIMIT for step in steps) else "")

    def chart(chart_id: str, title: str, x: Axis, places: Sequence[Point], *, whole: bool = False, **more: Any) -> str:
        known = [(step, x_at, y) for step, (x_at, y) in zip(steps, places, strict=True) if y is not None]
        dots = tuple(
            ChartDot(
                x=x_at,
                y=y,
                css={HELD: "s3", CLIENT_LIMIT: "s5"}.get(step.outcome, "s2"),
                cross=step.outcome not in (HELD, CLIENT_LIMIT),
                ring=step.outcome == CLIENT_LIMIT,
                label=html(f"step {step.number}, {counted(step.target, 'connection')}: {y:,.1f}, {step.outcome}"),
            )
            for step, x_at, y in known
        )
        high = max((y for _, _, y in known), default=1.0)
        drawn = Chart(
            chart_id=chart_id,
            title=title,
            description="; ".join(dot.label for dot in dots[:40]),
            x=x,
            y=linear_axis(high, whole=whole),
            dots=dots,
            width=STEPS_WIDTH,
            height=240,
            **more,
        )
        return figure(drawn, [], signs=signs)

    curve, law = _scaling(record)
    numbers = linear_axis(steps[-1].number + 0.5, ticks=6, whole=True)
    climb = tuple((float(step.number), float(step.target)) for step in steps)
    line = ChartLine(name="", css="s1", points=climb, stepped=True)
    parts = [
        chart("steps", "Connections, step by step", numbers, climb, whole=True, lines=(line,), x_title="step"),
        chart(
            "steps-qps",
            "qps by connections",
            connections,
            [(float(step.target), step.qps) for step in steps],
            lines=curve,
            x_title="connections",
        ),
        chart(
            "steps-p95",
            "p95 by connections, ms",
            connections,
            [(float(step.target), step.latency_ms.get("p95")) for step in steps],
            x_title="connections",
        ),
    ]
    return f'<div class="pair three">{"".join(parts)}</div>{law}'


def _scaling(record: RunRecord) -> tuple[tuple[ChartLine, ...], str]:
    """The scaling curve of a search, as a line and as text, without the steps that the client limited."""
    points = [
        (float(step.target), step.qps)
        for step in record.steps
        if step.qps is not None and step.outcome != CLIENT_LIMIT and not step.error_rate
    ]
    found = fit_scaling(points)
    if isinstance(found, str):
        return (), note(html(f"No scaling curve: {found}."))
    highest = max(target for target, _ in points)
    return (ChartLine(name="", css="s4", points=found.points(highest)),), note(html(scaling_text(found)))
