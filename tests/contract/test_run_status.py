"""The row of a run: made, published, read, deleted. Both majors of the connector."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from loadgen.control.session import ControlFailed
from loadgen.control.tables import run_status
from loadgen.control.tables.run_status import ConnectionTarget, NewRun, RunExists, RunRollup, create, publish, read
from tests.contract.run_builders import HOSTILE, P, S, at_once
from tests.control_plane import retries

pytestmark = pytest.mark.any_driver

# --- making a run ----------------------------------------------------------------------------------------------------


def test_a_new_run_is_prepared_with_everything_it_was_given(plane):
    run_id = plane.new_run(test_name="a name", scenario_config='{"a": 1}', workers=7)

    row = read(plane.session, run_id)

    assert row is not None
    assert (row.run_id, row.test_name, row.status, row.phase) == (run_id, "a name", S.PREPARED, P.PREPARING)
    assert (row.workers_expected, row.next_sequence_id, row.lease_epoch) == (7, 1, 0)
    assert (row.start_time, row.end_time, row.reason) == (None, None, None)
    assert run_status.read_config(plane.session, run_id) == '{"a": 1}'


def new_run(run_id: str, **more: Any) -> NewRun:
    fields: dict[str, Any] = {"template_id": "t", "test_name": "n", "scenario_config": "{}", "workers": 1}
    return NewRun(run_id=run_id, **(fields | more))


def test_an_id_can_be_used_once(plane):
    run_id = plane.new_run(test_name="the first")

    with pytest.raises(RunExists) as raised:
        create(plane.session, retries(), new_run(run_id))

    assert raised.value.exit_code == 2
    assert run_id in str(raised.value)
    row = read(plane.session, run_id)
    assert row is not None
    assert row.test_name == "the first"


@pytest.mark.parametrize("kind", ["drop_reply", "truncate", "reset", "http_status", "expire_session"])
def test_a_run_whose_creation_was_not_answered_is_there_once(plane, kind):
    run_id = str(uuid.uuid4())
    plane.server.fault(match="^INSERT INTO RUN_STATUS", kind=kind, count=1)

    create(plane.session, retries(), new_run(run_id))

    assert plane.rows("SELECT COUNT(*) FROM RUN_STATUS WHERE RUN_ID = ?", run_id) == [(1,)]
    with pytest.raises(RunExists):
        create(plane.session, retries(), new_run(run_id))


def test_a_run_of_another_creator_is_not_adopted_after_a_lost_response(plane):
    run_id = plane.new_run(scenario_config='{"theirs": 1}')
    plane.server.fault(match="^INSERT INTO RUN_STATUS", kind="reset", count=1)

    with pytest.raises(RunExists):
        create(plane.session, retries(), new_run(run_id, scenario_config='{"mine": 1}'))


def test_of_two_creators_of_the_same_run_one_succeeds(plane):
    for _ in range(10):
        run_id = str(uuid.uuid4())

        def make(session: Any, run_id: str = run_id) -> bool:
            try:
                create(session, retries(), new_run(run_id))
            except RunExists:
                return False
            return True

        assert sorted(at_once(plane, make, make)) == [False, True]


def test_a_name_that_does_not_fit_is_refused_and_nothing_is_written(plane):
    run_id = str(uuid.uuid4())

    with pytest.raises(ControlFailed) as raised:
        create(plane.session, retries(), new_run(run_id, test_name="x" * 300))

    assert not raised.value.failure.retryable
    assert read(plane.session, run_id) is None


@pytest.mark.parametrize("text", ["quotes", "injection", "emoji", "lines", "empty"])
def test_a_hostile_name_is_a_name(plane, text):
    name = HOSTILE[text][:255]

    row = read(plane.session, plane.new_run(test_name=name))

    assert row is not None
    assert row.test_name == name


# --- what the leader makes known -------------------------------------------------------------------------------------


TARGETS = {
    "w-1": ConnectionTarget(
        target_connections=64, sequence_id=9, step_id=2, ramp_s=1.5, effective_at="2026-01-01T00:00:00"
    ),
    "w'2 🙂": ConnectionTarget(target_connections=0, sequence_id=1),
}


def test_every_reader_sees_what_was_published(plane, led):
    run = led(S.RUNNING)
    rollup = RunRollup(
        workers_registered=3,
        workers_active=2,
        workers_completed=1,
        total_ops=10**15,
        error_count=4,
        current_qps=123.5,
        find_max_state='{"step": 1}',
        targets=TARGETS,
        next_sequence_id=10,
    )

    assert publish(plane.session, run.term, rollup)

    row, seen = run.row, run_status.poll(plane.session, run.run_id)
    assert (row.workers_registered, row.workers_active, row.workers_completed) == (3, 2, 1)
    assert (row.total_ops, row.error_count, row.current_qps) == (10**15, 4, 123.5)
    assert (row.find_max_state, row.lease_epoch) == ('{"step": 1}', 1)
    assert seen is not None
    assert (seen.status, seen.phase, seen.next_sequence_id) == (S.RUNNING, P.WARMUP, 10)
    assert seen.targets == TARGETS


def test_the_published_number_of_the_next_event_never_goes_down(plane, led):
    run = led(S.RUNNING)

    seen = []
    for number in (5, 3, 8, 1):
        assert publish(plane.session, run.term, RunRollup(targets={}, next_sequence_id=number))
        seen.append(run.row.next_sequence_id)

    assert seen == [5, 5, 8, 8]


def test_publishing_does_not_change_the_status(plane, led):
    run = led(S.CANCELLING)

    assert publish(plane.session, run.term, RunRollup(targets={}))

    assert run.row.status is S.CANCELLING


# --- looking ---------------------------------------------------------------------------------------------------------


def test_every_reader_sees_for_how_long_there_was_no_leader(plane):
    run_id = plane.new_run()

    def lease_over_ms() -> int | None:
        seen = run_status.poll(plane.session, run_id)
        assert seen is not None
        return seen.lease_over_ms

    assert lease_over_ms() is None
    plane.claim(run_id, ttl_s=600)
    held_ms = lease_over_ms()
    assert held_ms is not None
    assert -600_000 <= held_ms < 0
    plane.expire(run_id, since_s=60)
    over_ms = lease_over_ms()
    assert over_ms is not None
    assert over_ms >= 60_000
    plane.claim(run_id)
    again_ms = lease_over_ms()
    assert again_ms is not None
    assert again_ms < 0


def test_a_run_that_is_not_there_is_none_and_no_error(plane):
    assert read(plane.session, "no") is None
    assert run_status.read_config(plane.session, "no") is None
    assert run_status.poll(plane.session, "no") is None


def test_unfinished_runs_are_those_without_an_end(plane, led):
    never_led, leading, finished = plane.new_run(), led(S.RUNNING), led(S.FAILED)
    plane.expire(leading.run_id, since_s=5)

    found = {run.run_id: run for run in run_status.unfinished(plane.session)}

    assert finished.run_id not in found
    assert (found[never_led].lease_over_ms, found[never_led].beat_age_ms) == (None, None)
    assert found[never_led].update_age_ms >= 0
    over_ms = found[leading.run_id].lease_over_ms
    assert over_ms is not None
    assert over_ms >= 5_000


def test_the_newest_runs_come_first(plane):
    made = [plane.new_run() for _ in range(4)]

    newest = run_status.newest(plane.session, 3)

    assert [run.run_id for run in newest] == made[:0:-1]


def test_runs_are_found_by_status_scenario_and_age(plane, led):
    stopped, waiting = led(S.CANCELLED), plane.new_run()
    name = stopped.row.test_name

    def ids(**wanted: Any) -> set[str]:
        return {run.run_id for run, _ in run_status.listed(plane.session, 1_000, **wanted)}

    assert stopped.run_id in ids(status=S.CANCELLED)
    assert waiting not in ids(status=S.CANCELLED)
    assert {stopped.run_id, waiting} <= ids(scenario=name, within_s=3_600.0)
    assert not ids(scenario=f"{name} of others")
    assert stopped.run_id in ids(verdict="cancelled", status=S.CANCELLED)
    assert not {stopped.run_id, waiting} & ids(verdict="passed")
    assert waiting not in ids(verdict="cancelled")
    assert not ids(within_s=-60.0)


def test_every_scenario_that_has_runs_is_named_once(plane):
    made = [run_status.read(plane.session, plane.new_run()) for _ in range(2)]
    (name,) = {run.test_name for run in made if run is not None}

    assert run_status.scenarios(plane.session, 1_000).count(name) == 1
    assert len(run_status.scenarios(plane.session, 1)) == 1


def test_enrichment_is_the_one_thing_that_changes_after_the_end(plane, led):
    run = led(S.COMPLETED)
    before = run.row

    run_status.set_enrichment(plane.session, retries(), run.run_id, "DONE")

    assert replace(run.row, updated_at=before.updated_at) == replace(before, enrichment_status="DONE")


def test_server_time_is_the_time_of_the_tables(plane):
    before = run_status.server_time(plane.session)
    row = read(plane.session, plane.new_run())
    after = run_status.server_time(plane.session)

    assert row is not None
    assert before <= row.created_at <= after
