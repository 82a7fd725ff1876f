"""Fixtures that several files of this folder share."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from loadgen.control.session import ControlSession
from loadgen.control.tables.worker_heartbeats import WorkerIdentity
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.settings import ConnectionSettings
from tests.contract.accepted_builders import (
    CONTROL_TABLES,
    DOCUMENT,
    make_numbers,
)
from tests.contract.connection_builders import load_of, profile_of
from tests.contract.fault_builders import Statement, retrying_connection
from tests.contract.heartbeat_builders import identity
from tests.contract.lock_builders import (
    ConcurrentSessions,
    Sessions,
    make_table,
)
from tests.contract.prepare_builders import PrepareHarness
from tests.contract.queue_builders import Queue
from tests.contract.refused_builders import Refusals
from tests.contract.run_builders import Led, S
from tests.contract.sql import Sql
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer


@pytest.fixture
def session(plane: ControlPlane) -> ControlSession:
    """The session of the test's own thread to the control plane."""
    return plane.session


@pytest.fixture
def run_id(plane: ControlPlane) -> str:
    """A run that is PREPARED."""
    return plane.new_run()


@pytest.fixture
def profile(server: EmbeddedServer, database: str) -> ConnectionProfile:
    """The embedded connection, into the test's own database."""
    return profile_of(server.address, database=database, schema="PUBLIC")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port without a listener, reserved until the end of the test."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


@pytest.fixture
def fresh() -> Iterator[EmbeddedServer]:
    """A server without a past: what its first rule draws is the same every time."""
    with EmbeddedServer("--engine", "null", "--seed", "7") as running:
        yield running


@pytest.fixture
def load(profile: ConnectionProfile) -> Iterator[Any]:
    connection = connect(profile, load_of(profile))
    yield connection
    close(connection)


@pytest.fixture
def retrying(profile: ConnectionProfile) -> Iterator[Any]:
    """It has the time to get over what passes."""
    connection = retrying_connection(profile, 60)
    yield connection
    close(connection)


@pytest.fixture
def statement(server: EmbeddedServer, database: str) -> Statement:
    return Statement(server, database)


@pytest.fixture
def me() -> WorkerIdentity:
    return identity(run_id=str(uuid.uuid4()))


@pytest.fixture(scope="session")
def lenient() -> Iterator[EmbeddedServer]:
    """A server as users start it, for what differs from the strict one."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture(scope="module")
def all_sessions(server: EmbeddedServer) -> Iterator[Sessions]:
    sessions = Sessions(server)
    sessions.take(None, {})("CREATE OR REPLACE DATABASE LOCKS")
    yield sessions
    sessions.close()


@pytest.fixture
def concurrent(all_sessions: Sessions) -> Iterator[ConcurrentSessions]:
    with ThreadPoolExecutor(max_workers=40) as threads:
        concurrent = ConcurrentSessions(all_sessions, threads)
        yield concurrent
        settled = concurrent.settled()
        all_sessions.give_back(reusable=settled)


@pytest.fixture
def hybrid(concurrent: ConcurrentSessions) -> str:
    return make_table(concurrent, "HYBRID TABLE")


@pytest.fixture
def standard(concurrent: ConcurrentSessions) -> str:
    return make_table(concurrent, "TABLE")


@pytest.fixture(params=["hybrid", "standard"])
def table(request: pytest.FixtureRequest) -> str:
    """Each kind of table in turn."""
    name: str = request.getfixturevalue(request.param)
    return name


@pytest.fixture
def harness(server: EmbeddedServer, database: str, cursor: Any) -> Iterator[PrepareHarness]:
    harness = PrepareHarness(server, database, cursor)
    yield harness
    harness.stop.set()  # ends what a failed test has left


@pytest.fixture
def tagged(connect: Callable[..., Any], database: str) -> Any:
    """A cursor whose statements carry the test's own tag."""
    return connect(session_parameters={"QUERY_TAG": database}).cursor()


@pytest.fixture
def queue(plane: ControlPlane) -> Queue:
    return Queue(plane)


@pytest.fixture
def led(plane: ControlPlane) -> Callable[..., Led]:
    return lambda status=S.PREPARED: Led(plane, status)


@pytest.fixture
def open_connection(profile: ConnectionProfile) -> Iterator[Callable[..., Any]]:
    opened: list[Any] = []

    def open_one(settings: ConnectionSettings | None = None) -> Any:
        opened.append(connect(profile, settings or load_of(profile)))
        return opened[-1]

    yield open_one
    for connection in opened:
        close(connection)


@pytest.fixture
def sql(connection: Any) -> Sql:
    return Sql(connection)


@pytest.fixture
def utc(connect: Callable[..., Any]) -> Sql:
    """A session as loadgen opens it: times are UTC."""
    return Sql(connect(session_parameters={"TIMEZONE": "UTC"}))


@pytest.fixture
def control(utc: Sql) -> Sql:
    """A session with the control tables."""
    for statement in CONTROL_TABLES.values():
        utc(statement)
    return utc


@pytest.fixture
def numbers(sql: Sql) -> Sql:
    make_numbers(sql)
    return sql


@pytest.fixture(scope="module")
def shared(server: EmbeddedServer) -> Iterator[Sql]:
    """One session for all tests that leave nothing behind."""
    connection = server.connect(database="ACCEPTED", schema="PUBLIC")
    sql = Sql(connection)
    make_numbers(sql)
    sql("CREATE OR REPLACE TABLE DOCUMENT (V VARIANT)")
    sql("INSERT INTO DOCUMENT SELECT PARSE_JSON(?)", json.dumps(DOCUMENT))
    yield sql
    connection.close()


@pytest.fixture(scope="module")
def refusals(server: EmbeddedServer) -> Iterator[Refusals]:
    connection = server.connect(database="REFUSED", schema="PUBLIC")
    yield Refusals(connection)
    connection.close()
