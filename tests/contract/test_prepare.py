"""Preparing a scenario's tables: the real driver against the embedded server, with faults, on both majors."""

from __future__ import annotations

import re
import string
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from loadgen.clock import SystemClock
from loadgen.errors import ConfigurationError, LoadgenError, PrivilegeMissing, RunFailed, ScenarioInvalid
from loadgen.prepare.definition import define
from loadgen.prepare.pools import read_pools
from loadgen.prepare.prepare import (
    Outcome,
    PreparationStopped,
    Prepared,
    Progress,
    Step,
    TableInTheWay,
    check_scenario,
    prepare_scenario,
)
from loadgen.prepare.rows import BoundRows
from loadgen.prepare.session import Session
from loadgen.prepare.survey import State
from loadgen.prepare.target import opener, server_version, target_profile
from loadgen.scenario.read import parse_scenario
from loadgen.scenario.scenario import Scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import connect as open_session
from loadgen.snowflake.ident import QualifiedName
from loadgen.snowflake.lookup import EMBEDDED_ADDRESS
from loadgen.snowflake.settings import load_settings
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, wait_until

pytestmark = pytest.mark.any_driver

KEY = '{name: ID, type: "NUMBER(38,0)", primary_key: true, generate: {sequence: {start: 1}}}'
NUMBER = "{name: N, type: INTEGER, generate: {uniform: {min: 1, max: 6}}}"
SKEWED = "{name: N, type: INTEGER, generate: {zipfian: {min: 1, max: 6}}}"  # has no SQL form


class Bench:
    """A scenario's preparation in the test's own database."""

    def __init__(self, server: EmbeddedServer, database: str, cursor: Any) -> None:
        self.server, self.database, self.cursor = server, database, cursor
        self.stop = threading.Event()
        self.told: list[Progress] = []
        self._environ = {EMBEDDED_ADDRESS: server.address}

    def scenario(self, tables: str, more: str = "") -> Scenario:
        text = (
            f"version: 1\nname: x\nconnection: embedded\ntarget: {{database: {self.database}, schema: PUBLIC}}\n"
            f"prepare: {{tables: [{tables}]{', ' if more else ''}{more}}}\n"
            "workload: {statements: [{name: s, sql: SELECT 1}]}\n"
        )
        return parse_scenario(text, source="x.yaml", folder=Path(), environ={}).scenario

    def session(self, scenario: Scenario, *, one_attempt: bool = False) -> Session:
        """With one attempt per statement the driver hides no lost answer from us."""
        profile = target_profile(scenario, None, environ=self._environ)
        settings = load_settings(profile, major=driver.major(), statement_limit_s=30, tag="prepare")
        own = opener(profile, scenario, environ=self._environ)
        return Session(
            (lambda: open_session(profile, settings)) if one_attempt else own, stop=self.stop, clock=SystemClock()
        )

    def prepare(
        self,
        scenario: Scenario,
        *,
        one_attempt: bool = False,
        progress: Callable[[Progress], None] | None = None,
        **how: bool,
    ) -> Prepared:
        session = self.session(scenario, one_attempt=one_attempt)
        try:
            tell = progress or self.told.append
            return prepare_scenario(session, scenario, progress=tell, stop=self.stop, clock=SystemClock(), **how)
        finally:
            session.close()

    def states(self, scenario: Scenario) -> list[State]:
        session = self.session(scenario)
        try:
            return [standing.state for standing in check_scenario(session, scenario)]
        finally:
            session.close()

    def rows(self, sql: str) -> list[Any]:
        return list(self.cursor.execute(sql).fetchall())

    def counts(self, table: str) -> tuple[int, int]:
        ((rows, different),) = self.rows(f"SELECT COUNT(*), COUNT(DISTINCT ID) FROM {table}")
        return rows, different

    def sent(self, start: str) -> int:
        found = self.server.ask(f"/__loadgen/journal?match={self.database}")
        return sum(entry["sql_text"].startswith(start) for entry in found)


