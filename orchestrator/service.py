"""Creates, leads, stops and finishes runs. It calls the driver, so it must not run on a main thread."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from loadgen.clock import Clock, SystemClock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession, OpenSession
from loadgen.control.tables import run_leases, run_status, test_results, value_pools
from loadgen.control.tables.run_status import Fenced, NewRun, Run
from loadgen.control.tables.test_results import ResultRow
from loadgen.errors import LoadgenError, RunFailed
from loadgen.log import event
from loadgen.model.run import RUN_TRANSITIONS, Phase, RunStatus
from loadgen.report.summary import RunFacts, summarize, with_enrichment
from loadgen.results.run_snapshot import RunSnapshot, WorkerHealth
from loadgen.results.stored_summary import read_result
from loadgen.scenario.frozen import freeze, template_id, thaw
from loadgen.scenario.model import EMBEDDED, Scenario
from loadgen.snowflake.connect import LOGIN_ERRORS
from loadgen.snowflake.session import RetryPolicy, is_retryable
from loadgen.values import dataclass
from loadgen.workload.pools import Pool
from orchestrator.enrich import enrich_result
from orchestrator.leader import Leader
from orchestrator.leadership import StopRequest, request_stop
from orchestrator.lifecycle import MoveRun, RunEnding
from orchestrator.run_environment import (
    ForeignLoad,
    TargetInfo,
    environment_document,
    read_foreign_load,
    workers_started_twice,
)
from orchestrator.run_facts import Circumstances, EndedRun, judge_run, read_ended_run
from orchestrator.run_folder import new_run_id
from orchestrator.run_result import run_result_row
from orchestrator.spawn.spawner import Spawner, terminate_gracefully, wait_for_end, worker_orders
from orchestrator.warehouse import CreditMeter, WarehousePoller, target_warehouse

log = logging.getLogger(__name__)

_NO_PROCESS = "Free memory or processes on this machine (`ulimit -u`), or use fewer workers."
POLLER_JOIN_S = 15.0  # for its last rows; longer than one statement may take


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run that has ended."""

    run_id: str
    summary: Mapping[str, Any]
    unstored: ResultRow | None = None  # a result that the control plane did not accept: the caller keeps it


# Returns the disturbances of a run on its warehouse so far. Each of them makes the run INVALID.
Disturbances = Callable[[], Iterable[str]]
# Makes the spawner of the run with this id.
SpawnerFactory = Callable[[str], Spawner]


