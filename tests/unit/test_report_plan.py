"""The planned load in the charts: with its ramps, as it was announced."""

from __future__ import annotations

import pytest

from loadgen.report.records import RunEvent
from loadgen.report.run_charts import level_at, planned_levels, planned_rates
from loadgen.scenario.model import Load, LoadMode, LoadStage
from tests.unit.report_builders import record, scenario


def event(at_s: float, connections: int | None, ramp_s: float = 0.0) -> RunEvent:
    return RunEvent(at_s=at_s, label="", text="", connections=connections, ramp_s=ramp_s)


def test_a_ramp_is_drawn_as_a_straight_line_to_its_level() -> None:
    load = Load(connections=32, workers=2, ramp_s=5.0, warmup_s=10.0, duration_s=30.0, min_connections=1)
    run = record(scenario=scenario(load=load), events=(event(0.0, 8, 5.0), event(20.0, 32, 10.0), event(35.0, 4)))
    corners = planned_levels(run, 40.0)
    assert corners == (
        (0.0, 1.0),
        (0.0, 1.0),
        (5.0, 8.0),
        (20.0, 8.0),
        (30.0, 32.0),
        (35.0, 32.0),
        (35.0, 4.0),
        (40.0, 4.0),
    )
    assert [level_at(corners, at_s) for at_s in (0.0, 2.5, 10.0, 25.0, 34.9, 35.0, 99.0)] == [
        *(1.0, 4.5, 8.0, 20.0, 32.0, 4.0, 4.0)
    ]


def test_a_level_that_follows_during_a_ramp_begins_where_the_ramp_is() -> None:
    run = record(events=(event(0.0, 100, 10.0), event(5.0, 0, 5.0)))
    start = planned_levels(run, 20.0)[0][1]
    assert planned_levels(run, 20.0)[2:] == (
        (5.0, (start + 100) / 2),
        (5.0, (start + 100) / 2),
        (10.0, 0.0),
        (20.0, 0.0),
    )


def test_a_run_without_events_keeps_its_connections() -> None:
    assert planned_levels(record(events=()), 12.0) == ((0.0, 8.0), (12.0, 8.0))
    assert planned_levels(record(events=(), scenario=None), 12.0) == ()


def test_the_rate_of_an_open_loop_has_its_ramps() -> None:
    stages = (
        LoadStage(name=None, duration_s=10.0, rate_per_second=20.0, connections=None, ramp_s=0.0),
        LoadStage(name=None, duration_s=10.0, rate_per_second=60.0, connections=None, ramp_s=4.0),
    )
    load = Load(mode=LoadMode.RATE, connections=8, workers=1, warmup_s=2.0, stages=stages, duration_s=20.0)
    corners = planned_rates(scenario(load=load))
    assert [level_at(corners, at_s) for at_s in (1.0, 11.0, 14.0, 15.0, 20.0)] == [
        *(20.0, 20.0, pytest.approx(40.0), pytest.approx(50.0), 60.0)
    ]
