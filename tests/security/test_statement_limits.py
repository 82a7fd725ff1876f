"""Statements that are expensive to plan: rejected before they are parsed, stopped while they are, or planned in a
thread."""

from __future__ import annotations

import json
import signal
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from loadgen.embedded import result as results
from loadgen.embedded.catalog import Catalog
from loadgen.embedded.server import RECURSION_MAX
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.translate import parser
from loadgen.embedded.translate.planner import Planner
from tests.embedded_server import EmbeddedServer
from tests.process.served import Refused, Wire, copied_data, serving
from tests.processes import reachable_directory, wait_until

FEW_TOKENS = 9_000
DEEP = parser.NESTING_MAX + 1
NESTED = {
    "parentheses": "SELECT " + "(" * DEEP + "1" + ")" * DEEP,
    "brackets": "SELECT " + "[" * DEEP + "1" + "]" * DEEP,
    "subqueries": "SELECT * FROM " + "(SELECT * FROM " * DEEP + "T" + ")" * DEEP,
    "calls": "SELECT " + "ABS(" * DEEP + "1" + ")" * DEEP,
}
TOO_MANY = {
    "joins": "SELECT 1 FROM T" + " JOIN T ON 1 = 1" * (parser.JOINS_MAX + 1),
    "common table expressions": "WITH A0 AS (SELECT 1 X)"
    + "".join(f", A{n} AS (SELECT X FROM A{n - 1})" for n in range(1, parser.SUBQUERIES_MAX + 1))
    + f" SELECT X FROM A{parser.SUBQUERIES_MAX}",
    "select items": "SELECT 1" + ", 1" * parser.SELECT_ITEMS_MAX,
    "select items after a word in quotes": """SELECT 'FROM', "LIMIT" """ + ", 1" * parser.SELECT_ITEMS_MAX,
    "inner select items": "SELECT * FROM (SELECT 1" + ", 1" * parser.SELECT_ITEMS_MAX + ") T",
    "tokens": "SELECT 1 WHERE 1 IN (1" + ",1" * FEW_TOKENS + ")",
}


@pytest.fixture
def deep() -> Iterator[None]:
    """The recursion limit of the server."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_MAX)
    yield
    sys.setrecursionlimit(before)


def plan(text: str) -> Any:
    return Planner(Catalog()).plan(text, parser.tokens_of(text), None, None, (), False)


@pytest.mark.parametrize("name", NESTED)
def test_deep_nesting_is_refused_before_it_is_parsed(name):
    with pytest.raises(SqlError, match="nested too deeply") as caught:
        parser.tokens_of(NESTED[name])

    assert caught.value.errno == 1005


@pytest.mark.parametrize("name", TOO_MANY)
def test_too_many_parts_are_refused_before_they_are_parsed(name, monkeypatch):
    monkeypatch.setattr(parser, "TOKENS_MAX", FEW_TOKENS)

    with pytest.raises(SqlError, match=r"too complex: .* more than") as caught:
        parser.tokens_of(TOO_MANY[name])

    assert caught.value.errno == 1005


def chained(first: str, many: int) -> str:
    ctes = "".join(f", A{n} AS (SELECT X FROM A{n - 1})" for n in range(1, many))
    return f"WITH A0 AS ({first}){ctes} SELECT X FROM A{many - 1}"


def test_a_chain_of_common_table_expressions_is_refused_through_views_too(server: EmbeddedServer):
    """PostgreSQL would plan it for a minute, beyond the timeout of the statement."""
    wire, other = Wire(server), Wire(server)
    wire.sql("CREATE OR REPLACE DATABASE CHAINS")
    wire.sql(f"CREATE VIEW CHAINS.PUBLIC.V0 AS {chained('SELECT 1 AS X', 100)}")
    wire.sql(f"CREATE VIEW CHAINS.PUBLIC.V1 AS SELECT X FROM ({chained('SELECT X FROM CHAINS.PUBLIC.V0', 15)})")

    assert wire.sql("SELECT X FROM CHAINS.PUBLIC.V1") == [["1"]]
    for text in (
        chained("SELECT 1 AS X", 1_000),
        "SELECT 1 FROM CHAINS.PUBLIC.V0 A, CHAINS.PUBLIC.V0 B, CHAINS.PUBLIC.V1 C",
    ):
        with pytest.raises(Refused, match="too complex: it has more than 250 common table expressions"):
            wire.sql(text)
    assert other.answers()


def test_what_is_within_the_limits_is_planned(deep):
    inside = parser.NESTING_MAX - 1

    assert plan("SELECT " + "(" * inside + "1" + ")" * inside).kind == "SELECT"
    assert plan("SELECT 1" + ", 1" * (parser.SELECT_ITEMS_MAX - 1)).kind == "SELECT"
    joins = "".join(f" JOIN (SELECT 1 AS A) T{n} ON T.A = T{n}.A" for n in range(parser.JOINS_MAX))
    assert plan(f"SELECT 1 FROM (SELECT 1 AS A) T{joins}").kind == "SELECT"
    last = parser.SUBQUERIES_MAX - 1
    chain = "".join(f", A{n} AS (SELECT X FROM A{n - 1})" for n in range(1, last + 1))
    assert plan(f"WITH A0 AS (SELECT 1 X){chain} SELECT X FROM A{last}").kind == "SELECT"


@pytest.mark.parametrize("join", ["JOIN T", "JOIN (SELECT 1)"])
def test_joins_that_the_parser_tries_again_and_again_end_with_its_budget(join):
    with pytest.raises(SqlError, match="too many steps to read") as caught:
        plan("SELECT 1 FROM T" + f" {join}" * 100)

    assert caught.value.errno == 1005


def test_aliases_that_double_each_other_end_with_the_budget(cursor):
    cursor.execute("CREATE TABLE T (X NUMBER)")
    items = ", ".join(f"A{n} + A{n} AS A{n + 1}" for n in range(60))

    with pytest.raises(Exception, match="too complex"):
        cursor.execute(f"SELECT 1 AS A0, {items} FROM T")


def test_views_that_double_each_other_end_with_the_budget(cursor):
    cursor.execute("CREATE VIEW V0 AS SELECT 1 AS X")

    with pytest.raises(Exception, match=r"too complex|nested too deeply"):
        make_views(cursor)


def make_views(cursor: Any) -> None:
    """Each reads the one before eight times."""
    for n in range(30):
        copies = ", ".join(f"V{n} T{number}" for number in range(8))
        cursor.execute(f"CREATE VIEW V{n + 1} AS SELECT T0.X FROM {copies}")


def test_names_of_nested_queries_do_not_cost_cubic_time(deep):
    """Counted in steps of sqlglot's generator, not in time."""
    written: list[int] = []
    generate = parser._dialect.generate

    class Counting(type(parser._dialect)):  # type: ignore[misc]
        def generate(self, expression: Any, *args: Any, **kwargs: Any) -> str:
            written.append(sum(1 for _ in expression.walk()))
            return str(generate(expression, *args, **kwargs))

    depth = 90
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "_dialect", Counting())
        plan("SELECT " + "(SELECT " * depth + "1" + ")" * depth)

    assert max(written) <= parser.SHOWN_NODES_MAX


