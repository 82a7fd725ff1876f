"""Workers that a user starts on any machine, or that another orchestrator has started."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from orchestrator.spawn.local import worker_arguments
from orchestrator.spawn.spawner import ProcessEnd, WorkerOrder


class ExternalSpawner:
    """They learn of the end from the tables only; without a leader of their run they end by themselves."""

    def __init__(
        self, environment: Mapping[str, str], wait_s: float, tell: Callable[[str], None], secrets: Sequence[str] = ()
    ) -> None:
        """`environment`: what each of them must be told; `secrets`: variables whose values are not. `tell` shows one
        line to the user who starts them."""
        self._environment, self._wait_s, self._tell = dict(environment), wait_s, tell
        self._secrets = tuple(secrets)

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        self._tell(
            f"start {'this worker' if len(orders) == 1 else 'these workers'} within {self._wait_s:g} s, anywhere:"
        )
        if self._secrets:
            self._tell(f"with these variables set there as they are here: {', '.join(self._secrets)}")
        for order in orders:
            self._tell(worker_command(order, self._environment))

    def ended(self) -> tuple[ProcessEnd, ...]:
        return ()  # their last beats say it

    def running(self) -> int:
        return 0

    def terminate(self, *, hard: bool) -> None:
        """Out of reach: STOP, or the end of the lease, is all they hear."""

    def close(self) -> None:
        """Nothing is held."""


def worker_command(order: WorkerOrder, environment: Mapping[str, str]) -> str:
    """One line for a shell."""
    told = [f"{name}={value}" for name, value in sorted(environment.items())]
    return shlex.join(["env", *told, "loadgen", *worker_arguments(order)])


class AdoptedWorkers:
    """Processes, known by their beats alone."""

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        """They have been started."""

    def ended(self) -> tuple[ProcessEnd, ...]:
        return ()

    def running(self) -> int:
        return 0

    def terminate(self, *, hard: bool) -> None:
        """A worker that obeys neither STOP nor the status of the run is unreachable."""

    def close(self) -> None:
        """Nothing of them is ours."""
