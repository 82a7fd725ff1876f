"""Terms of office, their keeper, events and sessions: real SQL through both majors of the connector."""

from __future__ import annotations

import json
import logging
import socket
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from loadgen.clock import FakeClock, SystemClock
from loadgen.control import run_leases
from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.place import ControlPlace
from loadgen.control.queries import Query, queries
from loadgen.control.run_control_events import BATCH, NewEvent, catch_up, emit, poll
from loadgen.control.run_leases import TAKEOVER_MARGIN_S, Term, claim, new_owner, release, renew
from loadgen.control.run_status import Fenced, Move, Rollup, move, publish, server_time
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.storable import clean
from loadgen.errors import ConfigurationError
from loadgen.model.event import Address, Scope, SetWorkerTarget, Start, Stop, Unknown
from loadgen.model.run import Phase, RunStatus
from loadgen.snowflake.lookup import EMBEDDED_ADDRESS
from tests.control_plane import ControlPlane, patience
from tests.processes import PATIENCE_S, wait_until

TTL_S = 300.0
MARGIN_MS = TAKEOVER_MARGIN_S * 1000
NOT_ANSWERED: list[dict[str, Any]] = [
    {"kind": "drop_reply"},
    {"kind": "truncate"},
    {"kind": "reset"},
    {"kind": "http_status", "status": 503},
    {"kind": "expire_session"},
]
FAULT_IDS = [fault["kind"] for fault in NOT_ANSWERED]
STARTING = Move(
    status=RunStatus.PREPARED, phase=Phase.PREPARING, to=RunStatus.STARTING, to_phase=Phase.PREPARING, reason="go"
)


@pytest.fixture
def run_id(plane: ControlPlane) -> str:
    return plane.new_run()


def start_event() -> NewEvent:
    return NewEvent(command=Start(expected_workers=2))


def assert_powerless(plane: ControlPlane, term: Term) -> None:
    """Nothing that is done in the name of this term has any effect."""
    tables = [f"SELECT * FROM {table} WHERE RUN_ID = ?" for table in ("RUN_LEASES", "RUN_CONTROL_EVENTS", "RUN_STATUS")]
    before = [sorted(plane.rows(table, term.key)) for table in tables]

    assert not renew(plane.session, term, TTL_S)
    with pytest.raises(Fenced):
        emit(plane.session, patience(), term, start_event())
    with pytest.raises(Fenced):
        move(plane.session, patience(), term, STARTING)
    assert not publish(plane.session, term, Rollup(targets={}, total_ops=666))
    release(plane.session, term)

    assert [sorted(plane.rows(table, term.key)) for table in tables] == before


# --- claiming --------------------------------------------------------------------------------------------------------


def test_the_first_to_claim_gets_epoch_one_for_a_term(plane, run_id):
    term = plane.claim(run_id, ttl_s=TTL_S)

    ((epoch, owner, remaining_ms),) = plane.leases(run_id)
    assert (term.epoch, epoch, owner) == (1, 1, term.owner)
    assert 0 < remaining_ms <= TTL_S * 1000


def test_a_term_that_lasts_is_nobody_elses(plane, run_id):
    plane.claim(run_id)

    assert claim(plane.session, patience(), run_id, new_owner(), TTL_S) is None
    assert len(plane.leases(run_id)) == 1


@pytest.mark.parametrize("since_s", [-1, 1, TAKEOVER_MARGIN_S - 2], ids=["it lasts", "just over", "almost long enough"])
def test_a_term_must_be_over_for_the_margin_before_there_is_a_successor(plane, since_s):
    def tried_within_the_margin() -> bool:
        """The server's clock goes on. Once it has passed the margin, an attempt says nothing."""
        run_id = plane.new_run()
        plane.claim(run_id)
        plane.expire(run_id, since_s=since_s)
        term = claim(plane.session, patience(), run_id, new_owner(), TTL_S)
        # SQL says so too, whatever the claimant thinks he has read.
        rows = plane.session.execute(queries("run_leases")["claim_next"], "x", 30_000, run_id, 1, -MARGIN_MS)
        (_, _, remaining_ms), *successors = plane.leases(run_id)
        if remaining_ms <= -MARGIN_MS:
            return False
        assert (term, rows, successors) == (None, 0, [])
        return True

    wait_until(tried_within_the_margin, "the attempts are made within the margin")


