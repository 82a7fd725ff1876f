"""The work behind `loadgen pool`.

process   thread     does                                                   owns
manager   main       pings, decides, starts and ends runners; signals       the runners' pipes
          queue      looks at the queue, ends what was left                 a session
          schedules  fires what is due                                      a session
runner    see orchestrator.pool.runner
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from loadgen.cli.allowed import Allowed
from loadgen.cli.away import away_from_main_thread
from loadgen.cli.common import echo
from loadgen.cli.duration import duration_s
from loadgen.cli.main import GlobalOptions
from loadgen.cli.signals import noted_signals
from loadgen.cli.tables import ensure_tables
from loadgen.cli.waiting import tell_stranded
from loadgen.clock import SystemClock
from loadgen.control.place import ControlPlace
from loadgen.control.retry import Patience
from loadgen.control.session import ControlSession
from loadgen.errors import UsageError
from loadgen.log import LINE_LIMIT, printable
from loadgen.units import counted
from orchestrator.pool.attempt import LOADGEN, STOP_S
from orchestrator.pool.attend import attend
from orchestrator.pool.child import RunnerChild
from orchestrator.pool.decisions import PoolRules
from orchestrator.pool.manager import PoolManager
from orchestrator.pool.offers import capabilities, identity
from orchestrator.pool.runner import Runner, RunnerSettings
from orchestrator.pool.upkeep import Upkeep
from orchestrator.scheduler import keep_ticking

LEASE_MIN_S = 1.0
_JOIN_S = 15.0
_FIRST_CONTACT = 3  # attempts


def keep_pool(
    place: ControlPlace,
    rules: PoolRules,
    labels: tuple[str, ...],
    words: Sequence[str],
    allowed: Allowed,
    *,
    share: bool,
    poll_s: float,
    grace_s: float,
) -> None:
    """Until a signal comes, and everybody has left. `words` is the command line of a runner."""
    clock, stop = SystemClock(), threading.Event()
    patience = Patience(stop=stop, attempts=_FIRST_CONTACT, clock=clock)
    away_from_main_thread(lambda: ensure_tables(place, patience), name="pool")
    offers = capabilities(labels)
    upkeep = Upkeep(ControlSession(place, role="queue"), offers, share=share, poll_s=poll_s, clock=clock)
    environment = _environment(place)

    def start(name: str) -> RunnerChild:
        return RunnerChild(name, words, environment, clock)

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
            manager.run(received, leave_s=grace_s + STOP_S)
        finally:
            stop.set()
            upkeep.stop()
            scheduler.join(_JOIN_S)


def be_runner(place: ControlPlace, labels: tuple[str, ...], settings: RunnerSettings, *, grace_s: float) -> None:
    """Until the manager, a signal or the registry says that it is enough."""
    runner = Runner(lambda role: ControlSession(place, role=role), identity(place, labels), settings)
    with noted_signals() as received:
        runner.start()
        attend(runner, received, grace_s=grace_s)
    if runner.error is not None:
        raise runner.error


def runner_words(given: Mapping[str, Any], allowed: Allowed) -> list[str]:
    """The command line of a runner, from the options of its pool."""
    if duration_s(given["lease"], "--lease") < LEASE_MIN_S or duration_s(given["poll"], "--poll") <= 0:
        raise UsageError("--lease and --poll are too short", remedy="Leave them out, or write --lease 60s --poll 5s.")
    words = [*LOADGEN, "pool", "runner", *(f"--labels={text}" for text in given["labels"])]
    words += [f"--{name}={given[name]}" for name in ("lease", "poll", "grace")]
    words += [f"--output-dir={given['output_dir']}", *allowed.words]
    words += ["--share-warehouse"] if given["share_warehouse"] else []
    return words if given["program"] is None else [*words, f"--program={given['program']}"]


def _environment(place: ControlPlace) -> dict[str, str]:
    """Of runners: where the tables are, and how much to log."""
    options = click.get_current_context().find_object(GlobalOptions) or GlobalOptions()
    level = "debug" if options.debug else options.log_level
    return {**os.environ, **place.to_environment(), "LOADGEN_LOG_LEVEL": level}


def _tick(place: ControlPlace, stop: threading.Event, allowed: Allowed, tell: Callable[[str], None]) -> None:
    session, patience = ControlSession(place, role="schedules"), Patience(stop=stop, attempts=1)

    def look_at_queue() -> None:
        for one in tell_stranded(session, patience, allowed, tell):
            tell(f"{one.queue_id} waits: {one.reason}")

    try:
        keep_ticking(session, stop, then=look_at_queue)
    finally:
        session.close()
