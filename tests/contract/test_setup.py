"""`loadgen setup` against a real server: what it creates, what it leaves unchanged, and its errors for missing
rights."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadgen.cli.setup import setup
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.setup.installer import WrongSchema, call_with_tables, migrations
from loadgen.control.tables import run_attempts, run_queue
from loadgen.errors import LoadgenError, PrivilegeMissing
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.control_plane import retries
from tests.embedded_server import EmbeddedServer

pytestmark = pytest.mark.any_driver

TABLES = {table: hybrid for migration in migrations() for table, hybrid in migration.tables}
Setup = Callable[..., Result]


@pytest.fixture(autouse=True)
def environment(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv(EMBEDDED_ADDRESS, server.address)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("SNOWFLAKE_HOME", "LOADGEN_CONNECTION", "LOADGEN_CONTROL_DATABASE", "LOADGEN_CONTROL_CONNECTION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(database: str) -> Setup:
    """Runs the command in the test's own database, with a warehouse that is not there yet."""

    def run_setup(*arguments: str, place: bool = True) -> Result:
        own = ["-c", "embedded", "--database", database, "--warehouse", f"{database}_WH"] if place else []
        result = CliRunner().invoke(setup, [*own, *arguments], standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return result

    return run_setup


@pytest.fixture
def admin(server: EmbeddedServer) -> Any:
    """A cursor in no database: logging in into one would make it."""
    connection = server.connect()
    yield connection.cursor()
    connection.close()


def rows(cursor: Any, sql: str) -> list[dict[str, Any]]:
    cursor.execute(sql)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def databases(cursor: Any) -> set[str]:
    return {row["name"] for row in rows(cursor, "SHOW DATABASES")}


def warehouses(cursor: Any) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in rows(cursor, "SHOW WAREHOUSES")}


def versions(cursor: Any, database: str) -> list[tuple[Any, ...]]:
    return list(cursor.execute(f"SELECT VERSION, DIGEST FROM {database}.CONTROL.SCHEMA_VERSION").fetchall())


# --- making ----------------------------------------------------------------------------------------------------------


def test_everything_is_made_and_every_step_printed(run, admin, database):
    lines = run().stdout.splitlines()

    made = {row["name"]: row["is_hybrid"] == "Y" for row in rows(admin, f"SHOW TABLES IN SCHEMA {database}.CONTROL")}
    assert made == {**TABLES, "SCHEMA_VERSION": False}
    assert versions(admin, database) == [(one.version, one.digest) for one in migrations()]
    warehouse = warehouses(admin)[f"{database}_WH"]
    assert {name: warehouse[name] for name in ("size", "auto_suspend", "auto_resume")} == {
        "size": "X-Small",
        "auto_suspend": 60,
        "auto_resume": "true",
    }
    assert lines[0].startswith(f'CREATE WAREHOUSE IF NOT EXISTS "{database}_WH" WITH WAREHOUSE_SIZE = XSMALL')
    assert lines[1:3] == [
        f'CREATE DATABASE IF NOT EXISTS "{database}"',
        f'CREATE SCHEMA IF NOT EXISTS "{database}"."CONTROL"',
    ]
    assert {line.split()[-1] for line in lines if " TABLE IF NOT EXISTS " in line} == {*TABLES, "SCHEMA_VERSION"}
    assert lines[-2:] == [
        f"recorded migration {migrations()[-1].title}",
        f'the control plane in "{database}"."CONTROL" is ready',
    ]


def test_the_second_time_there_is_nothing_to_do(run, server, database):
    run()
    before = len(server.ask("/__loadgen/history"))

    result = run()

    sent = [statement["sql_text"] for statement in server.ask("/__loadgen/history")[before:]]
    assert result.stdout == f'nothing to do: the control plane in "{database}"."CONTROL" is current\n'
    assert sent
    assert not [sql for sql in sent if sql.split()[0] not in ("USE", "SELECT")]


def test_existing_objects_are_not_created_again(run, admin, database):
    admin.execute(f"CREATE DATABASE {database}")

    lines = run().stdout.splitlines()

    assert not any(line.startswith("CREATE DATABASE") for line in lines)
    assert f'CREATE SCHEMA IF NOT EXISTS "{database}"."CONTROL"' in lines


OLD_QUEUE = """
    INSERT INTO RUN_QUEUE (QUEUE_ID, IDEMPOTENCY_KEY, NAME, SCENARIO, FILES, TARGET, REQUIRES, PRIORITY, STATUS,
        AVAILABLE_AT, OWNER, EPOCH, ATTEMPTS, MAX_ATTEMPTS, EXIT_CODE, CREATED_AT, UPDATED_AT)
    SELECT column1, column1, 'n', 's', '{}', '', '[]', 0, column2, DATEADD(minute, column6, SYSDATE()), column3,
        column4, column5, 2, column7, SYSDATE(), SYSDATE()
    FROM VALUES ('done', 'COMPLETED', 'A', 2, 2, 0, 0), ('waits', 'QUEUED', 'A', 1, 1, -1, 4),
        ('runs', 'RUNNING', 'A', 1, 1, 5, NULL), ('lost', 'RUNNING', 'A', 1, 1, -5, NULL),
        ('stopped', 'CANCELLED', NULL, 0, 0, -5, NULL)"""
