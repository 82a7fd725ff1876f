"""One run from its scenario to its report, in a thread: the part of `loadgen run` that talks to Snowflake.

TakeoverJob continues a run that another process has begun.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from loadgen.clock import Clock
from loadgen.control.lease import LeaseTimes
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.setup.installer import ensure_tables
from loadgen.control.tables import run_leases, run_status
from loadgen.errors import LoadgenError, RunFailed, cannot_write
from loadgen.log import logged_to, printable
from loadgen.model.run import is_id
from loadgen.prepare.prepare import PreparationProgress, deal_replay, prepare_scenario, read_pools
from loadgen.prepare.session import (
    PreparationStopped,
    PrepareSession,
    cancel_running,
    opener,
    server_version,
    target_profile,
)
from loadgen.report.records import RunRecord
from loadgen.report.summary import with_unstored
from loadgen.results.run_record import read_record
from loadgen.results.run_snapshot import RunSnapshot
from loadgen.scenario.frozen import secrets_in, thaw
from loadgen.scenario.model import EMBEDDED, Scenario
from loadgen.scenario.settings import EmbeddedSettings, SpawnerKind
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from loadgen.snowflake.session import OpenConnection, RetryPolicy
from loadgen.threads import exit_code_after
from loadgen.values import dataclass
from orchestrator.recover import leaderless_run_on, recover_orphans
from orchestrator.run_environment import TargetInfo
from orchestrator.run_folder import (
    LOGS,
    SPOOL,
    make_run_folder,
    make_runs_folder,
    new_run_id,
    remove_if_empty,
    remove_run_folder,
    write_run_files,
    write_summary,
)
from orchestrator.service import Disturbances, FinishedRun, OrchestratorService
from orchestrator.spawn.containers import (
    START_PART,
    AdoptedContainers,
    ContainerSpawner,
    job_opener,
    require_container_settings,
    runs_containers,
)
from orchestrator.spawn.local import AdoptedWorkers, Entry, ExternalSpawner, LocalSpawner, SubprocessSpawner
from orchestrator.spawn.spawner import Spawner, worker_environment
from orchestrator.upload import SpoolAccess
from orchestrator.warehouse import (
    FINAL_CHECK_ATTEMPTS,
    TargetWarehouse,
    WarehouseWait,
    exclusive_warehouse,
    held_by_run_only,
    limited_cost,
    require_visible_cost,
)

LOG_FILE = "loadgen.log"
NOT_ALONE = "another run may have used the warehouse: the lease on it was lost, or another run shares it"
RESULT_FOLDER = "orchestrator"  # in the spool, beside the folders of workers


class SetWarehouseModel(Protocol):
    """Sets the model of a warehouse of the embedded server while a block runs. Yields a function that returns a
    sentence if the model has changed meanwhile."""

    def __call__(
        self, address: str, warehouse: str | None, model: Mapping[str, Any], *, begun: bool
    ) -> AbstractContextManager[Callable[[], str | None]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRoles:
    """Functions of other roles that a job needs. The command line passes them in: it may import all roles."""

    worker_entry: Entry
    warehouse_model: SetWarehouseModel
    spool: SpoolAccess
    user: str  # named in the reason of runs that the job recovers
    show: Callable[[str], None]  # prints a line for the user, also when progress is not shown


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What the job is doing, in words, and the newest progress of the preparation or snapshot of the run."""

    doing: str
    run_id: str | None = None
    progress: PreparationProgress | None = None
    snapshot: RunSnapshot | None = None


