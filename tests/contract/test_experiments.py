"""Experiments in the control plane: each block is begun once, each measurement counts once."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from loadgen.control.session import ControlSession, RowUnreadable
from loadgen.control.tables import experiments, run_leases, run_measurements, run_status
from loadgen.control.tables.run_measurements import WarehousePoll
from loadgen.errors import UsageError
from loadgen.model.warehouse import Cloud, snowflake_rates
from loadgen.results.comparisons import read_experiment_result
from loadgen.rules.measurement import Measurement, MeasurementFigures, MeasurementOutcome
from orchestrator.experiment.state import ExperimentStore
from tests.control_plane import ControlPlane, retries

pytestmark = pytest.mark.any_driver

FIGURES = MeasurementFigures(
    values={"p95": 12.5, "a.qps": 1e-9},
    latency_ms={"p50": 1.0, "p99": None},
    qps=1234.5,
    error_rate=0.01,
    statements=10**9,
    credits=0.001,
    limits={"p95 < 50ms": True, "qps > 1": False},
)


def new(session: ControlSession, name: str = 'it\'s "odd" \\ ; -- ? 😀') -> str:
    experiment_id = uuid.uuid4().hex
    experiments.create(session, retries(), experiment_id, name, '{"seed": 1}', "f" * 64)
    return experiment_id


def measurement(**changes: Any) -> Measurement:
    usual: dict[str, Any] = {
        "block": 1,
        "arm": "small",
        "attempt": 1,
        "run_id": "run-1",
        "outcome": MeasurementOutcome.OK,
        "seconds": 12.25,
        "billed": 0.5,
        "figures": FIGURES,
    }
    return Measurement(**usual | changes)


def test_an_experiment_is_found_by_its_id_its_beginning_and_as_the_latest(session: ControlSession) -> None:
    first, second = new(session, "first"), new(session, "second")

    assert experiments.find(session, retries(), first).name == "first"
    assert experiments.find(session, retries(), second[:20]).experiment_id == second
    assert experiments.find(session, retries(), "latest").experiment_id == second
    assert [row.experiment_id for row in experiments.newest(session, 2)] == [second, first]
    with pytest.raises(UsageError, match="there is no experiment gone"):
        experiments.find(session, retries(), "gone")


def test_one_process_begins_a_block(plane: ControlPlane, session: ControlSession) -> None:
    experiment_id = new(session)

    def begin(epoch: int) -> bool:
        own = plane.open("experiment")
        return experiments.begin_block(own, retries(), experiment_id, 1, epoch)

    with ThreadPoolExecutor(4) as threads:
        won = list(threads.map(begin, [1, 2, 3, 4]))

    assert sorted(won) == [False, False, False, True]
    assert experiments.begin_block(session, retries(), experiment_id, 1, won.index(True) + 1)  # repeated
    assert experiments.begin_block(session, retries(), experiment_id, 2, 1)
    assert experiments.blocks(session, experiment_id) == (1, 2)


def test_a_measurement_is_recorded_once_and_read_as_it_was(session: ControlSession) -> None:
    experiment_id = new(session)
    failed = measurement(attempt=2, run_id=None, outcome=MeasurementOutcome.FAILED, billed=None, figures=None,
                         reason="x" * 5_000)  # fmt: skip

    assert experiments.record(session, retries(), experiment_id, measurement())
    assert experiments.record(session, retries(), experiment_id, measurement())  # the same, repeated
    assert not experiments.record(session, retries(), experiment_id, measurement(run_id="run-2"))
    assert experiments.record(session, retries(), experiment_id, failed)

    ok, other = experiments.measurements(session, experiment_id)
    assert ok == measurement()
    assert (other.outcome, other.run_id, len(other.reason)) == (MeasurementOutcome.FAILED, None, 2_000)


def test_the_newest_end_counts(session: ControlSession) -> None:
    experiment_id = new(session)
    assert experiments.last_end(session, experiment_id) is None

    for epoch, verdict, code in ((1, "cancelled", 130), (2, "decided", 0)):
        experiments.finish(session, retries(), experiment_id, epoch, {"verdict": verdict, "exit_code": code})

    end = experiments.last_end(session, experiment_id)
    assert end is not None
    assert (end.epoch, end.verdict, end.exit_code) == (2, "decided", 0)


CONFIG = {
    "arms": {"small": "t1", "large": "t2"},
    "reference": "small",
    "metrics": {"p95": 0.05},
    "limits": ["p95 < 50ms"],
    "blocks": [2, 8],
    "seed": 1,
    "scenario": "s",
    "price": {"credit": 3.0, "currency": "USD", "rates_date": "2026-09-16"},
}


def test_an_experiment_is_shown_while_it_goes_on_and_after_it_was_left(plane: ControlPlane) -> None:
    session, experiment_id = plane.session, uuid.uuid4().hex
    experiments.create(session, retries(), experiment_id, "e", json.dumps(CONFIG), "f" * 64)
    lease = plane.claim(f"{experiments.LEASE_PREFIX}{experiment_id}")
    experiments.begin_block(session, retries(), experiment_id, 1, 1)
    for arm in ("small", "large"):
        experiments.record(session, retries(), experiment_id, measurement(arm=arm, run_id=f"run-{arm}"))

    running = read_experiment_result(session, retries(), experiment_id)
    assert (running["verdict"], running["blocks"]["complete"]) == ("running", [1])
    assert experiments.led(session) >= {experiment_id}
    run_leases.release(session, lease)
    assert read_experiment_result(session, retries(), experiment_id)["verdict"] == "unfinished"
    result = {**running, "verdict": "cancelled", "exit_code": 130}
    experiments.finish(session, retries(), experiment_id, lease.epoch, result)
    assert read_experiment_result(session, retries(), experiment_id) == result
    assert experiment_id not in experiments.led(session)
    experiments.begin_block(session, retries(), experiment_id, 2, 2)  # resumed, and killed
    assert read_experiment_result(session, retries(), experiment_id)["verdict"] == "unfinished"
    (listed,) = [one for one in experiments.listed(session, 100) if one.experiment_id == experiment_id]
    assert (listed.name, listed.verdict, listed.exit_code) == ("e", "cancelled", 130)


def test_a_list_has_the_newest_end_of_each(session: ControlSession) -> None:
    ended, fresh = new(session, "ended"), new(session, "fresh")
    for epoch, verdict, code in ((1, "cancelled", 130), (2, "decided", 0)):
        experiments.finish(session, retries(), ended, epoch, {"verdict": verdict, "exit_code": code})

    found = experiments.listed(session, 2)

    assert [(one.experiment_id, one.verdict) for one in found] == [(fresh, None), (ended, "decided")]


def test_a_foreign_experiment_is_reported(session: ControlSession) -> None:
    with pytest.raises(RowUnreadable, match="CONFIG"):
        read_experiment_result(session, retries(), new(session))


@pytest.mark.parametrize("figures", ["{", "[]", "{}", '{"values": 1}'])
def test_a_foreign_row_is_reported(plane: ControlPlane, session: ControlSession, figures: str) -> None:
    experiment_id = new(session)
    experiments.record(session, retries(), experiment_id, measurement())
    plane.change("UPDATE EXPERIMENT_MEASUREMENTS SET FIGURES = ? WHERE EXPERIMENT_ID = ?", figures, experiment_id)

    found = experiments.measurements(session, experiment_id)

    assert list(found) == []
    assert isinstance(found.unreadable[0], RowUnreadable)


def labelled(plane: ControlPlane, experiment_id: str, **labels: Any) -> str:
    given = {"experiment": experiment_id, "block": "1", "arm": "small", "attempt": "1"} | labels
    return plane.new_run(scenario_config=json.dumps({"labels": given}))


def test_runs_that_nothing_recorded_are_found_with_what_they_cost(plane: ControlPlane, session: ControlSession) -> None:
    experiment_id, other = new(session), new(session)
    recorded = labelled(plane, experiment_id)
    experiments.record(session, retries(), experiment_id, measurement(run_id=recorded))
    observed, unobserved = (labelled(plane, experiment_id, attempt=attempt) for attempt in ("2", "3"))
    labelled(plane, other, description=experiment_id)
    plane.new_run(scenario_config=f"{experiment_id} is no JSON")
    begun = run_status.server_time(session)
    polls = [
        WarehousePoll(
            run_id=observed,
            timestamp=begun + timedelta(minutes=minutes),
            running=1,
            queued=0,
            started_clusters=2,
            size="Small",
            raw=None,
        )
        for minutes in (0, 30)
    ]
    run_measurements.append_polls(session, retries(), polls)
    store = ExperimentStore(lambda action: action(session, retries()), experiment_id)

    known, unknown = store.left_runs(store.read(), snowflake_rates(Cloud.AWS))

    assert (known.run_id, known.block, known.arm, known.attempt) == (observed, 1, "small", 2)
    assert known.outcome is MeasurementOutcome.FAILED
    assert known.billed == pytest.approx(2.0)  # two clusters of Small for half an hour
    assert known.seconds == pytest.approx(1_800.0, abs=60.0)
    assert (unknown.run_id, unknown.billed, unknown.seconds) == (unobserved, None, 0.0)
    for one in (known, unknown):
        assert experiments.record(session, retries(), experiment_id, one)
    assert store.left_runs(store.read(), snowflake_rates(Cloud.AWS)) == []
