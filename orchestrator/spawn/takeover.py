"""Workers that another orchestrator had started, or people: they work already, and end by themselves."""

from __future__ import annotations

from orchestrator.spawn.spawner import ProcessEnd, WorkerOrder
from orchestrator.spawn.spcs import SpcsSpawner


class AdoptedWorkers:
    """Processes, known by their beats alone."""

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        """They have been started."""

    def ended(self) -> tuple[ProcessEnd, ...]:
        return ()

    def running(self) -> int:
        return 0

    def terminate(self, *, hard: bool) -> None:
        """Whoever obeys neither STOP nor the state of the run cannot be reached."""

    def close(self) -> None:
        """Nothing of them is ours."""


class AdoptedContainers(SpcsSpawner):
    """The replicas of a job service: seen, ended and removed as by whoever had started them."""

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        """They have been started."""
        self.adopt(orders)