@dataclass(slots=True, kw_only=True)
class RunJob:
    """One run. `now` is replaced as a whole; result() may be called once `done` is set."""

    scenario: Scenario  # with its number of workers resolved
    folder: Path  # of the scenario file, with the files of value pools
    runs_folder: Path
    clock: Clock
    roles: JobRoles
    text: str | None = None  # of the scenario, as it was read
    wait: bool = False  # wait for another run on the same warehouse
    share: bool = False  # share the warehouse with other runs
    now: JobStatus = field(default_factory=lambda: JobStatus(doing="connecting"))
    done: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)  # set by an interrupt before the run exists
    output: Path | None = None
    record: RunRecord | None = None  # for the reports, once the run has ended
    taken_over: str | None = None  # id of the run that is taken over
    _preparing: PrepareSession | None = None  # its statement is cancelled by the second signal
    _service: OrchestratorService | None = None
    _finished: FinishedRun | None = None
    _written: Mapping[str, Any] | None = None  # the summary in the folder of the run
    _error: BaseException | None = None

    def start(self) -> None:
        # A daemon thread: a program that abandons it must not wait for the driver's time limits.
        threading.Thread(target=self._run, name="orchestrator", daemon=True).start()

    def interrupt(self, number: int) -> None:
        """Request the end because of signal `number`: gracefully the first time, at once the second time."""
        is_second = self.stop.is_set()
        self.stop.set()  # before the look at the service: its owner sets the service before it looks at `stop`
        if self._service is not None:
            self._service.interrupt(number)
        elif is_second and self._preparing is not None:  # a separate thread: the login may take long
            cancel = partial(cancel_running, self._preparing, self._open_target())
            threading.Thread(target=cancel, name="prepare-cancel", daemon=True).start()

    def result(self, received: Sequence[int] = ()) -> FinishedRun:
        """The run that has ended. Raises the error that ended the job; its exit code is that of the first signal that
        was `received`, if the run did not exist yet: such a run has not failed."""
        if self._error is not None:
            if received and self.output is None and isinstance(self._error, LoadgenError):
                self._error.exit_code = exit_code_after(received)
            raise self._error
        assert self._finished is not None, "the job has not ended"
        return self._finished

    # --- the files of a run that has ended, written by the main thread ----------------------------------------------

    def write_summary(self) -> None:
        """Write the summary before it is compared with a baseline: a failure there must not lose it. A failure to write
        it is shown by write_files(), which writes it again."""
        assert self.output is not None
        with suppress(LoadgenError):
            write_summary(self.output, self.result().summary)
            self._written = self.result().summary

    def write_files(self, summary: Mapping[str, Any], warn: Callable[[str], None]) -> list[str]:
        """Write the reports with the judged summary, and the summary if it is not written as it is. Returns the names
        of files that are missing."""
        assert self.output is not None
        return write_run_files(self.output, summary, self.record, warn, written=self._written)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._finished = self._steps()
        except BaseException as error:  # handed to the main thread, which raises it
            if self._finished is None:
                self._error = error
            else:  # the run has its verdict
                self.roles.show(f"warning: {error}")
        finally:
            self.done.set()

    def _steps(self) -> FinishedRun:
        scenario, place = self.scenario, ControlPlaneLocation.of_scenario(self.scenario)
        make_runs_folder(self.runs_folder)
        retries = RetryPolicy(stop=self.stop, clock=self.clock)
        require_container_settings(scenario, place)
        ensure_tables(place, retries)
        if scenario.guardrails.max_credits is not None:
            require_visible_cost(scenario)
        recoverable_soon = self._end_orphans(place, retries)
        with self._on_warehouse(place) as disturbances:
            finished = self._prepare_and_run(place, disturbances)
        if recoverable_soon and finished.unstored is None:  # runs whose leader ended too recently
            self._end_orphans(place, RetryPolicy(stop=self.stop, attempts=1, clock=self.clock))
        return finished

    def _prepare_and_run(self, place: ControlPlaneLocation, disturbances: Disturbances) -> FinishedRun:
        scenario = self.scenario
        self.now = JobStatus(doing="preparing tables")
        with limited_cost(scenario, self.stop, self.clock) as meter, closing(self._target_session()) as session:
            prepare_scenario(
                session, scenario, drop=False, force=False, progress=self._tell, stop=self.stop, clock=self.clock
            )
            scenario, recorded = deal_replay(scenario, self.folder, self.stop)
            pools = read_pools(session, scenario, self.folder) | recorded
            circumstances = self._target_info(session)
        service = OrchestratorService(
            place,
            lambda run_id: self._spawner(place, run_id),
            disturbances=disturbances,
            circumstances=circumstances,
            clock=self.clock,
            waits=self._run_waits,
            meter=meter,
        )
        self._service = service  # receives interrupts from now on; an earlier one ends the job here
        if self.stop.is_set():
            raise PreparationStopped("stopped before the run began")
        run_id = new_run_id(scenario.name, self.clock.utc_now())
        output = self.runs_folder / run_id
        make_run_folder(output, self.text)
        try:
            service.create_run(scenario, pools, run_id=run_id)
        except BaseException:
            remove_run_folder(output)
            raise
        self.output = output
        self.now = JobStatus(doing="starting workers", run_id=run_id)
        with logged_to(self.output / LOG_FILE):
            finished = service.start_run(run_id, lambda snapshot: self._show_snapshot(run_id, snapshot))
            return self._reported(place, finished)

    def _target_session(self) -> PrepareSession:
        self._preparing = PrepareSession(self._open_target(), stop=self.stop, clock=self.clock)
        return self._preparing

    def _open_target(self) -> OpenConnection:
        return opener(target_profile(self.scenario, None), self.scenario)

    def _target_info(self, session: PrepareSession) -> TargetInfo:
        return TargetInfo(server=server_version(session), shared_warehouse=self.share)

    def _reported(self, place: ControlPlaneLocation, finished: FinishedRun) -> FinishedRun:
        """Make the report of a run that has its verdict. A failure is shown as a warning; the verdict is kept."""
        self._finished = finished
        assert self.output is not None
        spool = self.output / SPOOL / finished.run_id
        if finished.unstored is None:
            self._read_record(place, finished.run_id)
        else:
            try:
                self.roles.spool.keep_result(spool / RESULT_FOLDER, finished.run_id, finished.unstored)
            except OSError as error:
                self.roles.show(f"warning: {cannot_write(spool, error, 'summary.json has the result.')}")
            later = f"`loadgen upload {finished.run_id}`, then `loadgen runs recover`"
            self.roles.show(f"warning: the control plane did not accept the result: {later}")
        here = {name.rpartition("-")[0] or name: rows for name, rows in self.roles.spool.contents(spool).items()}
        remove_if_empty(self.output / SPOOL)
        summary = with_unstored(finished.summary, {**finished.summary.get("unstored", {}), **here})
        return replace(finished, summary=summary)

    def _read_record(self, place: ControlPlaneLocation, run_id: str) -> None:
        """Read the data of the reports from the tables."""
        self.now = JobStatus(doing="writing the report", run_id=run_id)
        session = ControlSession(place, role="report")
        try:
            # A separate event: the stop event of the run may be set, which would prevent retries.
            retries = RetryPolicy(stop=threading.Event(), clock=self.clock, attempts=3)
            self.record = read_record(session, retries, run_id)
        except Exception as error:  # also a bug
            self.roles.show(f"warning: no report was made: {error}; `loadgen report {run_id}` makes it later")
        finally:
            session.close()

    def _end_orphans(self, place: ControlPlaneLocation, retries: RetryPolicy) -> bool:
        """End runs whose orchestrator was lost. Returns True if some run can be ended later."""
        session = ControlSession(place, role="recover")
        try:
            return recover_orphans(session, retries, by=self.roles.user, show=self.roles.show)
        finally:
            session.close()

    @contextmanager
    def _on_warehouse(self, place: ControlPlaneLocation) -> Iterator[Disturbances]:
        """Hold the warehouse during the block. Yields a function that returns what has disturbed the run there so far.

        The block includes the preparation: its statements would disturb a run that measures on the warehouse. A run
        that shares the warehouse sets the model first: if the model is rejected, the warehouse is not shared. A run
        that needs the warehouse exclusively may have to wait, and must not change the model meanwhile.
        """
        timing = self.scenario.timing
        times = LeaseTimes(ttl_s=timing.lease_ttl_s, renew_s=timing.lease_renew_s, margin_s=timing.lease_margin_s)
        warehouse = TargetWarehouse.of_profile(target_profile(self.scenario, None))
        retries = RetryPolicy(stop=self.stop, clock=self.clock)
        queue = WarehouseWait(
            wait=self.wait,
            share=self.share,
            stop=self.stop,
            on_wait=self._waits,
            leaderless=lambda session: leaderless_run_on(session, retries, partial(_uses, warehouse), self.taken_over),
        )
        lease = exclusive_warehouse(warehouse, self.scenario.name, place, times, queue, clock=self.clock)
        model = self._warehouse_model()
        with ExitStack() as stack:
            if self.share:
                model_changed, alone = stack.enter_context(model), stack.enter_context(lease)
            else:
                alone, model_changed = stack.enter_context(lease), stack.enter_context(model)
            yield lambda: [*([] if alone() else [NOT_ALONE]), *filter(None, [model_changed()])]

    def _warehouse_model(self) -> AbstractContextManager[Callable[[], str | None]]:
        """Set the model of the warehouse on the embedded server. Elsewhere do nothing."""
        if self.scenario.connection != EMBEDDED:
            return nullcontext(lambda: None)
        named = target_profile(self.scenario, None).text("warehouse")
        name = None if named is None else Identifier.parse(named).sql
        begun = self.taken_over is not None
        wanted = self.scenario.embedded
        model = {} if wanted == EmbeddedSettings() else {"slots": wanted.slots, "service_time": wanted.service_time}
        return self.roles.warehouse_model(os.environ[EMBEDDED_ADDRESS], name, model, begun=begun)

    def _spawner(self, place: ControlPlaneLocation, run_id: str) -> Spawner:
        assert self.output is not None
        variables, logs = worker_environment(self.scenario, place), self.output / LOGS
        if self.scenario.spawner.kind is SpawnerKind.EXTERNAL:
            secrets = secrets_in(self.scenario)
            return ExternalSpawner(variables, self.scenario.timing.registration_s, self.roles.show, secrets)
        if runs_containers(self.scenario):
            limit_s = self.scenario.timing.registration_s * START_PART
            opener = job_opener(self.scenario, place, run_id, variables, clock=self.clock)
            return ContainerSpawner(opener, logs, clock=self.clock, start_limit_s=limit_s)
        environment = {**os.environ, **variables, self.roles.spool.variable: str((self.output / SPOOL).resolve())}
        if self.scenario.spawner.kind is SpawnerKind.SUBPROCESS:
            return SubprocessSpawner(environment, logs)
        return LocalSpawner(self.roles.worker_entry, environment, logs)

    def _waits(self, why: str) -> None:
        self.now = JobStatus(doing=f"waiting: {why}")

    def _run_waits(self, why: str) -> None:
        self.now = JobStatus(doing=why, run_id=self.now.run_id)

    def _tell(self, progress: PreparationProgress) -> None:
        self.now = JobStatus(doing="preparing tables", progress=progress)

    def _show_snapshot(self, run_id: str, snapshot: RunSnapshot) -> None:
        self.now = JobStatus(doing=snapshot.run.status.value, run_id=run_id, snapshot=snapshot)