def test_a_long_list_of_rows_is_inserted(cursor):
    """As drivers with client-side binds write it: planned by a thread."""
    cursor.execute("CREATE TABLE T (ID NUMBER, NAME VARCHAR)")
    rows = ", ".join(f"({number}, 'name {number}')" for number in range(2_000))

    cursor.execute(f"INSERT INTO T VALUES {rows}")

    assert cursor.execute("SELECT COUNT(*), SUM(ID) FROM T").fetchone() == (2_000, 1_999_000)


def test_a_long_statement_that_is_wrong_is_refused_with_the_usual_error(cursor):
    long = "1, " * parser.INLINE_CHARACTERS

    with pytest.raises(Exception, match="syntax error"):
        cursor.execute(f"SELECT 1 WHERE 1 IN ({long} 1")


def test_a_command_of_too_many_tokens_is_refused(cursor):
    columns = ", ".join(f"C{number} NUMBER" for number in range(parser.COMMAND_TOKENS_MAX // 2))

    with pytest.raises(Exception, match="too complex"):
        cursor.execute(f"CREATE TABLE WIDE ({columns})")


HEAVY = "SELECT 1 WHERE " + " AND ".join("X.Y IN (1, 2, 3, 4, 5, 6, 7, 8, 9)" for _ in range(9_000))


def send(wire: Wire, text: str) -> None:
    """Without waiting for the answer."""
    headers = {"Authorization": f'Snowflake Token="{wire.token}"'}
    body = json.dumps({"sqlText": text})
    wire.http.request("POST", f"/queries/v1/query-request?requestId={uuid.uuid4()}", body, headers)


def test_others_are_served_while_a_long_statement_is_planned_and_it_can_be_cancelled(server: EmbeddedServer):
    heavy, other = Wire(server), Wire(server)
    tag = uuid.uuid4().hex
    heavy.sql(f"ALTER SESSION SET QUERY_TAG = '{tag}'")
    number = heavy.sql("SELECT CURRENT_SESSION()")[0][0]
    before = len(server.history(tag))
    send(heavy, HEAVY)
    wait_until(lambda: server.ask("/__loadgen/stats")["under_way"] > 0, "the statement under way")

    assert other.answers()
    other.sql(f"SELECT SYSTEM$CANCEL_ALL_QUERIES({number})")

    wait_until(lambda: len(server.history(tag)) > before, "the statement over")
    assert server.history(tag)[-1]["error_code"] in (604, 1005)
    assert heavy.http.getresponse().status == 200


def test_sigterm_ends_the_server_while_a_long_statement_is_planned():
    with reachable_directory() as path, serving(copied_data(path / "data")) as server:
        wire = Wire(server)
        send(wire, HEAVY)
        wait_until(lambda: server.ask("/__loadgen/stats")["under_way"] > 0, "the statement under way")

        assert server.stop(signal.SIGTERM) == 0


def test_the_statement_that_froze_the_server_is_refused(server: EmbeddedServer):
    wire = Wire(server)

    with pytest.raises(Refused, match=r"001005: .*more than 200 joins"):
        wire.sql("SELECT 1 FROM T" + " JOIN T" * 1_500)
    with pytest.raises(Refused, match=r"001005: .*too many steps"):
        wire.sql("SELECT 1 FROM T" + " JOIN T" * 150)
    assert wire.answers()


@pytest.mark.parametrize(
    "call",
    ["GREATEST(1, {})", "DECODE({}, 1, 2, 3, 4)", "CONCAT_WS({}, 'a', 'b', 'c')", "VARIANCE({})", "MIN_BY(1, {})"],
)
def test_calls_that_write_their_arguments_twice_end_with_the_budget(deep, call):
    """Ninety of them inside each other would fill any memory."""
    text = "1"
    for _ in range(90):
        text = call.format(text)

    with pytest.raises(SqlError, match="too complex: its translation is too long") as caught:
        plan(f"SELECT {text}")

    assert caught.value.errno == 1005


def test_many_long_arguments_end_with_the_budget(deep):
    """None of them is too long, all together are."""
    long = "GREATEST(1, " * 12 + "1" + ")" * 12

    with pytest.raises(SqlError, match="too complex: its translation is too long"):
        plan("SELECT 1 WHERE 1 IN (" + ", ".join([long] * 60) + ")")


def test_results_that_are_kept_for_later_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(results, "KEPT_CHARACTERS_MAX", 1_000)
    kept = results.ResultCache()

    for number in range(10):
        kept.keep(f"id {number}", "me", results.status("x" * 300))
    kept.keep("too long alone", "me", results.status("x" * 1_001))

    assert [number for number in range(10) if is_kept(kept, f"id {number}")] == [7, 8, 9]
    assert not is_kept(kept, "too long alone")


def is_kept(kept: results.ResultCache, query_id: str) -> bool:
    try:
        return bool(kept.get(query_id, "me").rows)
    except SqlError:
        return False


# --- arguments of SYSTEM$ functions and of table functions -----------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT SYSTEM$CANCEL_QUERY(REPEAT('a', 130000000))",
        "SELECT * FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY_BY_USER(USER_NAME => REPEAT('a', 2000000)))",
    ],
)
def test_arguments_that_the_server_itself_reads_are_limited(server: EmbeddedServer, sql: str):
    wire = Wire(server, databaseName="ARGUMENTS")

    with pytest.raises(Refused, match=r"the arguments are longer than|Result is too large"):
        wire.sql(sql)

    assert wire.answers()


