"""Commands of a run's leader to its workers, typed, and their JSON in RUN_CONTROL_EVENTS.

Targets are absolute, so a command that arrives twice changes nothing. A command takes effect at once, or

    lead_ms       this long after the server has inserted its row: a slow or retried emission moves it
    effective_at  at a moment of the server's clock (ISO, UTC, no zone); how far away it is, is computed in SQL
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.model.run import Phase, worker_share
from loadgen.values import dataclass

WHY_MAX = 300  # characters
AHEAD_MAX_MS = 10**11  # three years: a later time is invalid


class EventType(StrEnum):
    START = "START"
    STOP = "STOP"
    SET_PHASE = "SET_PHASE"
    SET_WORKER_TARGET = "SET_WORKER_TARGET"


class EventScope(StrEnum):
    RUN = "RUN"
    WORKER_GROUP = "WORKER_GROUP"
    WORKER = "WORKER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """The recipients of a command."""

    scope: EventScope = EventScope.RUN
    worker_id: str | None = None  # scope WORKER
    worker_group_id: int | None = None  # scope WORKER_GROUP

    def includes(self, worker_id: str, worker_group_id: int) -> bool:
        if self.scope is EventScope.WORKER:
            return self.worker_id == worker_id
        if self.scope is EventScope.WORKER_GROUP:
            return self.worker_group_id == worker_group_id
        return True


ALL_WORKERS = Recipient()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    reason: str
    drain_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPhase:
    """Begin a window in this phase. If it has a duration, workers close it without a further event. COOLDOWN closes the
    open window."""

    phase: Phase
    step_id: int | None = None
    duration_ms: float | None = None
    lead_ms: int | None = None
    effective_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWorkerTarget:
    target_connections: int
    step_id: int | None = None
    ramp_s: float = 0.0
    effective_at: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRunTarget:
    """SET_WORKER_TARGET for all workers together: each keeps its share of `total_connections`."""

    total_connections: int
    step_id: int | None = None
    ramp_s: float = 0.0
    lead_ms: int | None = None
    effective_at: str | None = None
    reason: str = ""

    def share_of(self, worker: int, workers: int) -> SetWorkerTarget:
        """The target of the worker with this number."""
        return SetWorkerTarget(
            target_connections=worker_share(self.total_connections, worker, workers),
            step_id=self.step_id,
            ramp_s=self.ramp_s,
            effective_at=self.effective_at,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCommand:
    """A part of a plan, with the time at which it takes effect, relative to the zero of the plan."""

    at_ms: int
    command: SetPhase | SetRunTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Begin. With a plan, it takes effect at the zero of the plan, when all workers open the first window."""

    expected_workers: int
    lead_ms: int | None = None
    plan: tuple[PlannedCommand, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCommand:
    """An event with an unknown type or unreadable data: it is logged and ignored."""

    event_type: str
    why: str


KnownCommand = Start | Stop | SetPhase | SetWorkerTarget | SetRunTarget
Command = KnownCommand | UnknownCommand


class InvalidEvent(LoadgenError):
    """Invalid data of an event."""


def encode_command(command: KnownCommand, address: Recipient = ALL_WORKERS) -> tuple[EventType, str]:
    """The EVENT_TYPE and the EVENT_DATA of a command."""
    kind, data = _TYPES[type(command)], _written(command)
    data["scope"] = address.scope.value
    if address.worker_id is not None:
        data["worker_id"] = address.worker_id
    if address.worker_group_id is not None:
        data["worker_group_id"] = address.worker_group_id
    return kind, json.dumps(data, separators=(",", ":"), allow_nan=False)


def decode_command(event_type: str, event_data: str) -> tuple[Command, Recipient]:
    """The command of a stored event. Never raises, because an invalid event must not prevent the next ones."""
    try:
        data = json.loads(event_data)
        if not isinstance(data, dict):
            raise InvalidEvent("its data is not an object")
        address = Recipient(
            scope=EventScope(data.get("scope", EventScope.RUN)),
            worker_id=_optional(data, "worker_id", str),
            worker_group_id=_optional(data, "worker_group_id", int),
        )
        command = _READERS[EventType(event_type)](data)
        if isinstance(command, SetRunTarget) and address.scope is not EventScope.RUN:
            raise InvalidEvent(f"total_connections is for scope RUN, not {address.scope}")
        return command, address
    except (ValueError, TypeError, InvalidEvent, RecursionError) as error:
        return UnknownCommand(event_type=event_type, why=printable(str(error), WHY_MAX)), ALL_WORKERS


def _written(command: KnownCommand) -> dict[str, Any]:
    data: dict[str, Any]
    if isinstance(command, Start):
        data = {"expected_workers": command.expected_workers, "lead_ms": command.lead_ms}
        if command.plan:
            data["plan"] = [
                {"at_ms": part.at_ms, "event_type": _TYPES[type(part.command)].value, **_written(part.command)}
                for part in command.plan
            ]
    elif isinstance(command, Stop):
        data = {"reason": command.reason, "drain_timeout_seconds": command.drain_timeout_s}
    elif isinstance(command, SetPhase):
        data = {"phase": command.phase.value, "step_id": command.step_id}
        data |= {"duration_ms": command.duration_ms, "effective_at": command.effective_at}
        data |= {"lead_ms": command.lead_ms}
    else:
        if isinstance(command, SetRunTarget):
            data = {"total_connections": command.total_connections, "lead_ms": command.lead_ms}
        else:
            data = {"target_connections": command.target_connections}
        data |= {"step_id": command.step_id, "ramp_seconds": command.ramp_s}
        data |= {"effective_at": command.effective_at, "reason": command.reason}
    return {key: value for key, value in data.items() if value is not None}


def _read_start(data: dict[str, Any]) -> Command:
    plan = data.get("plan") or []
    if not isinstance(plan, list):
        raise InvalidEvent("plan is not a list")
    parts = tuple(map(_read_planned, plan))
    return Start(expected_workers=_whole(data, "expected_workers"), lead_ms=_lead_ms(data), plan=parts)


def _read_planned(data: Any) -> PlannedCommand:
    if not isinstance(data, dict):
        raise InvalidEvent("a part of the plan is not an object")
    command = _READERS[EventType(str(data.get("event_type")))](data)
    if not isinstance(command, (SetPhase, SetRunTarget)):
        raise InvalidEvent(f"{data.get('event_type')} cannot be a part of a plan")
    return PlannedCommand(at_ms=_whole(data, "at_ms", AHEAD_MAX_MS), command=command)


def _read_stop(data: dict[str, Any]) -> Command:
    return Stop(
        reason=_optional(data, "reason", str) or "",
        drain_timeout_s=_number(data, "drain_timeout_seconds", default=120.0),
    )


def _read_set_phase(data: dict[str, Any]) -> Command:
    duration_ms = _number(data, "duration_ms", default=-1.0)
    return SetPhase(
        phase=Phase(data.get("phase", "")),
        step_id=_optional(data, "step_id", int),
        duration_ms=None if duration_ms < 0 else duration_ms,
        lead_ms=_lead_ms(data),
        effective_at=_optional(data, "effective_at", str),
    )


def _read_set_worker_target(data: dict[str, Any]) -> Command:
    more: dict[str, Any] = {
        "step_id": _optional(data, "step_id", int),
        "ramp_s": _number(data, "ramp_seconds", default=0.0),
        "effective_at": _optional(data, "effective_at", str),
        "reason": _optional(data, "reason", str) or "",
    }
    if "target_connections" in data or "total_connections" not in data:
        return SetWorkerTarget(target_connections=_whole(data, "target_connections"), **more)
    return SetRunTarget(total_connections=_whole(data, "total_connections"), lead_ms=_lead_ms(data), **more)


_TYPES = {
    Start: EventType.START,
    Stop: EventType.STOP,
    SetPhase: EventType.SET_PHASE,
    SetWorkerTarget: EventType.SET_WORKER_TARGET,
    SetRunTarget: EventType.SET_WORKER_TARGET,
}
_READERS = {
    EventType.START: _read_start,
    EventType.STOP: _read_stop,
    EventType.SET_PHASE: _read_set_phase,
    EventType.SET_WORKER_TARGET: _read_set_worker_target,
}


def _whole(data: dict[str, Any], key: str, limit: int = 2**53) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise InvalidEvent(f"{key} is not a number of at least 0" + (f" below {limit}" if limit < 2**53 else ""))
    return value


def _lead_ms(data: dict[str, Any]) -> int | None:
    return None if data.get("lead_ms") is None else _whole(data, "lead_ms", AHEAD_MAX_MS)


def _number(data: dict[str, Any], key: str, *, default: float) -> float:
    value = data.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e12:
        raise InvalidEvent(f"{key} is not a number")
    return float(value)


def _optional(data: dict[str, Any], key: str, kind: type) -> Any:
    value = data.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise InvalidEvent(f"{key} is not a {kind.__name__}")
    return value
