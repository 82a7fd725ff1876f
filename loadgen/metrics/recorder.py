"""Recording by clients: two calls around a statement, without a lock.

    window = recorder.begin()               counts a statement in the window that is open now
    …execute, fetch…
    recorder.append((statement, window, due_ns, sent_ns, done_ns, outcome))

A statement that is skipped because it is too late is also begun, and appended with SKIPPED. If all connections were
executing, `done` is when it was skipped; otherwise its three times are equal and have no meaning. Every statement that
was begun must be appended exactly once, by the client or on its behalf; otherwise its window never becomes final.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import IntEnum, StrEnum
from typing import Any

from loadgen.metrics.json_fields import COUNT_MAX, JsonFields, is_whole
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import Phase
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from loadgen.workload.replay import PLAN_PARTS


class Outcome(IntEnum):
    """How a statement ended. The names are keys in stored JSON. From CONNECTION on: failures."""

    SUCCEEDED = 0
    CANCELLED = 1  # by loadgen: its time is a lower bound
    SKIPPED = 2  # due, but never sent; it has an age if every connection was busy or logging in again
    CONNECTION = 3
    QUERY_TIMEOUT = 4
    SNOWFLAKE_ERROR = 5
    CHECK = 6
    CONFIGURATION = 7
    FATAL = 8
    INTERRUPTED = 9  # a SNOWFLAKE_ERROR that ended it early (lock timeout, cancelled by others): a lower bound
    DISCONNECTED = 10  # a CONNECTION failure while the server was silent: a lower bound

    __hash__ = int.__hash__  # faster than the hash of Enum, a Python function: tallies are dictionaries by outcome

    @property
    def is_failure(self) -> bool:
        return self >= Outcome.CONNECTION

    @property
    def category(self) -> str:
        """The category, as in QUERY_EXECUTIONS.ERROR_CATEGORY."""
        return _CATEGORIES.get(self, self.name)


_CATEGORIES = {
    Outcome.INTERRUPTED: ErrorCategory.SNOWFLAKE_ERROR.value,
    Outcome.DISCONNECTED: ErrorCategory.CONNECTION.value,
}
# Their times are lower bounds.
CUT_OFF = (Outcome.CANCELLED, Outcome.QUERY_TIMEOUT, Outcome.INTERRUPTED, Outcome.DISCONNECTED)
SILENCE_S = 1.0  # a server that has not answered for this time is slow, and did not fail at once

_BY_CATEGORY = {category: Outcome[category.name] for category in ErrorCategory}


@dataclass(frozen=True, slots=True)
class FailedOutcome:
    """The outcome of a failed sample. For numpy it is the number of its Outcome (`__index__`)."""

    category: ErrorCategory
    code: int | None
    text: str
    answered: bool = True  # by the server; otherwise the cursor has the query id of the previous statement
    cut_off: bool = False  # see Failure.cut_off

    @classmethod
    def after(
        cls,
        waited_s: float,
        category: ErrorCategory,
        code: int | None,
        text: str,
        *,
        limit_s: float,
        cut_off: bool = False,
    ) -> FailedOutcome:
        """The outcome after `waited_s`. Without an answer within its time limit a statement has timed out, on the
        client or on the server. A connection that is lost after SILENCE_S has cut off a slow statement; one that fails
        sooner is no evidence about the time of a success."""
        answered = category not in (ErrorCategory.CONNECTION, ErrorCategory.FATAL)
        if category is ErrorCategory.CONNECTION and waited_s >= limit_s:
            category = ErrorCategory.QUERY_TIMEOUT
        cut_off = cut_off or (category is ErrorCategory.CONNECTION and waited_s >= SILENCE_S)
        return cls(category, code, text, answered, cut_off)

    def __index__(self) -> int:
        if self.cut_off and self.category is ErrorCategory.SNOWFLAKE_ERROR:
            return Outcome.INTERRUPTED.value
        if self.cut_off and self.category is ErrorCategory.CONNECTION:
            return Outcome.DISCONNECTED.value
        return _BY_CATEGORY[self.category].value


class WindowState(StrEnum):
    OPEN = "OPEN"
    CLOSED = "CLOSED"
    FINAL = "FINAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window. Times are of the monotonic clock of this process."""

    window_id: int
    phase: Phase
    step_id: int | None = None
    opened_ns: int
    due_ns: int | None = None  # when it should have opened, if that was earlier: the process may have been paused
    closed_ns: int | None = None
    uncertain_ns: int = 0  # possible difference between the planned time and due_ns
    state: WindowState = WindowState.OPEN

    @property
    def begins_ns(self) -> int:
        """The time from which it is accounted for."""
        return self.opened_ns if self.due_ns is None else min(self.due_ns, self.opened_ns)

    def seconds(self, now_ns: int) -> float:
        """The length of the window, until now while it is open. Rates are per this time."""
        end_ns = now_ns if self.closed_ns is None else self.closed_ns
        return max(0, end_ns - self.opened_ns) / NS_PER_S  # the clock may have been read before it opened


