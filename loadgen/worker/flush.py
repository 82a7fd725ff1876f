"""The flush thread: writes what the worker measured, on a dedicated session.

Final windows and warnings soon, snapshots and other logs in batches every few seconds. All workers end a window at the
same moment: the more there are, the longer is the span over which they write it, and until then heartbeats carry it.
What cannot be written waits here, bounded; while the control plane is unreachable the measurement goes on.
"""

from __future__ import annotations

import json
import logging
import random
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from loadgen.clock import Clock
from loadgen.control.session import ControlSession
from loadgen.control.tables import test_logs, test_results, window_results, worker_metrics_snapshots
from loadgen.control.tables.test_logs import LogRow
from loadgen.control.tables.test_results import ResultRow
from loadgen.control.tables.worker_metrics_snapshots import MetricsSnapshot
from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.metrics.interval import KEY as JUDGED
from loadgen.metrics.interval import Interval, MeasuredCounts, ThresholdSecond, judged_data, write_custom_metrics
from loadgen.metrics.logins import LoginCounts, logins_data
from loadgen.metrics.percentile import PERCENTILES, Quantile, mean
from loadgen.metrics.window import ClientResourceUse, WindowResult, WindowRow, merge
from loadgen.model.counts import UserSessionCounts
from loadgen.model.run import Phase
from loadgen.snowflake import driver
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.self_monitor import ResourceReading
from loadgen.worker.spool import UnsentRows, upload
from loadgen.worker.worker_state import WorkerLogLine, WorkerSharedState

log = logging.getLogger(__name__)

SNAPSHOTS_MAX = 3_600  # an hour without the control plane
WRITERS_PER_S = 50  # of all workers together, when all of them have something to write at once