def test_after_the_margin_the_next_epoch_begins_and_the_last_holder_is_powerless(plane, run_id):
    old = plane.claim(run_id)
    plane.expire(run_id, since_s=TAKEOVER_MARGIN_S + 1)

    new = plane.claim(run_id)

    assert (old.epoch, new.epoch) == (1, 2)
    assert_powerless(plane, old)
    assert renew(plane.session, new, TTL_S)
    assert emit(plane.session, patience(), new, start_event()) == 1


def test_a_holder_who_slept_past_his_term_is_refused_before_there_is_a_successor(plane, run_id):
    """The instant between the end of a term and the insert of the next: it must not come back to life."""
    term = plane.claim(run_id)
    plane.expire(run_id, since_s=0.2)

    assert_powerless(plane, term)

    plane.age(run_id, TAKEOVER_MARGIN_S + 1)
    assert plane.claim(run_id).epoch == 2
    assert_powerless(plane, term)


@pytest.mark.parametrize("field", ["key", "epoch", "owner"])
def test_a_term_that_differs_in_anything_is_not_the_holders(plane, run_id, field):
    term = plane.claim(run_id)
    forged = replace(term, **{field: {"key": plane.new_run(), "epoch": 2, "owner": new_owner()}[field]})

    assert not renew(plane.session, forged, TTL_S)
    release(plane.session, forged)
    with pytest.raises(Fenced):
        emit(plane.session, patience(), forged, start_event())
    with pytest.raises(Fenced):
        move(plane.session, patience(), forged, STARTING)
    assert not publish(plane.session, forged, Rollup(targets={}))

    assert renew(plane.session, term, TTL_S)
    assert plane.events(run_id) == []


def test_a_renewal_counts_from_now_and_never_adds_up(plane, run_id):
    term = plane.claim(run_id)

    for _ in range(5):
        assert renew(plane.session, term, TTL_S)

    assert plane.leases(run_id)[0][2] <= TTL_S * 1000


def test_a_release_lets_a_successor_in_at_once_and_ends_the_holder(plane, run_id):
    term = plane.claim(run_id)

    release(plane.session, term)

    assert_powerless(plane, term)
    assert plane.claim(run_id).epoch == 2


@pytest.mark.parametrize("fault", NOT_ANSWERED, ids=FAULT_IDS)
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_claim_whose_answer_is_lost_is_known_and_there_once(plane, run_id, fault, epoch):
    if epoch == 2:
        plane.claim(run_id)
        plane.expire(run_id, since_s=TAKEOVER_MARGIN_S + 1)
    owner = new_owner()
    plane.server.fault(match="^INSERT INTO RUN_LEASES", count=1, **fault)

    term = claim(plane.session, patience(), run_id, owner, TTL_S)

    assert term == Term(key=run_id, epoch=epoch, owner=owner)
    assert [lease[:2] for lease in plane.leases(run_id)][-1] == (epoch, owner)
    assert len(plane.leases(run_id)) == epoch
    assert renew(plane.session, term, TTL_S)


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_claim_that_was_lost_on_its_way_does_not_take_what_another_got_meanwhile(plane, run_id, epoch):
    if epoch == 2:
        plane.claim(run_id)
        plane.expire(run_id, since_s=TAKEOVER_MARGIN_S + 1)
    plane.server.fault(match="^INSERT INTO RUN_LEASES", count=1, kind="reset")
    winners: list[Term] = []

    won = claim(plane.session, patience(note=lambda _: winners.append(plane.claim(run_id))), run_id, new_owner(), TTL_S)

    assert won is None
    assert [lease[:2] for lease in plane.leases(run_id)][-1] == (epoch, winners[0].owner)


def test_an_owners_name_fits_its_column_and_is_nobody_elses(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 300)

    names = {new_owner() for _ in range(100)}

    assert len(names) == 100
    assert max(map(len, names)) <= run_leases.OWNER_MAX


# --- events ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", NOT_ANSWERED, ids=FAULT_IDS)
@pytest.mark.parametrize("match", ["^INSERT INTO RUN_CONTROL_EVENTS", "^SELECT SEQUENCE_ID FROM RUN_CONTROL_EVENTS"])
def test_an_event_whose_answer_is_lost_is_there_once(plane, run_id, match, fault):
    term = plane.claim(run_id)
    emit(plane.session, patience(), term, start_event())
    plane.server.fault(match=match, count=1, **fault)
    new = start_event()

    assert emit(plane.session, patience(), term, new) == 2
    assert plane.events(run_id)[1:] == [(2, new.event_id, 1)]


