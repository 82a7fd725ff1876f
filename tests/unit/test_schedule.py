"""When schedules come due, also where clocks are moved; what is done about it; and that it is done once, whoever does it
and whoever dies over it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.clock import FakeClock
from loadgen.control.session import ControlFailed
from loadgen.model.cron import ScheduleInvalid, parse_cron
from loadgen.model.outcome import ErrorCategory
from loadgen.model.schedule import (
    GRACE,
    MAX_CATCHUP,
    MISSED_RECORDED_MAX,
    Fire,
    FireOutcome,
    Overlap,
    Schedule,
    due,
    fire_key,
)
from loadgen.snowflake.failure import Failure
from orchestrator.scheduler import Ticked, keep_ticking, tick
from tests.control_plane import patience
from tests.unit.schedule_tables import Died, Row, Tables, Wire

MINUTE = timedelta(minutes=1)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEXT_YEAR = datetime(2027, 1, 1, tzinfo=UTC)
ZONES = (
    *("Europe/Berlin", "America/New_York", "Australia/Lord_Howe"),  # the last moves its clock by half an hour
    *("Africa/Cairo", "America/Havana"),  # midnight is skipped, and repeated
    *("UTC", "Asia/Kolkata"),  # without
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def moved_clocks(zone: str) -> list[datetime]:
    """The hours of 2026 in which a zone's clock is moved; where it never is, some other moments."""
    info = ZoneInfo(zone)
    hours = [NEW_YEAR + timedelta(hours=number) for number in range(365 * 24)]
    offsets = [hour.astimezone(info).utcoffset() for hour in hours]
    return [hour for hour, (a, b) in zip(hours, itertools.pairwise(offsets), strict=False) if a != b] or hours[::2000]


MOVED = {zone: moved_clocks(zone) for zone in ZONES}


# --- Debian's cron, as cron(8) describes it ---------------------------------------------------------------------------


def debian(expression: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    """Which minutes in (after, until] cron(8) would start a job at: minute by minute, with a clock of its own.

    "Local time changes of less than three hours … only apply to jobs that run at a specific time and jobs that run with
    a granularity greater than one hour": when the clock is moved forward, those jobs of the time that was skipped are
    run immediately; when it is moved back, none is run twice. All others go by the clock on the wall.
    """
    fields = expression.split()
    wildcard = fields[0].startswith("*") or fields[1].startswith("*")
    info = ZoneInfo(zone)
    real = after.replace(second=0, microsecond=0)
    virtual = (real - timedelta(hours=4)).astimezone(info).replace(tzinfo=None, fold=0)
    started = set()
    real -= timedelta(hours=4)  # so that its own clock is right where this begins in a repeated hour
    while (real := real + MINUTE) <= until:
        wall = real.astimezone(info).replace(tzinfo=None, fold=0)
        if wildcard:
            found = matches(fields, wall)
        else:
            skipped = int((wall - virtual) / MINUTE)
            found = any(matches(fields, virtual + number * MINUTE) for number in range(1, skipped + 1))
        virtual = max(virtual, wall)
        if found and real > after:
            started.add(real)
    return sorted(started)


def matches(fields: list[str], wall: datetime) -> bool:
    minute, hour, day, month, weekday = fields
    days = [within(day, wall.day, 1), within(weekday, wall.isoweekday() % 7, 0)]
    right_day = all(days) if day.startswith("*") or weekday.startswith("*") else any(days)
    return within(minute, wall.minute, 0) and within(hour, wall.hour, 0) and within(month, wall.month, 1) and right_day


def within(written: str, value: int, lowest: int) -> bool:
    for part in written.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        if span == "*" and (value - lowest) % int(step or 1) == 0:
            return True
        if span != "*" and int(low) <= value <= int(high or low):
            return True
    return False


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    one = st.integers(low, high)
    return st.one_of(
        one.map(str),
        st.lists(one, min_size=2, max_size=3).map(lambda found: ",".join(map(str, found))),
        st.tuples(one, one).map(lambda pair: f"{min(pair)}-{max(pair)}"),
    )


def mostly(usual: str, other: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(st.just(usual), st.just(usual), other)


minutes = st.one_of(numbers(0, 59), st.sampled_from(["0", "30", "*", "*/7", "*/30"]))
hours = st.one_of(numbers(0, 4), numbers(0, 23), st.sampled_from(["*", "*/2", "*/3"]))
expressions = st.tuples(
    minutes, hours, mostly("*", numbers(1, 28)), mostly("*", numbers(1, 12)), mostly("*", numbers(0, 6))
).map(" ".join)


@st.composite
def spans(draw: st.DrawFn) -> tuple[str, datetime, datetime]:
    """A zone, and a span that begins shortly before or within the hour in which its clock is moved."""
    zone = draw(st.sampled_from(ZONES))
    after = draw(st.sampled_from(MOVED[zone])) + timedelta(seconds=draw(st.integers(-20 * 3600, 3 * 3600)))
    return zone, after, after + timedelta(minutes=draw(st.integers(1, 30 * 60)))


@settings(max_examples=150, deadline=None)
@given(expressions, spans())
def test_fires_are_those_of_debians_cron(expression, span):
    zone, after, until = span
    cron = parse_cron(expression, zone)

    fires = list(cron.fires(after, until))

    assert fires == debian(expression, zone, after, until)
    assert list(itertools.takewhile(lambda fire: fire > after, cron.before(until))) == fires[::-1]


@settings(max_examples=60, deadline=None)
@given(expressions, spans(), st.lists(st.integers(0, 59), min_size=1, max_size=3, unique=True))
def test_six_fields_are_five_with_seconds(expression, span, seconds):
    zone, after, until = span
    cron = parse_cron(f"{','.join(map(str, seconds))} {expression}", zone)
    whole_minutes = {
        fire.replace(second=0) for fire in cron.fires(after - MINUTE, until) if fire.second == min(seconds)
    }

    # In a skipped hour all of its seconds are one, right after it: at the full minute.
    expected = set(debian(expression, zone, after - 2 * MINUTE, until))
    skipped = {fire for fire in expected if fire in MOVED_MINUTES[zone]}
    assert whole_minutes - MOVED_MINUTES[zone] <= expected
    assert {minute for minute in expected - skipped if after <= minute < until - MINUTE} <= whole_minutes


MOVED_MINUTES = {
    zone: {moment + number * MINUTE for moment in MOVED[zone] for number in range(0, 61)} for zone in ZONES
}


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *", "0 0 * * *", "15 1 * * *"])
def test_every_night_is_one_fire_on_each_day_of_the_year(zone, expression):
    info = ZoneInfo(zone)
    first, last = (datetime(year, 1, 1, tzinfo=info).astimezone(UTC) for year in (2026, 2027))

    nights = [fire.astimezone(info).date() for fire in parse_cron(expression, zone).after(first - MINUTE) if fire < last]
    # `after` has no end; the filter above would not either

    assert len(nights) == len(set(nights)) == 365
