"""The next actions for a run: a pure decision, taken every second from the observations of the leader.

    STARTING    all workers WAITING → START with the plan; START published → RUNNING
                a worker lost, or the registration time is over → STOPPING, STOP
    RUNNING     warm-up over → MEASUREMENT; plan over, a worker lost or a limit reached → STOPPING, STOP
                search over → its last window is closed in all workers together, then STOPPING, STOP
    STOPPING    all workers have ended, or were terminated after the deadline of the drain → finish
    CANCELLING  as STOPPING, at the request of a user

The decision is a list of actions, which the leader applies. If an action fails, the next tick decides again from
its observations. So an action may be decided twice; `after_action` records the actions that succeeded. Whether START
was published is not recorded but read from the row of the run, which contains the beginning of the plan.
"""

from __future__ import annotations

from dataclasses import replace

from loadgen.metrics.window import MergedWindows
from loadgen.model.run import RUN_TRANSITIONS, Phase, RunStatus, WorkerStatus
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot
from loadgen.rules.find_max_step import JudgedStep
from loadgen.rules.plan import RunPlan
from loadgen.scenario.model import OnWorkerLoss
from loadgen.scenario.settings import TimingSettings
from loadgen.values import dataclass

PLAN_COMPLETED = "duration"
THRESHOLD_MISSED = "threshold"
CANCELLED = "cancelled"
# reasons in STOP of a run that becomes COMPLETED
COMPLETED_STOP_REASONS = (PLAN_COMPLETED, "find_max", THRESHOLD_MISSED)
STORE_TIMEOUT_S = 600.0  # for workers to store their results; after this time workers end by themselves
STOP_DELAY_S = 0.5  # between the time at which workers close their last window, and STOP
OUTAGE_MAX_S = 180.0  # a longer outage of the control plane ends the run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnding:
    """How a run will end, and why."""

    status: RunStatus  # COMPLETED, FAILED or CANCELLED
    reason: str  # a sentence for the user
    stop: str  # the reason in STOP: duration, cancelled, worker_failure, guardrail, threshold, find_max
    drain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """The settings of a run that decisions depend on."""

    plan: RunPlan
    timing: TimingSettings
    on_worker_loss: OnWorkerLoss


# --- a search for the maximum ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartStep:
    """The search continues with this step."""

    number: int
    target: int


@dataclass(frozen=True, slots=True)
class SearchFinished:
    """The search has ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class MetricsMissing:
    """The workers report no metrics of the step. Missing metrics never count as zero."""

    silent_s: float


SearchDecision = StartStep | SearchFinished | MetricsMissing


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A judged step with its measurement."""

    judged: JudgedStep
    measured: MergedWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchUpdate:
    """The step that was just judged, if any, and the next decision of the search."""

    step: MeasuredStep | None
    decision: SearchDecision | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObservation:
    """The observations of the leader in a tick. `now_s` is the monotonic clock of this process."""

    now_s: float
    status: RunStatus
    stored_status: RunStatus | None = None  # differs from `status` once a user requests the end: that is CANCELLING
    phase: Phase
    reason: str | None
    workers: tuple[WorkerSnapshot, ...]
    zero_s: float | None = None  # when the plan begins; None: START was not published
    closes_s: float | None = None  # when workers close the last window of a search; None: not published
    interrupts: int = 0  # number of requests to this process to end the run
    limit: RunEnding | None = None  # the ending that a threshold, a guardrail or the cost limit demands
    search: SearchUpdate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleState:
    """The state that the leader keeps from tick to tick."""

    since_s: float  # when `status` was first observed
    status: RunStatus  # of the previous tick
    ending: RunEnding | None = None
    stop_published: bool = False
    interrupted_s: float | None = None  # when the end was first requested from this process
    signals_sent: int = 0  # to workers that do not end: 1 and 2 are SIGTERM, 3 is SIGKILL
    signalled_s: float = 0.0  # when the last of these signals was sent
    unrecorded: tuple[MeasuredStep, ...] = ()  # steps of the search that are judged and not stored yet
    next_step: StartStep | None = None  # of the search; not published yet


