"""Statements that faults match, and the failures that the driver raises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadgen.snowflake.connect import connect
from loadgen.snowflake.failure import classify
from loadgen.snowflake.profile import ConnectionProfile
from tests.contract.connection_builders import MAJOR, control_of
from tests.embedded_server import EmbeddedServer

ATTEMPTS = 4  # of a retrying connection of 5.x


def retrying_connection(profile: ConnectionProfile, limit_s: int) -> Any:
    """One of a driver that tries again: 4.x until its time is over, 5.x as often as it may."""
    settings = control_of(profile, tag="retrying", statement_limit_s=60)
    arguments = {key: value for key, value in settings.arguments.items() if key != "backoff_policy"}
    more = {"retry_max_attempts": ATTEMPTS} if MAJOR >= 5 else {"network_timeout": limit_s}
    return connect(profile, replace(settings, arguments=arguments | more))


class Statement:
    """A unique statement, so that faults and the request log can match it."""

    def __init__(self, server: EmbeddedServer, database: str) -> None:
        self._server = server
        self._since_ms = server.now_ms()
        self.mark = f"MARK_{database}"
        self.sql = f"SELECT 7 AS {self.mark}"

    def fault(self, **rule: Any) -> None:
        self._server.fault(match=self.mark, **rule)

    @property
    def requests(self) -> list[dict[str, Any]]:
        return list(self._server.ask(f"/__loadgen/journal?match={self.mark}&since={self._since_ms}"))

    @property
    def executions(self) -> int:
        lines = self._server.ask(f"/__loadgen/history?since={self._since_ms}")
        return sum(self.mark in line["sql_text"] for line in lines)


def failure_of(connection: Any, sql: str) -> Exception:
    """The failure of the statement; afterwards the connection must work, or be reported as lost."""
    try:
        connection.cursor().execute(sql).fetchall()
    except Exception as error:  # 4.x lets exceptions of its HTTP library through
        return error
    raise AssertionError("the statement succeeded")


def shown(error: Exception) -> tuple[str, int | None]:
    """The class and the number an application sees; behind NotRetried, what was not retried."""
    failure = classify(error)
    return type(error).__name__, failure.code
