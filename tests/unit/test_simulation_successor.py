"""Simulated runs whose paused leader continues after another process has taken them over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import LoadgenError
from loadgen.model.run import RunStatus
from loadgen.results.run_snapshot import RunSnapshot
from orchestrator.service import FinishedRun, OrchestratorService
from tests.unit.simulation.histories import quiet
from tests.unit.simulation.processes import OrchestratorProcess
from tests.unit.simulation.scenarios import QUICK, Kind
from tests.unit.simulation.world import World

__all__ = ["quiet"]

pytestmark = pytest.mark.simulation

PAUSED_S = (20.0, 70.0)
NOTICED_S = 5.0  # a tick, and a few statements


@pytest.mark.parametrize("elsewhere", [True, False], ids=["remote workers", "local workers"])
def test_a_leader_that_was_replaced_notices_it_at_once_names_its_successor_and_ends_no_worker(
    elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, float]] = []
    errors: list[LoadgenError] = []
    tell, start = OrchestratorProcess._told, OrchestratorService.start_run

    def told(process: OrchestratorProcess, snapshot: RunSnapshot) -> None:
        shown.append((process.name, process.world.scheduler.now_s))
        tell(process, snapshot)

    def start_run(service: OrchestratorService, *words: Any) -> FinishedRun:
        try:
            return start(service, *words)
        except LoadgenError as error:
            errors.append(error)
            raise

    monkeypatch.setattr(OrchestratorProcess, "_told", told)
    monkeypatch.setattr(OrchestratorService, "start_run", start_run)
    monkeypatch.setattr(World, "may_lead", lambda *_: True)  # a second process, while the first is paused
    world = World(1, str(tmp_path), kind=Kind.FLAT, calm_latency_s=0.3)
    world.elsewhere = elsewhere
    load = replace(world.scenario.load, warmup_s=0.0, duration_s=150.0)
    world.scenario = replace(world.scenario, load=load, timing=replace(QUICK, orchestrator_lost_s=120.0))
    world.scheduler.at(PAUSED_S[0], lambda: world.orchestrators[0].pause(PAUSED_S[1] - PAUSED_S[0]))

    history = world.run()

    assert (history.terms, history.status) == (2, RunStatus.COMPLETED), history.summary
    assert history.summary["delivered"]["fraction"] > 0.99, history.summary["validity"]
    assert max(at_s for name, at_s in shown if name == "orchestrator-0") < PAUSED_S[1] + NOTICED_S
    (error,) = errors
    assert "is led by another process now: process" in str(error)
    assert error.remedy == f"`loadgen watch {world.run_id}` shows it."
