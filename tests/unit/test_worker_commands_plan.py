"""START with a plan: whenever and however often a worker reads it, each part takes effect once, at its own moment."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from loadgen.control.tables.run_control_events import Event
from loadgen.control.tables.run_status import ConnectionTarget
from loadgen.model.event import EventScope, PlannedCommand, Recipient, SetPhase, SetRunTarget, SetWorkerTarget, Start
from loadgen.model.run import Phase, worker_share
from loadgen.units import NS_PER_MS
from loadgen.worker.commands import CommandQueue, DueCommand
from tests.unit.worker_builders import (
    MEASUREMENT,
    STOP,
    WARMUP,
    Stage,
    command_queue,
    connections,
    event,
    measure,
    numbers,
    phase,
    poll,
    stored,
    target,
)

WORKERS = 3


def warm_up(at_ms: int = 0) -> PlannedCommand:
    return PlannedCommand(at_ms=at_ms, command=SetPhase(phase=Phase.WARMUP))


def stage(at_ms: int, number: int) -> PlannedCommand:
    return PlannedCommand(at_ms=at_ms, command=measure(number, duration_ms=1_000.0))


def total(at_ms: int, number: int) -> PlannedCommand:
    return PlannedCommand(at_ms=at_ms, command=SetRunTarget(total_connections=number))


def start(*plan: PlannedCommand) -> Start:
    return Start(expected_workers=WORKERS, lead_ms=3_000, plan=plan)


def due(of: CommandQueue, now_ms: int) -> list[DueCommand]:
    return of.take_due(now_ms * NS_PER_MS)


def told(taken: list[DueCommand]) -> list[tuple[int, object]]:
    """When each was meant for, in ms, and what it is: a phase with its step, or a number of connections."""
    return [
        (
            one.at_ns // NS_PER_MS,
            one.command.target_connections
            if isinstance(one.command, SetWorkerTarget)
            else (one.command.phase, one.command.step_id),
        )
        for one in taken
    ]


def as_planned(plan: tuple[PlannedCommand, ...], zero_ms: int, worker: int) -> list[tuple[int, object]]:
    return [
        (
            zero_ms + part.at_ms,
            (part.command.phase, part.command.step_id)
            if isinstance(part.command, SetPhase)
            else worker_share(part.command.total_connections, worker, WORKERS),
        )
        for part in plan
    ]


@st.composite
def plans(draw: st.DrawFn) -> tuple[PlannedCommand, ...]:
    """Warm-up, then stages, each of which may begin with a target."""
    parts, at_ms = [warm_up()], draw(st.integers(0, 5_000))
    for number in range(1, draw(st.integers(1, 5)) + 1):
        if draw(st.booleans()):
            parts.append(total(at_ms, draw(st.integers(0, 40))))
        parts.append(stage(at_ms, number))
        at_ms += draw(st.integers(1, 5_000))
    return tuple(parts)


@dataclass(frozen=True)
class Look:
    """A worker reads the events after some time; before that, or after it, the ramp controller takes due commands."""

    after_ms: int
    takes: bool
    reads: bool


looks = st.lists(st.builds(Look, after_ms=st.integers(0, 4_000), takes=st.booleans(), reads=st.booleans()), max_size=12)
LAST_MS = 10**7


@given(plans(), st.integers(0, 9_000), looks, st.integers(0, WORKERS - 1), st.booleans())
def test_whenever_it_is_read_each_part_is_taken_once_at_its_time_and_in_order(plan, lead_ms, script, worker, status):
    """The zero is the same for all workers, however late they read: late readers have it in the past."""
    mine = command_queue(worker_id=f"worker-{worker}", group=worker, workers=WORKERS)
    taken, now_ms = [], 0
    for look in (*script, Look(after_ms=0, takes=False, reads=True)):
        now_ms += look.after_ms
        if look.reads:
            mine.receive(event(1, start(*plan), due_in_ms=lead_ms - now_ms), now_ms * NS_PER_MS)
        if status:  # the row contains RUNNING and its phase; START contained more
            mine.reconcile(poll(phase=Phase.MEASUREMENT), now_ms * NS_PER_MS)
        if look.takes:
            taken += due(mine, now_ms)
    read_first = mine.has_plan
    taken += due(mine, LAST_MS)

    assert read_first
    parts = [one for one in taken if one.sequence_id]
    assert told(parts) == as_planned(plan, lead_ms, worker)
    assert not [
        one for one in taken if not one.sequence_id and mine.started and isinstance(one.command, SetWorkerTarget)
    ]


@given(plans(), plans(), st.integers(0, 9_000), st.integers(0, 9_000), st.integers(0, 12_000), st.integers(1, 2))
def test_a_second_start_replaces_what_the_first_announced_and_had_not_begun(
    first, second, zero_ms, moved_ms, read_ms, epoch
):
    mine = command_queue(workers=WORKERS)
    mine.receive(event(1, start(*first), due_in_ms=zero_ms), 0)
    before = due(mine, read_ms)
    again_ms = read_ms + moved_ms
    mine.receive(event(2, start(*second), epoch=epoch, due_in_ms=moved_ms), read_ms * NS_PER_MS)
    after = due(mine, LAST_MS)

    assert all(at_ms <= read_ms for at_ms, _ in told(before))
    assert set(numbers(before)) <= {1}
    assert set(numbers(after)) == {2}
    assert told(after) == as_planned(second, again_ms, 0)


def test_an_older_lease_starts_nothing():
    mine = command_queue(workers=WORKERS)
    mine.receive(event(1, start(warm_up(), stage(1_000, 1)), epoch=2, due_in_ms=0), 0)
    mine.receive(event(2, start(warm_up(), stage(9_000, 7)), epoch=1, due_in_ms=0), 0)

    assert told(due(mine, LAST_MS)) == [(0, (Phase.WARMUP, None)), (1_000, (Phase.MEASUREMENT, 1))]


def test_a_plan_replaces_what_was_announced_before_start():
    mine = command_queue(workers=WORKERS)
    mine.receive(event(1, measure(9), due_in_ms=500), 0)
    mine.receive(event(2, target(5), due_in_ms=500), 0)
    mine.receive(event(3, start(warm_up()), due_in_ms=1_000), 0)

    assert numbers(due(mine, LAST_MS)) == [3]


def test_start_without_a_plan_keeps_what_was_announced():
    mine = command_queue(workers=WORKERS)
    mine.receive(event(1, measure(9), due_in_ms=500), 0)
    mine.receive(event(2, Start(expected_workers=WORKERS)), 0)

    assert mine.started
    assert not mine.has_plan
    assert numbers(due(mine, LAST_MS)) == [1]


def test_after_stop_a_plan_is_not_begun():
    mine = command_queue(workers=WORKERS)
    mine.receive(event(1, STOP), 0)
    mine.receive(event(2, start(warm_up(), total(0, 9)), due_in_ms=0), 0)

    assert due(mine, LAST_MS) == []


def test_later_commands_replace_the_rest_of_a_plan():
    mine = command_queue(workers=WORKERS)
    mine.receive(event(1, start(warm_up(), total(1_000, 30), total(9_000, 60)), due_in_ms=0), 0)
    mine.receive(event(2, SetRunTarget(total_connections=6), due_in_ms=5_000), 0)

    assert connections(due(mine, LAST_MS)) == [10, 2]


# --- a target for the whole run --------------------------------------------------------------------------------------


def shares(command: Event) -> list[int]:
    found = []
    for worker in range(WORKERS):
        mine = command_queue(worker_id=f"worker-{worker}", group=worker, workers=WORKERS)
        mine.receive(command, 0)
        found += connections(due(mine, LAST_MS))
    return found


@given(st.integers(0, 1_000))
def test_every_worker_takes_its_share_and_shares_add_up(number):
    parts = shares(event(1, SetRunTarget(total_connections=number, step_id=2, lead_ms=100), due_in_ms=100))

    assert sum(parts) == number
    assert max(parts) - min(parts) <= 1


def test_targets_for_one_worker_and_for_a_group_are_still_obeyed():
    assert shares(event(1, target(7), to=Recipient(scope=EventScope.WORKER, worker_id="worker-1"))) == [7]
    assert shares(event(1, target(7), to=Recipient(scope=EventScope.WORKER_GROUP, worker_group_id=2))) == [7]
    assert shares(event(1, target(7))) == [7, 7, 7]


def reconciled(targets: dict[str, ConnectionTarget], worker: int = 0) -> list[int]:
    mine = command_queue(worker_id=f"worker-{worker}", group=worker, workers=WORKERS, events_timeout_s=0.0)
    mine.reconcile(poll(targets=targets), 0)
    return connections(due(mine, LAST_MS))


def test_run_status_repeats_a_target_of_the_run_under_a_star():
    assert [reconciled({"*": stored(8, 4)}, worker) for worker in range(WORKERS)] == [[3], [3], [2]]


def test_of_a_worker_target_and_that_of_the_run_the_newer_counts():
    assert reconciled({"*": stored(9, 4), "worker-0": stored(7, 5)}) == [7]
    assert reconciled({"*": stored(9, 6), "worker-0": stored(7, 5)}) == [3]
    assert reconciled({"worker-0": stored(7, None)}) == [7]
    assert reconciled({"worker-1": stored(7, 5)}) == []


def test_a_target_of_the_run_that_was_read_as_an_event_is_not_applied_again():
    mine = command_queue(workers=WORKERS, events_timeout_s=0.0)
    mine.receive(event(4, SetRunTarget(total_connections=9), due_in_ms=2_000), 0)

    assert mine.reconcile(poll(targets={"*": stored(9, 4, in_s=2.0)}), 0) is None
    assert connections(due(mine, LAST_MS)) == [3]


# --- the ramp controller follows it ----------------------------------------------------------------------------------


def test_a_plan_begins_at_the_time_of_start_and_the_warm_up_is_as_long_as_planned():
    worker = Stage()
    plan = (
        PlannedCommand(at_ms=0, command=SetPhase(phase=WARMUP)),
        PlannedCommand(at_ms=1_000, command=phase(MEASUREMENT, 5, 1)),
        PlannedCommand(at_ms=6_000, command=SetRunTarget(total_connections=7)),
        PlannedCommand(at_ms=6_000, command=phase(MEASUREMENT, 5, 2)),
    )
    worker.say(Start(expected_workers=1, lead_ms=3_000, plan=plan), at_s=3)

    worker.ramp_controller.begin(WARMUP, None)
    worker.run_to(2.9)
    assert worker.windows.held() == ()
    assert not worker.context.go.is_set()
    worker.run_to(100)

    assert worker.spans() == [
        ("WARMUP", None, 3.0, 4.0),
        ("MEASUREMENT", 1, 4.0, 9.0),
        ("MEASUREMENT", 2, 9.0, 14.0),
    ]
    assert worker.pool.sizes[-1] == 7


def test_a_worker_that_reads_start_after_its_zero_joins_the_rest_of_the_plan():
    worker = Stage()
    plan = (
        PlannedCommand(at_ms=0, command=SetPhase(phase=WARMUP)),
        PlannedCommand(at_ms=10_000, command=phase(MEASUREMENT, 60)),
    )
    worker.clock.advance(25)
    worker.say(Start(expected_workers=1, lead_ms=3_000, plan=plan), at_s=3)

    worker.ramp_controller.begin(MEASUREMENT, 60.0)
    worker.run_to(100)

    assert worker.spans()[-1] == ("MEASUREMENT", None, 25.0, 73.0)
    assert [span for span in worker.spans() if span[3] != span[2]] == worker.spans()[-1:]
