"""Nights of a trend: noise, levels and steps, always the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from loadgen.rules.comparability import Measure, Subject
from loadgen.rules.trend import SeriesKey, Trend, TrendRun, trend_of

KEY = SeriesKey(template_id="t", driver_major="5", workers=2, cores=2, warehouse_size="X-Small")
P95: Subject = (None, Measure.P95)


def noise(seed: int, nights: int, spread: float = 0.05) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0.0, spread, nights)


def night(
    number: int,
    values: Mapping[Subject, float],
    *,
    key: SeriesKey = KEY,
    facts: Mapping[str, str] | None = None,
    at_least: Collection[Subject] = (),
    apart: timedelta = timedelta(days=1),
) -> TrendRun:
    created = datetime(2026, 1, 1, 2) + number * apart  # noqa: DTZ001 - naive UTC by design
    return TrendRun(
        run_id=f"night-{number:03d}",
        created=created,
        started=created,
        key=key,
        values=values,
        facts=facts or {},
        at_least=frozenset(at_least),
    )


def nights_of(p95: Sequence[float]) -> list[TrendRun]:
    """A closed loop: when statements take longer, there are fewer of them."""
    return [
        night(
            number,
            {
                P95: value,
                (None, Measure.P50): value / 2,
                (None, Measure.QPS): 4_000 / value,
                (None, Measure.ERROR_RATE): 0.0,
                ("pay", Measure.P95): 1.5 * value,
            },
        )
        for number, value in enumerate(p95)
    ]


def trend(p95: Sequence[float]) -> Trend:
    return trend_of("orders", nights_of(p95), {})


QUIET = list(40 * np.exp(noise(11, 30, 0.02)))


def hung(p95: Sequence[float], last: int = 1) -> Trend:
    """Statements of the last nights were cancelled: their p95 is at least what is known."""
    nights = nights_of(p95)
    for number in range(len(nights) - last, len(nights)):
        usual = nights[0].values
        values = {**usual, P95: p95[number]}  # all else is as ever
        nights[number] = night(number, values, at_least=[P95])
    return trend_of("orders", nights, {})
