"""The flush thread, which stores the results of a worker on a dedicated session; the spool for rows not stored yet.

Final windows and warnings are stored soon, snapshots and other log lines in batches every few seconds. All workers end
a window at the same time, so each waits for a random time, which grows with their number; until then heartbeats carry
the window. While the control plane is unreachable, rows wait here in bounded queues, and the measurement continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import random
import shutil
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from loadgen.clock import Clock
from loadgen.control.location import state_folder
from loadgen.control.session import ControlSession
from loadgen.control.tables import query_executions, run_measurements, test_logs, test_results
from loadgen.control.tables.query_executions import Execution
from loadgen.control.tables.run_measurements import MetricsSnapshot
from loadgen.control.tables.test_logs import LogRow
from loadgen.control.tables.test_results import ResultRow
from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.metrics.connections import LoginCounts, logins_data
from loadgen.metrics.interval import KEY as JUDGED
from loadgen.metrics.interval import Interval, MeasuredCounts, ThresholdSecond, judged_data, write_custom_metrics
from loadgen.metrics.percentile import PERCENTILES, Quantile, mean
from loadgen.metrics.recorder import Outcome
from loadgen.metrics.window import ClientResourceUse, WindowResult, WindowRow, merge
from loadgen.model.counts import UserSessionCounts
from loadgen.model.run import Phase
from loadgen.snowflake import driver
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import NS_PER_MS, NS_PER_S, counted
from loadgen.values import dataclass
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.query_log import METADATA, RECORD_BYTES, RECORDS, QueryLogHeader, QueryLogReader, QueryLogRecord
from loadgen.worker.self_monitor import ResourceReading
from loadgen.worker.worker_state import WorkerLogLine, WorkerSharedState

log = logging.getLogger(__name__)

# --- The spool: rows on disk that are not stored yet -----------------------------------------------------------------
#     executions.*    the query log
#     unsent.jsonl    windows, snapshots, log lines and the result that could not be stored
#     lock            held by the worker while it runs, and by an upload
#
# An upload is safe to repeat: existing rows are not inserted again.

SPOOL_VARIABLE = "LOADGEN_SPOOL_DIR"
BATCH_ROWS = 1_000
UNSENT = "unsent.jsonl"
LOCK = "lock"
# The kinds of rows in a folder of the spool; all but the last are keys of lines in UNSENT.
WINDOW, SNAPSHOT, LOG, RESULT, EXECUTION = "window", "snapshot", "log_line", "result", "execution"
_MOMENTS = ("timestamp", "created_at")
_SPACE = uuid.UUID("6f1d3f0e-7d0b-5f5e-9a53-2f2a5b1f8c11")  # makes the ids of rows the same at every attempt


def spool_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the spool, where workers keep rows and query logs until they are stored."""
    if given := environ.get(SPOOL_VARIABLE):
        return Path(given)
    return state_folder(environ) / "spool"


