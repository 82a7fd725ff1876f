"""What is done about a due schedule: it is done once, by any scheduler, and with any scheduler killed."""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.control.session import ControlFailed
from loadgen.model.counts import ErrorCategory
from loadgen.model.nightly import (
    GRACE,
    MAX_CATCHUP,
    MISSED_RECORDED_MAX,
    FireOutcome,
    Overlap,
    Schedule,
    ScheduleFire,
    due_fires,
    fire_key,
    parse_cron,
)
from loadgen.snowflake.failure import Failure
from orchestrator.nightly.scheduler import SchedulerHooks, SchedulerPass, fire_due_schedules, run_scheduler
from tests.control_plane import retries
from tests.fake_clock import FakeClock
from tests.unit.schedule_tables import NEW_YEAR, ZONES, Died, Row, Tables, Wire, at

NEXT_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


# --- what is done about it -------------------------------------------------------------------------------------------


def schedule(expression: str = "0 2 * * *", *, settled: str, catchup: int = 1, overlap: str = "queue") -> Schedule:
    return Schedule(cron=parse_cron(expression), max_catchup=catchup, overlap=Overlap(overlap), settled=at(settled))


def outcomes(fires: tuple[ScheduleFire, ...]) -> list[str]:
    return [f"{fire.at:%d %H:%M} {fire.outcome}" for fire in fires]


def test_a_fire_on_time_needs_no_catching_up():
    nightly = schedule(settled="2026-05-01 02:00", catchup=0)

    assert due_fires(nightly, at("2026-05-02 01:59:59"), busy=False) == ()
    assert outcomes(due_fires(nightly, at("2026-05-02 02:00:00"), busy=False)) == ["02 02:00 DUE"]
    assert outcomes(due_fires(nightly, at("2026-05-02 02:01:59"), busy=False)) == ["02 02:00 DUE"]
    assert outcomes(due_fires(nightly, at("2026-05-02 02:02:00"), busy=False)) == ["02 02:00 MISSED"]


@pytest.mark.parametrize(
    ("catchup", "expected"),
    [
        (0, ["05 02:00 DUE", "04 02:00 MISSED", "03 02:00 MISSED", "02 02:00 MISSED"]),
        (1, ["05 02:00 DUE", "04 02:00 DUE", "03 02:00 MISSED", "02 02:00 MISSED"]),
        (9, ["05 02:00 DUE", "04 02:00 DUE", "03 02:00 DUE", "02 02:00 DUE"]),
    ],
)
def test_missed_fires_are_caught_up_with_from_the_newest(catchup, expected):
    nightly = schedule(settled="2026-05-01 02:00", catchup=catchup)

    assert outcomes(due_fires(nightly, at("2026-05-05 02:00:30"), busy=False)) == expected


def test_while_a_run_has_not_ended_fires_are_skipped():
    nightly = schedule(settled="2026-05-01 02:00", overlap="skip")

    assert outcomes(due_fires(nightly, at("2026-05-02 02:00"), busy=True)) == ["02 02:00 SKIPPED"]
    assert outcomes(due_fires(nightly, at("2026-05-03 02:00"), busy=False)) == ["03 02:00 DUE", "02 02:00 SKIPPED"]


def test_a_long_absence_is_settled_at_once():
    every_second = schedule("* * * * * *", settled="2025-05-01 00:00", catchup=MAX_CATCHUP)

    fires = due_fires(every_second, at("2026-05-01 00:00"), busy=False)

    counts = {outcome: sum(fire.outcome is outcome for fire in fires) for outcome in FireOutcome}
    assert counts[FireOutcome.DUE] == GRACE.total_seconds() + MAX_CATCHUP
    assert counts[FireOutcome.MISSED] == MISSED_RECORDED_MAX
    assert fires[0].at == at("2026-05-01 00:00")


def test_a_fire_has_a_unique_key():
    assert fire_key("4711", at("2026-05-01 02:00")) == "schedule:4711:2026-05-01T02:00:00Z"


# --- a year of ticks -------------------------------------------------------------------------------------------------


