"""What a run's leader tells its workers: typed commands, and the JSON they travel as in RUN_CONTROL_EVENTS.

Targets are absolute, so a command that arrives twice changes nothing. `effective_at` is a moment of the server's clock
(ISO, UTC, no zone); how far away it is, is computed in SQL when the event is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from loadgen.errors import LoadgenError
from loadgen.log import plain
from loadgen.model.run import Phase

WHY_MAX = 300  # characters


class EventType(StrEnum):
    START = "START"
    STOP = "STOP"
    SET_PHASE = "SET_PHASE"
    SET_WORKER_TARGET = "SET_WORKER_TARGET"


class Scope(StrEnum):
    RUN = "RUN"
    WORKER_GROUP = "WORKER_GROUP"
    WORKER = "WORKER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Whom a command is for."""

    scope: Scope = Scope.RUN
    worker_id: str | None = None  # scope WORKER
    worker_group_id: int | None = None  # scope WORKER_GROUP

    def includes(self, worker_id: str, worker_group_id: int) -> bool:
        if self.scope is Scope.WORKER:
            return self.worker_id == worker_id
        if self.scope is Scope.WORKER_GROUP:
            return self.worker_group_id == worker_group_id
        return True


EVERYBODY = Address()


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    expected_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    reason: str
    drain_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPhase:
    """Begin a window in this phase. With a duration, workers close it themselves, on time."""

    phase: Phase
    step_id: int | None = None
    duration_ms: float | None = None
    effective_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWorkerTarget:
    target_connections: int
    step_id: int | None = None
    ramp_s: float = 0.0
    effective_at: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A type this version does not know, or data it cannot read: logged and passed over."""

    event_type: str
    why: str


Command = Start | Stop | SetPhase | SetWorkerTarget | Unknown


class NotAnEvent(LoadgenError):
    """Data of an event that makes no sense."""


def encode(command: Start | Stop | SetPhase | SetWorkerTarget, address: Address = EVERYBODY) -> tuple[EventType, str]:
    """EVENT_TYPE and EVENT_DATA."""
    kind, data = _TYPES[type(command)], _written(command)
    data["scope"] = address.scope.value
    if address.worker_id is not None:
        data["worker_id"] = address.worker_id
    if address.worker_group_id is not None:
        data["worker_group_id"] = address.worker_group_id
    return kind, json.dumps(data, separators=(",", ":"), allow_nan=False)


def decode(event_type: str, event_data: str) -> tuple[Command, Address]:
    """What was written. Never raises for what it finds: one odd event must not stop a worker from seeing the next."""
    try:
        data = json.loads(event_data)
        if not isinstance(data, dict):
            raise NotAnEvent("its data is not an object")
        address = Address(
            scope=Scope(data.get("scope", Scope.RUN)),
            worker_id=_optional(data, "worker_id", str),
            worker_group_id=_optional(data, "worker_group_id", int),
        )
        return _READERS[EventType(event_type)](data), address
    except (ValueError, NotAnEvent, RecursionError) as error:
        return Unknown(event_type=event_type, why=plain(str(error), WHY_MAX)), EVERYBODY


def _written(command: Start | Stop | SetPhase | SetWorkerTarget) -> dict[str, Any]:
    if isinstance(command, Start):
        return {"expected_workers": command.expected_workers}
    if isinstance(command, Stop):
        return {"reason": command.reason, "drain_timeout_seconds": command.drain_timeout_s}
    if isinstance(command, SetPhase):
        data: dict[str, Any] = {"phase": command.phase.value, "step_id": command.step_id}
        data |= {"duration_ms": command.duration_ms, "effective_at": command.effective_at}
    else:
        data = {"target_connections": command.target_connections, "step_id": command.step_id}
        data |= {"ramp_seconds": command.ramp_s, "effective_at": command.effective_at, "reason": command.reason}
    return {key: value for key, value in data.items() if value is not None}


def _read_start(data: dict[str, Any]) -> Command:
    return Start(expected_workers=_whole(data, "expected_workers"))


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
        effective_at=_optional(data, "effective_at", str),
    )


def _read_set_worker_target(data: dict[str, Any]) -> Command:
    return SetWorkerTarget(
        target_connections=_whole(data, "target_connections"),
        step_id=_optional(data, "step_id", int),
        ramp_s=_number(data, "ramp_seconds", default=0.0),
        effective_at=_optional(data, "effective_at", str),
        reason=_optional(data, "reason", str) or "",
    )


_TYPES = {
    Start: EventType.START,
    Stop: EventType.STOP,
    SetPhase: EventType.SET_PHASE,
    SetWorkerTarget: EventType.SET_WORKER_TARGET,
}
_READERS = {
    EventType.START: _read_start,
    EventType.STOP: _read_stop,
    EventType.SET_PHASE: _read_set_phase,
    EventType.SET_WORKER_TARGET: _read_set_worker_target,
}


def _whole(data: dict[str, Any], key: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise NotAnEvent(f"{key} is not a number of at least 0")
    return value


def _number(data: dict[str, Any], key: str, *, default: float) -> float:
    value = data.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e12:
        raise NotAnEvent(f"{key} is not a number")
    return float(value)


def _optional(data: dict[str, Any], key: str, kind: type) -> Any:
    value = data.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise NotAnEvent(f"{key} is not a {kind.__name__}")
    return value
