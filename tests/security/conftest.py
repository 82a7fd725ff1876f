"""Fixtures that several files of this folder share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.embedded_server import EmbeddedServer
from tests.security.raw_postgres import RawPostgres


@pytest.fixture(scope="module")
def postgres(server: EmbeddedServer) -> Iterator[RawPostgres]:
    """The server's PostgreSQL, as the role that runs users' statements."""
    with asyncio.Runner() as runner:
        raw = RawPostgres(runner, server.data_dir)
        yield raw
        raw.close()
