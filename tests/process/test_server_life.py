"""The embedded server as a process: its life and its end."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from loadgen.embedded.admin import IDLE_S, may_stop
from loadgen.embedded.datadir import running_server
from loadgen.embedded.postgres import postgres_processes_in
from tests.process.embedded_commands import SERVE, Found
from tests.process.served import Refused, Server, Wire, serving
from tests.processes import PATIENCE_S, ROOT, VARIANTS, alive, run_as, wait_until


def test_it_prints_its_address_and_listens_on_no_other(home):
    with serving(home) as server:
        listening = [
            connection.laddr
            for pid in server.tree
            for connection in psutil.Process(pid).net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        address = running_server(home)
        assert server.process.stdout is not None
        assert server.process.stdout.readline().startswith("passwords are not checked")
        assert server.process.stdout.readline() == f"the data directory is {home}\n"

        assert listening == [("127.0.0.1", server.port)]
        assert address is not None
        assert (address.host, address.port) == (server.host, server.port)
        with server.connect() as connection:
            assert connection.cursor().execute("SELECT 41 + 1").fetchall() == [(42,)]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_signal_ends_it_gracefully_whatever_is_in_flight(home, number):
    with serving(home) as server, ThreadPoolExecutor(thread_name_prefix="client") as clients:
        idle, busy = Wire(server), Wire(server)
        idle.sql("BEGIN")
        waiting = clients.submit(busy.sql, "SELECT SYSTEM$WAIT(60)")
        wait_until(lambda: server.ask("/__loadgen/stats")["under_way"], "statement under way")
        pids = server.tree

        code = server.stop(number)

        assert code == 0
        assert isinstance(waiting.exception(PATIENCE_S), (Refused, http.client.HTTPException, OSError))
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

        assert server.process.wait(PATIENCE_S) == 0
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


@pytest.mark.parametrize("variant", [pytest.param(VARIANTS[0], marks=pytest.mark.slow), VARIANTS[1]])
def test_root_and_ordinary_users_can_run_it_and_kill_9_leaves_nothing_behind(scratch, variant):
    data, prefix = scratch / "data", run_as(variant, scratch)
    with serving(data, prefix=prefix) as server:
        pids = server.tree
        below = pids - {server.process.pid}
        Wire(server, databaseName="KEPT").sql("CREATE TABLE T AS SELECT 1 AS X")

        assert {psutil.Process(pid).uids().real for pid in below} == {(data / "postgres").stat().st_uid} != {0}
        server.process.kill()
        server.process.wait(PATIENCE_S)
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


@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "<&- >&-")), "<&- >&- 2>&-"]
)
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

        assert server.process.wait(PATIENCE_S) == 141
        assert postgres_processes_in(home) == []


# --- when a server without an owner ends -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("holders", "sessions", "idle_s", "goes"),
    [
        (0, 0, 0.0, True),  # no client
        (1, 0, IDLE_S * 9, False),  # a command that thinks for long still has it
        (0, 1, IDLE_S / 2, False),  # a client between two statements
        (0, 1, IDLE_S, True),  # a session that its killed client left behind
    ],
)
def test_a_server_without_a_starter_ends_when_it_is_idle(holders, sessions, idle_s, goes):
    assert may_stop(holders=holders, sessions=sessions, idle_s=idle_s) is goes


@contextlib.contextmanager
def abandoned(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], Found]]:
    """A null server as a command starts it; close its stdin to be the command's death."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [*SERVE, "--engine=null", *arguments], **pipes, env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as process:
        try:
            assert process.stdout is not None
            yield process, Found(process.stdout.readline().removeprefix("listening on ").strip())
        finally:
            process.kill()


def begin_statement(server: Found) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    """Log in and send a statement; its answer is still to come. Connection, and the headers of the session."""
    client = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    client.request("POST", "/session/v1/login-request", json.dumps({"data": {"LOGIN_NAME": "wire", "PASSWORD": "any"}}))
    token = json.loads(client.getresponse().read())["data"]["token"]
    headers = {"Authorization": f'Snowflake Token="{token}"'}
    client.request("POST", "/queries/v1/query-request?requestId=1", json.dumps({"sqlText": "SELECT 1"}), headers)
    wait_until(lambda: server.ask("/__loadgen/stats")["under_way"], "the statement under way")
    return client, headers


def test_a_client_that_waits_for_its_statement_gets_it_and_then_the_server_goes():
    with abandoned(f"--service-time={IDLE_S + 1.5}s") as (process, server):
        client, headers = begin_statement(server)
        assert process.stdin is not None
        process.stdin.close()

        assert json.loads(client.getresponse().read())["success"] is True
        client.request("POST", "/session?delete=true", headers=headers)
        assert process.wait(PATIENCE_S) == 0
        client.close()


def test_a_statement_of_a_lost_client_does_not_keep_the_server_alive():
    with abandoned("--service-time=1h") as (process, server):
        client, _ = begin_statement(server)
        client.close()
        assert process.stdin is not None
        process.stdin.close()

        assert process.wait(PATIENCE_S) == 0
