"""What to do next with a run: a pure decision over what is known of it, taken every second.

    STARTING    all workers WAIT → START with the plan, then RUNNING; one died, or time is over → FAILED
    RUNNING     warm-up over → MEASUREMENT; plan over → STOPPING, STOP; a worker lost, a limit hit → STOPPING, STOP
    STOPPING    all workers over, or the drain's deadline passed and they were ended → finish
    CANCELLING  the same, for a user's wish

The decision names actions; somebody else carries them out, and may fail to: then the next tick decides again from what
is there. So every action is one that may be decided twice, and only `carried_out` remembers that something was said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadgen.model.run import RUN_TRANSITIONS, Phase, RunStatus
from loadgen.model.worker import WorkerStatus
from loadgen.scenario.model import OnWorkerLoss, TimingSettings
from orchestrator.plan import RunPlan
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObservation:
    """What is known at a tick. `now_s` is this process's own clock."""

    now_s: float
    status: RunStatus
    phase: Phase
    reason: str | None
    crew: tuple[WorkerView, ...]
    zero_s: float | None = None  # when the plan begins; None: START was not said
    interrupts: int = 0  # how often somebody asked this process to stop
    wish: RunEnding | None = None  # of thresholds, guardrails or find_max


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleState:
    """What the leader remembers from tick to tick."""

    since_s: float  # when the run got its present status, or when we first saw it
    seen: RunStatus
    ending: RunEnding | None = None
    start_said: bool = False
    stop_said: bool = False
    asked_s: float | None = None  # when somebody first asked this process to stop
    ended: int = 0  # 1: workers were asked to end, 2: asked again, 3: they were ended
    ended_s: float = 0.0  # when that was


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
    """Every worker is over: make the results, and end the run."""

    ending: RunEnding


Action = MoveRun | PublishStart | PublishStop | TerminateWorkers | FinishRun


def decide(course: LifecycleState, view: RunObservation, rules: RunPolicy) -> tuple[LifecycleState, tuple[Action, ...]]:
    """The next actions, and what to remember."""
    if view.status is not course.seen:
        course = replace(course, seen=view.status, since_s=view.now_s)
    if view.status.is_terminal:
        return course, ()
    if view.interrupts and course.asked_s is None:
        course = replace(course, asked_s=view.now_s)
    if view.interrupts and view.status in (RunStatus.PREPARED, RunStatus.STARTING, RunStatus.RUNNING):
        return course, (MoveRun(RunStatus.CANCELLING, view.phase, "stopped by the user"),)
    if view.status is RunStatus.STARTING:
        return _starting(course, view, rules)
    if view.status is RunStatus.RUNNING:
        return _running(course, view, rules)
    if view.status in (RunStatus.STOPPING, RunStatus.CANCELLING):
        return _stopping(course, view, rules)
    return course, ()


def after_action(course: LifecycleState, action: Action) -> LifecycleState:
    """What to remember of an action that succeeded."""
    if isinstance(action, PublishStart):
        return replace(course, start_said=True)
    if isinstance(action, PublishStop):
        return replace(course, stop_said=True)
    return course


def _starting(
    course: LifecycleState, view: RunObservation, rules: RunPolicy
) -> tuple[LifecycleState, tuple[Action, ...]]:
    lost = [worker for worker in view.crew if worker.is_over]
    if lost:
        return _stop(course, view, _failure(rules, "; ".join(worker.why for worker in lost)))
    if view.wish is not None:
        return _stop(course, view, view.wish)
    begin = MoveRun(RunStatus.RUNNING, rules.plan.first_phase)
    if course.start_said:  # by this leader, or by one before it: workers begin, whatever the run's row says
        return course, (begin,)
    if view.crew and all(worker.is_ready for worker in view.crew):
        return course, (PublishStart(), begin)
    if view.now_s - course.since_s > rules.timing.registration_s:
        missing = "; ".join(worker.why for worker in view.crew if not worker.is_ready)
        text = f"not all workers were ready within {rules.timing.registration_s:g} s: {missing}"
        return _stop(course, view, _failure(rules, text))
    return course, ()


def _running(
    course: LifecycleState, view: RunObservation, rules: RunPolicy
) -> tuple[LifecycleState, tuple[Action, ...]]:
    lost = [worker for worker in view.crew if worker.health is WorkerHealth.DEAD]
    if lost and (rules.on_worker_loss is OnWorkerLoss.FAIL or len(lost) == len(view.crew)):
        return _stop(course, view, _failure(rules, "; ".join(worker.why for worker in lost)))
    if view.wish is not None:
        return _stop(course, view, view.wish)
    elapsed_s = 0.0 if view.zero_s is None else view.now_s - view.zero_s
    if rules.plan.ends_s is not None and elapsed_s >= rules.plan.ends_s + STOP_DELAY_S:
        done = RunEnding(
            status=RunStatus.COMPLETED, reason="the plan is done", stop=PLAN_COMPLETED, drain_s=rules.timing.drain_s
        )
        return _stop(course, view, done)
    if view.phase is Phase.WARMUP and elapsed_s >= rules.plan.measures_s:
        return course, (MoveRun(RunStatus.RUNNING, Phase.MEASUREMENT),)
    return course, ()


