"""Retries: what is retried, how often, with which pauses; and that a write in doubt is never done twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.clock import SystemClock
from loadgen.control.session import ControlFailed
from loadgen.errors import UsageError
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.failure import Failure
from loadgen.snowflake.session import ATTEMPTS, RetryInterrupted, RetryPolicy
from tests.fake_clock import FakeClock

LOST = Failure(category=ErrorCategory.CONNECTION, retryable=True, unknown_outcome=True)
REFUSED = Failure(category=ErrorCategory.SNOWFLAKE_ERROR, retryable=True)
DUPLICATE = Failure(category=ErrorCategory.SNOWFLAKE_ERROR, is_duplicate_key=True)
WRONG = Failure(category=ErrorCategory.CONFIGURATION)


class PauseClock(FakeClock):
    """Keeps what it was asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses_s: list[float] = []

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.pauses_s.append(timeout_s)
        return super().wait(event, timeout_s)


def failing(failure: Failure, *, times: int, then: str = "done") -> Callable[[], str]:
    left = iter([True] * times)

    def action() -> str:
        if next(left, False):
            raise ControlFailed("failed", failure)
        return then

    return action


def counted(action: Callable[[], str]) -> tuple[Callable[[], str], list[int]]:
    calls = [0]

    def counting() -> str:
        calls[0] += 1
        return action()

    return counting, calls


