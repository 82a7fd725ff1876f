"""The history: what is kept and for how long, the ground truth, and what QUERY_HISTORY shows and hides."""

import json
import re
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.embedded import statement_history as history_module
from loadgen.embedded.statement_history import (
    COLUMNS,
    RESULT_LIMIT_MAX,
    StatementContext,
    StatementHistory,
    StatementRecord,
)

START_MS = 1_790_000_000_000.0
NAMES = [name for name, _ in COLUMNS]
BENCH = StatementContext(42, "LOADER", "R", "BENCH", "PUBLIC", "WH", "X-Small", "STANDARD", "bench")


class HistoryHarness:
    """A history with a clock that the test moves."""

    def __init__(self, **limits: int) -> None:
        self.now_ms = START_MS
        self.history = StatementHistory(now_ms=lambda: self.now_ms, **limits)

    def begin(self, sql_text: str = "SELECT 1", context: StatementContext = BENCH) -> StatementRecord:
        return self.history.begin(context, sql_text, self.now_ms)

    def execute(
        self, sql_text: str = "SELECT 1", context: StatementContext = BENCH, *, ms: float = 10.0, **facts: Any
    ) -> str:
        statement = self.begin(sql_text, context)
        statement.query_type = "SELECT"
        for name, value in facts.items():
            setattr(statement, name, value)
        self.now_ms += ms
        self.history.end(statement)
        return statement.query_id

    def truth(self, *arguments: Any) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.history.ground_truth(*arguments)]

    def shown(self, *arguments: Any, **named: Any) -> list[dict[str, Any]]:
        rows = self.history.query_history(*arguments, **named)
        return [dict(zip(NAMES, row, strict=True)) for row in rows]


def test_a_query_id_looks_like_snowflakes_and_reveals_nothing_about_others():
    ids = [harness.execute() for harness in (HistoryHarness(), HistoryHarness()) for _ in range(50)]

    assert len(set(ids)) == 100
    assert ids != sorted(ids)
    assert all(len({id_[start:end] for id_ in ids}) > 50 for start, end in ((2, 8), (9, 13), (19, 23), (24, 36)))
    assert all(re.fullmatch(r"01[0-9a-f]{6}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", id_) for id_ in ids)
    assert all(str(uuid.UUID(id_)) == id_ for id_ in ids)


def test_a_running_statement_is_found_by_its_id_until_it_ends():
    harness = HistoryHarness()
    first, second = harness.begin(), harness.begin()

    assert harness.history.find_running(second.query_id.upper()) is second
    harness.history.end(second)
    assert harness.history.find_running(second.query_id) is None
    assert harness.history.find_running(first.query_id) is first
    assert list(harness.history.running.values()) == [first]


def test_only_ids_that_were_given_out_are_known():
    harness = HistoryHarness()
    issued = harness.execute()
    future = issued[:-1] + ("9" if issued[-1] != "9" else "8")

    assert harness.history.find_ended(issued.upper()) is not None
    foreign = HistoryHarness().execute()
    for unknown in (future, foreign, "", "x", issued + "0", issued[:-1] + "g", issued.replace("-", ""), issued[:-12]):
        assert harness.history.find_ended(unknown) is None
        assert harness.history.find_running(unknown) is None


def test_a_statement_ends_once():
    harness = HistoryHarness()
    statement = harness.begin()
    harness.history.end(statement)

    with pytest.raises(KeyError):
        harness.history.end(statement)


def test_the_ground_truth_has_the_promised_fields():
    harness = HistoryHarness()
    query_id = harness.execute("SELECT é", ms=30.125, queued_ms=5.5, compile_ms=0.625, blocked_ms=4, rows=3)

    assert harness.truth() == [
        {
            "query_id": query_id,
            "session_id": 42,
            "query_tag": "bench",
            "sql_text": "SELECT é",
            "start_ms": START_MS,
            "end_ms": START_MS + 30.125,
            "queued_ms": 5.5,
            "execution_ms": 20.0,
            "total_ms": 30.125,
            "rows": 3,
            "error_code": 0,
        }
    ]