class WindowRegistry:
    """The windows of one worker that are not stored yet. Every client reads `current`, without a lock."""

    def __init__(self) -> None:
        self.current: int | None = None  # one assignment moves all clients to the next window
        self._lock = threading.Lock()  # guards _held and _opened, and the assignment of current and newest
        self._held: dict[int, Window] = {}
        self._opened: set[int] = set()  # a window that is opened twice would be stored twice
        self.newest: Window | None = None  # in the state in which it was opened

    def open(
        self,
        window_id: int,
        *,
        phase: Phase,
        at_ns: int,
        step_id: int | None = None,
        due_ns: int | None = None,
        uncertain_ns: int = 0,
    ) -> Window:
        """Open a window at `at_ns` that was due at `due_ns`. The open window closes at the same time."""
        window = Window(
            window_id=window_id,
            phase=phase,
            step_id=step_id,
            opened_ns=at_ns,
            due_ns=due_ns,
            uncertain_ns=uncertain_ns,
        )
        with self._lock:
            if window_id in self._opened:
                raise ValueError(f"window {window_id} has been opened before")
            closed = self._closed(at_ns)
            self._opened.add(window_id)
            self._held[window_id] = self.newest = window
            self.current = window_id
            self._held.update(closed)
        return window

    def close(self, *, at_ns: int) -> None:
        """Close the open window, if any. From now on clients begin no statements."""
        with self._lock:
            closed = self._closed(at_ns)
            self.current = None
            self._held.update(closed)

    def settle(self, window_id: int) -> Window:
        """Set a closed window, without statements in flight or logins of it under way, to FINAL. The caller must have
        read in this order: the window is closed; then the number of begun statements; the same number has ended."""
        with self._lock:
            window = self._held[window_id]
            if window.state is not WindowState.CLOSED:
                raise ValueError(f"window {window_id} is {window.state}, so it cannot become final")
            window = self._held[window_id] = replace(window, state=WindowState.FINAL)
        return window

    def forget(self, window_id: int) -> Window:
        """Remove a final window that is stored."""
        with self._lock:
            if self._held[window_id].state is not WindowState.FINAL:
                raise ValueError(f"window {window_id} is not final: its samples would be lost")
            return self._held.pop(window_id)

    def held(self) -> tuple[Window, ...]:
        """All windows that are not forgotten, the oldest first."""
        with self._lock:
            return tuple(self._held.values())

    def _closed(self, at_ns: int) -> dict[int, Window]:
        """The open window in its closed state. It must become visible only after clients cannot begin in it any
        more."""
        if self.current is None:
            return {}
        window = self._held[self.current]
        if at_ns < window.opened_ns:
            raise ValueError(f"window {window.window_id} cannot close before it opened")
        return {window.window_id: replace(window, state=WindowState.CLOSED, closed_ns=at_ns)}


# (number of the statement in the workload, window, due_ns, sent_ns, done_ns, outcome); closed loop: due = sent
Sample = tuple[int, int, int, int, int, Outcome | FailedOutcome]


class Recorder:
    """The samples of one client. begin() and append(): only its thread. take() and begun(): only the collector."""

    __slots__ = ("_begun", "_samples", "_windows", "append")

    def __init__(self, windows: WindowRegistry) -> None:
        self._windows = windows
        self._begun: dict[int, list[int]] = {}  # by window: a list of one number
        self._samples: deque[Sample] = deque()  # append and popleft are atomic
        self.append: Callable[[Sample], None] = self._samples.append

    def begin(self) -> int | None:
        """The window of the next statement; None: no window is open, so nothing may be sent."""
        windows = self._windows
        while True:
            window = windows.current
            if window is None:
                return None
            sheet = self.sheet(window)
            sheet[0] += 1
            # The window may have closed before this statement was counted, and the closing thread may have found it
            # empty. In this order, with one interpreter lock, either that thread sees the count, or this one sees
            # that the window has closed.
            if windows.current == window:
                return window
            sheet[0] -= 1

    def sheet(self, window: int) -> list[int]:
        """The number of begun statements of a window, for a client that inlines begin()."""
        return self._begun.setdefault(window, [0])

    def skip(self, window: int, statement: int, age_ns: int = 0) -> None:
        """Record an arrival that was never sent. Only while another statement of this client is begun in the window.

        `age_ns`: how long it had been due, if every connection was executing or logging in again.
        """
        self.sheet(window)[0] += 1
        self.append((statement, window, 0, 0, age_ns, Outcome.SKIPPED))

    def unbegin(self, window: int) -> None:
        """Undo a begin() whose statement does not belong to that window."""
        self._begun[window][0] -= 1

    def begun(self, window: int) -> int:
        """The number of statements that this client has begun in a window."""
        sheet = self._begun.get(window)
        return 0 if sheet is None else sheet[0]

    def take(self) -> list[Sample]:
        """Remove and return the samples, the oldest first. Samples that arrive meanwhile remain for the next call."""
        popleft = self._samples.popleft
        return [popleft() for _ in range(len(self._samples))]


