"""One experiment from its file to its report. Its measurements are ordinary runs.

It runs in the main thread. Statements on the control plane and on warehouses are executed in threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.setup.installer import ensure_tables
from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.report.experiment import ExperimentStatus
from loadgen.scenario.experiment import LoadedExperiment
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import portable_text
from loadgen.snowflake.session import RetryPolicy
from loadgen.threads import Service, run_in_thread
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from orchestrator.experiment.blocks import ArmRun, ExperimentActions, ExperimentLoop
from orchestrator.experiment.state import ControlAccess, ExperimentStore, find_experiment
from orchestrator.experiment.warehouse_settings import ArmWarehouseSettings, worst_cases
from orchestrator.job import JobRoles, RunJob
from orchestrator.run_folder import make_run_folder, make_runs_folder, new_run_id, write_experiment_files

TICK_S = 0.1


@dataclass(slots=True, kw_only=True)
class ExperimentJob:
    """Call open(), then run()."""

    loaded: LoadedExperiment
    scenarios: Mapping[str, Scenario]  # of the arms, with their number of workers resolved
    runs_folder: Path
    control: ControlAccess
    clock: Clock
    roles: JobRoles
    follow: Callable[[RunJob, ExperimentStatus], dict[str, Any]]  # runs a measurement, and returns its summary
    say: Callable[[str], None]  # progress
    warn: Callable[[str], None]
    wait: bool = False  # wait for another run on the same warehouse
    _store: ExperimentStore | None = None
    _begun: bool = False  # after its first run the experiment waits for a warehouse that another run uses

    def open(self, resume: str | None) -> None:
        """Create the experiment, or find the one to `resume`."""
        make_runs_folder(self.runs_folder)
        retries = RetryPolicy(stop=threading.Event(), clock=self.clock)
        run_in_thread(lambda: ensure_tables(self._place, retries), name="setup")
        if resume is not None:
            self._store = ExperimentStore(self.control, find_experiment(self.control, resume, self.loaded))
        else:
            experiment_id = new_run_id(self.loaded.file.name, self.clock.utc_now())
            self._store = ExperimentStore(self.control, experiment_id)
            self._store.create(self.loaded)
        self.say(f"experiment {self._store.experiment_id}")

    def run(self, received: Sequence[int]) -> dict[str, Any]:
        """Measure block by block, and write the files. Signals that are `received` meanwhile end the current step."""
        store = self._store
        assert store is not None, "open() comes first"

        def print_progress(text: str) -> None:
            self.say(printable(f"experiment {store.experiment_id}: {text}", 500))

        settings = ArmWarehouseSettings(
            self.loaded, self.scenarios, self._place, clock=self.clock, tell=print_progress, wait=self.wait
        )
        with store.leading(self._place, clock=self.clock):
            assert store.lease is not None
            epoch = store.lease.epoch
            actions = ExperimentActions(
                measure=self._measure,
                set_up=lambda arm: stoppable(
                    lambda stop: settings.apply(arm, store.experiment_id, epoch, stop), received
                ),
                restore=lambda: stoppable(settings.restore, received),
                worst_case=lambda: run_in_thread(lambda: worst_cases(self.loaded, self.scenarios), name="settings"),
                pause=lambda seconds: self._pause(seconds, received),
                print_line=print_progress,
                clock=self.clock,
            )
            result = ExperimentLoop(self.loaded, self.scenarios, store, actions).run()
            folder = self.runs_folder / store.experiment_id
            make_run_folder(folder)
            write_experiment_files(folder, result, self.warn)
        return result

    @property
    def _place(self) -> ControlPlaneLocation:
        return ControlPlaneLocation.of_scenario(next(iter(self.scenarios.values())))

    def _measure(self, arm: str, scenario: Scenario, status: ExperimentStatus) -> ArmRun:
        job = RunJob(
            scenario=scenario,
            folder=self.loaded.folder,
            runs_folder=self.runs_folder,
            clock=self.clock,
            roles=self.roles,
            text=portable_text(self.loaded.arms[arm]),
            wait=self.wait or self._begun,
        )
        self._begun = True
        return ArmRun(summary=self.follow(job, status), record=job.record)

    def _pause(self, seconds: float, received: Sequence[int]) -> int | None:
        """Wait. Returns the first signal that was received, if any."""
        never, until_ns = threading.Event(), self.clock.monotonic_ns() + round(seconds * NS_PER_S)
        while not received and self.clock.monotonic_ns() < until_ns:
            self.clock.wait(never, TICK_S)
        return received[0] if received else None


def stoppable(action: Callable[[threading.Event], None], received: Sequence[int]) -> None:
    """Run `action` in a thread. A signal sets its event, and becomes the exit code of the error that follows. Earlier
    signals do not count: settings are also restored after a signal."""
    before, stop, done = len(received), threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(TICK_S):
            if len(received) > before:
                stop.set()

    Service("signals", watch, stopping=done).start()
    try:
        run_in_thread(lambda: action(stop), name="settings")
    except LoadgenError as error:
        if len(received) > before:
            error.exit_code = 128 + received[before]
        raise
    finally:
        done.set()
