"""What the threads of a worker know of each other. Every field has one writer, named here; anyone may read."""

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

ERRORS_LOGGED_PER_KIND = 10  # errors of one kind are logged so often, then only counted
LOG_LINES_MAX = 5_000  # waiting to be written to TEST_LOGS; beyond that they are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReason:
    """Why the worker ends, and with which code. `error` is None when all is well."""

    code: WorkerExit
    error: str | None = None
    hint: str | None = None
    drain_s: float = 0.0  # how long statements under way may go on
    replaced: bool = False  # the results of this id are another process's to write
    signal: str | None = None  # that asked for it, before the run did


def exit_reason_for(error: LoadgenError) -> ExitReason:
    """How an error that ends a worker is told."""
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
    log_id: str = field(default_factory=lambda: str(uuid.uuid4()))  # the same however often it is written


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
    lost_lines: int = 0  # of the log, for which there was no room
    lines: deque[WorkerLogLine] = field(default_factory=deque)  # any thread; emptied by the flush thread
    urgent: threading.Event = field(default_factory=threading.Event)  # something waits to be written, or to end
    stored_windows: deque[int] = field(default_factory=deque)  # the flush thread; emptied by the main thread
    _kinds: Counter[tuple[str, str, int | None]] = field(default_factory=Counter)
    _errors: int = 0
    contacts: int = 0  # how often the control plane has answered
    polls: int = 0  # the control thread: how often it has read the state of the run
    missed_polls: int = 0  # the control thread: how often it could not
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, ending: ExitReason) -> None:
        """Ask for the end of the worker. The first reason counts, but an error outweighs an orderly end."""
        with self._lock:
            if self.ending is None or (self.ending.code is WorkerExit.CLEAN and ending.code is not WorkerExit.CLEAN):
                self.ending = ending
        self.ended.set()

    def amend(self, ending: ExitReason, to: ExitReason) -> None:
        """The one who asked for this end knows more of it now. Without effect when another reason counts."""
        with self._lock:
            if self.ending == ending:
                self.ending = to

    @property
    def drain_s(self) -> float:
        """How long statements under way may go on, as far as is known now."""
        return 0.0 if self.ending is None else self.ending.drain_s

    def advance(self, status: WorkerStatus) -> bool:
        """Take the next step of a worker's life, from any thread. False: it is past that, and stays where it is."""
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
        """A statement or a connection failed: counted always, logged the first few times of its kind."""
        with self._lock:
            self._errors += 1
            kind = (statement, category.value, code)
            self._kinds[kind] += 1
            seen = self._kinds[kind]
        self.last_error = printable(text)
        if seen <= ERRORS_LOGGED_PER_KIND:
            last = ", from now on only counted" if seen == ERRORS_LOGGED_PER_KIND else ""
            message = f"{statement or 'connection'}: {category.value} {code or ''}: {printable(text)}{last}"
            self.say("ERROR", message, statement=statement, category=category.value, code=code)

    # --- the log -----------------------------------------------------------------------------------------------------

    def say(self, level: str, message: str, **details: object) -> None:
        """A line for TEST_LOGS. Warnings are written at once, the rest every few seconds."""
        if len(self.lines) >= LOG_LINES_MAX:  # nothing was written for long: the first lines say why
            self.lost_lines += 1
            return
        moment = self.clock.utc_now().replace(tzinfo=None)
        self.lines.append(WorkerLogLine(level=level, message=message, details=details or None, timestamp=moment))
        if level != "INFO":
            self.urgent.set()

    # --- contact with the control plane ------------------------------------------------------------------------------

    def contact(self) -> None:
        """The control plane has answered. Two threads at once may count one: it matters only that it moves."""
        self.contacts += 1
