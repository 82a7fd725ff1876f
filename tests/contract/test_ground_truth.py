"""The server's record of executed statements, without the delays and limits of Snowflake's history.

A benchmark is checked against it, so it must have every statement, once, with exact times.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from snowflake.connector.errors import ProgrammingError

from tests.processes import PATIENCE_S, wait_until

pytestmark = pytest.mark.any_driver

TRUTH_FIELDS = [
    "query_id", "session_id", "query_tag", "sql_text", "start_ms", "end_ms", "queued_ms", "execution_ms", "total_ms",
    "rows", "error_code",
]  # fmt: skip


# --- the ground truth ------------------------------------------------------------------------------------------------


def test_every_statement_is_in_the_ground_truth_once_with_exact_fields(tagged, server, database):
    sent = []
    for number in range(50):
        tagged.execute("SELECT ?", (number,))
        sent.append(tagged.sfqid)

    lines = server.history(database)

    assert [line["query_id"] for line in lines] == sent
    for line in lines:
        assert list(line) == TRUTH_FIELDS
        assert line["session_id"] == tagged.connection.session_id
        assert (line["query_tag"], line["sql_text"], line["rows"], line["error_code"]) == (database, "SELECT ?", 1, 0)
        assert all(type(line[name]) is float for name in TRUTH_FIELDS if name.endswith("_ms"))
        assert line["total_ms"] == pytest.approx(line["end_ms"] - line["start_ms"], abs=0.01)
        assert 0 <= line["execution_ms"] <= line["total_ms"]
        assert line["queued_ms"] >= 0


def test_the_ground_truth_counts_rows_and_errors(tagged, server, database):
    tagged.execute("CREATE TABLE T (A INTEGER)")
    tagged.execute("INSERT INTO T VALUES (1), (2), (3)")
    tagged.execute("SELECT * FROM T WHERE A > 1")
    tagged.execute("UPDATE T SET A = 0")
    with pytest.raises(ProgrammingError):
        tagged.execute("SELECT A / 0 FROM T WHERE A = 0 AND 1 / A > 0")

    lines = server.history(database)

    assert [(line["rows"], line["error_code"]) for line in lines[1:]] == [(3, 0), (2, 0), (3, 0), (0, 100051)]


def test_an_array_bind_is_one_statement_of_the_ground_truth(tagged, server, database):
    tagged.execute("CREATE TABLE T (A INTEGER)")

    tagged.executemany("INSERT INTO T VALUES (?)", [(number,) for number in range(500)])

    inserts = [line for line in server.history(database) if line["sql_text"].startswith("INSERT")]
    assert [(line["query_id"], line["rows"]) for line in inserts] == [(tagged.sfqid, 500)]


def test_a_changed_tag_counts_from_the_next_statement_on(tagged, server, database):
    first = tagged.execute("SELECT 1").sfqid
    tagged.execute(f"ALTER SESSION SET QUERY_TAG = '{database} second'")
    second = tagged.execute("SELECT 1").sfqid

    tags = {line["query_id"]: line["query_tag"] for line in server.history(database)}

    assert (tags[first], tags[second]) == (database, f"{database} second")
    assert [line["query_id"] for line in server.history(f"{database} second")] == [second]


def test_a_json_tag_is_found_by_any_part_of_it(connect, server, database):
    tag = f'{{"app":"loadgen","run":"{database}","worker":"worker-0","phase":"MEASURE","step":null}}'
    cursor = connect(session_parameters={"QUERY_TAG": tag}).cursor()
    cursor.execute("SELECT 1")

    (line,) = server.history(f'"run":"{database}","worker":"worker-0"')

    assert (line["query_id"], line["query_tag"]) == (cursor.sfqid, tag)


def test_since_leaves_out_what_began_before(tagged, server, database):
    tagged.execute("SELECT 'before'")
    moment = server.now_ms()
    tagged.execute("SELECT 'after'")

    lines = server.history(database, moment)

    assert [line["sql_text"] for line in lines] == ["SELECT 'after'"]


def test_waiting_for_a_slot_is_separate_from_execution(server, connect, database):
    one = connect(warehouse=f"ONE_{database}").cursor()
    one.execute(f"ALTER WAREHOUSE ONE_{database} SET MAX_CONCURRENCY_LEVEL = 1")
    holder, *clients = (
        connect(warehouse=f"ONE_{database}", session_parameters={"QUERY_TAG": f"{database} {who}"})
        for who in ("holds", "waits", "waits")
    )

    def are(running: int, queued: int) -> bool:
        counts = server.ask("/__loadgen/stats")["warehouses"][f"ONE_{database}"]
        return (counts["running"], counts["queued"]) == (running, queued)

    with ThreadPoolExecutor(3, thread_name_prefix="client") as pool:
        holding = pool.submit(holder.cursor().execute, "SELECT SYSTEM$WAIT(240)")
        wait_until(lambda: are(1, 0), "the only slot is taken")
        works = [pool.submit(client.cursor().execute, "SELECT SYSTEM$WAIT(100, 'MILLISECONDS')") for client in clients]
        wait_until(lambda: are(1, 2), "two are queued")
        queued_ms = server.wait_server_ms(200)
        one.execute(f"SELECT SYSTEM$CANCEL_ALL_QUERIES({holder.session_id})")
        assert isinstance(holding.exception(PATIENCE_S), ProgrammingError)
        for work in works:
            work.result(PATIENCE_S)

    first, second = sorted(server.history(f"{database} waits"), key=lambda line: line["queued_ms"])
    (held,) = server.history(f"{database} holds")
    assert held["queued_ms"] == 0
    assert first["queued_ms"] >= queued_ms
    assert second["queued_ms"] >= queued_ms + 90  # the other one held the slot while it worked
    for line in (first, second):
        assert line["execution_ms"] >= 90  # an event loop's timer may be early by a millisecond or two
        assert line["total_ms"] >= line["queued_ms"] + line["execution_ms"] - 0.01


def test_the_counts_of_the_server_agree_with_what_was_sent(connect, server, database):
    clients, each = 8, 25
    before = server.ask("/__loadgen/stats")["statements"]

    def run(number: int) -> None:
        cursor = connections[number].cursor()
        for step in range(each):
            cursor.execute("SELECT ?, ?", (number, step))

    connections = [connect(session_parameters={"QUERY_TAG": f"{database} {number}"}) for number in range(clients)]
    threads = [threading.Thread(target=run, args=(number,), name=f"client-{number}") for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    lines = server.history(database)
    requests = server.ask("/__loadgen/journal?path=query-request&match=SELECT%20%3F%2C%20%3F")
    sessions = {connection.session_id for connection in connections}
    assert len(lines) == clients * each
    assert len({line["query_id"] for line in lines}) == clients * each
    assert server.ask("/__loadgen/stats")["statements"] - before == clients * each
    assert sum(entry["session_id"] in sessions for entry in requests) == clients * each
    for number in range(clients):
        assert len(server.history(f"{database} {number}")) == each


# --- stats and journal -----------------------------------------------------------------------------------------------


def test_the_stats_show_what_runs_and_what_waits(server, connect, database):
    one = connect(warehouse=f"ONE_{database}").cursor()
    one.execute(f"ALTER WAREHOUSE ONE_{database} SET MAX_CONCURRENCY_LEVEL = 1")
    clients = [connect(warehouse=f"ONE_{database}") for _ in range(3)]
    codes: list[int | None] = []

    def run(client: Any) -> None:
        try:
            client.cursor().execute("SELECT SYSTEM$WAIT(240)")
        except ProgrammingError as error:
            codes.append(error.errno)

    threads = [threading.Thread(target=run, args=(client,), name="client") for client in clients]
    for thread in threads:
        thread.start()
    stats = wait_until(
        lambda: (now := server.ask("/__loadgen/stats")) and now["warehouses"][f"ONE_{database}"]["queued"] == 2 and now,
        "two are queued",
    )
    listed = one.execute(f"SHOW WAREHOUSES LIKE 'ONE_{database}'").fetchone()
    counts = dict(zip([column.name for column in one.description], listed, strict=True))
    for client in clients:
        one.execute(f"SELECT SYSTEM$CANCEL_ALL_QUERIES({client.session_id})")
    for thread in threads:
        thread.join(PATIENCE_S)

    assert {"open_sessions", "running", "queued", "statements"} <= stats.keys()
    model = {"slots": 1, "service_time": None}
    assert stats["warehouses"][f"ONE_{database}"] == {"running": 1, "queued": 2} | model
    assert stats["running"] >= 1
    assert stats["queued"] == 2
    assert stats["open_sessions"] >= 4
    assert (int(counts["running"]), int(counts["queued"])) == (1, 2)
    assert codes == [604] * 3
    assert server.ask("/__loadgen/stats")["warehouses"][f"ONE_{database}"] == {"running": 0, "queued": 0} | model


def test_the_journal_has_every_request_of_a_session(server):
    moment = server.now_ms()
    connection = server.connect()
    connection.cursor().execute("SELECT ?, ?", (1, "x"))
    number = connection.session_id
    connection.close()

    entries = [entry for entry in server.ask(f"/__loadgen/journal?since={moment}") if entry["session_id"] == number]

    assert [entry["path"] for entry in entries] == [
        "/session/v1/login-request",
        "/queries/v1/query-request",
        "/session",
    ]
    query = entries[1]
    assert (query["sql_text"], query["bind_count"], query["status"], query["outcome"]) == ("SELECT ?, ?", 2, 200, "ok")
    assert (query["method"], query["retry_count"]) == ("POST", 0)
    assert len(query["query_id"]) == len(query["request_id"]) == 36
    assert query["duration_ms"] > 0
    assert moment <= entries[0]["at_ms"] <= entries[1]["at_ms"] <= entries[2]["at_ms"]


def test_the_journal_names_the_error_of_a_refused_statement(server, tagged, database):
    with pytest.raises(ProgrammingError):
        tagged.execute(f"SELECT * FROM MISSING_{database}")

    (entry,) = server.ask(f"/__loadgen/journal?match=MISSING_{database}")

    assert (entry["outcome"], entry["status"]) == ("2003", 200)


def test_no_secret_is_in_the_journal(server):
    server.connect(password="planted-Passw0rd-5502").close()

    assert "planted-Passw0rd-5502" not in str(server.ask("/__loadgen/journal"))
