"""The results of a run, made from the rows of its workers. Pure, except for reading the rows.

Final windows come from WINDOW_RESULTS. If a worker died, the windows in its last heartbeat that were not stored are
used as well, and the result names the gap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from typing import Any

from loadgen.clock import utc_iso
from loadgen.control.session import ParsedRows
from loadgen.control.tables import run_control_events
from loadgen.control.tables.run_control_events import PastEvent
from loadgen.control.tables.run_status import Run
from loadgen.control.tables.test_results import ResultRow
from loadgen.errors import LoadgenError
from loadgen.metrics.connections import (
    PLANNED,
    ConnectionFailure,
    LoginCounts,
    ReconnectReason,
    failure_data,
    read_logins,
)
from loadgen.metrics.json_fields import JsonFields
from loadgen.metrics.window import (
    ClientResourceUse,
    MergedWindows,
    WindowResult,
    WindowRow,
    known_windows,
    merge,
    window_discrepancy,
)
from loadgen.model.counts import UserSessionCounts
from loadgen.model.event import SetPhase, Start, Stop
from loadgen.model.run import Phase, worker_share
from loadgen.model.threshold import Operator, ThresholdMetric
from loadgen.report.summary import RunFacts, StageResult, WorkerResult
from loadgen.results.run_snapshot import WorkerSnapshot
from loadgen.rules.client_health import ClientHealth, ClientHealthByScope, ClientPart, worst
from loadgen.rules.plan import RunPlan, planned_arrivals, planned_connection_ms
from loadgen.rules.validity import ArrivalScope, Delivered, Key, delivered_arrivals, delivered_connections
from loadgen.scenario.model import LoadStage, Scenario, stage_name
from loadgen.units import NS_PER_MS, counted
from loadgen.values import dataclass
from orchestrator.lifecycle import PLAN_COMPLETED

# The windows of a step open within this time in all workers, and close within it. A worker that opens its window later,
# or closes it earlier, has not delivered its part.
WINDOW_OPENING_MS = 500

CONNECTION_FAILURES_MAX = 20  # newest refused logins, and newest lost connections, that a result lists

# Metrics in which an unsent arrival counts at least with the time that it waited for a connection.
_RESPONSE_TIMES = {
    *(ThresholdMetric.P50, ThresholdMetric.P90, ThresholdMetric.P95, ThresholdMetric.P99, ThresholdMetric.P999),
    *(ThresholdMetric.AVG, ThresholdMetric.MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWindows:
    """All windows of a run, by worker, and the gaps in them."""

    windows: Mapping[str, tuple[WindowResult, ...]]  # of the measurement
    gaps: tuple[str, ...]
    warmups: Mapping[str, tuple[WindowResult, ...]] = field(default_factory=dict)

    @property
    def merged(self) -> MergedWindows:
        return merge(self.windows.values())

    @property
    def measured_s(self) -> dict[str, float]:
        """The measured time of each worker."""
        return {worker_id: math.fsum(one.seconds for one in own) for worker_id, own in self.windows.items()}

    def judged(self, scenario: Scenario) -> MergedWindows:
        """The merged windows, with the stages that thresholds refer to."""
        stages = {name: self.step(number) for name, number in scenario.judged_stages.items()}
        return replace(self.merged, stages=stages)

    def step(self, step_id: int | None) -> MergedWindows:
        """The merged windows of one stage or step."""
        return merge(self.step_windows(step_id))

    def step_windows(self, step_id: int | None) -> list[list[WindowResult]]:
        """The windows of one stage or step, by worker."""
        return [[window for window in windows if window.step_id == step_id] for windows in self.windows.values()]


def measured_nothing(worker_id: str) -> str:
    return f"{worker_id} measured nothing"


def gather_windows(workers: Sequence[WorkerSnapshot], stored: Sequence[WindowRow]) -> MeasuredWindows:
    """The measured windows of every worker. Missing or inconsistent windows are listed as gaps."""
    gaps = [str(error) for error in stored.unreadable] if isinstance(stored, ParsedRows) else []
    reported = {worker.worker_id: () if worker.live is None else worker.live.windows for worker in workers}
    rows = [row for row in stored if row.worker_id in reported]
    known = known_windows(rows, reported, lambda worker_id, why: gaps.append(f"{worker_id}: {why}"))
    windows: dict[str, tuple[WindowResult, ...]] = {}
    warmups: dict[str, tuple[WindowResult, ...]] = {}
    for worker in workers:
        own = known[worker.worker_id]
        measured = tuple(window for window in own if window.phase is Phase.MEASUREMENT)
        warmups[worker.worker_id] = tuple(window for window in own if window.phase is Phase.WARMUP)
        for window in measured:
            problem = window_discrepancy(window)
            if problem is not None:
                gaps.append(f"{worker.worker_id}: {problem}")
        if not measured:
            gaps.append(measured_nothing(worker.worker_id))
        windows[worker.worker_id] = measured
    return MeasuredWindows(windows=windows, gaps=tuple(gaps), warmups=warmups)


def worker_results(workers: Sequence[WorkerSnapshot], gathered: MeasuredWindows) -> tuple[WorkerResult, ...]:
    """The share of each worker in the result, and its CPU use and wake-up delay."""
    span_s, results = gathered.merged.seconds, []
    for worker in workers:
        windows = gathered.windows.get(worker.worker_id, ())
        merged, health = merge([windows]), ClientHealth.of(client_effect(windows))
        results.append(
            WorkerResult(
                worker_id=worker.worker_id,
                status=worker.health.value,
                succeeded=merged.counts.succeeded,
                failed=merged.counts.failed,
                qps=merged.counts.succeeded / span_s if span_s else 0.0,
                cpu_percent_of_core=health.cpu_percent_of_core,
                wakeup_p99_ms=health.wakeup_p99_ms,
            )
        )
    return tuple(results)


def client_parts(gathered: MeasuredWindows, steps: Collection[int] | None = None) -> tuple[ClientPart, ...]:
    """The health of each worker in each stage, or in each of these steps of a search."""
    parts, part = [], "stage" if steps is None else "step"
    for worker_id, windows in gathered.windows.items():
        by_step: dict[int | None, list[WindowResult]] = {}
        for window in windows:
            by_step.setdefault(window.step_id, []).append(window)
        for step_id, own in by_step.items():
            if steps is not None and step_id not in steps:
                continue
            parts.append(
                ClientPart(
                    where=worker_id if len(by_step) == 1 else f"{worker_id} in {part} {step_id}",
                    health=ClientHealth.of(client_effect(own)),
                    service_mean_ms=service_mean_ms(own),
                    missing_ms=sum(
                        max(0, time.planned_ms - time.delivered_ms)
                        for time in (window.connections for window in own)
                        if time is not None
                    ),
                )
            )
    return tuple(parts)


def client_health(
    gathered: MeasuredWindows, stages: Mapping[str, int], steps: Collection[int] | None = None
) -> ClientHealthByScope:
    """The health that bears on thresholds. `stages`: those they refer to, by name; `steps`: only these of a search."""
    of_stages = {name: client_parts(gathered, {number}) for name, number in stages.items()}
    return ClientHealthByScope(
        run=worst(part.health for part in client_parts(gathered, steps)),
        stages={name: worst(part.health for part in parts) for name, parts in of_stages.items()},
    )


def service_mean_ms(windows: Sequence[WindowResult]) -> float | None:
    mean_ns = merge([windows]).tally.whole.succeeded.service.mean_ns
    return None if mean_ns is None else mean_ns / NS_PER_MS


def client_effect(windows: Sequence[WindowResult]) -> ClientResourceUse | None:
    """The use of resources by the worker's process during these windows. None: it was not reported."""
    known = [window.client for window in windows if window.client is not None]
    return sum(known[1:], known[0]) if known else None


