"""`loadgen run` as a process on a separate terminal, on which it draws as for a user."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.perf._cleanup import kill, with_children
from tests.perf._cores import Cores, on
from tests.perf._processes import GET
from tests.process.worker_driver import WorkerHarness
from tests.processes import PROGRAM, ROOT, wait_until

WORKERS = 2
ROWS, COLUMNS = 40, 140
SAID_BYTES_MAX = 20_000

_numbers = itertools.count(1)


def document(harness: WorkerHarness, load: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A scenario of point reads with this load; `more` are other sections."""
    return {
        "version": 1,
        "name": f"bench-{next(_numbers)}",
        "connection": "target",
        "control": {"connection": "control", "database": harness.plane.place.database},
        "target": {"database": harness.database, "schema": "PUBLIC", **more.pop("target", {})},
        "workload": {"statements": [GET]},
        "load": {"workers": WORKERS, **load},
        "enrichment": {"enabled": False},  # not needed, and it waits for a delayed history
        **more,
    }


class LoadgenRun:
    """One run. Leaving the block kills what is left of it."""

    def __init__(
        self, harness: WorkerHarness, scenario: Mapping[str, Any], cores: Cores, beside: Path | None = None
    ) -> None:
        """It, its workers and its display have the cores of the clients. `beside`: a folder that the scenario names."""
        self._harness, self._name = harness, scenario["name"]
        self._folder = harness.folder / self._name
        self._folder.mkdir()
        file = self._folder / "scenario.yaml"
        file.write_text(json.dumps(scenario), "utf-8")
        if beside is not None:
            shutil.copytree(beside, self._folder / beside.name)
        self._said = b""
        self.drawn_bytes = 0
        terminal, ours = pty.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        try:
            with on(cores.clients), (self._folder / "stdout.txt").open("wb") as out:
                self.process = subprocess.Popen(
                    [*PROGRAM, "run", str(file)],
                    cwd=self._folder,
                    env=self._environ(),
                    stdin=ours,
                    stdout=out,
                    stderr=ours,
                    start_new_session=True,
                )
        finally:
            os.close(ours)
        self._reader = threading.Thread(target=self._read, args=(terminal,), name="terminal", daemon=True)
        self._reader.start()

    def _environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOADGEN_", "SNOWFLAKE_"))}
        home = {"SNOWFLAKE_HOME": self._harness.environ["SNOWFLAKE_HOME"], "HOME": str(self._folder)}
        return {**kept, **home, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}

    def _read(self, terminal: int) -> None:
        """Be the terminal: take what is drawn, and keep the end of it."""
        with suppress(OSError), open(terminal, "rb", buffering=0) as shown:  # EIO: no process has it open any more
            while piece := shown.read(65_536):
                self.drawn_bytes += len(piece)
                self._said = (self._said + piece)[-SAID_BYTES_MAX:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        kill(with_children(self.process.pid))
        self.process.wait()
        self._reader.join()

    # --- while it runs -----------------------------------------------------------------------------------------------

    @property
    def pids(self) -> tuple[int, ...]:
        """The leader, with the display, and its workers."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        workers = [child.pid for child in children if child.name().startswith("worker-")]
        assert len(workers) == WORKERS, self.said
        return (self.process.pid, *workers)

    def wait_measuring(self) -> None:
        sql = "SELECT 1 FROM RUN_STATUS WHERE TEST_NAME = ? AND STATUS = 'RUNNING' AND PHASE = 'MEASUREMENT'"
        wait_until(lambda: self._harness.plane.rows(sql, self._name), f"{self._name} measures", unless=self._gone)

    def _gone(self) -> str | None:
        return None if self.process.poll() is None else f"it ended with {self.process.returncode}: {self.said}"

    @property
    def said(self) -> str:
        """What was on its terminal and in its output last."""
        out = (self._folder / "stdout.txt").read_text("utf-8", "replace")
        return f"{self._said.decode('utf-8', 'replace')}\n{out}"

    # --- its end -----------------------------------------------------------------------------------------------------

    def stop(self, seconds: float) -> None:
        """End it gracefully, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(seconds)
        assert code == 128 + signal.SIGINT, f"it ended with {code}: {self.said}"

    def result(self, seconds: float) -> dict[str, Any]:
        """Its summary, once it has ended by itself."""
        self.process.wait(seconds)
        files = list(self._folder.glob("runs/*/summary.json"))
        assert files, f"it ended with {self.process.returncode}: {self.said}"
        found: dict[str, Any] = json.loads(files[0].read_text("utf-8"))
        return found


def ran(
    harness: WorkerHarness, scenario: Mapping[str, Any], cores: Cores, seconds: float, beside: Path | None = None
) -> dict[str, Any]:
    """The summary of a whole run, which may take this long."""
    with LoadgenRun(harness, scenario, cores, beside) as run:
        return run.result(seconds)