def test_an_event_that_is_sent_again_keeps_its_number(plane, run_id):
    term = plane.claim(run_id)
    new = start_event()

    assert [emit(plane.session, patience(), term, new) for _ in range(3)] == [1, 1, 1]
    assert emit(plane.session, patience(), term, start_event()) == 2


def test_writers_at_once_leave_no_gap_and_readers_see_every_event_in_order(plane, run_id):
    term, writers, each = plane.claim(run_id), 4, 12
    sessions = [plane.open(f"writer {number}") for number in range(writers)]
    done = threading.Event()

    def write(session: ControlSession) -> list[int]:
        return [emit(session, patience(clock=SystemClock()), term, start_event()) for _ in range(each)]

    def follow() -> list[int]:
        session, seen = plane.open("reader"), [0]
        while not done.is_set() or len(poll(session, run_id, seen[-1])):
            seen += [event.sequence_id for event in poll(session, run_id, seen[-1])]
        return seen[1:]

    with ThreadPoolExecutor(writers + 1, thread_name_prefix="writer") as pool:
        reading = pool.submit(follow)
        numbers = [number for written in pool.map(write, sessions) for number in written]
        done.set()
        seen = reading.result(PATIENCE_S)

    assert sorted(numbers) == list(range(1, writers * each + 1))
    assert seen == sorted(numbers)


def test_more_events_than_one_batch_arrive_in_order(plane, run_id):
    insert = Query(
        name="test",
        sql="INSERT INTO RUN_CONTROL_EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, CREATED_AT)"
        " VALUES (?, ?, ?, 1, 'STOP', '{}', '2026-01-01')",
        binds=3,
    )
    count = 2 * BATCH + 1
    plane.session.append(insert, [(run_id, number, str(uuid.uuid4())) for number in range(count, 0, -1)])

    assert [event.sequence_id for event in catch_up(plane.session, run_id, 0)] == list(range(1, count + 1))
    assert [event.sequence_id for event in catch_up(plane.session, run_id, count - 1)] == [count]
    assert list(catch_up(plane.session, run_id, count)) == []


def test_an_event_nobody_can_read_does_not_hide_the_next(plane, run_id):
    odd = [
        ("REBOOT", "{}"),
        ("STOP", "not JSON"),
        ("STOP", "[" * 3000),
        ("STOP", '{"effective_at": {"x": 1}}'),
        ("SET_PHASE", json.dumps({"phase": "\0\ud800", "effective_at": "tomorrow"})),
    ]
    for number, (kind, data) in enumerate(odd, 1):
        plane.change(
            "INSERT INTO RUN_CONTROL_EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, CREATED_AT)"
            " SELECT ?, ?, ?, 1, ?, ?, SYSDATE()",
            *(run_id, number, str(uuid.uuid4()), kind, data),
        )
    emit(plane.session, patience(), plane.claim(run_id), start_event())

    events = poll(plane.session, run_id, 0)

    assert [event.sequence_id for event in events] == list(range(1, len(odd) + 2))
    assert [isinstance(event.command, Unknown) for event in events] == [True, True, True, False, True, False]
    assert all(event.due_in_ms is None for event in events)


def test_what_a_command_says_and_when_it_is_due_survive_the_way(plane, run_id):
    moment = server_time(plane.session) + timedelta(hours=1)
    command = SetWorkerTarget(
        target_connections=64,
        step_id=3,
        ramp_s=1.5,
        effective_at=moment.isoformat(),
        reason="'; DROP TABLE RUN_LEASES; -- \\ \" 🙂 ?",
    )
    address = Address(scope=Scope.WORKER, worker_id="w'1")
    emit(plane.session, patience(), plane.claim(run_id), NewEvent(command=command, address=address))

    (event,) = poll(plane.session, run_id, 0)

    assert (event.command, event.address, event.epoch) == (command, address, 1)
    assert event.age_ms >= 0
    assert event.due_in_ms is not None
    assert event.due_in_ms <= 3_600_000


@pytest.mark.parametrize(
    "reason", ["\0", "\ud800", "🙂" * 1_000, "x" * 1_000_000], ids=["NUL", "half", "emoji", "1 MB"]
)
def test_a_hostile_reason_does_not_keep_a_command_from_its_workers(plane, run_id, reason):
    command = Stop(reason=reason, drain_timeout_s=1.0)

    emit(plane.session, patience(), plane.claim(run_id), NewEvent(command=command))

    (event,) = poll(plane.session, run_id, 0)
    assert event.command == replace(command, reason=clean(reason))