class ResultFlusher:
    """put_*(): the main thread. run() is the thread's work; finish(): on the thread, at the end."""

    def __init__(
        self,
        session: ControlSession,
        arguments: WorkerArguments,
        test_id: str,
        shared: WorkerSharedState,
        clock: Clock,
        *,
        period_s: float,
        is_first: bool = False,
    ) -> None:
        """`is_first`: no other process has had the worker's id, and may have written its windows."""
        self.session, self._arguments, self._test_id = session, arguments, test_id
        self._is_first = is_first
        self._shared, self._clock = shared, clock
        # Many workers append to the same tables: the more there are, the less often each does, and not all at once.
        self._period_s = max(period_s, arguments.worker_group_count / 4)
        self._spread_s = arguments.worker_group_count / WRITERS_PER_S
        self._snapshots: deque[MetricsSnapshot] = deque()
        self._rotating = threading.Lock()  # guards _snapshots: the oldest make room for new ones while they are sent
        self._windows: deque[tuple[WindowRow, bool]] = deque()
        self._started: ResultRow | None = None  # to be written
        self._forfeited = False
        self._in_doubt = False  # a write was given up, and may have been done: its rows may be there

    def put_start(self, row: ResultRow) -> None:
        """The worker's result, from its beginning on: with the next batch. START is when all workers read events, and
        a late one starts late. Any thread, once."""
        self._started = row

    def forfeit(self) -> None:
        """Another process has this worker's id: no window is written any more."""
        self._forfeited = True

    def put_snapshot(self, snapshot: MetricsSnapshot) -> None:
        with self._rotating:
            self._snapshots.append(snapshot)
            if len(self._snapshots) > SNAPSHOTS_MAX:
                self._snapshots.popleft()

    def unsent(self) -> UnsentRows:
        """What is still to be written, but for the worker's result. Any thread."""
        windows = [row for row, _ in tuple(self._windows)]
        with self._rotating:
            snapshots = tuple(self._snapshots)
        return UnsentRows(
            windows=windows, snapshots=snapshots, logs=[self._log_row(line) for line in list(self._shared.lines)]
        )

    def put_window(self, row: WindowRow, *, forget: bool) -> None:
        """A window as it will stay, each once; with `forget` the main thread is told when it is stored."""
        self._windows.append((row, forget))
        self._shared.urgent.set()

    def run(self, stopping: threading.Event, patience: RetryPolicy) -> None:
        """Until told to stop, which `urgent` has to follow; what is left then is written by finish()."""
        due_ns = self._next_ns()
        while not stopping.is_set():
            if self._clock.wait(self._shared.urgent, (due_ns - self._clock.monotonic_ns()) / NS_PER_S):
                self._shared.urgent.clear()
                if self._clock.wait(stopping, random.uniform(0.0, self._spread_s)):
                    return
            is_due = self._clock.monotonic_ns() >= due_ns
            self.step(patience, everything=is_due)
            due_ns = self._next_ns() if is_due else due_ns

    def step(self, patience: RetryPolicy, *, everything: bool) -> bool:
        """Write windows and logs, and with `everything` snapshots. False: something could not be written."""
        try:
            self._write_start(patience)
            self._write_windows(patience)
            self._write_logs(patience)
            if everything:
                self._write_snapshots(patience)
                self._in_doubt = False
        except LoadgenError as error:  # even a login that is refused: what is here waits for the next time
            self._in_doubt = True
            event(log, logging.WARNING, "flush_failed", what=str(error))
            return False
        return True

    def finish(self, patience: RetryPolicy, result: ResultRow, query_log: Path | None) -> None:
        """On the thread, at the end: write all that is left, upload the query log. LoadgenError: not all of it."""
        self._write_windows(patience)
        test_results.append(self.session, patience, result, fresh=True)  # of this process alone, and tried once
        self._shared.contact()
        self._write_logs(patience)
        self._write_snapshots(patience)
        if query_log is not None:
            upload(self.session, patience, query_log, told=lambda _: self._shared.contact())

    def _write_start(self, patience: RetryPolicy) -> None:
        if self._started is not None and not self._forfeited:
            test_results.begin(self.session, patience, self._started, fresh=not self._in_doubt)
            self._started = None
            self._shared.contact()

    def _write_windows(self, patience: RetryPolicy) -> None:
        while self._windows and not self._forfeited:
            row, forget = self._windows[0]
            fresh = self._is_first and not self._in_doubt
            window_results.append(self.session, patience, self._arguments.run_id, row, fresh=fresh)
            self._shared.contact()
            self._windows.popleft()
            if forget:
                self._shared.stored_windows.append(row.window_id)

    def _write_logs(self, patience: RetryPolicy) -> None:
        """Lines stay where they are until they are written: the worker may end meanwhile, and keeps what is left."""
        lines = list(self._shared.lines)
        rows = [self._log_row(line) for line in lines]
        if self._in_doubt:
            test_logs.append_missing(self.session, patience, self._arguments.run_id, rows)
        else:
            test_logs.append(self.session, patience, rows)
        for _ in lines:
            self._shared.lines.popleft()

    def _log_row(self, line: WorkerLogLine) -> LogRow:
        return LogRow(
            log_id=line.log_id,
            run_id=self._arguments.run_id,
            test_id=self._test_id,
            worker_id=self._arguments.worker_id,
            level=line.level,
            message=line.message,
            details=line.details,
            timestamp=line.timestamp,
        )

    def _write_snapshots(self, patience: RetryPolicy) -> None:
        with self._rotating:
            rows = tuple(self._snapshots)
        if self._in_doubt:
            worker_metrics_snapshots.append_missing(self.session, patience, self._arguments.run_id, rows)
        else:
            worker_metrics_snapshots.append(self.session, patience, rows)
        if rows:
            self._shared.contact()
        with self._rotating:
            for row in rows:  # those that made room for others meanwhile are gone already
                if self._snapshots and self._snapshots[0] is row:
                    self._snapshots.popleft()

    def _next_ns(self) -> int:
        return self._clock.monotonic_ns() + round(random.uniform(0.9, 1.1) * self._period_s * NS_PER_S)


