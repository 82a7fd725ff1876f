"""Delivered load: everything that is missing is reported, nothing else is, and no surplus compensates it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.connections import ConnectionTime
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import WindowResult
from loadgen.model.threshold import parse_threshold
from loadgen.rules.plan import plan_run
from loadgen.rules.thresholds import check_threshold
from loadgen.rules.validity import (
    Delivered,
    Key,
    Portion,
    delivered_arrivals,
    delivered_connections,
    overload_warnings,
    percent,
    shortfalls,
)
from loadgen.scenario.read import parse_scenario
from orchestrator.run_result import MeasuredWindows, delivered_load
from tests.unit.orchestrator_builders import merged, tally, window


def measured(planned_ms: int, delivered_ms: int, *, step_id: int | None = None, logging_in_ms: int = 0) -> WindowResult:
    time = ConnectionTime(planned_ms=planned_ms, delivered_ms=delivered_ms, logging_in_ms=logging_in_ms)
    return window(step_id=step_id, connections=time)


def closed(*workers: tuple[int, int], step_id: int | None = None) -> Delivered:
    """(planned, delivered) of each worker, all in one window."""
    return Delivered(
        portions={
            (f"worker-{number}", step_id): Portion(planned=planned, missing=planned - delivered)
            for number, (planned, delivered) in enumerate(workers)
        }
    )


# --- is it enough? ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "delivered",
    [
        Delivered(portions={}),
        closed((0, 0)),
        closed((100_000, 100_000)),
        closed((100_000, 99_000)),
        closed((10_000, 9_500), (990_000, 990_000)),
    ],
)
def test_enough_is_enough(delivered: Delivered) -> None:
    assert shortfalls(delivered) == []


def test_a_delivered_load_that_is_not_known_is_not_enough() -> None:
    assert shortfalls(None) == ["it is not known how much of the planned load was delivered"]


def test_a_run_with_too_little_load_reports_how_much_and_which_worker() -> None:
    assert shortfalls(closed((240_000, 240_000), (240_000, 24_000))) == [
        "delivered load was 55.0 % (264.0 of 480.0 connection-seconds) of the plan",
        "worker-1 delivered 10.0 % (24.0 of 240.0 connection-seconds) of its part",
    ]


def test_known_reasons_are_reported() -> None:
    short = closed((100_000, 98_999))

    (said,) = shortfalls(Delivered(portions=short.portions, because="3 logins were refused"))

    assert said == ("delivered load was 98.9 % (99.0 of 100.0 connection-seconds) of the plan; 3 logins were refused")


def test_a_worker_is_named_though_the_run_has_enough() -> None:
    assert shortfalls(closed((10_000, 9_499), (990_000, 990_000))) == [
        "worker-0 delivered 94.9 % (9.5 of 10.0 connection-seconds) of its part"
    ]


def test_a_window_is_named_though_the_run_has_enough() -> None:
    portions: dict[Key, Portion] = {
        ("worker-0", 1): Portion(planned=10_000, missing=101),
        ("worker-0", 2): Portion(planned=990_000),
    }

    assert shortfalls(Delivered(portions=portions)) == [
        "stage 1 had 98.9 % (9.9 of 10.0 connection-seconds) of its planned load"
    ]
    assert shortfalls(Delivered(portions=portions, window_word="step"))[0].startswith("step 1 had 98.9 %")


def test_of_many_only_some_are_named() -> None:
    said = shortfalls(closed(*[(1_000, 0)] * 100))

    assert len(said) == 1 + 5 + 1
    assert said[-1] == "95 more workers were short of their part"


portions = st.builds(
    lambda planned, part: Portion(planned=planned, missing=planned * part // 1_000),
    st.integers(0, 10**9),
    st.one_of(st.just(0), st.integers(0, 60), st.integers(0, 1_000)),
)
grids = st.integers(1, 4).flatmap(
    lambda workers: st.integers(1, 3).flatmap(
        lambda steps: st.lists(portions, min_size=workers * steps, max_size=workers * steps).map(
            lambda drawn: {
                (f"worker-{number // steps}", number % steps + 1): portion for number, portion in enumerate(drawn)
            }
        )
    )
)


@given(grids)
def test_a_run_is_valid_exactly_when_run_windows_and_workers_have_enough(
    grid: dict[tuple[str, int | None], Portion],
) -> None:
    """Exact, in whole numbers, and counted another way."""
    planned, there = (
        {key: one.planned for key, one in grid.items()},
        {key: one.planned - one.missing for key, one in grid.items()},
    )

    def enough(keys: list[tuple[str, int | None]], limit: int) -> bool:
        return 100 * sum(there[key] for key in keys) >= limit * sum(planned[key] for key in keys)

    workers, steps = {key[0] for key in grid}, {key[1] for key in grid}
    short_workers = {one for one in workers if not enough([key for key in grid if key[0] == one], 95)}
    short_steps = {one for one in steps if not enough([key for key in grid if key[1] == one], 99)}

    said = shortfalls(Delivered(portions=grid))

    assert bool(said) == (not enough(list(grid), 99) or bool(short_workers) or bool(short_steps))
    assert {one for one in workers if any(line.startswith(f"{one} ") for line in said)} == short_workers
    if len(steps) > 1:
        assert {one for one in steps if any(line.startswith(f"stage {one} ") for line in said)} == short_steps


# --- against the plan ------------------------------------------------------------------------------------------------


def test_the_plan_is_the_runs_and_not_what_a_worker_reported_before_its_end() -> None:
    windows = {"worker-0": [measured(60_000, 60_000)], "worker-1": [measured(6_000, 6_000)], "worker-2": []}
    planned: dict[Key, int] = {(f"worker-{number}", None): 60_000 for number in range(3)}

    found = delivered_connections(windows, planned)

    assert [found[key].delivered for key in planned] == [60_000, 6_000, 0]


def test_a_surplus_hides_no_deficit() -> None:
    longer = {"worker-0": [measured(70_000, 65_000)]}  # it read the end late

    found = delivered_connections(longer, {("worker-0", None): 60_000})

    assert found["worker-0", None] == Portion(planned=60_000, missing=5_000)


def test_a_process_that_took_the_place_of_another_has_measured_the_rest() -> None:
    two = {"worker-0": [measured(20_000, 20_000), measured(30_000, 30_000, logging_in_ms=5)]}

    found = delivered_connections(two, {("worker-0", None): 60_000})

    assert found["worker-0", None] == Portion(planned=60_000, missing=10_000, logging_in=5)


def test_a_window_without_connection_time_has_delivered_nothing() -> None:
    found = delivered_connections({"worker-0": [window()]}, {("worker-0", None): 1_000})

    assert found["worker-0", None] == Portion(planned=1_000, missing=1_000)


times = st.integers(0, 10**9)


@given(st.lists(st.tuples(times, times), max_size=3), times)
def test_never_more_than_the_plan_and_never_less_than_nothing(own: list[tuple[int, int]], plan: int) -> None:
    windows = {"w": [measured(max(pair), min(pair)) for pair in own]}

    portion = delivered_connections(windows, {("w", None): plan})["w", None]

    assert 0 <= portion.delivered <= portion.planned == plan
    assert portion.delivered <= sum(min(pair) for pair in own)


# --- an open loop ----------------------------------------------------------------------------------------------------


def test_arrivals_that_were_sent_are_delivered_however_they_ended() -> None:
    done = window({"s": tally((1.0,) * 90, failed=5, cancelled_ms=(3.0,) * 5)})

    assert delivered_arrivals({"w": [done]}, {("w", None): 100})["w", None] == Portion(planned=100)


def test_arrivals_that_were_never_sent_are_missing_and_those_that_found_all_busy_are_overload() -> None:
    skipped = window({"s": tally((1.0,) * 90, skipped=10)})
    overloaded = window({"s": tally((1.0,) * 90, skipped=10, unsent_ms=(50.0,) * 7)})

    assert delivered_arrivals({"w": [skipped]}, {("w", None): 100})["w", None] == Portion(planned=100, missing=10)
    assert delivered_arrivals({"w": [overloaded]}, {("w", None): 110})["w", None] == Portion(
        planned=110, missing=13, overload=7, unjudged=7
    )


STAGES_OF_RATE = """
version: 1
name: overloaded
connection: embedded
target: {database: BENCH, schema: PUBLIC}
workload: {statements: [{name: pay, sql: SELECT 1}, {name: look, sql: SELECT 2}]}
load:
  mode: rate
  max_connections: 2
  warmup: 0s
  stages: [{duration: 10s, rate: 10/s}, {duration: 10s, rate: 10/s, name: peak}]
