"""Every function of the embedded server against a real PostgreSQL: function_rows.txt contains the expected results."""

import asyncio
import re
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlglot import exp

import loadgen.embedded.translate.planner  # noqa: F401  (registers every part of the emitter)
from loadgen.embedded.catalog import Catalog
from loadgen.embedded.datadir import DataDir
from loadgen.embedded.functions import FUNCTIONS, normal_unit, script
from loadgen.embedded.functions.function import AGGREGATES, WINDOWS, Argument
from loadgen.embedded.functions.scalars import SCALARS
from loadgen.embedded.postgres import SUPERUSER, PostgresServer
from loadgen.embedded.translate import parser
from loadgen.embedded.translate.emitter import BindTypes, Emitter
from tests.processes import reachable_directory

ROWS = Path(__file__).with_name("function_rows.txt")
ROW = re.compile(r"(?P<expression>.+?) (?P<kind>=>|!>)(?: (?P<answer>.*))?")
TABLE = """
CREATE TEMP TABLE t ("G" varchar(1), "I" numeric(38,0), "N" numeric(10,2), "F" double precision, "S" varchar(5),
    "B" boolean, "D" date, "T" timestamp, "V" sf.variant);
INSERT INTO t VALUES
    ('a', 1, 1.50, 1.5, 'x', true, '2024-01-01', '2024-01-01 10:00:00', '{"k": 1, "s": "p"}'),
    ('a', 2, 2.50, 2.5, 'y', false, '2024-01-02', '2024-01-02 11:30:00', '{"k": 2, "s": "q"}'),
    ('b', 4, NULL, NULL, 'x', NULL, NULL, NULL, NULL);
"""


@dataclass(frozen=True)
class Row:
    expression: str
    fails: bool
    answer: str


def read_rows() -> list[Row]:
    rows = []
    for line in ROWS.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            match = ROW.fullmatch(line)
            assert match is not None, line
            rows.append(Row(match["expression"], match["kind"] == "!>", match["answer"] or ""))
    return rows


def emit(node: exp.Expr) -> str:
    return Emitter(Catalog(), None, None, BindTypes()).emit(node)


def columns_of(tree: exp.Expr) -> bool:
    """Whether it reads the table: by a column that is no date unit, or by counting rows."""
    names = {column.name.upper() for column in tree.find_all(exp.Column)}
    return bool(names & set("GINFSBDTV")) or tree.find(exp.Star, exp.Window) is not None


def query(expression: str) -> str:
    """The query that answers with text, as Snowflake writes it."""
    if expression.startswith("pg: "):
        return f"SELECT sf.cast_text({expression.removeprefix('pg: ')})"
    tree = parser.parse_expression(expression)
    aggregates = {name for name, function in FUNCTIONS.items() if function.kind == "aggregate"}
    called = {str(node.this).upper() for node in tree.find_all(exp.Anonymous)}
    text = f"SELECT sf.cast_text({emit(tree)})"
    if columns_of(tree):
        text += " FROM t"
        text += ' ORDER BY t."I"' if tree.find(exp.Window) or not called & aggregates else ""
    return text


# --- the tests -------------------------------------------------------------------------------------------------------


class Database:
    """A connection that tests can use without being asynchronous."""

    def __init__(self, runner: asyncio.Runner, connection: asyncpg.Connection) -> None:
        self._runner = runner
        self._connection = connection

    def execute(self, sql: str) -> None:
        self._runner.run(self._connection.execute(sql))

    def rows(self, sql: str, *arguments: object) -> list[Any]:
        fetch: Coroutine[Any, Any, list[Any]] = self._connection.fetch(sql, *arguments)
        return self._runner.run(fetch)


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with reachable_directory() as directory, asyncio.Runner() as runner, DataDir.claim(directory / "data") as data_dir:
        postgres = PostgresServer(data_dir, max_connections=10)
        runner.run(postgres.start())
        try:
            connection = runner.run(asyncpg.connect(**postgres.connect_kwargs(SUPERUSER), statement_cache_size=0))
            database = Database(runner, connection)
            database.execute("SET search_path = pg_catalog")
            database.execute(script())
            database.execute("SET search_path = sf; SET TimeZone = 'America/Los_Angeles'")
            database.execute(script())  # a second time changes nothing
            database.execute(TABLE)
            yield database
            runner.run(connection.close())
        finally:
            runner.run(postgres.stop())


def answer_of(database: Database, expression: str) -> tuple[bool, str]:
    """Whether it fails, and its message, after the number of an error of the library."""
    try:
        answers = [record[0] for record in database.rows(query(expression))]
    except asyncpg.PostgresError as error:
        return True, f"{error.sqlstate} {error.detail} {error.args[0]}"
    return False, "|".join("NULL" if answer is None else answer for answer in answers)


def test_every_answer_is_snowflakes(database):
    """In one test: they are seven hundred, and each takes less than a test does."""
    expected = {row.expression: (row.fails, f"SF000 {row.answer}" if row.fails else row.answer) for row in read_rows()}
    wrong = {
        expression: (found, answer)
        for expression, answer in expected.items()
        if (found := answer_of(database, expression)) != answer
    }

    assert wrong == {}


def test_every_function_has_a_row():
    called: set[str] = set()
    for row in read_rows():
        if not row.expression.startswith("pg: "):
            tree = parser.parse_expression(row.expression)
            called |= {str(node.this).upper() for node in tree.find_all(exp.Anonymous)}
            called |= {"POSITION"} if tree.find(exp.StrPosition) else set()

    missing = {name for name, function in FUNCTIONS.items() if function.kind != "table"} - called
    assert missing - {"GROUPING", "GROUPING_ID"} == set()


