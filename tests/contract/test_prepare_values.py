"""The values of prepared tables and pools match the scenario: computed by the server, and bound."""

from __future__ import annotations

import re
import string
import uuid
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from loadgen.errors import LoadgenError, RunFailed, ScenarioInvalid
from loadgen.prepare.fill import BoundRows
from loadgen.prepare.prepare import read_pools
from loadgen.prepare.session import server_version
from loadgen.prepare.table_definition import define
from loadgen.scenario.read import parse_scenario
from loadgen.snowflake.ident import QualifiedName
from tests.contract.prepare_builders import KEY, NUMBER, SKEWED, PrepareHarness, table

pytestmark = pytest.mark.any_driver
# --- values ----------------------------------------------------------------------------------------------------------
VALUES = """
  {name: ID, type: "NUMBER(38,0)", primary_key: true, generate: {sequence: {start: -10}}},
  {name: DIE, type: INTEGER, generate: {uniform: {min: 1, max: 6}}},
  {name: AMOUNT, type: FLOAT, generate: {uniform: {min: -1.5, max: 2.5}}},
  {name: CENTS, type: "NUMBER(12,2)", generate: {uniform: {min: 0.0, max: 0.03}}},
  {name: STATUS, type: VARCHAR(12), generate: {choice: {NEW: 70, PAID: 20, SHIPPED: 10, NEVER: 0}}},
  {name: CODE, type: INTEGER, generate: {choice: {"1": 1, "2": 3}}},
  {name: MIXED, type: VARCHAR, generate: {choice: [1, two, true, null]}},
  {name: LETTERS, type: VARCHAR(40), generate: {text: {length: 40}}},
  {name: BITS, type: VARCHAR(9), generate: {text: {length: 3, max_length: 9, alphabet: "01é"}}},
  {name: U, type: VARCHAR(36), generate: {uuid: {}}},
  {name: MOMENT, type: TIMESTAMP_NTZ, generate: {timestamp: {min: "2026-01-01", max: "2026-01-02"}}},
  {name: DAY, type: DATE, generate: {timestamp: {min: "2026-01-01", max: "2026-01-03"}}},
  {name: BELL, type: FLOAT, generate: {normal: {mean: 50, stddev: 10}}},
  {name: WHOLE, type: INTEGER, generate: {normal: {mean: 0, stddev: 2, whole: true}}},
  {name: ODD, type: VARCHAR, generate: {literal: "it's \\\\ odd; ?"}},
  {name: YES, type: BOOLEAN, generate: {literal: true}},
  {name: NOTHING, type: INTEGER}
"""
ROWS = 10_000


@pytest.fixture(scope="module", params=["by server", "bound"])
def made(request, server) -> list[dict[str, Any]]:
    """The same columns, made by the server and made here; the seed is fixed, and so is every number below."""
    columns = VALUES + (f", {SKEWED}" if request.param == "bound" else "")
    database = f"VALUES_{request.param.replace(' ', '_').upper()}"
    with server.connect(database=database, schema="PUBLIC") as connection:
        harness = PrepareHarness(server, database, connection.cursor())
        harness.prepare(harness.scenario(table(columns, rows=ROWS)))
        names = re.findall(r"{name: (\w+)", columns)
        found = harness.rows(f"SELECT {', '.join(names)} FROM T ORDER BY ID")
    return [dict(zip(names, row, strict=True)) for row in found]


def share(values: list[Any], value: object) -> float:
    return values.count(value) / len(values)