OLD_ATTEMPTS = """
    INSERT INTO RUN_ATTEMPTS (QUEUE_ID, EPOCH, OWNER, STATUS, STARTED_AT)
    SELECT column1, column2, 'A', column3, SYSDATE()
    FROM VALUES ('done', 1, 'FAILED'), ('done', 2, 'COMPLETED'), ('waits', 1, 'FAILED'), ('runs', 1, 'RUNNING'),
        ('lost', 1, 'RUNNING')"""


def test_a_queue_from_before_goes_on_after_the_migration(run, admin, database):
    """Of the schema before attempts had leases and ends."""
    run()
    admin.execute(f"USE SCHEMA {database}.CONTROL")
    for table in ("RUN_ATTEMPT_ENDS", "STOP_REQUESTS", "SCHEDULE_PROGRESS"):
        admin.execute(f"DROP TABLE {table}")
    for column in ("EXPIRES_AT", "ATTEMPTS"):
        admin.execute(f"ALTER TABLE RUN_ATTEMPTS DROP COLUMN {column}")
    admin.execute("DELETE FROM SCHEMA_VERSION WHERE VERSION = 3")
    admin.execute(OLD_QUEUE)
    admin.execute(OLD_ATTEMPTS)

    run()
    session = ControlSession(ControlPlaneLocation(connection="embedded", database=database), role="test")
    ended = run_queue.end_abandoned(session, retries())
    states = {one.queue_id: one.status for one in run_queue.newest(session, 10)}
    histories = {name: [one.status for one in run_attempts.read(session, name)] for name in states}
    for name in states:
        run_attempts.settle(session, retries(), name)
    after = {one.queue_id: one.status for one in run_queue.newest(session, 10)}
    session.close()

    assert ended == 1
    assert states == after == {
        "done": "COMPLETED", "waits": "QUEUED", "runs": "RUNNING", "lost": "QUEUED", "stopped": "CANCELLED"
    }  # fmt: skip
    assert histories["done"] == ["FAILED", "COMPLETED"]
    assert histories["lost"] == ["LOST"]


def test_half_of_it_is_completed(run, admin, database):
    admin.execute(f"CREATE DATABASE {database}")
    admin.execute(f"CREATE SCHEMA {database}.CONTROL")
    admin.execute(f"CREATE TABLE {database}.CONTROL.SCHEMA_VERSION (VERSION INT, NAME TEXT, DIGEST TEXT,"
                  " APPLIED_AT TIMESTAMP_NTZ, APPLIED_BY TEXT)")  # fmt: skip

    run()

    assert [version for version, _ in versions(admin, database)] == [migration.version for migration in migrations()]
    assert run().stdout.startswith("nothing to do")


def test_quoted_names_are_kept_as_they_are(run, admin, database):
    run("--database", f'"{database.lower()} ""odd"""', "--schema", '"My.Schema"', "--warehouse", '"w w"')

    assert f'{database.lower()} "odd"' in databases(admin)
    assert "w w" in warehouses(admin)
    found = rows(admin, f'SHOW TABLES IN SCHEMA "{database.lower()} ""odd"""."My.Schema"')
    assert {row["name"] for row in found} == {*TABLES, "SCHEMA_VERSION"}


