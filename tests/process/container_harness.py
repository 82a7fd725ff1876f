"""Runs in processes, whose workers are containers of a job: shared by the tests of each platform."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, ROOT, start_program, wait_until

SCENARIO = """
version: 1
name: nap
control: {database: %s}
target: {warehouse: %s, database: BENCH, schema: PUBLIC}
workload: {statements: [{name: nap, sql: "SELECT SYSTEM$WAIT(400, 'MILLISECONDS')"}]}
load: {connections: 16, workers: 2, warmup: 0s, duration: %s}
spawner: %s
timing: {registration: %s,
         tick: 200ms, heartbeat: 200ms, status_poll: 150ms, events_poll: 600ms, flush: 500ms, announce: 500ms,
         drain_interrupt: 1s, terminate_after: 500ms, kill_after: 500ms}
"""
CONNECTION = """
[bench]
account = "embedded"
user = "bench"
password = "any"
host = "%s"
port = %d
protocol = "http"
"""


class ContainerHarness:
    """Runs in separate processes, with a separate control plane."""

    def __init__(self, server: EmbeddedServer, folder: Path, spawner: str, **environ: str) -> None:
        """`spawner`: the section of the scenario."""
        self.server, self.folder, self.plane, self._spawner = server, folder, ControlPlane(server), spawner
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("LOADGEN_", "SNOWFLAKE_"))}
        self._environ = kept | self.plane.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder)} | environ
        connections = folder / ".snowflake" / "connections.toml"
        connections.parent.mkdir()
        connections.write_text(CONNECTION % (server.host, server.port), "utf-8")
        connections.chmod(0o600)
        self._started: list[subprocess.Popen[str]] = []

    def run(
        self, connection: str, *, warehouse: str, duration: str, registration: str = "600s"
    ) -> subprocess.Popen[str]:
        file = self.folder / f"{warehouse}.yaml"
        values = (self.plane.place.database, warehouse, duration, self._spawner, registration)
        file.write_text(SCENARIO % values, "utf-8")
        return self.start("run", str(file), "-c", connection)

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = start_program([*words, "--format", "json"], self._environ, self.folder)
        self._started.append(process)
        return process

    def wait_measuring(self, process: subprocess.Popen[str]) -> None:
        def measures() -> bool:
            if process.poll() is not None:
                pytest.fail(f"it ended with {process.returncode}: {process.communicate()}")
            return bool(self.plane.rows("SELECT 1 FROM RUN_STATUS WHERE PHASE = 'MEASUREMENT' AND TOTAL_OPS > 0"))

        wait_until(measures, "the run measures")

    def run_id(self) -> str:
        """Of the only run."""
        ((run_id,),) = self.plane.rows("SELECT RUN_ID FROM RUN_STATUS")
        return str(run_id)

    def statements(self, text: str) -> list[str]:
        """What the spawner's own sessions sent, and others did not."""
        history = self.server.ask("/__loadgen/history?tag=spcs&since=0")
        return [one["sql_text"] for one in history if text in one["sql_text"]]

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        self.plane.close()


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert out, errors
    return {"status": None, **json.loads(out), "code": process.returncode, "said": errors}