def test_values_are_distributed_as_in_the_scenario(made):
    columns: dict[str, list[Any]] = {name: [row[name] for row in made] for name in made[0]}

    assert columns["ID"] == list(range(-10, ROWS - 10))
    assert sorted(set(columns["DIE"])) == [1, 2, 3, 4, 5, 6]
    assert all(share(columns["DIE"], side) == pytest.approx(1 / 6, abs=0.01) for side in range(1, 7))
    assert -1.5 <= min(columns["AMOUNT"]) < -1.499
    assert 2.499 < max(columns["AMOUNT"]) < 2.5
    assert sum(columns["AMOUNT"]) / ROWS == pytest.approx(0.5, abs=0.03)
    assert sorted(map(str, set(columns["CENTS"]))) == ["0.00", "0.01", "0.02", "0.03"]
    assert [share(columns["STATUS"], word) for word in ("NEW", "PAID", "SHIPPED", "NEVER")] == pytest.approx(
        [0.7, 0.2, 0.1, 0.0], abs=0.01
    )
    assert [share(columns["CODE"], 1), share(columns["CODE"], 2)] == pytest.approx([0.25, 0.75], abs=0.01)
    assert all(share(columns["MIXED"], one) == pytest.approx(0.25, abs=0.01) for one in ("1", "two", "true", None))
    assert sum(columns["BELL"]) / ROWS == pytest.approx(50, abs=0.3)
    assert sum(abs(value - 50) < 10 for value in columns["BELL"]) / ROWS == pytest.approx(0.6827, abs=0.01)
    assert share(columns["WHOLE"], 0) == pytest.approx(0.1974, abs=0.01)
    assert set(columns["ODD"]) == {"it's \\ odd; ?"}
    assert (set(columns["YES"]), set(columns["NOTHING"])) == ({True}, {None})


def test_texts_identifiers_and_moments_are_what_they_should_be(made):
    letters = Counter("".join(row["LETTERS"] for row in made))
    bits = Counter("".join(row["BITS"] for row in made))
    lengths = Counter(len(row["BITS"]) for row in made)
    moments = [row["MOMENT"] for row in made]

    assert {len(row["LETTERS"]) for row in made} == {40}
    assert sorted(letters) == sorted(string.ascii_lowercase)
    assert all(count / (ROWS * 40) == pytest.approx(1 / 26, abs=0.001) for count in letters.values())
    assert len({row["LETTERS"] for row in made}) == ROWS
    assert sorted(bits) == ["0", "1", "é"]
    assert all(count / bits.total() == pytest.approx(1 / 3, abs=0.005) for count in bits.values())
    assert sorted(lengths) == [3, 4, 5, 6, 7, 8, 9]
    assert all(count / ROWS == pytest.approx(1 / 7, abs=0.01) for count in lengths.values())
    parsed = [uuid.UUID(row["U"]) for row in made]
    assert {(one.version, one.variant) for one in parsed} == {(4, uuid.RFC_4122)}
    assert [str(one) for one in parsed] == [row["U"] for row in made]
    assert len(set(parsed)) == ROWS
    assert datetime(2026, 1, 1) <= min(moments) < datetime(2026, 1, 1, 0, 1)  # noqa: DTZ001
    assert datetime(2026, 1, 1, 23, 59) < max(moments) < datetime(2026, 1, 2)  # noqa: DTZ001
    assert {str(row["DAY"]) for row in made} == {"2026-01-01", "2026-01-02"}


def test_columns_are_independent_of_each_other(made):
    pairs = Counter((row["DIE"] > 3, row["STATUS"] == "NEW") for row in made)

    assert pairs[True, True] / ROWS == pytest.approx(0.35, abs=0.015)


def test_bound_rows_are_those_of_the_workload_generators(harness):
    scenario = harness.scenario(
        table(f"{KEY}, {SKEWED}, {{name: T, type: VARCHAR, generate: {{text: {{length: 9}}}}}}")
    )
    harness.prepare(scenario)
    definition = define(scenario.prepare.tables[0], scenario, QualifiedName.parse("T"))

    assert harness.rows("SELECT ID, N, T FROM T ORDER BY ID") == BoundRows(definition).take(0, 3000)


def test_the_seed_decides(harness):
    columns = f"{KEY}, {NUMBER}"
    harness.prepare(harness.scenario(table(columns)))
    first = harness.rows("SELECT N FROM T ORDER BY ID")
    harness.prepare(harness.scenario(table(columns)), drop=True)

    assert harness.rows("SELECT N FROM T ORDER BY ID") == first
    assert [row[0] for row in first[:8]] == [
        1 + digest_of(f"1.{crc_of('T')}.1.0.{number}") % 6 for number in range(8)
    ]  # so any server that knows MD5 gives the same


