"""Trends: silent on noise, quick on steps, and only like beside like."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from html.parser import HTMLParser

import numpy as np
import pytest

from loadgen.report import figures
from loadgen.report.likeness import Difference
from loadgen.report.limits import Measure
from loadgen.report.shift import NIGHTS_MIN, Course, FloatArray, course_of
from loadgen.report.trend import (
    RUNS_MIN,
    Key,
    Night,
    OtherSeries,
    Subject,
    Trend,
    Verdict,
    series_of,
    trend_of,
    values_of,
)
from loadgen.report.trend_html import chart_of, trend_html
from loadgen.report.trend_json import trend_data
from loadgen.report.trend_text import bars, trend_text

LIMIT = math.log(1.1)
SEEDS = 40
KEY = Key(template_id="t", driver_major="5", workers=2, cores=2, warehouse_size="X-Small")
P95: Subject = (None, Measure.P95)


def noise(seed: int, nights: int, spread: float = 0.05) -> FloatArray:
    return np.random.default_rng(seed).normal(0.0, spread, nights)


def night(
    number: int,
    values: Mapping[Subject, float],
    *,
    key: Key = KEY,
    facts: Mapping[str, str] | None = None,
    at_least: Collection[Subject] = (),
    apart: timedelta = timedelta(days=1),
) -> Night:
    return Night(
        run_id=f"night-{number:03d}",
        started=datetime(2026, 1, 1, 2) + number * apart,  # noqa: DTZ001 - naive UTC by design
        key=key,
        values=values,
        facts=facts or {},
        at_least=frozenset(at_least),
    )


def nights_of(p95: Sequence[float]) -> list[Night]:
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


# --- noise and steps -------------------------------------------------------------------------------------------------


def test_200_nights_of_noise_are_silent():
    courses = [course_of(noise(seed, 200), limit=LIMIT, usual=0.05) for seed in range(SEEDS)]

    assert max(len(course.suspected) for course in courses) <= 1
    assert [course.shifts for course in courses if course.shifts] == []
    assert sum(len(course.suspected) for course in courses) <= 4  # seldom at all


def test_a_step_of_25_percent_is_confirmed_within_two_nights():
    """By chance a night of the new level may look like one of the old: the third night tells then."""
    delays = []
    for seed in range(SEEDS):
        values = noise(1_000 + seed, 64)
        values[60:] += math.log(1.25)

        shifts = [shift for shift in course_of(values, limit=LIMIT, usual=0.05).shifts if shift.confirmed >= 60]

        assert shifts
        assert abs(shifts[0].start - 60) <= 1
        assert shifts[0].size == pytest.approx(math.log(1.25), abs=0.12)
        delays.append(shifts[0].confirmed - 60)
    assert sum(delay <= 1 for delay in delays) >= 0.95 * SEEDS
    assert max(delays) <= 2


def test_a_step_that_comes_before_much_is_known_is_found_all_the_same():
    missed = []
    for seed in range(100):
        values = noise(5_000 + seed, 22)
        values[10:] += math.log(1.25)
        if not any(shift.size > 0 for shift in course_of(values, limit=LIMIT, usual=0.05).shifts):
            missed.append(seed)

    assert len(missed) <= 1


@pytest.mark.parametrize("step", [1.5, 2.0, 1 / 1.5])
@pytest.mark.parametrize("at", [20, 70])
def test_large_steps_are_where_a_plain_search_finds_them(step, at):
    """The reference: the split of the series that leaves the least squares on both sides."""
    values = noise(7, 90)
    values[at:] += math.log(step)

    shifts = course_of(values, limit=LIMIT, usual=0.05).shifts

    costs = [values[:cut].var() * cut + values[cut:].var() * (90 - cut) for cut in range(2, 88)]
    assert [shift.start for shift in shifts] == [2 + int(np.argmin(costs))] == [at]
    assert shifts[0].confirmed == at + 1


def test_one_bad_night_is_suspected_and_never_confirmed():
    values = noise(3, 40)
    values[30] += math.log(2.0)

    course = course_of(values, limit=LIMIT, usual=0.05)

    assert (course.suspected, course.shifts) == ((30,), ())


def test_a_change_below_the_limit_is_no_change_however_certain():
    values = np.concatenate((np.zeros(30), np.full(30, math.log(1.08))))

    assert course_of(values, limit=LIMIT, usual=0.001).shifts == ()


def test_too_few_nights_say_nothing():
    values = [0.0] * (NIGHTS_MIN - 1) + [math.log(3.0)]

    assert course_of(values, limit=LIMIT, usual=0.05).suspected == ()
    assert course_of([0.0, *values], limit=LIMIT, usual=0.05).suspected == (NIGHTS_MIN,)


def test_after_a_step_the_new_level_is_the_usual_one_and_the_way_back_is_found():
    values = noise(5, 60, 0.02)
    values[20:40] += math.log(1.5)

    shifts = course_of(values, limit=LIMIT, usual=0.05).shifts

    assert [(shift.start, round(math.exp(shift.size), 1)) for shift in shifts] == [(20, 1.5), (40, 0.7)]


@pytest.mark.parametrize("gap", [1, 2, 3])
def test_a_second_step_of_30_percent_soon_after_a_confirmed_one_is_found(gap):
    """`gap` nights after the first was confirmed. The new level is known by two to four nights then."""
    delays = []
    for seed in range(SEEDS):
        values = noise(2_000 + seed, 80)
        values[60:] += math.log(1.3)
        first = next(one for one in course_of(values, limit=LIMIT, usual=0.05).shifts if one.confirmed >= 60)
        second = first.confirmed + gap
        values[second:] += math.log(1.3)

        shifts = course_of(values, limit=LIMIT, usual=0.05).shifts

        found = [one for one in shifts if one.confirmed >= second and abs(one.start - second) <= 1 and one.size > 0.1]
        delays.append(found[0].confirmed - second if found else 99)
    assert sum(delay <= 7 for delay in delays) >= 0.95 * SEEDS
    assert sum(delay <= 1 for delay in delays) >= 0.8 * SEEDS


def test_a_second_step_after_quiet_nights_is_confirmed_on_its_second_night():
    values = noise(5, 60, 0.02)
    values[30:] += math.log(1.3)
    values[33:] += math.log(1.3)

    shifts = course_of(values, limit=LIMIT, usual=0.05).shifts

    assert [(shift.start, shift.confirmed, round(math.exp(shift.size), 1)) for shift in shifts] == [
        (30, 31, 1.3),
        (33, 34, 1.3),
    ]


@pytest.mark.parametrize("step", [1.25, 1.5, 1 / 1.3])
def test_the_nights_after_a_step_are_silent(step):
    """Many looks at a level of which little is known: no second step is made of noise."""
    again = 0
    for seed in range(100):
        values = noise(8_000 + seed, 80)
        values[30:] += math.log(step)
        again += sum(shift.confirmed >= 30 for shift in course_of(values, limit=LIMIT, usual=0.05).shifts) - 1

    assert again <= 2


def test_two_nights_of_another_level_are_a_step_there_and_a_step_back():
    values = noise(5, 60, 0.02)
    values[30:32] += math.log(1.5)

    shifts = course_of(values, limit=LIMIT, usual=0.05).shifts

    assert [(shift.start, shift.size > 0) for shift in shifts] == [(30, True), (32, False)]


# --- lower bounds ----------------------------------------------------------------------------------------------------


def bounded(values: Sequence[float], *at_least: int) -> Course:
    return course_of(values, limit=LIMIT, usual=0.05, at_least=at_least)


def test_a_lower_bound_above_the_range_is_suspected_and_one_below_says_nothing():
    usual = list(noise(4, 20, 0.02))

    assert bounded([*usual, 0.5], 20).suspected == (20,)
    for nothing in (-0.5, 0.0, 0.05):
        assert (bounded([*usual, nothing], 20).suspected, bounded([*usual, nothing], 20).shifts) == ((), ())


def test_lower_bounds_confirm_a_step_but_are_no_part_of_a_baseline():
    usual = list(noise(4, 20, 0.02))

    (shift,) = bounded([*usual, 0.5, 0.6], 20, 21).shifts
    assert (shift.start, shift.confirmed, shift.at_least) == (20, 21, True)

    (mixed,) = bounded([*usual, 0.5, 0.0, 0.6], 21, 22).shifts  # the night between is not known
    assert (mixed.start, mixed.confirmed, mixed.at_least) == (20, 22, True)

    low = bounded([*usual, *[-2.0] * 10, 0.0], *range(20, 30))
    assert low.baselines[30] == low.baselines[20]
    assert (low.suspected, low.shifts) == ((), ())


def test_many_series_looked_at_alike_share_the_chance_of_a_false_alarm():
    alone = course_of(noise(1, 30), limit=LIMIT, usual=0.05)
    shared = course_of(noise(1, 30), limit=LIMIT, usual=0.05, alike=20)

    assert shared.range_at(29)[1] > alone.range_at(29)[1]  # type: ignore[index]


# --- verdicts --------------------------------------------------------------------------------------------------------

QUIET = list(40 * np.exp(noise(11, 30, 0.02)))


def test_a_regression_is_suspected_then_confirmed_then_known():
    verdicts = [trend([*QUIET, *[50.0] * more]) for more in range(4)]

    assert [one.verdict for one in verdicts] == [
        Verdict.STEADY,
        Verdict.SUSPECTED,
        Verdict.REGRESSION,
        Verdict.STEADY,
    ]
    assert [one.exit_code for one in verdicts] == [0, 0, 11, 0]
    assert "p95 +2" in verdicts[1].reason
    assert verdicts[2].reason.endswith("since night-030")
    assert "is known" in verdicts[3].reason


def test_a_second_regression_within_three_nights_of_the_first_is_told_as_new():
    for gap in (1, 2, 3):
        values = [*QUIET, *[52.0] * (1 + gap), 67.6, 67.6]

        before, found, after = trend(values[:-1]), trend(values), trend([*values, 67.6])

        assert before.verdict is Verdict.SUSPECTED
        assert (found.verdict, found.exit_code) == (Verdict.REGRESSION, 11)
        assert found.reason.endswith(f"since night-{31 + gap:03d}")
        assert after.verdict is Verdict.STEADY


def test_a_second_step_that_another_metric_shows_a_night_later_is_told_once():
    values = [*QUIET, 52.0, 52.0, 52.0, 67.6, 67.6, 67.6]
    late = nights_of(values)
    late[33] = night(33, {**late[33].values, (None, Measure.P50): 26.0})  # the median moved a night after p95

    assert trend_of("orders", late[:-1], {}).verdict is Verdict.REGRESSION
    assert any(step.start == 34 and step.confirmed == 35 for step in trend_of("orders", late, {}).steps)
    assert trend_of("orders", late, {}).verdict is Verdict.STEADY


def hung(p95: Sequence[float], last: int = 1) -> Trend:
    """Statements of the last nights were cancelled: their p95 is at least what is known."""
    nights = nights_of(p95)
    for number in range(len(nights) - last, len(nights)):
        usual = nights[0].values
        values = {**usual, P95: p95[number]}  # all else is as ever
        nights[number] = night(number, values, at_least=[P95])
    return trend_of("orders", nights, {})


def test_a_newest_p95_that_is_at_least_something_is_never_steady():
    above, twice, below = hung([*QUIET, 80.0]), hung([*QUIET, 80.0, 90.0], 2), hung([*QUIET, 30.0])
    within = hung([*QUIET, 44.5])  # beyond the limit, and not beyond chance

    assert above.verdict is Verdict.SUSPECTED
    assert above.reason.startswith("p95 at least +10")
    assert (twice.verdict, twice.exit_code) == (Verdict.REGRESSION, 11)
    assert twice.reason.startswith("p95 at least +1")
    for undecided, value in ((below, "30.00"), (within, "44.50")):
        assert (undecided.verdict, undecided.exit_code) == (Verdict.UNDECIDED, 0)
        assert undecided.reason == (
            f"p95 is at least {value} ms: statements timed out or were cancelled, so it may be as usual or worse"
        )


def test_lower_bounds_are_shown_as_such_everywhere():
    found = hung([*QUIET, 30.0])

    (line,) = [line for line in trend_text(found, 30).splitlines() if line.startswith("p95 ")]
    assert "≥ 30.00 ms" in line
    assert line.endswith("undecided")
    (p95,) = [one for one in trend_data(found, 3)["metrics"] if (one["statement"], one["metric"]) == (None, "p95")]
    assert (p95["at_least"], p95["state"]) == ([False, False, True], "undecided")
    page = trend_html(found, 30)
    assert page.count("≥ 30.00 ms") >= 2
    assert "Triangles: at least this much" in page


def test_an_improvement_is_told_and_is_no_failure():
    found = trend([*QUIET, 30.0, 30.0])

    assert (found.verdict, found.exit_code) == (Verdict.IMPROVED, 0)


def test_a_metric_that_follows_a_night_later_is_no_new_regression():
    values = [*QUIET, 50.0, 50.0, 50.0]
    late = nights_of(values)
    for number in (30,):  # the median moved a night after p95
        late[number] = night(number, {**late[number].values, (None, Measure.P50): values[29] / 2})

    assert trend_of("orders", late[:-1], {}).verdict is Verdict.REGRESSION
    assert any(step.start == 31 and step.confirmed == 32 for step in trend_of("orders", late, {}).steps)
    assert trend_of("orders", late, {}).verdict is Verdict.STEADY


def test_errors_are_judged_in_points():
    runs = [
        night(number, {P95: 40.0, (None, Measure.ERROR_RATE): 0.02 if number >= 20 else 0.0001}) for number in range(22)
    ]

    found = trend_of("orders", runs, {})

    assert found.verdict is Verdict.REGRESSION
    assert found.reason == "error_rate +2.0 points since night-020"


def test_few_runs_are_for_learning():
    assert trend(QUIET[:3]).verdict is Verdict.LEARNING
    assert trend_of("orders", [], {"are FAILED": 2}).verdict is Verdict.LEARNING
    assert trend(QUIET[: RUNS_MIN - 1]).verdict is Verdict.LEARNING
    assert trend(QUIET[:RUNS_MIN]).verdict is Verdict.STEADY


def test_how_many_runs_are_needed_is_told():
    found = trend(QUIET[:3])

    assert found.reason == f"{RUNS_MIN} comparable runs are needed to judge the newest; 3 found"
    assert (trend_data(found, 30)["runs_needed"], trend_data(found, 30)["runs_in_series"]) == (6, 3)
    for shown in (trend_text(found, 30), trend_html(found, 30)):
        assert found.reason in shown


def test_noise_in_all_metrics_at_once_is_silent_too():
    for seed in range(5):
        p95 = 40 * np.exp(noise(100 + seed, 120))

        found = trend_of("orders", nights_of(list(p95)), {})

        assert (found.steps, found.exit_code) == ((), 0)


# --- what is set beside what -----------------------------------------------------------------------------------------


def test_another_key_is_another_series_and_the_newest_run_says_which_is_looked_at():
    other = Key(template_id="t", driver_major="4", workers=2, cores=2, warehouse_size="X-Small")
    runs = [night(number, {P95: 40.0}, key=other if number in (0, 1, 5) else KEY) for number in range(8)]

    series = series_of(runs)

    assert list(series) == [other, KEY]
    assert [one.run_id for one in series[KEY]] == ["night-002", "night-003", "night-004", "night-006", "night-007"]
    assert list(series_of(runs[:6])) == [KEY, other]


def test_values_come_from_the_summary_and_lower_bounds_are_marked():
    summary = {
        "find_max": None,
        "latency_ms": {"p50": 20.0, "p95": 40.0, "at_least": ["p95"]},
        "totals": {"qps": 100.0, "error_rate": 0.0},
        "statements": {"a": {"latency_ms": {"p95": 30.0}}, "b": {"latency_ms": {"p95": None}}},
    }

    values, at_least = values_of(summary)
    assert values == {
        P95: 40.0,
        (None, Measure.P50): 20.0,
        (None, Measure.QPS): 100.0,
        (None, Measure.ERROR_RATE): 0.0,
        ("a", Measure.P95): 30.0,
    }
    assert at_least == {P95}
    searched = {**summary, "find_max": {"max_concurrency": 45}}
    assert values_of(searched) == ({(None, Measure.MAX_CONCURRENCY): 45.0}, frozenset())


def test_what_else_changed_that_night_is_said():
    runs = nights_of([*QUIET, 50.0, 50.0])
    for number, one in enumerate(runs):
        driver = "5.2.0" if number >= 30 else "5.1.0"
        runs[number] = night(number, one.values, facts={"environment.driver": driver, "environment.python": "3.11"})

    found = trend_of("orders", runs, {})

    assert found.changed_at(30) == {"environment.driver": ("5.1.0", "5.2.0")}
    assert "with it changed: environment.driver 5.1.0 → 5.2.0" in trend_text(found, 30)


# --- as text, JSON and a page ----------------------------------------------------------------------------------------


def test_the_text_begins_with_the_verdict_and_shows_every_metric():
    lines = trend_text(trend([*QUIET, 50.0, 50.0]), 10).splitlines()

    assert lines[0].startswith("REGRESSION  p95 +2")
    (p95,) = [line for line in lines if line.startswith("p95 ")]
    assert p95.rstrip().endswith("REGRESSION")
    assert "██" in p95
    assert any(line.startswith("pay.p95") for line in lines)
    assert trend_text(trend_of("orders", [], {"are FAILED": 2}), 10).splitlines() == [
        "LEARNING  orders has no run that counts: 2 are FAILED; 6 comparable runs are needed",
        "  left out: 2 are FAILED",
    ]


def test_the_text_has_no_columns_without_numbers():
    one, few = (trend_text(trend(QUIET[:count]), 30).splitlines() for count in (1, 3))

    assert [line.split() for line in one if line.startswith(("metric", "p95"))] == [
        ["metric", "newest"],
        ["p95", *figures.value_of(Measure.P95, QUIET[0]).split()],
    ]
    assert [line.split()[:4] for line in few if line.startswith("metric")] == [["metric", "oldest", "first", "newest"]]
    assert "1 comparable run, night-000, of 2026-01-01 02:00 UTC" in "\n".join(one)


def test_runs_that_are_not_comparable_are_told_in_the_words_of_the_scenario():
    apart = (
        Difference(key="load.connections", a=8, b=16, matters=True),
        Difference(key="workload.statements.refund", a={"sql": "SELECT 1"}, b=None, matters=True),
    )
    runs = nights_of(QUIET[:2])
    other = OtherSeries(key=KEY, runs=1, newest=runs[0], differences=apart)

    found = trend_of("orders", runs, {"are INVALID": 1, "are FAILED": 2}, [other])

    text = trend_text(found, 30)
    assert (
        "  not comparable: 1 run until 2026-01-01 02:00; load.connections: 8 → 16,"
        " workload.statements.refund: only in those" in text
    )
    assert "  left out: 2 are FAILED, 1 is INVALID" in text
    assert "load.connections: 8 → 16; workload.statements.refund: only in those" in trend_html(found, 30)


class _Outline(HTMLParser):
    """Headings, and the rows of every table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sections: list[str] = []
        self.rows: list[int] = []
        self._body = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self.sections.append(str(dict(attrs)["id"]))
        if tag == "table":
            self.rows.append(0)
        self._body = tag == "tbody" or (self._body and tag != "thead")
        if tag == "tr" and self._body:
            self.rows[-1] += 1


