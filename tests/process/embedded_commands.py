"""Commands that need the embedded server, as processes, and the servers that they find or start."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadgen.embedded.client import embedded_server
from loadgen.embedded.datadir import DATA_DIR_VARIABLE
from loadgen.errors import LoadgenError
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, PROGRAM, ROOT

SERVE = [*PROGRAM, "embedded", "serve", "--until-eof"]  # as a command starts it

# A command: prints the address, executes the requested actions line by line, and ends at the end of its input.
COMMAND = """
import sys
from loadgen.embedded.client import embedded_server
from tests.process.embedded_commands import Found

kept = []
with embedded_server() as address:
    try:
        print(address, flush=True)  # it may be interrupted as soon as the address can be read
        for line in sys.stdin:
            connection = Found(address).connect()
            kept.append(connection)
            print(connection.cursor().execute(line).fetchone()[0], flush=True)
        for connection in kept:
            connection.close()
    except KeyboardInterrupt:
        with Found(address).connect() as connection:
            print(connection.cursor().execute("SELECT 'interrupted'").fetchone()[0], flush=True)
"""


class Found(EmbeddedServer):
    """A server that another command started, for its `connect` and `ask`."""

    def __init__(self, address: str, environ: Mapping[str, str] = os.environ) -> None:
        host, _, port = address.rpartition(":")
        self.host, self.port = host, int(port)
        path = Path(environ.get(EMBEDDED_PASSWORD_FILE) or f"{environ.get(DATA_DIR_VARIABLE, '')}/password")
        self.password = path.read_text().strip() if path.exists() else None

    def answers(self) -> bool:
        with self.connect() as connection:
            return bool(connection.cursor().execute("SELECT 41 + 1").fetchone() == (42,))

    @property
    def pid(self) -> int:
        return int(self.ask("/__loadgen/stats")["options"]["pid"])


class Command:
    """A process that needs an embedded server."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
            start_new_session=True,
        )

    def tell(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def execute(self, text: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        return self.tell()

    @property
    def servers(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.process.pid).children()}

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def environ_of(data_dir: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != EMBEDDED_ADDRESS}
    return kept | {DATA_DIR_VARIABLE: str(data_dir), "PYTHONPATH": str(ROOT)}


def pids_of(address: str, environ: Mapping[str, str]) -> set[int]:
    server = psutil.Process(Found(address, environ).pid)
    return {server.pid, *(process.pid for process in server.children(recursive=True))}


def refusal_of(environ: dict[str, str], **how: Any) -> LoadgenError:
    with pytest.raises(LoadgenError) as caught, embedded_server(environ, **how):
        pass
    return caught.value
