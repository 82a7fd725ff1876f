"""The embedded server as a process: its life, its deaths, what survives them, bad requests, and the warehouse model."""

import asyncio
import contextlib
import gzip
import http.client
import itertools
import json
import math
import os
import random
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

from loadgen.embedded.datadir import SYSTEM_DIR, DataDir, running_server
from loadgen.embedded.postgres import Postgres, postgres_processes_in
from tests.embedded_server import ROOT, EmbeddedServer
from tests.processes import VARIANTS, alive, process_of_owner, reachable_directory, run_as, wait_until

PROGRAM = [sys.executable, "-P", "-c", "import sys; from loadgen.cli.main import main; sys.exit(main())"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
END_S = 30.0  # for a process to end, a busy machine considered
LONG = "A_NAME_LONGER_THAN_WHAT_THE_DATABASE_BELOW_CAN_HOLD_" * 3  # 156 bytes; PostgreSQL stops at 63


class Server(EmbeddedServer):
    """A running `loadgen embedded serve` with any account, input and output. Nothing of it is left after the block."""

    def __init__(self, data_dir: Path, *arguments: str, prefix: list[str] | None = None, **how: Any) -> None:
        self._own_dir = None
        self.data_dir = data_dir
        self.errors_path = data_dir.parent / f"stderr-{uuid.uuid4().hex}.txt"
        with self.errors_path.open("wb") as errors:
            self.process = subprocess.Popen(
                [*(prefix or []), *PROGRAM, *serve(data_dir, *arguments)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=ENVIRONMENT,
                **how,
            )

    def wait_ready(self) -> "Server":
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on (127\.0\.0\.1):(\d+)\n", line)
        assert found is not None, f"the server said {line!r}\n{self.errors_path.read_text()}"
        self.host, self.port = found[1], int(found[2])
        return self

    @property
    def errors(self) -> str:
        return self.errors_path.read_text()

    @property
    def tree(self) -> set[int]:
        """The process ids of the server and of all below it."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return {self.process.pid, *(process.pid for process in below)}

    @property
    def postmaster(self) -> int:
        (postmaster,) = psutil.Process(self.process.pid).children()
        assert postmaster.name() == "postgres"
        return int(postmaster.pid)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
        wait_until(lambda: not postgres_processes_in(self.data_dir), "PostgreSQL gone with its server")


def serve(data_dir: Path, *arguments: str) -> list[str]:
    port = [] if "--port" in arguments else ["--port", "0"]
    return ["embedded", "serve", *port, "--data-dir", str(data_dir), *arguments]


@contextmanager
def serving(data_dir: Path, *arguments: str, **how: Any) -> Iterator[Server]:
    with Server(data_dir, *arguments, **how) as server:
        yield server.wait_ready()


def refused(data_dir: Path, *arguments: str, prefix: list[str] | None = None) -> tuple[int, str, str]:
    """Exit code, `error:` line and `hint:` line of a server that does not start; it must say nothing else."""
    command = [*(prefix or []), *PROGRAM, *serve(data_dir, *arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, env=ENVIRONMENT)
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    return done.returncode, error, hint


class Refused(Exception):
    """The server answered that it did not do it."""


class Wire:
    """The protocol by hand: one session on one connection, no retries, every answer as it came."""

    def __init__(self, server: EmbeddedServer, **query: str) -> None:
        self.http = http.client.HTTPConnection(server.host, server.port, timeout=END_S)
        self.token = ""
        who = {"data": {"LOGIN_NAME": "wire", "PASSWORD": "any"}}
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        self.token = json.loads(self.post(f"/session/v1/login-request?{asked}", who)[1])["data"]["token"]

    def post(self, path: str, body: Any, method: str = "POST", **headers: str) -> tuple[int, bytes]:
        sent = {"Authorization": f'Snowflake Token="{self.token}"', "Content-Type": "application/json"} | headers
        self.http.request(method, path, body if isinstance(body, bytes) else json.dumps(body), sent)
        answer = self.http.getresponse()
        return answer.status, answer.read()

    def sql(self, text: str, **more: Any) -> list[list[str | None]]:
        status, body = self.post(f"/queries/v1/query-request?requestId={uuid.uuid4()}", {"sqlText": text} | more)
        reply: dict[str, Any] = json.loads(body) if status == 200 else {"code": status}
        if not reply.get("success"):
            raise Refused(f"{reply['code']}: {reply.get('message')}")
        rows: list[list[str | None]] = reply["data"]["rowset"]
        return rows

    def answers(self) -> bool:
        with contextlib.suppress(Refused):
            return self.sql("SELECT 1") == [["1"]]
        return False

    def close(self) -> None:
        self.http.close()


@pytest.fixture
def scratch() -> Iterator[Path]:
    with reachable_directory() as path:
        yield path


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A data directory that has been served before; servers follow each other on it."""
    with reachable_directory() as path:
        with serving(path / "data"):
            pass
        yield path / "data"


# --- an ordinary life ------------------------------------------------------------------------------------------------


def test_it_says_where_it_listens_and_listens_nowhere_else(home):
    with serving(home) as server:
        listening = [
            connection.laddr
            for pid in server.tree
            for connection in psutil.Process(pid).net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        address = running_server(home)

        assert listening == [("127.0.0.1", server.port)]
        assert address is not None
        assert (address.host, address.port) == (server.host, server.port)
        with server.connect() as connection:
            assert connection.cursor().execute("SELECT 41 + 1").fetchall() == [(42,)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_order_whatever_is_under_way(home, number):
    with serving(home) as server, ThreadPoolExecutor(thread_name_prefix="client") as clients:
        idle, busy = Wire(server), Wire(server)
        idle.sql("BEGIN")
        waiting = clients.submit(busy.sql, "SELECT SYSTEM$WAIT(60)")
        wait_until(lambda: server.ask("/__loadgen/stats")["under_way"], "statement under way")
        pids = server.tree

        code = server.stop(number)

        assert code == 0
        assert isinstance(waiting.exception(END_S), (Refused, http.client.HTTPException, OSError))
        assert alive(pids) == set()
        assert server.errors == ""
        assert running_server(home) is None
        assert not (home / "server.json").exists()
        assert (home / "postgres.log").read_text().splitlines()[-1].endswith("database system is shut down")
        for wire in (idle, busy):
            wire.close()


def test_a_signal_to_everyone_at_the_terminal_is_as_orderly(home):
    with serving(home, start_new_session=True) as server:
        os.killpg(server.process.pid, signal.SIGINT)

        assert server.process.wait(END_S) == 0
        assert (home / "postgres.log").read_text().splitlines()[-1].endswith("database system is shut down")


def test_impatient_signals_change_nothing(home):
    with serving(home) as server:
        pids = server.tree
        for _ in range(5):
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.process.pid, signal.SIGTERM)

        assert server.stop() == 0
        assert alive(pids) == set()


def test_a_signal_while_it_initialises_leaves_nothing_running_and_nothing_in_the_way(scratch):
    data = scratch / "data"
    with Server(data) as server:
        wait_until(lambda: list(data.glob("initdb-*")), "initdb at work")
        assert server.stop() == 0

        assert postgres_processes_in(data) == []

    with serving(data) as server:
        assert Wire(server).answers()


@pytest.mark.parametrize("variant", VARIANTS)
def test_root_and_ordinary_users_can_run_it_and_kill_9_leaves_nothing_behind(scratch, variant):
    data, prefix = scratch / "data", run_as(variant, scratch)
    with serving(data, prefix=prefix) as server:
        pids = server.tree
        below = pids - {server.process.pid}
        Wire(server, databaseName="KEPT").sql("CREATE TABLE T AS SELECT 1 AS X")

        assert {psutil.Process(pid).uids().real for pid in below} == {(data / "postgres").stat().st_uid} != {0}
        server.process.kill()
        server.process.wait(END_S)
        wait_until(lambda: not alive(pids), "all processes gone")

    with serving(data, prefix=prefix) as server:
        assert Wire(server, databaseName="KEPT").sql("SELECT X FROM T") == [["1"]]


def test_a_successor_may_start_in_the_moment_of_its_predecessors_death(home):
    predecessor = Server(home).wait_ready()
    Wire(predecessor, databaseName="KEPT").sql("CREATE OR REPLACE TABLE T AS SELECT 1 AS X")
    predecessor.process.kill()

    with serving(home) as server:
        assert Wire(server, databaseName="KEPT").sql("SELECT X FROM T") == [["1"]]
    predecessor.__exit__()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_it_needs_no_input_and_no_output(home, closed):
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    with Server(home, prefix=shell) as server:
        wait_until(lambda: running_server(home), "server ready")
        address = running_server(home)
        assert address is not None
        server.host, server.port = address.host, address.port

        assert Wire(server).answers()
        assert server.stop() == 0
        assert server.errors == ""


def test_it_goes_on_when_the_reader_of_its_output_leaves(home):
    with serving(home) as server:
        assert server.process.stdout is not None
        server.process.stdout.close()

        assert Wire(server).answers()
        assert server.stop() == 0


def test_without_a_reader_for_its_address_it_ends_and_leaves_nothing(home):
    with Server(home) as server:
        assert server.process.stdout is not None
        server.process.stdout.close()

        assert server.process.wait(END_S) == 141
        assert postgres_processes_in(home) == []


# --- what keeps it from starting -------------------------------------------------------------------------------------


def test_a_second_server_on_the_same_directory_is_told_who_has_it(home):
    with serving(home) as server:
        code, error, hint = refused(home)

        assert code == 75
        assert str(home) in error
        assert f"Process {server.process.pid} serves it at {server.address}" in hint
        assert Wire(server).answers()


def test_a_port_in_use_is_named_and_nothing_is_touched(scratch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        code, error, hint = refused(scratch / "data", "--port", str(port))

    assert code == 4
    assert f"127.0.0.1:{port}" in error
    assert "another port" in hint
    assert not (scratch / "data").exists()


def test_its_port_is_free_again_at_once(home):
    with serving(home) as server:
        port = server.port
        Wire(server).answers()  # a connection the server closes first lingers in TIME_WAIT

    with serving(home, "--port", str(port)) as server:
        assert server.port == port


@pytest.mark.parametrize(
    "arguments",
    [
        ("--service-time", "fast"),
        ("--service-time", "20"),
        ("--service-time", "-5ms"),
        ("--service-time", "lognormal(20ms)"),
        ("--service-time", "lognormal(0ms,0.3)"),
        ("--service-time", "pareto(20ms,1)"),
        ("--service-time", "uniform(30ms,10ms)"),
        ("--slots", "-1"),
        ("--slots", "many"),
        ("--port", "65536"),
        ("--engine", "oracle"),
    ],
    ids=" ".join,
)
def test_an_option_that_makes_no_sense_is_refused_before_anything_is_made(scratch, arguments):
    code, error, hint = refused(scratch / "data", *arguments)

    assert code == 2
    assert arguments[1].split("(")[0] in error
    assert arguments[0] in hint or "--help" in hint
    assert not (scratch / "data").exists()


def a_file(parent: Path) -> Path:
    path = parent / "file"
    path.write_text("mine\n")
    return path


def below_a_file(parent: Path) -> Path:
    return a_file(parent) / "data"


def somebody_elses_directory(parent: Path) -> Path:
    path = parent / "mine"
    path.mkdir()
    (path / "letter.txt").write_text("mine\n")
    return path


def too_long_a_path(parent: Path) -> Path:
    return parent.joinpath(*["long" * 50] * 6)


@pytest.mark.parametrize("place", [a_file, below_a_file, somebody_elses_directory, too_long_a_path])
def test_a_directory_it_cannot_use_is_named_and_left_alone(scratch, place):
    path = place(scratch)
    before = sorted(str(entry) for entry in scratch.rglob("*"))

    code, error, hint = refused(path)

    assert code == 4
    assert str(path)[:100] in error
    assert "--data-dir" in hint
    assert sorted(str(entry) for entry in scratch.rglob("*")) == before


def test_a_directory_closed_to_the_user_is_named(scratch):
    prefix = run_as("ordinary user", scratch)
    closed = scratch / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    if os.geteuid() == 0:
        os.chown(closed, 0, 0)

    code, error, hint = refused(closed / "data", prefix=prefix)

    assert code == 4
    assert "you may not write there" in error
    assert "--data-dir" in hint


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others run PostgreSQL as themselves")
def test_root_is_told_of_a_directory_that_the_user_of_postgresql_cannot_reach(scratch):
    closed = scratch / "closed"
    closed.mkdir(mode=0o700)

    code, error, hint = refused(closed / "data")

    assert code == 4
    assert f"{closed} is closed" in error
    assert str(SYSTEM_DIR) in hint
    assert list(closed.iterdir()) == []


def test_files_that_a_dead_owner_left_are_no_obstacle(home):
    with process_of_owner(home / "postgres", "sleep", "600") as stranger:
        record = {"pid": stranger.pid, "host": "127.0.0.1", "port": 1, "started_at": "2020-01-01", "version": "0"}
        (home / "server.json").write_text(json.dumps(record))
        (home / "lock").write_text(str(stranger.pid))

        with serving(home) as server:
            assert Wire(server).answers()
            assert json.loads((home / "server.json").read_text())["pid"] == server.process.pid
        assert stranger.poll() is None


# --- what survives a restart -----------------------------------------------------------------------------------------

OBJECTS = f"""
CREATE DATABASE KEEP COMMENT = 'to be kept'
CREATE SCHEMA KEEP.OTHER
CREATE DATABASE GONE
DROP DATABASE GONE
CREATE TABLE KEEP.OTHER.PLAIN (N NUMBER(10,2) NOT NULL, T VARCHAR(50) DEFAULT 'none', D DATE, V VARIANT)
INSERT INTO KEEP.OTHER.PLAIN SELECT 1.5, 'Grüße', '2024-02-29', PARSE_JSON('{{"a": [1, null]}}')
INSERT INTO KEEP.OTHER.PLAIN (N) VALUES (-2)
CREATE HYBRID TABLE KEEP.OTHER.KEYED (ID NUMBER AUTOINCREMENT PRIMARY KEY, CODE VARCHAR UNIQUE, W TIMESTAMP_NTZ, \
INDEX BY_W (W) INCLUDE (CODE))
INSERT INTO KEEP.OTHER.KEYED (CODE, W) VALUES ('a', '2024-01-01 00:00:00'), ('b', NULL)
CREATE TABLE KEEP.OTHER.COUNTED (ID NUMBER AUTOINCREMENT START 100 INCREMENT 10, X NUMBER)
INSERT INTO KEEP.OTHER.COUNTED (X) VALUES (1), (2)
CREATE VIEW KEEP.OTHER.SEEN AS SELECT ID, UPPER(CODE) AS C FROM KEEP.OTHER.KEYED WHERE ID > 1
CREATE TABLE KEEP.PUBLIC.{LONG}1 ({LONG}A NUMBER, {LONG}B NUMBER)
CREATE TABLE KEEP.PUBLIC.{LONG}2 ({LONG}A NUMBER, {LONG}B NUMBER)
INSERT INTO KEEP.PUBLIC.{LONG}1 VALUES (1, 2)
INSERT INTO KEEP.PUBLIC.{LONG}2 VALUES (3, 4)
CREATE SCHEMA KEEP.{LONG}S
CREATE VIEW KEEP.{LONG}S.{LONG}V AS SELECT {LONG}B FROM KEEP.PUBLIC.{LONG}2
CREATE TABLE KEEP.PUBLIC."odd ""name"" ä" ("lower" NUMBER)
INSERT INTO KEEP.PUBLIC."odd ""name"" ä" VALUES (7)
CREATE WAREHOUSE KEEP_WH WITH WAREHOUSE_SIZE = 'LARGE' MAX_CLUSTER_COUNT = 3 MIN_CLUSTER_COUNT = 2 \
AUTO_SUSPEND = 123 AUTO_RESUME = FALSE MAX_CONCURRENCY_LEVEL = 5 COMMENT = 'kept'
CREATE WAREHOUSE GONE_WH
DROP WAREHOUSE GONE_WH
USE WAREHOUSE COMPUTE_WH
ALTER WAREHOUSE COMPUTE_WH SET WAREHOUSE_SIZE = 'MEDIUM' STATEMENT_TIMEOUT_IN_SECONDS = 77
"""
LOOKS = f"""
SHOW SCHEMAS IN DATABASE KEEP
SHOW TABLES IN DATABASE KEEP
SHOW VIEWS IN DATABASE KEEP
SHOW INDEXES IN TABLE KEEP.OTHER.KEYED
DESCRIBE TABLE KEEP.OTHER.PLAIN
DESCRIBE TABLE KEEP.OTHER.KEYED
DESCRIBE TABLE KEEP.OTHER.COUNTED
DESCRIBE TABLE KEEP.PUBLIC.{LONG}1
SELECT N, T, D, V FROM KEEP.OTHER.PLAIN ORDER BY N
SELECT ID, CODE, W FROM KEEP.OTHER.KEYED ORDER BY CODE
SELECT ID, X FROM KEEP.OTHER.COUNTED ORDER BY X
SELECT C FROM KEEP.OTHER.SEEN ORDER BY C
SELECT {LONG}A, {LONG}B FROM KEEP.PUBLIC.{LONG}1
SELECT {LONG}A, {LONG}B FROM KEEP.PUBLIC.{LONG}2
SELECT {LONG}B FROM KEEP.{LONG}S.{LONG}V
SELECT "lower" FROM KEEP.PUBLIC."odd ""name"" ä"
SHOW PARAMETERS IN WAREHOUSE KEEP_WH
SHOW PARAMETERS IN WAREHOUSE COMPUTE_WH
"""
PASSING = {"state", "started_clusters", "running", "queued", "is_current", "available", "resumed_on"}


def seen(connection: Any) -> dict[str, Any]:
    """Everything a user can look at, without what belongs to the moment."""
    looks: dict[str, Any] = {}
    for text in LOOKS.strip().splitlines():
        cursor = connection.cursor().execute(text)
        looks[text] = ([column.name for column in cursor.description], cursor.fetchall())
    cursor = connection.cursor().execute("SHOW DATABASES")
    looks["databases"] = sorted(row[1] for row in cursor.fetchall())
    cursor = connection.cursor().execute("SHOW WAREHOUSES")
    names = [column.name for column in cursor.description]
    for row in cursor.fetchall():
        look = dict(zip(names, row, strict=True))
        looks[f"warehouse {look['name']}"] = {name: value for name, value in look.items() if name not in PASSING}
    return looks


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_everything_survives_a_restart(scratch, number):
    with serving(scratch / "data") as server:
        with server.connect() as connection:
            for text in OBJECTS.replace("\\\n", "").strip().splitlines():
                connection.cursor().execute(text)
        with server.connect() as connection:  # its context is not the other's, as after the restart
            before = seen(connection)
        server.stop(number)

    with serving(scratch / "data") as server, server.connect() as connection:
        assert seen(connection) == before
        assert "KEEP" in before["databases"]
        assert "GONE" not in before["databases"]
        assert "warehouse GONE_WH" not in before
        assert before["warehouse KEEP_WH"]["size"] == "Large"
        cursor = connection.cursor().execute("USE SCHEMA KEEP.OTHER")
        with pytest.raises(Exception, match="Duplicate key value"):
            cursor.execute("INSERT INTO KEYED (CODE) VALUES ('a')")
        with pytest.raises(Exception, match="already exists"):
            cursor.execute(f"CREATE TABLE KEEP.PUBLIC.{LONG}1 (X NUMBER)")
        cursor.execute("INSERT INTO KEYED (CODE) VALUES ('later')")
        cursor.execute("INSERT INTO COUNTED (X) VALUES (3)")
        assert cursor.execute("SELECT COUNT(*), COUNT(DISTINCT ID) FROM KEYED").fetchall() == [(3, 3)]
        assert cursor.execute("SELECT MIN(ID) > 110 FROM COUNTED WHERE X = 3").fetchall() == [(True,)]


def test_a_directory_with_functions_of_another_version_is_brought_up_to_date(scratch):
    data = scratch / "data"
    with serving(data) as server:
        wire = Wire(server, databaseName="OLD")
        wire.sql("CREATE TABLE T (S VARCHAR DEFAULT INITCAP('a b'), V VARIANT)")
        wire.sql("CREATE VIEW SPLIT AS SELECT SPLIT_PART(S, ' ', 2) AS P, V:a::NUMBER AS A FROM T")
        wire.sql("INSERT INTO T (V) SELECT PARSE_JSON('{\"a\": 5}')")
    asyncio.run(make_functions_older(data))

    with serving(data) as server:
        wire = Wire(server, databaseName="OLD")
        assert wire.sql("SELECT P, A FROM SPLIT") == [["B", "5"]]
        wire.sql("INSERT INTO T (V) SELECT NULL")
        assert wire.sql("SELECT COUNT(S) FROM T") == [["2"]]


async def make_functions_older(path: Path) -> None:
    """As if the functions had been made with other parameter names, which PostgreSQL does not let one replace."""
    with DataDir.claim(path) as data_dir:
        postgres = Postgres(data_dir, max_connections=20)
        await postgres.start()
        connection = await asyncpg.connect(**postgres.connect_kwargs)
        renamed = await connection.execute(
            "UPDATE pg_proc SET proargnames[1] = 'older_' || proargnames[1]"
            " WHERE pronamespace = 'sf'::regnamespace AND proargnames[1] <> ''"
        )
        marked = await connection.execute("UPDATE meta.object SET body = '\"older\"' WHERE kind = 'functions'")
        await connection.close()
        await postgres.stop()
    assert renamed != "UPDATE 0"
    assert marked == "UPDATE 1"


def test_query_ids_and_sessions_of_two_lives_differ(home):
    found: list[tuple[str, str]] = []
    for _ in range(2):
        with serving(home) as server, server.connect() as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT 1")
            found.append((cursor.sfqid, str(connection.session_id)))

    assert len({query_id for query_id, _ in found}) == 2
    assert len({session_id for _, session_id in found}) == 2


# --- requests that make no sense -------------------------------------------------------------------------------------

LOGIN, QUERY = "/session/v1/login-request", "/queries/v1/query-request"
ENOUGH = {"LOGIN_NAME": "A", "PASSWORD": "x"}
SELECT = {"sqlText": "SELECT 1"}


@pytest.fixture(scope="module")
def target() -> Iterator[Server]:
    """One server for all bad requests: each must leave it whole for the next."""
    with reachable_directory() as path, serving(path / "data") as server:
        yield server


@pytest.fixture
def canary(target: Server) -> Iterator[Wire]:
    """A well-behaved session with an open transaction, which must not notice anything."""
    said = len(target.errors)
    session = Wire(target, databaseName="CANARY")
    name = f"C_{uuid.uuid4().hex}".upper()
    session.sql(f"CREATE HYBRID TABLE {name} (ID NUMBER PRIMARY KEY)")
    assert session.sql(f"SELECT ID FROM {name}") == []
    session.sql("BEGIN")
    session.sql(f"INSERT INTO {name} VALUES (1)")
    yield session
    assert session.sql(f"SELECT ID FROM {name}") == [["1"]]
    session.sql("COMMIT")
    assert session.sql(f"SELECT ID FROM {name}") == [["1"]]
    assert target.process.poll() is None
    assert "Z error " not in target.errors[said:]  # the log level; bad requests deserve a warning at most
    session.close()


BODIES = [b"", b"not json", b"null", b"[]", b'"x"', b"{}", b'{"data": ', b"\xff\xfe", b"[" * 100_000, b"1" * 10_000]
LOGINS = [
    {"data": []},
    {"data": "x"},
    {"data": {"LOGIN_NAME": {}, "PASSWORD": []}},
    {"data": {"LOGIN_NAME": ["A"], "PASSWORD": {"a": 1}}},
    {"data": ENOUGH | {"SESSION_PARAMETERS": [1]}},
    {"data": ENOUGH | {"SESSION_PARAMETERS": "x"}},
    {"data": ENOUGH | {"SESSION_PARAMETERS": {"TIMEZONE": {}, "AUTOCOMMIT": [], "QUERY_TAG": None}}},
    {"data": ENOUGH | {"SESSION_PARAMETERS": {"TIMEZONE": "../../etc/passwd"}}},
    {"data": ENOUGH | {"SESSION_PARAMETERS": {"STATEMENT_TIMEOUT_IN_SECONDS": "²"}}},
    {"data": ENOUGH | {"AUTHENTICATOR": 5, "CLIENT_ENVIRONMENT": 5, "CLIENT_APP_ID": {}}},
]
QUERIES: list[dict[str, Any]] = [
    {"sqlText": None},
    {"sqlText": 5},
    {"sqlText": ""},
    {"sqlText": ";"},
    {"sqlText": "\0"},
    {"sqlText": "SELECT '\0'"},
    {"sqlText": "SELECT '\ud800'"},
    {"sqlText": "SELECT " + "(" * 50_000},
    {"sqlText": "SELECT " + "1 + " * 50_000 + "1"},
    {"sqlText": "SELECT ?", "bindings": True},
    {"sqlText": "SELECT ?", "bindings": 5},
    {"sqlText": "SELECT ?", "bindings": "x"},
    {"sqlText": "SELECT ?", "bindings": [1]},
    {"sqlText": "SELECT ?", "bindings": {"1": 5}},
    {"sqlText": "SELECT ?", "bindings": {"1": None}},
    {"sqlText": "SELECT ?", "bindings": {"1": {}}},
    {"sqlText": "SELECT ?", "bindings": {"2": {"type": "TEXT", "value": "x"}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": 5, "value": {}}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": "FIXED", "value": "one"}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": "DATE", "value": "9" * 30}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": "TIMESTAMP_TZ", "value": "x y z"}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": "NONSENSE", "value": "1"}}},
    {"sqlText": "SELECT ?", "bindings": {"1": {"type": "TEXT", "value": [["a"], {}]}}},
    SELECT | {"parameters": []},
    SELECT | {"parameters": 5},
    SELECT | {"parameters": {"QUERY_TAG": {}, "STATEMENT_TIMEOUT_IN_SECONDS": "x"}},
    SELECT | {"parameters": {"MULTI_STATEMENT_COUNT": []}},
    SELECT | {"describeOnly": "maybe", "asyncExec": 0, "sequenceId": {}},
    {"sqlText": "SELECT ?", "describeOnly": True, "bindings": 1},
]
PATHS = [
    ("GET", "/"),
    ("POST", "/"),
    ("GET", "//"),
    ("GET", QUERY),
    ("DELETE", QUERY),
    ("BREW", QUERY),
    ("OPTIONS", "*"),
    ("POST", f"{QUERY}/more"),
    ("POST", "/nothing/here"),
    ("GET", "/%ff%fe%00"),
    ("GET", "/../../etc/passwd"),
    ("GET", "/" + "x" * 60_000),
    ("GET", "/queries//result"),
    ("GET", "/queries/x/result"),
    ("GET", f"/queries/{'x' * 10_000}/result"),
    ("GET", "/monitoring/queries/"),
    ("GET", "/monitoring/queries/x"),
    ("POST", "/session"),
    ("POST", "/session?delete=maybe"),
    ("POST", "/session/token-request"),
    ("POST", "/queries/v1/abort-request"),
    ("POST", f"{QUERY}?requestId=%ff&requestId=&=&&retryCount=%C2%B2"),
    ("POST", f"{QUERY}?retryCount={'9' * 5_000}"),
    ("GET", "/__loadgen/history?since=%C2%B2"),
    ("GET", "/__loadgen/history?since=-1"),
    ("GET", "/__loadgen/history?since=nan&tag=%ff"),
    ("GET", f"/__loadgen/journal?since={'9' * 5_000}"),
    ("GET", "/__loadgen/journal?match=(&since=."),
    ("GET", "/__loadgen/nothing"),
    ("POST", "/__loadgen/faults"),
    ("POST", "/__loadgen/services"),
]
FAULTS: list[Any] = [
    {},
    [1],
    [[]],
    {"match": 5},
    {"match": "(", "kind": "error"},
    {"match": "x", "kind": "nothing"},
    {"match": "x", "kind": "latency", "ms": "long"},
    {"match": "x", "kind": "error", "probability": 7, "count": -1},
]


def assert_refused_politely(status: int, body: bytes) -> None:
    """An answer in HTTP's 4xx, or an answer of the protocol that names no exception of Python."""
    assert status == 200 or 400 <= status < 500, (status, body[:300])
    assert re.search(rb"internal error: \w+\.", body) is None


@pytest.mark.parametrize("path", [LOGIN, QUERY, "/queries/v1/abort-request", "/__loadgen/faults", "/telemetry/send"])
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_body_that_is_not_what_the_protocol_says_is_refused(target, canary, path, body):
    wire = Wire(target)

    assert_refused_politely(*wire.post(path, body))


@pytest.mark.parametrize("body", LOGINS, ids=range(len(LOGINS)))
def test_a_login_with_fields_of_the_wrong_kind_is_refused_or_entered(target, canary, body):
    assert_refused_politely(*Wire(target).post(LOGIN, body))


@pytest.mark.parametrize("body", QUERIES, ids=range(len(QUERIES)))
def test_a_query_with_fields_of_the_wrong_kind_is_refused_or_answered(target, canary, body):
    wire = Wire(target)

    assert_refused_politely(*wire.post(f"{QUERY}?requestId={uuid.uuid4()}", body))
    assert wire.answers()


@pytest.mark.parametrize(("method", "path"), PATHS, ids=[f"{method} {path[:40]}" for method, path in PATHS])
def test_a_path_or_method_that_means_nothing_is_refused_or_ignored(target, canary, method, path):
    assert_refused_politely(*Wire(target).post(path, SELECT if path.startswith(QUERY) else b"", method))


@pytest.mark.parametrize("body", FAULTS, ids=range(len(FAULTS)))
def test_a_fault_that_makes_no_sense_is_refused(target, canary, body):
    status, answer = Wire(target).post("/__loadgen/faults", body)

    assert status == 400, answer
    assert target.ask("/__loadgen/faults") == []


@pytest.mark.parametrize("body", [{"name": 5, "logs": []}, {"logs": "x"}, {"name": "X", "status": {}}])
def test_a_report_of_a_service_that_makes_no_sense_is_refused(target, canary, body):
    assert_refused_politely(*Wire(target).post("/__loadgen/services", body))


@pytest.mark.parametrize("more", [{}, {"describeOnly": True}])
def test_an_asynchronous_query_needs_no_request_id(target, canary, more):
    wire = Wire(target)

    status, body = wire.post(QUERY, {"sqlText": "SELECT SYSTEM$WAIT(1)", "asyncExec": True} | more)

    assert_refused_politely(status, body)
    assert json.loads(body)["data"]["queryId"]


@pytest.mark.parametrize("token", ["", "None", "x" * 10_000, "ü", '"', "Basic eDp5", "Bearer", 'Snowflake Token="'])
def test_a_wrong_token_opens_nothing(target, canary, token):
    wire = Wire(target)
    wire.token = ""

    status, body = wire.post(QUERY, SELECT, Authorization=token.encode().decode("latin-1"))

    assert status == 200
    assert json.loads(body)["success"] is False
    assert json.loads(body)["code"].startswith("3901")


@pytest.mark.parametrize(
    "body",
    [b"not gzip", b"\x1f\x8b", gzip.compress(b"not json"), gzip.compress(json.dumps(SELECT).encode())[:-10], b""],
    ids=["plain", "magic only", "not json", "cut", "empty"],
)
def test_a_body_that_is_not_gzip_is_refused(target, canary, body):
    status, _ = Wire(target).post(QUERY, body, **{"Content-Encoding": "gzip"})

    assert status == 400


def test_a_gzip_bomb_is_refused_without_its_memory(target, canary):
    wire = Wire(target)
    before = psutil.Process(target.process.pid).memory_info().rss
    bomb = gzip.compress(b'{"sqlText": "' + b" " * (1 << 29))

    status, _ = wire.post(QUERY, bomb, **{"Content-Encoding": "gzip"})

    assert 400 <= status < 500
    assert wire.answers()
    assert psutil.Process(target.process.pid).memory_info().rss - before < 512 << 20


def test_a_body_without_end_is_refused_and_not_kept(target, canary):
    piece = b" " * (1 << 20)
    with socket.create_connection((target.host, target.port), timeout=END_S) as raw:
        raw.sendall(f"POST {QUERY} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
        with contextlib.suppress(OSError):  # it may well hang up in the middle
            for _ in range(600):
                raw.sendall(piece)
        assert raw.recv(65_536).startswith(b"HTTP/1.1 413 ")
    assert psutil.Process(target.process.pid).memory_info().rss < 1 << 30


RAW = {
    "binary": bytes(range(256)) * 40,
    "zeros": bytes(100_000),
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "line without end": b"G" * 200_000,
    "old": b"GET /\r\n\r\n",
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
    "bad path": b"GET /\xff\xfe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    "huge length": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    "bad chunk": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "upgrade": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "connect": b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n",
    "expect": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % number for number in range(20_000)) + b"\r\n",
    "half a header": b"POST /queries/v1/query-request HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le",
    "half a body": b"POST /queries/v1/query-request HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
    "two at once": b"GET /a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_no_request_hurt_nobody(target, canary, name, reset):
    with socket.create_connection((target.host, target.port), timeout=END_S) as raw:
        with contextlib.suppress(OSError):  # it may well hang up in the middle
            raw.sendall(RAW[name])
        if reset:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        answer = b""
        with contextlib.suppress(OSError):
            raw.shutdown(socket.SHUT_WR)
            while piece := raw.recv(65_536):
                answer += piece
    assert re.match(rb"(HTTP/1\.[01] [1234]\d\d |$)", answer), answer[:300]
    assert b"HTTP/1.1 5" not in answer


def test_connections_that_say_nothing_do_not_keep_others_out(target, canary):
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((target.host, target.port), timeout=END_S))

        assert Wire(target).answers()


def test_a_client_that_leaves_in_the_middle_of_a_statement_hurts_nobody(target, canary):
    before = target.ask("/__loadgen/stats")["statements"]
    for _ in range(20):
        wire = Wire(target)
        body = json.dumps({"sqlText": "SELECT SYSTEM$WAIT(1)"})
        wire.http.request("POST", QUERY, body, {"Authorization": f'Snowflake Token="{wire.token}"'})
        wire.close()

    wait_until(lambda: target.ask("/__loadgen/stats")["statements"] >= before + 20, "the statements over")
    assert target.ask("/__loadgen/stats")["running"] == 0


@pytest.mark.parametrize("origin", ["https://example.com", "http://127.0.0.1:8085", "null"])
def test_a_web_page_is_refused_and_changes_nothing(target, canary, origin):
    wire = Wire(target, databaseName="WEB")
    wire.sql("CREATE OR REPLACE TABLE T (X NUMBER)")
    fault = {"match": "nothing", "kind": "error"}
    target.fault(**fault)

    asked = [
        wire.post(QUERY, {"sqlText": "INSERT INTO T VALUES (1)"}, Origin=origin),
        wire.post(LOGIN, {"data": ENOUGH}, Origin=origin),
        wire.post("/__loadgen/faults", fault, Origin=origin),
        wire.post("/__loadgen/faults", b"", "DELETE", Origin=origin),
        wire.post("/__loadgen/history", b"", "GET", Origin=origin),
        wire.post(QUERY, b"", "OPTIONS", Origin=origin),
    ]

    assert [status for status, _ in asked] == [403] * len(asked)
    assert wire.sql("SELECT COUNT(*) FROM T") == [["0"]]
    assert len(target.ask("/__loadgen/faults")) == 1
    target.clear_faults()


# --- durability ------------------------------------------------------------------------------------------------------

WRITERS = 16
TABLES = ("HYBRID_ROWS", "PLAIN_ROWS")
FIRST_ROUND, LATER_ROUNDS = 1, (2, 3)
ROUNDS = [FIRST_ROUND, *(pytest.param(number, marks=pytest.mark.slow) for number in LATER_ROUNDS)]


class Writers:
    """Sessions that write single rows and pairs of rows until they are told to stop, and note what was acknowledged.

    A pair is one transaction: both rows in one of the tables, or one in each.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(WRITERS, thread_name_prefix="writer")
        self.singles: set[str] = set()
        self.pairs: set[str] = set()
        self.refused = 0
        self._done = [self._threads.submit(self._write, number) for number in range(WRITERS)]

    @property
    def acknowledged(self) -> int:
        return len(self.singles) + len(self.pairs)

    def wait_for(self, more: int) -> None:
        enough = self.acknowledged + more
        wait_until(lambda: self.acknowledged >= enough, f"{more} more commits acknowledged")

    def stop(self) -> None:
        self._stop.set()
        for done in self._done:
            done.result(END_S)
        self._threads.shutdown()

    def _write(self, writer: int) -> None:
        with contextlib.suppress(http.client.HTTPException, OSError):  # the server is gone
            wire = Wire(self._server, databaseName="LOADGEN", schemaName="CONTROL")
            for number in itertools.count():
                if self._stop.is_set():
                    return
                name = f"{self._server.process.pid}-{writer}-{number}"
                try:
                    self._one(wire, name) if number % 2 else self._two(wire, name, number)
                except Refused:
                    self.refused += 1
                    with contextlib.suppress(Refused):
                        wire.sql("ROLLBACK")

    def _one(self, wire: Wire, name: str) -> None:
        wire.sql(f"INSERT INTO {random.choice(TABLES)} VALUES ('{name}', 'single')")
        self.singles.add(name)

    def _two(self, wire: Wire, name: str, number: int) -> None:
        first, second = random.choice(TABLES), random.choice(TABLES)
        wire.sql("BEGIN")
        wire.sql(f"INSERT INTO {first} VALUES ('{name}a', '{name}')")
        wire.sql(f"INSERT INTO {second} VALUES ('{name}b', '{name}')")
        wire.sql("COMMIT")
        self.pairs.add(name)


def make_tables(server: Server) -> None:
    wire = Wire(server, databaseName="LOADGEN", schemaName="CONTROL")
    wire.sql("CREATE OR REPLACE HYBRID TABLE HYBRID_ROWS (ID VARCHAR PRIMARY KEY, PAIR VARCHAR NOT NULL)")
    wire.sql("CREATE OR REPLACE TABLE PLAIN_ROWS (ID VARCHAR, PAIR VARCHAR NOT NULL)")
    wire.close()


def assert_kept(server: Server, writers: Writers) -> None:
    wire = Wire(server, databaseName="LOADGEN", schemaName="CONTROL")
    rows = [row for table in TABLES for row in wire.sql(f"SELECT ID, PAIR FROM {table}")]
    ids = {row[0] for row in rows}
    pairs = Counter(row[1] for row in rows if row[1] != "single")

    assert len(ids) == len(rows), "a row is there twice"
    assert writers.singles - ids == set()
    assert writers.pairs - set(pairs) == set()
    assert {pair: count for pair, count in pairs.items() if count != 2} == {}
    for table in TABLES:
        wire.sql(f"INSERT INTO {table} VALUES ('{uuid.uuid4()}', 'single')")


@pytest.mark.parametrize("number", ROUNDS)
def test_what_was_acknowledged_survives_kill_9_of_the_server(home, number):
    with serving(home) as server:
        make_tables(server)
        writers = Writers(server)
        writers.wait_for(random.randint(100, 1500))

        server.process.kill()
        server.process.wait(END_S)
        writers.stop()

    assert writers.refused == 0
    with serving(home) as server:
        assert_kept(server, writers)


@pytest.mark.parametrize("victim", ["postmaster", "backend"])
def test_what_was_acknowledged_survives_kill_9_of_postgresql_and_the_server_goes_on(home, victim):
    with serving(home) as server:
        make_tables(server)
        bystander = Wire(server)
        bystander.sql("ALTER SESSION SET QUERY_TAG = 'bystander'")
        writers = Writers(server)
        for _ in range(3):
            writers.wait_for(random.randint(100, 700))
            postmaster = server.postmaster
            backends = [process.pid for process in psutil.Process(postmaster).children()]

            os.kill(postmaster if victim == "postmaster" else backends[-1], signal.SIGKILL)

            if victim == "postmaster":
                wait_successor(server, postmaster)
            wait_until(bystander.answers, "the old session served again")
        writers.wait_for(100)
        writers.stop()

        assert_kept(server, writers)
        assert bystander.sql("SHOW PARAMETERS LIKE 'QUERY_TAG' IN SESSION")[0][1] == "bystander"
        assert server.stop() == 0
    with serving(home) as server:
        assert_kept(server, writers)


def one_below(server: Server) -> int | None:
    """The PostgreSQL that runs; it may end while it is looked at."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(server.process.pid).children()
        return children[0].pid if children and children[0].name() == "postgres" else None
    return None


def wait_successor(server: Server, old: int) -> None:
    wait_until(lambda: one_below(server) not in (None, old), "a new PostgreSQL")


def kill_postgres(server: Server, witness: Wire) -> None:
    """Kill it and wait until its successor serves the witness."""
    old = server.postmaster
    os.kill(old, signal.SIGKILL)
    wait_successor(server, old)
    wait_until(witness.answers, "statements served again")


@pytest.mark.parametrize("table", TABLES)
def test_a_transaction_cut_in_two_by_the_death_of_postgresql_is_not_committed_in_part(home, table):
    with serving(home) as server:
        make_tables(server)
        wire = Wire(server, databaseName="LOADGEN", schemaName="CONTROL")
        wire.sql("BEGIN")
        wire.sql(f"INSERT INTO {table} VALUES ('a', 'cut')")

        kill_postgres(server, Wire(server))

        told = False  # by either statement: the client must learn that the first half is gone
        for text in (f"INSERT INTO {table} VALUES ('b', 'cut')", "COMMIT"):
            try:
                wire.sql(text)
            except Refused:
                told = True
        assert told
        wire.sql("ROLLBACK")
        assert wire.sql(f"SELECT ID FROM {table}") == []
        wire.sql("BEGIN")
        wire.sql(f"INSERT INTO {table} VALUES ('c', 'later')")
        wire.sql("COMMIT")
        assert wire.sql(f"SELECT ID FROM {table}") == [["c"]]


@pytest.mark.parametrize("verb", ["COMMIT", "ROLLBACK"])
def test_a_transaction_lost_with_postgresql_can_be_rolled_back_but_not_committed(home, verb):
    with serving(home) as server:
        make_tables(server)
        wire = Wire(server, databaseName="LOADGEN", schemaName="CONTROL")
        wire.sql("BEGIN")
        wire.sql("INSERT INTO HYBRID_ROWS VALUES ('a', 'lost')")

        kill_postgres(server, Wire(server))

        with pytest.raises(Refused) if verb == "COMMIT" else contextlib.nullcontext():
            wire.sql(verb)
        assert wire.sql("SELECT COUNT(*) FROM HYBRID_ROWS") == [["0"]]
        assert server.ask("/__loadgen/stats")["open_transactions"] == 0


class Maker:
    """A session that makes tables until it is told to stop, and notes which were acknowledged."""

    def __init__(self, server: Server) -> None:
        self.made: set[str] = set()
        self._wire = Wire(server, databaseName="LOADGEN", schemaName="DDL")
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="maker")
        self._done = self._thread.submit(self._make)

    def _make(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            with contextlib.suppress(Refused):
                self._wire.sql(f"CREATE TABLE T{number} AS SELECT {number} AS X")
                self.made.add(f"T{number}")

    def wait_for(self, more: int) -> None:
        enough = len(self.made) + more
        wait_until(lambda: len(self.made) >= enough, f"{more} more tables made")

    def stop(self) -> None:
        self._stop.set()
        self._done.result(END_S)
        self._thread.shutdown()


def assert_whole(server: Server, made: set[str]) -> None:
    """What was acknowledged is there, what is there works, and what is not there can be made."""
    wire = Wire(server, databaseName="LOADGEN", schemaName="DDL")
    listed = {str(row[1]) for row in wire.sql("SHOW TABLES IN SCHEMA LOADGEN.DDL")}
    assert made - listed == set()
    for number in range(len(listed) + 5):
        wire.sql(f"CREATE TABLE IF NOT EXISTS T{number} AS SELECT {number} AS X")
        assert wire.sql(f"SELECT X FROM T{number}") == [[str(number)]]


def test_objects_made_while_postgresql_dies_are_there_entirely_or_not_at_all(home):
    with serving(home) as server:
        Wire(server).sql("CREATE OR REPLACE SCHEMA LOADGEN.DDL")
        maker = Maker(server)
        for _ in range(3):
            maker.wait_for(10)
            kill_postgres(server, Wire(server))
        maker.stop()

        assert_whole(server, maker.made)
    with serving(home) as server:
        assert_whole(server, maker.made)


def test_objects_made_while_the_server_dies_are_there_entirely_or_not_at_all(home):
    with serving(home) as server:
        Wire(server).sql("CREATE OR REPLACE SCHEMA LOADGEN.DDL")
        maker = Maker(server)
        maker.wait_for(random.randint(10, 60))
        server.process.kill()
        server.process.wait(END_S)
        with contextlib.suppress(http.client.HTTPException, OSError):
            maker.stop()

    with serving(home) as server:
        assert_whole(server, maker.made)


def test_a_postgresql_that_keeps_dying_ends_the_server_with_an_error(home):
    with serving(home) as server:
        wire = Wire(server)

        def kill_again() -> bool:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if (pid := one_below(server)) is not None:
                    os.kill(pid, signal.SIGKILL)
            return server.process.poll() is not None

        wait_until(kill_again, "the server gave up")

        assert server.process.wait() == 4
        assert server.errors.startswith("error: ")
        assert "PostgreSQL" in server.errors
        assert "\nhint: " in server.errors
        wire.close()
    with serving(home) as server:
        assert Wire(server).answers()


def test_two_deaths_in_a_row_are_survived_as_one_is(home):
    with serving(home) as server:
        witness = Wire(server)
        for _ in range(2):
            old = server.postmaster
            os.kill(old, signal.SIGKILL)
            wait_successor(server, old)

        wait_until(witness.answers, "statements served again")


# --- the null engine -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def null_server() -> Iterator[Server]:
    with reachable_directory() as path, serving(path / "unused", "--engine", "null") as server:
        yield server


def test_the_null_engine_needs_neither_directory_nor_database(null_server):
    assert null_server.tree == {null_server.process.pid}
    assert not null_server.data_dir.exists()


@pytest.mark.parametrize("text", ["SELECT 1", "INSERT INTO nowhere VALUES (?)", "BEGIN", "??? no SQL at all '", ""])
def test_the_null_engine_answers_anything_with_one_row(null_server, text):
    wire = Wire(null_server)

    assert wire.sql(text) == [["1"]]
    assert wire.sql(text, bindings={"1": {"type": "TEXT", "value": "x"}}) == [["1"]]


def test_the_null_engine_serves_the_driver(null_server):
    with null_server.connect(database="ANY", schema="WHERE", warehouse="SOME_WH") as connection:
        cursor = connection.cursor()

        assert cursor.execute("SELECT * FROM nowhere WHERE x = ?", (5,)).fetchall() == [(1,)]
        connection.cursor().execute_async("SELECT 1")
        connection.commit()
    assert null_server.ask("/__loadgen/history")[-1]["error_code"] == 0


def test_the_null_engine_postpones_an_asynchronous_answer(scratch):
    with serving(scratch / "unused", "--engine", "null", "--service-time", "200ms") as server:
        wire = Wire(server)

        status, body = wire.post(f"{QUERY}?requestId={uuid.uuid4()}", {"sqlText": "SELECT 1", "asyncExec": True})

        assert status == 200, body
        reply = json.loads(body)
        assert reply["code"] == "333334"
        status, body = wire.post(reply["data"]["getResultUrl"], b"", "GET")
        assert json.loads(body)["data"]["rowset"] == [["1"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_null_engine_ends_like_the_other(scratch, number):
    with serving(scratch / "unused", "--engine", "null") as server:
        assert Wire(server).answers()

        assert server.stop(number) == (-number if number == signal.SIGKILL else 0)
        assert server.errors == ""


# --- the warehouse model ---------------------------------------------------------------------------------------------

CONNECTIONS, SLOTS, SERVICE_MS = 16, 4, 20.0
TOLERANCE_MS = 3.0  # between a request's arrival and its entry into the queue; nothing of it adds up


def load(server: Server, statements: int, text: str = "SELECT ? + 1") -> list[dict[str, Any]]:
    """Run `statements` on each of 16 connections at once; the server's record of them, in order of their arrival."""
    tag = uuid.uuid4().hex
    warm_ms: list[float] = []
    warm = threading.Barrier(CONNECTIONS, lambda: warm_ms.append(server.ask("/__loadgen/stats")["now_ms"]))

    def client() -> None:
        with server.connect(session_parameters={"QUERY_TAG": tag}) as connection:
            cursor = connection.cursor()
            cursor.execute(text, (1,))
            warm.wait(END_S)
            for _ in range(statements):
                cursor.execute(text, (1,))

    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="client") as clients:
        for done in [clients.submit(client) for _ in range(CONNECTIONS)]:
            done.result(100)
    lines = server.ask(f"/__loadgen/history?tag={tag}&since={warm_ms[0]}")
    history = [line for line in lines if line["sql_text"] == text]
    assert len(history) == CONNECTIONS * statements
    return sorted(history, key=lambda line: line["start_ms"])


@pytest.fixture(scope="module", params=["postgres", "null"])
def history(request: pytest.FixtureRequest) -> Iterator[list[dict[str, Any]]]:
    arguments = ["--engine", request.param, "--slots", str(SLOTS), "--service-time", f"{SERVICE_MS:g}ms"]
    with reachable_directory() as path, serving(path / "data", *arguments) as server:
        yield load(server, statements=40)


def begins_ms(history: list[dict[str, Any]]) -> list[float]:
    """When each got its slot; what was queued before is not part of the execution."""
    return [line["end_ms"] - line["execution_ms"] for line in history]


@pytest.mark.slow
def test_a_statement_takes_the_service_time(history):
    times_ms = [line["execution_ms"] for line in history]

    assert statistics.median(times_ms) == pytest.approx(SERVICE_MS, rel=0.05)
    assert min(times_ms) > SERVICE_MS * 0.95


@pytest.mark.slow
def test_never_more_statements_execute_than_there_are_slots(history):
    begins = sorted(begins_ms(history))

    apart_ms = [later - earlier for earlier, later in zip(begins, begins[SLOTS:], strict=False)]

    assert min(apart_ms) > SERVICE_MS - TOLERANCE_MS


@pytest.mark.slow
def test_the_queue_is_first_come_first_served(history):
    overtakings_ms = [earlier - later for earlier, later in itertools.pairwise(begins_ms(history))]

    assert max(overtakings_ms) < TOLERANCE_MS


@pytest.mark.slow
def test_queued_and_executed_time_are_the_whole(history):
    wrong = [line for line in history if abs(line["queued_ms"] + line["execution_ms"] - line["total_ms"]) > 1]

    assert wrong == []
    assert all(abs(line["end_ms"] - line["start_ms"] - line["total_ms"]) < 0.01 for line in history)
    assert statistics.median(line["queued_ms"] for line in history) > SERVICE_MS


@pytest.mark.slow
def test_while_there_is_a_queue_the_slots_deliver_their_full_rate(history):
    """Over the longest stretch in which every statement had to queue: then no slot can have been idle."""
    stretches = [list(run) for queued, run in itertools.groupby(history, lambda line: line["queued_ms"] > 1) if queued]
    begins = sorted(begins_ms(max(stretches, key=len)))

    assert len(begins) > 100
    rate_per_s = (len(begins) - 1) / (begins[-1] - begins[0]) * 1000
    assert rate_per_s == pytest.approx(SLOTS / SERVICE_MS * 1000, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["postgres", "null"])
def test_a_lognormal_service_time_has_its_quantiles(home, engine):
    arguments = ["--engine", engine, "--slots", str(CONNECTIONS), "--service-time", "lognormal(40ms,0.5)"]
    with serving(home, *arguments) as server:
        times_ms = [line["execution_ms"] for line in load(server, statements=60)]

    found = statistics.quantiles(times_ms, n=20)
    normal = statistics.NormalDist()
    for twentieth in (2, 5, 10, 15, 18):
        expected_ms = 40 * math.exp(0.5 * normal.inv_cdf(twentieth / 20))
        assert found[twentieth - 1] == pytest.approx(expected_ms, rel=0.1), f"{5 * twentieth} %"


def in_background(clients: ThreadPoolExecutor, server: Server, text: str, **session: Any) -> Callable[[], Any]:
    def client() -> None:
        with server.connect(**session) as connection:
            connection.cursor().execute(text)

    return clients.submit(client).result


@pytest.mark.parametrize("where", ["COMPUTE_WH", "BENCH_WH"])
def test_show_warehouses_shows_what_runs_and_what_queues_now(home, where):
    with (
        serving(home, "--slots", "4", "--service-time", "500ms") as server,
        server.connect() as connection,
        ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="client") as clients,
    ):

        def shown() -> dict[str, tuple[int, int]]:
            cursor = connection.cursor().execute("SHOW WAREHOUSES")
            names = [column.name for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            return {row["name"]: (row["running"], row["queued"]) for row in rows}

        results = [in_background(clients, server, "SELECT 1", warehouse=where) for _ in range(CONNECTIONS)]

        wait_until(lambda: shown()[where] == (4, 12), "4 running, 12 queued")
        assert {load for name, load in shown().items() if name != where} == {(0, 0)}
        for result in results:
            result()
        assert shown()[where] == (0, 0)


def test_without_an_override_a_warehouse_has_its_own_number_of_slots(home):
    with serving(home, "--service-time", "300ms") as server:
        Wire(server).sql("CREATE OR REPLACE WAREHOUSE NARROW_WH WITH MAX_CONCURRENCY_LEVEL = 3")
        with ThreadPoolExecutor(8, thread_name_prefix="client") as clients:
            results = [in_background(clients, server, "SELECT 1", warehouse="NARROW_WH") for _ in range(8)]

            wait_until(
                lambda: (
                    server.ask("/__loadgen/stats")["warehouses"]["NARROW_WH"] == {"running": 3, "queued": 5, "slots": 3}
                ),
                "3 running, 5 queued",
            )
            for result in results:
                result()
