"""A capture of statements that really ran, through the real driver and the embedded server's query history."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlglot

from loadgen.capture import history as history_module
from loadgen.cli.main import main
from loadgen.model.capture import RecordedStatement, check_header
from tests.embedded_server import EmbeddedServer

Capture = Callable[..., dict[str, Any]]


@pytest.fixture
def warehouse(connect: Callable[..., Any], database: str) -> str:
    """A warehouse that only this test uses."""
    name = f"{database}_WH"
    connect().cursor().execute(f"CREATE WAREHOUSE {name}")
    return name


@pytest.fixture
def capture(
    server: EmbeddedServer, warehouse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Capture:
    """`loadgen capture` of the warehouse of the test; returns what it printed."""
    monkeypatch.setenv("LOADGEN_EMBEDDED_ADDRESS", server.address)

    def run(*words: str, out: str = "captured", code: int = 0) -> dict[str, Any]:
        place = ["-c", "embedded", "--warehouse", warehouse, "--from", "1h", "--out", str(tmp_path / out)]
        assert main(["capture", *place, "--format", "json", *words]) == code
        said = capsys.readouterr()
        return json.loads(said.out) if code == 0 else {"error": said.err}

    return run


def statements_of(folder: Path) -> list[RecordedStatement]:
    with gzip.open(folder / "statements.jsonl.gz", "rt", encoding="utf-8") as file:
        check_header(file.readline())
        return [RecordedStatement.of_line(line) for line in file]


def workload(connect: Callable[..., Any], warehouse: str) -> int:
    """Two sessions with binds, literals, comments and context. How many statements can be replayed."""
    first, second = connect(warehouse=warehouse).cursor(), connect(warehouse=warehouse).cursor()
    first.execute("CREATE OR REPLACE TABLE people (id INT, name VARCHAR, born DATE)")
    first.execute("INSERT INTO people VALUES (1, 'Catherine Johnson', '1970-05-17') -- by Grace")
    second.execute("ALTER SESSION SET TIMEZONE = 'UTC'")
    second.execute("SELECT name FROM people WHERE id = ? AND name = ?", (4711471147, "Catherine Johnson"))
    first.execute("SELECT /* Grace */ id FROM people WHERE born BETWEEN '1970-05-01' AND '1970-05-31' LIMIT 10")
    second.execute("SELECT name FROM people WHERE id = ? AND name = ?", (4712, "Dorothy"))
    with pytest.raises(Exception, match="does not exist"):
        second.execute("SELECT * FROM missing_table")
    return 5


def test_statements_of_a_warehouse_are_captured(capture, connect, warehouse, tmp_path, cursor):
    replayable = workload(connect, warehouse)

    said = capture()

    found = statements_of(tmp_path / "captured")
    everything = "\n".join(one.line() for one in found)
    assert said["statements"] == replayable == len(found)
    assert (said["sessions"], said["templates_total"]) == (2, 4)
    assert (said["left_out"]["failed"], said["left_out"]["not_replayable"]) == (1, 1)
    assert (said["unrecorded"], said["unrecorded_note"][:32]) == (0, "AGGREGATE_QUERY_HISTORY is up to")
    assert [one.role for one in found] == ["write", "context", "read", "read", "read"]
    # Long enough not to come about by chance: keys, and with them pseudonyms, are new each time.
    for word in ("Catherine", "Johnson", "Grace", "Dorothy", "4711471147"):
        assert word not in everything
    assert [kind for kind, _ in found[2].binds] == ["FIXED", "TEXT"]
    assert found[0].sql.split("'")[1] == found[2].binds[1][1]  # one name, one pseudonym
    for one in found:
        assert sqlglot.parse_one(one.sql, dialect="snowflake").sql("snowflake")
        cursor.execute(one.sql, [value for _, value in one.binds] or None)


SHAPES = (
    "SELECT name, COUNT(*) FROM people WHERE id IN (4711, 4712) OR name LIKE 'Ca%' GROUP BY 1 ORDER BY 2 DESC LIMIT 10",
    "SELECT id FROM people WHERE born BETWEEN '1970-05-01'::DATE AND DATEADD(day, 30, '1970-05-01'::DATE)",
    "SELECT id FROM people WHERE born = TO_DATE('19700517', 'YYYYMMDD') AND seen > TO_TIMESTAMP_NTZ(1700000000)",
    "SELECT TO_DATE('31.12.2026', 'DD.MM.YYYY'), TO_TIMESTAMP_NTZ('2026-12-31 23:59:58.123'), '17:30:00'::TIME",
    "SELECT CASE WHEN name = 'Dorothy' THEN 77 ELSE -5.25 END, name || ' Johnson', 0.5, 1e3 FROM people",
    "SELECT doc:address.city::VARCHAR, doc['zip']::INT FROM people WHERE doc:address.city = 'Zürich'",
    "SELECT f.value::VARCHAR FROM people, LATERAL FLATTEN(INPUT => people.doc:tags) f WHERE f.value = 'gold'",
    "SELECT id FROM people QUALIFY ROW_NUMBER() OVER (PARTITION BY name ORDER BY id DESC) = 1",
    "WITH old AS (SELECT * FROM people WHERE born < '1950-01-01') SELECT o.id FROM old o JOIN people p ON o.id = p.id",
    "SELECT id FROM people WHERE REGEXP_LIKE(name, 'Cath.*|Doro[a-z]+') OR name ILIKE '%son'",
    "SELECT DATE_TRUNC('month', born), TO_CHAR(born, 'YYYY-MM'), ROUND(id, 2) FROM people UNION SELECT NULL, 'x', 3",
    "INSERT INTO people SELECT 5, 'it''s $$ \\\\ \"new\"', '1999-12-31', '2026-01-01 10:00:00',"
    ' PARSE_JSON(\'{"a": [1, "b"]}\')',
    "UPDATE people SET name = 'Grace', seen = '2026-11-15 08:00:00' WHERE id = 5 AND name <> 'Ada'",
    "MERGE INTO people USING (SELECT 6 AS k, 'Ada' AS n) s ON people.id = s.k WHEN MATCHED THEN UPDATE SET name = s.n"
    " WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.k, 'Barbara')",
    "DELETE FROM people WHERE id = 6 OR id IN (SELECT id FROM people WHERE name = 'Nobody')",
)


def test_every_captured_text_parses_and_one_of_each_shape_executes(capture, connect, warehouse, tmp_path, cursor):
    before = connect(warehouse=warehouse).cursor()
    columns = "id INT, name VARCHAR, born DATE, seen TIMESTAMP_NTZ, doc VARIANT"
    cursor.execute(f"CREATE OR REPLACE TABLE people ({columns})")
    for sql in (*SHAPES, *SHAPES):
        before.execute(sql)

    said = capture()

    found = statements_of(tmp_path / "captured")
    assert len(found) == 2 * len(SHAPES)
    assert said["templates_total"] == len(SHAPES)
    for one in found:
        assert sqlglot.parse_one(one.sql, dialect="snowflake").sql("snowflake")
    for one in {one.template: one for one in found}.values():
        cursor.execute(one.sql)


def test_full_pages_are_followed_by_more_pages(capture, connect, warehouse, tmp_path, monkeypatch):
    monkeypatch.setattr(history_module, "PAGE_ROWS", 7)
    cursor = connect(warehouse=warehouse).cursor()
    for number in range(40):
        cursor.execute("SELECT ?", (number,))

    said = capture("--keep-values")

    found = statements_of(tmp_path / "captured")
    assert said["statements"] == 40
    assert [one.binds[0][1] for one in found] == [str(number) for number in range(40)]


def test_an_interrupted_capture_is_continued(capture, connect, warehouse, tmp_path, server, monkeypatch):
    monkeypatch.setattr(history_module, "PAGE_ROWS", 7)
    cursor = connect(warehouse=warehouse).cursor()
    for number in range(40):
        cursor.execute("SELECT ?", (number,))
    server.fault(match="QUERY_HISTORY_BY_WAREHOUSE", kind="latency", ms=1, count=2)  # two pages are read
    server.fault(match="QUERY_HISTORY_BY_WAREHOUSE", kind="error", errno=3001)

    failed = capture("--keep-values", code=3)
    server.clear_faults()
    server.fault(match="AGGREGATE_QUERY_HISTORY", kind="error", errno=2003, sqlstate="02000")  # it is not granted
    said = capture("--keep-values")

    assert "hint: The role needs MONITOR" in failed["error"]
    assert (said["unrecorded"], said["unrecorded_note"][-32:]) == (None, "could not be read with this role")
    assert said["statements"] == 40
    assert len({one.binds for one in statements_of(tmp_path / "captured")}) == 40


def test_filters_and_invalid_spans_are_reported(capture, connect, warehouse):
    workload(connect, warehouse)

    assert capture("--kind", "write", out="writes")["roles"] == {"write": 1, "context": 1}
    assert "is not before --to" in capture("--to", "2h", out="never", code=2)["error"]
    assert "WH has no statement that ended from" in capture("--warehouse", "NO_WH", out="never", code=2)["error"]
    assert "error: --to 'soon' is not a time" in capture("--to", "soon", out="never", code=2)["error"]
