"""Events through the real driver: they come back as they were sent, in order, and nothing odd stops a reader."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from loadgen.clock import SystemClock
from loadgen.control.session import ControlFailed, NamedQuery
from loadgen.control.tables import run_status
from loadgen.control.tables.run_control_events import BATCH, NewEvent, catch_up, emit, history, poll
from loadgen.control.tables.run_leases import Lease
from loadgen.control.tables.run_status import Fenced
from loadgen.model.event import (
    EventScope,
    PlannedCommand,
    Recipient,
    SetPhase,
    SetRunTarget,
    SetWorkerTarget,
    Start,
    Stop,
    UnknownCommand,
)
from loadgen.model.run import Phase
from tests.contract.control_builders import HOSTILE, MOMENT, STORED
from tests.control_plane import ControlPlane, retries


@pytest.fixture
def term(plane: ControlPlane, run_id: str) -> Lease:
    return plane.claim(run_id, ttl_s=600)


# --- events: writing -------------------------------------------------------------------------------------------------


SENT: list[tuple[Any, Recipient]] = [
    (Start(expected_workers=3), Recipient()),
    (SetPhase(phase=Phase.WARMUP), Recipient()),
    (
        SetPhase(phase=Phase.MEASUREMENT, step_id=2, duration_ms=1500.5, effective_at=MOMENT.isoformat()),
        Recipient(scope=EventScope.RUN),
    ),
    (
        SetWorkerTarget(target_connections=7, step_id=1, ramp_s=2.5, reason='it\'s "step" 1 😀'),
        Recipient(scope=EventScope.WORKER, worker_id="w'1"),
    ),
    (SetWorkerTarget(target_connections=0), Recipient(scope=EventScope.WORKER_GROUP, worker_group_id=0)),
    (Stop(reason="done", drain_timeout_s=20.0), Recipient()),
]


def start(workers: int = 3) -> NewEvent:
    return NewEvent(command=Start(expected_workers=workers))


def test_events_come_back_as_they_were_sent_numbered_from_1(session, run_id, term):
    sent = [NewEvent(command=command, address=address) for command, address in SENT]
    numbers = [emit(session, retries(), term, new) for new in sent]

    events = poll(session, run_id, 0)

    assert numbers == [1, 2, 3, 4, 5, 6]
    assert [event.sequence_id for event in events] == numbers
    assert [(event.command, event.address) for event in events] == SENT
    assert [event.event_id for event in events] == [new.event_id for new in sent]
    assert {event.epoch for event in events} == {1}


def test_the_age_of_an_event_is_computed_by_the_server(plane, session, run_id, term):
    began = run_status.server_time(session)
    emit(session, retries(), term, start())
    plane.change("UPDATE RUN_CONTROL_EVENTS SET CREATED_AT = DATEADD(second, -90, CREATED_AT) WHERE RUN_ID = ?", run_id)

    (event,) = poll(session, run_id, 0)

    assert 90_000 <= event.age_ms <= 90_000 + plane.passed_ms(began)


def test_an_event_that_is_sent_again_is_the_same_event(session, run_id, term):
    first = start(3)
    numbers = [emit(session, retries(), term, new) for new in (first, start(9))]

    again = emit(session, retries(), term, replace(first, command=Start(expected_workers=4)))

    assert (numbers, again) == ([1, 2], 1)
    commands = [event.command for event in poll(session, run_id, 0)]
    assert commands == [Start(expected_workers=3), Start(expected_workers=9)]


def test_runs_are_numbered_each_on_its_own(plane, session):
    terms = [plane.claim(str(uuid.uuid4()), ttl_s=600) for _ in range(2)]

    numbers = [emit(session, retries(), term, start()) for term in terms * 2]

    assert numbers == [1, 1, 2, 2]


def test_an_expired_lease_sends_nothing(plane, session, run_id, term):
    emit(session, retries(), term, start())
    plane.expire(run_id, since_s=1)

    with pytest.raises(Fenced):
        emit(session, retries(), term, start())

    assert len(poll(session, run_id, 0)) == 1


def test_a_successor_goes_on_with_the_numbers_and_the_predecessor_does_not(plane, session, run_id, term):
    emit(session, retries(), term, start())
    plane.expire(run_id, since_s=30)
    successor = plane.claim(run_id, ttl_s=600)

    with pytest.raises(Fenced):
        emit(session, retries(), term, start())
    number = emit(session, retries(), successor, start())

    assert number == 2
    assert [event.epoch for event in poll(session, run_id, 0)] == [1, 2]


@pytest.mark.parametrize("wrong", [{"owner": "another owner"}, {"epoch": 2}, {"epoch": 0}, {"key": "another run"}])
def test_no_event_is_sent_with_the_lease_of_another_owner(session, run_id, term, wrong):
    with pytest.raises(Fenced):
        emit(session, retries(), replace(term, **wrong), start())

    assert poll(session, run_id, 0) == []


def test_an_event_that_was_inserted_before_the_lease_expired_is_not_lost(plane, server, session, run_id, term):
    """The response is lost, the lease expires, and only then is the row looked up."""
    server.fault(match="INSERT INTO RUN_CONTROL_EVENTS", kind="drop_reply", count=1)
    ended: list[Any] = []

    expire = retries(note=lambda _: ended.append(plane.expire(run_id, since_s=1)))
    number = emit(session, expire, term, start())

    assert ended
    assert number == 1
    assert len(poll(session, run_id, 0)) == 1


@pytest.mark.parametrize("kind", ["drop_reply", "reset", "truncate", "http_status"])
@pytest.mark.parametrize("match", ["INSERT INTO RUN_CONTROL_EVENTS", "SELECT SEQUENCE_ID, CREATED_AT"])
def test_a_lost_answer_makes_no_second_event(server, session, run_id, term, kind, match):
    server.fault(match=match, kind=kind, count=2)

    sent = [start(), start(), start()]
    numbers = [emit(session, retries(), term, new) for new in sent]

    assert numbers == [1, 2, 3]
    assert [event.event_id for event in poll(session, run_id, 0)] == [new.event_id for new in sent]


def test_hostile_reasons_neither_stop_an_event_nor_change_when_it_is_due(session, run_id, term):
    soon = (run_status.server_time(session) + timedelta(seconds=60)).isoformat()
    command = SetWorkerTarget(target_connections=1, reason=HOSTILE, effective_at=soon)

    emit(session, retries(), term, NewEvent(command=command))

    (event,) = poll(session, run_id, 0)
    assert event.command == replace(command, reason=STORED)
    assert event.due_in_ms is not None


# --- events: reading -------------------------------------------------------------------------------------------------


def insert_events(plane: ControlPlane, run_id: str, events: list[tuple[str, str]]) -> None:
    """Rows as another version, or an accident, might leave them."""
    sql = (
        "INSERT INTO RUN_CONTROL_EVENTS"
        " (RUN_ID, SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, CREATED_AT)"
        " SELECT VALUE[0]::VARCHAR, VALUE[1]::NUMBER, VALUE[2]::VARCHAR, 1, VALUE[3]::VARCHAR, VALUE[4]::VARCHAR,"
        " SYSDATE() FROM TABLE(FLATTEN(INPUT => PARSE_JSON(?)))"
    )
    rows = [(run_id, number, str(uuid.uuid4()), kind, data) for number, (kind, data) in enumerate(events, 1)]
    for first in range(0, len(rows), 200):  # each within the time limit of a control statement, on a busy machine too
        plane.session.append(NamedQuery(name="test", sql=sql, binds=1), rows[first : first + 200])


def test_a_poll_is_a_batch_in_order(plane, session, run_id):
    insert_events(plane, run_id, [("START", f'{{"expected_workers":{number}}}') for number in range(1, 1235)])

    batches = [poll(session, run_id, after) for after in (0, 100, 1200, 1234, 99_999)]

    assert [[event.sequence_id for event in batch] for batch in batches] == [
        list(range(1, 101)),
        list(range(101, 201)),
        list(range(1201, 1235)),
        [],
        [],
    ]
    assert len(batches[0]) == BATCH


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 200, 1234])
def test_catching_up_reads_everything_once(plane, session, run_id, size):
    insert_events(plane, run_id, [("START", f'{{"expected_workers":{number}}}') for number in range(1, size + 1)] or [])

    events = list(catch_up(session, run_id, 0))

    assert [event.sequence_id for event in events] == list(range(1, size + 1))
    assert [event.command for event in events] == [Start(expected_workers=n) for n in range(1, size + 1)]


def test_catching_up_goes_on_from_where_it_was(plane, session, run_id):
    insert_events(plane, run_id, [("STOP", "{}")] * 250)

    assert [event.sequence_id for event in catch_up(session, run_id, 120)] == list(range(121, 251))


DAMAGED = {
    "not JSON": "{",
    "nothing": "",
    "a list": "[1]",
    "a text": '"x"',
    "null": "null",
    "a number that is none": "NaN",
    "NUL": r'{"effective_at":"\u0000"}',
    "half a character": r'{"effective_at":"\ud800","a":"\udc00"}',
    "deep": "[" * 900 + "]" * 900,
    "a huge number": '{"target_connections":1' + "0" * 5000 + "}",
    "an unknown scope": '{"scope":"GALAXY","target_connections":1}',
    "a scope that is a list": '{"scope":[],"target_connections":1}',
    "a negative target": '{"target_connections":-1}',
    "a target that is a text": '{"target_connections":"1"}',
    "no target": "{}",
    "a moment that is a number": '{"target_connections":1,"effective_at":12}',
    "twice the same": '{"target_connections":1,"target_connections":null}',
    "a lead that is a text": '{"total_connections":1,"lead_ms":"3000"}',
    "a lead before its insertion": '{"total_connections":1,"lead_ms":-1}',
    "a lead beyond all times": '{"total_connections":1,"lead_ms":1' + "0" * 400 + "}",
    "a lead that is no number": '{"total_connections":1,"lead_ms":NaN}',
    "a total for one worker": '{"total_connections":1,"scope":"WORKER","worker_id":"worker-0"}',
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_event_does_not_stop_the_reader(plane, session, run_id, data):
    insert_events(plane, run_id, [("SET_WORKER_TARGET", data), ("START", '{"expected_workers":2}')])

    odd, good = poll(session, run_id, 0)

    assert isinstance(odd.command, UnknownCommand)
    assert odd.command.event_type == "SET_WORKER_TARGET"
    assert good.command == Start(expected_workers=2)


# --- events: moments that count from the insertion -------------------------------------------------------------------

PLAN = (
    PlannedCommand(at_ms=0, command=SetPhase(phase=Phase.WARMUP)),
    PlannedCommand(at_ms=2_500, command=SetRunTarget(total_connections=64, ramp_s=1.5, reason="plan")),
    PlannedCommand(at_ms=2_500, command=SetPhase(phase=Phase.MEASUREMENT, step_id=1, duration_ms=30_000.0)),
)
AHEAD = {
    "START": Start(expected_workers=3, lead_ms=60_000, plan=PLAN),
    "SET_WORKER_TARGET": SetRunTarget(total_connections=7, step_id=2, lead_ms=60_000, reason=HOSTILE),
}


@pytest.mark.parametrize("command", AHEAD.values(), ids=AHEAD)
def test_a_lead_counts_from_the_moment_at_which_the_server_has_the_event(plane, session, run_id, term, command):
    began = run_status.server_time(session)
    number = emit(session, retries(), term, NewEvent(command=command))

    (event,) = poll(session, run_id, 0)

    ((created_at,),) = plane.rows("SELECT CREATED_AT FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ?", run_id)
    assert began <= created_at
    assert event.due_in_ms == 60_000 - event.age_ms
    assert 0 <= event.age_ms <= plane.passed_ms(began)
    (past,) = history(session, run_id)
    assert past.moment == created_at + timedelta(seconds=60)
    assert number == 1
    assert type(event.command) is type(command)
    if isinstance(command, Start):
        assert event.command == command


@pytest.mark.parametrize("command", AHEAD.values(), ids=AHEAD)
@pytest.mark.parametrize("fault", [{"kind": "latency", "ms": 700}, {"kind": "reset"}, {"kind": "http_status"}])
def test_an_emission_that_is_slow_or_tried_again_moves_what_it_announces(
    plane, server, session, run_id, term, command, fault
):
    new = NewEvent(command=command)
    began = run_status.server_time(session)
    server.fault(match="^INSERT INTO RUN_CONTROL_EVENTS", count=2, **fault)

    emit(session, retries(clock=SystemClock(), first_pause_s=0.2), term, new)

    ((created_at,),) = plane.rows("SELECT CREATED_AT FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ?", run_id)
    moved_ms = (created_at - began) / timedelta(milliseconds=1)
    assert moved_ms >= 200, "it was inserted late"
    (event,) = poll(session, run_id, 0)
    assert event.due_in_ms == 60_000 - event.age_ms, "and takes effect as much later"


def test_an_absolute_time_is_obeyed_whatever_the_lead_is(session, run_id, term):
    late = (run_status.server_time(session) + timedelta(hours=1)).isoformat()
    emit(session, retries(), term, NewEvent(command=SetRunTarget(total_connections=1, lead_ms=5, effective_at=late)))

    (event,) = poll(session, run_id, 0)

    assert event.due_in_ms is not None
    assert 3_000_000 < event.due_in_ms <= 3_600_000


@pytest.mark.parametrize("kind", ["PAUSE", "start", "", "'; DROP TABLE X; --"])
def test_an_unknown_type_is_passed_over(plane, session, run_id, kind):
    insert_events(plane, run_id, [(kind, '{"scope":"RUN"}'), ("STOP", '{"reason":"x"}')])

    odd, good = poll(session, run_id, 0)

    assert isinstance(odd.command, UnknownCommand)
    assert good.command == Stop(reason="x", drain_timeout_s=120.0)


@pytest.mark.parametrize(
    "moment",
    ["infinity", "-infinity", "now", "tomorrow", "soon", "", "2026-13-45T00:00:00", "2026-11-20T25:00:00", "١"],
)
def test_a_moment_that_is_none_is_at_once(plane, session, run_id, moment):
    data = json.dumps({"phase": "WARMUP", "effective_at": moment})
    insert_events(plane, run_id, [("SET_PHASE", data)])

    (event,) = poll(session, run_id, 0)

    assert event.due_in_ms is None


@pytest.mark.parametrize("offset_ms", [-86_400_000, -1_500, 2_000, 2_345, 3_600_007])
def test_the_time_until_an_event_is_due_is_computed_by_the_server(session, run_id, term, offset_ms):
    before = run_status.server_time(session)
    moment = before + timedelta(milliseconds=offset_ms, microseconds=250)
    emit(session, retries(), term, NewEvent(command=SetPhase(phase=Phase.WARMUP, effective_at=moment.isoformat())))

    (event,) = poll(session, run_id, 0)
    after = run_status.server_time(session)

    assert event.due_in_ms is not None
    latest, earliest = (moment - before) / timedelta(milliseconds=1), (moment - after) / timedelta(milliseconds=1)
    assert earliest - 1 <= event.due_in_ms <= latest + 1


def test_an_event_without_a_moment_is_due_at_once(session, run_id, term):
    emit(session, retries(), term, start())

    (event,) = poll(session, run_id, 0)

    assert event.due_in_ms is None


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        (Recipient(), ["w0", "w1", "w2"]),
        (Recipient(scope=EventScope.WORKER, worker_id="w1"), ["w1"]),
        (Recipient(scope=EventScope.WORKER_GROUP, worker_group_id=2), ["w2"]),
        (Recipient(scope=EventScope.WORKER, worker_id="W1"), []),
        (Recipient(scope=EventScope.WORKER), []),
        (Recipient(scope=EventScope.WORKER_GROUP), []),
    ],
    ids=str,
)
def test_an_event_reaches_whom_it_is_for(session, run_id, term, address, reached):
    emit(session, retries(), term, NewEvent(command=SetWorkerTarget(target_connections=1), address=address))

    (event,) = poll(session, run_id, 0)

    assert [f"w{number}" for number in range(3) if event.address.includes(f"w{number}", number)] == reached


def test_a_reader_raises_when_it_cannot_read(server, session, run_id):
    server.fault(match="FROM RUN_CONTROL_EVENTS", kind="http_status", status=503)

    with pytest.raises(ControlFailed):
        poll(session, run_id, 0)
    with pytest.raises(ControlFailed):
        list(catch_up(session, run_id, 0))