def test_the_ground_truth_is_filtered_by_tag_and_by_when_statements_began():
    harness = HistoryHarness()
    other = BENCH._replace(query_tag='{"run":"r2"}')
    early = harness.begin("began early, ended late")
    harness.execute("too early")
    since_ms = harness.now_ms
    for index in range(3):
        harness.execute(f"kept {index}")
        harness.execute("other tag", other)
    harness.history.end(early)

    assert [line["sql_text"] for line in harness.truth("benc", since_ms)] == ["kept 0", "kept 1", "kept 2"]
    assert [line["sql_text"] for line in harness.truth('"run":"r2"', since_ms)] == ["other tag"] * 3
    assert len(harness.truth()) == 8
    assert harness.truth("bench", harness.now_ms + 1) == []


def test_the_ground_truth_survives_what_happens_while_it_is_read():
    harness = HistoryHarness(records_max=10)
    for index in range(10):
        harness.execute(f"old {index}")
    lines = harness.history.ground_truth()
    seen = [json.loads(next(lines))["sql_text"]]

    for index in range(7):
        harness.execute(f"new {index}")
    seen += [json.loads(line)["sql_text"] for line in lines]

    assert seen == ["old 0", "old 7", "old 8", "old 9"]


def test_half_a_surrogate_pair_does_not_break_the_ground_truth():
    harness = HistoryHarness()
    harness.execute("SELECT '\ud800'")

    assert harness.truth()[0]["sql_text"] == "SELECT '\ud800'"


def test_the_ring_keeps_the_newest():
    harness = HistoryHarness(records_max=100)
    for index in range(257):
        harness.execute(f"SELECT {index}", BENCH._replace(session_id=index))

    assert (harness.history.kept, harness.history.ended) == (100, 257)
    assert [line["sql_text"] for line in harness.truth()] == [f"SELECT {index}" for index in range(157, 257)]
    assert [line["session_id"] for line in harness.truth()] == list(range(157, 257))


def test_texts_go_with_the_last_record_that_uses_them():
    text_bytes = 100 * (160 + 1000 + 400 + 5) + 10_000  # room for what 100 records need, and little more
    harness = HistoryHarness(records_max=100, text_bytes=text_bytes)
    for index in range(2_000):
        harness.execute(f"{index % 170:01000}", BENCH._replace(session_id=index))

    assert harness.history.kept == 100


def test_long_texts_shorten_the_history_before_they_fill_the_memory():
    harness = HistoryHarness(records_max=1_000, text_bytes=1_000_000)
    for index in range(1_000):
        harness.execute(f"{index:050000}")

    assert 15 <= harness.history.kept <= 20
    assert harness.truth()[-1]["sql_text"].endswith("00999")
    harness.execute("x" * 200_000)
    assert harness.truth()[-1]["sql_text"] == "x" * 100_000


def test_a_record_is_small():
    assert history_module._RECORD.size <= 150


def test_rows_have_the_columns_that_enrichment_reads():
    wanted = """query_id query_tag query_type session_id warehouse_name warehouse_size warehouse_type cluster_number
        execution_status error_code error_message start_time end_time total_elapsed_time compilation_time
        queued_provisioning_time queued_repair_time queued_overload_time transaction_blocked_time execution_time
        fault_handling_time query_retry_time bytes_scanned rows_produced rows_inserted rows_written_to_result
        bytes_written_to_result credits_used_cloud_services query_parameterized_hash transaction_id user_type
        bind_values query_text database_name schema_name user_name role_name"""

    assert set(wanted.upper().split()) == set(NAMES)
    assert len(NAMES) == len(set(NAMES))


