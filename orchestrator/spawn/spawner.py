"""Starting workers, seeing them end, and ending them: one interface, whatever a worker runs on."""

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
from loadgen.scenario.model import EMBEDDED, CorePinning, Scenario
from loadgen.scenario.settings import TimingSettings
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import NS_PER_S
from loadgen.values import dataclass

LAST_LINES = 20
LOG_LINES = 1_000  # of each worker in a container
_ERRORS = ("error: ", "Fatal Python error: ")
LOOK_S = 0.1
SIGNALS = range(129, 160)  # how a container's exit code says which signal ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """Which worker to start."""

    run_id: str
    worker_id: str
    worker_group_id: int
    worker_group_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """A worker process that has ended. `code` below 0 is the number of the signal that killed it."""

    worker_id: str
    code: int
    last_lines: tuple[str, ...] = ()

    @property
    def error(self) -> str | None:
        """What it said went wrong, among the last lines: lines about other things may follow."""
        lines = [line for line in self.last_lines if line.startswith(_ERRORS)]
        return lines[-1].removeprefix("error: ").removeprefix(f"{self.worker_id}: ") if lines else None

    @property
    def sentence(self) -> str:
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"exited with code {self.code}"
        return f"{self.worker_id} {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLost(ProcessEnd):
    """The end of a worker whose exit code is unknown, or does not say what happened."""

    code: int = 1  # not a clean one
    what: str

    @property
    def sentence(self) -> str:
        return f"{self.worker_id} {self.what}"


def process_code(code: int) -> int:
    """A container's exit code as that of a process: below 0 it is a signal."""
    return 128 - code if code in SIGNALS else code


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

    def ended(self) -> tuple[ProcessEnd, ...]:
        """Every worker whose end is known, as often as it is asked."""

    def running(self) -> int:
        """How many processes of ours still run on this machine."""

    def terminate(self, *, hard: bool) -> None:
        """Ask all that are left to end (SIGTERM), or end them (SIGKILL)."""

    def close(self) -> None:
        """Let go of whatever is held. Workers that outlive us are left alone."""


def worker_orders(run_id: str, worker_ids: tuple[str, ...]) -> tuple[WorkerOrder, ...]:
    """One for each worker of the run."""
    return tuple(
        WorkerOrder(run_id=run_id, worker_id=worker_id, worker_group_id=number, worker_group_count=len(worker_ids))
        for number, worker_id in enumerate(worker_ids)
    )


def worker_environment(
    scenario: Scenario, place: ControlPlaneLocation, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """What a worker must be told beside its four arguments, wherever it runs. No secrets: they are shown."""
    told = place.to_environment()
    if scenario.connection is not None:
        told["LOADGEN_CONNECTION"] = scenario.connection
    if EMBEDDED in (scenario.connection, place.connection):
        told |= {name: environ[name] for name in (EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE) if name in environ}
    if scenario.load.pin is CorePinning.NONE:
        told["LOADGEN_PIN"] = "none"
    return told


def terminate_gracefully(spawner: Spawner, timing: TimingSettings, clock: Clock, hurried: threading.Event) -> None:
    """Workers that are not led any more drain, and spool what they cannot store; asked twice, they do not wait."""
    for patience_s in (timing.drain_interrupt_s + timing.terminate_after_s, timing.kill_after_s):
        spawner.terminate(hard=False)
        until_ns = clock.monotonic_ns() + round(patience_s * NS_PER_S)
        while spawner.running() and not hurried.is_set() and clock.monotonic_ns() < until_ns:
            clock.wait(hurried, LOOK_S)


def is_led_by_another(session: ControlSession, patience: RetryPolicy, run_id: str) -> bool:
    """Does a process other than this one lead the run by now?"""
    holder = patience.call(lambda: run_leases.read(session, run_id))
    return holder is not None and holder.remaining_ms > 0 and _process(holder.owner) != _process(run_leases.new_owner())


def _process(owner: str) -> str:
    """Machine and process of a lease's owner: after a lost term, ours has another name."""
    return owner.rpartition(":")[0]
