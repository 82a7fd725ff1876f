"""The next action of a run, until its end, in every situation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.model.run import RUN_TRANSITIONS, Phase, ProcessEnd, RunStatus, WorkerStatus, check_transition
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot
from loadgen.rules.plan import plan_run
from loadgen.scenario.model import FindMaxSettings, Load, LoadMode, OnWorkerLoss
from loadgen.scenario.settings import TimingSettings
from orchestrator.lifecycle import (
    STOP_DELAY_S,
    Action,
    FinishRun,
    LifecycleState,
    MeasuredStep,
    MetricsMissing,
    MoveRun,
    PublishSearchEnd,
    PublishStart,
    PublishStep,
    PublishStop,
    RecordStep,
    RunEnding,
    RunObservation,
    RunPolicy,
    SearchDecision,
    SearchFinished,
    SearchUpdate,
    StartStep,
    TerminateWorkers,
    after_action,
    decide,
)
from tests.unit.find_max_builders import CALM, Led
from tests.unit.lifecycle_builders import (
    CONNECTING,
    DONE,
    DONE_BY_PLAN,
    DRAINING,
    KILLED,
    MISSING,
    RULES,
    RUNNING,
    SAID_DEAD,
    SILENT,
    STALE,
    WAITING,
    WISH,
    P,
    R,
    W,
)
from tests.unit.orchestrator_builders import end, view


class World:
    """A run, its workers and a control plane with scripted failures."""

    def __init__(self, workers: int) -> None:
        self.now_s, self.status, self.phase = 0.0, R.STARTING, P.PREPARING
        self.reason: str | None = None
        self.state = LifecycleState(since_s=0.0, status=R.PREPARED)
        self.workers = [MISSING] * workers
        self.zero_s: float | None = None
        self.interrupts = 0
        self.wish: RunEnding | None = None
        self.ending: RunEnding | None = None
        self.stops = 0

    def tick(self, *, fails_at: int | None) -> None:
        """One look; the action with this number, and those after it, fail."""
        self.now_s += 1.0
        seen = RunObservation(
            now_s=self.now_s,
            status=self.status,
            phase=self.phase,
            reason=self.reason,
            workers=tuple(self.workers),
            zero_s=self.zero_s,
            interrupts=self.interrupts,
            limit=self.wish,
        )
        self.state, actions = decide(self.state, seen, RULES)
        for number, action in enumerate(actions):
            if number == fails_at:
                return
            self.apply(action)
            self.state = after_action(self.state, action)

    def apply(self, action: Action) -> None:
        if isinstance(action, PublishStart):
            assert self.zero_s is None, "START is said once"
            self.zero_s = self.now_s + 3.0
        elif isinstance(action, MoveRun):
            check_transition(self.status, self.phase, action.to, action.to_phase)
            self.status, self.phase = action.to, action.to_phase
        elif isinstance(action, PublishStop):
            self.stops += 1
        elif isinstance(action, TerminateWorkers) and action.hard:
            self.workers = [worker if worker.is_over else KILLED for worker in self.workers]
        elif isinstance(action, FinishRun):
            self.ending = action.ending


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from([MISSING, CONNECTING, WAITING, RUNNING, STALE, DRAINING, DONE, KILLED, SILENT, SAID_DEAD]),
        st.integers(0, 2),  # which worker
        st.sampled_from([None, None, None, 0, 1, 2]),  # what fails
        st.sampled_from(["", "", "", "", "interrupt", "wish", "cancel"]),
        st.integers(0, 40),  # quiet seconds before
    ),
    max_size=25,
)


def happen(world: World, what: str) -> None:
    if what == "interrupt":
        world.interrupts += 1
    elif what == "wish":
        world.wish = WISH
    elif what == "cancel" and R.CANCELLING in RUN_TRANSITIONS[world.status]:
        world.status, world.reason = R.CANCELLING, "loadgen stop"


@settings(deadline=None, max_examples=100)
@given(HAPPENINGS, st.booleans())
def test_every_run_comes_to_an_end(
    happenings: list[tuple[WorkerSnapshot, int, int | None, str, int]], ends: bool
) -> None:
    """In every order of earlier events: when workers have ended, or their time is over."""
    world = World(3)
    for worker, number, fails_at, what, quiet_s in happenings:
        for _ in range(quiet_s):
            world.tick(fails_at=None)
        if not world.workers[number].is_over:  # a lost worker does not return
            world.workers[number] = worker
        happen(world, what)
        world.tick(fails_at=fails_at)
    if ends:
        world.workers = [worker if worker.is_over else DONE for worker in world.workers]
    bound_s = 60 + 70 + 125 + 10 if not ends else 75
    for _ in range(bound_s):
        if world.ending is not None:
            break
        world.tick(fails_at=None)
    assert world.ending is not None, (world.status, world.state)
    assert world.ending.status in RUN_TRANSITIONS[world.status], "it could not be ended so"
    assert world.ending.reason
    assert world.stops >= 1


def test_the_states_of_a_run_without_faults() -> None:
    world = World(2)
    story = []
    for second in range(200):
        if second == 3:
            world.workers = [WAITING, WAITING]
        if world.status is R.RUNNING:
            world.workers = [RUNNING, RUNNING]
        if world.status is R.STOPPING:
            world.workers = [DONE, DONE]
        before = (world.status, world.phase)
        world.tick(fails_at=None)
        if (world.status, world.phase) != before:
            story.append((second, world.status, world.phase))
        if world.ending is not None:
            break
    assert story == [
        (4, R.RUNNING, P.WARMUP),  # START is published at 3
        (16, R.RUNNING, P.MEASUREMENT),
        (77, R.STOPPING, P.COOLDOWN),
    ]
    assert world.ending == DONE_BY_PLAN


@given(st.sampled_from([W.WAITING, W.RUNNING, W.DRAINING, W.COMPLETED]), st.sampled_from([None, end(code=0)]))
def test_a_run_whose_workers_are_done_is_complete_whatever_their_last_heartbeats_were(
    status: WorkerStatus, ended: ProcessEnd | None
) -> None:
    state = LifecycleState(since_s=0.0, status=R.STOPPING, ending=DONE_BY_PLAN, stop_published=True)
    seen = replace(observed(None, R.STOPPING), workers=(DONE, view(WorkerHealth.DONE, status, ended=ended)))

    _, actions = decide(state, seen, RULES)

    assert actions == (FinishRun(DONE_BY_PLAN),)


# --- what is decided of a search -------------------------------------------------------------------------------------

POLICY = RunPolicy(
    plan=plan_run(Load(mode=LoadMode.FIND_MAX, connections=25, find_max=FindMaxSettings(maximum=25), duration_s=None)),
    timing=TimingSettings(),
    on_worker_loss=OnWorkerLoss.FAIL,
)


def observed(
    search: SearchUpdate | None, status: RunStatus = RunStatus.RUNNING, *, closes_s: float | None = None
) -> RunObservation:
    return RunObservation(
        now_s=30.0,
        status=status,
        phase=Phase.MEASUREMENT,
        reason=None,
        workers=(view(),),
        zero_s=0.0,
        closes_s=closes_s,
        search=search,
    )


def judged_step(led: Led) -> tuple[MeasuredStep, StartStep]:
    led.look(view(number=0), view(number=1))
    led.look(*(led.worker(number, CALM, 1.5) for number in range(2)))
    judged, decision = led.controller.observe(
        [led.worker(number, CALM, 10.0) for number in range(2)], led.now_s + 1.0, queue_seen=False
    )
    assert judged is not None
    assert isinstance(decision, StartStep)
    return MeasuredStep(*judged), decision


def test_a_judged_step_is_stored_and_the_next_is_published_until_both_were_done() -> None:
    step, following = judged_step(Led())
    state = LifecycleState(since_s=0.0, status=RunStatus.RUNNING)

    state, actions = decide(state, observed(SearchUpdate(step=step, decision=following)), POLICY)
    assert actions == (RecordStep(step), PublishStep(following))
    state, again = decide(state, observed(None), POLICY)
    assert again == actions
    state, left = decide(after_action(state, actions[0]), observed(None), POLICY)
    assert left == (PublishStep(following),)
    assert decide(after_action(state, left[0]), observed(None), POLICY)[1] == ()


def test_a_step_that_could_not_be_stored_is_stored_while_the_run_stops_and_no_step_follows() -> None:
    step, following = judged_step(Led())
    state = LifecycleState(since_s=0.0, status=RunStatus.RUNNING, unrecorded=(step,), next_step=following)

    state, actions = decide(state, observed(None, RunStatus.CANCELLING), POLICY)

    assert actions[0] == RecordStep(step)
    assert not any(isinstance(action, PublishStep) for action in actions)


@pytest.mark.parametrize(
    ("closes_s", "actions"), [(None, (PublishSearchEnd(),)), (29.6, ()), (31.0, ())], ids=["new", "just now", "later"]
)
def test_a_search_ends_when_all_workers_have_closed_its_last_window(
    closes_s: float | None, actions: tuple[Action, ...]
) -> None:
    found = SearchUpdate(step=None, decision=SearchFinished("found"))
    state = LifecycleState(since_s=0.0, status=RunStatus.RUNNING)

    state, decided = decide(state, observed(found, closes_s=closes_s), POLICY)

    assert decided == actions
    assert state.ending is None


@pytest.mark.parametrize(
    ("decision", "closes_s", "status"),
    [
        (SearchFinished("found"), 30.0 - STOP_DELAY_S, RunStatus.COMPLETED),
        (MetricsMissing(12.0), None, RunStatus.FAILED),
    ],
    ids=["found", "no metrics"],
)
def test_the_end_of_a_search_ends_the_run(decision: SearchDecision, closes_s: float | None, status: RunStatus) -> None:
    state = LifecycleState(since_s=0.0, status=RunStatus.RUNNING)

    state, _ = decide(state, observed(SearchUpdate(step=None, decision=decision), closes_s=closes_s), POLICY)

    assert state.ending is not None
    assert (state.ending.status, state.ending.stop) == (status, "find_max")


def test_the_cost_ends_a_drain_too():
    costly = RunEnding(status=R.FAILED, reason="the warehouse has cost 2 credits", stop="guardrail", drain_s=20.0)
    state = LifecycleState(since_s=0.0, status=R.STOPPING, ending=DONE_BY_PLAN, stop_published=True)
    seen = RunObservation(
        now_s=1.0, status=R.STOPPING, phase=P.COOLDOWN, reason=None, workers=(DRAINING,), zero_s=0.0, limit=costly
    )

    state, actions = decide(state, seen, RULES)

    assert actions == (TerminateWorkers(hard=False),)
    assert state.ending == costly
