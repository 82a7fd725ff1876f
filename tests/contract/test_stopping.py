"""Requests to end a run: with a leader, with a lost one, with none yet, and of runs that have ended."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from loadgen.control.lease import LeaseTimes
from loadgen.control.tables import run_control_events, run_status, worker_heartbeats
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S, claim, new_owner
from loadgen.errors import Busy, UsageError
from loadgen.model.event import Stop
from loadgen.scenario.frozen import freeze
from orchestrator.leadership import STOP_TTL_S, Leadership
from orchestrator.service import OrchestratorService
from tests.contract.heartbeat_builders import SILENT_MS, identity, my_row, said
from tests.contract.run_builders import Led, S
from tests.control_plane import ControlPlane, retries
from tests.fake_clock import FakeClock
from tests.unit.scenario_builders import MINIMAL
from tests.unit.scenario_builders import read as read_scenario

LOST_S = TAKEOVER_MARGIN_S + 1  # since the lease of a lost leader expired


class Aging(FakeClock):
    """A clock during whose waits the leases of a run age."""

    def __init__(self, plane: ControlPlane, run_id: str) -> None:
        super().__init__()
        self._plane, self._run_id, self.waited_s = plane, run_id, 0.0

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waited_s += timeout_s
        self._plane.age(self._run_id, timeout_s)
        return super().wait(event, timeout_s)


@pytest.fixture
def service(plane: ControlPlane) -> OrchestratorService:
    return OrchestratorService(plane.place, environ=plane.environ, retries=retries())


def stops(plane: ControlPlane, run_id: str) -> list[Stop]:
    found = run_control_events.history(plane.session, run_id)
    return [one.command for one in found if isinstance(one.command, Stop)]


def stored(plane: ControlPlane, run_id: str) -> Any:
    return plane.rows("SELECT STATUS, REASON FROM RUN_STATUS WHERE RUN_ID = ?", run_id)[0]


@pytest.mark.parametrize("status", [S.PREPARED, S.STARTING, S.RUNNING])
def test_a_run_of_a_lost_leader_is_cancelled_and_its_workers_are_told(plane, service, status):
    run = Led(plane, status)
    worker = identity(run_id=run.run_id)
    worker_heartbeats.register(plane.session, retries(), worker, silent_ms=SILENT_MS)
    assert worker_heartbeats.beat(plane.session, worker, said(2))
    plane.expire(run.run_id, since_s=LOST_S)

    asked = service.stop_run(run.run_id)

    (stop,) = stops(plane, run.run_id)
    ((number, _, epoch),) = plane.events(run.run_id)
    assert (number, epoch, stop.reason) == (1, 2, "cancelled")
    assert stored(plane, run.run_id) == (S.CANCELLING, asked.run.reason)
    assert asked.run.reason.startswith("stopped by process ")
    assert (asked.by_us, asked.is_led) == (True, False)
    assert my_row(plane.session, worker).beat == said(2)  # the worker ends by itself
    assert plane.claim(run.run_id).epoch == 3  # the lease was released


def test_a_run_without_a_leader_yet_is_cancelled(plane, service):
    run_id = plane.new_run()

    service.stop_run(run_id, by="me", why="wrong warehouse")

    status, reason = stored(plane, run_id)
    assert (status, [stop.reason for stop in stops(plane, run_id)]) == (S.CANCELLING, ["cancelled"])
    assert reason.startswith("stopped by me at ")
    assert reason.endswith(" UTC: wrong warehouse")


def test_a_living_leader_ends_its_run_itself(plane, service):
    run = Led(plane, S.RUNNING)

    asked = service.stop_run(run.run_id)

    assert (asked.by_us, asked.is_led, asked.run.status) == (True, True, S.CANCELLING)
    assert (stored(plane, run.run_id)[0], stops(plane, run.run_id)) == (S.RUNNING, [])
    assert [epoch for epoch, _, _ in plane.leases(run.run_id)] == [1]


@pytest.mark.parametrize("status", [S.STOPPING, S.COMPLETED, S.CANCELLED, S.FAILED])
def test_a_run_that_has_ended_or_is_ending_is_not_changed(plane, service, status):
    run = Led(plane, status)
    plane.expire(run.run_id, since_s=LOST_S)
    before = run.row

    asked = service.stop_run(run.run_id)

    assert (asked.by_us, asked.run.status, run.row) == (False, status, before)
    assert (plane.events(run.run_id), len(plane.leases(run.run_id))) == ([], 1)


def test_a_run_that_does_not_exist_is_named(service):
    with pytest.raises(UsageError, match="there is no run nowhere"):
        service.stop_run("nowhere")


def test_a_second_request_publishes_no_second_stop(plane, service):
    run = Led(plane, S.RUNNING)
    plane.expire(run.run_id, since_s=LOST_S)
    first = service.stop_run(run.run_id, by="me")

    second = service.stop_run(run.run_id, by="her")

    assert len(stops(plane, run.run_id)) == 1
    assert (second.by_us, second.run.reason) == (False, first.run.reason)


@pytest.mark.parametrize("kind", ["drop_reply", "truncate", "reset", "http_status", "expire_session"])
@pytest.mark.parametrize("statement", ["INSERT INTO RUN_LEASES", "UPDATE RUN_STATUS", "INSERT INTO RUN_CONTROL_EVENTS"])
def test_a_lost_answer_changes_nothing(plane, service, statement, kind):
    run = Led(plane, S.RUNNING)
    plane.expire(run.run_id, since_s=LOST_S)
    plane.server.fault(match=f"^{statement}", kind=kind, count=1)

    service.stop_run(run.run_id)

    assert stored(plane, run.run_id)[0] == S.CANCELLING
    assert len(stops(plane, run.run_id)) == 1


def test_the_last_statements_of_a_lost_leader_are_waited_for(plane):
    run = Led(plane, S.RUNNING)
    plane.expire(run.run_id, since_s=2.0)
    clock = Aging(plane, run.run_id)
    service = OrchestratorService(plane.place, environ=plane.environ, retries=retries(clock=clock))

    service.stop_run(run.run_id)

    assert 0.0 < clock.waited_s <= TAKEOVER_MARGIN_S
    assert (stored(plane, run.run_id)[0], len(stops(plane, run.run_id))) == (S.CANCELLING, 1)


def test_the_drain_is_as_short_as_the_scenario_says(plane, service):
    scenario = read_scenario(f"{MINIMAL}timing: {{drain_interrupt: 7s}}\n")
    run_id = plane.new_run(scenario_config=freeze(scenario))

    service.stop_run(run_id)

    assert [stop.drain_timeout_s for stop in stops(plane, run_id)] == [7.0]


@pytest.mark.parametrize(("role", "waits"), [(" stop", True), ("", False)])
def test_a_leader_waits_for_a_process_that_only_stops_its_run(plane, role, waits):
    run_id, clock = plane.new_run(), None
    assert claim(plane.session, retries(), run_id, new_owner() + role, STOP_TTL_S) is not None
    clock = Aging(plane, run_id)
    leadership = Leadership(
        run_id,
        LeaseTimes(),
        plane.session,
        retries(clock=clock),
        lease_session=lambda: plane.open("lease"),
        clock=clock,
    )

    if waits:
        leadership.claim()
        assert (leadership.term.epoch, clock.waited_s > STOP_TTL_S) == (2, True)
        leadership.resign(releasing=True)
    else:
        with pytest.raises(Busy):
            leadership.claim()


def test_the_next_leader_finds_the_run_cancelled(plane, service):
    run_id = plane.new_run()

    service.stop_run(run_id)

    row = run_status.read(plane.session, run_id)
    assert row is not None
    assert (plane.claim(run_id).epoch, row.status, row.stored_status) == (2, S.CANCELLING, S.CANCELLING)