@pytest.mark.parametrize(
    ("found", "sections"),
    [
        (trend_of("orders", [], {}), []),
        (trend_of("orders", [], {"are INVALID": 1}), ["apart"]),
        (trend_of("orders", nights_of([40.0]), {}), ["numbers", "runs"]),
        (trend_of("orders", nights_of([40.0, 41.0]), {}), ["numbers", "pictures", "runs"]),
    ],
    ids=["nothing", "left-out", "one", "two"],
)
def test_the_page_has_no_empty_section_and_no_empty_table(found, sections):
    outline = _Outline(trend_html(found, 30))

    assert outline.sections == sections
    assert all(outline.rows)


def test_every_run_is_a_point_and_the_newest_has_a_ring():
    found = trend([*QUIET, 80.0, 42.0, 50.0, 50.0])
    track = found.tracks[0]

    dots = chart_of(found, track, "c", 30).dots

    rings = [dot for dot in dots if dot.ring]
    assert len(dots) - len(rings) == 30
    assert [(dot.x, dot.y) for dot in rings] == [(33.0, 50.0)]
    assert rings[0].label == "newest: worse: night-033, 2026-02-03 02:00 UTC, 50.00 ms"
    assert [dot.x for dot in dots if dot.cross] == [32.0, 33.0]
    assert [dot.x for dot in dots if not dot.ring and not dot.cross and dot.radius == 5.0] == [30.0]  # suspected


