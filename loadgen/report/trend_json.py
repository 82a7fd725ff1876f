"""A trend as data, for scripts. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from loadgen.report.trend_text import newest_change, reason_text, state, usual
from loadgen.rules.comparability import Measure
from loadgen.rules.trend import RUNS_MIN, ConfirmedChange, MetricTrend, OtherSeries, Trend

_UNITS = {Measure.QPS: "per second", Measure.ERROR_RATE: "share", Measure.MAX_CONCURRENCY: "connections"}


def trend_data(trend: Trend, last: int) -> dict[str, Any]:
    """Metrics have the values of the last so many nights; everything was judged by all of them."""
    newest = trend.nights[-1] if trend.nights else None
    first = max(len(trend.nights) - last, 0)
    return {
        "scenario": trend.scenario,
        "verdict": trend.verdict.value,
        "exit_code": trend.exit_code,
        "reason": reason_text(trend),
        "newest": None if newest is None else newest.run_id,
        "series": None if newest is None else asdict(newest.key),
        "runs_in_series": len(trend.nights),
        "runs_needed": RUNS_MIN,
        "left_out": dict(trend.left_out),
        "last_left_out": trend.last_left_out,
        "other_series": [_other(other) for other in trend.others],
        "runs": [
            {"run_id": night.run_id, "created_at": f"{night.started.isoformat(timespec='seconds')}Z"}
            for night in trend.nights[first:]
        ],
        "metrics": [_track(trend, track, first) for track in trend.tracks],
        "changes": [_step(trend, step) for step in trend.steps],
    }


def _track(trend: Trend, track: MetricTrend, first: int) -> dict[str, Any]:
    values: list[float | None] = [None] * len(trend.nights)
    at_least = [False] * len(trend.nights)
    for place, (number, value) in enumerate(zip(track.nights, track.values, strict=True)):
        values[number], at_least[number] = round(value, 6), place in track.at_least
    return {
        "statement": track.statement,
        "metric": track.measure.value,
        "unit": _UNITS.get(track.measure, "ms"),
        "values": values[first:],
        "at_least": at_least[first:],  # of the values: those that are lower bounds
        "usual": _rounded(usual(track)),
        "newest": _rounded(track.values[-1]),
        "change": _rounded(newest_change(track)),
        "limit": track.limit,
        "state": state(trend, track).lower(),
    }


def _step(trend: Trend, step: ConfirmedChange) -> dict[str, Any]:
    track = step.track
    return {
        "statement": track.statement,
        "metric": track.measure.value,
        "since": trend.nights[step.start].run_id,
        "confirmed_by": trend.nights[step.confirmed].run_id,
        "before": _rounded(track.value(step.shift.before.centre)),
        "after": _rounded(track.value(step.shift.after)),
        "change": _rounded(step.change),
        "at_least": step.shift.at_least,
        "worse": step.worse,
        "new": step.new,
        "changed_with_it": {name: {"from": a, "to": b} for name, (a, b) in trend.changed_at(step.start).items()},
    }


def _other(other: OtherSeries) -> dict[str, Any]:
    return {
        "series": asdict(other.key),
        "runs": other.runs,
        "newest": other.newest.run_id,
        "differs_in": [{"key": one.key, "there": one.a, "here": one.b} for one in other.differences],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