def table(columns: str, *, name: str = "T", kind: str = "hybrid", rows: int = 3000, more: str = "") -> str:
    return f"{{name: {name}, type: {kind}, rows: {rows}, columns: [{columns}]{more}}}"


@pytest.fixture
def bench(server: EmbeddedServer, database: str, cursor: Any) -> Iterator[Bench]:
    bench = Bench(server, database, cursor)
    yield bench
    bench.stop.set()  # ends what a failed test has left


# --- making and finding ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hybrid", "standard"])
@pytest.mark.parametrize("second", [NUMBER, SKEWED], ids=["by server", "bound"])
def test_a_second_preparation_does_nothing(bench, kind, second):
    scenario = bench.scenario(table(f"{KEY}, {second}", kind=kind))
    assert bench.states(scenario) == [State.MISSING]

    first = bench.prepare(scenario)
    inserts = bench.sent("INSERT")
    again = bench.prepare(scenario)

    assert [(one.outcome, one.rows_added) for one in first.tables] == [(Outcome.CREATED, 3000)]
    assert [(one.outcome, one.rows_added) for one in again.tables] == [(Outcome.READY, 0)]
    assert bench.sent("INSERT") == inserts > 0
    assert bench.counts("T") == (3000, 3000)
    assert bench.states(scenario) == [State.READY]
    assert [told.rows_there for told in bench.told if told.step is Step.FILLING][-1] == 3000


def test_a_hybrid_table_has_its_index_and_enforces_its_key(bench):
    bench.prepare(bench.scenario(table(f"{KEY}, {NUMBER}", rows=10, more=", indexes: [{columns: [N]}]")))

    assert bench.rows("SELECT NAME FROM INFORMATION_SCHEMA.INDEXES WHERE TABLE_NAME = 'T'") == [("T_IDX1",)]
    with pytest.raises(Exception, match="200001"):
        bench.cursor.execute("INSERT INTO T (ID) VALUES (1)")


def test_odd_names_stay_names(bench):
    """A name that would be a statement, were it not quoted."""
    columns = f'{KEY}, {{name: \'"b ""; DROP"\', type: INTEGER, generate: {{literal: 5}}}}'

    bench.prepare(bench.scenario(table(columns, name="'\"a; DROP TABLE x --\"'", rows=5)))

    assert bench.rows('SELECT "b ""; DROP" FROM "a; DROP TABLE x --" LIMIT 1') == [(5,)]


def test_tables_without_rows_are_made_empty(bench):
    scenario = bench.scenario(table("{name: ID, type: INTEGER, primary_key: true}", rows=0))

    assert bench.prepare(scenario).tables[0].outcome is Outcome.CREATED
    bench.cursor.execute("INSERT INTO T (ID) VALUES (5)")
    assert bench.prepare(scenario).tables[0].outcome is Outcome.READY
    assert bench.rows("SELECT ID FROM T") == [(5,)]


# --- whose table -----------------------------------------------------------------------------------------------------


def test_a_foreign_table_is_refused_and_stays(bench):
    bench.cursor.execute("CREATE TABLE T (MINE INTEGER) COMMENT = 'precious'")
    bench.cursor.execute("INSERT INTO T VALUES (1)")
    scenario = bench.scenario(f"{table(KEY, name='FIRST')}, {table(KEY)}")

    for how in ({}, {"drop": True}):
        with pytest.raises(TableInTheWay, match="loadgen has not made it") as error:
            bench.prepare(scenario, **how)
        assert "--force" in error.value.remedy

    assert error.value.exit_code == 2
    assert bench.rows("SELECT MINE FROM T") == [(1,)]
    assert bench.rows("SELECT COUNT(*) FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME = 'FIRST'") == [(0,)]
    assert bench.prepare(scenario, drop=True, force=True).tables[1].dropped
    assert bench.counts("T") == (3000, 3000)


