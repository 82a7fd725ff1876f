"""Workers in separate processes reach the server that the command started, which checks a password."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadgen.embedded.datadir import DATA_DIR_VARIABLE
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE
from tests.process.run_harness import scenario
from tests.processes import PATIENCE_S, PROGRAM, ROOT, reachable_directory, wait_until

SECTIONS: dict[str, Any] = {
    "embedded": {"service_time": "400ms"},
    "load": {"connections": 8, "workers": 2, "warmup": "0s", "duration": "5s"},
}


@dataclass
class Run:
    """`loadgen run` with an empty home: no server is configured, so it starts one."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def said(self) -> str:
        return (self.folder / "stderr").read_text("utf-8")

    def ended(self) -> dict[str, Any]:
        """The result. Whether other programs disturbed the measurement is of no interest here."""
        self.process.wait(PATIENCE_S)
        printed = (self.folder / "stdout").read_text("utf-8")
        assert printed, self.said
        summary: dict[str, Any] = json.loads(printed)
        return summary


@pytest.fixture
def folder() -> Iterator[Path]:
    with reachable_directory() as made:
        yield made


def bare(folder: Path, **more: str) -> dict[str, str]:
    """What any shell of the machine has."""
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), **more}


def started(folder: Path, kind: str) -> Run:
    file = folder / "scenario.yaml"
    file.write_text(json.dumps(scenario(9_200, **SECTIONS, spawner={"kind": kind})), "utf-8")
    environ = bare(folder, **{DATA_DIR_VARIABLE: str(folder / "data")})
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as errors:
        words = [*PROGRAM, "run", str(file), "--format", "json"]
        process = subprocess.Popen(words, cwd=folder, env=environ, stdout=out, stderr=errors, start_new_session=True)
    return Run(folder, process)


def assert_complete(summary: dict[str, Any]) -> None:
    assert summary["status"] == "COMPLETED", summary["exit_reason"]
    assert [one["succeeded"] > 0 for one in summary["worker_results"]] == [True, True]


@pytest.mark.slow
def test_workers_as_programs_read_the_password_of_the_server(folder: Path) -> None:
    run = started(folder, "subprocess")
    try:
        assert_complete(run.ended())
    finally:
        run.process.kill()
        run.process.wait()
    password = folder / "data" / "password"
    assert password.stat().st_mode & 0o077 == 0
    texts = [run.said, *(path.read_text("utf-8") for path in folder.glob("runs/*/**/*") if path.is_file())]
    assert not any(password.read_text("ascii").strip() in text for text in texts), "it is written nowhere else"


@pytest.mark.slow
def test_workers_started_by_hand_read_the_password_from_the_printed_command(folder: Path) -> None:
    run, workers = started(folder, "external"), list[subprocess.Popen[bytes]]()
    try:
        wait_until(lambda: run.said.count(" loadgen worker ") == 2, f"the commands are printed: {run.said}")
        lines = [line.split() for line in run.said.splitlines() if " loadgen worker " in line]
        told = dict(word.split("=", 1) for word in lines[0][1 : lines[0].index("loadgen")])
        assert {EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE} <= told.keys()
        assert told[EMBEDDED_PASSWORD_FILE] == str(folder / "data" / "password")
        refused = without_password(folder, lines[0], told)
        assert refused.returncode != 0
        assert b"password" in refused.stderr.lower(), refused.stderr
        for words in lines:
            command = [*PROGRAM, *words[words.index("loadgen") + 1 :]]
            workers.append(subprocess.Popen(command, env=bare(folder, **told), cwd=folder))

        assert_complete(run.ended())
        assert [worker.wait(PATIENCE_S) for worker in workers] == [0, 0]
    finally:
        for process in (run.process, *workers):
            process.kill()
            process.wait()


def without_password(folder: Path, words: list[str], told: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    """A worker without the path of the password."""
    environ = bare(folder, **{name: value for name, value in told.items() if name != EMBEDDED_PASSWORD_FILE})
    command = [*PROGRAM, *words[words.index("loadgen") + 1 :]]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, timeout=PATIENCE_S)