@pytest.mark.parametrize("count", [2, 5, 9, 30, 100])
@pytest.mark.parametrize(
    "apart",
    [
        timedelta(days=1),
        timedelta(hours=7),
        timedelta(minutes=3),
        timedelta(seconds=9),
        timedelta(days=366),
        timedelta(),
    ],
    ids=str,
)
def test_labels_below_a_chart_differ(apart, count):
    nights = [night(number, {P95: 40.0}, apart=apart) for number in range(count)]
    found = trend_of("orders", nights, {})

    labels = [label for _, label in chart_of(found, found.tracks[0], "c", 300).x.ticks]

    assert len(set(labels)) == len(labels) > 1
    assert len(labels) <= 8


def test_bars_go_from_the_lowest_to_the_highest():
    assert bars([1.0, 2.0, 8.0]) == "▁▂█"
    assert bars([3.0, 3.0]) == "▁▁"


def test_the_data_is_json_and_says_what_decided():
    data = json.loads(json.dumps(trend_data(trend([*QUIET, 50.0, 50.0]), 5), allow_nan=False))

    assert (data["verdict"], data["exit_code"], data["runs_in_series"]) == ("regression", 11, 32)
    assert [run["run_id"] for run in data["runs"]] == [f"night-{number:03d}" for number in range(27, 32)]
    (p95,) = [one for one in data["metrics"] if (one["statement"], one["metric"]) == (None, "p95")]
    assert p95["values"][-2:] == [50.0, 50.0]
    assert p95["state"] == "regression"
    change = next(one for one in data["changes"] if one["metric"] == "p95" and one["statement"] is None)
    assert (change["since"], change["confirmed_by"], change["worse"], change["new"]) == (
        "night-030",
        "night-031",
        True,
        True,
    )
    assert change["change"] == pytest.approx(0.25, abs=0.02)
    empty = trend_data(trend_of("orders", [], {}), 5)
    assert (empty["newest"], empty["series"], empty["metrics"]) == (None, None, [])