def stage_starts(events: Sequence[PastEvent], start: datetime) -> dict[int, float]:
    """When each stage began, in seconds since the start of the run, by number of the stage."""
    return {
        one.command.step_id: (one.at - start).total_seconds()
        for one in run_control_events.announced(events)
        if isinstance(one.command, SetPhase) and one.command.step_id is not None
    }


def planned_until_s(past_events: Sequence[PastEvent]) -> float | None:
    """When a run was to end, in seconds of its plan, by the events of its leader. None: after the whole plan."""
    starts = [one.moment for one in past_events if isinstance(one.command, Start)]
    stops = [(one.command, one.moment) for one in past_events if isinstance(one.command, Stop)]
    if not starts:
        return 0.0  # the run never began
    if not stops or stops[0][0].reason == PLAN_COMPLETED:
        return None
    return max(0.0, (stops[0][1] - starts[0]).total_seconds())


def stage_results(
    stages: Sequence[LoadStage], gathered: MeasuredWindows, starts_s: Mapping[int, float]
) -> tuple[StageResult, ...]:
    """The results of the stages that began and were measured."""
    results = [
        StageResult(
            number=number,
            name=stage.name or stage_name(number),
            starts_s=starts_s[number],
            connections=stage.connections,
            rate_per_second=stage.rate_per_second,
            merged=gathered.step(number),
        )
        for number, stage in enumerate(stages, start=1)
        if number in starts_s
    ]
    return tuple(result for result in results if result.merged.seconds > 0.0)


