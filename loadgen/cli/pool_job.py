"""The work behind `loadgen pool`.

process   thread     does                                                   owns
manager   main       pings, decides, starts and ends runners; signals       the runners' pipes
          queue      looks at the queue, ends what was left                 a session
          schedules  fires what is due                                      a session
runner    see orchestrator.nightly.runner
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from loadgen.cli.allowed import HostPermissions
from loadgen.cli.away import run_in_thread
from loadgen.cli.common import echo
from loadgen.cli.duration import duration_s
from loadgen.cli.main import GlobalOptions
from loadgen.cli.signals import noted_signals
from loadgen.cli.tables import ensure_tables
from loadgen.cli.unclaimed_runs import notify_unclaimed_runs
from loadgen.clock import SystemClock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.retry import RetryPolicy
from loadgen.control.session import ControlSession
from loadgen.errors import UsageError
from loadgen.log import LINE_LIMIT, printable
from loadgen.units import counted
from orchestrator.nightly.attempt import LOADGEN_COMMAND
from orchestrator.nightly.capabilities import capabilities, runner_identity
from orchestrator.nightly.pool import AT_ONCE, PoolManager
from orchestrator.nightly.pool_size import PoolRules
from orchestrator.nightly.queue_maintenance import QueueMaintenance
from orchestrator.nightly.runner import Runner, RunnerSettings
from orchestrator.nightly.runner_process import RunnerProcess
from orchestrator.nightly.runner_protocol import serve_manager
from orchestrator.nightly.scheduler import run_scheduler

LEASE_MIN_S = 1.0
_JOIN_S = 15.0
_FIRST_CONTACT = 3  # attempts


def run_pool(
    place: ControlPlaneLocation,
    rules: PoolRules,
    labels: tuple[str, ...],
    words: Sequence[str],
    allowed: HostPermissions,
    *,
    share: bool,
    poll_s: float,
    grace_s: float,
) -> int:
    """Until a signal comes, and every runner has left. `words` is the command line of a runner. The exit code."""
    clock, stop = SystemClock(), threading.Event()
    patience = RetryPolicy(stop=stop, attempts=_FIRST_CONTACT, clock=clock)
    run_in_thread(lambda: ensure_tables(place, patience), name="pool")
    offers = capabilities(labels)
    upkeep = QueueMaintenance(ControlSession(place, role="queue"), offers, share=share, poll_s=poll_s, clock=clock)
    environment = _environment(place)

    def start(name: str) -> RunnerProcess:
        return RunnerProcess(name, words, environment, clock)

    def tell(line: str) -> None:
        with suppress(OSError):  # stderr may be gone; the pool goes on
            echo(f"{clock.utc_now():%Y-%m-%d %H:%M:%S} {printable(line, LINE_LIMIT)}", err=True)

    scheduler = threading.Thread(target=_tick, args=(place, stop, allowed, tell), name="schedules", daemon=True)
    manager = PoolManager(rules, start, upkeep.take_depth, clock=clock, tell=tell)
    with noted_signals() as received:
        upkeep.start()
        scheduler.start()
        echo(f"pool of {rules.min_runners} to {counted(rules.max_runners, 'runner')}: {' '.join(offers)}", err=True)
        try:
            manager.run(received, grace_s=grace_s)
        finally:
            stop.set()
            upkeep.stop()
            if len(received) < AT_ONCE:
                upkeep.join()
                scheduler.join(_JOIN_S)
    return 0 if len(received) < AT_ONCE else 128 + received[0]


def run_runner(
    place: ControlPlaneLocation, labels: tuple[str, ...], settings: RunnerSettings, *, grace_s: float
) -> None:
    """Until the manager, a signal or the registry says that it is enough."""
    runner = Runner(lambda role: ControlSession(place, role=role), runner_identity(place, labels), settings)
    with noted_signals() as received:
        runner.start()
        serve_manager(runner, received, grace_s=grace_s)
    if runner.error is not None:
        raise runner.error


def runner_command(given: Mapping[str, Any], allowed: HostPermissions) -> list[str]:
    """The command line of a runner, from the options of its pool."""
    if duration_s(given["lease"], "--lease") < LEASE_MIN_S or duration_s(given["poll"], "--poll") <= 0:
        raise UsageError("--lease and --poll are too short", remedy="Leave them out, or write --lease 60s --poll 5s.")
    words = [*LOADGEN_COMMAND, "pool", "runner", *(f"--labels={text}" for text in given["labels"])]
    words += [f"--{name}={given[name]}" for name in ("lease", "poll", "grace")]
    words += [f"--output-dir={given['output_dir']}", *allowed.words]
    words += ["--share-warehouse"] if given["share_warehouse"] else []
    return words if given["program"] is None else [*words, f"--program={given['program']}"]


def _environment(place: ControlPlaneLocation) -> dict[str, str]:
    """Of runners: where the tables are, and how much to log."""
    options = click.get_current_context().find_object(GlobalOptions) or GlobalOptions()
    level = "debug" if options.debug else options.log_level
    return {**os.environ, **place.to_environment(), "LOADGEN_LOG_LEVEL": level}


def _tick(
    place: ControlPlaneLocation, stop: threading.Event, allowed: HostPermissions, tell: Callable[[str], None]
) -> None:
    session, patience = ControlSession(place, role="schedules"), RetryPolicy(stop=stop, attempts=1)

    def look_at_queue() -> None:
        for one in notify_unclaimed_runs(session, patience, allowed, tell):
            tell(f"{one.queue_id} waits: {one.reason}")

    try:
        run_scheduler(session, stop, then=look_at_queue)
    finally:
        session.close()
