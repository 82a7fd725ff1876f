"""Logical users in a worker: who they are, what is sent for them, and when their sessions end."""

import itertools
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from loadgen.metrics.recorder import WindowRegistry
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.model.workload import (
    ClientPosition,
    KeyRange,
    Previous,
    Query,
    Remembered,
    Statement,
    StatementKind,
    Text,
    Uniform,
    Workload,
)
from loadgen.model.workload import Sequence as SequenceParameter
from loadgen.scenario.model import Load, LoadMode, Scenario
from loadgen.scenario.settings import SessionAffinity, UserSessionSettings
from loadgen.snowflake.settings import QUERY_TAG_MAX, query_tag, session_tag
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.client import ClientPool
from loadgen.worker.client_context import ClientContext, ClientSlot, ClientSlots, compile_statements
from loadgen.worker.sessions import SWEEP_S, LogicalUsers
from loadgen.workload.draw import StatementStream
from tests.fake_clock import FakeClock

TTL_S = 30.0
TAG = '{"app":"loadgen","run":"r"}'
CUSTOMER = Remembered(name="customer", of=Uniform(keys=KeyRange(low=1, high=10**9)))
OWN = Statement(
    name="own",
    kind=StatementKind.READ,
    weight=1,
    queries=(Query(sql="SELECT ?, ?", parameters=(CUSTOMER, Text(length=3))),),
    session=True,
)
MOVE = Statement(
    name="move",
    kind=StatementKind.WRITE,
    weight=1,
    queries=(
        Query(sql="SELECT ?", parameters=(Text(length=4),)),
        Query(sql="UPDATE T SET A = ? WHERE B = ?", parameters=(CUSTOMER, Previous(index=1))),
    ),
    transaction=True,
    session=True,
)
PLAIN = Statement(name="plain", kind=StatementKind.READ, weight=1, queries=(Query(sql="SELECT 1"),))


class Tape:
    """A cursor that writes down each statement, its parameters and its tag."""

    rowcount = 1

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any, dict[str, Any] | None]] = []

    def execute(
        self, command: str, params: Sequence[Any] | None = None, /, _statement_params: dict[str, str] | None = None
    ) -> None:
        tag = None if _statement_params is None else json.loads(_statement_params["QUERY_TAG"])
        self.sent.append((command, params, tag))

    def fetchmany(self, size: int, /) -> list[tuple[int]]:
        return [(1,)]


class UserHarness:
    """The slots of one worker, with users, at a time that the test sets."""

    def __init__(
        self,
        *statements: Statement,
        affinity: SessionAffinity = SessionAffinity.STRICT,
        count: int = 6,
        connections: int = 2,
        worker: int = 0,
        workers: int = 1,
        mode: LoadMode = LoadMode.CONCURRENCY,
    ) -> None:
        statements = statements or (OWN,)
        load = Load(mode=mode, connections=connections, rate_per_second=1.0 if mode is LoadMode.RATE else None)
        self.scenario = Scenario(
            name="s",
            workload=Workload(statements=statements, seed=7),
            load=load,
            sessions=UserSessionSettings(count=count, affinity=affinity, ttl_s=TTL_S, metadata={"team": "a"}),
        )
        arguments = WorkerArguments(
            run_id="r", worker_id=f"worker-{worker}", worker_group_id=worker, worker_group_count=workers
        )
        self.clock = FakeClock()
        harvester = SampleCollector(WindowRegistry(), statements, open_loop=mode is LoadMode.RATE, started_ns=0)
        clients = connections // workers
        self.users = LogicalUsers(self.scenario, worker, workers, clients, {}, self.clock)
        self.slots = ClientSlots(self.scenario, arguments, {}, harvester, None, self.users)
        self.tape = Tape()
        self.runs = compile_statements(self.scenario)

    def slot(self, number: int = 0) -> ClientSlot:
        slot = self.slots.get(number)
        slot.tagged(TAG)
        return slot

    def send(self, slot: ClientSlot, first: int, count: int) -> list[tuple[Any, dict[str, Any] | None]]:
        """A number of draws of a slot: the parameters of the statements, and their tags."""
        before = len(self.tape.sent)
        for k in range(first, first + count):
            number, row = slot.drawer.draw(k)
            self.runs[number](self.tape, row)  # type: ignore[arg-type]
        return [(parameters, tag) for _, parameters, tag in self.tape.sent[before:]]

    def pool(self) -> ClientPool:
        """Of these slots, without a client."""
        return ClientPool(cast(ClientContext, None), self.slots, warn=lambda text: None)

    @property
    def figures(self) -> tuple[int, int, int]:
        counts = self.users.counts
        return counts.created, counts.expired, counts.current


