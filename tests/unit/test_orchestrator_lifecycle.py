"""What is done next with a run: every row of the decision, decided once and decided twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadgen.model.run import RUN_TRANSITIONS, Phase, RunStatus, check_transition
from loadgen.results.run_snapshot import WorkerSnapshot
from loadgen.scenario.model import OnWorkerLoss
from orchestrator.lifecycle import (
    OUTAGE_MAX_S,
    STOP_DELAY_S,
    STORE_TIMEOUT_S,
    Action,
    FinishRun,
    LifecycleState,
    MoveRun,
    PublishStart,
    PublishStop,
    RunEnding,
    RunObservation,
    StoreCancellation,
    TerminateWorkers,
    decide,
    decide_outage,
)
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
    STORING,
    WAITING,
    WISH,
    H,
    P,
    R,
    W,
)
from tests.unit.orchestrator_builders import end, view

CONTINUE = replace(RULES, on_worker_loss=OnWorkerLoss.CONTINUE)
ENDS_S = 70.0 + STOP_DELAY_S
KILLED_AT_THE_END = view(H.DEAD, W.DRAINING, ended=end())
TOO_EXPENSIVE = RunEnding(status=R.FAILED, reason="too expensive", stop="guardrail", drain_s=20.0)
CANCEL = MoveRun(R.CANCELLING, P.MEASUREMENT, "stopped by the user")
BY_USER = RunEnding(status=R.CANCELLED, reason="stopped by the user", stop="cancelled", drain_s=20.0)


def state(status: RunStatus, **more: Any) -> LifecycleState:
    return LifecycleState(since_s=0.0, status=status, **more)


def look(
    status: RunStatus, *views: WorkerSnapshot, now_s: float = 1.0, phase: Phase = Phase.MEASUREMENT, **more: Any
) -> RunObservation:
    return RunObservation(now_s=now_s, status=status, phase=phase, reason=None, workers=views, **more)


def failure(reason: str) -> RunEnding:
    return RunEnding(status=R.FAILED, reason=reason, stop="worker_failure", drain_s=20.0)


def stopped(ending: RunEnding, phase: Phase = Phase.COOLDOWN) -> tuple[Action, ...]:
    return MoveRun(R.STOPPING, phase, ending.reason), PublishStop(ending)


BEGIN = MoveRun(R.RUNNING, P.WARMUP)
START = (PublishStart(),)
SAID = state(R.RUNNING)
PREPARING: dict[str, Any] = {"phase": P.PREPARING}
RUN: dict[str, Any] = {"zero_s": 0.0}
WARM: dict[str, Any] = {"zero_s": 0.0, "phase": P.WARMUP}
ROWS: list[tuple[str, LifecycleState, RunObservation, tuple[Action, ...]]] = [
    # --- before
    ("prepared", state(R.PREPARED), look(R.PREPARED, **PREPARING), ()),
    (
        "prepared, interrupted",
        state(R.PREPARED),
        look(R.PREPARED, interrupts=1, **PREPARING),
        (MoveRun(R.CANCELLING, P.PREPARING, "stopped by the user"),),
    ),
    # --- starting
    ("nobody there yet", state(R.STARTING), look(R.STARTING, MISSING, **PREPARING), ()),
    ("one connects", state(R.STARTING), look(R.STARTING, WAITING, CONNECTING, **PREPARING), ()),
    ("one is missing", state(R.STARTING), look(R.STARTING, WAITING, MISSING, **PREPARING), ()),
    ("all wait", state(R.STARTING), look(R.STARTING, WAITING, WAITING, **PREPARING), START),
    ("no worker at all is never ready", state(R.STARTING), look(R.STARTING, **PREPARING), ()),
    (
        "START was said, and the run was not moved: it begins as announced",
        state(R.STARTING),
        look(R.STARTING, WAITING, RUNNING, zero_s=4.0, **PREPARING),
        (BEGIN,),
    ),
    (
        "START was said long ago: workers have begun by themselves",
        state(R.STARTING),
        look(R.STARTING, RUNNING, CONNECTING, now_s=99.0, zero_s=0.5, **PREPARING),
        (BEGIN,),
    ),
    (
        "START was said, and one died",
        state(R.STARTING),
        look(R.STARTING, RUNNING, KILLED, zero_s=0.5, **PREPARING),
        stopped(failure("worker-0 was killed by signal 9"), P.PREPARING),
    ),
    (
        "one died",
        state(R.STARTING),
        look(R.STARTING, WAITING, KILLED, **PREPARING),
        stopped(failure("worker-0 was killed by signal 9"), P.PREPARING),
    ),
    (
        "one gave up before it began",
        state(R.STARTING),
        look(R.STARTING, WAITING, SAID_DEAD, **PREPARING),
        stopped(failure("worker-0 ended: no control plane"), P.PREPARING),
    ),
    (
        "too expensive before it began",
        state(R.STARTING),
        look(R.STARTING, WAITING, CONNECTING, limit=TOO_EXPENSIVE, **PREPARING),
        stopped(TOO_EXPENSIVE, P.PREPARING),
    ),
    (
        "too expensive while it warms up",
        SAID,
        look(R.RUNNING, RUNNING, now_s=5.0, limit=TOO_EXPENSIVE, **WARM),
        stopped(TOO_EXPENSIVE),
    ),
    ("the last second of retries", state(R.STARTING), look(R.STARTING, MISSING, now_s=60.0, **PREPARING), ()),
    (
        "retries is over",
        state(R.STARTING),
        look(R.STARTING, WAITING, MISSING, now_s=60.1, **PREPARING),
        stopped(failure("not all workers were ready within 60 s: worker-0 never registered"), P.PREPARING),
    ),
    (
        "starting, interrupted",
        state(R.STARTING),
        look(R.STARTING, WAITING, interrupts=1, **PREPARING),
        (MoveRun(R.CANCELLING, P.PREPARING, "stopped by the user"),),
    ),
    # --- running
    ("warm-up", SAID, look(R.RUNNING, RUNNING, now_s=9.9, **WARM), ()),
    ("warm-up is over", SAID, look(R.RUNNING, RUNNING, now_s=10.0, **WARM), (MoveRun(R.RUNNING, P.MEASUREMENT),)),
    ("measuring", SAID, look(R.RUNNING, RUNNING, now_s=30.0, **RUN), ()),
    ("before its zero", SAID, look(R.RUNNING, WAITING, now_s=-2.0, **WARM), ()),
    ("stale is not dead", SAID, look(R.RUNNING, STALE, RUNNING, now_s=30.0, **RUN), ()),
    ("one is done early", SAID, look(R.RUNNING, DONE, RUNNING, now_s=30.0, **RUN), ()),
    ("the last window is open", SAID, look(R.RUNNING, RUNNING, now_s=ENDS_S - 0.01, **RUN), ()),
    ("the plan is complete", SAID, look(R.RUNNING, RUNNING, now_s=ENDS_S, **RUN), stopped(DONE_BY_PLAN)),
    (
        "one was killed",
        SAID,
        look(R.RUNNING, RUNNING, KILLED, now_s=30.0, **RUN),
        stopped(failure("worker-0 was killed by signal 9")),
    ),
    (
        "one fell silent",
        SAID,
        look(R.RUNNING, RUNNING, SILENT, now_s=30.0, **RUN),
        stopped(failure("worker-0 has been silent for 61 s")),
    ),
    ("a user requests the end", SAID, look(R.RUNNING, RUNNING, now_s=30.0, limit=WISH, **RUN), stopped(WISH)),
    (
        "a loss counts more than a wish",
        SAID,
        look(R.RUNNING, KILLED, now_s=30.0, limit=WISH, **RUN),
        stopped(failure("worker-0 was killed by signal 9")),
    ),
    ("interrupted", SAID, look(R.RUNNING, RUNNING, now_s=30.0, interrupts=1, **RUN), (CANCEL,)),
    ("interrupted while one died", SAID, look(R.RUNNING, KILLED, interrupts=1, **RUN), (CANCEL,)),
    # --- stopping
    (
        "drains",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True),
        look(R.STOPPING, DRAINING, now_s=125.0),
        (),
    ),
    (
        "STOP was not said",
        state(R.STOPPING, ending=DONE_BY_PLAN),
        look(R.STOPPING, DRAINING),
        (PublishStop(DONE_BY_PLAN),),
    ),
    (
        "all over",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True),
        look(R.STOPPING, DONE, KILLED_AT_THE_END),
        (FinishRun(DONE_BY_PLAN),),
    ),
    (
        "all over, and one had been lost before it heard of the end",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True),
        look(R.STOPPING, DONE, SILENT),
        (FinishRun(failure("worker-0 has been silent for 61 s")),),
    ),
    (
        "all over before STOP was said",
        state(R.STOPPING, ending=DONE_BY_PLAN),
        look(R.STOPPING, DONE),
        (PublishStop(DONE_BY_PLAN), FinishRun(DONE_BY_PLAN)),
    ),
    (
        "drained for too long",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True),
        look(R.STOPPING, DONE, DRAINING, now_s=125.1),
        (TerminateWorkers(hard=False),),
    ),
    (
        "drained, and stores what it measured",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True),
        look(R.STOPPING, DONE, STORING, now_s=125.0 + STORE_TIMEOUT_S),
        (),
    ),
    (
        "one stores, and another has not drained",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True),
        look(R.STOPPING, STORING, DRAINING, now_s=125.1),
        (TerminateWorkers(hard=False),),
    ),
    (
        "stores for longer than it would itself",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True),
        look(R.STOPPING, STORING, now_s=125.1 + STORE_TIMEOUT_S),
        (TerminateWorkers(hard=False),),
    ),
    (
        "stores while a user waits: it may spool what is left",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True, interrupted_s=0.0),
        look(R.STOPPING, STORING, now_s=25.1, interrupts=1),
        (TerminateWorkers(hard=False),),
    ),
    (
        "asked to end a moment ago: once more, for those who took it for the first word of it",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True, signals_sent=1, signalled_s=126.0),
        look(R.STOPPING, DRAINING, now_s=126.2),
        (TerminateWorkers(hard=False),),
    ),
    (
        "asked twice a moment ago",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True, signals_sent=2, signalled_s=126.0),
        look(R.STOPPING, DRAINING, now_s=128.0),
        (),
    ),
    (
        "did not end when asked",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True, signals_sent=2, signalled_s=126.0),
        look(R.STOPPING, DRAINING, now_s=128.1),
        (TerminateWorkers(hard=True),),
    ),
    (
        "cannot be ended from here",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True, signals_sent=3, signalled_s=130.0),
        look(R.STOPPING, DRAINING, now_s=132.1),
        (FinishRun(DONE_BY_PLAN),),
    ),
    (
        "one interrupt while it drains anyway",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True),
        look(R.STOPPING, DRAINING, interrupts=1),
        (),
    ),
    (
        "two interrupts end it now",
        state(R.STOPPING, ending=DONE_BY_PLAN, stop_published=True),
        look(R.STOPPING, DRAINING, interrupts=2),
        (TerminateWorkers(hard=False),),
    ),
    # --- cancelling
    (
        "a user's wish is announced",
        state(R.CANCELLING),
        look(R.CANCELLING, RUNNING),
        (PublishStop(BY_USER),),
    ),
    ("cancelled, all over", state(R.CANCELLING, stop_published=True), look(R.CANCELLING, DONE), (FinishRun(BY_USER),)),
    (
        "cancelled just when the plan was done: the user was first",
        state(R.CANCELLING, ending=DONE_BY_PLAN),
        look(R.CANCELLING, DONE),
        (PublishStop(BY_USER), FinishRun(BY_USER)),
    ),
    (
        "cancelled just when a worker was lost: that is still a failure",
        state(R.CANCELLING, ending=failure("x"), stop_published=True),
        look(R.CANCELLING, KILLED),
        (FinishRun(failure("x")),),
    ),
    (
        "cancelled, drained for too long",
        state(R.CANCELLING, stop_published=True),
        look(R.CANCELLING, DRAINING, now_s=25.1),
        (TerminateWorkers(hard=False),),
    ),
]


@pytest.mark.parametrize(("what", "before", "seen", "actions"), ROWS, ids=[row[0] for row in ROWS])
def test_rows(what: str, before: LifecycleState, seen: RunObservation, actions: tuple[Action, ...]) -> None:
    after, decided = decide(before, seen, RULES)
    assert decided == actions
    assert after.status is seen.status
    for action in decided:  # every step is one that a run may take
        if isinstance(action, MoveRun):
            check_transition(seen.status, seen.phase, action.to, action.to_phase)
        if isinstance(action, FinishRun):
            assert action.ending.status in RUN_TRANSITIONS[seen.status]


@pytest.mark.parametrize("status", [R.COMPLETED, R.CANCELLED, R.FAILED])
@pytest.mark.parametrize("views", [(), (RUNNING,), (KILLED,), (DONE,)])
@pytest.mark.parametrize("interrupts", [0, 3])
def test_a_finished_run_is_left_alone(status: RunStatus, views: tuple[WorkerSnapshot, ...], interrupts: int) -> None:
    assert decide(state(status), look(status, *views, interrupts=interrupts, limit=WISH), RULES)[1] == ()


@pytest.mark.parametrize(("what", "before", "seen", "actions"), ROWS, ids=[row[0] for row in ROWS])
def test_repeated_decisions_are_harmless(
    what: str, before: LifecycleState, seen: RunObservation, actions: tuple[Action, ...]
) -> None:
    """Nothing could be carried out: the next look decides the same again, but for asking workers to end."""
    after, _ = decide(before, seen, RULES)
    _, again = decide(after, replace(seen, now_s=seen.now_s), RULES)
    assert tuple(action for action in again if not isinstance(action, TerminateWorkers)) == tuple(
        action for action in actions if not isinstance(action, TerminateWorkers)
    )


def test_a_lost_worker_may_be_missing_when_the_scenario_allows_it_but_not_all_of_them() -> None:
    one = look(R.RUNNING, RUNNING, KILLED, now_s=30.0, zero_s=0.0)
    assert decide(SAID, one, CONTINUE)[1] == ()
    all_of_them = look(R.RUNNING, KILLED, SILENT, now_s=30.0, zero_s=0.0)
    assert decide(SAID, all_of_them, CONTINUE)[1][0] == MoveRun(
        R.STOPPING, P.COOLDOWN, "worker-0 was killed by signal 9; worker-0 has been silent for 61 s"
    )


def test_a_deadline_counts_from_the_time_the_status_was_seen() -> None:
    before = LifecycleState(since_s=0.0, status=R.RUNNING, ending=DONE_BY_PLAN, stop_published=True)
    after, actions = decide(before, look(R.STOPPING, DRAINING, now_s=500.0), RULES)
    assert actions == ()
    assert after.since_s == 500.0


def test_a_run_whose_leader_was_lost_while_it_was_stopping_fails_with_the_reason() -> None:
    seen = replace(look(R.STOPPING, DONE), reason="the plan is complete")
    _, actions = decide(state(R.STOPPING), seen, RULES)
    assert isinstance(actions[-1], FinishRun)
    assert actions[-1].ending.status is R.FAILED
    assert actions[-1].ending.reason == "its leader was lost while it was stopping (the plan is complete)"


def test_the_reason_of_a_user_is_kept() -> None:
    seen = replace(look(R.CANCELLING, DONE), reason="make room for the release")
    _, actions = decide(state(R.CANCELLING), seen, RULES)
    assert isinstance(actions[-1], FinishRun)
    assert actions[-1].ending.reason == "make room for the release"


def test_a_cancellation_that_a_user_requested_is_stored_before_anything_else() -> None:
    seen = look(R.CANCELLING, DONE, stored_status=R.RUNNING)
    _, actions = decide(state(R.RUNNING), seen, RULES)
    assert actions[0] == StoreCancellation(R.RUNNING)
    assert StoreCancellation not in map(type, decide(state(R.RUNNING), replace(seen, stored_status=None), RULES)[1])


def test_an_outage_ends_the_run_when_it_is_too_long_or_too_expensive() -> None:
    assert decide_outage(OUTAGE_MAX_S, None) is None
    assert decide_outage(OUTAGE_MAX_S + 1, None) == "the control plane has been unreachable for 181 s"
    assert decide_outage(5.0, TOO_EXPENSIVE) == "too expensive; the control plane has been unreachable for 5 s"


def test_between_a_stop_and_a_kill_there_is_always_time_for_last_results() -> None:
    """Also when the second interrupt comes long after the first."""
    now, ticks = state(R.CANCELLING, stop_published=True), []
    for tick in range(10):
        now, actions = decide(now, look(R.CANCELLING, DRAINING, now_s=15.0 + tick, interrupts=2), RULES)
        ticks += [(tick, action) for action in actions]
    soft, hard = TerminateWorkers(hard=False), TerminateWorkers(hard=True)
    assert ticks[:3] == [(0, soft), (1, soft), (4, hard)]
    assert ticks[3] == (7, FinishRun(BY_USER))
