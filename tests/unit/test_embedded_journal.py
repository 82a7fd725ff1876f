"""The journal of requests: bounded, filtered, one JSON line each."""

import json
from typing import Any

from loadgen.embedded.admin import RequestLog, RequestLogEntry

QUERY = "/queries/v1/query-request"


def a_journal() -> RequestLog:
    journal = RequestLog()
    journal.append(RequestLogEntry(100.0, "POST", "/session/v1/login-request"))
    journal.append(
        RequestLogEntry(200.0, "POST", QUERY, 7, "r1", "q1", "SELECT * FROM Orders", 2, 200, "ok", 1.23456, 0)
    )
    journal.append(
        RequestLogEntry(300.0, "POST", QUERY, 7, "r1", "q1", "UPDATE T SET A = 1", 0, 503, "fault http_status", 0.5, 1)
    )
    return journal


def read(journal: RequestLog, **filters: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.lines(**filters)]


def test_an_entry_is_one_line_with_every_field():
    lines = list(a_journal().lines())

    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert json.loads(lines[1]) == {
        "at_ms": 200.0, "method": "POST", "path": QUERY, "session_id": 7, "request_id": "r1", "query_id": "q1",
        "sql_text": "SELECT * FROM Orders", "bind_count": 2, "status": 200, "outcome": "ok", "duration_ms": 1.235,
        "retry_count": 0,
    }  # fmt: skip


def test_entries_are_filtered_by_time_path_and_sql():
    journal = a_journal()

    assert [line["at_ms"] for line in read(journal)] == [100, 200, 300]
    assert [line["at_ms"] for line in read(journal, since_ms=200)] == [200, 300]
    assert [line["at_ms"] for line in read(journal, path="/session")] == [100]
    assert [line["at_ms"] for line in read(journal, match="from ORDERS")] == [200]
    assert [line["at_ms"] for line in read(journal, path=QUERY, since_ms=201, match="update")] == [300]
    assert read(journal, match=".*") == [], "a plain text, not a pattern"


def test_the_oldest_entry_makes_room_for_the_newest():
    journal = RequestLog(entries_max=3)
    for index in range(5):
        journal.append(RequestLogEntry(float(index), "GET", "/"))

    assert len(journal) == 3
    assert [line["at_ms"] for line in read(journal)] == [2, 3, 4]


def test_long_sql_is_cut():
    journal = RequestLog()
    journal.append(RequestLogEntry(1.0, "POST", QUERY, sql_text="x" * 5_000))

    assert read(journal)[0]["sql_text"] == "x" * 1_000


def test_requests_that_arrive_while_it_is_read_do_not_disturb():
    journal = a_journal()
    lines = journal.lines()
    next(lines)

    journal.append(RequestLogEntry(400.0, "GET", "/"))

    assert [json.loads(line)["at_ms"] for line in lines] == [200, 300]


def test_half_a_surrogate_pair_is_written():
    journal = RequestLog()
    journal.append(RequestLogEntry(1.0, "POST", QUERY, sql_text="\udcff"))

    assert read(journal)[0]["sql_text"] == "\udcff"