def remembered(sent: list[tuple[Any, Any]]) -> dict[int, set[Any]]:
    """By session: what its statements had as their first parameter."""
    found: dict[int, set[Any]] = {}
    for parameters, tag in sent:
        found.setdefault(tag["session"], set()).add(parameters[0])
    return found


def test_every_user_of_the_run_belongs_to_one_slot_of_one_worker():
    seen: list[set[int]] = []
    for worker in range(2):
        harness = UserHarness(count=11, connections=4, worker=worker, workers=2)
        seen += [set(remembered(harness.send(harness.slot(number), 0, 60))) for number in range(2)]

    assert sorted(itertools.chain(*seen)) == list(range(11))
    assert sum(map(len, seen)) == 11


def test_a_session_keeps_one_value_and_draws_the_rest_again():
    harness = UserHarness()

    sent = harness.send(harness.slot(), 0, 60)

    values = remembered(sent)
    assert len(values) == 3
    assert all(len(kept) == 1 for kept in values.values())
    assert len({value for kept in values.values() for value in kept}) == 3, "each its own"
    assert len({parameters[1] for parameters, _ in sent}) > 20


def test_the_same_seed_gives_the_same_users_and_the_same_values():
    one, two, other = UserHarness(), UserHarness(), UserHarness()

    sent = one.send(one.slot(1), 0, 40)

    assert sent == two.send(two.slot(1), 0, 40)
    assert sent != other.send(other.slot(0), 0, 40)


def test_a_tag_begins_as_that_of_the_connection_and_names_the_session():
    harness = UserHarness(PLAIN, OWN)

    tags = {json.dumps(tag) for _, tag in harness.send(harness.slot(), 0, 20)}

    assert "null" in tags, "a statement without a session is sent as ever"
    in_session = [json.loads(tag) for tag in tags - {"null"}]
    assert all(list(tag) == ["app", "run", "session", "metadata"] for tag in in_session)
    assert all((tag["run"], tag["metadata"]) == ("r", {"team": "a"}) for tag in in_session)


def test_a_new_tag_of_the_connection_is_used_by_the_next_statement():
    harness = UserHarness()
    slot = harness.slot()
    harness.send(slot, 0, 1)

    slot.tagged('{"app":"loadgen","phase":"MEASUREMENT"}')

    ((_, tag),) = harness.send(slot, 1, 1)
    assert tag is not None
    assert tag["phase"] == "MEASUREMENT"


def test_the_longest_tag_fits():
    metadata = {"k": "x" * (1_000 - len('{"k":""}'))}
    longest = query_tag(run="r" * 36, worker="w" * 100, phase="MEASUREMENT", step=10**9)

    tag = longest[:-1] + session_tag(10**12, metadata)

    assert len(tag) <= QUERY_TAG_MAX
    assert json.loads(tag)["metadata"] == metadata


def test_a_transaction_is_one_session_from_begin_to_commit_and_previous_repeats_what_it_remembers():
    harness = UserHarness(MOVE)

    harness.send(harness.slot(), 0, 1)

    (begin, read, update, commit) = harness.tape.sent
    assert [begin[0], commit[0]] == ["BEGIN", "COMMIT"]
    assert len({json.dumps(tag) for _, _, tag in harness.tape.sent}) == 1
    assert isinstance(read[1][0], str)
    assert isinstance(update[1][0], int)
    assert update[1][0] == update[1][1]


@pytest.mark.parametrize("affinity", SessionAffinity)
def test_the_effect_of_a_lost_connection_on_sessions(affinity):
    harness = UserHarness(affinity=affinity)
    slot = harness.slot()
    before = remembered(harness.send(slot, 0, 40))

    slot.disconnected()
    between = harness.figures
    after = remembered(harness.send(slot, 40, 40))

    if affinity is SessionAffinity.STRICT:
        assert between == (3, 3, 0)
        assert not before.keys() & after.keys()
        assert {session % 6 for session in after} == {session % 6 for session in before}, "the same users"
        assert harness.figures == (6, 3, 3)
    else:
        assert between == (3, 0, 3)
        assert after == before
        assert harness.figures == (3, 0, 3)


def test_the_end_of_the_load_ends_no_session():
    harness = UserHarness(affinity=SessionAffinity.STRICT)
    slot = harness.slot()
    harness.send(slot, 0, 40)

    harness.pool().drain()
    slot.disconnected()

    assert harness.figures == (3, 0, 3)


def test_sessions_that_have_expired_when_the_load_ends_are_not_current():
    harness = UserHarness(affinity=SessionAffinity.HINT)
    harness.send(harness.slot(0), 0, 40)
    harness.clock.advance(TTL_S)
    harness.send(harness.slot(1), 0, 40)
    pool = harness.pool()

    pool.drain()

    assert harness.figures == (6, 3, 3)
    harness.clock.advance(SWEEP_S)  # however long it takes to drain
    pool.reap()
    pool.drain()
    assert harness.figures == (6, 3, 3)


