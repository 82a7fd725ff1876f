"""A control plane for tests: its tables in a database of an embedded server, sessions to them, and a way to move time.

The clock of the server cannot be set. Leases can be aged instead, which every comparison of times sees alike.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from datetime import datetime, timedelta
from typing import Any

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession, NamedQuery, parse_row
from loadgen.control.setup import installer
from loadgen.control.tables import run_status
from loadgen.control.tables.query_executions import Execution
from loadgen.control.tables.run_leases import Lease, claim, new_owner
from loadgen.control.tables.run_measurements import StepRecord
from loadgen.control.tables.test_results import ResultRow
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from loadgen.snowflake.session import RetryPolicy
from tests.embedded_server import EmbeddedServer
from tests.fake_clock import FakeClock

_numbers = itertools.count(1)


def retries(*, attempts: int = 5, clock: Clock | None = None, **more: Any) -> RetryPolicy:
    """A retry policy that takes no time."""
    return RetryPolicy(stop=threading.Event(), attempts=attempts, clock=clock or FakeClock(), **more)


def result_row(run_id: str, **more: Any) -> ResultRow:
    """The result of a run without a measurement."""
    fields: dict[str, Any] = {"test_id": run_id, "run_id": run_id, "worker_id": None, "worker_group_id": None}
    fields |= {"template_id": "t", "status": "COMPLETED", "created_at": datetime(2026, 11, 15)}  # noqa: DTZ001
    fields |= dict.fromkeys(("total_operations", "read_operations", "write_operations", "failed_operations"), 0)
    fields |= dict.fromkeys(("p50_latency_ms", "p95_latency_ms", "p99_latency_ms", "avg_latency_ms"))
    return ResultRow(**(fields | {"find_max_result": None, "summary": '{"verdict": "passed"}'} | more))


def step_row(run_id: str, **more: Any) -> StepRecord:
    """A step of a search without a measurement."""
    fields: dict[str, Any] = {"run_id": run_id, "step_number": 1, "target_connections": 8, "queue_seen": False}
    fields |= {"succeeded": 0, "failed": 0, "outcome": "PASSED", "reason": "it held"}
    fields |= dict.fromkeys(("window_start_time", "window_end_time", "qps", "error_rate"))
    fields |= dict.fromkeys(("p50_latency_ms", "p95_latency_ms", "p99_latency_ms"))
    return StepRecord(**(fields | more))


_EXECUTIONS = """
    SELECT EXECUTION_ID, RUN_ID, TEST_ID, WORKER_ID, QUERY_ID, STATEMENT_NAME, QUERY_KIND, PHASE, STEP_ID, START_TIME,
           DUE_LAG_MS, DURATION_MS, ROWS_AFFECTED, SUCCESS, ERROR_CATEGORY, ERROR_CODE, ERROR, ENRICHMENT_STATUS
    FROM QUERY_EXECUTIONS WHERE RUN_ID = ?
    QUALIFY ROW_NUMBER() OVER (PARTITION BY EXECUTION_ID ORDER BY CREATED_AT) = 1
    ORDER BY START_TIME, EXECUTION_ID
"""


def stored_executions(session: ControlSession, run_id: str) -> list[tuple[Execution, str]]:
    """The logged statements of a run in order of their start, each with its ENRICHMENT_STATUS. One row per key: see
    loadgen.control.session."""
    rows = session.fetch(NamedQuery("query_executions.stored", _EXECUTIONS, 1), run_id)
    return [(parse_row("QUERY_EXECUTIONS", Execution, row[:-1]), row[-1]) for row in rows]


class ControlPlane:
    """The tables of a control plane in a separate database. `close()` ends all sessions that were opened here."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.place = ControlPlaneLocation(connection="embedded", database=f"CONTROL_{next(_numbers)}")
        self.environ = {EMBEDDED_ADDRESS: server.address}
        self._sessions: list[ControlSession] = []
        self.session = self.open("test")  # of the thread that created this
        installer.apply_migrations(self.session, retries(), installer.read_schema_state(self.session, retries()))
        self._as_migrated = self._structure()

    def open(self, role: str) -> ControlSession:
        session = ControlSession(self.place, role=role, environ=self.environ)
        self._sessions.append(session)
        return session

    def reset(self) -> bool:
        """Restores the initial state. False: the tables themselves were changed, and cannot be used again."""
        self.close(but=self.session)
        if self._structure() != self._as_migrated:
            return False
        for table in sorted({table for table, _, _ in self._as_migrated[0]} - {"SCHEMA_VERSION"}):
            self.change(f"DELETE FROM {table}")
        return True

    def _structure(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        sql = "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_SCHEMA = ?"
        columns = self.rows(f"{sql} ORDER BY TABLE_NAME, ORDINAL_POSITION", self.place.schema)
        return columns, self.rows("SELECT VERSION FROM SCHEMA_VERSION ORDER BY VERSION")

    def close(self, *, but: ControlSession | None = None) -> None:
        for session in self._sessions:
            if session is not but:
                session.close()
        self._sessions = [session for session in self._sessions if session is but]

    def rows(self, sql: str, *binds: Any) -> list[tuple[Any, ...]]:
        return self.session.fetch(NamedQuery(name="test", sql=sql, binds=len(binds)), *binds)

    def change(self, sql: str, *binds: Any) -> int:
        return self.session.execute(NamedQuery(name="test", sql=sql, binds=len(binds)), *binds)

    def new_run(self, **more: Any) -> str:
        """A run that is PREPARED."""
        run_id = str(uuid.uuid4())
        fields: dict[str, Any] = {"template_id": "t", "test_name": "n", "scenario_config": "{}", "workers": 2}
        run_status.create(self.session, retries(), run_status.NewRun(run_id=run_id, **(fields | more)))
        return run_id

    def claim(self, run_id: str, *, ttl_s: float = 300.0) -> Lease:
        """Claim a lease that must be free."""
        term = claim(self.session, retries(), run_id, new_owner(), ttl_s)
        assert term is not None
        return term

    def passed_ms(self, since: datetime) -> float:
        """The age of a moment on the server's clock, rounded up by a millisecond, because ages are whole
        milliseconds."""
        return (run_status.server_time(self.session) - since) / timedelta(milliseconds=1) + 1

    def leases(self, run_id: str) -> list[tuple[int, str, int]]:
        """(epoch, owner, remaining milliseconds) of every lease, oldest first."""
        return [
            (int(epoch), owner, int(remaining_ms))
            for epoch, owner, remaining_ms in self.rows(
                "SELECT EPOCH, OWNER, DATEDIFF(millisecond, SYSDATE(), EXPIRES_AT) FROM RUN_LEASES WHERE RUN_ID = ?"
                " ORDER BY EPOCH",
                run_id,
            )
        ]

    def age(self, run_id: str, seconds: float) -> None:
        """Let the leases of a run age."""
        self.change(
            "UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(millisecond, ?, EXPIRES_AT) WHERE RUN_ID = ?",
            -round(seconds * 1000),
            run_id,
        )

    def expire(self, run_id: str, *, since_s: float) -> None:
        """Let the newest lease of a run have expired this long ago."""
        _, _, remaining_ms = self.leases(run_id)[-1]
        self.age(run_id, remaining_ms / 1000 + since_s)

    def events(self, run_id: str) -> list[tuple[int, str, int]]:
        """(number, event id, epoch) of every event, in order."""
        return [
            (int(number), event_id, int(epoch))
            for number, event_id, epoch in self.rows(
                "SELECT SEQUENCE_ID, EVENT_ID, EPOCH FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ? ORDER BY SEQUENCE_ID",
                run_id,
            )
        ]