def delivered_load(
    scenario: Scenario, plan: RunPlan, gathered: MeasuredWindows, *, until_s: float | None, because: str = ""
) -> Delivered:
    """How much of the planned load was delivered. `until_s`: when an aborted plan ended; None: it was carried out."""
    load, worker_ids = scenario.load, tuple(gathered.windows)
    planned_ms: dict[Key, int] = {}
    due: dict[Key, int] = {}
    for number, worker_id in enumerate(worker_ids):
        place = (load, plan, number, len(worker_ids))
        steps_ms = planned_connection_ms(*place, until_s=until_s)
        planned_ms |= {(worker_id, step_id): amount_ms for step_id, amount_ms in steps_ms.items()}
        if load.is_open_loop:
            steps = planned_arrivals(*place, seed=scenario.workload.seed, until_s=until_s)
            due |= {(worker_id, step_id): arrivals for step_id, arrivals in steps.items()}
    time = Delivered(portions=delivered_connections(gathered.windows, planned_ms), because=because)
    if not load.is_open_loop:
        return time
    arrivals = delivered_arrivals(gathered.windows, due, _limited_times(scenario))
    relief = "lower load.speed" if load.keeps_sessions else "raise max_connections"
    return Delivered(portions=arrivals, open_loop=True, connections=time, because=because, relief=relief)


def _limited_times(scenario: Scenario) -> set[ArrivalScope]:
    """The stages and statements whose response time a threshold limits from above in the whole measurement."""
    checks = [
        one.check
        for one in scenario.thresholds
        if one.check.metric in _RESPONSE_TIMES
        and one.check.operator in (Operator.LT, Operator.LE)
        and one.covers_measurement
    ]
    stages = scenario.judged_stages
    return {
        (stages[check.statement], None) if check.statement in stages else (None, check.statement) for check in checks
    }


def delivered_steps(
    windows: Mapping[str, Sequence[WindowResult]], levels: Mapping[int, int], because: str = "", *, closed: bool = False
) -> Delivered:
    """As delivered_load(), for steps of a search with these connections. Each worker opens its window when its
    connections have settled. Until the last window is open, the earlier ones measure with too few connections: that
    part of the load counts as missing. With `closed` so does the time after the first window has closed; of open
    windows it is not known, because heartbeats are not equally old."""
    planned: dict[Key, int] = {}
    for step_id, level in levels.items():
        own = {worker_id: [one for one in known if one.step_id == step_id] for worker_id, known in windows.items()}
        opened_ms = {worker_id: _opened_ms(known) for worker_id, known in own.items()}
        first_ms = min((moment for moment in opened_ms.values() if moment is not None), default=0)
        ended_ms = {worker_id: (opened_ms[worker_id] or 0) + _length_ms(known) for worker_id, known in own.items()}
        last_ms = max(ended_ms.values(), default=0)
        span_ms = max((_length_ms(known) for known in own.values()), default=0)
        for number, (worker_id, known) in enumerate(own.items()):
            measured = [one.connections.planned_ms for one in known if one.connections is not None]
            opened, ended = opened_ms[worker_id] or 0, ended_ms[worker_id]
            late_ms = max(0, opened - first_ms - WINDOW_OPENING_MS) if measured else span_ms
            early_ms = max(0, last_ms - ended - WINDOW_OPENING_MS) if measured and closed else 0
            planned[worker_id, step_id] = sum(measured) + worker_share(level, number, len(own)) * (late_ms + early_ms)
    return Delivered(portions=delivered_connections(windows, planned), window_word="step", because=because)


