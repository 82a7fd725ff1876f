"""Charts of the HTML report that stand side by side: the search for the maximum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.report.foreign import html
from loadgen.report.html_parts import figure
from loadgen.report.record import RunRecord
from loadgen.report.svg import Axis, Chart, Dot, Line, Point, linear_axis

WIDTH = 420
SIGNS = '<span class="s3">● held</span><span class="s2">✕ did not</span>'


def find_max_charts(record: RunRecord) -> str:
    steps = record.steps
    if not steps:
        return ""
    connections = linear_axis(max(step.target for step in steps), ticks=6)

    def chart(name: str, title: str, x: Axis, places: Sequence[Point], **more: Any) -> str:
        known = [(step, x_at, y) for step, (x_at, y) in zip(steps, places, strict=True) if y is not None]
        dots = tuple(
            Dot(
                x=x_at,
                y=y,
                css="s3" if step.outcome == "STABLE" else "s2",
                cross=step.outcome != "STABLE",
                label=html(f"step {step.number}, {step.target} connections: {y:,.1f}, {step.outcome}"),
            )
            for step, x_at, y in known
        )
        high = max((y for _, _, y in known), default=1.0)
        drawn = Chart(
            chart_id=name,
            title=title,
            description="; ".join(dot.label for dot in dots[:40]),
            x=x,
            y=linear_axis(high),
            dots=dots,
            width=WIDTH,
            height=240,
            **more,
        )
        return figure(drawn, [], signs=SIGNS)

    numbers = linear_axis(steps[-1].number + 0.5, ticks=6)
    climb = tuple((float(step.number), float(step.target)) for step in steps)
    line = Line(name="", css="s1", points=climb, stepped=True)
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
            [(float(step.target), step.p95_ms) for step in steps],
            x_title="connections",
        ),
    ]
    return f'<div class="pair three">{"".join(parts)}</div>'
