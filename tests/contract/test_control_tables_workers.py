"""What workers append, through the real driver: every column comes back as it was written."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.control.session import ControlSession, load_queries, query_files
from loadgen.control.tables import query_executions, run_measurements, run_status, test_logs, value_pools
from loadgen.control.tables.run_measurements import MetricsSnapshot
from loadgen.metrics.window import WindowRow
from loadgen.model.run import Phase
from loadgen.workload.pools import CHUNK_BYTES_MAX, Pool, to_chunks
from tests.cases import in_one_test
from tests.contract.control_builders import HOSTILE, MOMENT, appends, raw_count
from tests.control_plane import ControlPlane, retries
from tests.processes import wait_until

# --- every statement -------------------------------------------------------------------------------------------------


QUERIES = [
    query.limited(1) if query.takes_limit else query for name in query_files() for query in load_queries(name).values()
]
BOUND = {
    "run_status.publish": 1,  # GREATEST takes no text
    "run_leases.join": "2",  # claim_first has the lease 1 of run 1
    "schedules.store_failure_first": "2",  # settle_first has the row of schedule 1
}


@in_one_test("query", QUERIES)
def test_every_named_query_is_accepted(session, query):
    binds = [BOUND.get(query.name, "1")] * query.binds

    if query.sql.startswith("SELECT"):
        session.fetch(query, *binds)
    elif "FLATTEN" in query.sql:
        session.execute(query, *["[]"] * query.binds)
    else:
        session.execute(query, *binds)


# --- window results --------------------------------------------------------------------------------------------------


def window(**more: Any) -> WindowRow:
    fields: dict[str, Any] = {
        "worker_id": "w0",
        "window_id": 1,
        "epoch": 3,
        "phase": Phase.MEASUREMENT,
        "step_id": None,
    }
    fields |= {"seconds": 60.000123, "counts": '{"read":[1,2]}', "buckets": "{}"}
    return WindowRow(**(fields | more))


def test_windows_come_back_as_they_were_written(session, run_id):
    windows = [
        window(),
        window(window_id=2, step_id=7, phase=Phase.WARMUP, seconds=0.1, buckets='{"é\'":"x"}'),
        window(worker_id="w1", counts="x" * 500_000),
    ]
    for one in reversed(windows):
        run_measurements.append_window(session, retries(), run_id, one)

    assert run_measurements.read_windows(session, run_id) == tuple(windows)
    assert run_measurements.read_windows(session, "another run") == ()


def test_a_window_is_appended_once_after_retries(plane, session, run_id):
    run_measurements.append_window(session, retries(), run_id, window())
    run_measurements.append_window(session, retries(), run_id, window(seconds=99.0))

    assert run_measurements.read_windows(session, run_id) == (window(),)
    assert raw_count(plane, "WINDOW_RESULTS", run_id) == 1


def statements_on(plane: ControlPlane, table: str, since_ms: float) -> list[str]:
    return [line["sql_text"] for line in plane.server.history(since_ms=since_ms) if table in line["sql_text"]]


@pytest.mark.parametrize("kind", ["drop_reply", "reset", None])
def test_a_window_of_the_first_process_is_looked_for_only_when_an_answer_is_lost(plane, session, run_id, kind):
    since_ms = plane.server.now_ms()
    if kind is not None:
        plane.server.fault(match="INSERT INTO WINDOW_RESULTS", kind=kind, count=1)

    run_measurements.append_window(session, retries(), run_id, window(), fresh=True)

    texts = statements_on(plane, "WINDOW_RESULTS", since_ms)
    assert any(text.startswith("SELECT COUNT(*)") for text in texts) is (kind is not None)
    assert run_measurements.read_windows(session, run_id) == (window(),)
    assert raw_count(plane, "WINDOW_RESULTS", run_id) == 1


def test_a_statement_that_is_executed_late_does_not_count_twice(plane, server, session):
    """Its client has given up, looked, found nothing and sent it again; then the first one arrives after all."""
    impatient = ControlSession(plane.place, role="test", environ=plane.environ, statement_limit_s=1)

    def came_late() -> bool:
        """Not so when we were slower than the request that is held."""
        run_id, since_ms = str(uuid.uuid4()), server.now_ms()
        server.fault(match="INSERT INTO WINDOW_RESULTS", kind="latency", ms=4_000, count=1)

        run_measurements.append_window(impatient, retries(attempts=50), run_id, window())

        requests = f"/__loadgen/journal?match=INSERT%20INTO%20WINDOW_RESULTS&since={since_ms}"
        held = lambda: any(entry["outcome"] == "fault latency" for entry in server.ask(requests))  # noqa: E731
        wait_until(held, "the first one has arrived")
        assert run_measurements.read_windows(session, run_id) == (window(),)
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
    value_pools.store(session, retries(), run_id, Pool("all kinds", SCALARS))

    loaded = value_pools.load(session, retries(), run_id)

    assert list(loaded) == ["all kinds"]
    assert loaded["all kinds"].values == SCALARS
    assert [type(value) for value in loaded["all kinds"].values] == [type(value) for value in SCALARS]


def test_a_large_pool_is_stored_in_chunks_with_one_statement_each(plane, session, run_id):
    large = Pool("large", tuple(f"{number:06d}" * 40 for number in range(9_000)))
    small = Pool("a.small 'one'", (1, 2, 3))
    since_ms = plane.server.now_ms()

    for pool in (large, small):
        value_pools.store(session, retries(), run_id, pool)

    assert len(list(to_chunks(large))) == 3
    assert [text.split()[0] for text in statements_on(plane, "VALUE_POOLS", since_ms)] == ["INSERT"] * 4
    assert raw_count(plane, "VALUE_POOLS", run_id) == 4
    assert value_pools.load(session, retries(), run_id) == {"large": large, "a.small 'one'": small}
    assert value_pools.load(session, retries(), "another run") == {}


def test_a_value_as_large_as_a_chunk_can_be_stored(session, run_id):
    pool = Pool("p", ("x" * (CHUNK_BYTES_MAX - 200), "y"))

    value_pools.store(session, retries(), run_id, pool)

    assert value_pools.load(session, retries(), run_id) == {"p": pool}


# --- snapshots -------------------------------------------------------------------------------------------------------


def snapshot(run_id: str, **more: Any) -> MetricsSnapshot:
    fields: dict[str, Any] = {"run_id": run_id, "test_id": "t", "worker_id": "w0", "worker_group_id": 0}
    fields |= {"worker_group_count": 2, "timestamp": MOMENT, "elapsed_seconds": 1.25, "phase": "WARMUP"}
    fields |= {"total_queries": 5, "read_count": 3, "write_count": 2, "error_count": 0, "qps": 5.5}
    fields |= {f"{name}_latency_ms": 0.125 for name in ("p50", "p95", "p99", "avg", "min", "max")}
    fields |= {"active_connections": 4, "target_connections": 8, "cpu_percent": 12.5, "memory_percent": 3.25}
    return MetricsSnapshot(**(fields | {"custom_metrics": '{"b":[1,2.5,null,"x"],"a":{"c":true}}'} | more))


EMPTY = {f"{name}_latency_ms": None for name in ("p50", "p95", "p99", "avg", "min", "max")}

EMPTY |= {"phase": None, "cpu_percent": None, "memory_percent": None, "custom_metrics": None}


def alike(found: MetricsSnapshot, written: MetricsSnapshot) -> bool:
    """A VARIANT comes back as JSON, not as the same text."""
    metrics = [None if one.custom_metrics is None else json.loads(one.custom_metrics) for one in (found, written)]
    return replace(found, custom_metrics=None) == replace(written, custom_metrics=None) and metrics[0] == metrics[1]


def test_a_snapshot_comes_back_as_it_was_written(session, run_id):
    written = snapshot(run_id)

    run_measurements.append_snapshots(session, retries(), [written])

    (found,) = run_measurements.read_snapshots(session, run_id)
    assert alike(found, written)


@pytest.mark.parametrize("first", [0, 1], ids=["NULL first", "NULL last"])
def test_rows_with_and_without_values_share_a_batch(session, run_id, first):
    """The driver gives a column of binds one type: nulls, and whole numbers among fractions, must not change it."""
    pair = [
        snapshot(run_id, **EMPTY, qps=0, elapsed_seconds=1),
        snapshot(run_id, timestamp=MOMENT + timedelta(microseconds=1), qps=0.5, elapsed_seconds=1.75),
    ]

    run_measurements.append_snapshots(session, retries(), pair if first == 0 else pair[::-1])

    found = run_measurements.read_snapshots(session, run_id)
    assert all(alike(one, other) for one, other in zip(found, pair, strict=True))


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)
NUMBER = st.integers(-(10**38) + 1, 10**38 - 1)
FLOAT = st.floats(allow_nan=False, allow_infinity=False) | NUMBER.map(float)
VALUES = {
    "phase": st.none() | TEXT,
    "timestamp": st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(9999, 12, 31)),  # noqa: DTZ001
    "total_queries": NUMBER,
    "qps": FLOAT,
    "avg_latency_ms": st.none() | FLOAT,
    "custom_metrics": st.none() | st.dictionaries(TEXT, st.none() | st.booleans() | NUMBER | TEXT).map(json.dumps),
}


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=40))
def test_values_of_every_type_survive_a_batch(session, rows):
    run_id = str(uuid.uuid4())
    written = {str(number): snapshot(run_id, snapshot_id=str(number), **row) for number, row in enumerate(rows)}

    run_measurements.append_snapshots(session, retries(), list(written.values()))

    found = {one.snapshot_id: one for one in run_measurements.read_snapshots(session, run_id)}
    assert found.keys() == written.keys()
    assert [one for one in found.values() if not alike(one, written[one.snapshot_id])] == []


def test_2000_snapshots_are_four_statements(server, session, run_id):
    written = [
        snapshot(run_id, total_queries=number, timestamp=MOMENT + timedelta(seconds=number)) for number in range(2_000)
    ]
    before = appends(server, "WORKER_METRICS_SNAPSHOTS")

    run_measurements.append_snapshots(session, retries(), written)

    found = run_measurements.read_snapshots(session, run_id)
    assert appends(server, "WORKER_METRICS_SNAPSHOTS") - before == 4
    assert [one.snapshot_id for one in found] == [one.snapshot_id for one in written]
    assert [one.total_queries for one in found] == list(range(2_000))


def test_nothing_to_append_is_no_statement(session, run_id):
    run_measurements.append_snapshots(session, retries(), [])
    run_measurements.append_polls(session, retries(), [])
    test_logs.append(session, retries(), [])
    query_executions.append(session, retries(), [])


def test_metrics_that_json_cannot_hold_do_not_cost_the_batch(session, run_id):
    odd = r'{"a":NaN,"b":"\u0000","c":"\ud800"}'

    run_measurements.append_snapshots(session, retries(), [snapshot(run_id, custom_metrics=odd), snapshot(run_id)])

    found = run_measurements.read_snapshots(session, run_id)
    assert {"a": "nan", "b": "�", "c": "�"} in [json.loads(one.custom_metrics or "") for one in found]
    assert len(found) == 2


def test_the_newest_seconds_are_those_that_ended_within_some_time(session, run_id):
    now = run_status.server_time(session)
    written = [snapshot(run_id, timestamp=now - timedelta(seconds=age_s)) for age_s in (500, 90, 5)]
    run_measurements.append_snapshots(session, retries(), written)

    found = run_measurements.newest_snapshots(session, run_id, 300)

    assert [one.timestamp for one in found] == [one.timestamp for one in written[1:]]