# --- the keeper ------------------------------------------------------------------------------------------------------


def keeper_of(plane: ControlPlane, term: Term, times: LeaseTimes, clock: Any = None) -> LeaseKeeper:
    clock = clock or SystemClock()
    return LeaseKeeper(plane.open("lease"), term, times, claimed_ns=clock.boottime_ns(), clock=clock)


QUICK = LeaseTimes(ttl_s=2 * TTL_S, renew_s=0.05, margin_s=5)


def was_renewed(plane: ControlPlane, run_id: str) -> bool:
    """Its term lasts longer than the one that was claimed."""
    return plane.leases(run_id)[-1][2] > TTL_S * 1000


def assert_untrusted(keeper: LeaseKeeper) -> None:
    assert not keeper.trusted


RENEWALS = "/__loadgen/journal?match=UPDATE+RUN_LEASES+SET+EXPIRES_AT"


def test_a_keeper_renews_until_it_is_stopped_and_then_makes_room(plane, run_id):
    keeper = keeper_of(plane, plane.claim(run_id), QUICK)
    keeper.start()
    wait_until(lambda: was_renewed(plane, run_id), "renewed")
    assert keeper.trusted

    keeper.stop()
    keeper.stop()

    assert_untrusted(keeper)
    assert not any(thread.name == "lease" for thread in threading.enumerate())
    assert plane.claim(run_id).epoch == 2


def test_a_keeper_that_does_not_release_leaves_its_term_to_expire(plane, run_id):
    keeper = keeper_of(plane, plane.claim(run_id), QUICK)
    keeper.start()

    keeper.stop(releasing=False)

    assert plane.leases(run_id)[0][2] > 0
    assert claim(plane.session, patience(), run_id, new_owner(), TTL_S) is None


def test_a_keeper_can_be_stopped_before_it_was_started(plane, run_id):
    keeper = keeper_of(plane, plane.claim(run_id), QUICK)

    keeper.stop()
    keeper.stop()


def test_the_keeper_closes_its_session_when_it_ends(plane, run_id):
    since_ms = plane.server.now_ms()
    keeper = keeper_of(plane, plane.claim(run_id), QUICK)
    keeper.start()
    wait_until(lambda: was_renewed(plane, run_id), "renewed")
    (session_id,) = {line["session_id"] for line in plane.server.ask(f"{RENEWALS}&since={since_ms}")}

    keeper.stop()

    ended = plane.server.ask(f"/__loadgen/journal?path=/session&since={since_ms}")
    assert session_id in {line["session_id"] for line in ended if line["path"] == "/session"}


def test_a_keeper_that_is_refused_ends_by_itself(plane, run_id):
    term = plane.claim(run_id)
    keeper = keeper_of(plane, term, QUICK)
    plane.expire(run_id, since_s=1)
    keeper.start()

    wait_until(lambda: not keeper.trusted, "noticed")
    wait_until(lambda: not any(thread.name == "lease" for thread in threading.enumerate()), "ended")

    assert plane.leases(run_id)[0][2] < 0
    keeper.stop()


def test_slow_renewals_keep_a_term_whose_times_allow_it(plane, run_id):
    """Half a second there and back, more than the pause between renewals."""
    plane.server.fault(match="^UPDATE RUN_LEASES", kind="latency", ms=500)
    keeper = keeper_of(plane, plane.claim(run_id), QUICK)
    keeper.start()

    wait_until(lambda: was_renewed(plane, run_id), "renewed")

    assert keeper.trusted
    keeper.stop()


class SlowSession(ControlSession):
    """Time passes while a statement is on its way."""

    clock: FakeClock
    passes_s: float

    def execute(self, query: Query, *binds: Any) -> int:
        self.clock.advance(self.passes_s)
        return super().execute(query, *binds)


def test_a_renewal_that_was_slow_and_succeeded_does_not_extend_trust_beyond_its_begin(plane, run_id):
    clock, times = FakeClock(), LeaseTimes()
    session = SlowSession(plane.place, role="lease", environ=plane.environ)
    session.clock, session.passes_s = clock, 5.0
    keeper = LeaseKeeper(session, plane.claim(run_id), times, claimed_ns=0, clock=clock)

    assert keeper.step()
    clock.advance(times.ttl_s - times.margin_s - 5.0)

    assert not keeper.trusted
    session.close()


