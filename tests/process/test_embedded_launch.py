"""Commands that need the embedded server: they find one or start one, share it, and leave nothing behind."""

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadgen.embedded.client import embedded_server
from loadgen.embedded.datadir import DATA_DIR_VARIABLE, DataDir, is_claimed, running_server
from loadgen.embedded.postgres import postgres_processes_in
from loadgen.errors import Busy, ConnectFailed, EmbeddedServerError
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE
from tests.embedded_server import EmbeddedServer
from tests.fake_clock import FakeClock
from tests.process.embedded_commands import SERVE, Command, Found, environ_of, pids_of, refusal_of
from tests.processes import PATIENCE_S, PROGRAM, ROOT, alive, reachable_directory, wait_until


@pytest.fixture
def environ(home: Path) -> Iterator[dict[str, str]]:
    yield environ_of(home)
    wait_until(lambda: not is_claimed(home) and not postgres_processes_in(home), "nothing left for the next test")


# --- a server for one command ----------------------------------------------------------------------------------------


def test_a_server_is_started_and_ends_with_the_block(home, environ):
    with embedded_server(environ=environ) as address:
        pids = pids_of(address, environ)

        password_file = Path(environ[EMBEDDED_PASSWORD_FILE])
        password = password_file.read_text().strip()

        assert environ[EMBEDDED_ADDRESS] == address
        assert (password_file.parent, password_file.stat().st_mode & 0o777) == (home, 0o600)
        assert not any(password in value for value in environ.values())
        assert not any(password in argument for pid in pids for argument in psutil.Process(pid).cmdline())
        assert Found(address, environ).answers()

    assert alive(pids) == set()
    assert not {EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE} & environ.keys()
    assert not (home / "server.json").exists()
    assert not is_claimed(home)


def test_the_next_command_may_follow_at_once_and_an_error_ends_the_server_too(environ):
    def fail() -> None:
        with embedded_server(environ=environ) as address:
            servers.append(pids_of(address, environ))
            raise ZeroDivisionError

    servers: list[set[int]] = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()

    one, two = servers
    assert one.isdisjoint(two)
    assert alive(one | two) == set()


def test_ctrl_c_reaches_the_command_and_not_its_server(environ):
    with Command(environ) as command:
        pids = pids_of(command.tell(), environ)
        os.killpg(command.process.pid, signal.SIGINT)

        assert command.tell() == "interrupted"
        assert command.process.wait(PATIENCE_S) == 0
        assert alive(pids) == set()


def test_a_killed_command_takes_its_server_along_though_its_session_was_never_closed(environ):
    with Command(environ) as command:
        pids = pids_of(command.tell(), environ)
        assert command.execute("SELECT 1") == "1"
        command.process.kill()

        wait_until(lambda: not alive(pids), "the server gone")


def test_a_command_killed_while_its_server_starts_leaves_nothing(home, environ):
    with Command(environ) as command:
        wait_until(lambda: is_claimed(home), "a server at its start")
        command.process.kill()

        wait_until(lambda: not is_claimed(home), "the server gone")
    assert not (home / "server.json").exists()


# --- a server that runs already --------------------------------------------------------------------------------------


def test_a_running_server_is_used_and_left_running(server):
    environ, before = environ_of(server.data_dir), server.ask("/__loadgen/stats")["holders"]
    with embedded_server(environ=environ) as address:
        assert address == server.address
        assert server.ask("/__loadgen/stats")["holders"] == before + 1

    wait_until(lambda: server.ask("/__loadgen/stats")["holders"] == before, "the server let go")
    assert Found(address, environ).answers()


def test_a_server_that_is_just_starting_is_waited_for(home, environ):
    with contextlib.ExitStack() as stack:
        starting = threading.Thread(
            target=lambda: stack.enter_context(EmbeddedServer(data_dir=home)), name="starting server"
        )
        starting.start()
        wait_until(lambda: is_claimed(home), "a server at its start")

        with embedded_server(environ=environ) as address:
            starting.join()
            served = running_server(home)
            assert served is not None
            assert address == f"{served.host}:{served.port}"
            assert Found(address, environ).ask("/__loadgen/stats")["options"]["until_eof"] is False


def test_a_server_that_ends_because_its_starter_has_ended_accepts_no_login(home, environ):
    reading, writing = os.pipe()
    os.close(reading)  # it cannot print its address, as when its starter was killed at the last moment
    with subprocess.Popen(
        [*SERVE, f"--data-dir={home}"], stdin=subprocess.DEVNULL, stdout=writing, env=environ
    ) as dying:
        os.close(writing)
        wait_until(lambda: is_claimed(home), "a server at its start")
        with embedded_server(environ=environ) as address:
            dying.wait(PATIENCE_S)

            assert Found(address, environ).answers()


def test_two_commands_at_once_share_a_server_that_goes_with_the_last(home, environ):
    with Command(environ) as one, Command(environ) as two:
        address = one.tell()
        assert two.tell() == address
        starter, guest = (one, two) if Found(address, environ).pid in one.servers else (two, one)

        assert starter.end() == 0
        assert guest.execute("SELECT 41 + 1") == "42"
        assert guest.end() == 0
        with embedded_server(environ=environ) as successor:  # while the old one is still stopping
            assert Found(successor, environ).answers()


