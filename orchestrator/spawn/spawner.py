"""The interface of all spawners: start workers, observe their ends, terminate them; the order that starts a worker."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_leases
from loadgen.model.run import ProcessEnd
from loadgen.scenario.model import EMBEDDED, CorePinning, Scenario
from loadgen.scenario.settings import TimingSettings
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import NS_PER_S
from loadgen.values import dataclass

LAST_LINES = 20
LOG_LINES = 1_000  # of each worker in a container
END_CHECK_S = 0.1  # between checks whether workers have ended
SIGNALS = range(129, 160)  # exit codes of containers that a signal has ended: 128 + its number


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """The worker to start: the same values as the options of `loadgen worker`."""

    run_id: str
    worker_id: str
    worker_group_id: int
    worker_group_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLost(ProcessEnd):
    """The end of a worker whose exit code is unknown, or does not show the cause."""

    code: int = 1  # stands for the unknown exit code
    what: str

    @property
    def sentence(self) -> str:
        return f"{self.worker_id} {self.what}"


def process_code(code: int) -> int:
    """The exit code of a container as that of a process: a negative code is a signal."""
    return 128 - code if code in SIGNALS else code


def last_lines(log: Path) -> tuple[str, ...]:
    """The last lines of a worker's log."""
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            return tuple(line.rstrip("\n") for line in deque(lines, LAST_LINES))
    except OSError:
        return ()


class Spawner(Protocol):
    """Starts all workers of a run with one call of start(). All other methods return at once."""

    def start(self, orders: tuple[WorkerOrder, ...]) -> None: ...

    def ended(self) -> tuple[ProcessEnd, ...]:
        """The ends of all workers that have ended so far."""

    def running(self) -> int:
        """Number of worker processes that still run on this machine."""

    def terminate(self, *, hard: bool) -> None:
        """Send SIGTERM, or with `hard` SIGKILL, to all workers that have not ended."""

    def close(self) -> None:
        """Release all resources. Workers that may outlive this process are not ended."""


class ObservedWorkers:
    """A Spawner of workers that this process does not control: only their heartbeats are observed, and they react only
    to STOP, to the status of the run and to the expiry of its lease."""

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        """No effect: another process starts them, or has started them."""

    def ended(self) -> tuple[ProcessEnd, ...]:
        return ()  # their last heartbeats report it

    def running(self) -> int:
        return 0

    def terminate(self, *, hard: bool) -> None:
        """No effect: they cannot be reached."""

    def close(self) -> None:
        """No effect: there are no resources."""


def worker_orders(run_id: str, worker_ids: tuple[str, ...]) -> tuple[WorkerOrder, ...]:
    """The order of each worker of the run."""
    return tuple(
        WorkerOrder(run_id=run_id, worker_id=worker_id, worker_group_id=number, worker_group_count=len(worker_ids))
        for number, worker_id in enumerate(worker_ids)
    )


def worker_environment(
    scenario: Scenario, place: ControlPlaneLocation, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment variables that a worker needs on any machine, without secrets: they are shown to the user.

    They decide where a worker connects to, whatever the shell that starts it has set: an empty name is the default
    connection, as it is for the orchestrator.
    """
    variables = {**place.to_environment(), "LOADGEN_CONNECTION": scenario.connection or ""}
    if EMBEDDED in (scenario.connection, place.connection):
        variables |= {name: environ[name] for name in (EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE) if name in environ}
    if scenario.load.pin is CorePinning.NONE:
        variables["LOADGEN_PIN"] = "none"
    return variables


def terminate_gracefully(spawner: Spawner, timing: TimingSettings, clock: Clock, hurried: threading.Event) -> None:
    """Terminate workers whose run has no leader any more: they drain, and spool the results that they cannot store.
    After the second SIGTERM they do not wait for statements under way."""
    for timeout_s in (timing.drain_interrupt_s + timing.terminate_after_s, timing.kill_after_s):
        spawner.terminate(hard=False)
        until_ns = clock.monotonic_ns() + round(timeout_s * NS_PER_S)
        while spawner.running() and not hurried.is_set() and clock.monotonic_ns() < until_ns:
            clock.wait(hurried, END_CHECK_S)


def wait_for_end(spawner: Spawner, clock: Clock, hurried: threading.Event) -> None:
    """Wait until all workers have ended by themselves, or until an interrupt."""
    while spawner.running() and not hurried.is_set():
        clock.wait(hurried, END_CHECK_S)


def is_led_by_another(session: ControlSession, retries: RetryPolicy, run_id: str) -> bool:
    """Whether another process leads the run."""
    holder = retries.call(lambda: run_leases.read(session, run_id))
    return holder is not None and holder.remaining_ms > 0 and _process(holder.owner) != _process(run_leases.new_owner())


def _process(owner: str) -> str:
    """Machine and process in the name of a lease's owner. The rest of the name changes with every claim."""
    return owner.rpartition(":")[0]