# --- actions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoveRun:
    """Change the status and phase of the run."""

    to: RunStatus
    to_phase: Phase
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class StoreCancellation:
    """Store the status CANCELLING, which a user has requested, in the place of the stored status."""

    stored: RunStatus


@dataclass(frozen=True, slots=True)
class PublishStart:
    """Publish the plan and when it begins."""


@dataclass(frozen=True, slots=True)
class PublishStop:
    """Publish that workers end, how, and why."""

    ending: RunEnding


@dataclass(frozen=True, slots=True)
class TerminateWorkers:
    """Send SIGTERM to the worker processes; with `hard` SIGKILL."""

    hard: bool


@dataclass(frozen=True, slots=True)
class FinishRun:
    """Compute the result and end the run, because every worker has ended."""

    ending: RunEnding


@dataclass(frozen=True, slots=True)
class RecordStep:
    """Store a judged step of the search."""

    step: MeasuredStep


@dataclass(frozen=True, slots=True)
class PublishStep:
    """Publish the level of the next step."""

    step: StartStep


@dataclass(frozen=True, slots=True)
class PublishSearchEnd:
    """Publish when workers close the last window of the search, all together."""


Action = (
    StoreCancellation
    | RecordStep
    | PublishStep
    | PublishSearchEnd
    | MoveRun
    | PublishStart
    | PublishStop
    | TerminateWorkers
    | FinishRun
)


def decide(state: LifecycleState, view: RunObservation, policy: RunPolicy) -> tuple[LifecycleState, tuple[Action, ...]]:
    """The next state and actions. A requested cancellation and judged steps of a search are stored first."""
    if view.status is not state.status:
        state = replace(state, status=view.status, since_s=view.now_s)
    if view.status.is_terminal:
        return state, ()
    if view.interrupts and state.interrupted_s is None:
        state = replace(state, interrupted_s=view.now_s)
    state = _after_search(state, view.search)
    stores: tuple[Action, ...] = tuple(RecordStep(step) for step in state.unrecorded)
    if view.stored_status is not None and view.stored_status is not view.status:
        stores = (StoreCancellation(view.stored_status), *stores)
    if view.interrupts and view.status in (RunStatus.PREPARED, RunStatus.STARTING, RunStatus.RUNNING):
        return state, (*stores, MoveRun(RunStatus.CANCELLING, view.phase, "stopped by the user"))
    state, actions = _next_actions(state, view, policy)
    return state, (*stores, *actions)


def decide_outage(outage_s: float, costly: RunEnding | None) -> str | None:
    """Why a run ends while the control plane is unreachable: the outage is too long, or the cost limit is reached.
    None: it continues."""
    if outage_s <= OUTAGE_MAX_S and costly is None:
        return None
    outage = f"the control plane has been unreachable for {outage_s:.0f} s"
    return outage if costly is None else f"{costly.reason}; {outage}"


def _after_search(state: LifecycleState, update: SearchUpdate | None) -> LifecycleState:
    if update is None:
        return state
    if update.step is not None:
        state = replace(state, unrecorded=(*state.unrecorded, update.step))
    return replace(state, next_step=update.decision) if isinstance(update.decision, StartStep) else state


def _next_actions(
    state: LifecycleState, view: RunObservation, policy: RunPolicy
) -> tuple[LifecycleState, tuple[Action, ...]]:
    if view.status is RunStatus.STARTING:
        return _starting(state, view, policy)
    if view.status is RunStatus.RUNNING:
        return _running(state, view, policy)
    if view.status in (RunStatus.STOPPING, RunStatus.CANCELLING):
        return _stopping(state, view, policy)
    return state, ()


def after_action(state: LifecycleState, action: Action) -> LifecycleState:
    """The state after an action that succeeded."""
    if isinstance(action, PublishStop):
        return replace(state, stop_published=True)
    if isinstance(action, RecordStep):
        return replace(state, unrecorded=tuple(step for step in state.unrecorded if step is not action.step))
    if isinstance(action, PublishStep):
        return replace(state, next_step=None)
    return state


