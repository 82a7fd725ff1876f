"""Trends: silent on noise, quick on steps, and only like beside like."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from html.parser import HTMLParser

import numpy as np
import pytest

from loadgen.report.limits import Measure
from loadgen.report.shift import NIGHTS_MIN, FloatArray, course_of
from loadgen.report.trend import Key, Night, OtherSeries, Subject, Trend, Verdict, series_of, trend_of, values_of
from loadgen.report.trend_html import trend_html
from loadgen.report.trend_json import trend_data
from loadgen.report.trend_text import bars, trend_text

LIMIT = math.log(1.1)
SEEDS = 40
KEY = Key(template_id="t", driver_major="5", workers=2, cores=2, warehouse_size="X-Small")
P95: Subject = (None, Measure.P95)


def noise(seed: int, nights: int, spread: float = 0.05) -> FloatArray:
    return np.random.default_rng(seed).normal(0.0, spread, nights)


def night(
    number: int, values: Mapping[Subject, float], *, key: Key = KEY, facts: Mapping[str, str] | None = None
) -> Night:
    moment = datetime(2026, 1, 1, 2) + timedelta(days=number)  # noqa: DTZ001 - naive UTC by design
    return Night(run_id=f"night-{number:03d}", started=moment, key=key, values=values, facts=facts or {})


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


def test_values_come_from_the_summary_and_lower_bounds_are_none():
    summary = {
        "find_max": None,
        "latency_ms": {"p50": 20.0, "p95": 40.0, "at_least": ["p95"]},
        "totals": {"qps": 100.0, "error_rate": 0.0},
        "statements": {"a": {"latency_ms": {"p95": 30.0}}, "b": {"latency_ms": {"p95": None}}},
    }

    assert values_of(summary) == {
        (None, Measure.P50): 20.0,
        (None, Measure.QPS): 100.0,
        (None, Measure.ERROR_RATE): 0.0,
        ("a", Measure.P95): 30.0,
    }
    searched = {**summary, "find_max": {"max_concurrency": 45}}
    assert values_of(searched) == {(None, Measure.MAX_CONCURRENCY): 45.0}


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
        "LEARNING  orders has no run that counts: 2 are FAILED",
        "  left out: 2 are FAILED",
    ]


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
