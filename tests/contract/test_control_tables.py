"""Events and the appended tables, through the real driver: every column comes back as it was written."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest

from loadgen.control import (
    batch,
    find_max_step_history,
    query_executions,
    run_status,
    test_logs,
    test_results,
    value_pools,
    warehouse_poll_snapshots,
    window_results,
    worker_metrics_snapshots,
)
from loadgen.control.find_max_step_history import StepRecord
from loadgen.control.queries import Query, queries, tables
from loadgen.control.query_executions import Execution
from loadgen.control.run_control_events import BATCH, NewEvent, catch_up, emit, poll
from loadgen.control.run_leases import Term
from loadgen.control.run_status import Fenced
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.test_logs import LogRow
from loadgen.control.test_results import ResultRow
from loadgen.control.warehouse_poll_snapshots import WarehousePoll
from loadgen.control.window_results import WindowResult
from loadgen.control.worker_metrics_snapshots import Snapshot
from loadgen.model.event import (
    Address,
    Scope,
    SetPhase,
    SetWorkerTarget,
    Start,
    Stop,
    Unknown,
)
from loadgen.model.run import Phase
from loadgen.workload.pools import CHUNK_BYTES_MAX, Pool, to_chunks
from tests.control_plane import ControlPlane, patience
from tests.embedded_server import EmbeddedServer
from tests.processes import wait_until

MOMENT = datetime(2026, 11, 20, 1, 2, 3, 456789)  # noqa: DTZ001  naive UTC, as the tables have it
HOSTILE = 'it\'s "odd" \\ ; -- ? 😀 \0 \ud800 \x1b[31m </script>'
STORED = 'it\'s "odd" \\ ; -- ? 😀 \ufffd \ufffd \x1b[31m </script>'


@pytest.fixture
def session(plane: ControlPlane) -> ControlSession:
    return plane.session


@pytest.fixture
def run_id() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def term(plane: ControlPlane, run_id: str) -> Term:
    return plane.claim(run_id, ttl_s=600)


def raw_count(plane: ControlPlane, table: str, run_id: str) -> int:
    return int(plane.rows(f"SELECT COUNT(*) FROM {table} WHERE RUN_ID = ?", run_id)[0][0])


# --- every statement -------------------------------------------------------------------------------------------------


QUERIES = [query for name in tables() for query in queries(name).values()]
BOUND = {"run_status.publish": 1, "run_leases.join": "2"}  # GREATEST takes no text; claim_first has the term 1 of run 1


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_every_named_query_is_accepted(session, query):
    binds = [BOUND.get(query.name, "1")] * query.binds

    if query.sql.startswith("SELECT"):
        session.fetch(query, *binds)
    elif "FROM VALUES" in query.sql:
        session.append(query, [binds])
    else:
        session.execute(query, *binds)


# --- events: writing -------------------------------------------------------------------------------------------------

SENT: list[tuple[Any, Address]] = [
    (Start(expected_workers=3), Address()),
    (SetPhase(phase=Phase.WARMUP), Address()),
    (
        SetPhase(phase=Phase.MEASUREMENT, step_id=2, duration_ms=1500.5, effective_at=MOMENT.isoformat()),
        Address(scope=Scope.RUN),
    ),
    (
        SetWorkerTarget(target_connections=7, step_id=1, ramp_s=2.5, reason='it\'s "step" 1 😀'),
        Address(scope=Scope.WORKER, worker_id="w'1"),
    ),
    (SetWorkerTarget(target_connections=0), Address(scope=Scope.WORKER_GROUP, worker_group_id=0)),
    (Stop(reason="done", drain_timeout_s=20.0), Address()),
]


def start(workers: int = 3) -> NewEvent:
    return NewEvent(command=Start(expected_workers=workers))


def test_events_come_back_as_they_were_sent_numbered_from_1(session, run_id, term):
    sent = [NewEvent(command=command, address=address) for command, address in SENT]
    numbers = [emit(session, patience(), term, new) for new in sent]

    events = poll(session, run_id, 0)

    assert numbers == [1, 2, 3, 4, 5, 6]
    assert [event.sequence_id for event in events] == numbers
    assert [(event.command, event.address) for event in events] == SENT
    assert [event.event_id for event in events] == [new.event_id for new in sent]
    assert {event.epoch for event in events} == {1}


def test_the_age_of_an_event_is_told_by_the_server(plane, session, run_id, term):
    began = run_status.server_time(session)
    emit(session, patience(), term, start())
    plane.change("UPDATE RUN_CONTROL_EVENTS SET CREATED_AT = DATEADD(second, -90, CREATED_AT) WHERE RUN_ID = ?", run_id)

    (event,) = poll(session, run_id, 0)

    assert 90_000 <= event.age_ms <= 90_000 + plane.passed_ms(began)


def test_an_event_that_is_sent_again_is_the_same_event(session, run_id, term):
    first = start(3)
    numbers = [emit(session, patience(), term, new) for new in (first, start(9))]

    again = emit(session, patience(), term, replace(first, command=Start(expected_workers=4)))

    assert (numbers, again) == ([1, 2], 1)
    commands = [event.command for event in poll(session, run_id, 0)]
    assert commands == [Start(expected_workers=3), Start(expected_workers=9)]


def test_runs_are_numbered_each_on_its_own(plane, session):
    terms = [plane.claim(str(uuid.uuid4()), ttl_s=600) for _ in range(2)]

    numbers = [emit(session, patience(), term, start()) for term in terms * 2]

    assert numbers == [1, 1, 2, 2]


def test_a_term_that_is_over_sends_nothing(plane, session, run_id, term):
    emit(session, patience(), term, start())
    plane.expire(run_id, since_s=1)

    with pytest.raises(Fenced):
        emit(session, patience(), term, start())

    assert len(poll(session, run_id, 0)) == 1


def test_a_successor_goes_on_with_the_numbers_and_the_predecessor_does_not(plane, session, run_id, term):
    emit(session, patience(), term, start())
    plane.expire(run_id, since_s=30)
    successor = plane.claim(run_id, ttl_s=600)

    with pytest.raises(Fenced):
        emit(session, patience(), term, start())
    number = emit(session, patience(), successor, start())

    assert number == 2
    assert [event.epoch for event in poll(session, run_id, 0)] == [1, 2]


@pytest.mark.parametrize("wrong", [{"owner": "somebody"}, {"epoch": 2}, {"epoch": 0}, {"key": "another run"}])
def test_nobody_sends_in_the_name_of_a_term_that_is_not_his(session, run_id, term, wrong):
    with pytest.raises(Fenced):
        emit(session, patience(), replace(term, **wrong), start())

    assert poll(session, run_id, 0) == []


def test_an_event_that_landed_before_the_term_ended_is_not_lost(plane, server, session, run_id, term):
    """The answer is lost, the term ends, and only then is the row looked for."""
    server.fault(match="INSERT INTO RUN_CONTROL_EVENTS", kind="drop_reply", count=1)
    ended: list[Any] = []

    number = emit(session, patience(note=lambda _: ended.append(plane.expire(run_id, since_s=1))), term, start())

    assert ended
    assert number == 1
    assert len(poll(session, run_id, 0)) == 1


@pytest.mark.parametrize("kind", ["drop_reply", "reset", "truncate", "http_status"])
@pytest.mark.parametrize("match", ["INSERT INTO RUN_CONTROL_EVENTS", "SELECT SEQUENCE_ID FROM RUN_CONTROL_EVENTS"])
def test_a_lost_answer_makes_no_second_event(server, session, run_id, term, kind, match):
    server.fault(match=match, kind=kind, count=2)

    sent = [start(), start(), start()]
    numbers = [emit(session, patience(), term, new) for new in sent]

    assert numbers == [1, 2, 3]
    assert [event.event_id for event in poll(session, run_id, 0)] == [new.event_id for new in sent]


def test_hostile_reasons_neither_stop_an_event_nor_change_when_it_is_due(session, run_id, term):
    soon = (run_status.server_time(session) + timedelta(seconds=60)).isoformat()
    command = SetWorkerTarget(target_connections=1, reason=HOSTILE, effective_at=soon)

    emit(session, patience(), term, NewEvent(command=command))

    (event,) = poll(session, run_id, 0)
    assert event.command == replace(command, reason=STORED)
    assert event.due_in_ms is not None


# --- events: reading -------------------------------------------------------------------------------------------------


def insert_events(plane: ControlPlane, run_id: str, events: list[tuple[str, str]]) -> None:
    """Rows as another version, or an accident, might leave them."""
    sql = (
        "INSERT INTO RUN_CONTROL_EVENTS"
        " (RUN_ID, SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, CREATED_AT)"
        " SELECT column1, column2, column3, 1, column4, column5, SYSDATE() FROM VALUES (?, ?, ?, ?, ?)"
    )
    rows = [(run_id, number, str(uuid.uuid4()), kind, data) for number, (kind, data) in enumerate(events, 1)]
    plane.session.append(Query(name="test", sql=sql, binds=5), rows)


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
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_event_does_not_stop_the_reader(plane, session, run_id, data):
    insert_events(plane, run_id, [("SET_WORKER_TARGET", data), ("START", '{"expected_workers":2}')])

    odd, good = poll(session, run_id, 0)

    assert isinstance(odd.command, Unknown)
    assert odd.command.event_type == "SET_WORKER_TARGET"
    assert good.command == Start(expected_workers=2)


@pytest.mark.parametrize("kind", ["PAUSE", "start", "", "'; DROP TABLE X; --"])
def test_an_unknown_type_is_passed_over(plane, session, run_id, kind):
    insert_events(plane, run_id, [(kind, '{"scope":"RUN"}'), ("STOP", '{"reason":"x"}')])

    odd, good = poll(session, run_id, 0)

    assert isinstance(odd.command, Unknown)
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
def test_how_long_until_an_event_is_due_is_told_by_the_server(session, run_id, term, offset_ms):
    before = run_status.server_time(session)
    moment = before + timedelta(milliseconds=offset_ms, microseconds=250)
    emit(session, patience(), term, NewEvent(command=SetPhase(phase=Phase.WARMUP, effective_at=moment.isoformat())))

    (event,) = poll(session, run_id, 0)
    after = run_status.server_time(session)

    assert event.due_in_ms is not None
    latest, earliest = (moment - before) / timedelta(milliseconds=1), (moment - after) / timedelta(milliseconds=1)
    assert earliest - 1 <= event.due_in_ms <= latest + 1


def test_an_event_without_a_moment_is_due_at_once(session, run_id, term):
    emit(session, patience(), term, start())

    (event,) = poll(session, run_id, 0)

    assert event.due_in_ms is None


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        (Address(), ["w0", "w1", "w2"]),
        (Address(scope=Scope.WORKER, worker_id="w1"), ["w1"]),
        (Address(scope=Scope.WORKER_GROUP, worker_group_id=2), ["w2"]),
        (Address(scope=Scope.WORKER, worker_id="W1"), []),
        (Address(scope=Scope.WORKER), []),
        (Address(scope=Scope.WORKER_GROUP), []),
    ],
    ids=str,
)
def test_an_event_reaches_whom_it_is_for(session, run_id, term, address, reached):
    emit(session, patience(), term, NewEvent(command=SetWorkerTarget(target_connections=1), address=address))

    (event,) = poll(session, run_id, 0)

    assert [f"w{number}" for number in range(3) if event.address.includes(f"w{number}", number)] == reached


def test_a_reader_raises_when_it_cannot_read(server, session, run_id):
    server.fault(match="FROM RUN_CONTROL_EVENTS", kind="http_status", status=503)

    with pytest.raises(ControlFailed):
        poll(session, run_id, 0)
    with pytest.raises(ControlFailed):
        list(catch_up(session, run_id, 0))


# --- window results --------------------------------------------------------------------------------------------------


def window(**more: Any) -> WindowResult:
    fields: dict[str, Any] = {
        "worker_id": "w0",
        "window_id": 1,
        "epoch": 3,
        "phase": Phase.MEASUREMENT,
        "step_id": None,
    }
    fields |= {"seconds": 60.000123, "counts": '{"read":[1,2]}', "buckets": "{}"}
    return WindowResult(**(fields | more))


def test_windows_come_back_as_they_were_written(session, run_id):
    windows = [
        window(),
        window(window_id=2, step_id=7, phase=Phase.WARMUP, seconds=0.1, buckets='{"é\'":"x"}'),
        window(worker_id="w1", counts="x" * 500_000),
    ]
    for one in reversed(windows):
        window_results.append(session, patience(), run_id, one)

    assert window_results.read(session, run_id) == tuple(windows)
    assert window_results.read(session, "another run") == ()


def test_a_window_is_appended_once_whoever_tries_again(plane, session, run_id):
    window_results.append(session, patience(), run_id, window())
    window_results.append(session, patience(), run_id, window(seconds=99.0))

    assert window_results.read(session, run_id) == (window(),)
    assert raw_count(plane, "WINDOW_RESULTS", run_id) == 1


def test_a_statement_that_is_executed_late_does_not_count_twice(plane, server, session):
    """Its client has given up, looked, found nothing and sent it again; then the first one arrives after all."""
    impatient = ControlSession(plane.place, role="test", environ=plane.environ, statement_limit_s=1)

    def came_late() -> bool:
        """Not so when we were slower than the request that is held."""
        run_id, since_ms = str(uuid.uuid4()), server.now_ms()
        server.fault(match="INSERT INTO WINDOW_RESULTS", kind="latency", ms=4_000, count=1)

        window_results.append(impatient, patience(attempts=50), run_id, window())

        requests = f"/__loadgen/journal?match=INSERT%20INTO%20WINDOW_RESULTS&since={since_ms}"
        held = lambda: any(entry["outcome"] == "fault latency" for entry in server.ask(requests))  # noqa: E731
        wait_until(held, "the first one has arrived")
        assert window_results.read(session, run_id) == (window(),)
        return raw_count(plane, "WINDOW_RESULTS", run_id) == 2

    wait_until(came_late, "the first one arrives after the second")
    impatient.close()


# --- value pools -----------------------------------------------------------------------------------------------------

SCALARS = (
    *("text", "", HOSTILE, "NULL", "é😀", 0, -1, 2**70, 1.5, float("inf"), 1e-300, True, False, None),
    *(Decimal("1.50"), Decimal("-1E+3"), b"", b"\x00\xff", datetime(2026, 1, 2, 3, 4, 5, 6)),  # noqa: DTZ001
    *(datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2), time(1, 2, 3, 4)),
)


def test_a_pool_keeps_every_kind_of_value(session, run_id):
    value_pools.store(session, patience(), run_id, Pool("all kinds", SCALARS))

    loaded = value_pools.load(session, patience(), run_id)

    assert list(loaded) == ["all kinds"]
    assert loaded["all kinds"].values == SCALARS
    assert [type(value) for value in loaded["all kinds"].values] == [type(value) for value in SCALARS]


def test_a_large_pool_is_stored_in_chunks_and_only_once(plane, session, run_id):
    large = Pool("large", tuple(f"{number:06d}" * 40 for number in range(9_000)))
    small = Pool("a.small 'one'", (1, 2, 3))

    for pool in (large, small, large):
        value_pools.store(session, patience(), run_id, pool)

    assert len(list(to_chunks(large))) == 3
    assert raw_count(plane, "VALUE_POOLS", run_id) == 4
    assert value_pools.load(session, patience(), run_id) == {"large": large, "a.small 'one'": small}
    assert value_pools.load(session, patience(), "another run") == {}


def test_a_value_as_large_as_a_chunk_can_be_stored(session, run_id):
    pool = Pool("p", ("x" * (CHUNK_BYTES_MAX - 200), "y"))

    value_pools.store(session, patience(), run_id, pool)

    assert value_pools.load(session, patience(), run_id) == {"p": pool}


# --- snapshots -------------------------------------------------------------------------------------------------------


def snapshot(run_id: str, **more: Any) -> Snapshot:
    fields: dict[str, Any] = {"run_id": run_id, "test_id": "t", "worker_id": "w0", "worker_group_id": 0}
    fields |= {"worker_group_count": 2, "timestamp": MOMENT, "elapsed_seconds": 1.25, "phase": "WARMUP"}
    fields |= {"total_queries": 5, "read_count": 3, "write_count": 2, "error_count": 0, "qps": 5.5}
    fields |= {f"{name}_latency_ms": 0.125 for name in ("p50", "p95", "p99", "avg", "min", "max")}
    fields |= {"active_connections": 4, "target_connections": 8, "cpu_percent": 12.5, "memory_percent": 3.25}
    return Snapshot(**(fields | {"custom_metrics": '{"b":[1,2.5,null,"x"],"a":{"c":true}}'} | more))


EMPTY = {f"{name}_latency_ms": None for name in ("p50", "p95", "p99", "avg", "min", "max")}
EMPTY |= {"phase": None, "cpu_percent": None, "memory_percent": None, "custom_metrics": None}


def alike(found: Snapshot, written: Snapshot) -> bool:
    """A VARIANT comes back as JSON, not as the same text."""
    metrics = [None if one.custom_metrics is None else json.loads(one.custom_metrics) for one in (found, written)]
    return replace(found, custom_metrics=None) == replace(written, custom_metrics=None) and metrics[0] == metrics[1]


def test_a_snapshot_comes_back_as_it_was_written(session, run_id):
    written = snapshot(run_id)

    worker_metrics_snapshots.append(session, patience(), [written])

    (found,) = worker_metrics_snapshots.read(session, run_id)
    assert alike(found, written)


@pytest.mark.parametrize("first", [0, 1], ids=["NULL first", "NULL last"])
def test_rows_with_and_without_values_share_a_batch(session, run_id, first):
    """The driver gives a column of binds one type: nulls, and whole numbers among fractions, must not change it."""
    pair = [
        snapshot(run_id, **EMPTY, qps=0, elapsed_seconds=1),
        snapshot(run_id, timestamp=MOMENT + timedelta(microseconds=1), qps=0.5, elapsed_seconds=1.75),
    ]

    worker_metrics_snapshots.append(session, patience(), pair if first == 0 else pair[::-1])

    found = worker_metrics_snapshots.read(session, run_id)
    assert all(alike(one, other) for one, other in zip(found, pair, strict=True))


def appends(server: EmbeddedServer, table: str) -> int:
    """How often rows of a table were sent. Driver 5.x asks first, without binds, what the statement is like."""
    lines = server.ask(f"/__loadgen/journal?match=INTO%20{table}")
    return sum(line["bind_count"] > 0 for line in lines)


def test_2000_snapshots_are_four_statements(server, session, run_id):
    written = [
        snapshot(run_id, total_queries=number, timestamp=MOMENT + timedelta(seconds=number)) for number in range(2_000)
    ]
    before = appends(server, "WORKER_METRICS_SNAPSHOTS")

    worker_metrics_snapshots.append(session, patience(), written)

    found = worker_metrics_snapshots.read(session, run_id)
    assert appends(server, "WORKER_METRICS_SNAPSHOTS") - before == 4
    assert [one.snapshot_id for one in found] == [one.snapshot_id for one in written]
    assert [one.total_queries for one in found] == list(range(2_000))


def test_nothing_to_append_is_no_statement(session, run_id):
    worker_metrics_snapshots.append(session, patience(), [])
    warehouse_poll_snapshots.append(session, patience(), [])
    test_logs.append(session, patience(), [])
    query_executions.append(session, patience(), [])


def test_metrics_that_json_cannot_hold_do_not_cost_the_batch(session, run_id):
    odd = r'{"a":NaN,"b":"\u0000","c":"\ud800"}'

    worker_metrics_snapshots.append(session, patience(), [snapshot(run_id, custom_metrics=odd), snapshot(run_id)])

    found = worker_metrics_snapshots.read(session, run_id)
    assert {"a": "nan", "b": "�", "c": "�"} in [json.loads(one.custom_metrics or "") for one in found]
    assert len(found) == 2


# --- query executions ------------------------------------------------------------------------------------------------


def execution(run_id: str, **more: Any) -> Execution:
    fields: dict[str, Any] = {"execution_id": str(uuid.uuid4()), "run_id": run_id, "test_id": "t", "worker_id": "w0"}
    fields |= {"query_id": "01b", "statement_name": "by key", "query_kind": "READ", "phase": Phase.MEASUREMENT}
    fields |= {"step_id": 4, "start_time": MOMENT, "due_lag_ms": 0.25, "duration_ms": 12.75, "rows_affected": 3}
    fields |= {"success": False, "error_category": "QUERY_TIMEOUT", "error_code": 630, "error": "it's late"}
    return Execution(**(fields | more))


WENT_WELL: dict[str, Any] = {"success": True, "error_category": None, "error_code": None, "error": None}
WENT_WELL |= {"query_id": None, "step_id": None, "rows_affected": None}


def test_executions_come_back_as_they_were_written(session, run_id):
    written = [
        execution(run_id),
        execution(run_id, **WENT_WELL, start_time=MOMENT + timedelta(microseconds=1)),
        execution(run_id, worker_id="w1", start_time=MOMENT + timedelta(microseconds=2), error=HOSTILE),
    ]

    query_executions.append(session, patience(), written[:2])
    query_executions.append(session, patience(), written[2:])

    found = query_executions.read(session, run_id, 100)
    assert [one for one, _ in found] == [*written[:2], replace(written[2], error=STORED)]
    assert {status for _, status in found} == {"PENDING"}
    assert query_executions.read(session, run_id, 1) == found[:1]
    assert [query_executions.count(session, run_id, worker) for worker in ("w0", "w1", "w2")] == [2, 1, 0]


def test_an_error_text_of_any_length_does_not_cost_the_batch(session, run_id):
    query_executions.append(session, patience(), [execution(run_id), execution(run_id, error="é" * 100_000)])

    lengths = sorted(len(one.error or "") for one, _ in query_executions.read(session, run_id, 2))

    assert lengths == [9, query_executions.ERROR_MAX]


def test_an_upload_is_split_long_before_the_driver_would_make_a_stage(server, plane, session, run_id):
    """It uploads so many values to one of its own, which workers may not do; only the embedded server forbids it to."""
    count = batch.STAGED_VALUES // queries("query_executions")["append"].binds + 1
    written = [execution(run_id) for _ in range(count)]
    before = appends(server, "QUERY_EXECUTIONS")

    query_executions.append(session, patience(), written)
    after = appends(server, "QUERY_EXECUTIONS")
    query_executions.append(session, patience(), written)  # again, after a crash

    assert after - before == -(-count // batch.ROWS_MAX) == 8
    assert appends(server, "QUERY_EXECUTIONS") == after
    assert query_executions.count(session, run_id, "w0") == count
    assert raw_count(plane, "QUERY_EXECUTIONS", run_id) == count


# --- results, logs, steps, polls -------------------------------------------------------------------------------------


def result(run_id: str, **more: Any) -> ResultRow:
    fields: dict[str, Any] = {"test_id": run_id, "run_id": run_id, "worker_id": None, "worker_group_id": None}
    fields |= {"template_id": "t" * 64, "status": "COMPLETED", "created_at": MOMENT, "total_operations": 2**40}
    fields |= {"read_operations": 1, "write_operations": 2, "failed_operations": 0, "p50_latency_ms": 1.5}
    fields |= {"p95_latency_ms": 2.5, "p99_latency_ms": 3.5, "avg_latency_ms": 1.75}
    return ResultRow(**(fields | {"find_max_result": '{"best":16}', "summary": '{"b":1,"a":[]}'} | more))


NO_LATENCY = dict.fromkeys(["p50_latency_ms", "p95_latency_ms", "p99_latency_ms", "avg_latency_ms"])


def test_results_come_back_the_runs_own_first(session, run_id):
    bare: dict[str, Any] = {"find_max_result": None, "summary": None, **NO_LATENCY}
    rows = [
        result(run_id),
        result(run_id, test_id="z" + run_id[1:], worker_id="w0", worker_group_id=0, **bare),
        result(run_id, test_id="-" + run_id[1:], worker_id="w1", worker_group_id=1, status="FAILED"),
    ]
    before = run_status.server_time(session)
    for row in reversed(rows):
        test_results.append(session, patience(), row)

    found = test_results.read(session, run_id)

    plain = [replace(row, find_max_result=None, summary=None) for row in rows]
    assert [replace(row, find_max_result=None, summary=None) for row, _ in found] == plain
    assert [row.summary and json.loads(row.summary) for row, _ in found] == [{"b": 1, "a": []}, None, {"b": 1, "a": []}]
    assert [row.find_max_result and json.loads(row.find_max_result) for row, _ in found] == [
        {"best": 16},
        None,
        {"best": 16},
    ]
    assert all(before <= ended <= run_status.server_time(session) for _, ended in found)


def test_a_result_is_appended_once_by_whoever_comes_first(plane, session, run_id):
    test_results.append(session, patience(), result(run_id))
    test_results.append(session, patience(), result(run_id, status="FAILED"))

    assert [row.status for row, _ in test_results.read(session, run_id)] == ["COMPLETED"]
    assert raw_count(plane, "TEST_RESULTS", run_id) == 1


def test_a_summary_with_hostile_texts_is_stored(session, run_id):
    test_results.append(session, patience(), result(run_id, summary=json.dumps({"errors": [HOSTILE]})))

    ((row, _),) = test_results.read(session, run_id)
    assert json.loads(row.summary or "") == {"errors": [STORED]}


def log_row(run_id: str, **more: Any) -> LogRow:
    fields: dict[str, Any] = {"run_id": run_id, "test_id": None, "worker_id": None, "level": "INFO", "message": "m"}
    return LogRow(**(fields | {"details": None, "timestamp": MOMENT} | more))


def test_logs_come_back_as_they_were_written_oldest_first(session, run_id):
    full = {"test_id": "t", "worker_id": "w0", "level": "ERROR", "details": {"stack": ["a", "b"], "n": None}}
    rows = [
        log_row(run_id, message="first"),
        log_row(run_id, message="", timestamp=MOMENT + timedelta(microseconds=1), **full),
        log_row(run_id, message=HOSTILE, timestamp=MOMENT + timedelta(seconds=1)),
    ]

    test_logs.append(session, patience(), rows[::-1])

    assert test_logs.newest(session, run_id, 10) == (*rows[:2], replace(rows[2], message=STORED))
    assert test_logs.newest(session, run_id, 2)[0] == rows[1]
    assert test_logs.newest(session, "another run", 10) == ()


def test_no_log_line_costs_another(session, run_id):
    circle: dict[str, Any] = {}
    circle["again"] = circle
    odd: list[Any] = [{"a": HOSTILE}, {"a": float("nan")}, {("t", 1): object}, circle, {"a": "x" * 2_000_000}]
    rows = [log_row(run_id, message="x" * 100_000), *(log_row(run_id, details=details) for details in odd)]

    test_logs.append(session, patience(), rows)

    found = test_logs.newest(session, run_id, 100)
    assert {row.log_id for row in found} == {row.log_id for row in rows}
    assert max(len(row.message) for row in found) == test_logs.MESSAGE_MAX
    assert {"a": STORED} in [row.details for row in found]


def test_many_logs_of_any_size_are_all_there(session, run_id):
    rows = [log_row(run_id, message="é" * 4_000, details={"n": number}) for number in range(700)]

    test_logs.append(session, patience(), rows)

    assert {row.log_id for row in test_logs.newest(session, run_id, 1_000)} == {row.log_id for row in rows}


def step(run_id: str, **more: Any) -> StepRecord:
    fields: dict[str, Any] = {"run_id": run_id, "step_number": 1, "target_connections": 8, "window_start_time": MOMENT}
    fields |= {"window_end_time": MOMENT + timedelta(seconds=10), "succeeded": 100, "failed": 1, "qps": 10.1}
    fields |= {"p50_latency_ms": 1.0, "p95_latency_ms": 2.0, "p99_latency_ms": 3.0, "error_rate": 0.01}
    return StepRecord(**(fields | {"queue_seen": True, "outcome": "PASSED", "reason": "it held"} | more))


def test_steps_come_back_as_they_were_judged_the_first_time(plane, session, run_id):
    bare = dict.fromkeys(
        [
            "window_start_time",
            "window_end_time",
            "qps",
            "p50_latency_ms",
            "p95_latency_ms",
            "p99_latency_ms",
            "error_rate",
        ]
    )
    steps = [step(run_id), step(run_id, step_number=2, queue_seen=False, **bare), step(run_id, step_number=10)]

    for one in (*steps[::-1], step(run_id, outcome="FAILED")):
        find_max_step_history.append(session, patience(), one)

    assert find_max_step_history.read(session, run_id) == tuple(steps)
    assert raw_count(plane, "FIND_MAX_STEP_HISTORY", run_id) == 3


def test_a_reason_of_any_kind_is_kept(session, run_id):
    find_max_step_history.append(session, patience(), step(run_id, reason=HOSTILE + "x" * 5_000))

    (found,) = find_max_step_history.read(session, run_id)
    assert found.reason.startswith(STORED)
    assert len(found.reason) == find_max_step_history.REASON_MAX


def test_polls_of_the_warehouse_come_back_as_they_were_written(session, run_id):
    bare: dict[str, Any] = dict.fromkeys(["running", "queued", "started_clusters", "size", "raw"])
    full: dict[str, Any] = {
        "running": 3,
        "queued": 0,
        "started_clusters": 1,
        "size": "X-Small",
        "raw": json.dumps({"a": HOSTILE}),
    }
    polls = [
        WarehousePoll(run_id=run_id, timestamp=MOMENT, **full),
        WarehousePoll(run_id=run_id, timestamp=MOMENT + timedelta(microseconds=1), **bare),
    ]

    warehouse_poll_snapshots.append(session, patience(), polls)

    found = warehouse_poll_snapshots.read(session, run_id)
    assert [replace(one, raw=None) for one in found] == [replace(one, raw=None) for one in polls]
    assert json.loads(found[0].raw or "") == {"a": STORED}
    assert found[1].raw is None
