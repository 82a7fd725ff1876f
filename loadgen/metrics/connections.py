"""The connections of one worker: how much of the planned connection time was there, and how its logins went.

Connection time is counted by slot. At a moment the plan wants the first n slots; delivered are those of them whose
connection is open, or is being opened again. So a connection beyond the plan never makes up for one that is missing,
and nothing delivered in one second makes up for another.

    open          delivered
    logging in    delivered when the slot was open before, or was refused, unless this login is refused too
    otherwise     missing: a first login, a refused one, the pause after it, waiting for a turn to log in, the pause
                  after statements that got no answer

While the process itself is stopped nothing is sent on any of them: that time is missing as well (`while_running`).
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
from loadgen.workload.schedule import Ramp

# --- Logins: how many there were, why again, and what the newest failures were ---------------------------------------

FAILURES_KEPT = 5  # the newest of each kind: every heartbeat carries them
TEXT_MAX = 200  # characters of one
_TOGETHER = timedelta(seconds=1)


class ReconnectReason(StrEnum):
    """Why a client logged in again."""

    MAX_AGE = "max_age"
    MAX_STATEMENTS = "max_statements"
    SESSION_LOST = "session_lost"  # expired, or ended by the server
    ERROR = "error"  # what it was in the middle of could not be undone, or never came back


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFailure:
    """A login that was refused, or a connection that was lost; or several with the same cause within a second."""

    at: datetime  # naive UTC, by the worker's clock: of the first, as are slot and text
    slot: int | None = None
    reason: ReconnectReason | None = None  # why the connection was lost; None: a login was refused
    code: int | None
    text: str
    count: int = 1

    @classmethod
    def of(
        cls, at: datetime, slot: int, code: int | None, text: str, reason: ReconnectReason | None = None
    ) -> ConnectionFailure:
        return cls(at=at.replace(tzinfo=None), slot=slot, reason=reason, code=code, text=printable(text, TEXT_MAX))

    def is_like(self, other: ConnectionFailure) -> bool:
        """The text of an error with a code may contain the number of a session."""
        same = (self.reason, self.code) == (other.reason, other.code)
        return same and (self.code is not None or self.text == other.text)


def keep_failure(kept: deque[ConnectionFailure], new: ConnectionFailure) -> None:
    """A server that ends all sessions at once takes one entry, and does not push out what was before."""
    for place, one in enumerate(kept):
        if one.is_like(new) and new.at - one.at < _TOGETHER:
            kept[place] = replace(one, count=one.count + new.count)
            return
    kept.append(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginCounts:
    """All logins of a worker so far. Driver retries are not among them: the driver has one attempt for each request."""

    opened: int = 0  # logins that worked
    reopened: Mapping[ReconnectReason, int] = field(default_factory=dict)  # those of them that were not a slot's first
    refused: int = 0  # login attempts that failed
    last_refused: tuple[ConnectionFailure, ...] = ()  # oldest first
    last_lost: tuple[ConnectionFailure, ...] = ()  # those replaced as planned are not among them

    def __add__(self, other: LoginCounts) -> LoginCounts:
        return LoginCounts(
            opened=self.opened + other.opened,
            reopened=Counter(self.reopened) + Counter(other.reopened),
            refused=self.refused + other.refused,
            last_refused=_newest(self.last_refused, other.last_refused),
            last_lost=_newest(self.last_lost, other.last_lost),
        )

    def since(self, before: LoginCounts) -> LoginCounts:
        """The counts of what came after `before`; all of them when the process is a new one, which began at 0."""
        if before.opened > self.opened or before.refused > self.refused:
            before = LoginCounts()
        return LoginCounts(
            opened=self.opened - before.opened,
            reopened=Counter(self.reopened) - Counter(before.reopened),
            refused=self.refused - before.refused,
        )

    @property
    def lost(self) -> int:
        """Those opened again that were not replaced as planned."""
        return sum(self.reopened.get(reason, 0) for reason in (ReconnectReason.SESSION_LOST, ReconnectReason.ERROR))

    def counts(self) -> dict[str, Any]:
        """As snapshots and reports write it; every reason is there."""
        reopened = {reason.value: self.reopened.get(reason, 0) for reason in ReconnectReason}
        return {"opened": self.opened, "reopened": reopened, "refused": self.refused}


def _newest(*kept: tuple[ConnectionFailure, ...]) -> tuple[ConnectionFailure, ...]:
    return tuple(sorted(chain(*kept), key=lambda failure: failure.at)[-FAILURES_KEPT:])


# --- JSON ------------------------------------------------------------------------------------------------------------


def logins_data(logins: LoginCounts) -> dict[str, Any]:
    """For a heartbeat, and for the result of a worker."""
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
    """Raises InvalidMetrics when it cannot be what was written."""
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
    """The counts of a second come without them."""
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
    """Connection-milliseconds of a window in one worker; they add."""

    planned_ms: int = 0  # by the targets that the worker was given
    delivered_ms: int = 0
    logging_in_ms: int = 0  # of what was delivered

    def __add__(self, other: ConnectionTime) -> ConnectionTime:
        return ConnectionTime(
            planned_ms=self.planned_ms + other.planned_ms,
            delivered_ms=self.delivered_ms + other.delivered_ms,
            logging_in_ms=self.logging_in_ms + other.logging_in_ms,
        )

    def while_running(self, stopped_ms: int, elapsed_ms: int) -> ConnectionTime:
        """Without the time in which the process was stopped."""
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
    """A slot that was open before, or refused, and is to be open again."""

    running: bool = False  # False: it waits for its turn
    spent_ns: Counter[int] = field(default_factory=Counter)  # by window


class ConnectionMeter:
    """Any thread. Clients report what happens to their connections, the ramp controller what is planned, with times."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything here
        self._now_ns = 0  # everything before it is accounted for
        self._line = Ramp(origin=0, target=0)
        self._states = bytearray()  # by slot
        self._logins: dict[int, _Login] = {}
        self._began_ns: dict[int, int] = {}  # attempts under way, first ones too
        self._accounts: dict[int, _Account] = {}
        self._window: int | None = None
        self._opened, self._refused = 0, 0
        self._reopened: Counter[ReconnectReason] = Counter()
        self._last_refused: deque[ConnectionFailure] = deque(maxlen=FAILURES_KEPT)
        self._last_lost: deque[ConnectionFailure] = deque(maxlen=FAILURES_KEPT)
        self.slowest_login_ns = 0
        # Since when every planned connection has been open, or being opened again; None: one is missing. Clients of an
        # open loop read it with every statement, without the lock.
        self.complete_since_ns: int | None = None

    # --- what is planned ---------------------------------------------------------------------------------------------

    def plan(self, line: Ramp, at_ns: int) -> None:
        """From then on this number of connections is planned."""
        with self._lock:
            self._advance(at_ns)
            self._line = line
            self._note_complete(at_ns)

    def open(self, window_id: int, at_ns: int, closes_ns: int | None) -> None:
        """A window begins, a moment ago perhaps; it takes the place of the one that is open."""
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
        """Of a window, until now. A login under way counts as if it will work."""
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

    def forget(self, window_id: int) -> None:
        with self._lock:
            self._accounts.pop(window_id, None)

    # --- what happens to a connection --------------------------------------------------------------------------------

    def login_waits(self, slot: int, now_ns: int) -> None:
        """It is not its turn yet: others log in."""
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _ABSENT)
            self._began_ns.pop(slot, None)
            if slot in self._logins:
                self._logins[slot].running = False
            self._note_complete(now_ns)

    def login_began(self, slot: int, now_ns: int, *, again: bool) -> None:
        """`again`: the slot was open before, or the last attempt was refused."""
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _ABSENT)
            self._began_ns[slot] = now_ns
            if again:
                self._logins.setdefault(slot, _Login()).running = True
            self._note_complete(now_ns)

    def login_succeeded(self, slot: int, now_ns: int, why: ReconnectReason | None) -> None:
        """`why` it logged in again; None: for the first time."""
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
            self._logins.pop(slot, None)  # and with it what it spent: it was missing
            self._began_ns.pop(slot, None)
            self._refused += 1
            keep_failure(self._last_refused, refusal)
            self._note_complete(now_ns)

    def lost(self, failure: ConnectionFailure) -> None:
        """It is of no use any more; login_succeeded() counts it when its client is back."""
        with self._lock:
            keep_failure(self._last_lost, failure)

    def paused(self, slot: int, now_ns: int) -> None:
        """Its connection is open, and its client sends nothing for a while."""
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _ABSENT)
            self._note_complete(now_ns)

    def resumed(self, slot: int, now_ns: int) -> None:
        """The pause is over, and the connection still of use."""
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _OPEN)
            self._note_complete(now_ns)

    def gone(self, slot: int, now_ns: int) -> None:
        """Its client has left."""
        with self._lock:
            self._advance(now_ns)
            self._set(slot, _ABSENT)
            self._deliver(slot)
            self._began_ns.pop(slot, None)
            self._note_complete(now_ns)

    # --- what it comes to --------------------------------------------------------------------------------------------

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

    # --- under the lock ----------------------------------------------------------------------------------------------

    def _note_complete(self, now_ns: int) -> None:
        """A connection, or the plan, has changed."""
        planned = self._line.at(now_ns)
        again = sum(login.running and slot < planned for slot, login in self._logins.items())
        if self._states.count(_OPEN, 0, planned) + again < planned:
            self.complete_since_ns = None
        elif self.complete_since_ns is None:
            self.complete_since_ns = now_ns

    def _advance(self, to_ns: int) -> None:
        """Account for the time until then, in which nothing changed."""
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
        """What a login took, now that it is over."""
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
        fields.refuse("has delivered more than was planned, or less than it logged in for")
    return time