def _stopping(
    course: LifecycleState, view: RunObservation, rules: RunPolicy
) -> tuple[LifecycleState, tuple[Action, ...]]:
    ending = course.ending
    if ending is None or ending.status not in RUN_TRANSITIONS[view.status]:  # somebody else's wish came before ours
        ending = _asked(view, rules)
    course = replace(course, ending=ending)
    said: tuple[Action, ...] = () if course.stop_said else (PublishStop(ending),)
    unheard_s = 0.0 if view.status is RunStatus.CANCELLING else rules.timing.kill_after_s
    never_came = view.now_s - course.since_s >= unheard_s  # whoever comes later sees the state of the run, and leaves
    if all(worker.is_over or (worker.health is WorkerHealth.MISSING and never_came) for worker in view.crew):
        return course, (*said, FinishRun(_with_losses(ending, view, rules)))
    if course.ended == 0:
        if view.interrupts < 2 and view.now_s <= _over_s(course, view, ending, rules):
            return course, said
        return replace(course, ended=1, ended_s=view.now_s), (*said, TerminateWorkers(hard=False))
    if course.ended == 1:  # whoever had not heard of STOP took the first for the wish to drain
        return replace(course, ended=2, ended_s=view.now_s), (*said, TerminateWorkers(hard=False))
    if view.now_s - course.ended_s <= rules.timing.kill_after_s:
        return course, said
    if course.ended == 2:
        return replace(course, ended=3, ended_s=view.now_s), (*said, TerminateWorkers(hard=True))
    # Whoever still beats cannot be reached: others decide about him.
    return course, (*said, FinishRun(_with_losses(ending, view, rules)))


def _with_losses(ending: RunEnding, view: RunObservation, rules: RunPolicy) -> RunEnding:
    """A worker that was lost before it heard of the end counts, though that shows only while the others drain."""
    heard = (WorkerStatus.DRAINING, WorkerStatus.COMPLETED)
    lost = [worker for worker in view.crew if worker.status not in heard]
    fails = rules.on_worker_loss is OnWorkerLoss.FAIL or len(lost) == len(view.crew)
    if ending.status is not RunStatus.COMPLETED or not lost or not fails:
        return ending
    return _failure(rules, "; ".join(worker.why for worker in lost))


def _over_s(course: LifecycleState, view: RunObservation, ending: RunEnding, rules: RunPolicy) -> float:
    """When workers that are not over by themselves are ended. One that only writes what it measured is not cut short,
    unless somebody waits: then it spools what is left."""
    over_s = _drained_s(course, ending, rules) + rules.timing.terminate_after_s
    storing = all(worker.is_over or worker.is_storing for worker in view.crew)
    return over_s + STORE_TIMEOUT_S if storing and course.asked_s is None else over_s


def _drained_s(course: LifecycleState, ending: RunEnding, rules: RunPolicy) -> float:
    """When the drain is over: a user who asks for the end does not wait as long as the plan would have."""
    planned_s = course.since_s + ending.drain_s
    return planned_s if course.asked_s is None else min(planned_s, course.asked_s + rules.timing.drain_interrupt_s)


def _stop(course: LifecycleState, view: RunObservation, ending: RunEnding) -> tuple[LifecycleState, tuple[Action, ...]]:
    phase = view.phase if view.phase is Phase.PREPARING else Phase.COOLDOWN
    return replace(course, ending=ending), (MoveRun(RunStatus.STOPPING, phase, ending.reason), PublishStop(ending))


def _asked(view: RunObservation, rules: RunPolicy) -> RunEnding:
    """The run was CANCELLING, or somebody else had stopped it."""
    if view.status is RunStatus.CANCELLING:
        drain_s = rules.timing.drain_interrupt_s
        reason = view.reason or "stopped by the user"
        return RunEnding(status=RunStatus.CANCELLED, reason=reason, stop="cancelled", drain_s=drain_s)
    return RunEnding(
        status=RunStatus.FAILED,
        reason=f"its leader was lost while it was stopping ({view.reason or 'nobody said why'})",
        stop="taken over",
        drain_s=rules.timing.drain_s,
    )


def _failure(rules: RunPolicy, reason: str) -> RunEnding:
    return RunEnding(
        status=RunStatus.FAILED, reason=reason, stop="worker_failure", drain_s=rules.timing.drain_interrupt_s
    )