@pytest.mark.parametrize("fault", NOT_ANSWERED, ids=FAULT_IDS)
def test_a_renewal_that_fails_once_and_then_succeeds_keeps_the_term(plane, run_id, fault):
    clock = FakeClock()
    term = plane.claim(run_id)
    keeper = LeaseKeeper(plane.open("lease"), term, LeaseTimes(), claimed_ns=0, clock=clock)
    plane.server.fault(match="^UPDATE RUN_LEASES", count=1, **fault)

    clock.advance(20)
    assert keeper.step()
    assert keeper.trusted
    assert keeper.step()

    clock.advance(24)
    assert keeper.trusted


def test_a_keeper_whose_new_session_is_refused_for_good_lives_on_until_trust_ends(plane, run_id, caplog):
    """The session is gone, and opening another one is no ControlFailed: the thread must not die of it."""
    environ = dict(plane.environ)
    session = ControlSession(plane.place, role="lease", environ=environ)
    clock = SystemClock()
    keeper = LeaseKeeper(session, plane.claim(run_id), QUICK, claimed_ns=clock.boottime_ns(), clock=clock)
    environ[EMBEDDED_ADDRESS] = "nonsense"

    with caplog.at_level(logging.WARNING, "loadgen.control.lease"):
        keeper.start()
        wait_until(lambda: caplog.text.count("lease_renewal_failed") > 1, "two attempts")
    assert keeper.trusted
    environ.update(plane.environ)
    wait_until(lambda: was_renewed(plane, run_id), "renewed after all")
    keeper.stop()
    assert plane.claim(run_id).epoch == 2


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_lost_session_is_replaced_with_the_next_call(plane, run_id):
    session = plane.open("lost")
    term = plane.claim(run_id)
    assert renew(session, term, TTL_S)
    ((session_id,),) = session.fetch(Query(name="test", sql="SELECT CURRENT_SESSION()", binds=0))

    assert session._connection is not None
    session._connection.close()  # as if the server had ended it
    with pytest.raises(ControlFailed) as raised:
        renew(session, term, TTL_S)

    assert raised.value.failure.session_lost
    assert renew(session, term, TTL_S)
    assert session.fetch(Query(name="test", sql="SELECT CURRENT_SESSION()", binds=0)) != [(session_id,)]


def test_a_session_that_was_closed_opens_again(plane, run_id):
    session = plane.open("closed")
    term = plane.claim(run_id)

    session.close()
    session.close()
    assert renew(session, term, TTL_S)
    session.close()
    assert renew(session, term, TTL_S)


def test_a_session_belongs_to_one_thread(plane, run_id):
    session = plane.open("shared")
    term = plane.claim(run_id)
    assert renew(session, term, TTL_S)

    with ThreadPoolExecutor(1, thread_name_prefix="other") as pool, pytest.raises(AssertionError, match="one thread"):
        pool.submit(renew, session, term, TTL_S).result()

    assert renew(session, term, TTL_S)


def test_missing_tables_are_made_by_setup(plane):
    elsewhere = replace(plane.place, schema="EMPTY")
    session = ControlSession(elsewhere, role="test", environ=plane.environ)

    with pytest.raises(ControlFailed) as raised:
        run_leases.read(session, "r")

    assert "loadgen setup" in raised.value.remedy
    assert f"{elsewhere.database}.EMPTY" in str(raised.value)
    assert raised.value.exit_code == 3
    session.close()


def test_a_schema_that_is_gone_is_made_by_setup_too(plane):
    elsewhere = replace(plane.place, schema="GONE")
    session = ControlSession(elsewhere, role="test", environ=plane.environ)
    session.execute(Query(name="test", sql=f"DROP SCHEMA {elsewhere.database}.GONE", binds=0))

    with pytest.raises(ControlFailed) as raised:
        run_leases.read(session, "r")

    assert "loadgen setup" in raised.value.remedy
    session.close()


def test_a_connection_that_does_not_exist_is_said_as_it_is():
    session = ControlSession(ControlPlace(connection="no_such"), role="test", environ={})

    with pytest.raises(ConfigurationError) as raised:
        run_leases.read(session, "r")

    assert raised.value.__cause__ is not raised.value


def test_a_server_that_is_gone_is_worth_another_attempt():
    session = ControlSession(
        ControlPlace(connection="embedded"), role="test", environ={EMBEDDED_ADDRESS: "127.0.0.1:1"}
    )

    with pytest.raises(ControlFailed) as raised:
        run_leases.read(session, "r")

    assert raised.value.failure.retryable
