"""RUN_CONTROL_EVENTS: commands to the workers, numbered without gaps and read in order.

The leader numbers its events. Each event gets the number after the last one in the table, so a reader never sees 5
before 4 exists. The key rejects a number that another writer has used. An event also has an id, which prevents that it
is inserted twice after a lost answer.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from datetime import datetime, timedelta
from typing import Any

from loadgen.control.session import (
    ControlFailed,
    ControlSession,
    ParsedRows,
    RowUnreadable,
    clean_json,
    load_queries,
    read_rows,
)
from loadgen.control.tables.run_leases import Lease
from loadgen.control.tables.run_status import Fenced
from loadgen.model.event import (
    ALL_WORKERS,
    Command,
    KnownCommand,
    Recipient,
    SetPhase,
    SetRunTarget,
    SetWorkerTarget,
    Start,
    UnknownCommand,
    decode_command,
    encode_command,
)
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

BATCH = 100  # rows per poll; also in the SQL, where a bind would prevent the fast path
_COLLISIONS_MAX = 500
_PAUSE_MAX_S = 0.05

_Q = load_queries("run_control_events")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """A command to insert. The id identifies it when it is sent again."""

    command: KnownCommand
    address: Recipient = ALL_WORKERS
    event_id: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    sequence_id: int
    event_id: str
    epoch: int
    command: Command
    address: Recipient
    age_ms: int
    due_in_ms: int | None  # until it takes effect, by the clock of the server; None: immediately
    server_time: datetime | None = None  # naive UTC, when it was read


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvent:
    """An event of a run that has ended."""

    command: Command
    address: Recipient
    created_at: datetime  # naive UTC

    @property
    def moment(self) -> datetime:
        """The time at which it took effect."""
        return effective_time(self.command, self.created_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedCommand:
    """A window or a target, announced by a separate event or in the plan of START."""

    at: datetime  # naive UTC
    command: SetPhase | SetWorkerTarget | SetRunTarget
    address: Recipient


def emit(session: ControlSession, retries: RetryPolicy, lease: Lease, new: NewEvent, number: int = 1) -> int:
    """Append an event and return its number: `number`, which the caller expects to be free, or a later one.

    Raises Fenced if the lease has expired.
    """
    kind, data = encode_command(new.command, new.address)
    content = clean_json(data)

    def write() -> int:
        free = number
        for _ in range(_COLLISIONS_MAX):
            try:
                binds = (free, new.event_id, kind, content, lease.key, lease.epoch, lease.owner)
                if session.execute(_Q["emit"], *binds) == 0:
                    raise Fenced(f"the lease of run {lease.key} (epoch {lease.epoch}) has expired")
                return free
            except ControlFailed as error:
                if not error.failure.is_duplicate_key:
                    raise
            if (found := look_up()) is not None:
                return found
            retries.clock.wait(retries.stop, random.uniform(0, _PAUSE_MAX_S))  # another writer used the number
            free = int(session.fetch(_Q["last"], lease.key)[0][0] or 0) + 1
        raise Fenced(f"run {lease.key} has too many writers: no event number could be allocated")

    def look_up() -> int | None:
        rows = session.fetch(_Q["find"], new.event_id)
        return int(rows[0][0]) if rows else None

    return retries.settle(write, look_up)


def poll(session: ControlSession, run_id: str, after: int) -> list[Event]:
    """The next events after a number, at most BATCH of them, in order."""
    return [
        replace(_event(int(number), event_id, int(epoch), kind, data, int(age_ms), due_in_ms), server_time=server_time)
        for number, event_id, epoch, kind, data, age_ms, due_in_ms, server_time in session.fetch(
            _Q["poll"], run_id, after
        )
    ]


def catch_up(session: ControlSession, run_id: str, after: int) -> Iterator[Event]:
    """All events after a number, batch by batch."""
    while True:
        batch = poll(session, run_id, after)
        yield from batch
        if len(batch) < BATCH:
            return
        after = batch[-1].sequence_id


def history(session: ControlSession, run_id: str) -> ParsedRows[PastEvent]:
    """All events of a run that has ended, in order."""
    return read_rows(session.fetch(_Q["history"], run_id), _past_event)


def announced(said: Sequence[PastEvent]) -> Iterator[AnnouncedCommand]:
    """The windows and targets of a run with the times at which they took effect, in the order of their events."""
    for event in said:
        command = event.command
        if isinstance(command, Start):
            for part in command.plan:
                at = event.moment + timedelta(milliseconds=part.at_ms)
                yield AnnouncedCommand(at=at, command=part.command, address=event.address)
        elif isinstance(command, (SetPhase, SetWorkerTarget, SetRunTarget)):
            yield AnnouncedCommand(at=event.moment, command=command, address=event.address)


def effective_time(command: Command, created_at: datetime) -> datetime:
    """The time at which a command takes effect that was inserted at `created_at`."""
    if isinstance(command, (SetPhase, SetWorkerTarget, SetRunTarget)) and command.effective_at is not None:
        with suppress(ValueError):  # an unreadable time means immediately, as in poll()
            return datetime.fromisoformat(command.effective_at).replace(tzinfo=None)
    return created_at + timedelta(milliseconds=lead_ms(command) or 0)


def _past_event(row: tuple[Any, ...]) -> PastEvent:
    number, kind, data, created_at = row
    command, address = decode_command(kind, data)
    if isinstance(command, UnknownCommand):
        raise RowUnreadable("RUN_CONTROL_EVENTS", f"{number}", f"{command.event_type}: {command.why}")
    found = PastEvent(command=command, address=address, created_at=created_at)
    try:
        _ = found.moment
        list(announced([found]))
    except OverflowError:
        raise RowUnreadable("RUN_CONTROL_EVENTS", f"{number}", f"created_at is {created_at}") from None
    return found


def _event(number: int, event_id: str, epoch: int, kind: str, data: str, age_ms: int, due_in_ms: int | None) -> Event:
    command, address = decode_command(kind, data)
    ahead_ms = lead_ms(command)
    if due_in_ms is None and ahead_ms is not None:
        due_in_ms = ahead_ms - age_ms
    return Event(
        sequence_id=number,
        event_id=event_id,
        epoch=epoch,
        command=command,
        address=address,
        age_ms=age_ms,
        due_in_ms=None if due_in_ms is None else int(due_in_ms),
    )


def lead_ms(command: Command) -> int | None:
    """The time from the insertion of a command to its effect; None: the command has none."""
    return command.lead_ms if isinstance(command, (Start, SetPhase, SetRunTarget)) else None
