"""Snowpark Container Services for tests: runs the jobs that an embedded server has recorded, each replica as a process.

A replica gets what the specification and Snowflake's documentation promise it, and nothing of this process: its place
among the replicas, the account and host, a token in a file. The working tree replaces the image.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.embedded_server import EmbeddedServer
from tests.processes import PROGRAM, ROOT

LOOK_S = 0.1
GRACE_S = 30.0  # between SIGTERM and SIGKILL


@dataclass(slots=True, kw_only=True)
class Replica:
    process: subprocess.Popen[bytes]
    container: str
    log: Path

    @property
    def state(self) -> dict[str, Any]:
        code = self.process.poll()
        if code is None:
            return {"container": self.container, "status": "READY"}
        code = 128 - code if code < 0 else code  # as a container says it
        return {"container": self.container, "status": "FAILED" if code else "DONE", "exit_code": code}


@dataclass(slots=True)
class Replicas:
    """`with` runs it. Jobs that were dropped or cancelled lose their processes."""

    server: EmbeddedServer
    folder: Path
    image: str  # the only one there is
    running: dict[str, list[Replica]] = field(default_factory=dict)
    specifications: dict[str, dict[str, Any]] = field(default_factory=dict)
    trouble: list[BaseException] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Replicas:
        self._thread = threading.Thread(target=self._run, name="spcs-replicas", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        assert self._thread is not None
        self._thread.join()
        for replica in [one for replicas in self.running.values() for one in replicas]:
            replica.process.kill()
            replica.process.wait()
        if self.trouble:
            raise self.trouble[0]

    def pids(self) -> set[int]:
        return {one.process.pid for replicas in self.running.values() for one in replicas}

    def kill(self, index: int) -> None:
        """SIGKILL to this replica of the newest job."""
        newest = list(self.running.values())[-1]
        newest[index].process.send_signal(signal.SIGKILL)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.wait(LOOK_S):
                jobs = {str(job["name"]): job for job in self.server.ask("/__loadgen/services")}
                for name, job in jobs.items():
                    if name not in self.running and job["status"] == "PENDING":
                        self._start(job)
                for name, replicas in self.running.items():
                    self._look_after(name, jobs.get(name), replicas)
        except BaseException as error:  # reported at the end, by the thread of the test
            self.trouble.append(error)

    def _start(self, job: dict[str, Any]) -> None:
        specification = YAML(typ="safe").load(job["specification"])
        (container,) = specification["spec"]["containers"]
        assert container["image"] == self.image
        program, *words = container["command"]
        assert program == "loadgen"
        self.specifications[job["name"]] = specification
        self.running[job["name"]] = [self._replica(job, container, words, index) for index in range(job["replicas"])]

    def _replica(self, job: dict[str, Any], container: dict[str, Any], words: list[str], index: int) -> Replica:
        database, schema, name = job["name"].split(".")
        home = self.folder / f"{name}-{index}"
        home.mkdir()
        token = home / "token"
        token.write_text("a-token", "utf-8")
        log = home / "log"
        environ = {
            **container["env"],
            "SNOWFLAKE_JOB_INDEX": str(index),
            "SNOWFLAKE_JOBS_COUNT": str(job["replicas"]),
            "SNOWFLAKE_ACCOUNT": "embedded",
            "SNOWFLAKE_HOST": self.server.host,
            "SNOWFLAKE_DATABASE": database,
            "SNOWFLAKE_SCHEMA": schema,
            # In a container the token has one fixed place, and the host needs no port.
            "SNOWFLAKE_AUTHENTICATOR": "OAUTH",
            "SNOWFLAKE_TOKEN_FILE_PATH": str(token),
            "SNOWFLAKE_PORT": str(self.server.port),
            "SNOWFLAKE_PROTOCOL": "http",
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
        }
        with log.open("wb") as output:
            output.write(f"replica {index} starts\n".encode())
            output.flush()
            process = subprocess.Popen(
                [*PROGRAM, *words], env=environ, cwd=home, stdout=output, stderr=output, start_new_session=True
            )
        return Replica(process=process, container=container["name"], log=log)

    def _look_after(self, name: str, job: dict[str, Any] | None, replicas: list[Replica]) -> None:
        if job is None or job["status"] in ("CANCELLING", "CANCELLED"):
            self._end(replicas)
        if job is not None:
            logs = {
                f"{index}/{one.container}": one.log.read_text("utf-8", "replace") for index, one in enumerate(replicas)
            }
            instances = {str(index): one.state for index, one in enumerate(replicas)}
            self.server.ask(
                "/__loadgen/services", method="POST", body={"name": name, "instances": instances, "logs": logs}
            )

    def _end(self, replicas: list[Replica]) -> None:
        living = [one.process for one in replicas if one.process.poll() is None]
        for process in living:
            process.terminate()
        for process in living:
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
