"""The SQL of the control plane, read as data: what Snowflake rejects, or takes and gets wrong, never gets in.

That every statement really runs is shown by tests/contract/test_control_tables_workers.py.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import sqlglot
from sqlglot import exp

from tests.contract.strict_pairs import HARMLESS
from tests.unit.sql_texts import MIGRATIONS, PRUNING, QUERIES, TABLES, parsed

STATEMENTS = [*QUERIES, *MIGRATIONS]
CREATES = [query for query in STATEMENTS if re.match(r"CREATE (HYBRID )?TABLE", query.sql)]
CHANGES = [query for query in QUERIES if query not in CREATES]


def reads_a_table(select: Any) -> bool:
    source = select.args.get("from_") or select.args.get("from")
    return source is not None and isinstance(source.this, exp.Table)


def named_keys(select: Any) -> set[str]:
    """Columns that must be equal to a bind for a row to be read."""
    where = select.args.get("where")
    conditions = (
        [] if where is None else list(where.this.flatten() if isinstance(where.this, exp.And) else [where.this])
    )
    return {
        condition.this.name
        for condition in conditions
        if isinstance(condition, exp.EQ) and isinstance(condition.expression, exp.Placeholder)
    }


def row_changes(query: Any) -> list[Any]:
    statement = parsed(query)
    return [*statement.find_all(exp.Update), *statement.find_all(exp.Delete)]


HYBRID = {name for name, table in TABLES.items() if table.hybrid}
# --- words -----------------------------------------------------------------------------------------------------------
# rule: (pattern, a text that it must find)
FORBIDDEN = {
    "SYSDATE() alone is UTC in every session": (
        r"\b(CURRENT_TIMESTAMP|LOCALTIMESTAMP|SYSTIMESTAMP|GETDATE|CURRENT_DATE|CURRENT_TIME|NOW)\b",
        "SELECT NOW()",
    ),
    "UPDATE has no RETURNING": (r"\bRETURNING\b", "UPDATE T SET A = 1 RETURNING A"),
    "VALUES takes no PARSE_JSON": (r"VALUES\s*\([^)]*PARSE_JSON", "INSERT INTO T VALUES (?, PARSE_JSON(?))"),
    "MERGE is off the fast path": (r"\bMERGE\b", "MERGE INTO T USING S ON A = B"),
    "QUALIFY needs a window function": (r"\bQUALIFY\b(?!.*\bOVER\b)", "SELECT A FROM T QUALIFY A = 1"),
    "there are no named binds": (r"(?<![\w):\]\"]):[A-Za-z_]", "SELECT A FROM T WHERE B = :name"),
    "there are no client-side binds": (r"%s|%\(", "SELECT %(name)s"),
    "IN takes no binds": (r"\bIN\s*\([^)]*\?", "SELECT A FROM T WHERE B IN (?, ?)"),
    "LIMIT takes a constant": (r"\b(LIMIT|OFFSET)\s+[^0-9]", "SELECT A FROM T ORDER BY A LIMIT ?"),
    "one statement is one transaction": (r"\b(BEGIN|COMMIT|ROLLBACK|START TRANSACTION)\b", "BEGIN TRANSACTION"),
    "FOR UPDATE needs a transaction": (r"\bFOR\s+UPDATE\b", "SELECT A FROM T FOR UPDATE"),
    "OR REPLACE empties tables": (r"\bOR\s+(REPLACE|ALTER)\b", "CREATE OR REPLACE TABLE T (A INT)"),
    "indexes are added once": (r"\bCREATE\s+INDEX\b(?! IF NOT EXISTS)", "CREATE INDEX I ON T (A)"),
    "columns are named": (r"\bSELECT\s+\*|\.\*", "SELECT * FROM T"),
    "one statement per text": (r";", "SELECT 1; SELECT 2"),
    "nothing is dropped": (r"\b(DROP|TRUNCATE)\b", "DROP TABLE T"),
    "columns are added once": (
        r"\bALTER\b(?! TABLE \w+ ADD COLUMN IF NOT EXISTS)",
        "ALTER TABLE T ADD COLUMN A NUMBER",
    ),
    "TIMESTAMPDIFF hides the column": (r"\bTIMESTAMPDIFF\b", "SELECT TIMESTAMPDIFF('second', A, B)"),
    "tables are named without a schema": (r"\b(FROM|INTO|UPDATE|JOIN)\s+\w+\.\w+", "SELECT A FROM S.T"),
    "a numbering of the server has gaps": (r"\b(NEXTVAL|AUTOINCREMENT|IDENTITY)\b", "SELECT S.NEXTVAL"),
    "comments cost bytes in every request": (r"--|/\*", "SELECT 1 -- one"),
}
QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")


@pytest.mark.parametrize(("pattern", "bad"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_no_statement_has_a_forbidden_form(pattern, bad):
    found = re.compile(pattern, re.IGNORECASE)

    assert found.search(bad)
    assert [query.name for query in STATEMENTS if found.search(QUOTED.sub("''", query.sql))] == []


# Hundreds of statements: a test of each rule goes through them all, and names those that break it.


def test_binds_are_question_marks_outside_of_quotes():
    for query in STATEMENTS:
        marks = QUOTED.sub("''", query.sql).count("?")
        assert marks == query.sql.count("?") == query.binds, query.name
        assert len(list(parsed(query).find_all(exp.Placeholder))) == query.binds, query.name


def test_snowflake_can_read_every_statement():
    not_understood = [query.name for query in STATEMENTS if isinstance(parsed(query), exp.Command)]  # as sqlglot has it

    assert not_understood == []


# --- changes ---------------------------------------------------------------------------------------------------------


def test_an_insert_gives_each_named_column_one_value():
    for name, insert in ((query.name, insert) for query in CHANGES for insert in parsed(query).find_all(exp.Insert)):
        columns, source = insert.this.expressions, insert.expression
        assert isinstance(insert.this, exp.Schema), f"{name} names no columns"
        assert len({column.name for column in columns}) == len(columns) == len(source.expressions), name


# Once per worker, at its end: a lock that others hold is not waited for, a row is appended instead.
FINISHING = ("test_results.finish", "test_results.abandon")


def test_only_rows_of_hybrid_tables_are_changed():
    for name, change in ((query.name, change) for query in CHANGES for change in row_changes(query)):
        alone = name in (*ENRICHING, *FINISHING) or name.startswith(PRUNING)
        assert alone or change.this.name in HYBRID, f"{name}: an UPDATE of a standard table locks it as a whole"
        assert change.args.get("where") is not None, name


def test_of_every_change_of_a_row_it_is_known_why_it_may_have_waited():
    """An UPDATE or DELETE that has waited for a row may act on the old version of it: Snowflake does not document
    it."""
    changes = {
        query.name
        for query in CHANGES
        for change in row_changes(query)
        if change.this.name in HYBRID and not query.name.startswith(PRUNING)
    }

    assert changes == set(HARMLESS)


def test_the_row_count_of_an_update_is_a_count_of_rows():
    for name, update in ((query.name, update) for query in CHANGES for update in parsed(query).find_all(exp.Update)):
        if name not in ENRICHING:
            assert not update.args.get("from_"), name
            assert not update.args.get("from"), name
        assert not list(update.this.find_all(exp.Join)), name


# Changes of a standard table, after the run: one writer, all rows with one statement. Their row counts are not used.
ENRICHING = {
    "query_executions.enrich",
    "query_executions.skip_unidentified",
    "query_executions.skip_statement",
    "test_results.amend",
}
# Reads that name no key and have no LIMIT, each with the reason why it stays small.
SMALL = {
    "schema_version.applied": "a row per migration",
    "run_status.unfinished": "runs that are under way",
    "run_queue.candidates": "inside: runs that are under way",
    "run_queue.depth": "one number",
    "run_queue.open_runs": "three numbers",
    "run_attempts.claim": "inside: the end of an attempt, by its key",
    "run_attempts.open_of": "inside: the end of an attempt, by its key",
    "pool_workers.offers": "inside: the wish for a runner, by its key",
    "pool_workers.count": "one number",
    "experiments.led": "experiments that are under way",
    "experiment_warehouses.changed": "a row per warehouse whose settings an experiment changes",
    "pool_workers.page": "inside: runners that are gone are forgotten after a week",
    "pool_workers.totals": "one row; runners that are gone are forgotten after a week",
}
KEYS = {
    "RUN_ID",
    "EXPERIMENT_ID",
    "EVENT_ID",
    "VERSION",
    "SCHEDULE_ID",
    "QUEUE_ID",
    "IDEMPOTENCY_KEY",
    "TARGET",
    "WORKER_ID",
    "ID",
    "OWNER",
}


def test_every_read_has_a_key_or_a_limit():
    for query in CHANGES:
        selects = [select for select in parsed(query).find_all(exp.Select) if reads_a_table(select)]

        unbounded = [select.sql() for select in selects if not (named_keys(select) & KEYS or select.args.get("limit"))]

        small = query.name in SMALL or (query.name.startswith(PRUNING) and bool(selects))
        assert bool(unbounded) == small, (query.name, unbounded)


def test_a_read_without_a_key_would_be_found():
    select = sqlglot.parse_one("SELECT A FROM T WHERE STATUS = ? OR RUN_ID = ?", read="snowflake")

    assert reads_a_table(select)
    assert not named_keys(select) & KEYS


def test_every_limit_has_an_order():
    for name, select in ((query.name, select) for query in CHANGES for select in parsed(query).find_all(exp.Select)):
        off_the_fast_path = select.args.get("limit") and not select.args.get("order")
        assert not off_the_fast_path, f"{name} has a LIMIT alone"


def test_readers_of_standard_tables_take_one_row_of_each_key():
    """Nothing enforces a key there, and a statement that was given up may be executed late."""
    keys = {table.name.lower(): table.key[-1] for table in TABLES.values() if not table.hybrid}
    reads = [query for query in QUERIES if query.name.split(".")[0] in keys and query.name.endswith(("read", "newest"))]

    missing = [query.name for query in reads if "QUALIFY ROW_NUMBER() OVER (PARTITION BY" not in query.sql]

    assert len(reads) == 9
    assert missing == []
    for query in reads:
        partition = re.search(r"PARTITION BY ([\w, ]+) ORDER BY", query.sql)
        assert partition is not None
        assert keys[query.name.split(".")[0]] in partition[1]


# --- tables ----------------------------------------------------------------------------------------------------------


def test_every_table_is_made_once_and_only_when_it_is_not_there():
    assert max(Counter(query.sql.split("(")[0].split()[-1] for query in CREATES).values()) == 1
    for query in CREATES:
        assert re.match(r"CREATE (HYBRID )?TABLE IF NOT EXISTS [A-Z_]+ \(", query.sql)


def test_hybrid_tables_have_an_enforceable_key():
    of_runs = ["RUN_CONTROL_EVENTS", "RUN_LEASES", "RUN_STATUS", "WORKER_HEARTBEATS"]
    of_nights = ["POOL_WORKERS", "RUN_ATTEMPTS", "RUN_QUEUE", "SCHEDULES", "SCHEDULE_FIRES"]
    of_nights += ["RUN_ATTEMPT_ENDS", "SCHEDULE_PROGRESS"]
    of_experiments = ["EXPERIMENTS", *(f"EXPERIMENT_{name}" for name in ("BLOCKS", "MEASUREMENTS", "ENDS"))]
    of_experiments += ["EXPERIMENT_WAREHOUSES", "EXPERIMENT_WAREHOUSE_RESTORES", "EXPERIMENT_METERINGS"]
    assert sorted(HYBRID) == sorted([*of_runs, *of_nights, *of_experiments, "STOP_REQUESTS"])
    for table in TABLES.values():
        assert table.key
        assert all("NOT NULL" in table.columns[column] for column in table.key)


def test_indexed_columns_are_narrow():
    for table in TABLES.values():
        for column in table.indexed:
            kind = table.columns[column].split()[0]
            width = re.fullmatch(r"VARCHAR\((\d+)\)", kind)
            assert (width and int(width[1]) <= 255) or kind in ("NUMBER(38,0)", "TIMESTAMP_NTZ"), (table.name, column)


def test_columns_have_no_defaults_and_times_no_zone():
    for table in TABLES.values():
        for column, kind in table.columns.items():
            assert "DEFAULT" not in kind.upper(), (table.name, column)
            assert not re.search(r"TIMESTAMP_(LTZ|TZ)|\bTIMESTAMP\b|DATETIME", kind), (table.name, column)


def test_json_in_hybrid_tables_is_text():
    kinds = {kind.split()[0] for name in HYBRID for kind in TABLES[name].columns.values()}

    assert not {kind for kind in kinds if re.match("VARIANT|OBJECT|ARRAY", kind)}


COLUMNS = {
    "RUN_CONTROL_EVENTS": "RUN_ID SEQUENCE_ID EVENT_ID EPOCH EVENT_TYPE EVENT_DATA CREATED_AT",
    "WORKER_HEARTBEATS": """RUN_ID WORKER_ID WORKER_GROUP_ID STATUS PHASE LAST_HEARTBEAT HEARTBEAT_COUNT
        ACTIVE_CONNECTIONS OPEN_CONNECTIONS TARGET_CONNECTIONS LAST_ERROR ERROR_COUNT LIVE_METRICS LAST_SEQUENCE_ID
        HOSTNAME PID VERSION LABELS CPU_PERCENT MEMORY_PERCENT CREATED_AT UPDATED_AT""",
    "WINDOW_RESULTS": "RUN_ID WORKER_ID WINDOW_ID EPOCH PHASE STEP_ID SECONDS COUNTS BUCKETS CREATED_AT",
    "VALUE_POOLS": "RUN_ID POOL CHUNK VALUES CREATED_AT",
    "WORKER_METRICS_SNAPSHOTS": """SNAPSHOT_ID RUN_ID TEST_ID WORKER_ID WORKER_GROUP_ID WORKER_GROUP_COUNT TIMESTAMP
        ELAPSED_SECONDS PHASE TOTAL_QUERIES READ_COUNT WRITE_COUNT ERROR_COUNT QPS P50_LATENCY_MS P95_LATENCY_MS
        P99_LATENCY_MS AVG_LATENCY_MS MIN_LATENCY_MS MAX_LATENCY_MS ACTIVE_CONNECTIONS TARGET_CONNECTIONS CPU_PERCENT
        MEMORY_PERCENT CUSTOM_METRICS CREATED_AT""",
    "QUERY_EXECUTIONS": """EXECUTION_ID RUN_ID TEST_ID WORKER_ID QUERY_ID STATEMENT_NAME QUERY_KIND PHASE STEP_ID
        START_TIME DUE_LAG_MS DURATION_MS ROWS_AFFECTED SUCCESS ERROR_CATEGORY ERROR_CODE ERROR ENRICHMENT_STATUS
        SF_TOTAL_MS SF_COMPILE_MS SF_EXECUTION_MS SF_QUEUED_OVERLOAD_MS SF_QUEUED_PROVISIONING_MS SF_BLOCKED_MS
        SF_BYTES_SCANNED SF_CLUSTER CREATED_AT""",
    "TEST_RESULTS": """TEST_ID RUN_ID WORKER_ID WORKER_GROUP_ID TEMPLATE_ID STATUS CREATED_AT END_TIME
        TOTAL_OPERATIONS READ_OPERATIONS WRITE_OPERATIONS FAILED_OPERATIONS P50_LATENCY_MS P95_LATENCY_MS
        P99_LATENCY_MS AVG_LATENCY_MS FIND_MAX_RESULT SUMMARY""",
    "TEST_LOGS": "LOG_ID RUN_ID TEST_ID WORKER_ID LEVEL MESSAGE DETAILS TIMESTAMP CREATED_AT",
    "FIND_MAX_STEP_HISTORY": """RUN_ID STEP_NUMBER TARGET_CONNECTIONS WINDOW_START_TIME WINDOW_END_TIME SUCCEEDED
        FAILED QPS P50_LATENCY_MS P95_LATENCY_MS P99_LATENCY_MS ERROR_RATE QUEUE_SEEN OUTCOME REASON CREATED_AT""",
    "WAREHOUSE_POLL_SNAPSHOTS": """SNAPSHOT_ID RUN_ID TIMESTAMP RUNNING QUEUED STARTED_CLUSTERS SIZE RAW
        CREATED_AT""",
    "RUN_STATUS": """RUN_ID TEST_ID TEMPLATE_ID TEST_NAME SCENARIO_CONFIG STATUS PHASE START_TIME WARMUP_START_TIME
        WARMUP_END_TIME END_TIME TOTAL_WORKERS_EXPECTED WORKERS_REGISTERED WORKERS_ACTIVE WORKERS_COMPLETED TOTAL_OPS
        ERROR_COUNT CURRENT_QPS FIND_MAX_STATE WORKER_TARGETS NEXT_SEQUENCE_ID LEASE_EPOCH REASON VERDICT
        ENRICHMENT_STATUS CREATED_AT UPDATED_AT""",
    "RUN_LEASES": "RUN_ID EPOCH OWNER EXPIRES_AT",
}
KEY = {
    "RUN_CONTROL_EVENTS": "RUN_ID SEQUENCE_ID",
    "WORKER_HEARTBEATS": "RUN_ID WORKER_ID",
    "WINDOW_RESULTS": "RUN_ID WORKER_ID WINDOW_ID",
    "VALUE_POOLS": "RUN_ID POOL CHUNK",
    "WORKER_METRICS_SNAPSHOTS": "SNAPSHOT_ID",
    "QUERY_EXECUTIONS": "EXECUTION_ID",
    "TEST_RESULTS": "TEST_ID",
    "TEST_LOGS": "LOG_ID",
    "FIND_MAX_STEP_HISTORY": "RUN_ID STEP_NUMBER",
    "WAREHOUSE_POLL_SNAPSHOTS": "SNAPSHOT_ID",
    "RUN_STATUS": "RUN_ID",
    "RUN_LEASES": "RUN_ID EPOCH",
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_table_has_the_columns_that_others_rely_on(name):
    assert sorted(TABLES[name].columns) == sorted(COLUMNS[name].split())
    assert " ".join(TABLES[name].key) == KEY[name]


def test_an_event_can_be_sent_again_without_harm():
    assert "EVENT_ID" in TABLES["RUN_CONTROL_EVENTS"].indexed  # UNIQUE
    assert "EVENT_ID" not in TABLES["RUN_CONTROL_EVENTS"].key


BATCHES = [query for query in QUERIES if query.name.endswith(".append") and "FLATTEN" in query.sql]
CASTS = {"VARIANT": "PARSE_JSON(VALUE[{}]::VARCHAR)"}  # a text of JSON: it may be NULL, which is no JSON null


@pytest.mark.parametrize("query", BATCHES, ids=lambda query: query.name)
def test_a_batch_is_cast_to_the_types_of_its_columns(query):
    insert = parsed(query)
    table = TABLES[insert.this.this.name]
    values = [value.sql("snowflake") for value in insert.expression.expressions]

    for number, column in enumerate(insert.this.expressions):
        kind = re.sub(r"VARCHAR\(.*\)", "VARCHAR", table.columns[column.name].split(" ")[0])
        wanted = CASTS.get(kind, "VALUE[{}]::" + kind).format(number)
        assert values[number] in (
            sqlglot.parse_one(wanted, read="snowflake").sql("snowflake"),
            "'PENDING'",
            "SYSDATE()",
        )


def test_many_rows_are_one_scalar_bind():
    assert len(BATCHES) == 4
    assert [query.name for query in QUERIES if re.search(r"FROM\s+VALUES|\bcolumn1\b", query.sql)] == []
    assert all(query.binds == 1 for query in BATCHES)
