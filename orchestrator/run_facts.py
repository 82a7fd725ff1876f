"""Judges a run whose workers have ended: the facts of its result, from its rows.

The leader of a run, its successor, and the recovery of a run without a leader use the same rules. What a leader has
observed and not stored is passed as `Circumstances`; a recovery does not know it, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from loadgen.clock import utc_iso
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_control_events, run_measurements, test_results
from loadgen.control.tables.run_control_events import PastEvent
from loadgen.control.tables.run_status import Run
from loadgen.control.tables.test_results import ResultRow
from loadgen.metrics.stalls import stall_warnings
from loadgen.metrics.window import MergedWindows
from loadgen.model.run import RunStatus
from loadgen.report.summary import RunFacts
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot
from loadgen.rules.client_health import judge_client
from loadgen.rules.plan import RunPlan, plan_run
from loadgen.rules.validity import (
    Delivered,
    Evidence,
    invalid_reasons,
    judge_timing,
    login_warnings,
    overload_warnings,
    surplus_warnings,
    undecided,
)
from loadgen.scenario.model import EMBEDDED, Scenario
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass
from orchestrator.find_max_controller import FindMaxController
from orchestrator.guardrails import LimitMonitor
from orchestrator.lifecycle import PLAN_COMPLETED, THRESHOLD_MISSED
from orchestrator.run_environment import ForeignLoad, dropped_warnings, run_warnings
from orchestrator.run_result import (
    MeasuredWindows,
    client_health,
    client_parts,
    connections_document,
    delivered_load,
    delivered_steps,
    driver_lightened,
    gather_windows,
    login_counts,
    measured_nothing,
    missing_load_causes,
    outage_cause,
    planned_until_s,
    session_counts,
    stage_results,
    stage_starts,
    with_login_cause,
    worker_results,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A run whose workers have ended, and its rows."""

    run: Run
    scenario: Scenario
    workers: tuple[WorkerSnapshot, ...]
    gathered: MeasuredWindows
    results: tuple[ResultRow, ...]  # of its workers
    events: tuple[PastEvent, ...]

    @property
    def plan(self) -> RunPlan:
        return plan_run(self.scenario.load)

    @property
    def connections(self) -> Mapping[str, Any]:
        """`client.connections` of summary.json."""
        return connections_document(login_counts(self.workers, self.results), self.run.start_time)

    @property
    def stage_starts_s(self) -> Mapping[int, float]:
        """When each stage began, by its number."""
        return {} if self.run.start_time is None else stage_starts(self.events, self.run.start_time)


