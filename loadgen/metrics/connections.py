"""The connections of one worker: delivered and planned connection time, and logins.

Connection time is counted by slot. At any time the plan requires the first n slots. Those of them whose connection is
open, or is being reopened, are delivered. So a connection beyond the plan does not replace a missing one, and an excess
in one second does not compensate a lack in another.

    open          delivered
    logging in    delivered if the slot was open or refused before, and this login succeeds
    otherwise     missing: during a first login, a refused login and the pause after it, the wait for a turn to log in,
                  and the pause after statements without an answer

While the process is stopped it sends nothing on any connection, so that time is missing as well (`while_running`).
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import Any

from loadgen.log import printable
from loadgen.metrics.json_fields import JsonFields
from loadgen.units import NS_PER_MS
from loadgen.values import dataclass
from loadgen.workload.ramp import Ramp

# --- Logins: their number, the reasons for reconnects, and the newest failures ---------------------------------------

FAILURES_KEPT = 5  # the newest of each kind; every heartbeat contains them
TEXT_MAX = 200  # characters of a failure
_TOGETHER = timedelta(seconds=1)


class ReconnectReason(StrEnum):
    """Why a client logged in again."""

    MAX_AGE = "max_age"
    MAX_STATEMENTS = "max_statements"
    SESSION_LOST = "session_lost"  # expired, or ended by the server
    ERROR = "error"  # the state of the session could not be restored, or a statement did not return


PLANNED = (ReconnectReason.MAX_AGE, ReconnectReason.MAX_STATEMENTS)  # replaced as planned; others: lost


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFailure:
    """A refused login or a lost connection, or several with the same cause within a second."""

    at: datetime  # of the first one, like slot and text; naive UTC, by the clock of the worker
    slot: int | None = None
    reason: ReconnectReason | None = None  # of a lost connection; None: a login was refused
    code: int | None
    text: str
    count: int = 1

    @classmethod
    def of(
        cls, at: datetime, slot: int, code: int | None, text: str, reason: ReconnectReason | None = None
    ) -> ConnectionFailure:
        return cls(at=at.replace(tzinfo=None), slot=slot, reason=reason, code=code, text=printable(text, TEXT_MAX))

    def is_like(self, other: ConnectionFailure) -> bool:
        """Same reason and code? Texts are compared only without a code: they may contain the id of a session."""
        same = (self.reason, self.code) == (other.reason, other.code)
        return same and (self.code is not None or self.text == other.text)


def keep_failure(kept: deque[ConnectionFailure], new: ConnectionFailure) -> None:
    """Keep a failure. Failures of one cause within a second share an entry, so they do not displace older ones."""
    for place, one in enumerate(kept):
        if one.is_like(new) and new.at - one.at < _TOGETHER:
            kept[place] = replace(one, count=one.count + new.count)
            return
    kept.append(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginCounts:
    """All logins of a worker until now. The driver does not retry: each login is one attempt."""

    opened: int = 0  # successful logins
    reopened: Mapping[ReconnectReason, int] = field(default_factory=dict)  # those that were not the first of their slot
    refused: int = 0  # failed logins
    last_refused: tuple[ConnectionFailure, ...] = ()  # oldest first
    last_lost: tuple[ConnectionFailure, ...] = ()  # without connections that were replaced as planned

    def __add__(self, other: LoginCounts) -> LoginCounts:
        return LoginCounts(
            opened=self.opened + other.opened,
            reopened=Counter(self.reopened) + Counter(other.reopened),
            refused=self.refused + other.refused,
            last_refused=_newest(self.last_refused, other.last_refused),
            last_lost=_newest(self.last_lost, other.last_lost),
        )

    def since(self, before: LoginCounts) -> LoginCounts:
        """The counts since `before`; all counts if a new process, which starts at 0, has replaced the old one."""
        if before.opened > self.opened or before.refused > self.refused:
            before = LoginCounts()
        return LoginCounts(
            opened=self.opened - before.opened,
            reopened=Counter(self.reopened) - Counter(before.reopened),
            refused=self.refused - before.refused,
        )

    @property
    def lost(self) -> int:
        """The number of reopened connections that were not replaced as planned."""
        return sum(count for reason, count in self.reopened.items() if reason not in PLANNED)

    def counts(self) -> dict[str, Any]:
        """The counts as snapshots and reports write them, with every reason."""
        reopened = {reason.value: self.reopened.get(reason, 0) for reason in ReconnectReason}
        return {"opened": self.opened, "reopened": reopened, "refused": self.refused}


def _newest(*kept: tuple[ConnectionFailure, ...]) -> tuple[ConnectionFailure, ...]:
    return tuple(sorted(chain(*kept), key=lambda failure: failure.at)[-FAILURES_KEPT:])


# --- JSON ------------------------------------------------------------------------------------------------------------


def logins_data(logins: LoginCounts) -> dict[str, Any]:
    """JSON for a heartbeat and for the result of a worker."""
    kept = {"last_refused": logins.last_refused, "last_lost": logins.last_lost}
    return {**logins.counts(), **{name: list(map(failure_data, failures)) for name, failures in kept.items()}}


def failure_data(failure: ConnectionFailure) -> dict[str, Any]:
    return {
        "at": failure.at.isoformat(timespec="milliseconds"),
        "slot": failure.slot,
        **({} if failure.reason is None else {"reason": failure.reason.value}),
        "code": failure.code,
        "count": failure.count,
        "text": failure.text,
    }


def read_logins(fields: JsonFields) -> LoginCounts:
    """Parse the JSON of logins_data. Raises InvalidMetrics."""
    written = fields.part("reopened")
    reopened = {reason: written.whole(reason) for reason in ReconnectReason if written.has(reason)}
    return LoginCounts(
        opened=fields.whole("opened"),
        reopened={reason: count for reason, count in reopened.items() if count},
        refused=fields.whole("refused"),
        last_refused=_read_failures(fields, "last_refused"),
        last_lost=_read_failures(fields, "last_lost"),
    )


def _read_failures(fields: JsonFields, name: str) -> tuple[ConnectionFailure, ...]:
    """The newest failures; snapshots contain none."""
    return tuple(map(_read_failure, fields.parts(name)))[-FAILURES_KEPT:] if fields.has(name) else ()


def _read_failure(fields: JsonFields) -> ConnectionFailure:
    try:
        at = datetime.fromisoformat(fields.text("at")).replace(tzinfo=None)
    except ValueError:
        fields.refuse("has an `at` that is not a moment")
    return ConnectionFailure(
        at=at,
        slot=fields.whole_or_none("slot") if fields.has("slot") else None,
        reason=fields.one_of("reason", ReconnectReason) if fields.has("reason") else None,
        code=fields.whole_or_none("code"),
        text=printable(fields.text("text"), TEXT_MAX),
        count=fields.whole("count") if fields.has("count") else 1,
    )


# --- Connection time -------------------------------------------------------------------------------------------------

_ABSENT, _OPEN = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTime:
    """The connection time of a window in one worker; connection times add."""

    planned_ms: int = 0  # by the targets of the worker
    delivered_ms: int = 0
    logging_in_ms: int = 0  # part of the delivered time

    def __add__(self, other: ConnectionTime) -> ConnectionTime:
        return ConnectionTime(
            planned_ms=self.planned_ms + other.planned_ms,
            delivered_ms=self.delivered_ms + other.delivered_ms,
            logging_in_ms=self.logging_in_ms + other.logging_in_ms,
        )

    def while_running(self, stopped_ms: int, elapsed_ms: int) -> ConnectionTime:
        """The connection time without the time in which the process was stopped."""
        ran_ms = max(0, elapsed_ms - stopped_ms)
        if ran_ms >= elapsed_ms:
            return self
        delivered_ms, logging_in_ms = (
            amount_ms * ran_ms // elapsed_ms for amount_ms in (self.delivered_ms, self.logging_in_ms)
        )
        return replace(self, delivered_ms=delivered_ms, logging_in_ms=logging_in_ms)


@dataclass(slots=True)
class _Account:
    """Connection-nanoseconds of one window."""

    closes_ns: int | None
    planned_ns: int = 0
    open_ns: int = 0
    logging_in_ns: int = 0


@dataclass(slots=True)
class _Login:
    """A login on a slot that was open or refused before."""

    running: bool = False  # False: waiting for a turn to log in
    spent_ns: Counter[int] = field(default_factory=Counter)  # by window


class ConnectionMeter:
    """Accounts for connection time. Clients report events of connections, the ramp controller reports targets. Any
    thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything here
        self._now_ns = 0  # all time before it is accounted for
        self._line = Ramp(origin=0, target=0)
        self._states = bytearray()  # by slot
        self._logins: dict[int, _Login] = {}
        self._began_ns: dict[int, int] = {}  # running logins, including first ones
        self._accounts: dict[int, _Account] = {}
        self._window: int | None = None
        self._opened, self._refused = 0, 0
        self._reopened: Counter[ReconnectReason] = Counter()
        self._last_refused: deque[ConnectionFailure] = deque(maxlen=FAILURES_KEPT)
        self._last_lost: deque[ConnectionFailure] = deque(maxlen=FAILURES_KEPT)
        self.slowest_login_ns = 0
        # Since when all planned connections have been open or reopening; None: one is missing. Clients of an open loop
        # read it with every statement, without the lock.
        self.complete_since_ns: int | None = None

    # --- Plan --------------------------------------------------------------------------------------------------------

    def plan(self, line: Ramp, at_ns: int) -> None:
        """Set the planned number of connections from `at_ns` on."""
        with self._lock:
            self._advance(at_ns)
            self._line = line
            self._note_complete(at_ns)

    def open(self, window_id: int, at_ns: int, closes_ns: int | None) -> None:
        """Open a window, possibly slightly in the past, in place of the open one."""
        with self._lock:
            self._advance(at_ns)
            self._window = window_id
            self._accounts[window_id] = _Account(closes_ns)
            self._count(at_ns, self._now_ns)

    def close(self, at_ns: int) -> None:
        with self._lock:
            self._advance(at_ns)
            self._window = None

    def time(self, window_id: int, now_ns: int) -> ConnectionTime:
        """The connection time of a window until now. Until it is decided, a running login counts as successful."""
        with self._lock:
            self._advance(now_ns)
            account = self._accounts.get(window_id) or _Account(None)
            pending_ns = sum(login.spent_ns[window_id] for login in self._logins.values())
            logging_in_ns = account.logging_in_ns + pending_ns
            return ConnectionTime(
                planned_ms=account.planned_ns // NS_PER_MS,
                delivered_ms=(account.open_ns + logging_in_ns) // NS_PER_MS,
                logging_in_ms=logging_in_ns // NS_PER_MS,
            )

    def is_decided(self, window_id: int) -> bool:
        """Whether the connection time of a window does not change any more: the window is closed, and every login that
        took time in it has ended."""
        with self._lock:
            return window_id != self._window and not any(login.spent_ns[window_id] for login in self._logins.values())

    def forget(self, window_id: int) -> None:
        with self._lock:
            self._accounts.pop(window_id, None)

    # --- Events of connections ---------------------------------------------------------------------------------------

    def login_waits(self, slot: int, now_ns: int) -> None:
        """The slot waits for its turn to log in."""
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _ABSENT)
            self._began_ns.pop(slot, None)
            if slot in self._logins:
                self._logins[slot].running = False
            self._note_complete(now_ns)

    def login_began(self, slot: int, now_ns: int, *, again: bool) -> None:
        """A login begins. `again`: the slot was open before, or its last login was refused."""
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _ABSENT)
            self._began_ns[slot] = now_ns
            if again:
                self._logins.setdefault(slot, _Login()).running = True
            self._note_complete(now_ns)

    def login_succeeded(self, slot: int, now_ns: int, why: ReconnectReason | None) -> None:
        """A login has succeeded. `why`: the reason for the reconnect; None: the first login of the slot."""
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _OPEN)
            self._deliver(slot)
            self.slowest_login_ns = max(self.slowest_login_ns, now_ns - self._began_ns.pop(slot, now_ns))
            self._opened += 1
            if why is not None:
                self._reopened[why] += 1
            self._note_complete(now_ns)

    def login_refused(self, slot: int, now_ns: int, refusal: ConnectionFailure) -> None:
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _ABSENT)
            self._logins.pop(slot, None)  # the time that it spent is missing
            self._began_ns.pop(slot, None)
            self._refused += 1
            keep_failure(self._last_refused, refusal)
            self._note_complete(now_ns)

    def lost(self, failure: ConnectionFailure) -> None:
        """A connection was lost. login_succeeded() counts the reconnect."""
        with self._lock:
            keep_failure(self._last_lost, failure)

    def paused(self, slot: int, now_ns: int) -> None:
        """The connection is open, but its client sends nothing for some time."""
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _ABSENT)
            self._note_complete(now_ns)

    def resumed(self, slot: int, now_ns: int) -> None:
        """The pause has ended, and the connection is usable."""
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _OPEN)
            self._note_complete(now_ns)

    def gone(self, slot: int, now_ns: int) -> None:
        """The client of the slot has ended, or is not waited for any more."""
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _ABSENT)
            self._logins.pop(slot, None)  # the time of a login that has not ended is missing
            self._began_ns.pop(slot, None)
            self._note_complete(now_ns)

    # --- Results -----------------------------------------------------------------------------------------------------

    @property
    def logins(self) -> LoginCounts:
        with self._lock:
            return LoginCounts(
                opened=self._opened,
                reopened=dict(self._reopened),
                refused=self._refused,
                last_refused=tuple(self._last_refused),
                last_lost=tuple(self._last_lost),
            )

    # --- Internals, called with the lock held ------------------------------------------------------------------------

    def _note_complete(self, now_ns: int) -> None:
        """Update complete_since_ns after a change of a connection or of the plan."""
        planned = self._line.at(now_ns)
        again = sum(login.running and slot < planned for slot, login in self._logins.items())
        if self._states.count(_OPEN, 0, planned) + again < planned:
            self.complete_since_ns = None
        elif self.complete_since_ns is None:
            self.complete_since_ns = now_ns

    def _advance(self, to_ns: int) -> None:
        """Account for the time until `to_ns`, in which nothing changed."""
        if to_ns > self._now_ns:
            self._count(self._now_ns, to_ns)
            self._now_ns = to_ns

    def _count(self, from_ns: int, to_ns: int) -> None:
        if self._window is None:
            return
        account = self._accounts[self._window]
        end_ns = to_ns if account.closes_ns is None else min(to_ns, account.closes_ns)
        for planned, length_ns in self._line.levels(from_ns, end_ns):
            account.planned_ns += planned * length_ns
            account.open_ns += self._states.count(_OPEN, 0, planned) * length_ns
            for slot, login in self._logins.items():
                if login.running and slot < planned:
                    login.spent_ns[self._window] += length_ns

    def _set(self, slot: int, state: int) -> None:
        if slot >= len(self._states):
            self._states.extend(bytes(slot + 1 - len(self._states)))
        self._states[slot] = state

    def _deliver(self, slot: int) -> None:
        """Count the time of a login that has succeeded as delivered."""
        login = self._logins.pop(slot, None)
        for window_id, spent_ns in login.spent_ns.items() if login is not None else ():
            if window_id in self._accounts:
                self._accounts[window_id].logging_in_ns += spent_ns


# --- JSON ------------------------------------------------------------------------------------------------------------


def time_data(time: ConnectionTime) -> dict[str, int]:
    return {
        "planned_ms": time.planned_ms,
        "delivered_ms": time.delivered_ms,
        "logging_in_ms": time.logging_in_ms,
    }


def read_time(fields: JsonFields) -> ConnectionTime:
    time = ConnectionTime(**{name: fields.whole(name) for name in ConnectionTime.__slots__})
    if not time.logging_in_ms <= time.delivered_ms <= time.planned_ms:
        fields.refuse("has a delivered_ms that is not between logging_in_ms and planned_ms")
    return time
