"""`loadgen embedded serve` as a process for tests of the server itself, and its protocol by hand."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from loadgen.embedded.postgres import postgres_processes_in
from tests.copied_data import copy_data_dir
from tests.embedded_server import EmbeddedServer, served_once
from tests.processes import PATIENCE_S, PROGRAM, ROOT, wait_until

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


class Server(EmbeddedServer):
    """A running `loadgen embedded serve` with any account, input and output. Nothing of it is left after the block."""

    def __init__(
        self, data_dir: Path, *arguments: str, prefix: list[str] | None = None, log_file: Path | None = None, **how: Any
    ) -> None:
        log = [] if log_file is None else ["--log-file", str(log_file)]
        self._own_dir = None
        self.data_dir = data_dir
        self.errors_path = data_dir.parent / f"stderr-{uuid.uuid4().hex}.txt"
        with self.errors_path.open("wb") as errors:
            self.process = subprocess.Popen(
                [*(prefix or []), *PROGRAM, *log, *serve(data_dir, *arguments)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=ENVIRONMENT,
                **how,
            )

    def wait_ready(self) -> "Server":
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on (127\.0\.0\.1):(\d+)\n", line)
        assert found is not None, f"the server said {line!r}\n{self.errors_path.read_text()}"
        self.host, self.port = found[1], int(found[2])
        return self

    @property
    def errors(self) -> str:
        return self.errors_path.read_text()

    @property
    def tree(self) -> set[int]:
        """The process ids of the server and of all below it."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return {self.process.pid, *(process.pid for process in below)}

    @property
    def postmaster(self) -> int:
        (postmaster,) = psutil.Process(self.process.pid).children()
        assert postmaster.name() == "postgres"
        return int(postmaster.pid)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
        wait_until(lambda: not postgres_processes_in(self.data_dir), "PostgreSQL gone with its server")


def serve(data_dir: Path, *arguments: str) -> list[str]:
    port = [] if "--port" in arguments else ["--port", "0"]
    return ["embedded", "serve", *port, "--data-dir", str(data_dir), *arguments]


def copied_data(path: Path) -> Path:
    """A data directory that has been served before."""
    return copy_data_dir(path, served_once)


@contextmanager
def serving(data_dir: Path, *arguments: str, **how: Any) -> Iterator[Server]:
    with Server(data_dir, *arguments, **how) as server:
        yield server.wait_ready()


def refused(data_dir: Path, *arguments: str, prefix: list[str] | None = None) -> tuple[int, str, str]:
    """Exit code, `error:` line and `hint:` line of a server that does not start; it must print nothing else."""
    command = [*(prefix or []), *PROGRAM, *serve(data_dir, *arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=ENVIRONMENT)
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    return done.returncode, error, hint


class Refused(Exception):
    """The server answered that it did not do it."""


class Wire:
    """The protocol by hand: one session on one connection, no retries, every answer as it came."""

    def __init__(self, server: EmbeddedServer, user: str = "wire", **query: str) -> None:
        self.http = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
        self.token = ""
        who = {"data": {"LOGIN_NAME": user, "PASSWORD": server.password or "any"}}
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        self.token = json.loads(self.post(f"/session/v1/login-request?{asked}", who)[1])["data"]["token"]

    def post(self, path: str, body: Any, method: str = "POST", **headers: str) -> tuple[int, bytes]:
        sent = {"Authorization": f'Snowflake Token="{self.token}"', "Content-Type": "application/json"} | headers
        self.http.request(method, path, body if isinstance(body, bytes) else json.dumps(body), sent)
        answer = self.http.getresponse()
        return answer.status, answer.read()

    def sql(self, text: str, **more: Any) -> list[list[str | None]]:
        status, body = self.post(f"/queries/v1/query-request?requestId={uuid.uuid4()}", {"sqlText": text} | more)
        reply: dict[str, Any] = json.loads(body) if status == 200 else {"code": status}
        if not reply.get("success"):
            raise Refused(f"{reply['code']}: {reply.get('message')}")
        rows: list[list[str | None]] = reply["data"]["rowset"]
        return rows

    def answers(self) -> bool:
        with contextlib.suppress(Refused):
            return self.sql("SELECT 1") == [["1"]]
        return False

    def close(self) -> None:
        self.http.close()
