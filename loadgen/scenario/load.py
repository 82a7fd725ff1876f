"""The `load` section: how much load, and for how long. Some keys belong to one mode only, see KEYS_OF_MODE."""

from typing import Annotated, ClassVar

from loadgen.scenario.keys import ScenarioSection, key
from loadgen.scenario.model import ArrivalProcess, CorePinning, LoadMode, WorkerProfile
from loadgen.scenario.types import (
    Boolean,
    Duration,
    Integer,
    InvalidValue,
    JsonSchema,
    Label,
    Number,
    OneOf,
    Rate,
    ValueType,
)

CONNECTIONS_MAX = 10_000
WORKERS_MAX = 1_000

Connections = Annotated[int, Integer(low=1, high=CONNECTIONS_MAX)]
MaybeConnections = Annotated[int | None, Integer(low=1, high=CONNECTIONS_MAX, nullable=True)]
Ramp = Annotated[float, Duration(high_s=86_400)]

_LEVELS = frozenset({"min_connections", "duration", "ramp", "stages", "per_worker_connections"})
KEYS_OF_MODE: dict[LoadMode, frozenset[str]] = {
    LoadMode.CONCURRENCY: _LEVELS | {"connections"},
    LoadMode.RATE: _LEVELS - {"min_connections"} | {"rate", "arrival", "max_connections", "max_lag"},
    LoadMode.FIND_MAX: frozenset({"min_connections", "find_max"}),
}


class WorkerCount(ValueType):
    """A number, or auto."""

    def parse(self, value: object) -> int | None:
        if value == "auto":
            return None
        try:
            return Integer(low=1, high=WORKERS_MAX).parse(value)
        except InvalidValue as wrong:
            raise InvalidValue(wrong.what, f"write auto or a number from 1 to {WORKERS_MAX}") from None

    def schema(self) -> JsonSchema:
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": WORKERS_MAX}, {"enum": ["auto"]}]}


class StageSection(ScenarioSection):
    duration: Annotated[float, Duration(low_s=0.1)] = key(description="How long it lasts.")
    connections: MaybeConnections = key(default=None, description="Mode concurrency: how many connections.")
    rate: Annotated[float | None, Rate(nullable=True)] = key(default=None, description="Mode rate: 200/s.")
    ramp: Ramp = key(default="0s", description="Part of the duration in which the level changes linearly.")
    name: Annotated[str | None, Label(nullable=True)] = key(
        default=None, description="For results and thresholds (peak.p95 < 50ms); null: stage 1, stage 2 …"
    )


class FindMaxSection(ScenarioSection):
    """The search for the largest number of connections that still holds."""

    start: Connections = key(default=5, description="Connections of the first step.")
    increment: Connections = key(default=10, description="How many more each step.")
    step: Annotated[float, Duration(low_s=0.1, high_s=86_400)] = key(default="30s", description="Measured per step.")
    settle: Annotated[float, Duration(high_s=3_600)] = key(default="3s", description="Not measured, before each step.")
    maximum: Connections = key(default=500, description="Never more than this.")
    qps_stability_pct: Annotated[float, Number(low=0, high=100, above=True)] = key(default=5)
    latency_stability_pct: Annotated[float, Number(low=0, high=10_000, above=True)] = key(default=20)
    max_error_rate_pct: Annotated[float, Number(low=0, high=100)] = key(default=1)
    stop_on_queue: Annotated[bool, Boolean()] = key(default=True, description="A step in which statements queue fails.")
    refine: Annotated[bool, Boolean()] = key(default=True, description="Bisect between the best and the failed step.")


class LoadSection(ScenarioSection):
    """How much load, and for how long."""

    containers: ClassVar[frozenset[str]] = frozenset({"stages", "find_max"})
    mode: Annotated[LoadMode, OneOf(words=LoadMode)] = key(
        default="concurrency",
        description="concurrency: so many connections (closed loop); rate: so many statements per second (open loop); "
        "find_max: search for the most connections that hold.",
    )
    connections: Connections = key(default=32, description="Mode concurrency: how many, over all workers.")
    min_connections: Connections = key(default=1, description="Where a ramp begins; no level may be below it.")
    profile: Annotated[WorkerProfile, OneOf(words=WorkerProfile)] = key(
        default="thread", description="process: one client per worker process, for isolation; with find_max at most 64."
    )
    pin: Annotated[CorePinning, OneOf(words=CorePinning)] = key(
        default="auto", description="auto: each local worker on one core."
    )
    workers: Annotated[int | None, WorkerCount()] = key(
        default="auto", description="Processes; auto: one per 25 connections, at most one per core."
    )
    per_worker_connections: MaybeConnections = key(
        default=None, description="Connections of each worker; null: an even split."
    )
    warmup: Annotated[float, Duration()] = key(default="10s", description="Load that is not measured, before.")
    duration: Annotated[float, Duration(low_s=0.1)] = key(default="60s", description="The measurement.")
    ramp: Ramp = key(default="0s", description="The first level is reached linearly in this time, from the start.")
    stages: list[StageSection] = key(default=[], description="Parts of the measurement with levels of their own.")
    rate: Annotated[float | None, Rate(nullable=True)] = key(default=None, description="Mode rate: 500/s.")
    arrival: Annotated[ArrivalProcess, OneOf(words=ArrivalProcess)] = key(
        default="poisson", description="Mode rate: gaps as of independent users, or all alike."
    )
    max_connections: Connections = key(default=64, description="Mode rate: the most statements under way at once.")
    max_lag: Annotated[float | None, Duration(low_s=0.001, nullable=True)] = key(
        default=None, description="Mode rate: give up (and count) what is later than this; null: wait."
    )
    find_max: FindMaxSection = key(default=FindMaxSection())
