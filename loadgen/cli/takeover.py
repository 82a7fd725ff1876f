"""Leading a run on that lost its leader: the same job as `loadgen run`, from the middle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.cli.away import run_in_thread
from loadgen.cli.options import embedded_server_if_needed, resolve_target
from loadgen.cli.run import follow_run
from loadgen.cli.run_job import LOG_FILE, JobStatus, RunJob
from loadgen.clock import SystemClock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_status
from loadgen.errors import LoadgenError, RunFailed
from loadgen.log import logged_to, printable
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import Scenario, SpawnerKind
from loadgen.worker.arguments import is_id
from orchestrator.run_folder import LOGS, make_run_folder
from orchestrator.service import FinishedRun, OrchestratorService
from orchestrator.spawn.spawner import Spawner
from orchestrator.spawn.spcs_service import SpcsJob
from orchestrator.spawn.takeover import AdoptedContainers, AdoptedWorkers


class RunAlreadyEnded(LoadgenError):
    """Somebody else has led the run to its end while we waited for its warehouse."""

    exit_code = 75
    remedy = "`loadgen runs show` has its result."


@dataclass(slots=True, kw_only=True)
class TakeoverJob(RunJob):
    """One run that somebody else began."""

    run_id: str
    place: ControlPlaneLocation

    def _steps(self) -> FinishedRun:
        self.now = JobStatus(doing="taking over", run_id=self.run_id)
        with self._on_warehouse(self.place) as disturbances:
            with closing(self._target_session()) as session:
                circumstances = self._circumstances(session)
            service = OrchestratorService(
                self.place,
                lambda run_id: self._spawner(self.place, run_id),
                disturbances=disturbances,
                circumstances=circumstances,
                clock=self.clock,
            )
            run = service.get_run_status(self.run_id)
            if run is None or run.status.is_terminal:
                raise RunAlreadyEnded(f"run {self.run_id} has ended meanwhile")
            self._service = service
            self.output = self.runs_folder / self.run_id
            make_run_folder(self.output)
            with logged_to(self.output / LOG_FILE):
                finished = service.take_over(self.run_id, lambda tick: self._saw(self.run_id, tick))
                return self._reported(self.place, finished)

    def _spawner(self, place: ControlPlaneLocation, run_id: str) -> Spawner:
        """Nobody is started: the workers are there."""
        assert self.output is not None
        if self.scenario.spawner.kind is SpawnerKind.SPCS:
            job = SpcsJob.of_scenario(self.scenario, run_id, told={})  # its name is made of the run's
            return AdoptedContainers(place, job, self.output / LOGS, clock=self.clock)
        return AdoptedWorkers()


def take_over(run_id: str, place: Mapping[str, str | None], output_dir: Path) -> dict[str, Any]:
    """Lead the run to its end; its summary."""
    if not is_id(run_id):  # of a row; it becomes the name of a folder
        raise RunFailed(f"the run id {printable(run_id, 100)!r} is no name for a folder: the run cannot be led on")
    aim = resolve_target(
        None, place["connection"], **{name: value for name, value in place.items() if name != "connection"}
    )
    with embedded_server_if_needed(aim.place.connection):
        scenario = run_in_thread(lambda: _scenario(aim.place, run_id), name="take-over")
        job = TakeoverJob(
            scenario=scenario,
            folder=Path(),
            runs_folder=output_dir,
            clock=SystemClock(),
            wait=True,  # for the lease that the lost leader had on the warehouse
            run_id=run_id,
            taken_over=run_id,
            place=aim.place,
        )
        with embedded_server_if_needed(
            scenario.connection
        ):  # the warehouse under test may be there while the tables are elsewhere
            return follow_run(job, quiet=False)


def _scenario(place: ControlPlaneLocation, run_id: str) -> Scenario:
    session = ControlSession(place, role="recover")
    try:
        text = run_status.read_config(session, run_id)
    finally:
        session.close()
    if text is None:
        raise RunFailed(f"there is no run {run_id}")
    return thaw(text, os.environ)