# --- Mode replay: times and row counts of sent statements; tallies add -----------------------------------------------

# (window, statement, nanoseconds since the window opened, None) when it was sent; (…, None, rows) when it succeeded
ReplayedEntry = tuple[int, int, int | None, int | None]


@dataclass(frozen=True, slots=True)
class RowCount:
    """The number of rows of statements with a known number of rows."""

    statements: int = 0
    rows: int = 0

    def __add__(self, other: RowCount) -> RowCount:
        return RowCount(self.statements + other.statements, self.rows + other.rows)

    @property
    def avg(self) -> float | None:
        return round(self.rows / self.statements, 3) if self.statements else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTally:
    sent: tuple[int, ...] = (0,) * PLAN_PARTS  # statements in each of PLAN_PARTS equal parts of the measurement
    rows: Mapping[str, RowCount] = field(default_factory=dict)  # by the name of the statement

    def __add__(self, other: ReplayTally) -> ReplayTally:
        rows = dict(self.rows)
        for name, more in other.rows.items():
            rows[name] = rows.get(name, RowCount()) + more
        return ReplayTally(sent=tuple(map(sum, zip(self.sent, other.sent, strict=True))), rows=rows)


def all_replayed(tallies: Iterable[ReplayTally | None]) -> ReplayTally | None:
    """The sum over all workers; None if one is missing: a partial sum would look complete."""
    whole: ReplayTally | None = None
    for tally in tallies:
        if tally is None:
            return None
        whole = tally if whole is None else whole + tally
    return whole


class ReplayMeter:
    """Adds up the entries of the clients of a worker. One thread."""

    def __init__(self, names: Iterable[str], duration_s: float) -> None:
        self._names, self._part_ns = tuple(names), max(1, round(duration_s * NS_PER_S / PLAN_PARTS))
        self._sent: dict[int, list[int]] = {}
        self._rows: dict[int, dict[str, RowCount]] = {}

    def add(self, entries: deque[ReplayedEntry]) -> None:
        """Remove and count the entries."""
        for _ in range(len(entries)):
            window, number, offset_ns, rows = entries.popleft()
            if offset_ns is not None:
                sent = self._sent.setdefault(window, [0] * PLAN_PARTS)
                sent[max(0, min(offset_ns // self._part_ns, PLAN_PARTS - 1))] += 1
            elif rows is not None and rows >= 0:  # the driver returns -1 for an unknown number
                own, name = self._rows.setdefault(window, {}), self._names[number]
                own[name] = own.get(name, RowCount()) + RowCount(1, rows)

    def tally(self, window: int) -> ReplayTally:
        return ReplayTally(
            sent=tuple(self._sent.get(window, ())) or (0,) * PLAN_PARTS, rows=dict(self._rows.get(window, {}))
        )


def replayed_data(tally: ReplayTally) -> dict[str, Any]:
    return {"sent": list(tally.sent), "rows": {name: [one.statements, one.rows] for name, one in tally.rows.items()}}


def read_replayed(fields: JsonFields) -> ReplayTally:
    sent, counted = fields.items("sent"), fields.part("rows")
    if len(sent) != PLAN_PARTS or not all(is_whole(count) and 0 <= count <= COUNT_MAX for count in sent):
        fields.refuse(f"has a sent that is not {PLAN_PARTS} counts")
    rows = {}
    for name in counted.names():
        pair = counted.items(name)
        if len(pair) != 2 or not all(is_whole(count) and 0 <= count <= COUNT_MAX for count in pair):
            counted.refuse(f"has no two counts for {name}")
        rows[name] = RowCount(*pair)
    return ReplayTally(sent=tuple(sent), rows=rows)
