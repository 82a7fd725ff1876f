"""Ends runs whose orchestrator was lost.

A run is an orphan when its lease has been expired for longer than the takeover margin, and none of its workers is
alive: each has reported its end, or has sent no heartbeat for `timing.dead` (a minute). A run whose lease is renewed is
never changed. If the process of a leader has ended on this machine, its lease is expired at once. A run without a
leader whose workers are alive is skipped and marked `living`: it can be taken over. An orphan ends as FAILED under a
new epoch, with a result from the rows that its workers stored. If its orchestrator had already stored a result, it ends
with that result. Its container job is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from loadgen.clock import Clock
from loadgen.control.session import ControlFailed, ControlSession, ParsedRows
from loadgen.control.tables import (
    run_leases,
    run_measurements,
    run_status,
    test_results,
    worker_heartbeats,
)
from loadgen.control.tables.run_leases import Lease
from loadgen.control.tables.run_status import Run, StatusChange, UnfinishedRun
from loadgen.control.tables.test_results import ResultRow
from loadgen.control.tables.worker_heartbeats import HeartbeatRow
from loadgen.errors import Busy, LoadgenError
from loadgen.log import event
from loadgen.model.run import RUN_TRANSITIONS, Phase, RunStatus
from loadgen.report.summary import summarize
from loadgen.results.run_snapshot import WorkerSnapshot
from loadgen.results.stored_summary import read_result
from loadgen.rules.validity import RunVerdict
from loadgen.scenario.model import Scenario
from loadgen.snowflake.session import RetryPolicy, is_retryable_soon
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from orchestrator.aggregation import RunAggregator, SnapshotBackfill
from orchestrator.experiment.state import ControlAccess
from orchestrator.experiment.warehouse_settings import RestoredWarehouse, restore_left_settings
from orchestrator.find_max_controller import find_max_controller
from orchestrator.guardrails import LimitMonitor
from orchestrator.leadership import (
    CLAIM_DELAY_S,
    SkippedRun,
    active_worker_of,
    expire_dead_holder,
    release_lease,
    skipped_for_workers,
    stored_scenario,
    why_not_recoverable,
)
from orchestrator.run_environment import recovered_foreign_load
from orchestrator.run_facts import Circumstances, judge_run, read_ended_run
from orchestrator.run_result import run_result_row
from orchestrator.spawn.containers import remove_job, runs_containers
from orchestrator.worker_health import assess_workers

log = logging.getLogger(__name__)

LEASE_TTL_S = 60.0
WAIT_S = 60.0  # in all, for the margin of a lease and for workers that drain
ATTEMPTS = 3  # to end a run: a user may cancel it in between


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredRun:
    """A run that has been ended."""

    run_id: str
    status: RunStatus
    reason: str


WaitForRuns = Callable[[Sequence[SkippedRun]], bool]


def recover_runs(
    session: ControlSession,
    retries: RetryPolicy,
    *,
    by: str,
    only: str | None = None,
    wait: WaitForRuns = lambda _: False,
) -> tuple[list[RecoveredRun], list[SkippedRun]]:
    """End every orphan, or only the run `only`. `by` names the user in the reason. `wait` is called with the runs that
    can be ended soon, and returns whether to try again."""
    done, left = _recover_all(session, retries, by, only)
    while (soon := [one for one in left if one.free_in_s is not None]) and wait(soon):
        more, left = _recover_all(session, retries, by, only)
        done += more
        left = [one for one in left if all(one.run_id != ended.run_id for ended in done)]
    return done, left


def _recover_all(
    session: ControlSession, retries: RetryPolicy, by: str, only: str | None
) -> tuple[list[RecoveredRun], list[SkippedRun]]:
    done: list[RecoveredRun] = []
    left: list[SkippedRun] = []
    unfinished = _unfinished(session, retries)
    for found in unfinished:
        if only is None or found.run_id == only:
            result = _recover(session, retries, found, by)
            if isinstance(result, RecoveredRun):
                done.append(result)
            else:
                left.append(result)
    if only is not None and all(found.run_id != only for found in unfinished):
        left.append(SkippedRun(run_id=only, why="it has ended", has_ended=True))
    return done, left


def recover_orphans(session: ControlSession, retries: RetryPolicy, *, by: str, show: Callable[[str], None]) -> bool:
    """End the orphans of other orchestrators at the start of a new one. `show` prints a line for the user; a failure is
    logged only. Returns True if some run can be ended later."""
    try:
        done, left = recover_runs(session, retries, by=by)
    except LoadgenError as error:
        event(log, logging.WARNING, "recovery_failed", why=str(error))
        return False
    for one in done:
        event(log, logging.INFO, "run_recovered", run=one.run_id, status=one.status, reason=one.reason)
        show(f"warning: run {one.run_id} had lost its orchestrator and was ended as {one.status}: {one.reason}")
    return any(one.free_in_s is not None for one in left)


def leaderless_run_on(
    session: ControlSession, retries: RetryPolicy, is_meant: Callable[[Scenario], bool], besides: str | None = None
) -> str | None:
    """A sentence about workers that still generate load for one of these scenarios although their run has no leader.
    The run `besides` is ignored. None: there are no such workers."""
    try:
        unfinished = _unfinished(session, retries)
    except ControlFailed as error:
        if not error.failure.is_timeout:
            raise
        event(log, logging.WARNING, "unled_runs_unknown", why=str(error))  # foreign load is also judged after the run
        return None
    for found in unfinished:
        if found.run_id == besides or found.lease_over_ms is None:
            continue
        _, ended = expire_dead_holder(session, retries, found.run_id)
        scenario = stored_scenario(session, retries, found.run_id) if ended or found.lease_over_ms > 0 else None
        if scenario is None or not is_meant(scenario):
            continue
        beats = retries.call(partial(worker_heartbeats.read, session, found.run_id))
        if active := active_worker_of(beats, scenario, leader_ended=ended):
            return f"run {found.run_id} has no leader any more, and its workers still generate load there: {active}"
    return None


def _unfinished(session: ControlSession, retries: RetryPolicy) -> ParsedRows[UnfinishedRun]:
    """Every run that has not ended. A query that takes too long is not repeated: a new run would wait for minutes."""
    return replace(retries, retryable=is_retryable_soon).call(lambda: run_status.unfinished(session))


# --- one run ---------------------------------------------------------------------------------------------------------


def _recover(session: ControlSession, retries: RetryPolicy, found: UnfinishedRun, by: str) -> RecoveredRun | SkippedRun:
    holder, leader_ended = expire_dead_holder(session, retries, found.run_id)
    if leader_ended and holder is not None:
        found = replace(found, lease_over_ms=-holder.remaining_ms)
    if led := why_not_recoverable(found, holder):
        return led
    scenario = stored_scenario(session, retries, found.run_id)
    beats = retries.call(lambda: worker_heartbeats.read(session, found.run_id))
    if active := active_worker_of(beats, scenario, leader_ended=leader_ended):
        return skipped_for_workers(found.run_id, active, scenario, leader_ended=leader_ended)
    term = run_leases.claim(session, retries, found.run_id, run_leases.new_owner(), LEASE_TTL_S)
    if term is None:
        return SkippedRun(run_id=found.run_id, why="another process leads it now")
    try:
        ended = _end(session, retries, term, found, scenario, by, leader_ended=leader_ended)
        if isinstance(ended, RecoveredRun) and scenario is not None and runs_containers(scenario):
            remove_job(scenario, session.place, found.run_id, retries.clock)
        return ended
    finally:
        release_lease(session, term)


def _end(
    session: ControlSession,
    retries: RetryPolicy,
    term: Lease,
    found: UnfinishedRun,
    scenario: Scenario | None,
    by: str,
    *,
    leader_ended: bool,
) -> RecoveredRun | SkippedRun:
    """While this process holds the lease: check the workers again, store the result, and set the final status."""
    beats = retries.call(lambda: worker_heartbeats.read(session, term.key))
    if active := active_worker_of(beats, scenario, leader_ended=leader_ended):
        return skipped_for_workers(term.key, active, scenario, leader_ended=leader_ended)
    for _ in range(ATTEMPTS):
        run = retries.call(lambda: run_status.read(session, term.key))
        if run is None or run.status.is_terminal:
            return SkippedRun(run_id=term.key, why="it has ended", has_ended=True)
        reason = _reason(run, found, by)
        stored = read_result(session, retries, term.key)
        if stored is None and scenario is not None:
            stored = _make_result(session, retries, run, scenario, beats, reason)
            test_results.append(session, retries, stored[0])
            test_results.abandon(session, retries, term.key)
        step = _last_step(run, None if stored is None else stored[1], reason)
        if run_status.move(session, retries, term, step):
            return RecoveredRun(run_id=run.run_id, status=step.to, reason=step.reason or "")
    return SkippedRun(run_id=term.key, why="its status has changed during the recovery")


def _last_step(run: Run, summary: Mapping[str, Any] | None, reason: str) -> StatusChange:
    """The change to FAILED, or to the status of the result that its leader had stored before it was lost."""
    to, verdict = RunStatus.FAILED, RunVerdict.ERROR.value
    if summary is not None and RunStatus(summary["status"]) in RUN_TRANSITIONS[run.status]:
        to, verdict = RunStatus(summary["status"]), summary["verdict"]
    why = (None if to is RunStatus.FAILED else run.reason) or reason
    return StatusChange(
        status=run.status, phase=run.phase, to=to, to_phase=Phase.PROCESSING, reason=why, verdict=verdict
    )


def _reason(run: Run, found: UnfinishedRun, by: str) -> str:
    before = f"{run.reason}; then " if run.reason else ""
    beat = (
        "no worker ever sent a heartbeat"
        if found.beat_age_ms is None
        else f"the last heartbeat {found.beat_age_ms / 1000:.0f} s"
    )
    lease = (
        "no process ever led it"
        if found.lease_over_ms is None
        else f"its lease ended {found.lease_over_ms / 1000:.0f} s"
    )
    return f"{before}its orchestrator was lost ({lease}, {beat} before it was noticed); ended by {by}"


# --- the result from the stored rows ---------------------------------------------------------------------------------


# Reasons why the result is INVALID: what the orchestrator had observed, and is in no table.
LOST_FACTS = (
    "its orchestrator was lost",
    "whether a worker was replaced, or another run was on the warehouse, is not known: its orchestrator was lost",
)


def _make_result(
    session: ControlSession,
    retries: RetryPolicy,
    run: Run,
    scenario: Scenario,
    beats: Sequence[HeartbeatRow],
    reason: str,
) -> tuple[ResultRow, dict[str, Any]]:
    ended = read_ended_run(session, retries, run, scenario, workers_at_last_heartbeat(run, beats))
    progress = RunAggregator(scenario.thresholds, scenario.judged_stages)
    SnapshotBackfill(session, run.run_id, progress.seconds).fill_all(ended.workers, retries)
    limits = LimitMonitor(scenario.judged_thresholds, scenario.guardrails, scenario.timing, progress)
    search = find_max_controller(scenario)
    if search is not None:
        steps = retries.call(lambda: run_measurements.read_steps(session, run.run_id))
        limits.warn_of_uncertain_steps(search.restore(steps, ended.gathered.step_windows))
        search.stop("its orchestrator was lost")
    known = Circumstances(
        status=RunStatus.FAILED,
        reason=reason,
        foreign=recovered_foreign_load(session, retries, ended),
        obstacles=LOST_FACTS,
    )
    facts = judge_run(ended, limits, search, known)
    summary = summarize(facts)
    return run_result_row(run, facts, summary), summary


def workers_at_last_heartbeat(run: Run, beats: Sequence[HeartbeatRow]) -> tuple[WorkerSnapshot, ...]:
    """All expected workers by their last heartbeats. Workers without a COMPLETED heartbeat count as lost."""
    ids = tuple(f"worker-{number}" for number in range(run.workers_expected))
    silent_s = {row.identity.worker_id: max(1, row.age_ms) / 1000 for row in beats}
    return assess_workers(ids, beats, (), silent_s, stale_s=0.0, dead_s=0.0)


class RecoveryWait:
    """Waits for runs that can be ended soon: until the last statements of their leaders, or their workers, have
    ended."""

    def __init__(self, retries: RetryPolicy, say: Callable[[str], None]) -> None:
        self._retries, self._say, self._reported = retries, say, set[str]()
        self._until_ns = retries.clock.monotonic_ns() + round(WAIT_S * NS_PER_S)

    def look_again(self, soon: Sequence[SkippedRun]) -> bool:
        for one in soon:
            if one.run_id not in self._reported:
                self._say(f"waiting for run {one.run_id}: {one.why}")
        self._reported |= {one.run_id for one in soon}
        if self._retries.clock.monotonic_ns() >= self._until_ns:
            return False
        pause_s = min(one.free_in_s or 0.0 for one in soon) + CLAIM_DELAY_S
        return not self._retries.clock.wait(self._retries.stop, pause_s)


# --- `loadgen runs recover` ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOutcome:
    """What `loadgen runs recover` has done, before it takes over a run."""

    ended: tuple[RecoveredRun, ...]
    unchanged: tuple[SkippedRun, ...]
    takeable: tuple[SkippedRun, ...]  # their workers are alive; a process takes over one run
    settings: tuple[RestoredWarehouse, ...]

    def with_takeover(self, run_id: str, *, has_ended: bool) -> RecoveryOutcome:
        """The outcome after this run was taken over, or `has_ended` meanwhile; the other runs are left to others."""
        why = "another process took it over and has ended it"
        left = tuple(
            replace(one, why=why, has_ended=True) if one.run_id == run_id else one
            for one in self.takeable
            if has_ended or one.run_id != run_id
        )
        return replace(self, unchanged=(*self.unchanged, *left), takeable=())

    def exit_code(self, taken: Mapping[str, Any] | None) -> int:
        """That of the run that was named and `taken` over; else 4 if a warehouse could not be restored."""
        if taken is not None:
            return int(taken["exit_code"])
        return 4 if any(not one.restored and not one.is_led for one in self.settings) else 0


def recover_all(
    control: ControlAccess, name: str | None, *, by: str, take_over: bool, say: Callable[[str], None], clock: Clock
) -> RecoveryOutcome:
    """End every orphan, or only the run of this name. Without a name, warehouse settings that experiments have left are
    restored, too. Raises Busy if the named run still has a leader. `take_over`: whether a run can be taken over."""

    def recover(session: ControlSession, retries: RetryPolicy) -> tuple[list[RecoveredRun], list[SkippedRun]]:
        only = None if name is None else run_status.find_run(session, retries, name).run_id
        return recover_runs(session, retries, by=by, only=only, wait=RecoveryWait(retries, say).look_again)

    ended, left = control(recover)
    takeable = [one for one in left if one.living and take_over]
    unchanged = [one for one in left if one not in takeable]
    if name is not None and unchanged and not unchanged[0].has_ended:
        raise Busy(
            f"run {unchanged[0].run_id} was not changed: {unchanged[0].why}",
            remedy="`loadgen status` shows its state; `loadgen stop` asks it to end.",
        )
    return RecoveryOutcome(
        ended=tuple(ended),
        unchanged=tuple(unchanged),
        takeable=tuple(takeable),
        settings=_restored(control, clock) if name is None else (),
    )


def _restored(control: ControlAccess, clock: Clock) -> tuple[RestoredWarehouse, ...]:
    try:
        return control(lambda session, retries: restore_left_settings(session, retries, clock=clock))
    except LoadgenError as error:  # the recovered runs are reported all the same
        return (RestoredWarehouse(experiment_id="?", warehouse="?", restored=False, why=str(error)),)
