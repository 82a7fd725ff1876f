"""SQL sent past the translation: straight to the server's PostgreSQL, with the access that the server itself has."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import asyncpg

from loadgen.embedded.backend_pool import SEARCH_PATH
from loadgen.embedded.postgres import DATABASE, PORT, STATEMENT_ROLE, socket_dir_of


class RawPostgres:
    """One connection, used without being asynchronous."""

    def __init__(
        self, runner: asyncio.Runner, data_dir: Path, role: str = STATEMENT_ROLE, database: str = DATABASE
    ) -> None:
        self._runner = runner
        self._connection = runner.run(
            asyncpg.connect(
                host=str(socket_dir_of(Path(os.path.realpath(data_dir)))),
                port=PORT,
                user=role,
                database=database,
                password="",
                ssl=False,
                statement_cache_size=0,
                server_settings={"search_path": SEARCH_PATH},
            )
        )

    def execute(self, sql: str) -> None:
        """One or more statements."""
        self._runner.run(self._connection.execute(sql))

    def rows(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        async def fetch() -> list[asyncpg.Record]:
            return list(await self._connection.fetch(sql, *arguments))

        return [tuple(row) for row in self._runner.run(fetch())]

    def table(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The names of a result's columns, and its rows."""

        async def fetch() -> tuple[list[str], list[tuple[Any, ...]]]:
            prepared = await self._connection.prepare(sql)
            return [column.name for column in prepared.get_attributes()], [tuple(r) for r in await prepared.fetch()]

        return self._runner.run(fetch())

    def parse(self, sql: str) -> str:
        """The SQLSTATE that the parser gives one statement; empty when it takes it."""

        async def prepare() -> str:
            try:
                await self._connection.prepare(sql)
            except asyncpg.PostgresError as error:
                return str(error.sqlstate)
            return ""

        return self._runner.run(prepare())

    def close(self) -> None:
        self._runner.run(self._connection.close())
