"""The work behind `loadgen run`, in a thread of its own: everything that talks to Snowflake."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from loadgen.cli.common import echo
from loadgen.cli.embedded_server import warehouse_model
from loadgen.cli.run_record import read_record
from loadgen.cli.runs_folder import LOGS, SPOOL, make_run_folder, make_runs_folder, remove_run_folder
from loadgen.cli.who import who
from loadgen.cli.worker_entry import run_child
from loadgen.clock import Clock
from loadgen.control import run_status
from loadgen.control.lease import LeaseTimes
from loadgen.control.migrations import require_current
from loadgen.control.place import ControlPlace
from loadgen.control.retry import Patience
from loadgen.control.session import ControlSession
from loadgen.control.setup import do as set_up
from loadgen.control.setup import look as look_at_setup
from loadgen.errors import LoadgenError, cannot_write
from loadgen.log import LINE_LIMIT, logged_to, printable
from loadgen.prepare.pools import read_pools
from loadgen.prepare.prepare import PreparationStopped, Progress, prepare_scenario
from loadgen.prepare.session import Session
from loadgen.prepare.target import opener, server_version, target_profile
from loadgen.report.record import RunRecord
from loadgen.report.summary import with_unstored
from loadgen.scenario.frozen import secrets_in
from loadgen.scenario.scenario import EMBEDDED, Pin, Scenario, SpawnerKind
from loadgen.snowflake.ident import Ident
from loadgen.snowflake.lookup import EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE
from loadgen.worker.upload import SPOOL_VARIABLE, Unsent, keep, spooled
from orchestrator.recover import deserted, end_orphans
from orchestrator.run_id import new_run_id
from orchestrator.service import Circumstances, Finished, OrchestratorService
from orchestrator.spawn.external import ExternalSpawner
from orchestrator.spawn.local import LocalSpawner
from orchestrator.spawn.spawner import Spawner
from orchestrator.spawn.spcs import SpcsSpawner
from orchestrator.spawn.spcs_job import Job, check_containers
from orchestrator.spawn.subprocess import SubprocessSpawner
from orchestrator.tick import Tick
from orchestrator.warehouse import check_cost
from orchestrator.warehouse_lease import Queue, Warehouse, alone_on

LOG = "loadgen.log"
RESULT_FOLDER = "orchestrator"  # in the spool, beside those of workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Where the job is: what it does in words, and the newest look at the preparation or the run."""

    doing: str
    run_id: str | None = None
    progress: Progress | None = None
    tick: Tick | None = None


