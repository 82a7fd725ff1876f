"""Workers as child processes of this one, started by spawn: a forked child would hang in the driver."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing.context import SpawnProcess
from pathlib import Path

from orchestrator.spawn.spawner import ProcessEnd, WorkerOrder, last_lines

_JOIN_S = 0.5

# (order, environment, log file): what the child runs. It is given by the command line, which knows every role.
Entry = Callable[[WorkerOrder, Mapping[str, str], str], None]


class LocalSpawner:
    """Children see our death through multiprocessing's own pipe, have a session each, and ignore Ctrl-C."""

    def __init__(self, entry: Entry, environment: Mapping[str, str], log_folder: Path) -> None:
        self._entry, self._environment, self._log_folder = entry, dict(environment), log_folder
        self._children: dict[str, SpawnProcess] = {}

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        for order in orders:
            log = str(self._log_folder / f"{order.worker_id}.log")
            child = context.Process(
                target=self._entry, args=(order, self._environment, log), name=order.worker_id, daemon=False
            )
            child.start()
            self._children[order.worker_id] = child

    def ended(self) -> tuple[ProcessEnd, ...]:
        return tuple(
            ProcessEnd(
                worker_id=worker_id, code=child.exitcode, last_lines=last_lines(self._log_folder / f"{worker_id}.log")
            )
            for worker_id, child in self._children.items()
            if child.exitcode is not None
        )

    def running(self) -> int:
        return sum(child.exitcode is None for child in self._children.values())

    def terminate(self, *, hard: bool) -> None:
        for child in self._children.values():
            if child.exitcode is None and child.pid is not None:
                _signal_group(child.pid, signal.SIGKILL if hard else signal.SIGTERM)

    def close(self) -> None:
        """End whatever is left: nothing of ours may outlive us."""
        self.terminate(hard=True)
        for child in self._children.values():
            child.join(_JOIN_S)


def _signal_group(pid: int, number: int) -> None:
    """The child leads a group of its own as soon as it has come so far; before that it is alone."""
    try:
        group = os.getpgid(pid)
        if group == pid:
            os.killpg(group, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return
