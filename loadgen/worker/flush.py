"""The flush thread: writes what the worker measured, on a connection of its own.

Final windows at once, snapshots and logs in batches every few seconds (warnings at once). What cannot be written waits
here, bounded; while the control plane is away the measurement goes on.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from pathlib import Path

from loadgen.clock import Clock
from loadgen.control.retry import RetryPolicy
from loadgen.control.session import ControlSession
from loadgen.control.tables import test_logs, test_results, window_results, worker_metrics_snapshots
from loadgen.control.tables.test_logs import LogRow
from loadgen.control.tables.test_results import ResultRow
from loadgen.control.tables.window_results import WindowResultRow as WindowRow
from loadgen.control.tables.worker_metrics_snapshots import MetricsSnapshot
from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.units import NS_PER_S
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.spool import UnsentRows, upload
from loadgen.worker.worker_state import WorkerLogLine, WorkerSharedState

log = logging.getLogger(__name__)

SNAPSHOTS_MAX = 3_600  # an hour without the control plane
LOOK_S = 0.5


class ResultFlusher:
    """put_*(): the main thread. run() is the thread's work; finish(): on the thread, at the end."""

    def __init__(
        self,
        session: ControlSession,
        arguments: WorkerArguments,
        test_id: str,
        board: WorkerSharedState,
        clock: Clock,
        *,
        period_s: float,
    ) -> None:
        self.session, self._arguments, self._test_id = session, arguments, test_id
        self._board, self._clock = board, clock
        # Many workers append to the same tables: the more there are, the less often each does, and not all at once.
        self._period_s = max(period_s, arguments.worker_group_count / 4)
        self._snapshots: deque[MetricsSnapshot] = deque()
        self._rotating = threading.Lock()  # guards _snapshots: the oldest make room for new ones while they are sent
        self._windows: deque[tuple[WindowRow, bool]] = deque()
        self._started: ResultRow | None = None  # to be written
        self._forfeited = False

    def put_start(self, row: ResultRow) -> None:
        """The worker's result, from its beginning on. Any thread, once."""
        self._started = row
        self._board.urgent.set()

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
            windows=windows, snapshots=snapshots, logs=[self._log_row(line) for line in list(self._board.lines)]
        )

    def put_window(self, row: WindowRow, *, forget: bool) -> None:
        """A window as it will stay, each once; with `forget` the main thread is told when it is stored."""
        self._windows.append((row, forget))
        self._board.urgent.set()

    def run(self, stopping: threading.Event, patience: RetryPolicy) -> None:
        """Until told to stop; what is left then is written by finish()."""
        due_ns = self._next_ns()
        while not stopping.is_set():
            urgent = self._clock.wait(self._board.urgent, LOOK_S)
            if urgent or self._clock.monotonic_ns() >= due_ns:
                self._board.urgent.clear()
                self.step(patience, everything=self._clock.monotonic_ns() >= due_ns)
                due_ns = self._next_ns() if self._clock.monotonic_ns() >= due_ns else due_ns

    def step(self, patience: RetryPolicy, *, everything: bool) -> bool:
        """Write windows and logs, and with `everything` snapshots. False: something could not be written."""
        try:
            self._write_start(patience)
            self._write_windows(patience)
            self._write_logs(patience)
            if everything:
                self._write_snapshots(patience)
        except LoadgenError as error:  # even a login that is refused: what is here waits for the next time
            event(log, logging.WARNING, "flush_failed", what=str(error))
            return False
        return True

    def finish(self, patience: RetryPolicy, result: ResultRow, query_log: Path | None) -> None:
        """On the thread, at the end: write all that is left, upload the query log. LoadgenError: not all of it."""
        self._write_windows(patience)
        test_results.append(self.session, patience, result)
        self._board.contact()
        self._write_logs(patience)
        self._write_snapshots(patience)
        if query_log is not None:
            upload(self.session, patience, query_log, told=lambda _: self._board.contact())

    def _write_start(self, patience: RetryPolicy) -> None:
        if self._started is not None and not self._forfeited:
            test_results.begin(self.session, patience, self._started)
            self._started = None
            self._board.contact()

    def _write_windows(self, patience: RetryPolicy) -> None:
        while self._windows and not self._forfeited:
            row, forget = self._windows[0]
            window_results.append(self.session, patience, self._arguments.run_id, row)
            self._board.contact()
            self._windows.popleft()
            if forget:
                self._board.stored_windows.append(row.window_id)

    def _write_logs(self, patience: RetryPolicy) -> None:
        """Lines stay where they are until they are written: the worker may end meanwhile, and keeps what is left."""
        lines = list(self._board.lines)
        test_logs.append(self.session, patience, [self._log_row(line) for line in lines])
        for _ in lines:
            self._board.lines.popleft()

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
        worker_metrics_snapshots.append(self.session, patience, rows)
        if rows:
            self._board.contact()
        with self._rotating:
            for row in rows:  # those that made room for others meanwhile are gone already
                if self._snapshots and self._snapshots[0] is row:
                    self._snapshots.popleft()

    def _next_ns(self) -> int:
        return self._clock.monotonic_ns() + round(random.uniform(0.9, 1.1) * self._period_s * NS_PER_S)
