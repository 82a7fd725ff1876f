"""Workers that another orchestrator had started, or people: they work already, and end by themselves."""

from __future__ import annotations

from orchestrator.spawn.spawner import WorkerEnd, WorkerOrder


class AdoptedWorkers:
    """Known by their beats alone."""

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        """They have been started."""

    def ended(self) -> tuple[WorkerEnd, ...]:
        return ()

    def terminate(self, *, hard: bool) -> None:
        """Whoever obeys neither STOP nor the state of the run cannot be reached."""

    def close(self) -> None:
        """Nothing of them is ours."""
