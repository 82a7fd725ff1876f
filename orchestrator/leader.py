"""The leader of a run: observes, decides and applies, every second, while it holds the lease of the run.

One thread with one session talks to the control plane; another thread renews the lease. The leader checks its lease
before each action, and SQL rejects the actions of an expired lease. While the control plane is unreachable the leader
waits and the workers follow the plan, which START has given them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from loadgen.clock import Clock
from loadgen.control.lease import LeaseTimes
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.tables import run_control_events, run_measurements, run_status, test_results, worker_heartbeats
from loadgen.control.tables.run_measurements import StepRecord
from loadgen.control.tables.run_status import Fenced, Run, RunRollup, StatusChange
from loadgen.errors import LoadgenError, RunFailed
from loadgen.log import event
from loadgen.model.event import Stop
from loadgen.model.run import Phase, ProcessEnd, RunStatus
from loadgen.results.run_snapshot import RunSnapshot, WorkerHealth, WorkerSnapshot
from loadgen.rules.plan import RunPlan, plan_run
from loadgen.scenario.model import Scenario
from loadgen.snowflake.connect import LOGIN_ERRORS
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import NS_PER_S
from orchestrator.aggregation import RunAggregator, SnapshotBackfill, roll_up
from orchestrator.event_publisher import EventPublisher
from orchestrator.find_max_controller import find_max_controller, step_record
from orchestrator.guardrails import LimitMonitor
from orchestrator.leadership import Leadership
from orchestrator.lifecycle import (
    COMPLETED_STOP_REASONS,
    Action,
    FinishRun,
    LifecycleState,
    MeasuredStep,
    MoveRun,
    PublishSearchEnd,
    PublishStart,
    PublishStep,
    PublishStop,
    RecordStep,
    RunEnding,
    RunObservation,
    RunPolicy,
    SearchUpdate,
    StoreCancellation,
    TerminateWorkers,
    after_action,
    decide,
    decide_outage,
)
from orchestrator.run_result import planned_until_s
from orchestrator.spawn.spawner import Spawner
from orchestrator.warehouse import WarehousePoller
from orchestrator.worker_health import LiveMetricsReader, LivenessTracker, ReplacementTracker, assess_workers

Result = TypeVar("Result")
_ENDING = (RunStatus.STOPPING, RunStatus.CANCELLING)

log = logging.getLogger(__name__)


class Leader:
    """lead() runs in the orchestrator's thread; interrupt() may be called from any thread."""

    def __init__(
        self,
        run_id: str,
        scenario: Scenario,
        spawner: Spawner,
        *,
        session: ControlSession,
        lease_session: Callable[[], ControlSession],
        clock: Clock,
        on_snapshot: Callable[[RunSnapshot], None] = lambda _: None,
        on_wait: Callable[[str], None] = lambda _: None,  # called with the reason of a wait
    ) -> None:
        self._run_id, self._spawner = run_id, spawner
        self._clock, self._on_snapshot, self._on_wait = clock, on_snapshot, on_wait
        timing = scenario.timing
        workers = scenario.load.workers
        assert workers is not None, "the number of workers is settled before a run is created"
        self.worker_ids = tuple(f"worker-{number}" for number in range(workers))
        self._policy = RunPolicy(plan=plan_run(scenario.load), timing=timing, on_worker_loss=scenario.on_worker_loss)
        times = LeaseTimes(ttl_s=timing.lease_ttl_s, renew_s=timing.lease_renew_s, margin_s=timing.lease_margin_s)
        self._woken = threading.Event()
        # The event is never set: a user who does not want to wait for the control plane any longer ends the process.
        self.retries = RetryPolicy(
            stop=threading.Event(),
            clock=clock,
            first_pause_s=0.5,
            note=lambda error: on_wait(f"waiting for the control plane: {error}"),
        )
        self.session = session
        self.leadership = Leadership(run_id, times, session, self.retries, lease_session=lease_session, clock=clock)
        self._publisher = EventPublisher(self.session, self.retries, self.leadership, timing, clock)
        self._liveness = LivenessTracker(longest_gap_s=2 * timing.tick_s)
        self._assess = partial(assess_workers, self.worker_ids, reader=LiveMetricsReader())
        self.replacements = ReplacementTracker()
        self.is_successor = False  # another leader has led the run: what it observed and did not store is not known
        self._interrupts = 0
        self._published: tuple[RunRollup, float] | None = None  # the last figures in RUN_STATUS, and when
        self._known: Run | None = None  # as the previous tick has read it; None: that tick has changed the row
        self._answered_s = 0.0  # when the control plane last answered
        self._missed_ticks = 0  # since then
        self._state = LifecycleState(since_s=0.0, status=RunStatus.PREPARED)
        self.stopped_s: float | None = None  # when the end was decided, in seconds of the plan; None: not known
        self.workers: tuple[WorkerSnapshot, ...] = ()
        self.progress = RunAggregator(scenario.thresholds, scenario.judged_stages)
        self.stored_seconds = SnapshotBackfill(self.session, run_id, self.progress.seconds)
        open_loop = scenario.load.is_open_loop
        self.limits = LimitMonitor(
            scenario.judged_thresholds, scenario.guardrails, timing, self.progress, open_loop=open_loop
        )
        self.find_max = find_max_controller(scenario)
        self._steps: list[StepRecord] = []  # of the search, judged and stored
        self.warehouse_poller: WarehousePoller | None = None

    @property
    def plan(self) -> RunPlan:
        return self._policy.plan

    def interrupt(self) -> int:
        """Request the end of the run: gracefully the first time, at once the second time. Returns the number of
        requests."""
        self._interrupts += 1
        self._woken.set()
        return self._interrupts

    # --- leadership --------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Claim the run. Raises Busy when another process leads it."""
        self.leadership.claim()

    def resign(self, *, releasing: bool) -> None:
        """Stop leading. With `releasing` the next leader does not have to wait until the lease expires."""
        self.leadership.resign(releasing=releasing)

    def resume(self, run: Run) -> None:
        """Continue a run of another leader: read from the tables what that leader has published and stored."""
        self.is_successor = True
        published = self._publisher.resume(run)
        stops = [one.command for one in published if isinstance(one.command, Stop)]
        if run.status is RunStatus.STOPPING and stops:
            status = RunStatus.COMPLETED if stops[-1].reason in COMPLETED_STOP_REASONS else RunStatus.FAILED
            reason, drain_s = run.reason or stops[-1].reason, stops[-1].drain_timeout_s
            ending = RunEnding(status=status, reason=reason, stop=stops[-1].reason, drain_s=drain_s)
            self._state = replace(self._state, ending=ending, stop_published=True)
            self.stopped_s = planned_until_s(run_control_events.history(self.session, self._run_id))
        self.progress.remember_stored(run_measurements.read_windows(self.session, self._run_id))
        self._observe_workers(run.status, ())  # heartbeats carry what was measured and is not stored yet
        self.progress.note(self.workers)
        if self.find_max is not None:
            steps = run_measurements.read_steps(self.session, self._run_id)
            self._steps = list(steps)
            self.limits.warn_of_uncertain_steps(self.find_max.restore(steps, self.progress.step))

    def resume_polls(self) -> None:
        """Give the stored polls of the target warehouse to the poller: they show what it has cost so far."""
        assert self.warehouse_poller is not None
        polls = self.retries.call(lambda: run_measurements.read_polls(self.session, self._run_id))
        self.limits.warnings += self.warehouse_poller.restore(polls)
        if not polls:
            self.limits.warnings.append("credits are counted since the run was taken over: no earlier poll was stored")

    def lead(self) -> RunEnding:
        """Lead the run from STARTING until every worker has ended. Returns the ending of the run."""
        due_s = self._answered_s = self._now_s()
        self._state = replace(self._state, since_s=due_s)
        while True:
            due_s = max(due_s + self._policy.timing.tick_s, self._now_s())
            try:
                ending = self._tick()
                self._tick_succeeded()
                if ending is not None:
                    return ending
            except (ControlFailed, *LOGIN_ERRORS) as error:
                self._tick_failed(error)
            except Fenced as error:
                self._reclaim_or_wait(error)
            self._clock.wait(self._woken, due_s - self._now_s())
            self._woken.clear()

    def move(self, run: Run, step: MoveRun, verdict: str | None = None) -> bool:
        """Change the status of the run. Returns False if it is no longer the observed one."""
        self.leadership.require_trust()
        change = StatusChange(
            status=run.status,
            phase=run.phase,
            to=step.to,
            to_phase=step.to_phase,
            reason=step.reason,
            verdict=verdict,
            zero=self._publisher.zero,
        )
        moved = run_status.move(self.session, self.retries, self.leadership.term, change)
        event(log, logging.INFO, "run_moved", to=step.to, phase=step.to_phase, why=step.reason, ok=moved)
        return moved

    def while_leading(self, work: Callable[[], Result]) -> Result:
        """Do repeatable work under this lease. If the lease is lost meanwhile, claim it again and repeat the work."""
        while True:
            try:
                self.leadership.require_trust()
                return work()
            except Fenced as error:
                self._reclaim(error)

    def read_run(self) -> Run:
        return self.retries.call(self._read)

    def _read(self) -> Run:
        run = run_status.read(self.session, self._run_id, self._publisher.undated_event)
        if run is None:
            raise RunFailed(f"run {self._run_id} has vanished from RUN_STATUS")
        self._publisher.note_run(run)
        return run

    # --- a tick ------------------------------------------------------------------------------------------------------

    def _tick(self) -> RunEnding | None:
        """Observe, decide, apply. Two statements per tick: every second tick publishes figures and does not read the
        run."""
        publishes = self._known is not None
        view, run = self._observe()
        self.leadership.require_trust()  # the control plane answers: another process may lead the run by now
        self._state, actions = decide(self._state, view, self._policy)
        if self._state.ending is not None and self.stopped_s is None and view.zero_s is not None:
            self.stopped_s = view.now_s - view.zero_s
        for action in actions:
            if isinstance(action, FinishRun):
                self._publish()
                return action.ending
            if not self._apply(run, action):
                return None
            self._state = after_action(self._state, action)  # kept even if a later action fails
        self.limits.warn(self._publisher.late_acknowledgements(self.workers))
        if publishes or actions:
            self._publish()
        else:
            self._known = run
        self._show(run)
        return None

    def _show(self, run: Run) -> None:
        plan, poller, ending = self._policy.plan, self.warehouse_poller, self._state.ending
        now_s, zero_s = self._now_s(), self._publisher.zero_s
        self._on_snapshot(
            RunSnapshot(
                seen_s=now_s,
                moment=self._clock.utc_now(),
                run=run,
                workers=self.workers,
                elapsed_s=None if zero_s is None else now_s - zero_s,
                ends_s=plan.ends_s,
                measures_s=plan.measures_s,
                ending=None if ending is None else ending.reason,
                checked=self.limits.current() if run.phase.is_measured else (),
                warnings=tuple(self.limits.warnings),
                steps=tuple(self._steps),
                polls=() if poller is None else poller.polls,
            )
        )

    def _observe(self) -> tuple[RunObservation, Run]:
        # Read the ends of processes before the heartbeats: so the last heartbeat of an ended process is never missed.
        ends = self._spawner.ended()
        began_s, known, self._known = self._now_s(), self._known, None
        run = known or self._read()
        self._publisher.latencies_s.extend([] if known else [self._now_s() - began_s])
        if run.status.is_terminal:  # another process considered this leader lost, and recovered the run
            raise RunFailed(
                f"run {self._run_id} was ended by another process: {run.status}, {run.reason}",
                remedy=f"`loadgen report {self._run_id}` shows its result.",
            )
        if run.status is RunStatus.RUNNING and self._publisher.zero is None:
            self._publisher.read_published()  # another leader has started the run meanwhile
        now_s = self._observe_workers(run.status, ends)
        view = RunObservation(
            now_s=now_s,
            status=run.status,
            stored_status=run.stored_status,
            phase=run.phase,
            reason=run.reason,
            workers=self.workers,
            zero_s=self._publisher.zero_s,
            closes_s=self._publisher.closes_s,
            interrupts=self._interrupts,
        )
        measured_s = 0.0 if view.zero_s is None else view.now_s - view.zero_s - self._policy.plan.measures_s
        limit = self._limit(view, measured_s)
        search = None if limit is not None else self._observe_search(view, measured_s)
        return replace(view, limit=limit, search=search), run

    def _observe_workers(self, status: RunStatus, ends: Sequence[ProcessEnd]) -> float:
        """Read the heartbeats and assess the workers. Returns the time of the observation. While the run ends, the
        stored result of a worker stands for a last heartbeat that did not arrive."""
        rows = worker_heartbeats.read(self.session, self._run_id)
        self.limits.warn([str(error) for error in rows.unreadable[:1]])
        timing, now_s = self._policy.timing, self._now_s()
        silent_s = self._liveness.observe({row.identity.worker_id: row.beat.count for row in rows}, now_s)
        self.replacements.observe(rows)
        assess = partial(self._assess, rows, ends, silent_s, stale_s=timing.stale_s, dead_s=timing.dead_s)
        self.workers = assess()
        if status in _ENDING and any(worker.health is WorkerHealth.DEAD for worker in self.workers):
            self.workers = assess(with_result=test_results.completed_workers(self.session, self._run_id))
        return now_s

    def _limit(self, view: RunObservation, measured_s: float) -> RunEnding | None:
        """The ending that the cost limit demands or, while the run measures, a threshold or guardrail; else None."""
        if self.warehouse_poller is not None:
            self.warehouse_poller.check()
        costly = self.limits.cost(self.warehouse_poller)
        if costly is not None or not _measures(view):
            return costly
        self.progress.note(view.workers)
        self.stored_seconds.fill(view.workers, now_s=view.now_s, measured_s=measured_s)
        return self.limits.check(view.workers, measured_s)

    def _observe_search(self, view: RunObservation, measured_s: float) -> SearchUpdate | None:
        """The observation of the current step. None: nothing can be judged, or the last decision is not applied yet."""
        waits = self._state.unrecorded or self._state.next_step is not None
        if self.find_max is None or not _measures(view) or measured_s < 0 or waits:  # the first step follows the zero
            return None
        poller = self.warehouse_poller
        if poller is not None and not self.find_max.is_open(view.workers):
            poller.forget()  # these polls show the previous step, or connections that settle
        queue_seen = poller is not None and poller.queue_seen()
        judged, decision = self.find_max.observe(view.workers, view.now_s, queue_seen=queue_seen)
        return SearchUpdate(step=None if judged is None else MeasuredStep(*judged), decision=decision)

    # --- actions -----------------------------------------------------------------------------------------------------

    def _apply(self, run: Run, action: Action) -> bool:
        """Returns False if the run has changed since it was observed."""
        self.leadership.require_trust()
        if isinstance(action, MoveRun):
            return self.move(run, action)
        if isinstance(action, StoreCancellation):  # without effect if the stored status has changed: the row counts
            self.move(replace(run, status=action.stored), MoveRun(run.status, run.phase, run.reason))
        elif isinstance(action, RecordStep):
            self._record(action.step)
        elif isinstance(action, PublishStep):
            self._publisher.step(action.step.number, action.step.target)
        elif isinstance(action, PublishSearchEnd):
            self._publisher.end_search()
        elif isinstance(action, PublishStart):
            self._publisher.start(self._policy.plan, len(self.worker_ids))
        elif isinstance(action, PublishStop):
            self._publisher.stop(action.ending.stop, action.ending.drain_s)
        elif isinstance(action, TerminateWorkers):
            self._spawner.terminate(hard=action.hard)
        return True

    def _record(self, step: MeasuredStep) -> None:
        judged = step.judged
        record = step_record(self._run_id, judged, step.measured, self._publisher.server_now)
        run_measurements.append_step(self.session, self.retries, record, fresh=self.leadership.is_first)
        self._steps.append(record)
        event(log, logging.INFO, "step_judged", step=judged.number, outcome=judged.outcome, why=judged.reason)

    def _publish(self) -> None:
        """Update the figures of the run in RUN_STATUS if they have changed."""
        rollup = roll_up(
            self.workers,
            find_max_state=None if self.find_max is None else json.dumps(self.find_max.state()),
            targets=self._publisher.targets,
            next_sequence_id=self._publisher.next_sequence_id,
        )
        now_s, before = self._now_s(), self._published
        if before is not None:
            queries, elapsed_s = rollup.total_ops - before[0].total_ops, max(now_s - before[1], 1e-3)
            rollup = replace(rollup, current_qps=max(0.0, queries / elapsed_s))
        changed = before is None or rollup != before[0]
        if changed and run_status.publish(self.session, self.leadership.term, rollup):
            self._published = (rollup, now_s)

    # --- outages -----------------------------------------------------------------------------------------------------

    def _tick_succeeded(self) -> None:
        now_s = self._now_s()
        if self._missed_ticks:
            away = f"{now_s - self._answered_s:.1f}"
            event(log, logging.WARNING, "control_plane_back", missed_ticks=self._missed_ticks, away_s=away)
        self._answered_s, self._missed_ticks = now_s, 0

    def _tick_failed(self, error: LoadgenError) -> None:
        """The control plane did not answer, or rejected the login after a lost connection. Workers continue with the
        plan. Only the first failure is a warning."""
        if isinstance(error, ControlFailed) and not error.failure.retryable:
            raise error
        level = logging.DEBUG if self._missed_ticks else logging.WARNING
        event(log, level, "tick_missed", what=str(error))
        self._missed_ticks += 1
        reason = decide_outage(self._now_s() - self._answered_s, self.limits.cost(self.warehouse_poller))
        if reason is not None:
            raise RunFailed(f"{reason}: {error}") from error

    def _reclaim_or_wait(self, error: Fenced) -> None:
        """As _reclaim(). A rejected login is a missed tick; the next one claims the lease again."""
        try:
            self._reclaim(error)
        except LOGIN_ERRORS as rejected:
            self._tick_failed(rejected)

    def _reclaim(self, error: Fenced) -> None:
        event(log, logging.WARNING, "lease_lost", what=str(error))
        self._on_wait("the lease of the run was lost: claiming it again, unless another process leads the run now")
        self.leadership.reclaim(self._woken)
        self._tick_succeeded()

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / NS_PER_S


def _measures(view: RunObservation) -> bool:
    return view.status is RunStatus.RUNNING and view.phase is Phase.MEASUREMENT
