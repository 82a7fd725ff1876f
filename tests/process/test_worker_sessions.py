"""Sessions of a worker's clients that end, and their transactions: the history of the server shows the outcome of
each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from loadgen.metrics.recorder import Outcome
from loadgen.model.run import Phase, RunStatus
from tests.embedded_server import EmbeddedServer
from tests.process.worker_driver import GET, Led, WorkerHarness, adds_up, worker_harness
from tests.processes import wait_until


@pytest.fixture(scope="module")
def harness(server: EmbeddedServer) -> Iterator[WorkerHarness]:
    yield from worker_harness(server)


def test_sessions_that_the_server_ends_are_replaced(harness: WorkerHarness, server: EmbeddedServer) -> None:
    run = harness.run({"connections": 3}, statements=[GET])
    worker = run.started()
    run.wait_ended(10, worker)
    server.inject_fault(6, match="FROM KV WHERE", kind="expire_session")
    run.wait_beat(lambda beat: beat.open_connections == 3, "its sessions are back", worker)
    run.wait_ended(30, worker)
    run.stopped(worker)

    _check_answered(run)
    failed, logins = run.seen().of(Phase.MEASUREMENT).counts.failed, run.seen().logins
    assert 0 < failed <= 6  # the driver renews, and tries once more
    assert logins["reopened"]["session_lost"] == sum(one["count"] for one in logins["last_lost"]) == failed


@pytest.mark.slow  # test_sessions.py has connections that end after a number of statements
def test_sessions_that_are_worn_or_old_are_replaced(harness: WorkerHarness) -> None:
    worn = harness.run({"connections": 2}, connections={"max_statements": 10})
    old = harness.run({"connections": 2}, connections={"max_age": "1s"})
    workers = [run.spawn() for run in (worn, old)]
    for run, worker in zip((worn, old), workers, strict=True):
        run.move(RunStatus.STARTING)
        run.wait_status("WAITING", worker)
        run.start()
    wait_until(
        lambda: len({line["session_id"] for line in old.history(Phase.MEASUREMENT)}) > 4, "old ones are replaced"
    )
    for run, worker in zip((worn, old), workers, strict=True):
        run.wait_ended(30, worker)
        run.stopped(worker)

    for run in (worn, old):
        _check_answered(run)
        window = run.seen().of(Phase.MEASUREMENT)
        assert window.counts.failed == 0
        time = window.connections
        assert time is not None
        assert 0 < time.logging_in_ms < time.delivered_ms <= time.planned_ms
    per_session = Counter(line["session_id"] for line in worn.history(Phase.MEASUREMENT))
    assert max(per_session.values()) == 10
    assert worn.seen().logins["reopened"]["max_statements"] >= len(per_session) - 2 > 0
    assert old.seen().logins["reopened"]["max_age"] > 2


def _check_answered(run: Led) -> None:
    """What the server has answered has succeeded."""
    window = run.seen().of(Phase.MEASUREMENT)
    assert adds_up(window)
    assert window.counts.succeeded == sum(not line["error_code"] for line in run.history(Phase.MEASUREMENT))


def test_transactions_and_expectations(harness: WorkerHarness) -> None:
    harness.sql("CREATE HYBRID TABLE ACCOUNT (ID NUMBER(38,0) PRIMARY KEY, V NUMBER(38,0))")
    harness.sql("INSERT INTO ACCOUNT VALUES (1, 0), (2, 0), (3, 0)")
    statements = [
        {
            "name": "pay",
            "kind": "write",
            "transaction": [
                {"sql": "UPDATE ACCOUNT SET V = V + 1 WHERE ID = 1"},
                {"sql": "UPDATE ACCOUNT SET V = V - 1 WHERE ID = 2"},
            ],
        },
        {
            "name": "fail",
            "kind": "write",
            "transaction": [
                {"sql": "UPDATE ACCOUNT SET V = V + 1000 WHERE ID = 3"},
                {"sql": "SELECT 1 / V FROM KV WHERE ID = 1"},
            ],
        },
        {"name": "none", "kind": "read", "sql": "SELECT V FROM KV WHERE ID = -1", "expect": {"rows": 1}},
    ]
    run = harness.run({"connections": 1}, statements=statements, target={"warehouse": "QUICK_WH"})  # locks are short
    worker = run.started()
    run.wait_ended(40, worker)
    harness.sql("ALTER SESSION SET HYBRID_TABLE_LOCK_TIMEOUT = 60")
    harness.sql("UPDATE ACCOUNT SET V = 7 WHERE ID = 3")  # its lock is free between transactions
    run.stopped(worker)

    window = run.seen().of(Phase.MEASUREMENT)
    assert adds_up(window)
    tally = window.tally.statements
    assert tally["none"].ended.failed == tally["none"].times[Outcome.CHECK].response.count > 0
    assert tally["fail"].ended.failed > 0
    assert tally["fail"].ended.succeeded == tally["none"].ended.succeeded == 0
    assert tally["pay"].ended.failed == 0
    paid = tally["pay"].ended.succeeded
    assert [int(value) for (value,) in harness.sql("SELECT V FROM ACCOUNT ORDER BY ID")] == [paid, -paid, 7]
    texts = [line["sql_text"] for line in run.history(Phase.MEASUREMENT)]
    failed = tally["fail"].ended.failed
    assert [texts.count(word) for word in ("COMMIT", "ROLLBACK", "BEGIN")] == [paid, failed, paid + failed]