def worker_spool_folder(arguments: WorkerArguments, test_id: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of this process in the spool. Another process with the same worker id has another folder."""
    return spool_folder(environ) / arguments.run_id / f"{arguments.worker_id}-{test_id[:8]}"


def spool_folders_by_run(spools: Iterable[Path]) -> dict[str, list[Path]]:
    """The folders in these spools, one for each process with unsent rows, by run."""
    found: dict[str, list[Path]] = {}
    for spool in spools:
        for path in sorted(spool.glob("*/*")):
            if path.is_dir():
                found.setdefault(path.parent.name, []).append(path)
    return found


def spooled(folder: Path) -> dict[str, dict[str, int]]:
    """The number of spooled rows of one run, by folder and kind."""
    found = {path.name: contents(path) for path in sorted(folder.glob("*")) if path.is_dir()}
    return {name: rows for name, rows in found.items() if rows}


def lock_spool_folder(folder: Path) -> int | None:
    """Lock the folder until this process ends or the returned descriptor is closed. None: another process holds it."""
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsentRows:
    """Rows that a process could not store."""

    windows: Sequence[WindowRow] = ()
    snapshots: Sequence[MetricsSnapshot] = ()
    logs: Sequence[LogRow] = ()
    result: ResultRow | None = None


def upload(
    session: ControlSession, retries: RetryPolicy, folder: Path, told: Callable[[int], None] = lambda _: None
) -> tuple[dict[str, int], int]:
    """Store the spooled rows of a worker, and remove the folder. If it fails, the folder is kept. Returns the number
    of rows by kind, and that of the damaged records of the query log, which cannot be stored."""
    damaged = 0
    stored = _send_rows(session, retries, folder / UNSENT) if (folder / UNSENT).exists() else {}
    if (folder / METADATA).exists():
        stored[EXECUTION], damaged = _send_executions(session, retries, folder, told)
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # folders of other workers still exist
        folder.parent.rmdir()
    return stored, damaged


def contents(folder: Path) -> dict[str, int]:
    """The number of rows in a folder of the spool, by kind."""
    found = Counter[str]()
    if (folder / UNSENT).exists():
        found.update(kind for line in (folder / UNSENT).read_text("utf-8").splitlines() for kind in json.loads(line))
        del found["run_id"]
    if (folder / RECORDS).exists():
        found[EXECUTION] = (folder / RECORDS).stat().st_size // RECORD_BYTES
    return {kind: count for kind, count in found.items() if count}


def spool_rows(folder: Path, run_id: str, unsent: UnsentRows) -> None:
    """Write unsent rows to a folder of the spool."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    rows: list[tuple[str, Any]] = [
        *((WINDOW, row) for row in unsent.windows),
        *((SNAPSHOT, row) for row in unsent.snapshots),
        *((LOG, row) for row in unsent.logs),
        *((RESULT, row) for row in (unsent.result,) if row is not None),
    ]
    draft = folder / f"{UNSENT}.tmp"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        for kind, row in rows:
            file.write(json.dumps({"run_id": run_id, kind: asdict(row)}, default=datetime.isoformat) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / UNSENT)


def _send_rows(session: ControlSession, retries: RetryPolicy, path: Path) -> dict[str, int]:
    rows: dict[str, list[dict[str, Any]]] = {WINDOW: [], RESULT: [], LOG: [], SNAPSHOT: []}
    run_id = ""
    for line in path.read_text("utf-8").splitlines():
        kept = json.loads(line)
        run_id = kept.pop("run_id")
        for kind, row in kept.items():
            rows[kind].append(row | {name: datetime.fromisoformat(row[name]) for name in _MOMENTS if name in row})
    for row in rows[WINDOW]:
        run_measurements.append_window(session, retries, run_id, WindowRow(**row))
    for row in rows[RESULT]:
        test_results.append(session, retries, ResultRow(**row))
    test_logs.append_missing(session, retries, run_id, [LogRow(**row) for row in rows[LOG]])
    run_measurements.append_missing_snapshots(
        session, retries, run_id, [MetricsSnapshot(**row) for row in rows[SNAPSHOT]]
    )
    return {kind: len(found) for kind, found in rows.items() if found}


def _send_executions(
    session: ControlSession, retries: RetryPolicy, folder: Path, told: Callable[[int], None]
) -> tuple[int, int]:
    reader = QueryLogReader(folder)
    rows = (_execution(reader.header, record) for record in reader.records())
    uploaded = 0
    for batch in _batches(rows):
        query_executions.append(session, retries, batch)
        uploaded += len(batch)
        told(uploaded)
    return uploaded, reader.damaged


def _batches(rows: Iterator[Execution]) -> Iterator[list[Execution]]:
    while batch := list(islice(rows, BATCH_ROWS)):
        yield batch