def _starting(
    state: LifecycleState, view: RunObservation, policy: RunPolicy
) -> tuple[LifecycleState, tuple[Action, ...]]:
    lost = [worker for worker in view.workers if worker.is_over]
    if lost:
        return _stop(state, view, _failure(policy, "; ".join(worker.why for worker in lost)))
    if view.limit is not None:
        return _stop(state, view, view.limit)
    if view.zero_s is not None:  # START was published, by this leader or an earlier one: the workers begin in any case
        return state, (MoveRun(RunStatus.RUNNING, policy.plan.first_phase),)
    if view.workers and all(worker.is_ready for worker in view.workers):
        return state, (PublishStart(),)  # the next tick reads when the plan begins: START_TIME of the run
    if view.now_s - state.since_s > policy.timing.registration_s:
        missing = "; ".join(worker.why for worker in view.workers if not worker.is_ready)
        text = f"not all workers were ready within {policy.timing.registration_s:g} s: {missing}"
        return _stop(state, view, _failure(policy, text))
    return state, ()


def _running(
    state: LifecycleState, view: RunObservation, policy: RunPolicy
) -> tuple[LifecycleState, tuple[Action, ...]]:
    lost = [worker for worker in view.workers if worker.health is WorkerHealth.DEAD]
    if lost and (policy.on_worker_loss is OnWorkerLoss.FAIL or len(lost) == len(view.workers)):
        return _stop(state, view, _failure(policy, "; ".join(worker.why for worker in lost)))
    decision = None if view.search is None else view.search.decision
    if view.limit is None and isinstance(decision, SearchFinished):
        if view.closes_s is None:
            return state, (PublishSearchEnd(),)
        if view.now_s < view.closes_s + STOP_DELAY_S:
            return state, ()
    ending = view.limit or _search_ending(decision, policy)
    if ending is not None:
        return _stop(state, view, ending)
    elapsed_s = 0.0 if view.zero_s is None else view.now_s - view.zero_s
    if policy.plan.ends_s is not None and elapsed_s >= policy.plan.ends_s + STOP_DELAY_S:
        done = RunEnding(
            status=RunStatus.COMPLETED,
            reason="the plan is complete",
            stop=PLAN_COMPLETED,
            drain_s=policy.timing.drain_s,
        )
        return _stop(state, view, done)
    if view.phase is Phase.WARMUP and elapsed_s >= policy.plan.measures_s:
        return state, (MoveRun(RunStatus.RUNNING, Phase.MEASUREMENT),)
    return state, () if state.next_step is None else (PublishStep(state.next_step),)


def _search_ending(decision: SearchDecision | None, policy: RunPolicy) -> RunEnding | None:
    if isinstance(decision, SearchFinished):
        status, reason, drain_s = RunStatus.COMPLETED, decision.reason, policy.timing.drain_s
    elif isinstance(decision, MetricsMissing):
        reason = f"no metrics of the step from the workers for {decision.silent_s:.0f} s"
        status, drain_s = RunStatus.FAILED, policy.timing.drain_interrupt_s
    else:
        return None
    return RunEnding(status=status, reason=reason, stop="find_max", drain_s=drain_s)