def test_another_definition_is_refused_until_it_is_dropped(bench):
    bench.prepare(bench.scenario(table(KEY, rows=100)))
    changed = bench.scenario(table(f"{KEY}, {NUMBER}", rows=200))

    with pytest.raises(TableInTheWay, match="made for 100 rows, the scenario says 200; its columns") as error:
        bench.prepare(changed)
    assert "--drop" in error.value.remedy
    assert bench.counts("T") == (100, 100)
    assert bench.states(changed) == [State.DIFFERENT]

    done = bench.prepare(changed, drop=True)
    assert [(one.outcome, one.dropped) for one in done.tables] == [(Outcome.CREATED, True)]
    assert bench.counts("T") == (200, 200)


def test_an_existing_table_must_be_readable_and_is_never_touched(bench):
    scenario = bench.scenario("{name: THEIRS, type: existing}")
    with pytest.raises(ConfigurationError, match="THEIRS has type existing, but cannot be read"):
        bench.prepare(scenario)
    bench.cursor.execute("CREATE TABLE THEIRS (A INTEGER)")
    bench.cursor.execute("INSERT INTO THEIRS VALUES (1)")

    done = bench.prepare(scenario, drop=True, force=True)

    assert [one.outcome for one in done.tables] == [Outcome.EXISTING]
    assert bench.rows("SELECT A FROM THEIRS") == [(1,)]


def test_a_missing_privilege_and_a_missing_database_say_what_to_do(bench):
    bench.server.fault(match=f'CREATE HYBRID.*"{bench.database}"', kind="error", errno=3001, sqlstate="42501")
    with pytest.raises(PrivilegeMissing, match="CREATE HYBRID TABLE") as error:
        bench.prepare(bench.scenario(table(KEY)))
    assert "CREATE HYBRID TABLE on the schema" in error.value.remedy

    with pytest.raises(ConfigurationError, match=r"database .* cannot be used"):
        bench.prepare(bench.scenario(table(KEY, name="NOWHERE_AT_ALL.PUBLIC.T")))


# --- rows that are there ---------------------------------------------------------------------------------------------


def test_rows_beyond_the_prepared_ones_are_left_alone(bench):
    scenario = bench.scenario(table(f"{KEY}, {NUMBER}", rows=100))
    bench.prepare(scenario)
    bench.cursor.execute("INSERT INTO T (ID, N) VALUES (101, 1), (5000, 1), (-1, 1)")

    assert bench.prepare(scenario).tables[0].outcome is Outcome.READY
    assert bench.counts("T") == (103, 103)


def test_rows_missing_at_the_end_are_filled_up(bench):
    scenario = bench.scenario(table(f"{KEY}, {NUMBER}", rows=100))
    bench.prepare(scenario)
    before = bench.rows("SELECT ID, N FROM T ORDER BY ID")
    bench.cursor.execute("DELETE FROM T WHERE ID > 60")
    assert bench.states(scenario) == [State.INCOMPLETE]

    done = bench.prepare(scenario)

    assert [(one.outcome, one.rows_added) for one in done.tables] == [(Outcome.RESUMED, 40)]
    assert bench.rows("SELECT ID, N FROM T ORDER BY ID") == before


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("hybrid", "DELETE FROM T WHERE ID = 50", "with gaps among them"),
        ("standard", "INSERT INTO T SELECT * FROM T WHERE ID <= 7", "has 7 of its rows twice"),
    ],
)
def test_gaps_and_duplicates_among_the_prepared_rows_are_errors(bench, kind, change, words):
    scenario = bench.scenario(table(f"{KEY}, {NUMBER}", kind=kind, rows=100))
    bench.prepare(scenario)
    bench.cursor.execute(change)

    with pytest.raises(RunFailed, match=words) as error:
        bench.prepare(scenario)

    assert bench.states(scenario) == [State.DAMAGED]
    assert "--drop" in error.value.remedy
    assert bench.prepare(scenario, drop=True).tables[0].rows_added == 100


