"""When schedules come due, also where clocks are moved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.model.nightly import CronExpression, ScheduleInvalid, parse_cron
from tests.unit.schedule_tables import NEW_YEAR, ZONES, at

MINUTE = timedelta(minutes=1)


def moved_clocks(zone: str) -> list[datetime]:
    """The hours of 2026 in which a zone's clock is moved; where it never is, some other moments."""
    info = ZoneInfo(zone)
    hours = [NEW_YEAR + timedelta(hours=number) for number in range(365 * 24)]
    offsets = [hour.astimezone(info).utcoffset() for hour in hours]
    return [hour for hour, (a, b) in zip(hours, itertools.pairwise(offsets), strict=False) if a != b] or hours[::2000]


MOVED = {zone: moved_clocks(zone) for zone in ZONES}


def debian(case: Case) -> list[datetime]:
    """The minutes at which cron(8) would start a job: minute by minute, with a simulated clock.

    "Local time changes of less than three hours … only apply to jobs that run at a specific time and jobs that run with
    a granularity greater than one hour": when the clock is moved forward, those jobs of the time that was skipped are
    run immediately; when it is moved back, none is run twice. All others go by the clock on the wall.
    """
    fields = case.expression.split()
    wildcard = fields[0].startswith("*") or fields[1].startswith("*")
    info = ZoneInfo(case.zone)
    real = case.after.replace(second=0) - timedelta(hours=4)  # its own clock is right where a repeated hour begins
    virtual = real.astimezone(info).replace(tzinfo=None, fold=0)
    started = set()
    while (real := real + MINUTE) <= case.until:
        wall = real.astimezone(info).replace(tzinfo=None, fold=0)
        if wildcard:
            found = matches(fields, wall)
        else:
            skipped = int((wall - virtual) / MINUTE)
            found = any(matches(fields, virtual + number * MINUTE) for number in range(1, skipped + 1))
        virtual = max(virtual, wall)
        if found and real > case.after:
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