def test_pauses_double_up_to_half_a_minute_and_end_after_ten_attempts():
    clock = PauseClock()
    action, calls = counted(failing(LOST, times=100))

    with pytest.raises(ControlFailed):
        RetryPolicy(stop=threading.Event(), clock=clock).call(action)

    assert clock.pauses_s == [1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert calls == [ATTEMPTS] == [10]


@given(st.integers(1, 12), st.floats(0.001, 100), st.integers(0, 15))
def test_attempts_are_bounded_and_no_pause_is_shorter_than_the_one_before(attempts, first_pause_s, failures):
    clock = PauseClock()
    action, calls = counted(failing(REFUSED, times=failures))
    retries = RetryPolicy(stop=threading.Event(), attempts=attempts, first_pause_s=first_pause_s, clock=clock)

    if failures < attempts:
        assert retries.call(action) == "done"
    else:
        with pytest.raises(ControlFailed):
            retries.call(action)

    assert calls == [min(failures + 1, attempts)]
    assert len(clock.pauses_s) == calls[0] - 1
    assert clock.pauses_s == sorted(clock.pauses_s)
    assert all(pause_s <= max(30, first_pause_s) for pause_s in clock.pauses_s)


@pytest.mark.parametrize(
    "error",
    [
        ControlFailed("wrong", WRONG),
        ControlFailed("twice", DUPLICATE),
        UsageError("no"),
        ValueError(),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_permanent_failures_are_not_retried(error):
    clock = PauseClock()

    def action() -> str:
        raise error

    with pytest.raises(type(error)):
        RetryPolicy(stop=threading.Event(), clock=clock).call(action)
    with pytest.raises(type(error)):
        RetryPolicy(stop=threading.Event(), clock=clock).settle(action, lambda: "found")

    assert clock.pauses_s == []


def test_every_retried_failure_is_logged():
    told: list[BaseException] = []

    RetryPolicy(stop=threading.Event(), clock=FakeClock(), note=told.append).call(failing(LOST, times=3))

    assert [error.failure for error in told if isinstance(error, ControlFailed)] == [LOST] * 3


def test_a_stop_before_the_first_attempt_leaves_one_attempt():
    stop = threading.Event()
    stop.set()
    action, calls = counted(failing(LOST, times=100))

    with pytest.raises(RetryInterrupted) as raised:
        RetryPolicy(stop=stop, clock=FakeClock()).call(action)

    assert calls == [1]
    assert raised.value.exit_code == 4
    assert RetryPolicy(stop=stop, clock=FakeClock()).call(lambda: "works") == "works"


def test_a_stop_ends_a_pause_of_an_hour_at_once():
    stop, failed = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    def wait_for_long() -> None:
        retries = RetryPolicy(stop=stop, first_pause_s=3_600, clock=SystemClock(), note=lambda _: failed.set())
        try:
            retries.call(failing(LOST, times=100))
        except RetryInterrupted as error:
            ended.append(error)

    thread = threading.Thread(target=wait_for_long, name="patient")
    thread.start()
    assert failed.wait(60)
    stop.set()
    thread.join(60)

    assert len(ended) == 1


# --- a write that must happen once -----------------------------------------------------------------------------------


class Answer(Enum):
    """What becomes of one statement."""

    GOOD = "executed, and answered"
    LOST_AFTER = "executed, and the answer lost"
    LOST_BEFORE = "lost on the way there"
    REFUSED = "not executed, and the server says so"
    LATE = "no answer; executed only when the next write is on its way"


class Table:
    """A row that must be written once. With a key, a second one is refused; without, it would be counted."""

    def __init__(self, plan: list[Answer], *, has_key: bool) -> None:
        self.rows = 0
        self.writes = 0
        self._plan = list(plan)
        self._has_key = has_key
        self._late = 0

    def write(self) -> str:
        self.writes += 1
        while self._late:
            self._late -= 1
            self.rows = 1 if self._has_key else self.rows + 1
        fate = self._fate()
        if fate is Answer.LOST_BEFORE:
            raise ControlFailed("lost", LOST)
        if fate is Answer.LATE:
            self._late += 1
            raise ControlFailed("lost", LOST)
        if fate is Answer.REFUSED:
            raise ControlFailed("refused", REFUSED)
        if self._has_key and self.rows:
            raise ControlFailed(
                "lost" if fate is Answer.LOST_AFTER else "twice", LOST if fate is Answer.LOST_AFTER else DUPLICATE
            )
        self.rows += 1
        if fate is Answer.LOST_AFTER:
            raise ControlFailed("lost", LOST)
        return "row"

    def look(self) -> str | None:
        fate = self._fate()
        if fate is Answer.GOOD:
            return "row" if self.rows else None
        raise ControlFailed("look failed", REFUSED if fate is Answer.REFUSED else LOST)

    def _fate(self) -> Answer:
        return self._plan.pop(0) if self._plan else Answer.GOOD


def settled(table: Table, attempts: int) -> str | ControlFailed:
    try:
        retries = RetryPolicy(stop=threading.Event(), attempts=attempts, clock=FakeClock())
        return retries.settle(table.write, table.look)
    except ControlFailed as error:
        return error


fates = st.lists(st.sampled_from(list(Answer)), max_size=14)


@given(fates.map(lambda plan: [fate for fate in plan if fate is not Answer.LATE]), st.integers(1, 10))
@example([Answer.LOST_AFTER], 10)
@example([Answer.LOST_AFTER, Answer.LOST_BEFORE, Answer.GOOD], 10)
@example([Answer.LOST_AFTER, Answer.REFUSED, Answer.GOOD], 10)
@example([Answer.REFUSED, Answer.LOST_AFTER, Answer.GOOD], 10)
def test_a_write_without_a_key_is_never_done_twice(plan, attempts):
    table = Table(plan, has_key=False)

    result = settled(table, attempts)

    assert table.rows <= 1
    assert table.writes <= attempts
    if result == "row":
        assert table.rows == 1


@given(fates, st.integers(1, 10))
@example([Answer.LATE, Answer.GOOD, Answer.GOOD], 10)  # the look sees nothing, then both arrive
@example([Answer.LATE, Answer.GOOD, Answer.REFUSED, Answer.GOOD], 10)  # doubt outlasts a refusal
def test_a_write_with_a_key_is_found_even_when_it_arrives_late(plan, attempts):
    table = Table(plan, has_key=True)

    result = settled(table, attempts)

    assert table.rows <= 1
    if result == "row":
        assert table.rows == 1
    else:
        assert isinstance(result, ControlFailed)
        assert result.failure.retryable, "its own row was taken for another writer's"


@given(fates)
def test_with_attempts_enough_the_row_is_there_and_known(plan):
    table = Table(plan, has_key=True)

    assert settled(table, len(plan) + 2) == "row"
    assert table.rows == 1


def test_a_row_of_another_writer_is_not_taken_for_the_own_one():
    """No doubt, no look: a duplicate at the first attempt is the other's."""
    table = Table([], has_key=True)
    table.rows = 1

    result = settled(table, 10)

    assert isinstance(result, ControlFailed)
    assert result.failure.is_duplicate_key