def _execution(header: QueryLogHeader, record: QueryLogRecord) -> Execution:
    category = None
    if record.outcome is not Outcome.SUCCEEDED:
        category = record.outcome.category
    return Execution(
        execution_id=str(uuid.uuid5(_SPACE, f"{header.run_id}/{header.test_id}/{record.number}")),
        run_id=header.run_id,
        test_id=header.test_id,
        worker_id=header.worker_id,
        query_id=record.query_id,
        statement_name=record.statement,
        query_kind=record.kind,
        phase=record.phase,
        step_id=record.step_id,
        start_time=record.start_time,
        due_lag_ms=record.due_lag_ms,
        duration_ms=record.duration_ms,
        rows_affected=record.rows,
        success=record.outcome is Outcome.SUCCEEDED,
        error_category=category,
        error_code=record.code,
        error=record.error,
    )


# --- The flush thread ------------------------------------------------------------------------------------------------

SNAPSHOTS_MAX = 3_600  # those of an hour
WRITERS_PER_S = 50  # number of workers that store a window in the same second


class ResultFlusher:
    """put_*() are called by the main thread, run() and at the end finish() by the flush thread."""

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
        """`is_first`: no other process has had this worker id, so none can have stored its windows."""
        self.session, self._arguments, self._test_id = session, arguments, test_id
        self._is_first = is_first
        self._shared, self._clock = shared, clock
        # All workers append to the same tables: the more workers there are, the less often each of them appends.
        self._period_s = max(period_s, arguments.worker_group_count / 4)
        self._spread_s = arguments.worker_group_count / WRITERS_PER_S
        self._snapshots: deque[MetricsSnapshot] = deque()
        self.dropped_snapshots = 0  # beyond SNAPSHOTS_MAX: neither stored nor spooled
        self._rotating = threading.Lock()  # guards _snapshots: the oldest are dropped for new ones during a statement
        self._windows: deque[tuple[WindowRow, bool]] = deque()
        self._started: ResultRow | None = None  # not stored yet
        self._is_replaced = False  # another process has this worker id
        self._in_doubt = False  # an INSERT failed without an answer: its rows may exist

    def put_start(self, row: ResultRow) -> None:
        """Queue the first result row of the worker for the next batch: at START all workers read events, and a
        statement in that second would delay some of them. Called once, by any thread."""
        self._started = row

    def stop_storing_windows(self) -> None:
        """Another process has this worker id: store no more windows."""
        self._is_replaced = True

    def put_snapshot(self, snapshot: MetricsSnapshot) -> None:
        with self._rotating:
            self._snapshots.append(snapshot)
            if len(self._snapshots) > SNAPSHOTS_MAX:
                self._snapshots.popleft()
                self.dropped_snapshots += 1

    def unsent(self) -> UnsentRows:
        """The rows that are not stored yet, without the worker's result. Any thread."""
        windows = [row for row, _ in tuple(self._windows)]
        with self._rotating:
            snapshots = tuple(self._snapshots)
        return UnsentRows(
            windows=windows, snapshots=snapshots, logs=[self._log_row(line) for line in list(self._shared.lines)]
        )

    def put_window(self, row: WindowRow, *, forget: bool) -> None:
        """Queue a window that does not change any more. With `forget` its number is added to `stored_windows` later."""
        self._windows.append((row, forget))
        self._shared.urgent.set()

    def run(self, stopping: threading.Event, retries: RetryPolicy) -> None:
        """Store rows until `stopping` is set; set `urgent` after it. finish() stores the rest."""
        due_ns = self._next_ns()
        while not stopping.is_set():
            if self._clock.wait(self._shared.urgent, (due_ns - self._clock.monotonic_ns()) / NS_PER_S):
                self._shared.urgent.clear()
                if self._clock.wait(stopping, random.uniform(0.0, self._spread_s)):
                    return
            is_due = self._clock.monotonic_ns() >= due_ns
            self.step(retries, everything=is_due)
            due_ns = self._next_ns() if is_due else due_ns

    def step(self, retries: RetryPolicy, *, everything: bool) -> bool:
        """Store windows and log lines, and with `everything` snapshots. Returns False if a statement failed."""
        try:
            self._write_start(retries)
            self._write_windows(retries)
            self._write_logs(retries)
            if everything:
                self._write_snapshots(retries)
                self._in_doubt = False
        except LoadgenError as error:  # also a refused login: the rows wait for the next attempt
            self._in_doubt = True
            event(log, logging.WARNING, "flush_failed", what=str(error))
            return False
        return True

    def finish(self, retries: RetryPolicy, result: ResultRow, query_log: Path | None) -> None:
        """Store all remaining rows, and upload the query log. Raises LoadgenError on failure. Called at the end."""
        self._write_windows(retries)
        test_results.append(self.session, retries, result, fresh=True)  # a row of this process, inserted once
        self._shared.contact()
        self._write_logs(retries)
        self._write_snapshots(retries)
        if query_log is not None:
            _, damaged = upload(self.session, retries, query_log, told=lambda _: self._shared.contact())
            if damaged:
                self._shared.say("WARNING", f"the query log has {counted(damaged, 'damaged record')}: not stored")
                self._write_logs(retries)

    def _write_start(self, retries: RetryPolicy) -> None:
        if self._started is not None and not self._is_replaced:
            test_results.begin(self.session, retries, self._started, fresh=not self._in_doubt)
            self._started = None
            self._shared.contact()

    def _write_windows(self, retries: RetryPolicy) -> None:
        while self._windows and not self._is_replaced:
            row, forget = self._windows[0]
            fresh = self._is_first and not self._in_doubt
            run_measurements.append_window(self.session, retries, self._arguments.run_id, row, fresh=fresh)
            self._shared.contact()
            self._windows.popleft()
            if forget:
                self._shared.stored_windows.append(row.window_id)

    def _write_logs(self, retries: RetryPolicy) -> None:
        """Store log lines. They are removed from the queue after that: the worker may have to spool them."""
        lines = list(self._shared.lines)
        rows = [self._log_row(line) for line in lines]
        if self._in_doubt:
            test_logs.append_missing(self.session, retries, self._arguments.run_id, rows)
        else:
            test_logs.append(self.session, retries, rows)
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

    def _write_snapshots(self, retries: RetryPolicy) -> None:
        with self._rotating:
            rows = tuple(self._snapshots)
        if self._in_doubt:
            run_measurements.append_missing_snapshots(self.session, retries, self._arguments.run_id, rows)
        else:
            run_measurements.append_snapshots(self.session, retries, rows)
        if rows:
            self._shared.contact()
        with self._rotating:
            for row in rows:
                if self._snapshots and self._snapshots[0] is row:
                    self._snapshots.popleft()
                else:  # dropped meanwhile, and stored nevertheless
                    self.dropped_snapshots -= 1

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
    """The row of one second. `timed`: the statements whose times are stored; None: all. `phase`: if it differs from
    that of the window."""
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
    """The result row of a worker that has begun, without figures."""
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
    """The result row of a worker: everything that it has measured."""
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
        # These columns are lower bounds, because samples were cut off.
        "at_least": [name for name, found in times.items() if found is not None and found.at_least],
        **({} if sessions is None else {"sessions": sessions.document()}),
        **({} if logins is None else {"logins": logins_data(logins)}),
        **({"dropped": dict(dropped)} if dropped else {}),
        "driver_lightened": driver.telemetry_hooks_disabled(),
    }
    return replace(
        started_row(arguments, test_id=test_id, template_id=template_id, created_at=created_at),
        status=status,
        total_operations=merged.counts.succeeded + merged.counts.failed,
        read_operations=measured.reads,
        write_operations=measured.writes,
        failed_operations=merged.counts.failed,
        p50_latency_ms=_ms(times["p50"]),
        p95_latency_ms=_ms(times["p95"]),
        p99_latency_ms=_ms(times["p99"]),
        avg_latency_ms=_ms(times["avg"]),
        summary=json.dumps(summary),
    )


def _client(windows: Sequence[WindowResult]) -> dict[str, float | None]:
    """The CPU use and wake-up delay of the worker."""
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