def _opened_ms(windows: Sequence[WindowResult]) -> int | None:
    """When a worker began to measure a step, since the zero of the run. None: it did not, or did not report it."""
    return min((one.stalls.from_ms for one in windows if one.stalls is not None), default=None)


def _length_ms(windows: Sequence[WindowResult]) -> int:
    return round(1_000 * math.fsum(one.seconds for one in windows))


def login_counts(workers: Sequence[WorkerSnapshot], rows: Sequence[ResultRow]) -> dict[str, LoginCounts]:
    """The logins of every worker: from its result, else from its last heartbeat."""
    found = {worker.worker_id: worker.live.logins for worker in workers if worker.live is not None}
    for row in rows:
        counts = _logins(row)
        if row.worker_id is not None and counts is not None:
            found[row.worker_id] = counts
    return found


def _logins(row: ResultRow) -> LoginCounts | None:
    try:
        data = json.loads(row.summary or "{}").get("logins")
        return None if data is None else read_logins(JsonFields(data, f"the result of {row.worker_id}"))
    except (ValueError, AttributeError, RecursionError, LoadgenError):
        return None


def connections_document(logins: Mapping[str, LoginCounts], start: datetime | None) -> dict[str, Any]:
    """`client.connections` of summary.json: the number of logins by reason, and the newest failures."""
    refused = [(one, worker_id) for worker_id, own in logins.items() for one in own.last_refused]
    lost = [(one, worker_id) for worker_id, own in logins.items() for one in own.last_lost]
    return {
        **sum(logins.values(), LoginCounts()).counts(),
        "last_refused": _newest(refused, start),
        "last_lost": _newest(lost, start),
    }


def _newest(failures: list[tuple[ConnectionFailure, str]], start: datetime | None) -> list[dict[str, Any]]:
    return [
        {
            "worker_id": worker_id,
            **failure_data(one),
            "at": utc_iso(one.at),
            "second": None if start is None else round((one.at - start).total_seconds(), 1),
        }
        for one, worker_id in sorted(failures, key=lambda entry: entry[0].at)[-CONNECTION_FAILURES_MAX:]
    ]


def missing_load_causes(
    connections: Mapping[str, Any], workers: Sequence[WorkerSnapshot], gathered: MeasuredWindows, plan: RunPlan
) -> str:
    """Known causes of missing load, in a few words."""
    return "; ".join((*_departures(workers, gathered, plan), *_refusals(connections)))


def with_login_cause(delivered: Delivered, connections: Mapping[str, Any]) -> Delivered:
    """Adds the keys of the scenario that made clients log in again, if there are any. Connection time has them."""
    if delivered.connections is not None:
        return replace(delivered, connections=with_login_cause(delivered.connections, connections))
    reopened = connections["reopened"]
    keys = [reason for reason in (ReconnectReason.MAX_AGE, ReconnectReason.MAX_STATEMENTS) if reopened.get(reason)]
    why = " and ".join(f"connections.{key} replaced {counted(reopened[key], 'connection')}" for key in keys)
    return replace(delivered, login_cause=f"{why}: raise it, or find out why logins are slow") if why else delivered


