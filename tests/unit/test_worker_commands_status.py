"""What a worker takes from RUN_STATUS when events are missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.control.tables.run_status import ConnectionTarget
from loadgen.model.event import SetPhase, Start
from loadgen.model.run import Phase, RunStatus
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.worker.commands import CommandQueue
from tests.unit.worker_builders import (
    STOP,
    command_queue,
    connections,
    event,
    measure,
    numbers,
    poll,
    receive_all,
    stored,
    target,
)

PATIENCE_S = 5.0


def repeat(of: CommandQueue, seen: object, *, seconds: float = PATIENCE_S, from_ns: int = 0) -> list[str]:
    """The same poll, every second, for as long as it takes to be believed."""
    moments_ns = [from_ns + second * NS_PER_S for second in range(round(seconds) + 1)]
    return [said for said in (of.reconcile(seen, moment_ns) for moment_ns in moments_ns) if said]  # type: ignore[arg-type]


def test_run_status_is_obeyed_when_it_has_been_ahead_of_the_events_for_a_while():
    mine = command_queue()
    ahead = poll(targets={"worker-0": stored(12, 5, step_id=2)})

    assert mine.reconcile(ahead, 0) is None
    assert mine.reconcile(ahead, 4_999 * NS_PER_MS) is None
    assert mine.take_due(10**12) == []
    said = mine.reconcile(ahead, 5 * NS_PER_S)

    assert said is not None
    assert "12" in said
    (due,) = mine.take_due(5 * NS_PER_S)
    assert (due.command, due.sequence_id) == (target(12, step_id=2), 5)
    assert repeat(mine, ahead, from_ns=6 * NS_PER_S) == []


def test_an_event_that_is_only_read_after_the_row_is_no_gap():
    mine = command_queue()
    ahead = poll(targets={"worker-0": stored(12, 2, in_s=60)})
    mine.reconcile(ahead, 0)

    receive_all(mine, [event(1, target(6), due_in_ms=1_000), event(2, target(12), due_in_ms=60_000)])

    assert repeat(mine, ahead, seconds=20) == []
    assert numbers(mine.take_due(100 * NS_PER_S)) == [1, 2]


def test_a_target_of_run_status_is_not_applied_again_when_its_event_comes_late():
    mine = command_queue()
    ahead = poll(targets={"worker-0": stored(12, 5, step_id=3)})
    repeat(mine, ahead)
    assert numbers(mine.take_due(10 * NS_PER_S)) == [5]

    receive_all(mine, [event(4, target(1, step_id=2)), event(5, target(12, step_id=3))])
    assert mine.take_due(10**12) == []
    mine.receive(event(6, target(13, step_id=4)), 0)

    assert numbers(mine.take_due(10**12)) == [6]


def test_the_rest_of_a_plan_is_followed_although_run_status_had_its_last_target_first():
    mine = command_queue()
    repeat(mine, poll(targets={"worker-0": stored(30, 3, in_s=60)}))

    receive_all(mine, [event(1, target(10), due_in_ms=0), event(2, target(20), due_in_ms=30_000)], 5 * NS_PER_S)
    mine.receive(event(3, target(30), due_in_ms=55_000), 5 * NS_PER_S)

    assert numbers(mine.take_due(200 * NS_PER_S)) == [1, 2, 3]


def test_a_target_whose_number_is_not_newer_is_never_applied():
    mine = command_queue()
    mine.receive(event(7, target(5)), 0)
    mine.take_due(0)

    for sequence_id in (0, 1, 6, 7):
        assert repeat(mine, poll(targets={"worker-0": stored(99, sequence_id)}), seconds=20) == []
    assert mine.take_due(10**12) == []


def test_a_target_without_a_number_is_applied_when_it_differs_from_the_last():
    mine = command_queue()
    mine.receive(event(7, target(5)), 0)
    mine.take_due(0)

    assert repeat(mine, poll(targets={"worker-0": stored(5, None)}), seconds=20) == []
    assert len(repeat(mine, poll(targets={"worker-0": stored(6, None)}), seconds=30)) == 1
    assert connections(mine.take_due(10**12)) == [6]
    mine.receive(event(8, target(7)), 0)
    assert numbers(mine.take_due(0)) == [8]


@given(st.integers(-60_000, 60_000))
def test_a_target_of_run_status_takes_effect_when_its_event_would_have(offset_ms):
    mine, other = command_queue(), command_queue()
    now_ns = 1_000 * NS_PER_S

    other.receive(event(1, target(3), due_in_ms=offset_ms), now_ns)
    row = poll(targets={"worker-0": stored(3, 1, in_s=offset_ms / 1_000)})
    mine.reconcile(row, now_ns - round(PATIENCE_S * NS_PER_S))
    mine.reconcile(row, now_ns)

    assert mine.next_ns() == other.next_ns()


@pytest.mark.parametrize("written", ["soon", "2026-13-45T99:00:00", ""])
def test_an_unreadable_time_means_now(written):
    mine = command_queue()
    entry = ConnectionTarget(target_connections=3, sequence_id=1, effective_at=written)

    repeat(mine, poll(targets={"worker-0": entry}))

    assert mine.next_ns() == round(PATIENCE_S * NS_PER_S)


def test_targets_of_other_workers_are_ignored():
    mine = command_queue()

    assert repeat(mine, poll(targets={"worker-1": stored(3, 1), "worker": stored(4, 2)}), seconds=20) == []


def test_a_worker_that_has_not_begun_has_no_phase_to_continue_from():
    mine = command_queue()

    assert repeat(mine, poll(phase=Phase.MEASUREMENT), seconds=20) == []
    assert mine.started


def test_a_missed_phase_is_found_after_a_while_and_only_a_later_one():
    mine = command_queue()
    mine.began(Phase.WARMUP)

    assert repeat(mine, poll(phase=Phase.WARMUP), seconds=20) == []
    assert len(repeat(mine, poll(phase=Phase.MEASUREMENT), seconds=20)) == 1
    assert [due.command for due in mine.take_due(10**12)] == [SetPhase(phase=Phase.MEASUREMENT)]
    assert repeat(mine, poll(phase=Phase.WARMUP), seconds=20) == []
    assert repeat(mine, poll(phase=Phase.COOLDOWN), seconds=20) == []


def test_a_phase_that_was_announced_is_not_missed():
    mine = command_queue()
    mine.began(Phase.WARMUP)
    mine.receive(event(1, measure(), due_in_ms=60_000), 0)

    assert repeat(mine, poll(phase=Phase.MEASUREMENT), seconds=20) == []


def test_being_behind_must_last_without_a_break():
    mine = command_queue()
    mine.began(Phase.WARMUP)
    mine.reconcile(poll(phase=Phase.MEASUREMENT), 0)
    mine.reconcile(poll(phase=Phase.WARMUP), 3 * NS_PER_S)

    assert mine.reconcile(poll(phase=Phase.MEASUREMENT), 6 * NS_PER_S) is None


def test_a_row_of_an_older_lease_is_ignored():
    mine = command_queue()
    mine.began(Phase.WARMUP)
    mine.receive(event(1, Start(expected_workers=1), epoch=3), 0)

    assert repeat(mine, poll(epoch=2, phase=Phase.MEASUREMENT, targets={"worker-0": stored(3, 9)}), seconds=20) == []


@pytest.mark.parametrize("status", [RunStatus.PREPARED, RunStatus.STARTING])
def test_before_the_run_is_running_its_row_commands_nothing(status):
    mine = command_queue()

    assert repeat(mine, poll(status=status, targets={"worker-0": stored(3, 9)}), seconds=20) == []
    assert not mine.started
    assert mine.take_due(10**12) == []


@pytest.mark.parametrize(
    "status",
    [RunStatus.STOPPING, RunStatus.CANCELLING, RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.FAILED],
)
@pytest.mark.parametrize("epoch", [0, 1, 9])
def test_the_end_of_a_run_is_obeyed_without_an_event_and_under_any_lease(status, epoch):
    mine = command_queue(drain_s=33.0)
    receive_all(mine, [event(1, measure(), epoch=5, due_in_ms=1_000)])

    mine.reconcile(poll(status=status, epoch=epoch), 0)

    assert mine.stop is not None
    assert mine.stop.drain_timeout_s == (5.5 if status is RunStatus.CANCELLING else 33.0)
    assert status.value in mine.stop.reason
    assert mine.take_due(10**12) == []


def test_the_row_does_not_replace_the_content_of_the_stop_event():
    mine = command_queue(drain_s=33.0)
    mine.receive(event(1, STOP), 0)

    mine.reconcile(poll(status=RunStatus.STOPPING), 0)
    mine.reconcile(poll(targets={"worker-0": stored(3, 9)}), 0)
    repeat(mine, poll(targets={"worker-0": stored(3, 9)}), seconds=20)

    assert mine.stop == STOP
    assert mine.take_due(10**12) == []