def snapshot_row(
    interval: Interval,
    resources: ResourceReading,
    arguments: WorkerArguments,
    *,
    test_id: str,
    timestamp: datetime,
    elapsed_s: float,
    executing: int,
    target: int,
    timed: Collection[str] | None = None,
    phase: Phase | None = None,
    sessions: UserSessionCounts | None = None,
    logins: LoginCounts | None = None,
    judged: ThresholdSecond | None = None,
) -> MetricsSnapshot:
    """One second; `timed` are the statements whose times are kept one by one, None: all;
    `phase` where it is not that of its window."""
    phase = phase or interval.phase
    custom = {**json.loads(write_custom_metrics(interval, timed)), "wakeup_p99_ms": resources.wakeup_p99_ms}
    if logins is not None:
        custom["logins"] = logins.counts()
    if sessions is not None:
        custom["sessions"] = sessions.document()
    if judged is not None:
        custom[JUDGED] = judged_data(judged)
    return MetricsSnapshot(
        run_id=arguments.run_id,
        test_id=test_id,
        worker_id=arguments.worker_id,
        worker_group_id=arguments.worker_group_id,
        worker_group_count=arguments.worker_group_count,
        timestamp=timestamp,
        elapsed_seconds=elapsed_s,
        phase=None if phase is None else phase.value,
        total_queries=interval.measured.queries,
        read_count=interval.measured.reads,
        write_count=interval.measured.writes,
        error_count=interval.measured.errors,
        qps=interval.qps,
        p50_latency_ms=interval.p50_ms,
        p95_latency_ms=interval.p95_ms,
        p99_latency_ms=interval.p99_ms,
        avg_latency_ms=interval.avg_ms,
        min_latency_ms=interval.min_ms,
        max_latency_ms=interval.max_ms,
        active_connections=executing,
        target_connections=target,
        cpu_percent=resources.cpu_percent,
        memory_percent=resources.memory_percent,
        custom_metrics=json.dumps(custom, separators=(",", ":")),
    )


def started_row(arguments: WorkerArguments, *, test_id: str, template_id: str, created_at: datetime) -> ResultRow:
    """The worker's own result, of which nothing is known yet but that it has begun."""
    return ResultRow(
        test_id=test_id,
        run_id=arguments.run_id,
        worker_id=arguments.worker_id,
        worker_group_id=arguments.worker_group_id,
        template_id=template_id,
        status="RUNNING",
        created_at=created_at,
        total_operations=0,
        read_operations=0,
        write_operations=0,
        failed_operations=0,
        p50_latency_ms=None,
        p95_latency_ms=None,
        p99_latency_ms=None,
        avg_latency_ms=None,
        find_max_result=None,
        summary=None,
    )


def result_row(
    windows: Sequence[WindowResult],
    measured: MeasuredCounts,
    arguments: WorkerArguments,
    *,
    sessions: UserSessionCounts | None = None,
    logins: LoginCounts | None = None,
    dropped: Mapping[str, int] | None = None,
    test_id: str,
    template_id: str,
    status: str,
    created_at: datetime,
) -> ResultRow:
    """The worker's own result: everything it measured."""
    measured_windows = [window for window in windows if window.phase is Phase.MEASUREMENT]
    merged = merge([measured_windows])
    whole = merged.tally.whole
    times = {name: whole.response_at(PERCENTILES[name]) for name in ("p50", "p95", "p99")}
    times["avg"] = mean(*whole.responses)
    summary = {
        "counts": asdict(merged.counts),
        "qps": merged.qps,
        "seconds": merged.seconds,
        "client": _client(measured_windows),
        # Columns have no room for "or more", which is all that is known when samples were cut off.
        "at_least": [name for name, found in times.items() if found is not None and found.at_least],
        **({} if sessions is None else {"sessions": sessions.document()}),
        **({} if logins is None else {"logins": logins_data(logins)}),
        **({"dropped": dict(dropped)} if dropped else {}),
        "driver_lightened": driver.telemetry_hooks_disabled(),
    }
    return ResultRow(
        test_id=test_id,
        run_id=arguments.run_id,
        worker_id=arguments.worker_id,
        worker_group_id=arguments.worker_group_id,
        template_id=template_id,
        status=status,
        created_at=created_at,
        total_operations=merged.counts.succeeded + merged.counts.failed,
        read_operations=measured.reads,
        write_operations=measured.writes,
        failed_operations=merged.counts.failed,
        p50_latency_ms=_ms(times["p50"]),
        p95_latency_ms=_ms(times["p95"]),
        p99_latency_ms=_ms(times["p99"]),
        avg_latency_ms=_ms(times["avg"]),
        find_max_result=None,
        summary=json.dumps(summary),
    )


def _client(windows: Sequence[WindowResult]) -> dict[str, float | None]:
    """How loaded the worker itself was."""
    effect = sum((window.client for window in windows if window.client is not None), ClientResourceUse())
    return {
        "cpu_percent_of_core": effect.cpu_percent_of_core,
        "wakeup_mean_ms": effect.late_mean_ms,
        "wakeup_p99_ms": effect.late_p99_ms,
        "gap_percent": effect.gap_percent,
        "paused_percent": effect.paused_percent,
    }


def _ms(quantile: Quantile | None) -> float | None:
    return None if quantile is None else quantile.value_ns / NS_PER_MS
