"""Events of a lease, when responses are lost and several write at once: real SQL through both majors of the
connector."""

from __future__ import annotations

import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from loadgen.clock import SystemClock
from loadgen.control.session import ControlSession, NamedQuery, clean_text
from loadgen.control.tables.run_control_events import BATCH, NewEvent, catch_up, emit, poll
from loadgen.control.tables.run_status import server_time
from loadgen.model.event import EventScope, Recipient, SetWorkerTarget, Stop, UnknownCommand
from tests.contract.lease_builders import FAULT_IDS, NOT_ANSWERED, start_event
from tests.control_plane import retries
from tests.processes import PATIENCE_S

pytestmark = pytest.mark.any_driver


@pytest.mark.parametrize("fault", NOT_ANSWERED, ids=FAULT_IDS)
@pytest.mark.parametrize("match", ["^INSERT INTO RUN_CONTROL_EVENTS", "^SELECT SEQUENCE_ID, CREATED_AT"])
def test_an_event_whose_answer_is_lost_is_there_once(plane, run_id, match, fault):
    term = plane.claim(run_id)
    emit(plane.session, retries(), term, start_event())
    plane.server.fault(match=match, count=1, **fault)
    new = start_event()

    assert emit(plane.session, retries(), term, new) == 2
    assert plane.events(run_id)[1:] == [(2, new.event_id, 1)]


def test_an_event_that_is_sent_again_keeps_its_number(plane, run_id):
    term = plane.claim(run_id)
    new = start_event()

    assert [emit(plane.session, retries(), term, new) for _ in range(3)] == [1, 1, 1]
    assert emit(plane.session, retries(), term, start_event()) == 2


def test_writers_at_once_leave_no_gap_and_readers_see_every_event_in_order(plane, run_id):
    term, writers, each = plane.claim(run_id), 4, 12
    sessions = [plane.open(f"writer {number}") for number in range(writers)]
    done = threading.Event()

    def write(session: ControlSession) -> list[int]:
        return [emit(session, retries(clock=SystemClock()), term, start_event()) for _ in range(each)]

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
    insert = NamedQuery(
        name="test",
        sql="INSERT INTO RUN_CONTROL_EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, CREATED_AT)"
        " SELECT VALUE[0]::VARCHAR, VALUE[1]::NUMBER, VALUE[2]::VARCHAR, 1, 'STOP', '{}', '2026-01-01'"
        " FROM TABLE(FLATTEN(INPUT => PARSE_JSON(?)))",
        binds=1,
    )
    count = 2 * BATCH + 1
    plane.session.append(insert, [(run_id, number, str(uuid.uuid4())) for number in range(count, 0, -1)])

    assert [event.sequence_id for event in catch_up(plane.session, run_id, 0)] == list(range(1, count + 1))
    assert [event.sequence_id for event in catch_up(plane.session, run_id, count - 1)] == [count]
    assert list(catch_up(plane.session, run_id, count)) == []


def test_an_unreadable_event_does_not_hide_the_next(plane, run_id):
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
    emit(plane.session, retries(), plane.claim(run_id), start_event())

    events = poll(plane.session, run_id, 0)

    assert [event.sequence_id for event in events] == list(range(1, len(odd) + 2))
    assert [isinstance(event.command, UnknownCommand) for event in events] == [True, True, True, False, True, False]
    assert all(event.due_in_ms is None for event in events)


def test_the_content_and_due_time_of_a_command_survive_the_transport(plane, run_id):
    moment = server_time(plane.session) + timedelta(hours=1)
    command = SetWorkerTarget(
        target_connections=64,
        step_id=3,
        ramp_s=1.5,
        effective_at=moment.isoformat(),
        reason="'; DROP TABLE RUN_LEASES; -- \\ \" 🙂 ?",
    )
    address = Recipient(scope=EventScope.WORKER, worker_id="w'1")
    emit(plane.session, retries(), plane.claim(run_id), NewEvent(command=command, address=address))

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

    emit(plane.session, retries(), plane.claim(run_id), NewEvent(command=command))

    (event,) = poll(plane.session, run_id, 0)
    assert event.command == replace(command, reason=clean_text(reason))
