"""Simulated runs whose last heartbeats do not arrive, or whose orchestrator cannot log in again: results count."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.control.session import NamedQuery
from loadgen.errors import ConnectFailed
from loadgen.model.run import Phase, RunStatus, WorkerStatus
from loadgen.scenario.model import OnWorkerLoss
from loadgen.scenario.settings import TimingSettings
from loadgen.snowflake.settings import CONTROL_MARGIN_S, CONTROL_STATEMENT_S
from orchestrator.service import FinishedRun, OrchestratorService
from tests.unit.simulation.histories import quiet
from tests.unit.simulation.processes import SessionNetwork, WorkerProcess
from tests.unit.simulation.scenarios import QUICK, Kind
from tests.unit.simulation.tables import STATUS
from tests.unit.simulation.truth import plan_zero_s
from tests.unit.simulation.wires import RequestOutcome
from tests.unit.simulation.world import World

__all__ = ["quiet"]

pytestmark = pytest.mark.simulation

CALM_LATENCY_S = 0.3  # the latency of a control statement
VERY_SLOW_S = 5.0
LATE_MAX_S = 2.0  # by which a worker knows the time of the plan then


def test_a_run_whose_last_heartbeats_do_not_arrive_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of its workers are stored, wherever these run."""
    answered = SessionNetwork.outcome

    def outcome(network: SessionNetwork, *, changes: bool) -> RequestOutcome:
        world = network._world
        is_last = network._role.endswith("heartbeat") and world.tables.status is RunStatus.STOPPING
        return RequestOutcome.AWAY if is_last else answered(network, changes=changes)

    monkeypatch.setattr(SessionNetwork, "outcome", outcome)
    places = set()
    for seed in range(4):
        world = World(seed, str(tmp_path), kind=Kind.FLAT, calm_latency_s=CALM_LATENCY_S)
        history = world.run()
        places.add(world.elsewhere)
        assert history.status is RunStatus.COMPLETED, f"seed {seed}: {history.summary}"
        assert history.valid or history.forbids, f"seed {seed}: {history.summary['validity']}"
    assert places == {True, False}


def test_a_heartbeat_that_hangs_at_the_end_does_not_prevent_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, hung = SessionNetwork.outcome, set()

    def outcome(network: SessionNetwork, *, changes: bool) -> RequestOutcome:
        world, name = network._world, network._process.name
        ends = network._role.endswith("heartbeat") and world.tables.status is RunStatus.STOPPING
        if not ends or name in hung:
            return answered(network, changes=changes)
        hung.add(name)
        return RequestOutcome.AWAY

    monkeypatch.setattr(SessionNetwork, "outcome", outcome)
    monkeypatch.setattr(SessionNetwork, "silence_s", lambda _: float(CONTROL_STATEMENT_S + CONTROL_MARGIN_S))
    world = World(1, str(tmp_path), kind=Kind.FLAT, calm_latency_s=CALM_LATENCY_S, workers=2)

    world.run()

    assert len(hung) == 2
    assert {row[STATUS] for row in world.tables.beats.values()} == {WorkerStatus.COMPLETED}


