"""What to do next with a run: a pure decision over what is known of it, taken every second.

    STARTING    all workers WAIT → START with the plan; START is said → RUNNING; one died, or time is over → FAILED
    RUNNING     warm-up over → MEASUREMENT; plan over → STOPPING, STOP; a worker lost, a limit hit → STOPPING, STOP
    STOPPING    all workers over, or the drain's deadline or the cost limit passed and they were ended → finish
    CANCELLING  the same, at the request of a user

The decision names actions; the leader applies them. When one fails, the next tick decides again from what it observes.
So every action may be decided twice; `after_action` remembers those that succeeded. That START is in the table is not
remembered but read: the run's row tells when the plan begins.
"""

from __future__ import annotations

from dataclasses import replace

from loadgen.metrics.window import MergedWindows
from loadgen.model.run import RUN_TRANSITIONS, Phase, RunStatus, WorkerStatus
from loadgen.rules.find_max_step import JudgedStep
from loadgen.rules.plan import RunPlan
from loadgen.scenario.model import OnWorkerLoss
from loadgen.scenario.settings import TimingSettings
from loadgen.values import dataclass
from orchestrator.worker_health import WorkerHealth, WorkerView

PLAN_COMPLETED = "duration"
COMPLETED_STOP_REASONS = (
    PLAN_COMPLETED,
    "find_max",
    "threshold",
)  # what STOP says when the run did what it was meant to do
STORE_TIMEOUT_S = 600.0  # how long workers may write what they measured; they give up by themselves then
STOP_DELAY_S = 0.5  # workers close their last window by themselves; STOP comes this much later


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnding:
    """How a run will end, and why."""

    status: RunStatus  # COMPLETED, FAILED or CANCELLED
    reason: str  # for people
    stop: str  # what STOP says: duration, cancelled, worker_failure, guardrail, threshold, find_max
    drain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """What does not change during a run."""

    plan: RunPlan
    timing: TimingSettings
    on_worker_loss: OnWorkerLoss


# --- a search for the maximum ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartStep:
    """Tell workers to go to the level of the step with this number."""

    number: int
    target: int


@dataclass(frozen=True, slots=True)
class SearchFinished:
    """The search is done."""

    reason: str


@dataclass(frozen=True, slots=True)
class MetricsMissing:
    """Nothing is known of the step: missing is never read as zero."""

    silent_s: float


SearchDecision = StartStep | SearchFinished | MetricsMissing


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step that was judged, with what was measured in it."""

    judged: JudgedStep
    measured: MergedWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchUpdate:
    """What the search has observed: the step that it has just judged, and its decision."""

    step: MeasuredStep | None
    decision: SearchDecision | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObservation:
    """What is known at a tick. `now_s` is this process's own clock."""

    now_s: float
    status: RunStatus
    phase: Phase
    reason: str | None
    workers: tuple[WorkerView, ...]
    zero_s: float | None = None  # when the plan begins; None: START was not published
    interrupts: int = 0  # how often this process was asked to stop
    limit: RunEnding | None = None  # a threshold, a guardrail or the cost ends the run
    search: SearchUpdate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleState:
    """What the leader remembers from tick to tick."""

    since_s: float  # when the run got its present status, or when we first saw it
    seen: RunStatus
    ending: RunEnding | None = None
    stop_said: bool = False
    asked_s: float | None = None  # when this process was first asked to stop
    ended: int = 0  # 1: workers were asked to end, 2: asked again, 3: they were ended
    ended_s: float = 0.0  # when that was
    unrecorded: tuple[MeasuredStep, ...] = ()  # steps of the search that are judged and not stored yet
    next_step: StartStep | None = None  # of the search; workers have not been told yet


# --- actions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoveRun:
    """Move the run from where it is."""

    to: RunStatus
    to_phase: Phase
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PublishStart:
    """Tell workers the plan, and when it begins."""


@dataclass(frozen=True, slots=True)
class PublishStop:
    ending: RunEnding


@dataclass(frozen=True, slots=True)
class TerminateWorkers:
    hard: bool


@dataclass(frozen=True, slots=True)
class FinishRun:
    """Every worker has ended: make the results, and end the run."""

    ending: RunEnding


@dataclass(frozen=True, slots=True)
class RecordStep:
    """Store a judged step of the search."""

    step: MeasuredStep


@dataclass(frozen=True, slots=True)
class PublishStep:
    """Tell workers the level of the next step."""

    step: StartStep


Action = RecordStep | PublishStep | MoveRun | PublishStart | PublishStop | TerminateWorkers | FinishRun