def digest_of(text: str) -> int:
    import hashlib

    return int.from_bytes(hashlib.md5(text.encode()).digest()[8:], "big")


def crc_of(text: str) -> int:
    import zlib

    return zlib.crc32(text.encode())


# --- statements and pools --------------------------------------------------------------------------------------------


def test_statements_run_each_time_after_the_tables(harness):
    scenario = harness.scenario(
        table(KEY, rows=10), 'statements: ["DELETE FROM T WHERE ID > 10", "DELETE FROM T WHERE ID > 9"]'
    )

    assert harness.prepare(scenario).statements == 2
    assert harness.counts("T") == (9, 9)
    harness.cursor.execute("INSERT INTO T (ID) VALUES (11)")
    harness.prepare(scenario)

    assert harness.counts("T") == (9, 9)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (None, ScenarioInvalid, "NOWHERE.*prepare.statements.1."),
        ({"kind": "error", "errno": 100051, "sqlstate": "22012"}, RunFailed, r"prepare.statements\[1\]: DELETE"),
        ({"kind": "drop_reply"}, RunFailed, r"prepare.statements\[1\].*may have been executed: "),
    ],
    ids=["wrong", "refused", "lost"],
)
def test_a_statement_that_fails_is_named_and_not_repeated(harness, fault, kind, words):
    if fault is not None:
        harness.cursor.execute("CREATE TABLE NOWHERE (A INTEGER)")
        harness.server.fault(match=f"DELETE FROM {harness.database}.PUBLIC.NOWHERE", **fault)
    statements = f'statements: ["SELECT 1", "DELETE FROM {harness.database}.PUBLIC.NOWHERE"]'

    with pytest.raises(LoadgenError, match=re.compile(words, re.DOTALL)) as error:
        harness.prepare(harness.scenario("", statements), one_attempt=True)

    assert type(error.value) is kind
    assert harness.sent("DELETE") == 1


def test_pools_are_read_in_order_from_queries_and_files(harness, tmp_path):
    (tmp_path / "regions.csv").write_text("CODE,NAME\n1,north\n2,south\n", "utf-8")
    text = (
        f"version: 1\nname: x\nconnection: embedded\ntarget: {{database: {harness.database}, schema: PUBLIC}}\n"
        f"prepare: {{tables: [{table(KEY, rows=25_000)}]}}\n"
        "values: {id: {query: SELECT ID FROM T ORDER BY ID DESC}, region: {file: regions.csv, column: NAME},"
        " none: {query: SELECT ID FROM T WHERE ID < 0}}\n"
        "workload: {statements: [{name: s, sql: SELECT 1}]}\n"
    )
    scenario = parse_scenario(text, source="x.yaml", folder=tmp_path, environ={}).scenario
    harness.prepare(scenario)
    session = harness.session(scenario)

    with pytest.raises(ScenarioInvalid, match="value pool none"):
        read_pools(session, scenario, tmp_path)
    harness.cursor.execute("INSERT INTO T (ID) VALUES (-5)")
    pools = read_pools(session, scenario, tmp_path)
    session.close()

    assert pools["id"].values == (*range(25_000, 0, -1), -5)
    assert pools["region"].values == ("north", "south")
    assert pools["none"].values == (-5,)


def test_the_version_of_the_server_is_shown_and_a_server_without_one_is_no_error(harness, server):
    session = harness.session(harness.scenario(""))
    harness.cursor.execute("SELECT CURRENT_VERSION()")
    ((version,),) = harness.cursor.fetchall()

    told = server_version(session)
    server.fault(match="CURRENT_VERSION", kind="error", errno=3001, count=1)
    refused = server_version(session)
    session.close()

    assert (told, refused) == (version, None)