def test_an_ended_statement_is_shown_with_its_times():
    harness = HistoryHarness()
    query_id = harness.execute(
        "INSERT", ms=30.4, queued_ms=5.6, compile_ms=1.2, blocked_ms=2.4, rows=7, query_type="INSERT", result_bytes=99
    )

    (row,) = harness.shown()
    expected = {
        "QUERY_ID": query_id, "QUERY_TEXT": "INSERT", "DATABASE_NAME": "BENCH", "SCHEMA_NAME": "PUBLIC",
        "QUERY_TYPE": "INSERT", "SESSION_ID": 42, "USER_NAME": "LOADER", "ROLE_NAME": "R", "WAREHOUSE_NAME": "WH",
        "WAREHOUSE_SIZE": "X-Small", "WAREHOUSE_TYPE": "STANDARD", "CLUSTER_NUMBER": 1, "QUERY_TAG": "bench",
        "EXECUTION_STATUS": "success", "ERROR_CODE": None, "ERROR_MESSAGE": None, "START_TIME": START_MS,
        "END_TIME": harness.now_ms, "TOTAL_ELAPSED_TIME": 30, "COMPILATION_TIME": 1, "EXECUTION_TIME": 21,
        "QUEUED_PROVISIONING_TIME": 0, "QUEUED_OVERLOAD_TIME": 6, "TRANSACTION_BLOCKED_TIME": 2, "ROWS_PRODUCED": 7,
        "ROWS_INSERTED": 7, "ROWS_WRITTEN_TO_RESULT": 1, "BYTES_WRITTEN_TO_RESULT": 99, "BYTES_SCANNED": 99,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_a_failed_statement_is_shown_with_its_error():
    harness = HistoryHarness()
    harness.execute(error_code=200001, error_message="Primary key already exists", hybrid_only=True)

    (row,) = harness.shown()
    assert row["EXECUTION_STATUS"] == "failed_with_error"
    assert (row["ERROR_CODE"], row["ERROR_MESSAGE"]) == (200001, "Primary key already exists")


def test_running_statements_come_first_unless_the_range_has_an_end():
    harness = HistoryHarness()
    oldest = harness.begin("oldest")
    oldest.status = "queued"
    harness.now_ms += 5
    harness.execute("ended")
    harness.begin("newest")
    harness.now_ms += 5

    rows = harness.shown()
    assert [row["QUERY_TEXT"] for row in rows] == ["newest", "oldest", "ended"]
    assert [row["EXECUTION_STATUS"] for row in rows] == ["running", "queued", "success"]
    assert [row["END_TIME"] for row in rows] == [0, 0, START_MS + 15]
    assert [row["TOTAL_ELAPSED_TIME"] for row in rows] == [5, 20, 10]
    assert [row["QUERY_TEXT"] for row in harness.shown(None, harness.now_ms)] == ["ended"]
    assert [row["QUERY_TEXT"] for row in harness.shown(None, None, 1)] == ["newest"]


@pytest.mark.parametrize(
    ("facts", "is_shown"),
    [
        ({}, False),
        ({"query_type": "MERGE"}, False),
        ({"ms": 499.0}, False),
        ({"ms": 500.0}, True),
        ({"hybrid_only": False}, True),
        ({"in_transaction": True}, True),
        ({"query_type": "CREATE_TABLE"}, True),
        ({"error_code": 625}, True),
    ],
)
def test_short_statements_on_hybrid_tables_alone_are_not_shown(facts, is_shown):
    harness = HistoryHarness()
    harness.execute(**{"hybrid_only": True, **facts})

    assert len(harness.shown()) == is_shown
    assert len(harness.truth()) == 1, "the ground truth has everything"


@pytest.mark.parametrize("limit", [0, -1, RESULT_LIMIT_MAX + 1])
def test_a_result_limit_out_of_range_is_refused(limit):
    with pytest.raises(ValueError, match="RESULT_LIMIT"):
        HistoryHarness().shown(None, None, limit)


def test_a_hundred_rows_are_shown_unless_more_are_asked_for():
    harness = HistoryHarness()
    for index in range(150):
        harness.execute(f"SELECT {index}")

    assert [row["QUERY_TEXT"] for row in harness.shown()] == [f"SELECT {index}" for index in range(149, 49, -1)]
    assert len(harness.shown(None, None, RESULT_LIMIT_MAX)) == 150


def test_statements_that_ended_more_than_seven_days_ago_are_not_shown():
    harness = HistoryHarness()
    harness.execute("old")
    harness.now_ms += 7 * 86_400_000 + 1
    harness.execute("new")

    assert [row["QUERY_TEXT"] for row in harness.shown(0.0)] == ["new"]


@pytest.mark.parametrize(
    ("start", "end", "texts"),
    [(0, 1, ["b", "a"]), (1, 1, ["b"]), (1, 2, ["c", "b"]), (0.5, 1.5, ["b"]), (1.5, 1.6, []), (2, 9, ["c"])],
)
def test_a_range_includes_both_its_ends(start, end, texts):
    harness = HistoryHarness()
    for text in "abc":
        harness.execute(text, ms=10)

    rows = harness.shown(START_MS + 10 + start * 10, START_MS + 10 + end * 10)

    assert [row["QUERY_TEXT"] for row in rows] == texts


STATEMENTS = st.lists(
    st.tuples(
        st.integers(0, 2),  # session
        st.sampled_from(["A", "B"]),  # user
        st.sampled_from(["WH1", None]),
        st.booleans(),  # hybrid only, hence hidden
        st.integers(0, 3),  # ms
    ),
    max_size=60,
)
EDGES = st.one_of(st.none(), st.integers(-2, 30).map(lambda ms: START_MS + ms))


@settings(max_examples=70, deadline=None)
@given(
    executed=STATEMENTS,
    start_ms=EDGES,
    end_ms=EDGES,
    limit=st.integers(1, 20),
    session_id=st.one_of(st.none(), st.integers(0, 2)),
    user=st.sampled_from([None, "A"]),
    warehouse=st.sampled_from([None, "WH1"]),
)
def test_query_history_selects_as_a_plain_list_would(executed, start_ms, end_ms, limit, session_id, user, warehouse):
    harness, model = HistoryHarness(records_max=7), []
    for session, name, on_warehouse, hidden, ms in executed:
        context = StatementContext(session, name, warehouse=on_warehouse)
        query_id = harness.execute(context=context, ms=ms, hybrid_only=hidden)
        model.append((harness.now_ms, query_id, context, hidden))

    wanted = [
        query_id
        for ended_ms, query_id, context, hidden in reversed(model[-7:])
        if not hidden
        and (start_ms is None or ended_ms >= start_ms)
        and (end_ms is None or ended_ms <= end_ms)
        and session_id in (None, context.session_id)
        and user in (None, context.user)
        and warehouse in (None, context.warehouse)
    ]
    rows = harness.shown(start_ms, end_ms, limit, session_id=session_id, user=user, warehouse=warehouse)
    assert [row["QUERY_ID"] for row in rows] == wanted[:limit]


def test_bind_values_have_a_limit_and_older_ones_are_unknown(monkeypatch):
    monkeypatch.setattr(history_module, "BIND_BYTES_MAX", 390)
    history = StatementHistory(now_ms=lambda: START_MS)
    for number in range(4):
        statement = history.begin(StatementContext(1, "U"), f"SELECT {number}", START_MS)
        statement.bindings = {"1": {"type": "FIXED", "value": str(number)}} if number != 1 else None
        history.end(statement)
    statement = history.begin(StatementContext(1, "U"), "SELECT 4", START_MS)
    statement.bindings = {"1": {"type": "TEXT", "value": "x" * 20_000}}
    history.end(statement)

    newest_first = [row[-1] for row in history.query_history(result_limit=10)]

    assert newest_first[0] == "null"
    assert newest_first[1] == '{"1":{"type":"FIXED","value":"3"}}'
    assert newest_first[3:] == ["[]", None]