def _departures(workers: Sequence[WorkerSnapshot], gathered: MeasuredWindows, plan: RunPlan) -> Iterator[str]:
    """Workers that a signal ended before the end of the run, and when."""
    planned_s = gathered.merged.seconds if plan.ends_s is None else plan.ends_s - plan.measures_s
    for worker in workers:
        if worker.live is not None and worker.live.signal is not None:
            measured_s = math.fsum(window.seconds for window in gathered.windows.get(worker.worker_id, ()))
            yield f"{worker.worker_id} received {worker.live.signal} after {measured_s:.0f} of {planned_s:.0f} s"


def outage_cause(connections: Mapping[str, Any]) -> str | None:
    """Refused logins and lost connections, in a few words. None: there were none."""
    return "; ".join((*_refusals(connections), *_losses(connections))) or None


def _losses(connections: Mapping[str, Any]) -> Iterator[str]:
    lost = sum(count for reason, count in connections["reopened"].items() if reason not in PLANNED)
    if lost:
        last = connections["last_lost"][-1:]
        code = "" if not last or last[0]["code"] is None else f"{last[0]['code']}: "
        of = f", the last of {last[0]['worker_id']}: {code}{last[0]['text']}" if last else ""
        yield f"the server lost {counted(lost, 'connection')}{of}"


def _refusals(connections: Mapping[str, Any]) -> Iterator[str]:
    refused = connections["refused"]
    if not refused:
        return
    last = connections["last_refused"][-1:] or [{"worker_id": "a worker", "code": None, "text": "no reason reported"}]
    code = "" if last[0]["code"] is None else f"{last[0]['code']}: "
    times = "login was" if refused == 1 else "logins were"
    yield f"{refused:,} {times} refused, the last of {last[0]['worker_id']}: {code}{last[0]['text']}"


def driver_lightened(rows: Sequence[ResultRow]) -> bool | str | None:
    """Whether the drivers of the workers were lightened. "mixed": only some were. None: no worker reported it."""
    values = set()
    for row in rows:
        try:
            value = json.loads(row.summary or "{}").get("driver_lightened") if row.worker_id is not None else None
        except (ValueError, AttributeError, RecursionError):
            continue
        values |= {value} if isinstance(value, bool) else set()
    return "mixed" if len(values) > 1 else next(iter(values), None)


def session_counts(rows: Sequence[ResultRow]) -> UserSessionCounts:
    """The user sessions of all workers that reported them."""
    return sum((_sessions(row) for row in rows if row.worker_id is not None), UserSessionCounts())


def _sessions(row: ResultRow) -> UserSessionCounts:
    """{"sessions": {"created": …, "expired": …, "current": …}}. Inconsistent counts are ignored."""
    try:
        stored: Any = json.loads(row.summary or "{}").get("sessions") or {}
        created, expired, current = (int(_number(stored.get(name)) or 0) for name in ("created", "expired", "current"))
    except (ValueError, AttributeError, RecursionError):
        return UserSessionCounts()
    counts = UserSessionCounts(created=created, expired=expired)
    return counts if 0 <= counts.current == current else UserSessionCounts()


def _number(value: object) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if known else None  # type: ignore[arg-type]


def run_result_row(run: Run, facts: RunFacts, summary: Mapping[str, Any]) -> ResultRow:
    """The row of the run itself in TEST_RESULTS."""
    latency, totals = summary["latency_ms"], summary["totals"]
    return ResultRow(
        test_id=run.run_id,
        run_id=run.run_id,
        worker_id=None,
        worker_group_id=None,
        template_id=run.template_id,
        status=facts.status,
        created_at=run.created_at,
        total_operations=totals["succeeded"] + totals["failed"],
        read_operations=totals["reads"],
        write_operations=totals["writes"],
        failed_operations=totals["failed"],
        p50_latency_ms=latency["p50"],
        p95_latency_ms=latency["p95"],
        p99_latency_ms=latency["p99"],
        avg_latency_ms=latency["avg"],
        find_max_result=None if facts.find_max is None else json.dumps(facts.find_max),
        summary=json.dumps(summary),
    )