@pytest.mark.parametrize("roles", [("orchestrator",), ("orchestrator", "lease")], ids=" and ".join)
def test_rejected_logins_of_a_leader_for_some_time_end_no_run(
    roles: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is lost, and its token has expired. Workers continue with the plan."""
    world = World(1, str(tmp_path), kind=Kind.FLAT, calm_latency_s=CALM_LATENCY_S)
    rejected: list[float] = []

    def rejects(role: str, _: str) -> bool:
        now_s, started_s = world.scheduler.now_s, world.tables.started_s or math.inf
        is_rejected = role in roles and 2.0 < now_s - started_s < 2.0 + world.scenario.timing.lease_ttl_s
        rejected.extend([now_s] if is_rejected else [])
        return is_rejected

    reject_logins(monkeypatch, rejects)

    history = world.run()

    assert rejected
    assert (world.orchestrators[0].code, history.status, history.valid) == (0, RunStatus.COMPLETED, True)


@pytest.mark.parametrize("refused", ["test_results.append", "run_status.move"])
def test_a_login_that_is_rejected_after_the_verdict_costs_no_verdict(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(1, str(tmp_path), kind=Kind.FLAT, calm_latency_s=CALM_LATENCY_S)
    finished: list[FinishedRun] = []
    finish, begun = OrchestratorService._finish, []

    def kept(*arguments: Any) -> FinishedRun:
        finished.append(finish(*arguments))
        return finished[-1]

    def rejects(role: str, name: str) -> bool:
        is_ending = world.tables.phase is Phase.PROCESSING and name == refused
        begun.extend([name] if is_ending else [])
        return role == "orchestrator" and bool(begun)

    monkeypatch.setattr(OrchestratorService, "_finish", kept)
    reject_logins(monkeypatch, rejects)

    world.run()

    (run,) = finished
    assert (run.summary["verdict"], run.unstored is None) == ("passed", False)


@pytest.mark.parametrize("kind", [Kind.FLAT, Kind.FIND_MAX])
def test_an_orchestrator_that_is_killed_while_it_enriches_costs_no_verdict(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(1, str(tmp_path), kind=kind, calm_latency_s=CALM_LATENCY_S)
    sent, killed = SessionNetwork.note, list[str]()

    def note(network: SessionNetwork, query: NamedQuery) -> None:
        sent(network, query)
        if network._role == "enrich" and not killed:
            killed.append(query.name)
            network._process.kill()

    monkeypatch.setattr(SessionNetwork, "note", note)

    history = world.run()

    assert killed
    assert (history.status, history.summary["verdict"]) == (RunStatus.COMPLETED, "passed")


def test_a_bug_in_the_enrichment_costs_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("an unexpected row")

    monkeypatch.setattr("orchestrator.service.enrich_result", broken)
    world = World(1, str(tmp_path), kind=Kind.FLAT, calm_latency_s=CALM_LATENCY_S)

    history = world.run()

    assert (world.orchestrators[0].code, history.status, history.valid) == (0, RunStatus.COMPLETED, True)


def test_the_stored_result_has_the_enrichment(tmp_path: Path) -> None:
    world = World(1, str(tmp_path), kind=Kind.FLAT, calm_latency_s=CALM_LATENCY_S)

    history = world.run()

    assert history.summary["enrichment"]["status"] == "SKIPPED"


@pytest.mark.parametrize("kind", [Kind.FLAT, Kind.STAGES, Kind.RATE])
def test_a_start_on_a_very_slow_control_plane_is_moved_and_not_cut(kind: Kind, tmp_path: Path) -> None:
    world = World(0, str(tmp_path), kind=kind, calm_latency_s=VERY_SLOW_S)
    world.scenario = replace(world.scenario, timing=TimingSettings())

    history = world.run()

    zero_s = plan_zero_s(world.tables.events)
    assert zero_s is not None
    assert all(worker.joined_s is not None and worker.joined_s < zero_s + LATE_MAX_S for worker in world.workers)
    reasons = history.summary["validity"]["reasons"]
    assert all("away from the planned times" in reason for reason in reasons), reasons
    assert history.status is RunStatus.COMPLETED


def test_a_leader_that_takes_over_names_a_worker_that_was_replaced_before(tmp_path: Path) -> None:
    world = World(1, str(tmp_path), kind=Kind.FLAT, calm_latency_s=CALM_LATENCY_S, workers=2)
    world.elsewhere = True
    load, timing = replace(world.scenario.load, warmup_s=0.0, duration_s=90.0), replace(QUICK, flush_s=2.0)
    world.scenario = replace(world.scenario, load=load, timing=timing, on_worker_loss=OnWorkerLoss.CONTINUE)
    started: list[WorkerProcess] = []
    world.scheduler.at(20.0, lambda: world.workers[0].kill())
    world.scheduler.at(36.0, lambda: started.append(world.start_worker(world.workers[0].order)))
    world.scheduler.at(60.0, lambda: world.orchestrators[0].kill())

    history = world.run()

    assert (history.terms > 1, len(world.workers), world.seen["recovered"]) == (True, 3, 0)
    assert any("worker-0 was replaced" in reason for reason in history.summary["validity"]["reasons"])


def reject_logins(monkeypatch: pytest.MonkeyPatch, rejects: Callable[[str, str], bool]) -> None:
    """Reject the logins of the first orchestrator before these statements, by role and name."""
    sent = SessionNetwork.note

    def note(network: SessionNetwork, query: NamedQuery) -> None:
        sent(network, query)
        if network._process.name == "orchestrator-0" and rejects(network._role, query.name):
            raise ConnectFailed("the token was rejected: it is invalid or expired")

    monkeypatch.setattr(SessionNetwork, "note", note)