def test_expired_sessions_are_swept_once_a_minute_also_without_clients():
    harness = UserHarness(affinity=SessionAffinity.HINT)
    harness.send(harness.slot(0), 0, 40)
    pool = harness.pool()
    harness.clock.advance(SWEEP_S - 1)
    pool.reap()
    assert harness.figures == (3, 0, 3)
    harness.send(harness.slot(1), 0, 40)

    harness.clock.advance(1)
    pool.reap()

    assert harness.figures == (6, 3, 3)
    harness.clock.advance(SWEEP_S - 1)
    pool.reap()
    assert harness.figures == (6, 3, 3)


def test_a_statement_whose_session_expires_before_it_is_sent_belongs_to_the_next_one():
    harness = UserHarness()
    slot = harness.slot()
    number, row = slot.drawer.draw(0)
    harness.runs[number](harness.tape, row)  # type: ignore[arg-type]
    number, late = slot.drawer.draw(0)

    harness.clock.advance(TTL_S)
    harness.runs[number](harness.tape, late)  # type: ignore[arg-type]

    (_, first, first_tag), (_, second, second_tag) = harness.tape.sent
    assert first_tag is not None
    assert second_tag is not None
    assert second_tag["session"] == first_tag["session"] + 6
    assert (first[0] != second[0], first[1] == second[1]) == (True, True)
    assert harness.figures == (2, 1, 1)


def test_in_an_open_loop_each_client_executes_its_arrivals_as_one_of_its_users():
    harness = UserHarness(mode=LoadMode.RATE)
    slots = [harness.slot(0), harness.slot(1)]

    sent = [harness.send(slots[index % 2], index, 1)[0] for index in range(80)]

    users = [{tag["session"] for _, tag in sent[start::2] if tag} for start in (0, 1)]
    assert users == [{0, 2, 4}, {1, 3, 5}]
    assert all(len(kept) == 1 for kept in remembered(sent).values())


def test_a_remembered_sequence_gives_no_key_to_two_sessions():
    own = Statement(
        name="own",
        kind=StatementKind.READ,
        weight=1,
        queries=(Query(sql="SELECT ?", parameters=(Remembered(name="id", of=SequenceParameter(start=1)),)),),
        session=True,
    )
    keys: list[int] = []
    for worker in range(2):
        harness = UserHarness(own, count=8, connections=4, worker=worker, workers=2)
        for number in range(2):
            slot = harness.slot(number)
            for _ in range(3):
                keys += [key for kept in remembered(harness.send(slot, 0, 40)).values() for key in kept]
                slot.disconnected()

    assert len(keys) == len(set(keys)) == 24
    assert set(keys) == set(range(1, 25))


def test_a_scenario_without_sessions_runs_the_same_code_as_before():
    harness = UserHarness(PLAIN)
    harvester = SampleCollector(WindowRegistry(), (PLAIN,), open_loop=False, started_ns=0)
    arguments = WorkerArguments(run_id="r", worker_id="worker-0", worker_group_id=0, worker_group_count=1)

    slot = ClientSlots(harness.scenario, arguments, {}, harvester, None).get(0)
    slot.tagged(TAG)
    slot.disconnected()

    assert type(slot.drawer) is StatementStream
    assert "in_session" not in compile_statements(harness.scenario)[0].__qualname__


def test_remembered_values_and_drawn_values_are_independent():
    keys = Uniform(keys=KeyRange(low=1, high=10**9))
    parameters = (Remembered(name="a", of=keys), keys, Remembered(name="b", of=keys))
    query = Query(sql="SELECT ?, ?, ?", parameters=parameters)
    own = Statement(name="own", kind=StatementKind.READ, weight=1, queries=(query,), session=True)
    other = Statement(
        name="other", kind=StatementKind.READ, weight=1, queries=(Query(sql="SELECT ?", parameters=(keys,)),)
    )
    harness = UserHarness(other, own)

    sent = harness.send(harness.slot(), 0, 60)

    drawn = {parameters[0] for parameters, tag in sent if tag is None}
    kept = [parameters for parameters, tag in sent if tag is not None]
    drawn |= {parameters[1] for parameters in kept}
    remembered_values = {value for parameters in kept for value in (parameters[0], parameters[2])}
    assert len(remembered_values) == 2 * 3, "two for each session"
    assert not drawn & remembered_values


def test_draws_do_not_depend_on_sessions():
    """What a statement draws beside what it remembers is what it would draw without."""
    harness = UserHarness()
    place = ClientPosition(worker=0, workers=1, client=0, clients=2, lanes=2)
    bare = StatementStream(harness.scenario.workload, place, {})

    sent = harness.send(harness.slot(), 0, 20)

    assert [parameters[1] for parameters, _ in sent] == [bare.draw(k)[1][0][1] for k in range(20)]
