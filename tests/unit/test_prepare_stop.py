"""A preparation that is stopped sends no further statement, and the second signal cancels the running one."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from loadgen.clock import SystemClock
from loadgen.prepare.session import PreparationStopped, PrepareSession
from loadgen.snowflake.driver import Connection
from orchestrator import job as job_module
from orchestrator.job import RunJob


class Server:
    """Records statements; `stop` is set while the first one runs."""

    def __init__(self, stop: threading.Event) -> None:
        self.sent: list[str] = []
        self._stop = stop

    def cursor(self) -> Server:
        return self

    def execute(self, sql: str, binds: object = None) -> Server:
        self.sent.append(sql)
        self._stop.set()
        return self

    def fetchall(self) -> list[tuple[int]]:
        return [(1,)]

    def close(self) -> None: ...


def test_after_a_stop_the_running_statement_ends_and_no_other_is_sent():
    stop = threading.Event()
    server = Server(stop)
    session = PrepareSession(lambda: cast(Connection, server), stop=stop, clock=SystemClock())

    assert session.read("SELECT 1") == [(1,)]
    with pytest.raises(PreparationStopped):
        session.read("SELECT 2")
    with pytest.raises(PreparationStopped):
        session.change("CREATE TABLE IF NOT EXISTS T (N INTEGER)")

    assert server.sent == ["SELECT 1"]


def test_the_second_signal_cancels_the_statement_of_the_preparation(monkeypatch: pytest.MonkeyPatch):
    cancelled: list[object] = []
    done = threading.Event()

    def cancel(session: object, open_connection: object) -> None:
        cancelled.append(session)
        done.set()

    monkeypatch.setattr(job_module, "cancel_running", cancel)
    monkeypatch.setattr(RunJob, "_open_target", lambda job: None)
    nothing: Any = None
    session: Any = object()
    job = RunJob(
        scenario=nothing, folder=nothing, runs_folder=nothing, clock=SystemClock(), roles=nothing, _preparing=session
    )

    job.interrupt(2)
    assert job.stop.is_set()
    assert not cancelled
    job.interrupt(2)

    assert done.wait(30)
    assert cancelled == [session]
