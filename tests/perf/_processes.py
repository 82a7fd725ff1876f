"""The processes that benchmarks compare: servers to talk to, and bare connector loops on the other side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.embedded_server import EmbeddedServer
from tests.perf._bare_loop import KEYS, POINT_SELECT
from tests.perf._cleanup import kill, with_children
from tests.perf._cores import Cores, on
from tests.process.worker_driver import WorkerHarness
from tests.processes import ROOT

END_S = 60.0
GET = {"name": "get", "kind": "read", "sql": POINT_SELECT, "params": [{"uniform": {"min": 1, "max": KEYS}}]}


@contextmanager
def worker_harness(cores: Cores, *target: str) -> Iterator[WorkerHarness]:
    """A target and a control plane, each a server, away from the clients' cores where there are others."""
    with ExitStack() as stack:
        stack.enter_context(on(cores.others))
        server, control = stack.enter_context(EmbeddedServer(*target)), stack.enter_context(EmbeddedServer())
        harness = WorkerHarness(server, control_server=control)
        stack.callback(harness.close)
        yield harness


class Bare:
    """Bare loops, running: one process, or one per core that it may use. Leaving the block ends them."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"tests.perf.{module}", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,  # as workers have: sessions share a core fairly
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        self.pids = (self._process.pid,) if said == "ready\n" else tuple(int(pid) for pid in said.split())
        assert self.pids, "the bare loops did not start"

    @classmethod
    def loop(cls, harness: WorkerHarness, connections: int, *more: Path | str) -> Self:
        return cls("_bare_loop", harness.server.address, harness.database, connections, *more)

    @classmethod
    def loops(cls, harness: WorkerHarness, connections_each: int) -> Self:
        return cls("_bare_loops", harness.server.address, harness.database, connections_each)

    def close(self) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(END_S) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:  # a server that is gone would hold it up
            kill(with_children(self._process.pid))
            self._process.wait()