YEARLY = ["30 2 * * *", "0 2 * * 1-5", "15 */8 * * *", "*/30 2 * * *", "0 0 1 * *", "30 0 2 * * *"]
# How long until the next tick: a loop, a crontab, a restart, a week off; negative: the clock is set back.
pauses = st.one_of(
    st.integers(1, 60).map(lambda seconds: timedelta(seconds=5 * seconds)),
    st.integers(1, 2000).map(lambda hours: timedelta(minutes=7 * hours)),
    st.integers(1, 40).map(lambda days: timedelta(days=days)),
    st.integers(-4000, -1).map(lambda minutes: timedelta(minutes=minutes)),
)


def naive(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None)


@cache
def fires_of_the_year(expression: str, zone: str) -> list[datetime]:
    return list(itertools.takewhile(lambda fire: fire <= NEXT_YEAR, parse_cron(expression, zone).after(NEW_YEAR)))


def plain_model(fires: list[datetime], ticks: list[datetime], max_catchup: int) -> set[datetime]:
    """Which fires have a run in the end, by the words of the policy."""
    runs: set[datetime] = set()
    settled = NEW_YEAR
    for now in ticks:
        due_now = [fire for fire in fires if settled < fire <= now]
        missed = [fire for fire in due_now if now - fire >= GRACE]
        runs |= set(due_now) - set(missed)
        runs |= set(missed[len(missed) - min(max_catchup, len(missed)) :])
        settled = max([settled, *due_now])
    return runs


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(YEARLY),
    st.sampled_from(ZONES),
    st.integers(0, 3),
    st.lists(pauses, min_size=5, max_size=40),
)
def test_a_year_with_downtime_and_clock_changes_follows_the_policy(expression, zone, max_catchup, waits):
    tables = Tables(naive(NEW_YEAR), {"a": Row(expression, zone, max_catchup, "queue", naive(NEW_YEAR))})
    fires = fires_of_the_year(expression, zone)
    ticks = [max(NEW_YEAR, min(NEXT_YEAR, moment)) for moment in itertools.accumulate(waits, initial=NEW_YEAR)]

    for now in ticks:
        tables.now = naive(now)
        fire_due_schedules(Wire(tables).session, retries())

    assert tables.runs("a") == sorted(map(naive, plain_model(fires, ticks, max_catchup)))
    assert {entry.outcome for entry in tables.fires.values()} <= {"QUEUED", "MISSED"}


# --- several schedulers, some of which die ---------------------------------------------------------------------------


@st.composite
def happenings(draw: st.DrawFn) -> list[tuple[timedelta, int | None, int | None, int | None]]:
    """Ticks: after a pause; at which statement another scheduler ticks; at which each of the two dies."""
    place = st.one_of(st.none(), st.integers(1, 14))
    return draw(st.lists(st.tuples(pauses, place, place, place), min_size=3, max_size=25))


def tick_or_die(tables: Tables, *, dies_at: int | None, other_at: int | None = None, other_dies_at: int | None = None):
    """One tick; False: it did not come to its end. At a statement of it, another scheduler has a whole tick."""

    def before(number: int) -> None:
        if number == other_at:
            tick_or_die(tables, dies_at=other_dies_at)
        if number == dies_at:
            raise Died

    try:
        fire_due_schedules(Wire(tables, before).session, retries())
    except Died:
        return False
    return True


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(YEARLY), st.sampled_from(ZONES), st.integers(0, 2), st.sampled_from(list(Overlap)), happenings())
def test_schedulers_that_race_and_die_fire_everything_once(expression, zone, max_catchup, overlap, history):
    start = at("2026-03-20 00:00")
    tables = Tables(naive(start), {"a": Row(expression, zone, max_catchup, overlap, naive(start))})
    now = start
    answered: list[datetime] = []  # ticks that came to their end
    latest = start
    for pause, other_at, dies_at, other_dies_at in history:
        now = min(NEXT_YEAR, max(start, now + pause))
        tables.now = naive(now)
        whole = tick_or_die(tables, dies_at=dies_at, other_at=other_at, other_dies_at=other_dies_at)
        if whole and now >= latest:
            answered.append(now)
        latest = max(latest, now)
        tables.ended = set(tables.queue.values()) if pause > timedelta(hours=1) else tables.ended
    assert tick_or_die(tables, dies_at=None)

    fires = {naive(fire) for fire in fires_of_the_year(expression, zone) if start < fire <= latest}
    runs = tables.runs("a")
    queued = [moment for (_, moment), entry in tables.fires.items() if entry.outcome == "QUEUED"]
    assert sorted(queued) == runs  # each fire that counts as queued has a run, and no other has one
    assert set(runs) <= fires
    assert "DUE" not in {entry.outcome for entry in tables.fires.values()}
    if overlap is Overlap.QUEUE:
        on_time = {fire for fire in fires for moment in answered if fire <= naive(moment) < fire + GRACE}
        assert on_time <= set(runs)