"""


@pytest.mark.parametrize(
    ("thresholds", "unjudged"),
    [
        ("[]", [30, 40]),
        ("[error_rate < 1%]", [30, 40]),  # an arrival that was not sent is no error
        ("[errors < 1, qps > 1, lag_p99 < 1s, service_p95 < 1s, longest_stall < 1s, min < 1s]", [30, 40]),
        ("[pay.p50 > 1ms]", [30, 40]),  # sets no limit
        ("[max < 1h]", [0, 0]),
        ("[p95 <= 200ms]", [0, 0]),
        ("[avg < 1s]", [0, 0]),
        ("[stage 1.p95 < 200ms]", [0, 40]),  # the overload of another stage
        ("[stage 1.p95 < 200ms, peak.p50 < 1s]", [0, 0]),
        ("[pay.p95 < 200ms]", [20, 20]),  # without the statement `look`
        ("[pay.p95 < 200ms, look.p99 < 1s]", [0, 0]),
        ("[{check: p95 < 200ms, window: 5s}]", [0, 0]),
        ("[{check: p95 < 200ms, window: 5s, after: 10s}]", [30, 40]),  # not from the beginning
    ],
)
def test_only_limits_of_response_times_judge_the_arrivals_that_they_are_about(thresholds, unjudged) -> None:
    scenario = parse_scenario(STAGES_OF_RATE + f"thresholds: {thresholds}", source="s", environ={}).scenario
    windows = tuple(
        replace(window({"pay": unsent(10 * number), "look": unsent(20)}), step_id=number, window_id=number)
        for number in (1, 2)
    )

    delivered = delivered_load(
        scenario, plan_run(scenario.load), MeasuredWindows(windows={"worker-0": windows}, gaps=()), until_s=None
    )

    assert [one.overload for one in delivered.windows.values()] == [30, 40]
    assert [one.unjudged for one in delivered.windows.values()] == unjudged
    assert any("no threshold limits" in reason for reason in shortfalls(delivered)) == any(unjudged)


def unsent(count: int) -> StatementTally:
    return tally((1.0,) * (50 - count), skipped=count, unsent_ms=(50.0,) * count)


def test_overload_is_for_thresholds_to_judge_and_without_one_it_is_invalid() -> None:
    judged: dict[Key, Portion] = {("worker-0", None): Portion(planned=1_000, overload=11)}
    unjudged: dict[Key, Portion] = {("worker-0", None): Portion(planned=1_000, overload=11, unjudged=11)}

    assert shortfalls(Delivered(portions=judged, open_loop=True)) == []
    (said,) = shortfalls(Delivered(portions=unjudged, open_loop=True))
    assert said.startswith("11 of 1,000 arrivals were not sent, because every connection was executing or logging in")
    assert said.endswith("raise max_connections")
    little: dict[Key, Portion] = {("worker-0", None): Portion(planned=1_000, overload=10, unjudged=10)}
    assert shortfalls(Delivered(portions=little, open_loop=True)) == []


def test_arrivals_that_were_never_sent_are_reported_also_where_a_threshold_judges_them() -> None:
    def told(overload: int) -> list[str]:
        portions: dict[Key, Portion] = {("worker-0", None): Portion(planned=1_000, overload=overload)}
        return overload_warnings(Delivered(portions=portions, open_loop=True))

    assert told(10) == []
    assert told(11) == [
        "11 of 1,000 arrivals (1.1 %) were never sent, because every connection was executing or logging in:"
        " thresholds count them as slower than their age"
    ]


def test_the_stage_with_the_largest_share_of_arrivals_that_were_never_sent_decides() -> None:
    portions: dict[Key, Portion] = {
        ("worker-0", 1): Portion(planned=99_000),
        ("worker-0", 2): Portion(planned=600, overload=500),
        ("worker-1", 2): Portion(planned=400),
    }

    assert overload_warnings(Delivered(portions=portions, open_loop=True)) == [
        "500 of 1,000 arrivals (50.0 %) of stage 2 were never sent, because every connection was executing or logging"
        " in: thresholds count them as slower than their age"
    ]


def test_what_waited_for_a_connection_in_vain_took_at_least_as_long_as_it_waited() -> None:
    found = merged({"s": tally((1.0,) * 90, skipped=10, unsent_ms=(500.0,) * 10)})

    assert check_threshold(parse_threshold("p50 < 50ms"), found).passed
    late = check_threshold(parse_threshold("p95 < 1s"), found)
    assert not late.passed, "at least half a second, and how much more is unknown"
    assert late.value == pytest.approx(500.0, rel=0.02)
    assert check_threshold(parse_threshold("p95 > 400ms"), found).passed


def test_missing_arrivals_are_named() -> None:
    portions: dict[Key, Portion] = {("worker-0", None): Portion(planned=1_000, missing=60)}

    assert shortfalls(Delivered(portions=portions, open_loop=True)) == [
        "delivered load was 94.0 % (940 of 1,000 arrivals) of the plan",
        "worker-0 delivered 94.0 % (940 of 1,000 arrivals) of its part",
    ]


def test_an_open_loop_whose_connections_were_missing_is_invalid_though_all_was_sent_or_is_overload() -> None:
    """A third of the connection time is missing; the backlog was sent in a burst, or given up."""
    scenario = parse_scenario(STAGES_OF_RATE + "thresholds: [max < 1h]", source="s", environ={}).scenario
    times = {1: ConnectionTime(planned_ms=20_000, delivered_ms=20_000), 2: ConnectionTime(planned_ms=20_000)}
    windows = tuple(
        replace(window({"pay": unsent(40), "look": unsent(0)}), step_id=number, window_id=number, connections=time)
        for number, time in times.items()
    )

    delivered = delivered_load(
        scenario,
        plan_run(scenario.load),
        MeasuredWindows(windows={"worker-0": windows}, gaps=()),
        until_s=None,
        because="7 logins were refused",
    )

    assert shortfalls(delivered) == [
        "connections could be used for 50.0 % (20.0 of 40.0 connection-seconds) of the planned time; 7 logins were"
        " refused",
        "stage 2 could use its connections for 0.0 % (0.0 of 20.0 connection-seconds) of the planned time",
        "worker-0 could use its connections for 50.0 % (20.0 of 40.0 connection-seconds) of the time",
    ]
    document = delivered.document()
    assert document["by_worker"]["worker-0"] == {
        "planned_connection_seconds": 40.0,
        "delivered_connection_seconds": 20.0,
        "logging_in_connection_seconds": 0.0,
        "planned_arrivals": 200,
        "sent_arrivals": 120,
        "overload_arrivals": 80,
        "fraction": 0.6,
    }
    assert document | document["by_worker"]["worker-0"] == document
    assert [one["delivered_connection_seconds"] for one in document["by_window"]] == [20.0, 0.0]


# --- summary.json ----------------------------------------------------------------------------------------------------


def test_the_document_has_seconds_by_worker_and_by_window() -> None:
    portions: dict[Key, Portion] = {
        ("worker-0", 1): Portion(planned=10_000, missing=1, logging_in=250),
        ("worker-0", 2): Portion(planned=20_000),
        ("worker-1", 1): Portion(planned=10_000),
        ("worker-1", 2): Portion(planned=0),
    }

    document = Delivered(portions=portions).document()

    assert document["planned_connection_seconds"] == 40.0
    assert document["delivered_connection_seconds"] == 39.999
    assert document["logging_in_connection_seconds"] == 0.25
    assert document["fraction"] == 0.999975
    assert list(document["by_worker"]) == ["worker-0", "worker-1"]
    assert [one["step_id"] for one in document["by_window"]] == [1, 2]
    assert document["by_window"][1]["fraction"] == 1.0


@pytest.mark.parametrize(
    ("fraction", "said"), [(1.0, "100.0 %"), (0.99999, "99.9 %"), (0.98999, "98.9 %"), (0.0, "0.0 %"), (None, "–")]
)
def test_percent_is_never_rounded_up(fraction: float | None, said: str) -> None:
    assert percent(fraction) == said