class OrchestratorService:
    """create_run(), start_run() and take_over() belong to one thread. The other methods may be called from any thread,
    and by other processes."""

    def __init__(
        self,
        place: ControlPlaneLocation,
        make_spawner: SpawnerFactory | None = None,
        *,
        disturbances: Disturbances = tuple,
        circumstances: TargetInfo | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Clock | None = None,
        open_session: OpenSession | None = None,
        retries: RetryPolicy | None = None,
        waits: Callable[[str], None] = lambda _: None,  # called with the reason of a wait
        meter: CreditMeter | None = None,  # of the warehouse, since the preparation
    ) -> None:
        """`make_spawner` is needed to lead runs."""
        self._open_session = open_session or (lambda role: ControlSession(place, role=role, environ=environ))
        self._disturbances, self._circumstances = disturbances, circumstances or TargetInfo()
        self._make_spawner, self._environ, self._waits, self._meter = make_spawner, environ, waits, meter
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._retries = retries or RetryPolicy(stop=self._stop, clock=self._clock)
        self._leader: Leader | None = None
        self._interrupts = 0
        self._signal: int | None = None  # the first of them
        self._hurried = threading.Event()  # set by the first interrupt: work that can be done later is skipped
        self._lock = threading.Lock()  # guards the attributes above: interrupts come from another thread

    def create_run(
        self, scenario: Scenario, pools: Mapping[str, Pool] | None = None, *, run_id: str | None = None
    ) -> str:
        """Create a run in status PREPARED, with its frozen scenario and its value pools. Returns its id."""
        assert scenario.load.workers is not None, "settle the number of workers first"
        run = NewRun(
            run_id=run_id or new_run_id(scenario.name, self._clock.utc_now()),
            template_id=template_id(scenario),
            test_name=scenario.name,
            scenario_config=freeze(scenario),
            workers=scenario.load.workers,
        )
        with self._session() as session:
            run_status.create(session, self._retries, run)
            for pool in (pools or {}).values():
                value_pools.store(session, self._retries, run.run_id, pool)
        return run.run_id

    def start_run(self, run_id: str, on_snapshot: Callable[[RunSnapshot], None] = lambda _: None) -> FinishedRun:
        """Lead a prepared run to its end."""
        assert self._make_spawner is not None
        return self._lead(run_id, self._make_spawner(run_id), on_snapshot, begun=False)

    def take_over(self, run_id: str, on_snapshot: Callable[[RunSnapshot], None] = lambda _: None) -> FinishedRun:
        """Lead a run that has lost its leader, and whose workers continue, to its end."""
        assert self._make_spawner is not None
        return self._lead(run_id, self._make_spawner(run_id), on_snapshot, begun=True)

    def _lead(
        self, run_id: str, spawner: Spawner, on_snapshot: Callable[[RunSnapshot], None], *, begun: bool
    ) -> FinishedRun:
        scenario = self._scenario(run_id)
        session = self._open_session("orchestrator")
        leader = Leader(
            run_id,
            scenario,
            spawner,
            session=session,
            lease_session=lambda: self._open_session("lease"),
            clock=self._clock,
            on_snapshot=on_snapshot,
            on_wait=self._waits,
        )
        with self._lock:
            self._leader = leader
            for _ in range(self._interrupts):
                leader.interrupt()
        released = False
        try:
            leader.claim()
            run = leader.read_run()
            if begun:
                leader.resume(run)
            elif run.status is RunStatus.PREPARED:  # otherwise it was stopped: its workers end by themselves
                leader.move(run, MoveRun(RunStatus.STARTING, Phase.PREPARING))
            with self._polled(leader, scenario, run_id, begun=begun):
                self._spawn(spawner, leader, run_id)
                ending = leader.lead()
            finished = self._finish(leader, scenario, ending)
            released = finished.unstored is None
            return finished
        except Exception as error:
            if isinstance(error, Fenced):  # its workers are those of the run that another process leads
                self._waits(f"{error}; {error.remedy} This process waits for the end of its workers")
                wait_for_end(spawner, self._clock, self._hurried)
            terminate_gracefully(spawner, scenario.timing, self._clock, self._hurried)
            raise
        finally:
            _close("workers", spawner.close)
            _close("lease", lambda: leader.resign(releasing=released))
            _close("session", session.close)

    def _spawn(self, spawner: Spawner, leader: Leader, run_id: str) -> None:
        try:
            spawner.start(worker_orders(run_id, leader.worker_ids))
        except Exception as error:  # the run ends here, so that it does not need recovery
            failed = MoveRun(RunStatus.FAILED, Phase.PREPARING, str(error))
            _close("run", lambda: leader.move(leader.read_run(), failed))
            if isinstance(error, OSError):
                raise RunFailed(f"workers could not be started: {error}", remedy=_NO_PROCESS) from error
            raise

    def stop_run(self, run_id: str, *, by: str | None = None, why: str | None = None) -> StopRequest:
        """Request the end of a run, whichever process leads it, or none. `by` names the user; None: this process."""
        with self._session() as session:
            by = by or run_leases.describe_owner(run_leases.new_owner())
            return request_stop(session, self._retries, run_id, by, why)

    def get_run_status(self, run_id: str) -> Run | None:
        with self._session() as session:
            return self._retries.call(lambda: run_status.read(session, run_id))

    def interrupt(self, number: int = signal.SIGINT) -> int:
        """Request the end of the run that this service leads or will lead, because of signal `number`. Returns the
        number of requests."""
        with self._lock:
            self._signal = self._signal or number
            self._interrupts += 1
            self._hurried.set()
            if self._leader is not None:
                self._leader.interrupt()
            return self._interrupts

    # --- the end of a run --------------------------------------------------------------------------------------------

    def _finish(self, leader: Leader, scenario: Scenario, ending: RunEnding) -> FinishedRun:
        """Make the results of a run whose workers have ended, store them, and end the run."""
        leader.while_leading(lambda: _process(leader, ending))
        run = leader.read_run()
        stored = read_result(leader.session, leader.retries, run.run_id)
        reason = ending.reason
        if stored is None or RunStatus(stored[0].status) not in RUN_TRANSITIONS[run.status]:
            facts = self._facts(leader, scenario, ending, run)
            summary = summarize(facts)
            result = run_result_row(run, facts, summary)
        else:  # another leader has stored a result and was lost after that: the run ends with that result
            result, summary = stored
            reason = summary["exit_reason"]
        last = MoveRun(RunStatus(result.status), Phase.PROCESSING, reason)
        event(log, logging.INFO, "run_ended", run=run.run_id, verdict=summary["verdict"], why=summary["exit_reason"])
        unstored = self._store(leader, run.run_id, result)
        if unstored is None:
            summary = self._enriched(run.run_id, scenario, summary)
        if unstored is None or not is_retryable(unstored):  # otherwise the control plane is unreachable
            try:
                if not leader.while_leading(lambda: leader.move(leader.read_run(), last, verdict=summary["verdict"])):
                    raise RunFailed(f"run {run.run_id} could not be ended: it is {leader.read_run().status}")
            except (ControlFailed, *LOGIN_ERRORS) as error:
                unstored = error
        if unstored is not None:  # the verdict is known, and does not change
            event(log, logging.WARNING, "result_not_stored", run=run.run_id, why=str(unstored))
            return FinishedRun(run_id=run.run_id, summary=summary, unstored=result)
        return FinishedRun(run_id=run.run_id, summary=summary)

    def _store(self, leader: Leader, run_id: str, result: ResultRow) -> LoadgenError | None:
        """Append the result of the run. Returns the error if it could not be stored."""
        try:
            test_results.append(leader.session, leader.retries, result, fresh=leader.leadership.is_first)
            if any(worker.health is WorkerHealth.DEAD for worker in leader.workers):
                test_results.abandon(leader.session, leader.retries, run_id)
            return None
        except (ControlFailed, *LOGIN_ERRORS) as error:
            return error

    def _facts(self, leader: Leader, scenario: Scenario, ending: RunEnding, run: Run) -> RunFacts:
        ended = read_ended_run(leader.session, leader.retries, run, scenario, leader.workers)
        leader.stored_seconds.fill_all(leader.workers, leader.retries)
        if leader.find_max is not None:
            leader.find_max.stop(ending.reason)
        poller = leader.warehouse_poller
        costs = None if poller is None or scenario.connection == EMBEDDED else round(poller.credits, 6)
        known = Circumstances(
            status=ending.status,
            reason=ending.reason,
            stop=ending.stop,
            stopped_s=leader.stopped_s,
            signal=self._signal,
            replaced=_replaced(leader, ended),
            disturbances=tuple(self._disturbances()),
            foreign=self._foreign_load(leader, ended),
            shared_warehouse=self._circumstances.shared_warehouse,
            environment=environment_document(self._circumstances) | {"credits": costs},
        )
        return judge_run(ended, leader.limits, leader.find_max, known)

    def _foreign_load(self, leader: Leader, ended: EndedRun) -> ForeignLoad:
        _, warehouse = target_warehouse(ended.scenario, self._environ)
        poller = leader.warehouse_poller
        if not warehouse or poller is None or self._circumstances.shared_warehouse:  # others are allowed there
            return ForeignLoad()
        return read_foreign_load(
            leader.session,
            leader.retries,
            ended,
            warehouse=warehouse,
            polls=poller.observed,
            environ=self._environ,
            interrupted=self._hurried.is_set,
        )

    def _enriched(self, run_id: str, scenario: Scenario, summary: dict[str, Any]) -> dict[str, Any]:
        """The summary with the times from the query history, by which the stored result is amended. It is stored
        before: the enrichment takes up to 90 s, and no failure of it may cost the verdict."""
        retries = RetryPolicy(stop=self._hurried, clock=self._clock)
        session = self._open_session("enrich")
        try:
            return with_enrichment(summary, enrich_result(session, retries, run_id, scenario, environ=self._environ))
        except LoadgenError as error:
            event(log, logging.WARNING, "enrichment_failed", run=run_id, why=str(error))
        except Exception:
            log.exception("enrichment_failed run=%s", run_id)
        finally:
            _close("enrichment", session.close)
        return summary

    @contextmanager
    def _polled(self, leader: Leader, scenario: Scenario, run_id: str, *, begun: bool) -> Iterator[None]:
        """Poll the warehouse under test during the block, if the scenario or the connection names one."""
        profile, warehouse = target_warehouse(scenario, self._environ)
        if not warehouse:
            yield
            return
        leader.warehouse_poller = poller = WarehousePoller(
            profile,
            warehouse,
            run_id,
            self._open_session("warehouse-poll"),
            clock=self._clock,
            period_s=scenario.timing.warehouse_poll_s,
            environ=self._environ,
            meter=self._meter,
        )
        if begun:
            leader.resume_polls()
        poller.start()
        try:
            yield
        finally:
            poller.stop()
            poller.join(POLLER_JOIN_S)

    def _scenario(self, run_id: str) -> Scenario:
        with self._session() as session:
            text = self._retries.call(lambda: run_status.read_config(session, run_id))
        if text is None:
            raise RunFailed(f"there is no run {run_id}")
        return thaw(text, self._environ)

    @contextmanager
    def _session(self) -> Iterator[ControlSession]:
        session = self._open_session("orchestrator")
        try:
            yield session
        finally:
            session.close()


def _close(what: str, close: Callable[[], object]) -> None:
    """A failure is logged only: it must not hide the verdict, or the error that ended the run."""
    try:
        close()
    except Exception as error:
        event(log, logging.WARNING, "close_failed", of=what, why=str(error))


def _replaced(leader: Leader, ended: EndedRun) -> list[str]:
    """A sentence for each worker that was replaced. A successor knows earlier replacements by their rows only."""
    seen = leader.replacements.warnings
    return seen if seen or not leader.is_successor else workers_started_twice(ended.results)


def _process(leader: Leader, ending: RunEnding) -> None:
    run = leader.read_run()
    if run.phase is not Phase.PROCESSING:
        leader.move(run, MoveRun(run.status, Phase.PROCESSING, ending.reason))
