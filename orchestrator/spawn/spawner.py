"""Starting workers, seeing them end, and ending them: one interface, whatever a worker runs on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LAST_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """Which worker to start."""

    run_id: str
    worker_id: str
    worker_group_id: int
    worker_group_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnd:
    """A worker process that has ended. `code` below 0 is the number of the signal that killed it."""

    worker_id: str
    code: int
    last_lines: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"exited with code {self.code}"
        return f"{self.worker_id} {how}"


def last_lines(log: Path) -> tuple[str, ...]:
    """What a worker said last."""
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            return tuple(line.rstrip("\n") for line in deque(lines, LAST_LINES))
    except OSError:
        return ()


class Spawner(Protocol):
    """start() once for all workers. Everything but start() answers at once."""

    def start(self, orders: tuple[WorkerOrder, ...]) -> None: ...

    def ended(self) -> tuple[WorkerEnd, ...]:
        """Every worker whose end is known, as often as it is asked."""

    def terminate(self, *, hard: bool) -> None:
        """Ask all that are left to end (SIGTERM), or end them (SIGKILL)."""

    def close(self) -> None:
        """Let go of whatever is held. Workers that outlive us are left alone."""