def test_without_a_sequence_all_rows_count(bench):
    column = "{name: ID, type: VARCHAR(36), primary_key: true, generate: {uuid: {}}}"
    scenario = bench.scenario(f"{table(column)}, {table(NUMBER, name='U', kind='standard')}")
    bench.prepare(scenario)
    bench.cursor.execute("INSERT INTO T (ID) VALUES ('new')")
    bench.cursor.execute("DELETE FROM U WHERE N = 3")
    left = bench.rows("SELECT COUNT(*) FROM U")[0][0]

    done = bench.prepare(scenario)

    assert [one.outcome for one in done.tables] == [Outcome.READY, Outcome.RESUMED]
    assert done.tables[1].rows_added == 3000 - left > 0
    assert bench.counts("T") == (3001, 3001)


def test_rows_that_somebody_else_inserts_meanwhile_are_noticed_where_no_column_tells_them_apart(bench):
    scenario = bench.scenario(table(NUMBER, kind="standard"))

    def intrude(progress: Progress) -> None:
        if progress.step is Step.FILLING and progress.rows_there == 1000:
            bench.cursor.execute("INSERT INTO T VALUES (1)")

    with pytest.raises(RunFailed, match="has 3,001 rows, 3,000 were asked for"):
        bench.prepare(scenario, progress=intrude)


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
        bench = Bench(server, database, connection.cursor())
        bench.prepare(bench.scenario(table(columns, rows=ROWS)))
        names = re.findall(r"{name: (\w+)", columns)
        found = bench.rows(f"SELECT {', '.join(names)} FROM T ORDER BY ID")
    return [dict(zip(names, row, strict=True)) for row in found]


def share(values: list[Any], value: object) -> float:
    return values.count(value) / len(values)


def test_values_are_distributed_as_the_scenario_says(made):
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


def test_bound_rows_are_those_of_the_workload_generators(bench):
    scenario = bench.scenario(table(f"{KEY}, {SKEWED}, {{name: T, type: VARCHAR, generate: {{text: {{length: 9}}}}}}"))
    bench.prepare(scenario)
    definition = define(scenario.prepare.tables[0], scenario, QualifiedName.parse("T"))

    assert bench.rows("SELECT ID, N, T FROM T ORDER BY ID") == BoundRows(definition).take(0, 3000)


def test_the_seed_decides(bench):
    columns = f"{KEY}, {NUMBER}"
    bench.prepare(bench.scenario(table(columns)))
    first = bench.rows("SELECT N FROM T ORDER BY ID")
    bench.prepare(bench.scenario(table(columns)), drop=True)

    assert bench.rows("SELECT N FROM T ORDER BY ID") == first
    assert [row[0] for row in first[:8]] == [
        1 + digest_of(f"1.{crc_of('T')}.1.0.{number}") % 6 for number in range(8)
    ]  # so any server that knows MD5 gives the same


def digest_of(text: str) -> int:
    import hashlib

    return int.from_bytes(hashlib.md5(text.encode()).digest()[8:], "big")


def crc_of(text: str) -> int:
    import zlib

    return zlib.crc32(text.encode())


# --- faults ----------------------------------------------------------------------------------------------------------

FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("hybrid", {"kind": "drop_reply", "count": 3}),
    ("standard", {"kind": "drop_reply", "count": 3}),
    ("standard", {"kind": "truncate", "count": 2}),
    ("standard", {"kind": "reset", "count": 2}),
    ("hybrid", {"kind": "http_status", "status": 503, "count": 2}),
    ("hybrid", {"kind": "error", "errno": 625, "count": 2}),
    ("standard", {"kind": "expire_session", "count": 1}),
]


@pytest.mark.parametrize(("kind", "fault"), FAULTS, ids=[f"{fault['kind']}-{kind}" for kind, fault in FAULTS])
def test_a_statement_that_failed_is_never_executed_twice(bench, fault, kind):
    bench.server.fault(match=f'INSERT INTO "{bench.database}"', **fault)

    done = bench.prepare(bench.scenario(table(f"{KEY}, {NUMBER}", kind=kind)), one_attempt=True)

    assert bench.counts("T") == (3000, 3000)
    assert done.tables[0].rows_added == 3000
    assert bench.rows("SELECT MIN(ID), MAX(ID) FROM T") == [(1, 3000)]


