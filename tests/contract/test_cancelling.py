"""Ending statements whose client has disconnected or timed out: a failure of one does not keep others from being
cancelled."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from loadgen.clock import SystemClock
from loadgen.errors import RunFailed
from loadgen.prepare.session import PrepareSession
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import parse_scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import connect as open_session
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, find_profile
from loadgen.snowflake.settings import load_settings
from loadgen.worker import sessions as worker_sessions
from loadgen.worker.sessions import LoadSessions
from tests.embedded_server import EmbeddedServer
from tests.processes import wait_until

CANCEL = "SYSTEM\\$CANCEL_ALL_QUERIES"


@pytest.fixture
def scenario(database: str) -> Scenario:
    text = (
        f"version: 1\nname: x\nconnection: embedded\ntarget: {{database: {database}, schema: PUBLIC}}\n"
        "workload: {statements: [{name: s, sql: SELECT 1}]}\n"
    )
    return parse_scenario(text, source="x.yaml", folder=Path(), environ={}).scenario


@pytest.mark.parametrize("kind", ["error", "reset"])
def test_a_session_that_cannot_be_cancelled_does_not_keep_the_others(
    server: EmbeddedServer, scenario: Scenario, connect: Any, kind: str
) -> None:
    running = [connect(user="loadgen") for _ in range(3)]  # a user cancels no statements of others
    threads = [threading.Thread(target=_wait, args=(one,), name="waits") for one in running]
    for thread in threads:
        thread.start()
    wait_until(lambda: _waiting(server, running) == 3, "three statements execute")
    server.fault(match=CANCEL, kind=kind, count=1)
    sessions = LoadSessions(scenario, run_id="r", worker_id="w", environ={EMBEDDED_ADDRESS: server.address})

    with pytest.raises(RunFailed, match="1 of 3 sessions could not be cancelled"):
        sessions.cancel([one.session_id for one in running])

    wait_until(lambda: _waiting(server, running) == 1, "one statement executes")
    sessions.cancel([one.session_id for one in running])
    for thread in threads:
        thread.join()


def test_a_session_whose_cancellation_hangs_does_not_delay_the_others(
    server: EmbeddedServer, scenario: Scenario, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [connect(user="loadgen") for _ in range(5)]
    threads = [threading.Thread(target=_wait, args=(one,), name="waits") for one in running]
    for thread in threads:
        thread.start()
    wait_until(lambda: _waiting(server, running) == 5, "all statements execute")
    server.fault(match=CANCEL, kind="hang", count=2)
    sessions = LoadSessions(scenario, run_id="r", worker_id="w", environ={EMBEDDED_ADDRESS: server.address})
    monkeypatch.setattr(worker_sessions, "CANCEL_LIMIT_S", 5)
    failed: list[RunFailed] = []

    def cancel() -> None:
        with pytest.raises(RunFailed, match="2 of 5 sessions could not be cancelled") as error:
            sessions.cancel([one.session_id for one in running])
        failed.append(error.value)

    work = threading.Thread(target=cancel, name="cancels")
    work.start()
    wait_until(lambda: _waiting(server, running) == 2, "two statements execute")

    assert not failed, "the first two still hang"
    work.join()
    assert failed
    sessions.cancel([one.session_id for one in running])
    for thread in threads:
        thread.join()


def test_the_first_lost_session_is_not_forgotten_when_the_second_is_lost_too(server: EmbeddedServer) -> None:
    profile = find_profile("embedded", environ={EMBEDDED_ADDRESS: server.address})
    settings = load_settings(profile, major=driver.major(), statement_limit_s=30, tag="prepare")
    session = PrepareSession(lambda: open_session(profile, settings), stop=threading.Event(), clock=SystemClock())
    first = session.session_id
    server.fault(match="SELECT 4711", kind="drop_reply", count=1)
    with pytest.raises(Exception):  # noqa: B017  whatever this major of the driver raises
        session.execute_once("SELECT 4711")
    second: list[int | None] = []
    server.fault(match=CANCEL, kind="reset", count=1)

    def cancel() -> None:
        session.cancel_lost() if second else _lose(session, second)

    session.retried(cancel, "cancelling")

    cancelled = [line["sql_text"] for line in server.ask("/__loadgen/history") if "CANCEL_ALL" in line["sql_text"]]
    assert None not in (first, *second)
    for number in (first, *second):
        assert any(str(number) in text for text in cancelled), cancelled
    session.close()


def _lose(session: PrepareSession, lost: list[int | None]) -> None:
    """The attempt that loses its own session."""
    session.read("SELECT 1")  # connected again
    lost.append(session.session_id)
    session.cancel_lost()


def _wait(connection: Any) -> None:
    with pytest.raises(Exception):  # noqa: B017  cancelled
        connection.cursor().execute("SELECT SYSTEM$WAIT(100)")


def _waiting(server: EmbeddedServer, connections: list[Any]) -> int:
    mine = {one.session_id for one in connections}
    ended = [
        line["session_id"]
        for line in server.ask("/__loadgen/history")
        if line["session_id"] in mine and "SYSTEM$WAIT" in line["sql_text"]
    ]
    return int(server.ask("/__loadgen/stats")["under_way"]) if not ended else len(mine) - len(ended)
