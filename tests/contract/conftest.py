"""Contract tests: the real connector against a real embedded server, with both supported majors of the connector."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.embedded_server import EmbeddedServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """One server for all tests of the session; each test has a database of its own."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture(autouse=True)
def no_faults_left(server: EmbeddedServer) -> Iterator[None]:
    yield
    server.clear_faults()


@pytest.fixture
def database() -> str:
    return f"TEST_{next(_numbers)}"


@pytest.fixture
def connect(server: EmbeddedServer, database: str) -> Iterator[Callable[..., Any]]:
    """Opens connections into the test's own database; they are closed at its end."""
    opened: list[Any] = []

    def open_connection(**more: Any) -> Any:
        settings: dict[str, Any] = {"database": database, "schema": "PUBLIC"} | more
        connection = server.connect(**settings)
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        connection.close()


@pytest.fixture
def connection(connect: Callable[..., Any]) -> Any:
    return connect()


@pytest.fixture
def cursor(connection: Any) -> Any:
    return connection.cursor()