def test_bound_rows_survive_a_lost_answer_too(bench):
    """Driver 5.x has the statement described before it sends its rows: the first request is not the one to lose."""
    bench.server.fault(match=f'INSERT INTO "{bench.database}"', kind="latency", ms=1, count=1)
    bench.server.fault(match=f'INSERT INTO "{bench.database}"', kind="drop_reply", count=1)

    bench.prepare(bench.scenario(table(f"{KEY}, {SKEWED}", kind="standard")), one_attempt=True)

    requests = bench.server.ask(f"/__loadgen/journal?match={bench.database}")
    assert [one["bind_count"] for one in requests if one["outcome"] == "fault drop_reply"] == [2]
    assert bench.counts("T") == (3000, 3000)


def test_faults_everywhere_are_survived(bench):
    """Also while counting and creating; a hundred thousand rows are many statements."""
    bench.server.fault(match=bench.database, kind="reset", probability=0.2, count=6)
    bench.server.fault(match=f'INSERT INTO "{bench.database}"', kind="drop_reply", probability=0.3, count=3)
    bench.server.fault(match=bench.database, kind="http_status", status=503, probability=0.2, count=6)

    bench.prepare(bench.scenario(table(f"{KEY}, {NUMBER}", rows=100_000)), one_attempt=True)
    bench.server.clear_faults()

    assert bench.counts("T") == (100_000, 100_000)
    assert bench.rows("SELECT MIN(ID), MAX(ID) FROM T") == [(1, 100_000)]


def test_an_error_that_does_not_pass_is_told_at_once(bench):
    bench.server.fault(match=f'INSERT INTO "{bench.database}"', kind="error", errno=100051, sqlstate="22012")

    with pytest.raises(RunFailed, match="INSERT INTO"):
        bench.prepare(bench.scenario(table(KEY)))

    assert bench.sent("INSERT") == 1


# --- two at once, and stopping ---------------------------------------------------------------------------------------


