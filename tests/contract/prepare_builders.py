"""A scenario's preparation in a test's own database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadgen.clock import SystemClock
from loadgen.prepare.fill import TableState, survey
from loadgen.prepare.prepare import PreparationProgress, PreparationResult, prepare_scenario
from loadgen.prepare.session import PrepareSession, opener, target_profile
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import parse_scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import connect as open_session
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from loadgen.snowflake.settings import load_settings
from tests.embedded_server import EmbeddedServer

KEY = '{name: ID, type: "NUMBER(38,0)", primary_key: true, generate: {sequence: {start: 1}}}'
NUMBER = "{name: N, type: INTEGER, generate: {uniform: {min: 1, max: 6}}}"
SKEWED = "{name: N, type: INTEGER, generate: {zipfian: {min: 1, max: 6}}}"  # has no SQL form


class PrepareHarness:
    """A scenario's preparation in the test's own database."""

    def __init__(self, server: EmbeddedServer, database: str, cursor: Any) -> None:
        self.server, self.database, self.cursor = server, database, cursor
        self.stop = threading.Event()
        self.told: list[PreparationProgress] = []
        self._environ = {EMBEDDED_ADDRESS: server.address}

    def scenario(self, tables: str, more: str = "", top: str = "") -> Scenario:
        text = (
            f"version: 1\nname: x\nconnection: embedded\ntarget: {{database: {self.database}, schema: PUBLIC}}\n"
            f"prepare: {{tables: [{tables}]{', ' if more else ''}{more}}}\n"
            + (top or "workload: {statements: [{name: s, sql: SELECT 1}]}\n")
        )
        return parse_scenario(text, source="x.yaml", folder=Path(), environ={}).scenario

    def session(self, scenario: Scenario, *, one_attempt: bool = False) -> PrepareSession:
        """With one attempt per statement the driver hides no lost answer from us."""
        profile = target_profile(scenario, None, environ=self._environ)
        settings = load_settings(profile, major=driver.major(), statement_limit_s=30, tag="prepare")
        own = opener(profile, scenario, environ=self._environ)
        return PrepareSession(
            (lambda: open_session(profile, settings)) if one_attempt else own, stop=self.stop, clock=SystemClock()
        )

    def prepare(
        self,
        scenario: Scenario,
        *,
        one_attempt: bool = False,
        progress: Callable[[PreparationProgress], None] | None = None,
        **how: bool,
    ) -> PreparationResult:
        session = self.session(scenario, one_attempt=one_attempt)
        try:
            tell = progress or self.told.append
            return prepare_scenario(session, scenario, progress=tell, stop=self.stop, clock=SystemClock(), **how)
        finally:
            session.close()

    def states(self, scenario: Scenario) -> list[TableState]:
        session = self.session(scenario)
        try:
            return [standing.state for standing in survey(session, scenario)]
        finally:
            session.close()

    def rows(self, sql: str) -> list[Any]:
        return list(self.cursor.execute(sql).fetchall())

    def counts(self, table: str) -> tuple[int, int]:
        ((rows, different),) = self.rows(f"SELECT COUNT(*), COUNT(DISTINCT ID) FROM {table}")
        return rows, different

    def sent(self, start: str) -> int:
        found = self.server.ask(f"/__loadgen/journal?match={self.database}")
        return sum(entry["sql_text"].startswith(start) for entry in found)


def table(columns: str, *, name: str = "T", kind: str = "hybrid", rows: int = 3000, more: str = "") -> str:
    return f"{{name: {name}, type: {kind}, rows: {rows}, columns: [{columns}]{more}}}"
