"""The `load` section: how much load, and for how long. Some keys belong to one mode only, see KEYS_OF_MODE."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from loadgen.scenario.field import Duration, Flag, Number, OneOf, Rate, Whole
from loadgen.scenario.field import Kind as FieldKind
from loadgen.scenario.field import JsonSchema, Wrong
from loadgen.scenario.generator import Section
from loadgen.scenario.scenario import Arrival, LoadMode, Pin, Profile
from dataclasses import dataclass

CONNECTIONS_MAX = 10_000
WORKERS_MAX = 1_000

Connections = Annotated[int, Whole(low=1, high=CONNECTIONS_MAX)]
MaybeConnections = Annotated[int | None, Whole(low=1, high=CONNECTIONS_MAX, nullable=True)]
Ramp = Annotated[float, Duration(high_s=86_400)]

_LEVELS = frozenset({"min_connections", "duration", "ramp", "stages", "per_worker_connections"})
KEYS_OF_MODE: dict[LoadMode, frozenset[str]] = {
    LoadMode.CONCURRENCY: _LEVELS | {"connections"},
    LoadMode.RATE: _LEVELS - {"min_connections"} | {"rate", "arrival", "max_connections", "max_lag"},
    LoadMode.FIND_MAX: frozenset({"min_connections", "find_max"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers(FieldKind):
    """A number, or auto."""

    def parse(self, value: object) -> int | None:
        if value == "auto":
            return None
        try:
            return Whole(low=1, high=WORKERS_MAX).parse(value)
        except Wrong as wrong:
            raise Wrong(wrong.what, f"write auto or a number from 1 to {WORKERS_MAX}") from None

    def schema(self) -> JsonSchema:
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": WORKERS_MAX}, {"enum": ["auto"]}]}


class StageSection(Section):
    duration: Annotated[float, Duration(low_s=0.1)] = Field(description="How long it lasts.")
    connections: MaybeConnections = Field(default=None, description="Mode concurrency: how many connections.")
    rate: Annotated[float | None, Rate(nullable=True)] = Field(default=None, description="Mode rate: 200/s.")
    ramp: Ramp = Field(default="0s", description="Part of the duration in which the level changes linearly.")


class FindMaxSection(Section):
    """The search for the largest number of connections that still holds."""

    start: Connections = Field(default=5, description="Connections of the first step.")
    increment: Connections = Field(default=10, description="How many more each step.")
    step: Annotated[float, Duration(low_s=0.1, high_s=86_400)] = Field(default="30s", description="Measured per step.")
    settle: Annotated[float, Duration(high_s=3_600)] = Field(default="3s", description="Not measured, before each step.")
    maximum: Connections = Field(default=500, description="Never more than this.")
    qps_stability_pct: Annotated[float, Number(low=0, high=100, above=True)] = Field(default=5)
    latency_stability_pct: Annotated[float, Number(low=0, high=10_000, above=True)] = Field(default=20)
    max_error_rate_pct: Annotated[float, Number(low=0, high=100)] = Field(default=1)
    stop_on_queue: Annotated[bool, Flag()] = Field(default=True, description="A step in which statements queue fails.")
    refine: Annotated[bool, Flag()] = Field(default=True, description="Bisect between the best and the failed step.")


class LoadSection(Section):
    """How much load, and for how long."""

    containers: ClassVar[frozenset[str]] = frozenset({"stages", "find_max"})
    mode: Annotated[LoadMode, OneOf(words=LoadMode)] = Field(
        default="concurrency",
        description="concurrency: so many connections (closed loop); rate: so many statements per second (open loop); "
        "find_max: search for the most connections that hold.",
    )
    connections: Connections = Field(default=32, description="Mode concurrency: how many, over all workers.")
    min_connections: Connections = Field(default=1, description="Where a ramp begins; no level may be below it.")
    profile: Annotated[Profile, OneOf(words=Profile)] = Field(
        default="thread", description="process: one client per worker process, for isolation."
    )
    pin: Annotated[Pin, OneOf(words=Pin)] = Field(default="auto", description="auto: each local worker on one core.")
    workers: Annotated[int | None, Workers()] = Field(
        default="auto", description="Processes; auto: one per 25 connections, at most one per core."
    )
    per_worker_connections: MaybeConnections = Field(
        default=None, description="Connections of each worker; null: an even split."
    )
    warmup: Annotated[float, Duration()] = Field(default="10s", description="Load that is not measured, before.")
    duration: Annotated[float, Duration(low_s=0.1)] = Field(default="60s", description="The measurement.")
    ramp: Ramp = Field(default="0s", description="The first level is reached linearly in this time, from the start.")
    stages: list[StageSection] = Field(default=[], description="Parts of the measurement with levels of their own.")
    rate: Annotated[float | None, Rate(nullable=True)] = Field(default=None, description="Mode rate: 500/s.")
    arrival: Annotated[Arrival, OneOf(words=Arrival)] = Field(
        default="poisson", description="Mode rate: gaps as of independent users, or all alike."
    )
    max_connections: Connections = Field(default=64, description="Mode rate: the most statements under way at once.")
    max_lag: Annotated[float | None, Duration(low_s=0.001, nullable=True)] = Field(
        default=None, description="Mode rate: give up (and count) what is later than this; null: wait."
    )
    find_max: FindMaxSection = Field(default=FindMaxSection())
