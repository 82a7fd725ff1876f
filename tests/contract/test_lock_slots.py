"""A statement that waits for a lock holds no slot of its warehouse."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.contract.lock_builders import (
    CANCELED,
    ConcurrentSessions,
    _numbers,
    add,
    outcome,
)
from tests.embedded_server import EmbeddedServer
from tests.processes import wait_until

pytestmark = pytest.mark.any_driver


@pytest.fixture(scope="module")
def server(lenient: EmbeddedServer) -> EmbeddedServer:
    """Rows are locked and read again as in PostgreSQL."""
    return lenient


@pytest.fixture
def narrow(concurrent: ConcurrentSessions) -> Iterator[str]:
    """A warehouse that runs one statement at a time."""
    sql, name = concurrent.session(), f"NARROW_{next(_numbers)}"
    sql(f"CREATE WAREHOUSE {name} MAX_CONCURRENCY_LEVEL = 1")
    sql("USE WAREHOUSE COMPUTE_WH")
    yield name
    sql(f"DROP WAREHOUSE {name}")


def test_a_statement_that_waits_for_a_lock_holds_no_slot_and_its_wait_is_on_record(
    concurrent: ConcurrentSessions, server: EmbeddedServer, table: str, narrow: str
) -> None:
    tag = str(uuid.uuid4())
    holder = concurrent.session()
    waiter = concurrent.session(warehouse=narrow, QUERY_TAG=tag)
    reader = concurrent.session(warehouse=narrow)
    holder("BEGIN")
    holder(add(table, 1))

    waiting = concurrent.start(waiter.count, add(table, 1))
    concurrent.wait_blocked(f"UPDATE {table}", waiting)
    running = server.ask("/__loadgen/stats")["warehouses"][narrow]["running"]
    read = reader.value(f"SELECT N FROM {table} WHERE ID = 1")
    waited_ms = server.wait_server_ms(500)  # long enough for a hybrid statement to be recorded
    holder("COMMIT")

    assert outcome(waiting) == 1
    assert (running, read) == (0, 0)
    ((blocked_ms, execution_ms, elapsed_ms),) = holder(
        "SELECT TRANSACTION_BLOCKED_TIME, EXECUTION_TIME, TOTAL_ELAPSED_TIME FROM"
        " TABLE(INFORMATION_SCHEMA.QUERY_HISTORY())"
        " WHERE QUERY_TAG = ? AND QUERY_TYPE = 'UPDATE'",
        tag,
    )
    assert waited_ms - 1 <= blocked_ms <= elapsed_ms
    assert execution_ms <= elapsed_ms - blocked_ms + 1
    (entry,) = [
        entry for entry in server.ask(f"/__loadgen/history?tag={tag}") if entry["sql_text"].startswith("UPDATE")
    ]
    assert entry["total_ms"] - entry["execution_ms"] - entry["queued_ms"] >= waited_ms


def test_commit_and_rollback_need_no_slot(concurrent: ConcurrentSessions, table: str, narrow: str) -> None:
    mine, hog = concurrent.session(warehouse=narrow), concurrent.session(warehouse=narrow)
    watcher = concurrent.session()
    mine("BEGIN")
    mine(add(table, 1))
    sleeping = concurrent.start(hog, "SELECT SYSTEM$WAIT(60)")
    wait_until(lambda: watcher(f"SHOW WAREHOUSES LIKE '{narrow}'")[0][7] == 1, "the slot is taken")

    mine("COMMIT")

    assert not sleeping.done()
    assert watcher.value(f"SELECT N FROM {table} WHERE ID = 1") == 1
    watcher(f"ALTER WAREHOUSE {narrow} ABORT ALL QUERIES")
    assert outcome(sleeping) == CANCELED


def test_many_waiters_leave_the_warehouse_free_for_others(
    concurrent: ConcurrentSessions, table: str, narrow: str
) -> None:
    holder = concurrent.session()
    waiters = concurrent.sessions(12, warehouse=narrow)
    reader = concurrent.session(warehouse=narrow)
    holder("BEGIN")
    holder(add(table, 1))

    works = [concurrent.start(waiter.count, add(table, 1)) for waiter in waiters]
    concurrent.wait_blocked(f"UPDATE {table}", works)
    read = reader.value(f"SELECT N FROM {table} WHERE ID = 1")
    holder("COMMIT")

    assert read == 0
    assert [outcome(work) for work in works] == [1] * 12
    assert reader.value(f"SELECT N FROM {table} WHERE ID = 1") == 13
