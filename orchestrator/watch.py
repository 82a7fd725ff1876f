"""Reads a run from the tables every second, in a thread, for `loadgen watch`. It changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession, RowUnreadable
from loadgen.control.tables import run_leases, run_measurements, run_status, test_logs, worker_heartbeats
from loadgen.control.tables.run_measurements import StepRecord, WarehousePoll
from loadgen.control.tables.run_status import Run
from loadgen.control.tables.test_logs import LogRow
from loadgen.errors import RunFailed
from loadgen.model.run import RunStatus
from loadgen.report.records import WorkerSecond
from loadgen.results.run_record import worker_seconds
from loadgen.results.run_snapshot import RunSnapshot, WorkerSnapshot
from loadgen.results.stored_summary import read_summary
from loadgen.rules.plan import plan_run
from loadgen.rules.thresholds import Checked
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import Scenario
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from orchestrator.aggregation import RunAggregator
from orchestrator.guardrails import LimitMonitor
from orchestrator.worker_health import assess_workers

WATCH_PERIOD_S = 1.0
SLOW_TABLES_PERIOD_S = 5.0  # between reads of tables that change slowly and cost more to read
POLLS_KEPT = 60
LOGS_READ = 50
OUTAGE_MAX_S = 180.0  # without control plane, or without a leader of the run
ATTEMPTS = 5  # of the first statements
MARGIN_S = 5  # the oldest second of a worker may be incomplete
ROWS_MAX = 4_000  # seconds of workers that are read at first: each has some kilobytes

_NO_LEADER = "no process leads the run: its workers end by themselves, then `loadgen runs recover` ends it"


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayHistory:
    """How the display keeps the seconds before it was opened."""

    kept_s: int
    coarsen: Callable[[WorkerSecond], WorkerSecond]


@dataclass(slots=True, kw_only=True)
class WatchJob:
    """Watches one run. `snapshot` is replaced as a whole. When `done` is set, the run has ended or watching has failed:
    see result()."""

    place: ControlPlaneLocation
    name: str
    clock: Clock
    history: DisplayHistory
    warn: Callable[[str], None]
    snapshot: RunSnapshot | None = None
    scenario: Scenario | None = None
    summary: Mapping[str, Any] | None = None  # of a run that has ended, if it has one
    done: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    _error: BaseException | None = None

    def start(self) -> None:
        # A daemon thread: a user who quits must not wait for the driver's time limits.
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def result(self) -> Run:
        """The run that has ended. Raises the error that ended the watching."""
        if self._error is not None:
            raise self._error
        assert self.snapshot is not None, "watching has not ended"
        return self.snapshot.run

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        session = ControlSession(self.place, role="watch")
        try:
            self._watch(session)
        except BaseException as error:  # handed to the main thread, which raises it
            self._error = error
        finally:
            session.close()
            self.done.set()

    def _note(self, error: BaseException) -> None:
        if not self.stop.is_set():
            self.warn(f"{error}; trying again")

    def _watch(self, session: ControlSession) -> None:
        retries = RetryPolicy(stop=self.stop, attempts=ATTEMPTS, clock=self.clock, note=self._note)
        run = run_status.find_run(session, retries, self.name)
        config = retries.call(lambda: run_status.read_config(session, run.run_id))
        self.scenario = thaw(config or "", None)
        reader = _SnapshotReader(session, self.scenario, run.run_id, self.clock, self.history)
        answered_s = reader.now_s
        while not self.stop.is_set():
            try:
                self.snapshot = reader.read()
                answered_s = reader.now_s
            except ControlFailed as error:
                if not error.failure.retryable or reader.now_s - answered_s > OUTAGE_MAX_S:
                    raise
            if self.snapshot is not None and self.snapshot.run.status.is_terminal:
                self.summary = self._summary(session, retries, run.run_id)
                return
            self.clock.wait(self.stop, WATCH_PERIOD_S)

    def _summary(self, session: ControlSession, retries: RetryPolicy, run_id: str) -> Mapping[str, Any] | None:
        try:
            return read_summary(session, retries, run_id)
        except (RowUnreadable, RunFailed) as error:
            self.warn(str(error))
            return None


class _SnapshotReader:
    """Reads snapshots of one run, and keeps the state that a single read does not show."""

    def __init__(
        self, session: ControlSession, scenario: Scenario, run_id: str, clock: Clock, history: DisplayHistory
    ) -> None:
        self._session, self._scenario, self._run_id, self._clock = session, scenario, run_id, clock
        self._history = history
        timing, open_loop = scenario.timing, scenario.load.is_open_loop
        self._plan = plan_run(scenario.load)
        self._progress = RunAggregator(scenario.thresholds, scenario.judged_stages)
        self._limits = LimitMonitor(
            scenario.judged_thresholds, scenario.guardrails, timing, self._progress, open_loop=open_loop
        )
        self._slow_s: float | None = None  # when the slow tables were last read
        self._polls: tuple[WarehousePoll, ...] = ()
        self._steps: tuple[StepRecord, ...] = ()
        self._logs: dict[str, LogRow] = {}
        self._stored: tuple[WorkerSecond, ...] = ()
        self._led = True

    @property
    def now_s(self) -> float:
        return self._clock.monotonic_ns() / NS_PER_S

    def read(self) -> RunSnapshot:
        session, run_id, timing = self._session, self._run_id, self._scenario.timing
        run = run_status.read(session, run_id)
        if run is None:
            raise RunFailed(f"run {run_id} has vanished from RUN_STATUS")
        rows = worker_heartbeats.read(session, run_id)
        seen_s = self.now_s
        self._read_slow_tables(run)
        ids = [f"worker-{number}" for number in range(run.workers_expected)]
        ages_s = {row.identity.worker_id: row.age_ms / 1000 for row in rows}
        workers = assess_workers(ids, rows, (), ages_s, stale_s=timing.stale_s, dead_s=timing.dead_s)
        elapsed_s = None
        if run.status is RunStatus.RUNNING and run.start_time is not None and run.server_time is not None:
            elapsed_s = (run.server_time - run.start_time).total_seconds()
        return RunSnapshot(
            seen_s=seen_s,
            moment=self._clock.utc_now(),
            run=run,
            workers=workers,
            elapsed_s=elapsed_s,
            ends_s=self._plan.ends_s,
            measures_s=self._plan.measures_s,
            checked=self._checked(run, workers, elapsed_s),
            warnings=(*self._limits.warnings, *(() if self._led or run.status.is_terminal else (_NO_LEADER,))),
            steps=self._steps,
            polls=self._polls,
            stored=self._stored,
            logs=tuple(self._logs.values()),
        )

    def _checked(self, run: Run, workers: tuple[WorkerSnapshot, ...], elapsed_s: float | None) -> tuple[Checked, ...]:
        """Thresholds, judged by the measurement so far; those over a span only by the seconds read here."""
        if not run.phase.is_measured:
            return ()
        self._progress.note(workers)
        self._limits.check(workers, max(0.0, (elapsed_s or 0.0) - self._plan.measures_s))
        return self._limits.current()

    def _read_slow_tables(self, run: Run) -> None:
        """Read tables that change every few seconds at most; the first time also earlier seconds and windows."""
        if self._slow_s is not None and self.now_s - self._slow_s < SLOW_TABLES_PERIOD_S and not run.status.is_terminal:
            return
        session, run_id = self._session, self._run_id
        if self._slow_s is None:
            within_s = min(self._history.kept_s + MARGIN_S, ROWS_MAX // max(1, run.workers_expected))
            snapshots = run_measurements.newest_snapshots(session, run_id, within_s)
            self._stored = tuple(map(self._history.coarsen, worker_seconds(snapshots, [])))
            self._progress.seconds.add_stored(snapshots)
            self._progress.remember_stored(run_measurements.read_windows(session, run_id))
        self._slow_s = self.now_s
        self._polls = run_measurements.newest_polls(session, run_id, POLLS_KEPT)
        if self._scenario.load.find_max is not None:
            self._steps = run_measurements.read_steps(session, run_id)
        for line in test_logs.newest(session, run_id, LOGS_READ):
            if line.level.upper() in ("WARNING", "ERROR", "CRITICAL"):
                self._logs.setdefault(line.log_id, line)
        holder = run_leases.read(session, run_id)
        self._led = holder is None or holder.remaining_ms > 0
        if holder is not None and holder.remaining_ms < -OUTAGE_MAX_S * 1000 and not run.status.is_terminal:
            raise RunFailed(
                f"no process has led run {run_id} for {-holder.remaining_ms / 1000:.0f} s",
                remedy="`loadgen runs recover` ends such runs.",
            )
