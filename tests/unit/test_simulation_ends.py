"""Simulated runs whose last heartbeats do not arrive, or whose orchestrator cannot log in again: results count."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.control.session import NamedQuery
from loadgen.errors import ConnectFailed
from loadgen.model.run import Phase, RunStatus, WorkerStatus
from loadgen.snowflake.settings import CONTROL_MARGIN_S, CONTROL_STATEMENT_S
from orchestrator.service import FinishedRun, OrchestratorService
from tests.unit.simulation.histories import quiet
from tests.unit.simulation.processes import SessionNetwork
from tests.unit.simulation.scenarios import Kind
from tests.unit.simulation.tables import STATUS
from tests.unit.simulation.wires import RequestOutcome
from tests.unit.simulation.world import World

__all__ = ["quiet"]

pytestmark = pytest.mark.simulation

CALM_LATENCY_S = 0.3  # the latency of a control statement


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


def reject_logins(monkeypatch: pytest.MonkeyPatch, rejects: Callable[[str, str], bool]) -> None:
    """Reject the logins of the first orchestrator before these statements, by role and name."""
    sent = SessionNetwork.note

    def note(network: SessionNetwork, query: NamedQuery) -> None:
        sent(network, query)
        if network._process.name == "orchestrator-0" and rejects(network._role, query.name):
            raise ConnectFailed("the token was rejected: it is invalid or expired")

    monkeypatch.setattr(SessionNetwork, "note", note)