def read_ended_run(
    session: ControlSession, retries: RetryPolicy, run: Run, scenario: Scenario, workers: tuple[WorkerSnapshot, ...]
) -> EndedRun:
    stored = retries.call(lambda: run_measurements.read_windows(session, run.run_id))
    results = retries.call(lambda: test_results.read(session, run.run_id))
    return EndedRun(
        run=run,
        scenario=scenario,
        workers=workers,
        gathered=gather_windows(workers, stored),
        results=tuple(row for row, _ in results),
        events=tuple(retries.call(lambda: run_control_events.history(session, run.run_id))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """How a run ended, and what is known about it besides its rows."""

    status: RunStatus
    reason: str
    stop: str | None = None  # the reason in STOP; None: only the events tell
    stopped_s: float | None = None  # when its leader decided the end, in seconds of the plan; None: not known
    signal: int | None = None  # that ended it
    replaced: Sequence[str] = ()  # workers that were replaced by other processes
    disturbances: Sequence[str] = ()  # by other runs on the warehouse
    foreign: ForeignLoad = field(default_factory=ForeignLoad)
    obstacles: Sequence[str] = ()  # other reasons why it is INVALID
    shared_warehouse: bool = False  # the user allows other runs on the warehouse at the same time
    environment: Mapping[str, Any] = field(default_factory=dict)  # without the warnings

    @property
    def aborted(self) -> bool:
        """Whether a threshold ended the run: it was certainly missed."""
        return self.stop == THRESHOLD_MISSED


def judge_run(
    ended: EndedRun, limits: LimitMonitor, search: FindMaxController | None, known: Circumstances
) -> RunFacts:
    """The facts of the result. `limits` has the seconds of all workers, and `search`, which has ended, its steps."""
    run, scenario, gathered, plan = ended.run, ended.scenario, ended.gathered, ended.plan
    merged, gaps, deciding = gathered.judged(scenario), gathered.gaps, None
    if search is not None:  # only the deciding steps count
        merged = gathered.step(search.decisive_step)
        deciding = {step.number for step in search.deciding_steps}
        gaps += () if search.obstacle is None else (search.obstacle,)
    outage, is_here = outage_cause(ended.connections), scenario.connection == EMBEDDED
    client = judge_client(client_parts(gathered, deciding), shares_machine=is_here, outage=outage)
    timing = judge_timing(gathered.windows, gathered.warmups, plan, steps=deciding)
    planned_s = 0.0 if plan.ends_s is None else plan.ends_s - plan.measures_s
    checked = limits.complete(merged, gathered.measured_s, planned_s)
    delivered = _delivered(ended, search, known)
    lost = {one.worker_id: one.why for one in ended.workers if one.health in (WorkerHealth.DEAD, WorkerHealth.MISSING)}
    evidence = Evidence(
        merged=merged,
        client=client,
        lost_workers=(*lost.values(), *known.replaced),
        gaps=(*(gap for gap in gaps if gap not in map(measured_nothing, lost)), *timing.invalid),
        disturbances=(*known.disturbances, *known.foreign.disturbances),
        delivered=delivered,
        aborted=known.aborted,
    )
    open_loop, thresholds = scenario.load.is_open_loop, scenario.judged_thresholds
    invalid = [*known.obstacles, *invalid_reasons(evidence)]
    if not known.aborted:  # otherwise a threshold was certainly missed, whatever was measured after that
        health = client_health(gathered, scenario.judged_stages, deciding)
        invalid += undecided(thresholds, checked, health, merged, open_loop=open_loop)
    seen = [*limits.warnings, *_unstored_warnings(ended.workers), *client.warnings, *known.foreign.warnings]
    seen += [*timing.warnings, *_load_warnings(delivered, merged, replay=scenario.load.replay is not None)]
    seen += dropped_warnings(ended.results, ended.workers)
    warnings = run_warnings(scenario, seen, shared=known.shared_warehouse)
    return RunFacts(
        run_id=run.run_id,
        scenario=scenario.name,
        status=known.status.value,
        reason=known.reason,
        started_at=utc_iso(run.start_time),
        connections=scenario.load.connections if search is None else search.connections,
        statements=scenario.workload.statements,
        merged=merged,
        invalid=invalid,
        checked=checked,
        client=client.health,
        workers=worker_results(ended.workers, gathered),
        open_loop=open_loop,
        stages=stage_results(scenario.load.stages, gathered, ended.stage_starts_s),
        find_max=None if search is None else search.result(gathered.step, valid=not invalid),
        environment={**known.environment, "warnings": warnings, "driver_lightened": driver_lightened(ended.results)},
        aborted=known.aborted,
        signal=known.signal,
        sessions=session_counts(ended.results) if scenario.sessions.count else None,
        delivered=delivered,
        replay=scenario.load.replay,
        logins=ended.connections,
        unstored={worker.worker_id: worker.unstored_rows for worker in ended.workers if worker.unstored_rows},
    )


def _delivered(ended: EndedRun, search: FindMaxController | None, known: Circumstances) -> Delivered:
    connections, gathered = ended.connections, ended.gathered
    causes = missing_load_causes(connections, ended.workers, gathered, ended.plan)
    if search is not None:
        delivered = delivered_steps(gathered.windows, search.deciding_levels, causes, closed=True)
    else:
        until_s = _plan_end_s(ended, known)
        delivered = delivered_load(ended.scenario, ended.plan, gathered, until_s=until_s, because=causes)
    return with_login_cause(delivered, connections)


def _plan_end_s(ended: EndedRun, known: Circumstances) -> float | None:
    """When the plan was aborted, in its seconds; None: it was carried out. The decision of the leader counts, if it is
    known: workers may read STOPPING before STOP is stored. They may read a user's request before any leader."""
    if known.stop == PLAN_COMPLETED:
        return None
    until_s = planned_until_s(ended.events) if known.stopped_s is None else known.stopped_s
    if ended.run.status not in (RunStatus.CANCELLING, RunStatus.CANCELLED):
        return until_s
    measured_s = ended.plan.measures_s + ended.gathered.merged.seconds
    return measured_s if until_s is None else min(until_s, measured_s)


def _load_warnings(delivered: Delivered, merged: MergedWindows, *, replay: bool) -> list[str]:
    known = [*login_warnings(delivered), *overload_warnings(delivered), *stall_warnings(merged.stalls)]
    return [*known, *surplus_warnings(merged, replay=replay)]


def _unstored_warnings(workers: Sequence[WorkerSnapshot]) -> list[str]:
    return [f"{one.worker_id} could not store all rows: {one.last_error}" for one in workers if one.unstored_rows]