def test_a_fire_that_a_killed_scheduler_recorded_is_queued_by_the_next_wherever_it_was_killed():
    for place in range(1, 15):
        tables = nightly_tables()
        died = not tick_or_die(tables, dies_at=place)

        tables.now += timedelta(days=300) * (place % 2)  # also when that is long ago, and the fire too late by now
        tick_or_die(tables, dies_at=None)

        recorded = datetime(2026, 5, 2, 2) in tables.runs("a")  # noqa: DTZ001
        assert recorded == (place % 2 == 0 or place > RECORDED_AT or not died)


RECORDED_AT = 4  # looks for unfinished ones, reads a batch, [last run], records


def nightly_tables(overlap: str = "skip", **more: Row) -> Tables:
    """A fire of schedule a is due now."""
    then, now = datetime(2026, 5, 1, 2), datetime(2026, 5, 2, 2, 0, 1)  # noqa: DTZ001
    return Tables(now, {"a": Row("0 2 * * *", "UTC", 0, overlap, then), **more})


@pytest.mark.parametrize(
    "bad",
    [
        Row("0 2 * *", "UTC", 0, "skip", datetime(2026, 5, 1)),  # noqa: DTZ001
        Row("0 2 * * *", "Nowhere", 0, "skip", datetime(2026, 5, 1)),  # noqa: DTZ001
        Row("0 2 * * *", "UTC", 0, "sometimes", datetime(2026, 5, 1)),  # noqa: DTZ001
        Row(None, "UTC", 0, "skip", datetime(2026, 5, 1)),  # type: ignore[arg-type]  # noqa: DTZ001
    ],
)
def test_an_invalid_schedule_is_reported_and_stops_no_other(bad):
    tables = nightly_tables(**{"0": bad})  # it comes first

    done = fire_due_schedules(Wire(tables).session, retries())

    assert [fired.schedule for fired in done.fired] == ["name of a"]
    # A row that cannot be read at all is known by its id.
    assert [failure.schedule.removeprefix("name of ") for failure in done.failures] == ["0"]
    assert bad.reason == done.failures[0].reason


def test_when_the_control_plane_is_away_no_schedule_is_blamed():
    away = ControlFailed("away", Failure(category=ErrorCategory.CONNECTION, retryable=True))
    tables = nightly_tables()

    def before(number: int) -> None:
        if number > 3:
            raise away

    with pytest.raises(ControlFailed):
        fire_due_schedules(Wire(tables, before).session, retries())
    assert tables.schedules["a"].reason is None


def test_a_tick_does_so_much_and_the_next_goes_on():
    then = datetime(2026, 5, 1)  # noqa: DTZ001
    rows = {f"{number:03}": Row("0 2 * * *", "UTC", 2, "queue", then) for number in range(250)}
    tables = Tables(datetime(2026, 5, 3, 2), rows)  # noqa: DTZ001

    first = fire_due_schedules(Wire(tables).session, retries(), fires_max=300)
    second = fire_due_schedules(Wire(tables).session, retries(), fires_max=300)

    assert (len(first.fired), first.more) == (300, True)
    assert (len(second.fired), second.more) == (250 * 3 - 300 - 150, True)