def test_every_target_exists_with_its_arity(database):
    found = database.rows(
        "SELECT format('%s', CASE n.nspname WHEN 'sf' THEN 'sf.' ELSE '' END || quote_ident(p.proname)) AS name,"
        " p.pronargs - p.pronargdefaults AS least, CASE WHEN p.provariadic <> 0 THEN 99 ELSE p.pronargs END AS most"
        " FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname IN ('sf', 'pg_catalog')"
    )
    arities: dict[str, set[int]] = {"nullif": {2}, "grouping": set(range(1, 100))}
    for name, least, most in found:
        arities.setdefault(name.replace('"', ""), set()).update(range(least, most + 1))

    arities["sf.uuid_string"].add(1)  # it takes none or two, which least and most cannot express
    wrong = []
    for function in FUNCTIONS.values():
        if function.target:
            needed = set(range(function.least, (99 if function.most is None else function.most) + 1))
            missing = needed - arities.get(function.target.replace('"', ""), set())
            if missing:
                wrong.append(f"{function.name}: {function.target} does not take {sorted(missing)[:3]} arguments")
    assert wrong == []


def test_grouping_is_written_as_postgresql_has_it(database):
    text = FUNCTIONS["GROUPING"].emit([Argument('"G"')])

    assert [record[0] for record in database.rows(f'SELECT {text} FROM t GROUP BY "G"')] == [0, 0]


@pytest.mark.parametrize(
    "name", ["NOW", "STRING_AGG", "PG_SLEEP", "PG_READ_FILE", "GENERATE_SERIES", "CURRENT_SETTING"]
)
def test_what_snowflake_does_not_have_is_absent(name):
    assert name not in FUNCTIONS


@pytest.mark.parametrize(
    "condition",
    [
        "k = '5'::text",
        "k IN ('5'::text, '6'::text)",
        "d = '2024-01-01'::text",
        "d BETWEEN '2024-01-01'::text AND '2024-01-02'::text",
        "n < '2024-01-01'::text",
        "l >= '2024-01-01'::text AND l < '2024-02-01'::text",
        "s = sf.cast_text('x'::text)",
        "n > sf.dateadd_time('second', sf.cast_number(- 10::numeric), sf.as_moment(sf.sysdate()))",
        "k = sf.cast_number('5'::text)",
    ],
)
def test_comparisons_with_text_use_an_index(database, condition):
    database.execute(
        "CREATE TEMP TABLE IF NOT EXISTS i (k numeric(38,0), d date, n timestamp, l timestamptz, s varchar(10));"
        "CREATE INDEX IF NOT EXISTS ik ON i (k); CREATE INDEX IF NOT EXISTS id ON i (d);"
        "CREATE INDEX IF NOT EXISTS ino ON i (n); CREATE INDEX IF NOT EXISTS il ON i (l);"
        "CREATE INDEX IF NOT EXISTS isx ON i (s); SET enable_seqscan = off"
    )

    plan = "\n".join(record[0] for record in database.rows(f"EXPLAIN SELECT * FROM i WHERE {condition}"))

    assert "Index Cond" in plan


def test_columns_take_text_and_variants(database):
    database.execute(
        "CREATE TEMP TABLE c (n numeric(10,2), f double precision, b boolean, d date, t time, ts timestamp,"
        " l timestamptz, z sf.timestamp_tz, s varchar(20), x bytea)"
    )
    text = (
        "'1.005', '1e3', 'yes', '2024-01-01', '10:20', '2024-01-01T10:00:00Z', '2024-01-01', '2024-01-01', 'a', '0aff'"
    )
    as_text = ", ".join(f"{value}::text" for value in text.split(", "))
    as_json = ", ".join(f"to_jsonb({value}::text)" for value in text.split(", "))
    database.execute(f"INSERT INTO c SELECT {as_text}")
    database.execute(f"INSERT INTO c SELECT {as_json}")

    rows = database.rows("SELECT DISTINCT * FROM c")

    assert len(rows) == 1
    assert str(rows[0]["n"]) == "1.01"
    assert rows[0]["s"] == "a"


def test_text_does_not_become_a_variant_by_itself(database):
    database.execute("CREATE TEMP TABLE v (v sf.variant)")

    with pytest.raises(asyncpg.DatatypeMismatchError):
        database.execute("INSERT INTO v SELECT 'x'::text")


def test_timestamps_with_offsets_sort_and_group_by_their_instant(database):
    values = "(sf.cast_tz('2024-01-01 10:00 +0200'::text)), (sf.cast_tz('2024-01-01 08:00 +0000'::text))"

    rows = database.rows(f"SELECT count(DISTINCT x), sf.min(x) = sf.max(x) FROM (VALUES {values}) AS v(x)")

    assert [tuple(row) for row in rows] == [(1, True)]


@pytest.mark.parametrize(
    ("word", "unit"),
    [("MS", "millisecond"), ("yyyy", "year"), ("mm", "month"), ("mi", "minute"), ("dow", "dayofweek"), ("Day", "day")],
)
def test_units_have_many_spellings(word, unit):
    assert normal_unit(word) == unit


def test_what_is_no_unit_is_none():
    assert normal_unit("fortnight") is None


def test_no_name_is_listed_twice():
    names = [function.name for function in (*SCALARS, *AGGREGATES, *WINDOWS)]

    assert len(names) == len(set(names))
