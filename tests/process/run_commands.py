"""Runs as processes, and the commands that ask for them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from tests.control_plane import ControlPlane
from tests.processes import PATIENCE_S, ROOT, start_program, wait_until

SCENARIO = """
version: 1
name: nap
connection: embedded
control: {database: %s}
target: {warehouse: %s, database: BENCH, schema: PUBLIC}
workload: {statements: [{name: nap, sql: "SELECT SYSTEM$WAIT(400, 'MILLISECONDS')"}]}
load: {connections: 8, workers: 1, warmup: 1s, duration: %s}
timing: {tick: 200ms, heartbeat: 200ms, status_poll: 150ms, events_poll: 600ms, flush: 500ms, announce: 500ms,
         drain_interrupt: 1s, terminate_after: 500ms, kill_after: 500ms}
"""


class CommandHarness:
    """Starts runs, each in a separate process, and executes commands about them in this process."""

    def __init__(self, plane: ControlPlane, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.plane, self.folder, self._capsys = plane, folder, capsys
        self._started: list[subprocess.Popen[str]] = []
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("LOADGEN_", "SNOWFLAKE_"))}
        self.environ = kept | plane.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder)}

    def run(self, *words: str, warehouse: str, duration: str = "60s", **environ: str) -> subprocess.Popen[str]:
        file = self.folder / f"{warehouse}-{len(self._started)}.yaml"
        file.write_text(SCENARIO % (self.plane.place.database, warehouse, duration), "utf-8")
        process = start_program(["run", str(file), "--format", "json", *words], self.environ | environ, self.folder)
        self._started.append(process)
        return process

    def ask(self, *words: str) -> tuple[int, str]:
        """Exit code and stdout of a command."""
        self._capsys.readouterr()
        code = main([*words, "-c", "embedded", "--database", self.plane.place.database])
        return code, self._capsys.readouterr().out

    def json(self, *words: str) -> Any:
        code, text = self.ask(*words, "--format", "json")
        assert code == 0, text
        return json.loads(text)

    def newest(self) -> str:
        rows = self.plane.rows("SELECT RUN_ID FROM RUN_STATUS ORDER BY CREATED_AT DESC LIMIT 1")
        return str(rows[0][0]) if rows else ""

    def state(self, run_id: str) -> tuple[str, str]:
        rows = self.plane.rows("SELECT STATUS, PHASE FROM RUN_STATUS WHERE RUN_ID = ?", run_id)
        return (rows[0][0], rows[0][1]) if rows else ("", "")

    def wait_new(self, process: subprocess.Popen[str], before: str, *states: str) -> str:
        """The id of the run that this process began, once it is in one of the states."""

        def there() -> bool:
            if process.poll() is not None:
                pytest.fail(f"it ended with {process.returncode}: {process.communicate()}")
            run_id = self.newest()
            return run_id != before and not set(states).isdisjoint(self.state(run_id))

        wait_until(there, f"a new run is {states}")
        return self.newest()

    def silence(self, run_id: str) -> None:
        """Let the last beats of a run be old."""
        sql = "UPDATE WORKER_HEARTBEATS SET LAST_HEARTBEAT = DATEADD(second, -100, LAST_HEARTBEAT) WHERE RUN_ID = ?"
        self.plane.change(sql, run_id)

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert out, errors
    return dict(json.loads(out)) | {"code": process.returncode, "said": errors}


def read_until(process: subprocess.Popen[str], found: Callable[[str], bool]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if found(line):
            return line
    pytest.fail(f"it ended with {process.wait()} before it said so")


def script(folder: Path, name: str, *lines: str) -> dict[str, str]:
    """A program of that name, and a PATH that finds it first."""
    file = folder / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]), "utf-8")
    file.chmod(0o755)
    return {"PATH": f"{file.parent}:{os.environ['PATH']}"}