def test_a_directory_that_stays_taken_is_not_waited_for_for_ever(home, environ):
    with DataDir.claim(home):
        refusal = refusal_of(environ, clock=FakeClock())

    assert isinstance(refusal, Busy)
    assert "is in use by a process that is starting or stopping" in str(refusal)
    assert DATA_DIR_VARIABLE in refusal.remedy


# --- the server that the environment names ---------------------------------------------------------------------------


def test_the_address_of_the_environment_wins(home, environ, server):
    environ[EMBEDDED_ADDRESS] = server.address
    with embedded_server(environ=environ) as address:
        assert address == server.address
        assert not is_claimed(home)

    assert environ[EMBEDDED_ADDRESS] == server.address
    assert server.ask("/__loadgen/stats")


def test_an_address_without_a_server_is_an_error(environ):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = environ[EMBEDDED_ADDRESS] = f"127.0.0.1:{taken.getsockname()[1]}"
        refusal = refusal_of(environ)

    assert isinstance(refusal, ConnectFailed)
    assert f"no embedded server answers at {address}" in str(refusal)
    assert f"unset {EMBEDDED_ADDRESS}" in refusal.remedy


def test_an_address_where_something_else_answers_is_an_error(environ):
    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, args=(0.02,), name="stranger").start()
        environ[EMBEDDED_ADDRESS] = f"127.0.0.1:{stranger.server_port}"
        refusal = refusal_of(environ)
        stranger.shutdown()

    assert isinstance(refusal, EmbeddedServerError)
    assert "is not an embedded server of this version of loadgen" in str(refusal)


# --- servers that do not start ---------------------------------------------------------------------------------------


def test_a_data_directory_that_is_not_ours_is_refused_in_the_server_s_words(environ):
    with reachable_directory() as foreign:
        (foreign / "letter.txt").write_text("dear")
        refusal = refusal_of(environ | {DATA_DIR_VARIABLE: str(foreign)})

        assert isinstance(refusal, EmbeddedServerError)
        assert "is not empty and was not made by loadgen (it contains 'letter.txt')" in str(refusal)
        assert refusal.remedy.startswith("It was not changed.")


def test_missing_packages_are_named_with_the_way_to_get_them(environ, tmp_path):
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('gone', name='uvicorn')")

    refusal = refusal_of(environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"})

    assert isinstance(refusal, EmbeddedServerError)
    assert "needs packages that are not installed (uvicorn is missing)" in str(refusal)
    assert refusal.remedy == "Install them: pip install 'loadgen[embedded]'."


# --- commands --------------------------------------------------------------------------------------------------------


def said_by(environ: dict[str, str], *words: str) -> str:
    return subprocess.run(
        [*PROGRAM, *words], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("setup", "-c", "embedded"),  # for the pool below
        pytest.param(("connections", "test", "-c", "embedded"), marks=pytest.mark.slow),
        pytest.param(("runs", "list", "-c", "embedded"), marks=pytest.mark.slow),
    ],
)
def test_a_command_leaves_no_process_behind(home, environ, words):
    """When it has ended, and not some time later."""
    said_by(environ, *words)

    assert not is_claimed(home)
    assert postgres_processes_in(home) == []


def test_a_pool_starts_a_server_and_ends_it(home, environ, tmp_path):
    log = tmp_path / "stderr.txt"
    words = [*PROGRAM, "pool", "run", "-c", "embedded", "--max", "1", "--output-dir", str(tmp_path / "runs")]
    with log.open("wb") as errors, subprocess.Popen(words, env=environ, stderr=errors) as pool:
        wait_until(lambda: "runner-1 started" in log.read_text(), "its runner works", unless=pool.poll)
        pool.send_signal(signal.SIGTERM)

    assert pool.returncode == 0, log.read_text()
    assert postgres_processes_in(home) == []


def test_connections_list_shows_the_server_of_the_data_directory(home, environ, server):
    def listed(data_dir: Path) -> dict[str, Any]:
        rows = json.loads(said_by(environ_of(data_dir), "connections", "list", "--format", "json"))["connections"]
        return next(row for row in rows if row["name"] == "embedded")

    none, running = listed(home), listed(server.data_dir)
    text = said_by(environ_of(server.data_dir), "connections", "list")

    assert (running["host"], running["source"]) == (server.address, f"running on {server.data_dir}")
    assert server.address in text
    assert "starts when needed" not in text
    assert (none["host"], none["source"]) == (None, f"starts when needed on {home}")


def test_doctor_prints_the_data_directory_of_a_server(server):
    done = subprocess.run(
        [*PROGRAM, "doctor", "-c", "embedded", "--format", "json"],
        env=environ_of(server.data_dir),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    said = {check["check"]: check["message"] for check in json.loads(done.stdout)["checks"]}
    assert said["embedded server"] == f"at {server.address}, data directory {server.data_dir}"


def test_a_new_server_has_no_runs(environ):
    assert said_by(environ, "runs", "list") == "there are no runs yet\n"


def test_connections_test_uses_the_running_server(server):
    tested = json.loads(
        said_by(environ_of(server.data_dir), "connections", "test", "-c", "embedded", "--format", "json")
    )

    assert tested["host"] == server.address
