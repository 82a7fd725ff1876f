"""The clocks: the real one goes on, the fake one moves when told."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

import loadgen.clock as clock_module
from loadgen.clock import Clock, FakeClock, SystemClock


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_an_event_that_is_set_ends_the_wait_at_once(clock: Clock):
    event = threading.Event()
    event.set()
    fake_ns = clock.monotonic_ns() if isinstance(clock, FakeClock) else None

    assert clock.wait(event, 3_600.0)
    assert fake_ns in (None, clock.monotonic_ns())


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_a_wait_that_nobody_ends_says_so(clock: Clock):
    before_ns = clock.monotonic_ns()

    assert not clock.wait(threading.Event(), 0.001)
    assert clock.monotonic_ns() - before_ns >= 1_000_000


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_a_wait_that_is_already_over_returns_at_once(clock: Clock):
    before_ns = clock.boottime_ns()

    assert not clock.wait(threading.Event(), -5.0)
    assert clock.boottime_ns() >= before_ns
    assert not isinstance(clock, FakeClock) or clock.boottime_ns() == before_ns


def test_the_system_clock_waits_even_for_absurdly_long():
    event = threading.Event()
    threading.Timer(0.01, event.set).start()

    assert SystemClock().wait(event, 1e300)


def test_the_system_clock_is_aware_and_in_utc():
    before, now, after = datetime.now(UTC), SystemClock().utc_now(), datetime.now(UTC)

    assert now.tzinfo is UTC
    assert before <= now <= after


def test_where_no_clock_counts_suspend_the_monotonic_one_stands_in(monkeypatch):
    monkeypatch.setattr(clock_module, "_SUSPEND_COUNTING_CLOCK", None)
    clock = SystemClock()

    before_ns, boottime_ns, after_ns = clock.monotonic_ns(), clock.boottime_ns(), clock.monotonic_ns()

    assert before_ns <= boottime_ns <= after_ns


def test_fake_time_moves_all_clocks_together():
    clock = FakeClock()
    start = clock.utc_now()

    clock.wait(threading.Event(), 1.5)
    clock.advance(0.5)

    assert clock.monotonic_ns() == clock.boottime_ns() == 2_000_000_000
    assert clock.utc_now() - start == timedelta(seconds=2)


def test_a_suspended_machine_loses_monotonic_time_only():
    clock = FakeClock()
    start = clock.utc_now()

    clock.suspend(60)

    assert clock.monotonic_ns() == 0
    assert clock.boottime_ns() == 60_000_000_000
    assert clock.utc_now() - start == timedelta(minutes=1)
