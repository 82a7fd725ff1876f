"""The clocks: the real one runs, the fake one moves when the test says so."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadgen.clock as clock_module
from loadgen.clock import READINGS_KEPT, Clock, Moment, ServerTime, SystemClock, monotonic, monotonic_ns, utc_iso
from tests.fake_clock import FakeClock


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_an_event_that_is_set_ends_the_wait_at_once(clock: Clock):
    event = threading.Event()
    event.set()
    fake_ns = clock.monotonic_ns() if isinstance(clock, FakeClock) else None

    assert clock.wait(event, 3_600.0)
    assert fake_ns in (None, clock.monotonic_ns())


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_a_wait_that_expires_returns_false(clock: Clock):
    before_ns = clock.monotonic_ns()

    assert not clock.wait(threading.Event(), 0.001)
    assert clock.monotonic_ns() - before_ns >= 1_000_000


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_a_wait_that_is_already_over_returns_at_once(clock: Clock):
    before_ns = clock.monotonic_ns()

    assert not clock.wait(threading.Event(), -5.0)
    assert clock.monotonic_ns() >= before_ns
    assert not isinstance(clock, FakeClock) or clock.monotonic_ns() == before_ns


def test_the_system_clock_waits_even_for_absurdly_long():
    event = threading.Event()
    threading.Timer(0.01, event.set).start()

    assert SystemClock().wait(event, 1e300)


def test_the_system_clock_is_aware_and_in_utc():
    before, now, after = datetime.now(UTC), SystemClock().utc_now(), datetime.now(UTC)

    assert now.tzinfo is UTC
    assert before <= now <= after


def test_the_clock_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC of Linux stands still then: a measurement would have no gap, and a lease would look fresh."""
    known = {getattr(time, "CLOCK_BOOTTIME", -1): 80, time.CLOCK_MONOTONIC: 60}
    monkeypatch.setattr(time, "clock_gettime_ns", known.__getitem__)

    assert clock_module._goes_on_while_suspended()() == (80 if hasattr(time, "CLOCK_BOOTTIME") else 60)


def test_where_no_clock_counts_suspension_pythons_clock_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> int:
        raise OSError

    monkeypatch.setattr(time, "clock_gettime_ns", refused)

    assert clock_module._goes_on_while_suspended() is time.monotonic_ns


def test_the_clock_of_clients_is_the_system_clock() -> None:
    before_ns, client_ns, after_ns = SystemClock().monotonic_ns(), monotonic_ns(), SystemClock().monotonic_ns()

    assert before_ns <= client_ns <= after_ns
    assert after_ns / 1e9 <= monotonic()


def test_fake_time_moves_all_clocks_together():
    clock = FakeClock()
    start = clock.utc_now()

    clock.wait(threading.Event(), 1.5)
    clock.advance(0.5)

    assert clock.monotonic_ns() == 2_000_000_000
    assert clock.utc_now() - start == timedelta(seconds=2)


# --- the server's time -----------------------------------------------------------------------------------------------

NOON = datetime(2026, 11, 15, 12)  # noqa: DTZ001  as Snowflake has it: naive UTC
MS = 1_000_000


def moment_of(known: ServerTime, server_time: datetime = NOON) -> Moment:
    found = known.moment(server_time)
    assert found is not None
    return found


def read(known: ServerTime, *, looked_ms: int, sent_ms: int, answered_ms: int) -> None:
    """The server's clock is at noon when the one of this process is at 0; the server reads it between request and
    response."""
    known.note(NOON + timedelta(milliseconds=looked_ms), sent_ms * MS, answered_ms * MS)


def test_a_moment_of_the_server_is_not_known_before_it_has_answered() -> None:
    assert ServerTime().moment(NOON) is None


def test_a_slow_response_gives_the_time_of_the_server_within_its_round_trip() -> None:
    known = ServerTime()
    read(known, looked_ms=20, sent_ms=0, answered_ms=5_000)

    moment = moment_of(known, NOON + timedelta(seconds=60))

    assert abs(moment.at_ns - 60_000 * MS) <= moment.uncertain_ns
    assert moment.uncertain_ns == 2_501 * MS, "half of the round trip, and the resolution"


def test_several_responses_give_it_more_precisely_than_the_best_of_them() -> None:
    known = ServerTime()
    read(known, looked_ms=10, sent_ms=0, answered_ms=300)  # nearly all of it on the way back
    read(known, looked_ms=1_290, sent_ms=1_000, answered_ms=1_300)  # nearly all on the way there

    moment = moment_of(known)

    assert abs(moment.at_ns) <= moment.uncertain_ns <= 11 * MS


def test_a_clock_that_was_set_is_believed_from_then_on() -> None:
    known = ServerTime()
    read(known, looked_ms=10, sent_ms=0, answered_ms=20)
    read(known, looked_ms=31_010, sent_ms=1_000, answered_ms=1_020)

    assert abs(moment_of(known).at_ns + 30_000 * MS) <= 11 * MS


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 5_000)), min_size=1, max_size=50))
def test_the_true_time_lies_within_the_reported_bounds(ways_ms: list[tuple[int, int]]) -> None:
    """The way there, and the way back."""
    known = ServerTime()
    for number, (there_ms, back_ms) in enumerate(ways_ms):
        sent_ms = number * 1_000
        looked_ms = sent_ms + there_ms
        read(known, looked_ms=looked_ms, sent_ms=sent_ms, answered_ms=looked_ms + back_ms)

    moment = moment_of(known)

    assert abs(moment.at_ns) <= moment.uncertain_ns
    assert moment.uncertain_ns <= (min(there + back for there, back in ways_ms[-READINGS_KEPT:]) / 2 + 1) * MS


@given(st.datetimes(), st.sampled_from(["seconds", "milliseconds"]))
def test_a_time_has_the_same_text_naive_and_aware_and_can_be_read_back(moment: datetime, timespec: str) -> None:
    text = utc_iso(moment, timespec)

    assert text == utc_iso(moment.replace(tzinfo=UTC), timespec)
    assert text.endswith("Z")
    read = datetime.fromisoformat(text).replace(tzinfo=None)
    assert timedelta() <= moment - read < (timedelta(seconds=1) if timespec == "seconds" else timedelta(milliseconds=1))


def test_no_time_has_no_text() -> None:
    assert utc_iso(None) is None
