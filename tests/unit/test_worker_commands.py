"""What a worker does with its events, in any order, number and completeness."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.control.tables.run_control_events import Event
from loadgen.model.event import Command, EventScope, Recipient, SetPhase, SetWorkerTarget, Start, Stop, UnknownCommand
from loadgen.model.run import Phase
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.worker.commands import CommandQueue, DueCommand
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

# --- any order, any duplication, any loss ----------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """What leaders have written, and the moment each takes effect."""

    events: tuple[Event, ...]
    at_ms: tuple[int, ...]

    def newest_target(self) -> tuple[int, SetWorkerTarget, int] | None:
        found = [
            (one.sequence_id, one.command, at_ms)
            for one, at_ms in zip(self.events, self.at_ms, strict=True)
            if isinstance(one.command, SetWorkerTarget)
        ]
        return found[-1] if found else None


MINE = [
    Recipient(),
    Recipient(scope=EventScope.WORKER, worker_id="worker-0"),
    Recipient(scope=EventScope.WORKER_GROUP, worker_group_id=0),
]
OTHERS = [
    Recipient(scope=EventScope.WORKER, worker_id="worker-1"),
    Recipient(scope=EventScope.WORKER_GROUP, worker_group_id=1),
    Recipient(scope=EventScope.WORKER),
    Recipient(scope=EventScope.WORKER_GROUP),
]
commands = st.one_of(
    st.integers(0, 9).map(target),
    st.integers(1, 4).map(measure),
    st.sampled_from([SetPhase(phase=phase) for phase in Phase]),
    st.just(Start(expected_workers=1)),
    st.just(UnknownCommand(event_type="DANCE", why="no such thing")),
)


@st.composite
def histories(draw: st.DrawFn, *, addresses: st.SearchStrategy[Recipient]) -> History:
    events, moments, epoch = [], [], 1
    for number in range(1, draw(st.integers(1, 12)) + 1):
        epoch += draw(st.booleans())
        # A few were written with an expired lease: the SQL rejects them, and a worker would not obey them.
        stale = draw(st.integers(0, 9)) == 0 and epoch > 1
        moments.append(draw(st.integers(0, 20_000)))
        events.append(
            event(number, draw(commands), epoch=epoch - 1 if stale else epoch, to=draw(addresses), due_in_ms=0)
        )
    return History(tuple(events), tuple(moments))


def scripts(*kinds: str) -> st.SearchStrategy[list[tuple[str, int, int, bool]]]:
    """What a worker does: read the next events, read some again, poll (or the network loses an event); time passes;
    and it may look for what is due."""
    return st.lists(
        st.tuples(st.sampled_from(kinds), st.integers(0, 12), st.integers(0, 7_000), st.booleans()), max_size=20
    )


actions = scripts("read", "reread", "poll", "lose")


def play(of: CommandQueue, history: History, script: list[tuple[str, int, int, bool]]) -> list[DueCommand]:
    """Let a worker live through it. What it took out, in order."""
    now_ms, taken, lost = 0, [], set()
    written = {one.sequence_id: (one, at_ms) for one, at_ms in zip(history.events, history.at_ms, strict=True)}

    def deliver(sequence_ids: Iterable[int]) -> None:
        for number in sequence_ids:
            if number in written and number not in lost:
                one, at_ms = written[number]
                fresh = event(number, one.command, epoch=one.epoch, to=one.address, due_in_ms=at_ms - now_ms)
                of.receive(fresh, now_ms * NS_PER_MS)

    for what, number, pause_ms, take in script:
        if what == "read":
            deliver(range(of.last_sequence_id + 1, of.last_sequence_id + 1 + number))
        elif what == "reread":
            deliver(range(1, number + 1))
        elif what == "lose":
            lost.add(number)
        else:
            newest = history.newest_target()
            targets = {}
            if newest is not None:
                sequence_id, command, at_ms = newest
                targets["worker-0"] = stored(command.target_connections, sequence_id, in_s=(at_ms - now_ms) / 1_000)
            of.reconcile(poll(epoch=20, targets=targets), now_ms * NS_PER_MS)
        now_ms += pause_ms
        if take:
            taken += of.take_due(now_ms * NS_PER_MS)
            assert all(due.at_ns <= now_ms * NS_PER_MS for due in taken)
    return taken


@settings(max_examples=60, deadline=None)
@given(histories(addresses=st.sampled_from(MINE + OTHERS)), actions)
def test_each_command_is_applied_at_most_once_and_each_kind_in_the_order_of_its_numbers(history, script):
    taken = play(command_queue(), history, script)

    numbered = [due.sequence_id for due in taken if due.sequence_id]
    assert len(numbered) == len(set(numbered))
    for kind in (SetPhase, SetWorkerTarget):
        order = [due.sequence_id for due in taken if due.sequence_id and isinstance(due.command, kind)]
        assert order == sorted(order)
    for due in taken:
        if due.sequence_id and isinstance(due.command, SetPhase):
            assert due.command == history.events[due.sequence_id - 1].command


@settings(max_examples=40, deadline=None)
@given(histories(addresses=st.sampled_from(OTHERS)), scripts("read", "reread"))
def test_events_for_other_workers_are_ignored_and_acknowledged(history, script):
    mine = command_queue()

    taken = play(mine, history, [*script, ("read", 12, 0, True)])

    assert taken == []
    assert not mine.started
    assert mine.last_sequence_id == len(history.events)


@settings(max_examples=40, deadline=None)
@given(histories(addresses=st.sampled_from(MINE)), scripts("read", "reread"))
def test_no_event_of_an_older_lease_is_applied_after_one_of_a_newer_lease(history, script):
    newest, stale = 0, set()
    for one in history.events:
        stale |= {one.sequence_id} if one.epoch < newest else set()
        newest = max(newest, one.epoch)

    taken = play(command_queue(), history, script)

    assert not stale & set(numbers(taken))


@settings(max_examples=40, deadline=None)
@given(histories(addresses=st.sampled_from(MINE)), actions, st.integers(0, 12))
def test_after_stop_nothing_is_applied_whatever_was_announced_before_or_comes_after(history, script, at):
    mine = command_queue()
    play(mine, history, script[: len(script) // 2])
    mine.receive(event(100 + at, STOP, epoch=99), 0)

    later = History(tuple(event(200 + one.sequence_id, one.command, epoch=99) for one in history.events), history.at_ms)
    receive_all(mine, later.events)
    taken = play(mine, history, script)

    assert taken == []
    assert mine.take_due(10**18) == []
    assert mine.next_ns() is None
    assert mine.next_phase() is None
    assert mine.stop == STOP


@settings(max_examples=60, deadline=None)
@given(histories(addresses=st.sampled_from(MINE)), actions)
def test_the_leaders_last_target_is_the_last_that_is_applied(history, script):
    """However much was lost: RUN_STATUS repeats it."""
    newest = history.newest_target()
    mine = command_queue()
    end_ms = 1_000_000
    taken = play(mine, history, script)

    if newest is not None:
        sequence_id, command, at_ms = newest
        for second in range(7):
            now_ms = end_ms + second * 1_000
            again = stored(command.target_connections, sequence_id, in_s=(at_ms - now_ms) / 1_000)
            mine.reconcile(poll(epoch=20, targets={"worker-0": again}), now_ms * NS_PER_MS)
        taken += mine.take_due((end_ms + 10_000) * NS_PER_MS)
        applied = [due for due in taken if isinstance(due.command, SetWorkerTarget)]
        assert applied[-1].sequence_id == sequence_id
        assert connections(applied)[-1] == command.target_connections


# --- events ----------------------------------------------------------------------------------------------------------


def test_a_command_is_due_at_its_time_in_the_future_or_the_past():
    mine = command_queue()
    now_ns = 100 * NS_PER_S

    mine.receive(event(1, target(4), due_in_ms=2_500), now_ns)
    mine.receive(event(2, measure(), due_in_ms=-1_500), now_ns)
    mine.receive(event(3, measure(2), due_in_ms=None), now_ns)

    assert mine.next_ns() == now_ns - 1_500 * NS_PER_MS
    assert [(due.at_ns, due.sequence_id) for due in mine.take_due(now_ns)] == [
        (now_ns - 1_500 * NS_PER_MS, 2),
        (now_ns, 3),
    ]
    assert mine.take_due(now_ns + 2_499 * NS_PER_MS) == []
    assert numbers(mine.take_due(now_ns + 2_500 * NS_PER_MS)) == [1]
    assert mine.next_ns() is None


def test_commands_for_the_same_time_are_applied_in_the_order_of_their_numbers():
    mine = command_queue()

    receive_all(mine, [event(1, target(1), due_in_ms=10), event(2, measure(1), due_in_ms=10)])

    assert numbers(mine.take_due(10 * NS_PER_MS)) == [1, 2]


def test_a_whole_plan_may_be_announced_in_advance():
    mine = command_queue()
    plan = [event(n, measure(n), due_in_ms=n * 1_000) for n in range(1, 6)]

    receive_all(mine, plan)

    assert [numbers(mine.take_due(second * NS_PER_S)) for second in range(1, 6)] == [[1], [2], [3], [4], [5]]


def test_a_later_command_replaces_those_announced_for_its_time_or_after_it():
    mine = command_queue()
    receive_all(mine, [event(n, measure(n), due_in_ms=n * 1_000) for n in (1, 2, 3)])
    mine.receive(event(4, target(9), due_in_ms=2_500), 0)

    mine.receive(event(5, SetPhase(phase=Phase.COOLDOWN), due_in_ms=2_000), 0)

    assert numbers(mine.take_due(10**12)) == [1, 5, 4]


def test_an_older_target_for_a_later_time_does_not_undo_a_newer_one():
    mine = command_queue()

    receive_all(mine, [event(1, target(64), due_in_ms=10_000), event(2, target(8), due_in_ms=None)])

    assert connections(mine.take_due(20 * NS_PER_S)) == [8]


def test_stop_clears_the_queue_and_a_second_one_may_shorten_the_first():
    mine = command_queue()
    mine.receive(event(1, measure(), due_in_ms=1_000), 0)
    mine.receive(event(2, STOP), 0)
    mine.receive(event(3, Stop(reason="again", drain_timeout_s=0.0)), 0)

    assert mine.take_due(10**12) == []
    assert mine.stop is not None
    assert mine.stop.drain_timeout_s == 0.0


def test_unreadable_events_are_logged_once_and_block_nothing():
    mine = command_queue()

    odd = event(1, UnknownCommand(event_type="DANCE" * 99, why="w" * 999))
    said = mine.receive(odd, 0)

    assert said is not None
    assert "DANCE" in said
    assert len(said) < 400
    assert mine.receive(odd, 0) is None
    mine.receive(event(2, target(3)), 0)
    assert numbers(mine.take_due(0)) == [2]


def test_a_command_of_an_older_lease_is_logged_and_ignored():
    mine = command_queue()
    mine.receive(event(1, target(3), epoch=2), 0)

    said = mine.receive(event(2, STOP, epoch=1), 0)

    assert said is not None
    assert "has epoch 1" in said
    assert "older than 2" in said
    assert mine.stop is None
    assert mine.epoch == 2
    assert mine.last_sequence_id == 2
    assert numbers(mine.take_due(0)) == [1]


@pytest.mark.parametrize("address", OTHERS)
@pytest.mark.parametrize("how", ["notice", "receive"])
def test_start_and_stop_for_other_workers_are_ignored(address, how):
    mine = command_queue()
    for one in (event(1, Start(expected_workers=1), to=address), event(2, STOP, to=address)):
        mine.notice(one) if how == "notice" else mine.receive(one, 0)

    assert not mine.started
    assert mine.stop is None


@pytest.mark.parametrize("address", MINE)
def test_before_start_only_start_and_stop_are_read_and_no_command_is_taken(address):
    mine = command_queue()
    seen: list[Command] = [measure(), target(3), Start(expected_workers=1)]

    for number, command in enumerate(seen, 1):
        mine.notice(event(number, command, to=address, epoch=3))

    assert mine.started
    assert mine.stop is None
    assert (mine.last_sequence_id, mine.epoch, mine.take_due(10**12)) == (0, 0, [])
    receive_all(mine, [event(number, command, to=address, epoch=3) for number, command in enumerate(seen, 1)])
    assert numbers(mine.take_due(0)) == [1, 2]
    mine.notice(event(4, STOP, epoch=2))  # of an expired lease
    assert mine.stop is None


def test_the_next_phase_is_known_with_its_time():
    mine = command_queue()
    assert mine.next_phase() is None

    receive_all(mine, [event(1, target(3), due_in_ms=1), event(2, measure(), due_in_ms=2_000)])

    assert mine.next_phase() == (2 * NS_PER_S, Phase.MEASUREMENT)