minutes = st.one_of(numbers(0, 59), st.sampled_from(["0", "30", "0,30", "*", "*/7", "*/30"]))
days = st.sampled_from(["* * *"] * 12 + ["1-15 * *", "*/2 * *", "29 3,10 *", "* 4,11 *", "* * 0", "8 * 1-5"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    expression: str
    zone: str
    after: datetime
    until: datetime


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A job around the hour in which a clock is moved, and a span that begins before that or in the middle of it."""
    zone = draw(st.sampled_from(ZONES))
    moved = draw(st.sampled_from(MOVED[zone]))
    hour = min(max(moved.astimezone(ZoneInfo(zone)).hour, 1), 21)
    around = st.integers(hour - 1, hour + 2)
    hours = draw(
        st.one_of(around.map(str), around.map(str), numbers(hour - 1, hour + 2), st.sampled_from(["*", "*/2"]))
    )
    after = moved + timedelta(seconds=draw(st.integers(-3 * 3600, 2 * 3600)))
    until = after + timedelta(minutes=draw(st.integers(60, 12 * 60)))
    return Case(expression=f"{draw(minutes)} {hours} {draw(days)}", zone=zone, after=after, until=until)


def fires_between(cron: CronExpression, after: datetime, until: datetime) -> Iterator[datetime]:
    return itertools.takewhile(lambda fire: fire <= until, cron.after(after))


@settings(max_examples=70, deadline=None)
@given(cases())
def test_fires_are_those_of_debians_cron(case):
    cron = parse_cron(case.expression, case.zone)

    fires = list(fires_between(cron, case.after, case.until))

    assert fires == debian(case)
    assert list(itertools.takewhile(lambda fire: fire > case.after, cron.before(case.until))) == fires[::-1]


@settings(max_examples=25, deadline=None)
@given(cases())
def test_six_fields_begin_with_the_second(case):
    fires = fires_between(parse_cron(f"0 {case.expression}", case.zone), case.after, case.until)

    assert list(fires) == list(fires_between(parse_cron(case.expression, case.zone), case.after, case.until))


def test_seconds_of_a_skipped_hour_are_one_and_of_a_repeated_hour_not_repeated():
    cron = parse_cron("*/20 30 2 * * *", "Europe/Berlin")

    def night(day: str) -> list[str]:
        noon = at(f"{day} 12:00")
        return [f"{fire:%H:%M:%S}" for fire in fires_between(cron, noon - timedelta(days=1), noon)]

    assert night("2026-03-28") == ["01:30:00", "01:30:20", "01:30:40"]
    assert night("2026-03-29") == ["01:00:00"]
    assert night("2026-10-25") == ["00:30:00", "00:30:20", "00:30:40"]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *", "0 0 * * *", "15 1 * * *"])
def test_every_night_is_one_fire_on_each_day_of_the_year(zone, expression):
    info = ZoneInfo(zone)
    first, last = (datetime(year, 1, 1, tzinfo=info).astimezone(UTC) for year in (2026, 2027))
    second = timedelta(seconds=1)

    fires = fires_between(parse_cron(expression, zone), first - second, last - second)

    days = [fire.astimezone(info).date() for fire in fires]
    assert len(days) == len(set(days)) == 365


def test_a_day_that_a_zone_left_out_is_made_up_for_right_after_it():
    """Samoa had no 30 December 2011."""
    fires = fires_between(parse_cron("30 12 * * *", "Pacific/Apia"), at("2011-12-29 00:00"), at("2011-12-31 00:00"))

    assert list(fires) == [at("2011-12-29 22:30"), at("2011-12-30 10:00"), at("2011-12-30 22:30")]


def test_an_interval_is_open_at_its_beginning_and_closed_at_its_end():
    cron = parse_cron("0 2 * * *")
    night, next_night = at("2026-05-01 02:00"), at("2026-05-02 02:00")

    assert list(fires_between(cron, night, next_night)) == [next_night]
    assert next(cron.before(night)) == night
    assert next(cron.after(night - timedelta(microseconds=1))) == night


BAD = [
    ("", "UTC", "0 fields"),
    ("0 2 * *", "UTC", "4 fields"),
    ("0 0 2 * * * 2026", "UTC", "7 fields"),
    ("@daily", "UTC", "1 fields"),
    ("60 2 * * *", "UTC", "bad minute"),
    ("0 24 * * *", "UTC", "bad hour"),
    ("60 0 2 * * *", "UTC", "bad second"),
    ("0 2 * * FUNDAY", "UTC", "bad day-of-week"),
    ("0 2 30 2 *", "UTC", "bad day-of-month"),
    ("*/0 2 * * *", "UTC", "bad minute"),
    ("1," * 200 + "1 2 * * *", "UTC", "characters"),
    ("0 2 * * *", "Europe/Berln", "no time zone"),
    ("0 2 * * *", "America", "no time zone"),
    ("0 2 * * *", "../../etc/passwd", "no time zone"),
    ("0 2 * * *", "localtime", "no time zone"),
    ("0 2 * * *", "\ud800", "no time zone"),
    ("0 2 * * *", "", "no time zone"),
]


@pytest.mark.parametrize(("expression", "zone", "what"), BAD)
def test_an_invalid_expression_or_zone_is_rejected_with_a_hint(expression, zone, what):
    with pytest.raises(ScheduleInvalid, match=what) as refused:
        parse_cron(expression, zone)

    assert refused.value.exit_code == 2
    assert "such as" in refused.value.remedy or "every night" in refused.value.remedy


def test_a_zone_that_was_nearly_right_is_suggested():
    with pytest.raises(ScheduleInvalid) as refused:
        parse_cron("0 2 * * *", "europe/berlin")

    assert refused.value.remedy.startswith("Did you mean Europe/Berlin?")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("0123456789*/-,#LW AMONSUT", max_size=6), min_size=4, max_size=7).map(" ".join), st.text())
def test_any_text_is_a_schedule_or_refused(expression, zone):
    for name in ("Australia/Lord_Howe", zone):
        try:
            cron = parse_cron(expression, name)
        except ScheduleInvalid:
            continue
        assert next(cron.after(NEW_YEAR)) > NEW_YEAR