def decide(state: LifecycleState, view: RunObservation, policy: RunPolicy) -> tuple[LifecycleState, tuple[Action, ...]]:
    """The next actions, and what to remember. Judged steps of a search are stored first, whatever follows."""
    if view.status is not state.seen:
        state = replace(state, seen=view.status, since_s=view.now_s)
    if view.status.is_terminal:
        return state, ()
    if view.interrupts and state.asked_s is None:
        state = replace(state, asked_s=view.now_s)
    state = _after_search(state, view.search)
    records = tuple(RecordStep(step) for step in state.unrecorded)
    if view.interrupts and view.status in (RunStatus.PREPARED, RunStatus.STARTING, RunStatus.RUNNING):
        return state, (*records, MoveRun(RunStatus.CANCELLING, view.phase, "stopped by the user"))
    state, actions = _next_actions(state, view, policy)
    return state, (*records, *actions)


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
    """What to remember of an action that succeeded."""
    if isinstance(action, PublishStop):
        return replace(state, stop_said=True)
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
    if view.zero_s is not None:  # START was said, by this leader or by one before it: workers begin in any case
        return state, (MoveRun(RunStatus.RUNNING, policy.plan.first_phase),)
    if view.workers and all(worker.is_ready for worker in view.workers):
        return state, (PublishStart(),)  # the next tick reads when the plan begins: the run's START_TIME
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
    ending = view.limit or _search_ending(view.search, policy)
    if ending is not None:
        return _stop(state, view, ending)
    elapsed_s = 0.0 if view.zero_s is None else view.now_s - view.zero_s
    if policy.plan.ends_s is not None and elapsed_s >= policy.plan.ends_s + STOP_DELAY_S:
        done = RunEnding(
            status=RunStatus.COMPLETED, reason="the plan is done", stop=PLAN_COMPLETED, drain_s=policy.timing.drain_s
        )
        return _stop(state, view, done)
    if view.phase is Phase.WARMUP and elapsed_s >= policy.plan.measures_s:
        return state, (MoveRun(RunStatus.RUNNING, Phase.MEASUREMENT),)
    return state, () if state.next_step is None else (PublishStep(state.next_step),)


def _search_ending(update: SearchUpdate | None, policy: RunPolicy) -> RunEnding | None:
    decision = None if update is None else update.decision
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
    if ending is None or ending.status not in RUN_TRANSITIONS[view.status]:  # another request came first
        ending = _asked(view, policy)
    if view.limit is not None and ending.status is RunStatus.COMPLETED:  # the cost: nothing else is judged in a drain
        ending = view.limit
    state = replace(state, ending=ending)
    said: tuple[Action, ...] = () if state.stop_said else (PublishStop(ending),)
    unheard_s = 0.0 if view.status is RunStatus.CANCELLING else policy.timing.kill_after_s
    never_came = (
        view.now_s - state.since_s >= unheard_s
    )  # a worker that registers later reads the status of the run, and ends
    if all(worker.is_over or (worker.health is WorkerHealth.MISSING and never_came) for worker in view.workers):
        return state, (*said, FinishRun(_with_losses(ending, view, policy)))
    if state.ended == 0:
        if view.limit is None and view.interrupts < 2 and view.now_s <= _over_s(state, view, ending, policy):
            return state, said
        return replace(state, ended=1, ended_s=view.now_s), (*said, TerminateWorkers(hard=False))
    if state.ended == 1:  # a worker that had not read STOP took the first signal as the request to drain
        return replace(state, ended=2, ended_s=view.now_s), (*said, TerminateWorkers(hard=False))
    if view.now_s - state.ended_s <= policy.timing.kill_after_s:
        return state, said
    if state.ended == 2:
        return replace(state, ended=3, ended_s=view.now_s), (*said, TerminateWorkers(hard=True))
    # A worker that still sends heartbeats is unreachable: its watchdog ends it.
    return state, (*said, FinishRun(_with_losses(ending, view, policy)))


def _with_losses(ending: RunEnding, view: RunObservation, policy: RunPolicy) -> RunEnding:
    """A worker that was lost before it read STOP counts, although that shows only while the others drain."""
    heard = (WorkerStatus.DRAINING, WorkerStatus.COMPLETED)
    lost = [worker for worker in view.workers if worker.status not in heard]
    fails = policy.on_worker_loss is OnWorkerLoss.FAIL or len(lost) == len(view.workers)
    if ending.status is not RunStatus.COMPLETED or not lost or not fails:
        return ending
    return _failure(policy, "; ".join(worker.why for worker in lost))


def _over_s(state: LifecycleState, view: RunObservation, ending: RunEnding, policy: RunPolicy) -> float:
    """When workers that are not over by themselves are ended. One that only writes what it measured is not cut short,
    unless a user waits: then it spools the rest."""
    over_s = _drained_s(state, ending, policy) + policy.timing.terminate_after_s
    storing = all(worker.is_over or worker.is_storing for worker in view.workers)
    return over_s + STORE_TIMEOUT_S if storing and state.asked_s is None else over_s


def _drained_s(state: LifecycleState, ending: RunEnding, policy: RunPolicy) -> float:
    """When the drain is over: a user who asks for the end does not wait as long as the plan would have."""
    planned_s = state.since_s + ending.drain_s
    return planned_s if state.asked_s is None else min(planned_s, state.asked_s + policy.timing.drain_interrupt_s)


def _stop(state: LifecycleState, view: RunObservation, ending: RunEnding) -> tuple[LifecycleState, tuple[Action, ...]]:
    phase = view.phase if view.phase is Phase.PREPARING else Phase.COOLDOWN
    return replace(state, ending=ending), (MoveRun(RunStatus.STOPPING, phase, ending.reason), PublishStop(ending))


def _asked(view: RunObservation, policy: RunPolicy) -> RunEnding:
    """The run was CANCELLING, or another process had stopped it."""
    if view.status is RunStatus.CANCELLING:
        drain_s = policy.timing.drain_interrupt_s
        reason = view.reason or "stopped by the user"
        return RunEnding(status=RunStatus.CANCELLED, reason=reason, stop="cancelled", drain_s=drain_s)
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