def test_the_scenario_names_the_location(run, admin, database, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(
        "version: 1\nname: a\nconnection: nowhere\nworkload: {statements: [{name: a, sql: SELECT 1}]}\n"
        f"control: {{database: {database}, schema: ELSEWHERE, warehouse: BENCH_WH}}\n"
    )

    result = run(str(file), "-c", "embedded", "--format", "json", place=False)

    told = json.loads(result.stdout)
    assert (told["connection"], told["database"], told["schema"]) == ("embedded", database, "ELSEWHERE")
    assert told["changed"] is True
    assert told["steps"][-1] == f"recorded migration {migrations()[-1].title}"
    assert rows(admin, f"SHOW TABLES LIKE 'RUN_STATUS' IN SCHEMA {database}.ELSEWHERE")


def test_a_statement_whose_answer_is_lost_and_a_session_that_is_lost_are_repeated(run, server, admin, database):
    server.fault(match="CREATE HYBRID TABLE IF NOT EXISTS RUN_LEASES", kind="drop_reply", count=1)
    server.fault(match="CREATE TABLE IF NOT EXISTS TEST_LOGS", kind="expire_session", count=1)

    result = run()

    assert [rule["fired"] for rule in server.ask("/__loadgen/faults")] == [1, 1]
    assert result.stdout.splitlines()[-1].endswith("is ready")
    assert [version for version, _ in versions(admin, database)] == [migration.version for migration in migrations()]


# --- looking ---------------------------------------------------------------------------------------------------------


def test_a_dry_run_changes_nothing_and_its_script_does_the_same(run, admin, database):
    script = run("--dry-run").stdout

    assert database not in databases(admin)
    assert f"{database}_WH" not in warehouses(admin)
    for statement in script.partition("\n")[2].split(";\n"):
        admin.execute(statement.rstrip(";\n"))
    assert run().stdout.startswith("nothing to do")
    assert run("--dry-run").stdout.startswith("-- Nothing to do")


def test_a_dry_run_as_json(run, admin, database):
    told = json.loads(run("--dry-run", "--format", "json").stdout)

    assert told["changed"] is False
    assert told["statements"][2] == f'CREATE DATABASE IF NOT EXISTS "{database}"'
    assert database not in databases(admin)


def test_a_dry_run_where_only_the_warehouse_is_missing(run, admin, database):
    run()

    told = json.loads(run("--dry-run", "--format", "json", "--warehouse", f"{database}_NEW").stdout)

    assert [statement.split('"')[0] for statement in told["statements"]] == [
        "CREATE WAREHOUSE IF NOT EXISTS ",
        "USE WAREHOUSE ",
    ]
    assert f"{database}_NEW" not in warehouses(admin)


# --- refusing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_a_newer_schema_is_refused_and_left_alone(run, admin, database, arguments):
    run()
    admin.execute(f"INSERT INTO {database}.CONTROL.SCHEMA_VERSION SELECT 999, 'later', 'x', SYSDATE(), 'me'")
    before = versions(admin, database)

    with pytest.raises(WrongSchema, match=r"is newer than this loadgen: it has migration 0999_later") as caught:
        run(*arguments)

    assert caught.value.exit_code == 2
    assert versions(admin, database) == before


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (
            "CREATE WAREHOUSE",
            'run: CREATE WAREHOUSE IF NOT EXISTS "{0}_WH" WITH WAREHOUSE_SIZE = XSMALL AUTO_SUSPEND = 60'
            " AUTO_RESUME = TRUE INITIALLY_SUSPENDED = TRUE COMMENT = 'control plane of loadgen';"
            ' GRANT USAGE ON WAREHOUSE "{0}_WH" TO ROLE "ACCOUNTADMIN";',
        ),
        (
            "CREATE DATABASE",
            'run: CREATE DATABASE IF NOT EXISTS "{0}"; GRANT USAGE, CREATE SCHEMA ON DATABASE "{0}" TO ROLE'
            ' "ACCOUNTADMIN";',
        ),
        (
            "CREATE SCHEMA",
            'run: CREATE SCHEMA IF NOT EXISTS "{0}"."CONTROL"; GRANT USAGE ON DATABASE "{0}" TO ROLE "ACCOUNTADMIN";'
            ' GRANT USAGE, CREATE TABLE, CREATE HYBRID TABLE ON SCHEMA "{0}"."CONTROL" TO ROLE "ACCOUNTADMIN";',
        ),
        (
            "CREATE HYBRID TABLE",
            'run: GRANT USAGE, CREATE TABLE, CREATE HYBRID TABLE ON SCHEMA "{0}"."CONTROL" TO ROLE "ACCOUNTADMIN";',
        ),
        ("USE WAREHOUSE", 'run: GRANT USAGE ON WAREHOUSE "{0}_WH" TO ROLE "ACCOUNTADMIN"; GRANT USAGE ON DATABASE'),
    ],
)
def test_a_missing_right_is_reported_with_the_statements_an_administrator_must_run(
    run, server, database, refused, told
):
    message = "SQL access control error:\nInsufficient privileges to operate on account 'X'"
    server.fault(match=f"^{refused}", kind="error", errno=3001, sqlstate="42501", message=message)

    with pytest.raises(PrivilegeMissing, match="Insufficient privileges") as caught:
        run()

    assert caught.value.exit_code == 3
    assert told.format(database) in caught.value.remedy


def test_an_account_without_hybrid_tables_gets_a_hint_for_an_alternative(run, server):
    message = "SQL compilation error:\nHYBRID TABLE is not supported for this account."
    server.fault(match="^CREATE HYBRID TABLE", kind="error", errno=2, sqlstate="0A000", message=message)

    with pytest.raises(ControlFailed) as caught:
        run()

    assert "control: {connection: embedded}" in caught.value.remedy


def test_a_name_that_is_none_is_refused_before_anything_is_sent(run, server):
    before = len(server.ask("/__loadgen/history"))

    with pytest.raises(LoadgenError, match="is not a name"):
        run("--schema", "a; DROP DATABASE b")

    assert len(server.ask("/__loadgen/history")) == before


def test_a_command_that_reads_makes_no_tables_at_a_mistyped_location(database: str, admin: Any) -> None:
    place = ControlPlaneLocation(connection="embedded", database=database)

    with pytest.raises(WrongSchema, match=f"there is no control plane in {database}.CONTROL") as caught:
        call_with_tables(place, "runs", lambda session, again: again.call(lambda: run_attempts_of(session)), retries())

    assert "loadgen setup" in caught.value.remedy
    assert rows(admin, f"SHOW TABLES IN DATABASE {database}") == []
    assert ControlPlaneLocation().is_default
    assert not place.is_default


def run_attempts_of(session: ControlSession) -> Any:
    return run_queue.read_scenario_text(session, "none")