@dataclass(slots=True, kw_only=True)
class RunJob:
    """One run. `now` is replaced as a whole; result() may be asked once `done` is set."""

    scenario: Scenario  # with its number of workers settled
    folder: Path  # of the scenario file: value pools from files lie there
    runs_folder: Path
    clock: Clock
    text: str | None = None  # of the scenario, as it was read
    wait: bool = False  # for another run on the same warehouse
    share: bool = False  # the warehouse with other runs
    now: Now = field(default_factory=lambda: Now(doing="connecting"))
    done: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)  # before there is a run to interrupt
    output: Path | None = None
    record: RunRecord | None = None  # for the reports, once the run has ended
    taken_over: str | None = None  # the run whose workers are ours now
    _service: OrchestratorService | None = None
    _finished: Finished | None = None
    _error: BaseException | None = None

    def start(self) -> None:
        # A daemon: when it is given up, the program must not wait for the driver's time limits.
        threading.Thread(target=self._run, name="orchestrator", daemon=True).start()

    def interrupt(self, number: int) -> None:
        """The user wants it to end, by this signal: once in good order, twice at once."""
        self.stop.set()
        if self._service is not None:
            self._service.interrupt(number)

    def result(self) -> Finished:
        if self._error is not None:
            raise self._error
        assert self._finished is not None, "asked before the end"
        return self._finished

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._finished = self._steps()
        except BaseException as error:  # handed to the main thread, which raises it
            if self._finished is None:
                self._error = error
            else:  # it has its verdict
                _show(f"warning: {error}")
        finally:
            self.done.set()

    def _steps(self) -> Finished:
        scenario, place = self.scenario, ControlPlace.of_scenario(self.scenario)
        make_runs_folder(self.runs_folder)
        patience = Patience(stop=self.stop, clock=self.clock)
        if scenario.spawner.kind is SpawnerKind.SPCS:
            check_containers(scenario, place)
        self._ensure_tables(place, patience)
        if scenario.guardrails.max_credits is not None:
            check_cost(scenario)
        self._end_orphans(place, patience)
        with self._alone_on_warehouse(place) as alone:
            return self._prepare_and_run(place, alone)

    def _prepare_and_run(self, place: ControlPlace, alone: Callable[[], bool]) -> Finished:
        scenario = self.scenario
        self.now = Now(doing="preparing tables")
        session = self._target_session()
        try:
            prepare_scenario(
                session, scenario, drop=False, force=False, progress=self._tell, stop=self.stop, clock=self.clock
            )
            pools = read_pools(session, scenario, self.folder)
            circumstances = self._circumstances(session)
        finally:
            session.close()
        service = OrchestratorService(
            place,
            lambda run_id: self._spawner(place, run_id),
            alone=alone,
            circumstances=circumstances,
            clock=self.clock,
        )
        self._service = service  # from here on it hears of interrupts; one that came before ends everything now
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
        self.now = Now(doing="starting workers", run_id=run_id)
        with logged_to(self.output / LOG):
            return self._reported(place, service.start_run(run_id, lambda tick: self._saw(run_id, tick)))

    def _target_session(self) -> Session:
        return Session(opener(target_profile(self.scenario, None), self.scenario), stop=self.stop, clock=self.clock)

    def _circumstances(self, session: Session) -> Circumstances:
        return Circumstances(server=server_version(session), shared_warehouse=self.share)

    def _reported(self, place: ControlPlace, finished: Finished) -> Finished:
        """The run has its verdict, and whatever fails from here on must not cost it."""
        self._finished = finished
        assert self.output is not None
        spool = self.output / SPOOL / finished.run_id
        if finished.unstored is None:
            self._read_record(place, finished.run_id)
        else:
            try:
                keep(spool / RESULT_FOLDER, finished.run_id, Unsent(result=finished.unstored))
            except OSError as error:
                _show(f"warning: {cannot_write(spool, error, 'summary.json has the result.')}")
            later = f"`loadgen upload {finished.run_id}`, then `loadgen runs recover`"
            _show(f"warning: the control plane did not take the result: {later}")
        here = {name.rpartition("-")[0] or name: rows for name, rows in spooled(spool).items()}
        summary = with_unstored(finished.summary, {**finished.summary.get("unstored", {}), **here})
        return replace(finished, summary=summary)

    def _read_record(self, place: ControlPlace, run_id: str) -> None:
        """What the reports are made of, from the tables."""
        self.now = Now(doing="writing the report", run_id=run_id)
        session = ControlSession(place, role="report")
        try:
            # A stop of its own: that of the run may be set, and would end the first repetition.
            patience = Patience(stop=threading.Event(), clock=self.clock, attempts=3)
            self.record = read_record(session, patience, run_id)
        except Exception as error:  # a bug, too
            _show(f"warning: no report was made: {error}; `loadgen report {run_id}` makes it later")
        finally:
            session.close()

    def _ensure_tables(self, place: ControlPlace, patience: Patience) -> None:
        """On the embedded server they are made when missing; elsewhere that is somebody's decision."""
        if place.connection == EMBEDDED:
            setup = look_at_setup(place, patience)
            set_up(setup, patience, lambda _: None)
            return
        session = ControlSession(place, role="run")
        try:
            run_status.server_time(session)  # the first contact is not repeated: a wrong address is told at once
            require_current(session, patience)
        finally:
            session.close()

    def _end_orphans(self, place: ControlPlace, patience: Patience) -> None:
        session = ControlSession(place, role="recover")
        try:
            end_orphans(session, patience, by=who())
        finally:
            session.close()

    @contextmanager
    def _alone_on_warehouse(self, place: ControlPlace) -> Iterator[Callable[[], bool]]:
        """Preparing is work for the warehouse as well: it would disturb whoever measures there."""
        timing = self.scenario.timing
        times = LeaseTimes(ttl_s=timing.lease_ttl_s, renew_s=timing.lease_renew_s, margin_s=timing.lease_margin_s)
        warehouse = Warehouse.of_profile(target_profile(self.scenario, None))
        patience = Patience(stop=self.stop, clock=self.clock)
        queue = Queue(
            wait=self.wait,
            share=self.share,
            stop=self.stop,
            told=self._waits,
            deserted=lambda session: deserted(session, patience, partial(_uses, warehouse), self.taken_over),
        )
        lease = alone_on(warehouse, self.scenario.name, place, times, queue, clock=self.clock)
        with lease as alone, self._warehouse_model():
            yield alone

    def _warehouse_model(self) -> AbstractContextManager[None]:
        """On the embedded server the warehouse does what the scenario says; elsewhere it is what it is."""
        if self.scenario.connection != EMBEDDED:
            return nullcontext()
        named = target_profile(self.scenario, None).text("warehouse")
        name = None if named is None else Ident.parse(named).name
        return warehouse_model(os.environ[EMBEDDED_ADDRESS], name, self.scenario.embedded)

    def _spawner(self, place: ControlPlace, run_id: str) -> Spawner:
        assert self.output is not None
        told, logs = self._told_to_workers(place), self.output / LOGS
        if self.scenario.spawner.kind is SpawnerKind.EXTERNAL:
            secrets = secrets_in(self.scenario)
            return ExternalSpawner(told, self.scenario.timing.registration_s, _show, secrets)
        if self.scenario.spawner.kind is SpawnerKind.SPCS:
            return SpcsSpawner(place, Job.of_scenario(self.scenario, run_id, told), logs, clock=self.clock)
        environment = {**os.environ, **told, SPOOL_VARIABLE: str((self.output / SPOOL).resolve())}
        if self.scenario.spawner.kind is SpawnerKind.SUBPROCESS:
            return SubprocessSpawner(environment, logs)
        return LocalSpawner(run_child, environment, logs)

    def _told_to_workers(self, place: ControlPlace) -> dict[str, str]:
        """What a worker must be told beside its four arguments, wherever it runs. No secrets: they are shown."""
        told = place.to_environment()
        if self.scenario.connection is not None:
            told["LOADGEN_CONNECTION"] = self.scenario.connection
        if EMBEDDED in (self.scenario.connection, place.connection):
            told[EMBEDDED_ADDRESS] = os.environ[EMBEDDED_ADDRESS]
            if EMBEDDED_PASSWORD_FILE in os.environ:
                told[EMBEDDED_PASSWORD_FILE] = os.environ[EMBEDDED_PASSWORD_FILE]
        if self.scenario.load.pin is Pin.NONE:
            told["LOADGEN_PIN"] = "none"
        return told

    def _waits(self, why: str) -> None:
        self.now = Now(doing=f"waiting: {why}")

    def _tell(self, progress: Progress) -> None:
        self.now = Now(doing="preparing tables", progress=progress)

    def _saw(self, run_id: str, tick: Tick) -> None:
        self.now = Now(doing=tick.run.status.value, run_id=run_id, tick=tick)


def _uses(warehouse: Warehouse, scenario: Scenario) -> bool:
    try:
        return Warehouse.of_profile(target_profile(scenario, None)) == warehouse
    except LoadgenError:  # a connection that is unknown here
        return False


def _show(line: str) -> None:
    """For whoever starts workers: also when progress is not wanted."""
    echo(printable(line, LINE_LIMIT), err=True)