def test_arguments_that_have_to_be_computed_need_a_slot(server: EmbeddedServer):
    server.model("ARGUMENTS_WH", slots=1)
    holder, waiting, other = (Wire(server, warehouse="ARGUMENTS_WH") for _ in range(3))

    def load() -> dict[str, int]:
        return dict(server.ask("/__loadgen/stats")["warehouses"]["ARGUMENTS_WH"])

    def later(wire: Wire, sql: str) -> str:
        body = wire.post(f"/queries/v1/query-request?requestId={uuid.uuid4()}", {"sqlText": sql, "asyncExec": True})[1]
        return str(json.loads(body)["data"]["queryId"])

    held = later(holder, "SELECT SYSTEM$WAIT(600)")
    wait_until(lambda: load()["running"] == 1, "the slot is taken")
    later(waiting, "SELECT SYSTEM$CANCEL_QUERY(REPEAT('a', 3))")
    wait_until(lambda: load()["queued"] == 1, "the other waits for it")

    assert other.sql(f"SELECT SYSTEM$CANCEL_QUERY('{held}')") == [[f"query [{held}] terminated."]]
    wait_until(lambda: load() | {"running": 0, "queued": 0} == load(), "both have ended")


def test_a_name_that_postgresql_keeps_for_itself_is_a_name_like_any_other(server: EmbeddedServer):
    wire = Wire(server)

    for database in ("pg_x", "~pg_x"):
        wire.sql(f'CREATE OR REPLACE DATABASE "{database}"')
        wire.sql(f'CREATE SCHEMA "{database}"."pg_y"')
        wire.sql(f'CREATE TABLE "{database}"."pg_y"."pg_z" AS SELECT \'{database}\' AS V')

    assert wire.sql('SELECT V FROM "pg_x"."pg_y"."pg_z"') == [["pg_x"]]
    assert wire.sql('SELECT V FROM "~pg_x"."pg_y"."pg_z"') == [["~pg_x"]]
    for database in ("pg_x", "~pg_x"):
        wire.sql(f'DROP DATABASE "{database}"')