def _stopping(
    state: LifecycleState, view: RunObservation, policy: RunPolicy
) -> tuple[LifecycleState, tuple[Action, ...]]:
    ending = state.ending
    if ending is None or ending.status not in RUN_TRANSITIONS[view.status]:  # another process has stopped the run
        ending = _external_ending(view, policy)
    if view.limit is not None and ending.status is RunStatus.COMPLETED:  # the cost: the only limit that a drain checks
        ending = view.limit
    state = replace(state, ending=ending)
    stop: tuple[Action, ...] = () if state.stop_published else (PublishStop(ending),)
    # A worker that registers later than this reads the status of the run, and ends.
    registration_s = 0.0 if view.status is RunStatus.CANCELLING else policy.timing.kill_after_s
    too_late = view.now_s - state.since_s >= registration_s
    if all(worker.is_over or (worker.health is WorkerHealth.MISSING and too_late) for worker in view.workers):
        return state, (*stop, FinishRun(_with_losses(ending, view, policy)))
    if state.signals_sent == 0:
        if view.limit is None and view.interrupts < 2 and view.now_s <= _deadline_s(state, view, ending, policy):
            return state, stop
        return _signalled(state, view), (*stop, TerminateWorkers(hard=False))
    if state.signals_sent == 1:  # for a worker that had not read STOP, the first signal was the request to drain
        return _signalled(state, view), (*stop, TerminateWorkers(hard=False))
    if view.now_s - state.signalled_s <= policy.timing.kill_after_s:
        return state, stop
    if state.signals_sent == 2:
        return _signalled(state, view), (*stop, TerminateWorkers(hard=True))
    # A worker that still sends heartbeats cannot be reached by signals: its watchdog ends it.
    return state, (*stop, FinishRun(_with_losses(ending, view, policy)))


def _signalled(state: LifecycleState, view: RunObservation) -> LifecycleState:
    return replace(state, signals_sent=state.signals_sent + 1, signalled_s=view.now_s)


def _with_losses(ending: RunEnding, view: RunObservation, policy: RunPolicy) -> RunEnding:
    """The ending, or FAILED because of a worker that was lost before it read STOP: the loss shows only in the drain."""
    lost = [
        worker
        for worker in view.workers
        if worker.health is not WorkerHealth.DONE and worker.status is not WorkerStatus.DRAINING
    ]
    fails = policy.on_worker_loss is OnWorkerLoss.FAIL or len(lost) == len(view.workers)
    if ending.status is not RunStatus.COMPLETED or not lost or not fails:
        return ending
    return _failure(policy, "; ".join(worker.why for worker in lost))


def _deadline_s(state: LifecycleState, view: RunObservation, ending: RunEnding, policy: RunPolicy) -> float:
    """When workers that have not ended are terminated. Workers that only store their results get more time, unless a
    user has interrupted the run: then they spool the rest."""
    deadline_s = _drained_s(state, ending, policy) + policy.timing.terminate_after_s
    storing = all(worker.is_over or worker.is_storing for worker in view.workers)
    return deadline_s + STORE_TIMEOUT_S if storing and state.interrupted_s is None else deadline_s


def _drained_s(state: LifecycleState, ending: RunEnding, policy: RunPolicy) -> float:
    """When the drain is over. An interrupt shortens it to `timing.drain_interrupt`."""
    planned_s = state.since_s + ending.drain_s
    if state.interrupted_s is None:
        return planned_s
    return min(planned_s, state.interrupted_s + policy.timing.drain_interrupt_s)


def _stop(state: LifecycleState, view: RunObservation, ending: RunEnding) -> tuple[LifecycleState, tuple[Action, ...]]:
    phase = view.phase if view.phase is Phase.PREPARING else Phase.COOLDOWN
    return replace(state, ending=ending), (MoveRun(RunStatus.STOPPING, phase, ending.reason), PublishStop(ending))


def _external_ending(view: RunObservation, policy: RunPolicy) -> RunEnding:
    """The ending of a run that a user has cancelled, or that another process was stopping when it was lost."""
    if view.status is RunStatus.CANCELLING:
        drain_s = policy.timing.drain_interrupt_s
        reason = view.reason or "stopped by the user"
        return RunEnding(status=RunStatus.CANCELLED, reason=reason, stop=CANCELLED, drain_s=drain_s)
    return RunEnding(
        status=RunStatus.FAILED,
        reason=f"its leader was lost while it was stopping ({view.reason or 'no reason is stored'})",
        stop="taken over",
        drain_s=policy.timing.drain_s,
    )


def _failure(policy: RunPolicy, reason: str) -> RunEnding:
    return RunEnding(
        status=RunStatus.FAILED, reason=reason, stop="worker_failure", drain_s=policy.timing.drain_interrupt_s
    )
