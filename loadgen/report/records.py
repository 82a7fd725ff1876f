"""Everything a report is made of, as the tables have it. Two readers of the same tables make the same report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from loadgen.metrics.window import MergedWindows
from loadgen.model.credits import WarehouseKind
from loadgen.report.timeline import PointTimes, RunSecond
from loadgen.scenario.model import Scenario


class EventKind(StrEnum):
    """What an event on the time axis is; each is drawn differently."""

    START = "start"
    STOP = "stop"
    LEVEL = "level"  # a phase, a stage or a number of connections began
    HELD = "held"  # a step of a search was judged
    BROKEN = "broken"
    LIMITED = "limited"  # it is no evidence about the server: the client was the limit
    LOST = "lost"  # a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that happened, at a moment of the run."""

    at_s: float
    label: str  # a few characters, for charts
    text: str  # one sentence
    kind: EventKind = EventKind.LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehousePollPoint:
    """The warehouse at a moment of the run."""

    at_s: float
    running: int | None
    queued: int | None
    started_clusters: int | None
    size: str | None
    kind: WarehouseKind = WarehouseKind.GEN1


@dataclass(frozen=True, slots=True, kw_only=True)
class FindMaxStepResult:
    """A step of a search for the maximum: what was measured in it, and the verdict."""

    number: int
    target: int
    succeeded: int
    failed: int
    qps: float | None
    latency_ms: Mapping[str, Any]  # as in summary.json
    error_rate: float | None
    queue_seen: bool
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHost:
    """Where a worker ran."""

    hostname: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWarning:
    """A warning or an error of a worker."""

    moment: datetime  # naive UTC
    worker_id: str | None
    level: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A finished run. Times are naive UTC, or seconds since `started`."""

    summary: Mapping[str, Any]  # summary.json
    template_id: str
    created: datetime
    started: datetime | None  # None: it never began
    ended: datetime | None
    reason: str | None
    enrichment_status: str | None
    config: str  # of loadgen.scenario.frozen; secrets are ${NAME}
    scenario: Scenario | None  # None: written by another version, and only `config` can be shown
    seconds: tuple[RunSecond, ...] = ()
    span_s: int = 1  # seconds in each point of a chart
    point_times: PointTimes = field(default_factory=dict)  # response times by statement; empty: not stored
    merged: MergedWindows | None = None  # the windows the summary was made of; None: they cannot be had
    merged_missing: str | None = None  # why
    events: tuple[RunEvent, ...] = ()  # in the order of time
    polls: tuple[WarehousePollPoint, ...] = ()
    steps: tuple[FindMaxStepResult, ...] = ()
    machines: Mapping[str, WorkerHost] = field(default_factory=dict)  # by worker id
    logs: tuple[WorkerWarning, ...] = ()
    unreadable: tuple[str, ...] = ()  # rows of the run that are left out, and why

    def statement_names(self) -> list[str]:
        """In the order of the scenario; what it does not know comes after, by name."""
        measured = self.summary["statements"]
        known = [] if self.scenario is None else [one.name for one in self.scenario.workload.statements]
        return [name for name in known if name in measured] + sorted(set(measured) - set(known))