def test_two_preparations_of_a_hybrid_table_make_it_together(bench):
    scenario = bench.scenario(table(f"{KEY}, {NUMBER}", rows=20_000))
    results: list[Prepared | BaseException] = []
    meet = threading.Barrier(2)

    def prepare() -> None:
        def tell(progress: Progress) -> None:
            if progress.step is Step.FILLING and progress.rows_there == 0:
                meet.wait(PATIENCE_S)  # both have seen the empty table

        try:
            results.append(bench.prepare(scenario, progress=tell))
        except BaseException as error:
            results.append(error)

    bench.prepare(bench.scenario(table(KEY, name="FIRST", rows=1)))
    threads = [threading.Thread(target=prepare, name=f"prepare-{number}") for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert [type(result) for result in results] == [Prepared, Prepared], results
    assert bench.counts("T") == (20_000, 20_000)


def test_a_stop_ends_between_two_statements_and_the_next_preparation_goes_on(bench):
    scenario = bench.scenario(table(f"{KEY}, {NUMBER}", rows=10_000))

    def stop_at_the_first_rows(progress: Progress) -> None:
        if progress.rows_there:
            bench.stop.set()

    with pytest.raises(PreparationStopped, match=r"[1-9],000 of 10,000 rows of .*\.T are there") as error:
        bench.prepare(scenario, progress=stop_at_the_first_rows)
    assert error.value.exit_code == 130
    there = bench.counts("T")[0]
    assert 0 < there < 10_000

    bench.stop.clear()
    done = bench.prepare(scenario)

    assert [(one.outcome, one.rows_added) for one in done.tables] == [(Outcome.RESUMED, 10_000 - there)]
    assert bench.counts("T") == (10_000, 10_000)


def test_a_stop_ends_the_waiting_for_a_server_that_fails(bench):
    bench.server.fault(match=f'INSERT INTO "{bench.database}"', kind="error", errno=625)

    def stop_when_it_has_failed() -> None:
        wait_until(lambda: bench.sent("INSERT"), "it has failed")
        bench.stop.set()

    with ThreadPoolExecutor(1, thread_name_prefix="stop") as pool:
        stopping = pool.submit(stop_when_it_has_failed)
        with pytest.raises(PreparationStopped, match="at least 0 of 3,000"):
            bench.prepare(bench.scenario(table(KEY)))
        stopping.result(PATIENCE_S)


# --- statements and pools --------------------------------------------------------------------------------------------


def test_statements_run_each_time_after_the_tables(bench):
    scenario = bench.scenario(
        table(KEY, rows=10), 'statements: ["DELETE FROM T WHERE ID > 10", "DELETE FROM T WHERE ID > 9"]'
    )

    assert bench.prepare(scenario).statements == 2
    assert bench.counts("T") == (9, 9)
    bench.cursor.execute("INSERT INTO T (ID) VALUES (11)")
    bench.prepare(scenario)

    assert bench.counts("T") == (9, 9)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (None, ScenarioInvalid, "NOWHERE.*prepare.statements.1."),
        ({"kind": "error", "errno": 100051, "sqlstate": "22012"}, RunFailed, r"prepare.statements\[1\]: DELETE"),
        ({"kind": "drop_reply"}, RunFailed, r"prepare.statements\[1\].*may have been executed or not"),
    ],
    ids=["wrong", "refused", "lost"],
)
def test_a_statement_that_fails_is_named_and_not_repeated(bench, fault, kind, words):
    if fault is not None:
        bench.cursor.execute("CREATE TABLE NOWHERE (A INTEGER)")
        bench.server.fault(match=f"DELETE FROM {bench.database}.PUBLIC.NOWHERE", **fault)
    statements = f'statements: ["SELECT 1", "DELETE FROM {bench.database}.PUBLIC.NOWHERE"]'

    with pytest.raises(LoadgenError, match=re.compile(words, re.DOTALL)) as error:
        bench.prepare(bench.scenario("", statements), one_attempt=True)

    assert type(error.value) is kind
    assert bench.sent("DELETE") == 1


def test_pools_are_read_in_order_from_queries_and_files(bench, tmp_path):
    (tmp_path / "regions.csv").write_text("CODE,NAME\n1,north\n2,south\n", "utf-8")
    text = (
        f"version: 1\nname: x\nconnection: embedded\ntarget: {{database: {bench.database}, schema: PUBLIC}}\n"
        f"prepare: {{tables: [{table(KEY, rows=25_000)}]}}\n"
        "values: {id: {query: SELECT ID FROM T ORDER BY ID DESC}, region: {file: regions.csv, column: NAME},"
        " none: {query: SELECT ID FROM T WHERE ID < 0}}\n"
        "workload: {statements: [{name: s, sql: SELECT 1}]}\n"
    )
    scenario = parse_scenario(text, source="x.yaml", folder=tmp_path, environ={}).scenario
    bench.prepare(scenario)
    session = bench.session(scenario)

    with pytest.raises(ScenarioInvalid, match="value pool none"):
        read_pools(session, scenario, tmp_path)
    bench.cursor.execute("INSERT INTO T (ID) VALUES (-5)")
    pools = read_pools(session, scenario, tmp_path)
    session.close()

    assert pools["id"].values == (*range(25_000, 0, -1), -5)
    assert pools["region"].values == ("north", "south")
    assert pools["none"].values == (-5,)


def test_the_version_of_the_server_is_told_and_a_server_that_does_not_say_is_no_error(bench, server):
    session = bench.session(bench.scenario(""))
    bench.cursor.execute("SELECT CURRENT_VERSION()")
    ((version,),) = bench.cursor.fetchall()

    told = server_version(session)
    server.fault(match="CURRENT_VERSION", kind="error", errno=3001, count=1)
    refused = server_version(session)
    session.close()

    assert (told, refused) == (version, None)