def test_a_loop_ticks_until_it_is_stopped_whatever_fails():
    tables = nightly_tables()
    clock, stop = FakeClock(), threading.Event()
    moments: list[int] = []

    def before(number: int) -> None:
        moments.append(clock.now_ns // 1_000_000_000)
        if number == 1:
            raise ControlFailed("away", Failure(category=ErrorCategory.CONNECTION, retryable=True))
        if clock.now_ns > 12e9:
            stop.set()

    run_scheduler(Wire(tables, before).session, stop, clock=clock)

    assert sorted(set(moments)) == [0, 5, 10, 15]
    assert len(tables.queue) == 1


def test_a_catchup_without_end_is_cut_off():
    long_ago = datetime(1971, 1, 1)  # noqa: DTZ001
    tables = Tables(naive(NEW_YEAR), {"a": Row("* * * * *", "UTC", 10**30, "queue", long_ago)})

    done = fire_due_schedules(Wire(tables).session, retries())

    assert len([fired for fired in done.fired if fired.queue_id]) <= MAX_CATCHUP + 3
    assert tables.schedules["a"].last_fire_at == naive(NEW_YEAR)


def test_a_statement_that_always_fails_for_one_schedule_keeps_no_other_from_firing():
    timeout = ControlFailed("timeout", Failure(category=ErrorCategory.CONNECTION, retryable=True))
    then = datetime(2026, 5, 1)  # noqa: DTZ001
    tables = nightly_tables("skip", **{"0": Row("0 2 * * *", "UTC", 1, "skip", then)})  # it comes first

    class Slow(Wire):
        def _schedules_wanted(self, schedule_id: str) -> list[tuple[Any, ...]]:
            if schedule_id == "0":
                raise timeout
            return super()._schedules_wanted(schedule_id)

    done = fire_due_schedules(Slow(tables).session, retries())

    assert [fired.schedule for fired in done.fired] == ["name of a"]
    assert [(one.schedule, one.reason) for one in done.failures] == [("name of 0", "timeout")]
    assert tables.schedules["0"].reason is None


def test_nothing_is_done_where_nothing_is_due():
    tables = Tables(naive(NEW_YEAR), {"a": Row("0 2 * * *", "UTC", 1, "skip", naive(NEW_YEAR))})
    wire = Wire(tables)

    assert fire_due_schedules(wire.session, retries()) == SchedulerPass(schedules=1, next_s=2 * 3600)
    assert wire.statements == 2


def test_a_settled_fire_is_not_read_again():
    tables = nightly_tables()
    tables.schedules["a"].max_catchup = 2
    tables.now += timedelta(days=5)

    fire_due_schedules(Wire(tables).session, retries())
    wire = Wire(tables)

    assert fire_due_schedules(wire.session, retries()) == SchedulerPass(schedules=1, next_s=86_399)
    assert wire.statements == 2


@pytest.mark.parametrize(("cron", "looks"), [("0 2 * * *", 7), ("*/5 * * * *", 13)])
def test_an_idle_pool_polls_at_the_next_fire_and_once_per_interval(cron: str, looks: int):
    """An hour: at its beginning, every ten minutes or five, and never for what others left but once."""
    tables = Tables(naive(NEW_YEAR), {"a": Row(cron, "UTC", 1, "skip", naive(NEW_YEAR))})
    wire, stop, seen = Wire(tables), threading.Event(), list[datetime]()

    class Waiting(FakeClock):
        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            self.advance(timeout_s)
            tables.now += timedelta(seconds=timeout_s)
            if tables.now > naive(NEW_YEAR) + timedelta(hours=1, seconds=1):
                stop.set()
            return event.is_set()

    hooks = SchedulerHooks(idle_s=lambda: 600.0, then=lambda: seen.append(tables.now))
    run_scheduler(wire.session, stop, clock=Waiting(), hooks=hooks)

    assert len(seen) == looks
