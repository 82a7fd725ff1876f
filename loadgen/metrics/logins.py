"""The logins of one worker: how many there were, why again, and what the newest failures were."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import Any

from loadgen.log import printable
from loadgen.metrics.json_fields import JsonFields
from loadgen.values import dataclass

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
