"""How loaded a worker was, over its whole measurement."""

from __future__ import annotations

import pytest

from loadgen.clock import FakeClock
from loadgen.units import NS_PER_MS
from loadgen.worker.gauges import ClientLoad, Gauge, Gauges


def gauge(cpu_percent: float, seconds: float, *late_ms: float) -> Gauge:
    late_ns = tuple(round(late * NS_PER_MS) for late in late_ms)
    return Gauge(cpu_percent=cpu_percent, memory_percent=1.0, wakeup_p99_ms=None, seconds=seconds, late_ns=late_ns)


def test_the_share_of_a_core_is_weighted_by_time():
    """A reading over a few milliseconds may say anything; it must not say much."""
    load = ClientLoad()
    load.add(gauge(50.0, 1.0))
    load.add(gauge(383.0, 0.01))

    assert load.document()["cpu_percent_of_core"] == pytest.approx((50.0 + 3.83) / 1.01)


def test_lateness_is_that_of_all_wake_ups_together():
    load = ClientLoad()
    for _ in range(99):
        load.add(gauge(10.0, 1.0, 0.1, 0.1))
    load.add(gauge(10.0, 1.0, *[30.0] * 4))

    assert load.document()["wakeup_p99_ms"] == pytest.approx(30.0, rel=0.011)


def test_nothing_measured_is_not_an_idle_client():
    assert ClientLoad().document() == {"cpu_percent_of_core": None, "wakeup_p99_ms": None}


def test_a_reading_that_follows_at_once_says_the_same_and_covers_nothing():
    clock = FakeClock()
    gauges = Gauges(clock)
    clock.advance(1.0)
    first = gauges.read()
    sum(range(2_000_000))  # CPU time that the next reading would divide by nothing
    clock.advance(0.001)
    second = gauges.read()

    assert (second.cpu_percent, second.seconds) == (first.cpu_percent, 0.0)
    clock.advance(1.0)
    assert gauges.read().seconds == pytest.approx(1.001)
