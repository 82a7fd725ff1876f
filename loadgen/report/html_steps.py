"""Parts of a run that were measured one after the other, in the HTML report: stages, and the steps of a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.report import formatting
from loadgen.report.escaping import html
from loadgen.report.page_parts import data, facts, figure, named, note, number, short, table, text
from loadgen.report.svg import Axis, Chart, ChartDot, ChartLine, Point, linear_axis
from loadgen.results.records import RunRecord
from loadgen.units import counted

ROWS_MAX = 200
WIDTH = 420
SIGNS = '<span class="s3">● held</span><span class="s2">✕ did not</span>'
LIMITED = '<span class="s5">○ limited by the client</span>'
HELD, CLIENT_LIMIT = "STABLE", "CLIENT_LIMIT"  # outcomes; every other one is a failure of the level


def stages(record: RunRecord) -> str:
    """What was measured in each stage by itself."""
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
    head = ("stage", "load", "measured", "succeeded", "error rate", "per s", *formatting.TIMES.values())
    return table("Each stage by itself; times in milliseconds", head, rows, words=3)


_CELLS = {HELD: "ok", CLIENT_LIMIT: "limited"}


def find_max(record: RunRecord) -> str:
    """The answer of a search, and its steps."""
    found = record.summary["find_max"]
    level = found.get("max_concurrency")
    kinds = {"TRUE_MAX": "the limit itself was found", "BOUNDED_MAX": "a lower bound"}
    failed = found.get("failed_at")
    answer = facts(
        [
            ("held", data(level, formatting.count(level))),
            ("result", html(kinds.get(str(found.get("result")), str(found.get("result") or "")))),
            ("did not hold", data(failed, formatting.count(failed)) if failed is not None else ""),
            ("because", html(str(found.get("failed_outcome") or ""))),
            ("per second", data(found.get("qps"), formatting.rate(found.get("qps")))),
            ("p95", f"{data(found.get('p95_ms'), formatting.found_p95(record.summary))} ms"),
            ("confidence", html(str(found.get("confidence") or ""))),
        ]
    )
    answer += note(html(str(found.get("reason") or "")))
    rows = (
        (
            number(step.number, str(step.number)),
            number(step.target, formatting.count(step.target)),
            number(step.succeeded, formatting.count(step.succeeded)),
            number(step.error_rate, formatting.percent(step.error_rate)),
            number(step.qps, formatting.rate(step.qps)),
            *(
                number(step.latency_ms.get(key), formatting.time_of(step.latency_ms, key))
                for key in ("p50", "p95", "p99")
            ),
            f'<td class="{_CELLS.get(step.outcome, "miss")}">{html(step.outcome)}</td>',
            text(step.reason),
        )
        for step in record.steps[:ROWS_MAX]
    )
    head = ("step", "connections", "succeeded", "error rate", "per s", "p50", "p95", "p99", "outcome", "why")
    ladder = (
        table("The steps, in order; times in milliseconds", head, rows, words=0, last_words=2) if record.steps else ""
    )
    return answer + ladder + _charts(record)


def _charts(record: RunRecord) -> str:
    steps = record.steps
    if not steps:
        return ""
    connections = linear_axis(max(step.target for step in steps), ticks=6)
    signs = SIGNS + (LIMITED if any(step.outcome == CLIENT_LIMIT for step in steps) else "")

    def chart(chart_id: str, title: str, x: Axis, places: Sequence[Point], **more: Any) -> str:
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
            y=linear_axis(high),
            dots=dots,
            width=WIDTH,
            height=240,
            **more,
        )
        return figure(drawn, [], signs=signs)

    numbers = linear_axis(steps[-1].number + 0.5, ticks=6)
    climb = tuple((float(step.number), float(step.target)) for step in steps)
    line = ChartLine(name="", css="s1", points=climb, stepped=True)
    parts = [
        chart("steps", "Connections, step by step", numbers, climb, lines=(line,), x_title="step"),
        chart(
            "steps-qps",
            "Throughput by connections, per second",
            connections,
            [(float(step.target), step.qps) for step in steps],
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
    return f'<div class="pair three">{"".join(parts)}</div>'
