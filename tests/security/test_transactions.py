"""Transactions that are opened and left: single statements of others go on, and the next transaction gets its turn."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from contextlib import closing
from typing import Any

import pytest

from loadgen.embedded.backend_pool import KEPT_PERCENT_MAX
from loadgen.embedded.http_server import BACKENDS_MAX
from loadgen.embedded.session import CROWDED_TRANSACTION_S, IDLE_TRANSACTION_S, Transaction
from tests.embedded_server import EmbeddedServer
from tests.process.served import Wire, copied_data, serving
from tests.processes import reachable_directory, wait_until

MOST = BACKENDS_MAX * KEPT_PERCENT_MAX // 100


def test_transactions_of_one_user_do_not_keep_others_from_executing_statements():
    with reachable_directory() as path, serving(copied_data(path / "data")) as server:
        holders = [Wire(server, "holder") for _ in range(MOST)]
        for wire in holders:
            wire.sql("BEGIN")
        other, waiting = Wire(server, "other"), Wire(server, "waiting")
        begun: list[Any] = []
        with closing(waiting):
            thread = threading.Thread(target=lambda: begun.append(waiting.sql("BEGIN")), name="begin")
            thread.start()
            wait_until(lambda: server.ask("/__loadgen/stats")["under_way"] == 1, "one transaction too many waits")

            assert other.answers()
            assert begun == []

            holders[0].sql("COMMIT")
            thread.join()
        assert len(begun) == 1


def test_statements_that_wait_for_one_lock_do_not_keep_others_from_executing_statements():
    statements = BACKENDS_MAX + 20
    with reachable_directory() as path, serving(copied_data(path / "data")) as server:
        holder, waiting, other = (Wire(server, user) for user in ("holder", "waiting", "other"))
        holder.sql("CREATE DATABASE LOCKS")
        holder.sql("CREATE HYBRID TABLE LOCKS.PUBLIC.LK (ID NUMBER PRIMARY KEY, V NUMBER)")
        holder.sql("INSERT INTO LOCKS.PUBLIC.LK VALUES (1, 1)")
        holder.sql("BEGIN")
        holder.sql("UPDATE LOCKS.PUBLIC.LK SET V = 2 WHERE ID = 1")
        ids = [update_later(waiting) for _ in range(statements)]
        wait_until(
            lambda: refused(server, ids) == statements - (MOST - 1), "one waiter too many after the other is refused"
        )

        assert other.answers()

        holder.sql("COMMIT")
        wait_until(lambda: server.ask("/__loadgen/stats")["under_way"] == 0, "the others got the lock")
        assert refused(server, ids) == statements - (MOST - 1)
        assert other.sql("SELECT V FROM LOCKS.PUBLIC.LK") == [["3"]]


def update_later(wire: Wire) -> str:
    asked = {"sqlText": "UPDATE LOCKS.PUBLIC.LK SET V = 3 WHERE ID = 1", "asyncExec": True}
    body = wire.post(f"/queries/v1/query-request?requestId={uuid.uuid4()}", asked)[1]
    return str(json.loads(body)["data"]["queryId"])


def refused(server: EmbeddedServer, ids: list[str]) -> int:
    return sum(1 for row in server.history() if row["query_id"] in ids and row["error_code"] == 625)


@pytest.mark.parametrize(
    ("idle_s", "hybrid", "crowded", "abandoned"),
    [
        (IDLE_TRANSACTION_S + 1, True, False, True),
        (IDLE_TRANSACTION_S + 1, False, False, False),
        (CROWDED_TRANSACTION_S + 1, False, True, True),
        (CROWDED_TRANSACTION_S + 1, True, False, False),
        (CROWDED_TRANSACTION_S - 1, True, True, False),
    ],
)
def test_an_idle_transaction_is_ended_when_it_keeps_others_waiting(idle_s, hybrid, crowded, abandoned):
    transaction = Transaction(1, None, "", 0.0, touched_s=0.0, hybrid=hybrid)  # type: ignore[arg-type]

    assert transaction.is_abandoned(idle_s, crowded=crowded) is abandoned


def test_a_transaction_whose_statement_runs_is_in_use():
    async def locked() -> bool:
        transaction = Transaction(1, None, "", 0.0, touched_s=0.0, hybrid=True)  # type: ignore[arg-type]
        async with transaction.lock:
            return transaction.is_abandoned(2 * IDLE_TRANSACTION_S, crowded=True)

    assert not asyncio.run(locked())