def _uses(warehouse: TargetWarehouse, scenario: Scenario) -> bool:
    try:
        return TargetWarehouse.of_profile(target_profile(scenario, None)) == warehouse
    except LoadgenError:  # a connection that is not configured on this machine
        return False


class RunAlreadyEnded(LoadgenError):
    """Another process has ended the run while this process waited for the warehouse."""

    exit_code = 75
    remedy = "`loadgen runs show` has its result."


@dataclass(slots=True, kw_only=True)
class TakeoverJob(RunJob):
    """Continues a run that another process has begun."""

    run_id: str
    place: ControlPlaneLocation

    def _steps(self) -> FinishedRun:
        self.now = JobStatus(doing="taking over", run_id=self.run_id)
        with self._on_warehouse(self.place) as disturbances:
            with closing(self._target_session()) as session:
                circumstances = self._target_info(session)
            service = OrchestratorService(
                self.place,
                lambda run_id: self._spawner(self.place, run_id),
                disturbances=lambda: self._disturbances(disturbances),
                circumstances=circumstances,
                clock=self.clock,
                waits=self._run_waits,
            )
            run = service.get_run_status(self.run_id)
            if run is None or run.status.is_terminal:
                raise RunAlreadyEnded(f"run {self.run_id} has ended meanwhile")
            self._service = service
            self.output = self.runs_folder / self.run_id
            make_run_folder(self.output)
            with logged_to(self.output / LOG_FILE):
                finished = service.take_over(self.run_id, lambda snapshot: self._show_snapshot(self.run_id, snapshot))
                return self._reported(self.place, finished)

    def _disturbances(self, since_takeover: Disturbances) -> list[str]:
        """What has disturbed the run on its warehouse, also before the takeover: the lost leader cannot tell."""
        found = list(since_takeover())
        return found if NOT_ALONE in found or self._was_alone() else [NOT_ALONE, *found]

    def _was_alone(self) -> bool:
        """Whether the stored leases show that no other run used the warehouse. False also if they cannot be read."""
        key = TargetWarehouse.of_profile(target_profile(self.scenario, None)).key
        retries = RetryPolicy(stop=threading.Event(), attempts=FINAL_CHECK_ATTEMPTS, clock=self.clock)
        try:
            with closing(ControlSession(self.place, role="warehouse-lease")) as session:
                run = retries.call(lambda: run_status.read(session, self.run_id))
                held = retries.call(lambda: run_leases.every(session, key))
                led = retries.call(lambda: run_leases.every(session, self.run_id))
        except LoadgenError:
            return False
        if run is None or run.start_time is None:
            return run is not None  # nothing was measured
        return held_by_run_only(held, led, self.scenario.name, run.created_at, run.start_time)

    def _spawner(self, place: ControlPlaneLocation, run_id: str) -> Spawner:
        """A spawner for workers that are running already."""
        assert self.output is not None
        if runs_containers(self.scenario):
            opener = job_opener(self.scenario, place, run_id, None, clock=self.clock)
            return AdoptedContainers(opener, self.output / LOGS, clock=self.clock)
        return AdoptedWorkers()


def takeover_job(
    place: ControlPlaneLocation, run_id: str, runs_folder: Path, roles: JobRoles, *, clock: Clock
) -> TakeoverJob:
    """The job that takes over this run, with the variables of this machine. Calls the driver."""
    if not is_id(run_id):  # it comes from a row, and becomes the name of a folder
        raise RunFailed(f"run {printable(run_id, 100)!r} cannot be taken over: its id is not a valid folder name")
    with closing(ControlSession(place, role="recover")) as session:
        text = run_status.read_config(session, run_id)
    if text is None:
        raise RunFailed(f"there is no run {run_id}")
    return TakeoverJob(
        scenario=thaw(text, os.environ),
        folder=Path(),
        runs_folder=runs_folder,
        clock=clock,
        roles=roles,
        wait=True,  # for the lease of the lost leader on the warehouse
        run_id=run_id,
        taken_over=run_id,
        place=place,
    )
