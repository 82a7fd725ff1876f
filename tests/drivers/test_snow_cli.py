"""Snowflake's own command line, `snow`, against the embedded server: nothing in it is made for us."""

import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.model.capture import StatementRole
from tests.drivers.environment import captured_from, environment_of
from tests.embedded_server import EmbeddedServer

LOCK = Path(__file__).parent / "requirements-snowcli.lock"
RUN_S = 100.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Snow = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """`snow` in a separate environment with its packages."""
    with environment_of(LOCK) as programs:
        yield programs / "snow"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def snow(program: Path, server: EmbeddedServer, tmp_path: Path) -> Snow:
    """Runs `snow` with a connections file that knows the server, and nothing of the user's own settings."""
    connection: dict[str, Any] = {"account": "embedded", "user": "tester", "password": "any", "protocol": "http"}
    connection |= {"host": server.host, "port": server.port, "database": "SNOW", "schema": "PUBLIC"}
    connections = tmp_path / "connections.toml"
    connections.touch(stat.S_IRUSR | stat.S_IWUSR)
    lines = [f"{name} = {json.dumps(value)}" for name, value in connection.items()]
    connections.write_text("\n".join(["[embedded]", *lines, ""]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SNOWFLAKE")}
    own = {"SNOWFLAKE_HOME": str(tmp_path), "HOME": str(tmp_path), "SNOWFLAKE_CLI_IGNORE_NEW_VERSION_WARNING": "true"}
    environment = kept | own | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "COLUMNS": "200"}

    def run(*arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
        command = [str(program), *arguments, "--connection", "embedded"]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_S, cwd=tmp_path, env=environment, **how
        )

    return run


def told(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_connection_test_succeeds(snow, server):
    answer = told(snow("connection", "test", "--format", "json"))

    assert answer["Status"] == "OK"
    assert (answer["Host"], answer["Account"], answer["User"]) == (server.host, "embedded", "tester")
    assert answer["Database"] == "SNOW"


def test_sql_prints_rows_with_their_types(snow):
    text = (
        "SELECT 1 AS N, 1.5 AS D, 'Grüße' AS S, TRUE AS B, NULL AS X, '2024-02-29'::DATE AS DAY, CURRENT_SCHEMA() AS C"
    )

    rows = told(snow("sql", "-q", text, "--format", "json"))

    (row,) = rows
    assert (row["N"], float(row["D"]), row["S"], row["B"], row["X"]) == (1, 1.5, "Grüße", True, None)
    assert (row["DAY"], row["C"]) == ("2024-02-29", "PUBLIC")


def test_several_statements_run_one_after_the_other(snow):
    texts = """
        CREATE OR REPLACE HYBRID TABLE T (ID NUMBER PRIMARY KEY, V VARIANT);
        BEGIN;
        INSERT INTO T SELECT 1, PARSE_JSON('{"a": 1}');
        INSERT INTO T SELECT 2, PARSE_JSON('[2]');
        COMMIT;
        SELECT ID, V:a::NUMBER AS A FROM T ORDER BY ID;
    """

    answers = told(snow("sql", "--stdin", "--format", "json", input=texts))

    assert len(answers) == 6
    assert answers[0] == [{"status": "Table T successfully created."}]
    assert [answers[index][0]["number of rows inserted"] for index in (2, 3)] == [1, 1]
    assert answers[5] == [{"ID": 1, "A": 1}, {"ID": 2, "A": None}]


def test_a_file_is_run(snow, tmp_path):
    (tmp_path / "query.sql").write_text("SELECT COUNT(*) AS C FROM TABLE(GENERATOR(ROWCOUNT => 1000));\n")

    assert told(snow("sql", "-f", "query.sql", "--format", "json")) == [{"C": 1000}]


def test_an_error_is_shown_with_its_code_and_state(snow):
    done = snow("sql", "-q", "SELECT * FROM NOWHERE")

    assert done.returncode == 1
    assert "002003 (42S02)" in done.stderr
    assert "Object 'NOWHERE' does not exist or not authorized." in done.stderr


@pytest.mark.parametrize(
    ("kind", "name"), [("warehouse", "COMPUTE_WH"), ("database", "SNOW"), ("schema", "PUBLIC"), ("table", "LISTED")]
)
def test_objects_are_listed(snow, server, kind, name):
    with server.connect(database="SNOW", schema="PUBLIC") as connection:
        connection.cursor().execute("CREATE TABLE IF NOT EXISTS LISTED (X NUMBER)")

    rows = told(snow("object", "list", kind, "--format", "json"))

    assert name in {row["name"] for row in rows}


def test_its_sessions_are_captured_in_order(snow, server, tmp_path):
    texts = """
        USE WAREHOUSE BENCH_WH;
        CREATE OR REPLACE TABLE SEEN (N NUMBER, S VARCHAR);
        ALTER SESSION SET TIMEZONE = 'UTC';
        INSERT INTO SEEN VALUES (1, 'it''s ä日');
        SELECT S FROM SEEN WHERE N = 1;
    """
    with server.connect() as connection:
        connection.cursor().execute("CREATE WAREHOUSE IF NOT EXISTS BENCH_WH")
    told(snow("sql", "--stdin", "--format", "json", input=texts))

    captured = captured_from("snow", server, "BENCH_WH", tmp_path / "captured")

    roles = [StatementRole.CONTEXT, StatementRole.WRITE, StatementRole.READ]
    assert [one.role for one in captured.statements if not one.sql.startswith("USE")] == roles
    assert len({one.session for one in captured.statements}) == 1
    assert {one.database for one in captured.statements} == {"SNOW"}
    assert captured.execute(captured.statements[-1]) == [("it's ä日",)]
    assert captured.left_out == {"not_replayable": 1}  # CREATE TABLE
