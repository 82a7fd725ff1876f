"""The state that the threads of a worker share. Each field has one writing thread, named here; any thread may read."""

from __future__ import annotations

import threading
import uuid
from collections import Counter, deque
from dataclasses import field
from datetime import datetime

from loadgen.clock import Clock
from loadgen.control.session import ControlFailed
from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import WORKER_TRANSITIONS, WorkerExit, WorkerStatus
from loadgen.snowflake.session import RetryInterrupted
from loadgen.values import dataclass

ERRORS_LOGGED_PER_KIND = 10  # further errors of the same kind are only counted
LOG_LINES_MAX = 5_000  # lines that wait for TEST_LOGS; further lines are only counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReason:
    """Why the worker ends, and with which exit code. `error` is None for a clean end."""

    code: WorkerExit
    error: str | None = None
    hint: str | None = None
    drain_s: float = 0.0  # time limit for statements under way
    replaced: bool = False  # another process has this worker id, and stores the results
    signal: str | None = None  # the signal that ended the worker before the run ended


def exit_reason_for(error: LoadgenError) -> ExitReason:
    """The exit reason for an error that ends a worker."""
    away = isinstance(error, RetryInterrupted) or (isinstance(error, ControlFailed) and error.failure.retryable)
    code = WorkerExit.NO_CONTROL_PLANE if away else WorkerExit.CONFIGURATION
    return ExitReason(code=code, error=str(error), hint=error.remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLogLine:
    """A line for TEST_LOGS."""

    level: str
    message: str
    details: dict[str, object] | None
    timestamp: datetime  # naive UTC
    log_id: str = field(default_factory=lambda: str(uuid.uuid4()))  # makes it safe to store the line again


@dataclass(slots=True, kw_only=True)
class WorkerSharedState:
    clock: Clock
    status: WorkerStatus = WorkerStatus.STARTING  # see advance()
    live_metrics: str | None = None  # the main thread
    cpu_percent: float | None = None  # the main thread
    memory_percent: float | None = None  # the main thread
    ending: ExitReason | None = None  # any thread; the first reason counts: see end()
    ended: threading.Event = field(default_factory=threading.Event)
    last_error: str | None = None  # any thread
    lost_lines: int = 0  # log lines beyond LOG_LINES_MAX
    lines: deque[WorkerLogLine] = field(default_factory=deque)  # any thread; emptied by the flush thread
    urgent: threading.Event = field(default_factory=threading.Event)  # wakes the flush thread
    stored_windows: deque[int] = field(default_factory=deque)  # the flush thread; emptied by the main thread
    _kinds: Counter[tuple[str, str, int | None]] = field(default_factory=Counter)
    _errors: int = 0
    contacts: int = 0  # number of answers of the control plane
    polls: int = 0  # the control thread: number of successful polls of RUN_STATUS
    missed_polls: int = 0  # the control thread: number of failed polls
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, ending: ExitReason) -> None:
        """Request the end of the worker. The first reason counts, but an error outweighs a clean end."""
        with self._lock:
            if self.ending is None or (self.ending.code is WorkerExit.CLEAN and ending.code is not WorkerExit.CLEAN):
                self.ending = ending
        self.ended.set()

    def amend(self, ending: ExitReason, to: ExitReason) -> None:
        """Replace a reason that was given before. Without effect if another reason counts."""
        with self._lock:
            if self.ending == ending:
                self.ending = to

    @property
    def drain_s(self) -> float:
        """The time limit for statements under way."""
        return 0.0 if self.ending is None else self.ending.drain_s

    def advance(self, status: WorkerStatus) -> bool:
        """Change the status. Returns False if the transition is not allowed, for example because of a later status.
        Any thread."""
        with self._lock:
            if status not in WORKER_TRANSITIONS[self.status]:
                return False
            self.status = status
            return True

    # --- errors ------------------------------------------------------------------------------------------------------

    @property
    def error_count(self) -> int:
        return self._errors

    def failed(self, statement: str, category: ErrorCategory, code: int | None, text: str) -> None:
        """Count a failed statement or connection. The first failures of each kind are logged."""
        with self._lock:
            self._errors += 1
            kind = (statement, category.value, code)
            self._kinds[kind] += 1
            seen = self._kinds[kind]
        self.last_error = printable(text)
        if seen <= ERRORS_LOGGED_PER_KIND:
            last = ", from now on only counted" if seen == ERRORS_LOGGED_PER_KIND else ""
            kind_text = category.value if code is None else f"{category.value} {code}"
            message = f"{statement or 'connection'}: {kind_text}: {printable(text)}{last}"
            self.say("ERROR", message, statement=statement, category=category.value, code=code)

    # --- the log -----------------------------------------------------------------------------------------------------

    def say(self, level: str, message: str, **details: object) -> None:
        """Add a line for TEST_LOGS. Warnings are stored at once, other lines every few seconds."""
        if len(self.lines) >= LOG_LINES_MAX:  # the control plane is unreachable: the first lines show the cause
            self.lost_lines += 1
            return
        moment = self.clock.utc_now().replace(tzinfo=None)
        self.lines.append(WorkerLogLine(level=level, message=message, details=details or None, timestamp=moment))
        if level != "INFO":
            self.urgent.set()

    # --- contact with the control plane ------------------------------------------------------------------------------

    def contact(self) -> None:
        """Count an answer of the control plane. Concurrent calls may count once: only a change matters."""
        self.contacts += 1
