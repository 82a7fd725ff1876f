"""Several orchestrators, one run, and every fault between them, with the real SQL on a real server.

Time passes by ageing all leases in SQL and moving the clocks of the actors by as much; real time passes as well.
Requests are delayed, or delivered twice; responses are lost. After every step the tables are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from loadgen.control.session import ControlFailed, NamedQuery
from loadgen.control.tables import run_leases
from loadgen.control.tables.run_control_events import NewEvent, emit, poll
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S, Lease, claim, new_owner
from loadgen.control.tables.run_status import Fenced, Run, RunRollup, StatusChange, cancel, move, publish, read
from loadgen.model.event import Start
from loadgen.model.run import PHASES, RUN_TRANSITIONS, Phase, RunStatus
from loadgen.snowflake.session import RetryPolicy
from tests.control_plane import retries
from tests.embedded_server import EmbeddedServer
from tests.process.control_actors import TIMES, Actor, RequestOutcome, Taken, World, execute_late

STEPS_EACH = 30
# A step takes some real time: a write that was in time may be checked when the lease has just expired.
SLACK_MS = 2_000


@dataclass
class Answer:
    """The responses of one step, to be compared with the tables."""

    won: Lease | None = None
    emitted: tuple[int, str, int] | None = None
    moved: StatusChange | None = None
    fenced: bool = False
    wished: bool = False  # a user has cancelled


# The approximate frequency of each action. One rule draws from here: with a rule for each action, Hypothesis would
# leave most of them out of most examples, and a run without a leader shows little.
PLAN = (
    ["emits", "moves", "takes_over", "time_passes", "a_request_arrives_late", "looks_at_the_run", "publishes"] * 3
    + ["renews", "renews_without_asking_for_trust", "finishes"] * 2
    + ["claims", "releases", "a_worker_reads", "crashes", "a_user_cancels"]
)
NEEDS_A_LEADER = {
    *("emits", "moves", "renews", "renews_without_asking_for_trust", "publishes", "releases"),
    *("looks_at_the_run", "finishes"),
}
PAUSES_S = (3, 8, 11, 26, 31, 45)


class ControlMachine(RuleBasedStateMachine):
    world: World

    def __init__(self) -> None:
        super().__init__()
        self.plane = self.world.plane
        self.run_id = self.plane.new_run()
        self.network: list[tuple[NamedQuery, tuple[Any, ...]]] = []
        for actor in self.world.actors:
            actor.reset(self.network)
        self.leases: list[tuple[int, str, int]] = []
        self.events: list[tuple[int, str, int]] = []
        self.row = self._read()
        self.answer = Answer()
        self.readers: list[list[str]] = [[], []]

    @initialize()
    def there_is_a_leader(self) -> None:
        self.claims(self.world.actors[0], RequestOutcome.ANSWERED, 0)

    @rule(
        what=st.sampled_from(PLAN),
        who=st.integers(0, 5),
        outcome=st.sampled_from([RequestOutcome.ANSWERED, RequestOutcome.ANSWERED, *RequestOutcome]),
        number=st.integers(0, 20),
    )
    def happens(self, what: str, who: int, outcome: RequestOutcome, number: int) -> None:
        """`who` is an index among the actors that have, or had, a lease where one is needed."""
        leading = [actor for actor in self.world.actors if actor.keeper is not None]
        if what in NEEDS_A_LEADER and not leading:
            what = "takes_over"
        among = leading if what in NEEDS_A_LEADER else self.world.actors
        getattr(self, what)(among[who % len(among)], outcome, number)

    # --- what actors do ------------------------------------------------------------------------------------------

    def claims(self, actor: Actor, outcome: RequestOutcome, _: int) -> None:
        with self._sending(actor, outcome) as retries:
            begun_ns = actor.clock.monotonic_ns()
            term = claim(actor.session, retries, self.run_id, new_owner(), TIMES.ttl_s)
            if term is not None:
                actor.take(term, begun_ns)
                self.answer.won = term

    def takes_over(self, actor: Actor, outcome: RequestOutcome, number: int) -> None:
        self.time_passes(actor, outcome, PAUSES_S.index(45))
        self.claims(actor, outcome, number)

    def renews(self, actor: Actor, outcome: RequestOutcome, _: int) -> None:
        with self._sending(actor, outcome):
            actor.keeping.step()

    def renews_without_asking_for_trust(self, actor: Actor, outcome: RequestOutcome, _: int) -> None:
        with self._sending(actor, outcome):
            run_leases.renew(actor.session, actor.keeping.lease, TIMES.ttl_s)

    def releases(self, actor: Actor, outcome: RequestOutcome, _: int) -> None:
        with self._sending(actor, outcome):
            if actor.keeping.trusted:
                actor.keeping._release()

    def emits(self, actor: Actor, outcome: RequestOutcome, _: int) -> None:
        new, term = NewEvent(command=Start(expected_workers=1)), actor.keeping.lease
        with self._sending(actor, outcome) as retries:
            try:
                self.answer.emitted = (emit(actor.session, retries, term, new), new.event_id, term.epoch)
            except Fenced:
                self.answer.fenced = True

    def publishes(self, actor: Actor, outcome: RequestOutcome, number: int) -> None:
        with self._sending(actor, outcome):
            rollup = RunRollup(targets={}, total_ops=number, next_sequence_id=number)
            publish(actor.session, actor.keeping.lease, rollup)

    def looks_at_the_run(self, actor: Actor, _: RequestOutcome, __: int) -> None:
        actor.view = self._read()

    def moves(self, actor: Actor, outcome: RequestOutcome, number: int, *, ending: bool = False) -> None:
        """From the state in which the actor last saw the run, which may be long ago."""
        seen = actor.view or self._read()
        ways = [seen.status, *(to for to in sorted(RUN_TRANSITIONS[seen.status]) if to.is_terminal is ending)]
        later = min(PHASES.index(seen.phase) + number % 2, len(PHASES) - 1)
        step = StatusChange(
            status=seen.status,
            phase=seen.phase,
            to=ways[-1] if ending else ways[number % len(ways)],
            to_phase=PHASES[later],
            reason=f"by {actor.keeping.lease.epoch}",
        )
        if number % 3:
            actor.view = None
        if seen.status.is_terminal:
            return
        with self._sending(actor, outcome) as retries:
            try:
                if move(actor.session, retries, actor.keeping.lease, step):
                    self.answer.moved = step
            except Fenced:
                self.answer.fenced = True

    def finishes(self, actor: Actor, outcome: RequestOutcome, number: int) -> None:
        self.moves(actor, outcome, number, ending=True)

    def crashes(self, actor: Actor, _: RequestOutcome, __: int) -> None:
        actor.forget()

    # --- what happens to them ------------------------------------------------------------------------------------

    def time_passes(self, _: Actor, __: RequestOutcome, number: int) -> None:
        seconds = PAUSES_S[number % len(PAUSES_S)]
        self.plane.age(self.run_id, seconds)
        for actor in self.world.actors:
            actor.clock.advance(seconds)

    def a_request_arrives_late(self, _: Actor, __: RequestOutcome, number: int) -> None:
        if self.network:
            query, binds = self.network.pop(number % len(self.network))
            with suppress(Taken):
                execute_late(self.plane.session, query, binds)

    def a_user_cancels(self, _: Actor, __: RequestOutcome, ___: int) -> None:
        self.answer.wished = True
        cancel(self.plane.session, retries(), self.run_id, "enough")

    def a_worker_reads(self, _: Actor, __: RequestOutcome, number: int) -> None:
        self._catch_up(self.readers[number % len(self.readers)])

    # --- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def all_is_as_it_must_be(self) -> None:
        leases, events, row = self.plane.leases(self.run_id), self.plane.events(self.run_id), self._read()
        self._check_leases(leases)
        self._check_events(events, leases)
        self._check_row(row, leases)
        self._check_answer(leases, events, row)
        self.leases, self.events, self.row, self.answer = leases, events, row, Answer()
        for actor in self.world.actors:
            if actor.would_act:
                epoch, owner, remaining_ms = leases[-1]
                assert actor.keeping.lease == Lease(key=self.run_id, epoch=epoch, owner=owner), "trusted and succeeded"
                assert remaining_ms > 0, "trusted beyond the term"

    def _check_leases(self, leases: list[tuple[int, str, int]]) -> None:
        assert [epoch for epoch, _, _ in leases] == list(range(1, len(leases) + 1))
        assert [lease[:2] for lease in leases[: len(self.leases)]] == [lease[:2] for lease in self.leases]
        assert all(remaining_ms <= 0 for _, _, remaining_ms in leases[:-1]), "two terms at once"
        for before, after in zip(self.leases, leases, strict=False):
            assert before[2] > 0 or after[2] <= 0, "a term came back to life"
        if len(leases) > len(self.leases) and self.leases:
            assert leases[-2][2] <= -TAKEOVER_MARGIN_S * 1000, "a successor came too soon"

    def _check_events(self, events: list[tuple[int, str, int]], leases: list[tuple[int, str, int]]) -> None:
        assert [number for number, _, _ in events] == list(range(1, len(events) + 1))
        assert len({event_id for _, event_id, _ in events}) == len(events)
        assert events[: len(self.events)] == self.events
        for _, _, epoch in events[len(self.events) :]:
            assert epoch == leases[-1][0], "an event of a term that is over"
            assert leases[-1][2] > -SLACK_MS

    def _check_row(self, row: Run, leases: list[tuple[int, str, int]]) -> None:
        before = self.row
        if before.status.is_terminal:
            assert row == before, "something followed the end"
        if row == before:
            return
        assert row.status is before.status or row.status in RUN_TRANSITIONS[before.status]
        assert PHASES.index(row.phase) >= PHASES.index(before.phase)
        assert row.lease_epoch >= before.lease_epoch
        assert row.next_sequence_id >= before.next_sequence_id
        for name in ("start_time", "warmup_start_time", "warmup_end_time"):
            assert getattr(before, name) in (None, getattr(row, name))
        assert row.status.is_terminal == (row.end_time is not None)
        if not self.answer.wished:
            assert row.lease_epoch == leases[-1][0], "a write of a term that is over"
            assert leases[-1][2] > -SLACK_MS

    def _check_answer(self, leases: list[tuple[int, str, int]], events: list[tuple[int, str, int]], row: Run) -> None:
        answer = self.answer
        if answer.won is not None:
            assert leases[-1][:2] == (answer.won.epoch, answer.won.owner)
        if answer.emitted is not None:
            assert events[-1] == answer.emitted
        if answer.moved is not None:
            there = (answer.moved.to, answer.moved.to_phase)
            assert (row.status, row.phase) == there
            assert (self.row.status, self.row.phase) in ((answer.moved.status, answer.moved.phase), there), "a leap"
        if answer.fenced:
            assert (events, row) == (self.events, self.row), "refused, and written all the same"

    def teardown(self) -> None:
        """When the trouble is over, the next in line finishes the run."""
        self.plane.age(self.run_id, TIMES.ttl_s + TAKEOVER_MARGIN_S + 1)
        term = self.plane.claim(self.run_id)
        assert emit(self.plane.session, retries(), term, NewEvent(command=Start(expected_workers=1))) > 0
        row = self._read()
        if not row.status.is_terminal:
            step = StatusChange(status=row.status, phase=row.phase, to=RunStatus.FAILED, to_phase=Phase.PROCESSING)
            assert move(self.plane.session, retries(), term, step)
        for reader in self.readers:
            self._catch_up(reader)
            assert reader == [event_id for _, event_id, _ in self.plane.events(self.run_id)]

    # --- helpers -------------------------------------------------------------------------------------------------

    @contextmanager
    def _sending(self, actor: Actor, outcome: RequestOutcome) -> Iterator[RetryPolicy]:
        if outcome is RequestOutcome.LOST:
            self.world.server.fault(match="^(INSERT|UPDATE)", kind="drop_reply", count=1)
        else:
            actor.session.outcome = outcome
        try:
            yield retries(attempts=1 if outcome is RequestOutcome.HELD else 5)
        except ControlFailed as error:
            if outcome is RequestOutcome.ANSWERED or not error.failure.unknown_outcome:
                raise
        finally:
            actor.session.outcome = RequestOutcome.ANSWERED
            if outcome is RequestOutcome.LOST:
                self.world.server.clear_faults()

    def _catch_up(self, reader: list[str]) -> None:
        for event in poll(self.plane.session, self.run_id, len(reader)):
            assert event.sequence_id == len(reader) + 1
            reader.append(event.event_id)

    def _read(self) -> Run:
        row = read(self.plane.session, self.run_id)
        assert row is not None
        return row


@pytest.fixture(scope="module")
def world(server: EmbeddedServer) -> Iterator[World]:
    made = World(server)
    yield made
    made.close()


@pytest.mark.timeout(600)  # when it fails, finding the shortest example takes minutes
@pytest.mark.parametrize("examples", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_there_is_one_leader_and_one_history_whatever_fails(world, examples):
    run_state_machine_as_test(
        type("Machine", (ControlMachine,), {"world": world}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS_EACH,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
