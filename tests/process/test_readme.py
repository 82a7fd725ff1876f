"""Every command and the code shown in README.md work as shown; only the port is a free one."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded_server import READY, reachable_directory
from tests.processes import PATIENCE_S, PROGRAM, ROOT

TEXT = (ROOT / "README.md").read_text("utf-8")
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]
SHOWN_PORT = "8085"
OFFLINE = ("./bin/loadgen validate", "./bin/loadgen schema", "./bin/loadgen grants")
WITH_A_SERVER_OF_THEIR_OWN = ("./bin/loadgen prepare",)
RUN = "./bin/loadgen run "
AFTER_RUNS = tuple(
    f"./bin/loadgen {name}" for name in ("runs", "watch", "report", "compare", "schedule", "queue", "trend")
)
WITH_A_CONNECTION = ("./bin/loadgen connections", "./bin/loadgen doctor", "./bin/loadgen setup")


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def words_of(command: str, port: str) -> list[str]:
    program, *words = shlex.split(command.replace(SHOWN_PORT, port))
    assert program == "./bin/loadgen"
    return [*PROGRAM, *words]


def environment(home: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "LOADGEN_EMBEDDED_DATA_DIR": str(home / "data"),
        "SNOWFLAKE_HOME": str(home),
        "HOME": str(home),
    }


@contextlib.contextmanager
def served(command: str, home: Path, port: str) -> Iterator[str]:
    process = subprocess.Popen(words_of(command, port), stdout=subprocess.PIPE, text=True, env=environment(home))
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY)
        yield line.removeprefix(READY).strip()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.fixture
def home() -> Iterator[Path]:
    import shutil

    path = reachable_directory()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_every_command_of_the_readme_is_known_here():
    alone = ("./bin/loadgen embedded serve", "./bin/test", RUN)
    known = (*alone, *OFFLINE, *WITH_A_SERVER_OF_THEIR_OWN, *WITH_A_CONNECTION, *AFTER_RUNS)
    assert [command for command in COMMANDS if not command.startswith(known)] == []


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(OFFLINE)])
def test_what_needs_no_server_runs_as_shown(command: str, home: Path):
    words = words_of(command, SHOWN_PORT)

    done = subprocess.run(words, capture_output=True, text=True, env=environment(home), cwd=ROOT, timeout=PATIENCE_S)

    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(WITH_A_SERVER_OF_THEIR_OWN)])
def test_what_starts_its_own_server_runs_as_shown(command: str, home: Path):
    words = [word.replace("examples/", f"{ROOT}/examples/") for word in words_of(command, SHOWN_PORT)]

    done = subprocess.run(words, capture_output=True, text=True, env=environment(home), cwd=home, timeout=PATIENCE_S)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.fixture(scope="module")
def after_runs() -> Iterator[Path]:
    """Where the run of the README and a short one have been, and a server that knows of them."""
    import shutil

    path = reachable_directory()
    with served("./bin/loadgen embedded serve", path, SHOWN_PORT):
        (command,) = {command for command in COMMANDS if command.startswith(RUN)}
        words = [word.replace("examples/", f"{ROOT}/examples/") for word in words_of(command, SHOWN_PORT)]
        for more in ([], ["--set", "load.warmup=1s", "--set", "load.duration=6s", "--quiet"]):
            every = [*words, *more]
            done = subprocess.run(
                every, capture_output=True, text=True, env=environment(path), cwd=path, timeout=PATIENCE_S
            )
            assert done.returncode == 0, done.stdout + done.stderr
            (report,) = re.findall(r"^report: (.*/report\.html)$", done.stdout, re.MULTILINE)
            assert (path / report).is_file()
        yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(AFTER_RUNS)])
def test_what_looks_back_runs_as_shown(command: str, after_runs: Path):
    words = [word.replace("examples/", f"{ROOT}/examples/") for word in words_of(command, SHOWN_PORT)]

    done = subprocess.run(
        words, capture_output=True, text=True, env=environment(after_runs), cwd=after_runs, timeout=PATIENCE_S
    )

    # On a machine that is busy with other tests a run may be INVALID, and then there is nothing to compare.
    allowed = (0, 2, 11) if " compare " in command else (0,)
    assert done.returncode in allowed, done.stdout + done.stderr
    assert any(word in done.stdout + done.stderr for word in ("quickstart", "worker-0", "reads", "compar"))


def test_every_example_is_listed_in_the_readme():
    examples = {path.relative_to(ROOT).parts[1] for path in (ROOT / "examples").rglob("*.yaml")}

    assert {name for name in examples if f"examples/{name}" not in TEXT} == set()


@pytest.mark.parametrize("command", [command for command in COMMANDS if " embedded serve" in command])
def test_a_server_is_served_as_shown(command: str, home: Path):
    with served(command, home, free_port()) as address:
        assert address.startswith("127.0.0.1:")


def test_the_code_of_the_readme_runs_against_the_server_of_the_readme(home: Path, capsys: pytest.CaptureFixture[str]):
    port = free_port()
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    command = next(command for command in COMMANDS if SHOWN_PORT in command)

    with served(command, home, port):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code.replace(SHOWN_PORT, port)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    assert (done.stdout, done.stderr) == ("('PAID',)\n", ""), "no warning, no error"


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(WITH_A_CONNECTION)])
def test_what_needs_a_connection_runs_as_shown(command: str, home: Path):
    port = free_port()
    serve = next(command for command in COMMANDS if SHOWN_PORT in command)
    file = home / "connections.toml"
    file.write_text(
        '[prod]\naccount = "embedded"\nuser = "me"\npassword = "any"\nhost = "127.0.0.1"\nprotocol = "http"\n'
        f"port = {port}\n"
    )
    file.chmod(0o600)

    with served(serve, home, port):
        done = subprocess.run(
            words_of(command, port), capture_output=True, text=True, env=environment(home), timeout=PATIENCE_S
        )

    # 3: nothing was set up on this server, and doctor says so.
    assert done.returncode in ((0, 3) if "doctor" in command else (0,)), done.stderr
    assert "prod" in done.stdout or "CREATE HYBRID TABLE" in done.stdout
    assert "any" not in done.stdout.split()


def test_the_test_command_explains_itself():
    done = subprocess.run([str(ROOT / "bin" / "test"), "--help"], capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.returncode == 0
    assert "./bin/test --slow" in done.stdout