class _Page(HTMLParser):
    """Elements that are open, and what must not be there."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if tag in ("script", "link", "img", "iframe") or {"src", "href", "style"} & set(names):
            self.wrong.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_loads_nothing_and_shows_foreign_text_as_text():
    runs = nights_of([*QUIET, 80.0, 42.0, 50.0, 50.0, 50.0])
    evil: dict[Subject, float] = {("<script>x</script>", Measure.P95): 9.0}
    runs = [
        night(number, {**one.values, **evil}, facts={"labels.<b>": f"<i>{number}"}) for number, one in enumerate(runs)
    ]
    other = OtherSeries(key=KEY, runs=2, newest=runs[0])

    page = trend_html(trend_of("<img src=x>", runs, {"are INVALID": 1}, [other]), 30)

    parsed = _Page()
    parsed.feed(page)
    assert (parsed.open, parsed.wrong) == ([], [])
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert page.count("<svg ") == len(trend_of("x", runs, {}).tracks)
    assert "&lt;script&gt;" in page
    assert 'class="cross s2"' in page
    assert trend_html(trend_of("empty", [], {}), 30).endswith("</html>\n")


@pytest.mark.parametrize(
    ("found", "bound"),
    [
        ({"max_concurrency": 16, "result": "TRUE_MAX", "limited_at": None}, False),
        ({"max_concurrency": 500, "result": "BOUNDED_MAX", "limited_at": None}, False),  # the ceiling of the scenario
        ({"max_concurrency": 12, "result": "BOUNDED_MAX", "limited_at": 14}, True),
        ({"max_concurrency": 12, "result": "BOUNDED_MAX"}, False),  # of an older run
    ],
)
def test_a_maximum_that_the_client_bounded_is_a_lower_bound(found, bound):
    values, at_least = values_of({"find_max": found})

    assert values == {(None, Measure.MAX_CONCURRENCY): float(found["max_concurrency"])}
    assert at_least == ({(None, Measure.MAX_CONCURRENCY)} if bound else set())
