"""`loadgen pool`: runners on this machine that do what is queued."""

from __future__ import annotations

import json
import os
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import duration_s, echo, noted_signals, parse_labels, run_in_thread, unreadable_as_json
from loadgen.cli.main import GlobalOptions
from loadgen.cli.options import (
    Command,
    allow_options,
    control_options,
    format_option,
    idle_poll_option,
    output_dir_option,
    with_control_session,
)
from loadgen.clock import SystemClock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.errors import UsageError
from loadgen.log import LINE_LIMIT, printable
from loadgen.model.warehouse import IDLE_POLL_S, look_credits_per_day
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import counted, format_duration_s
from orchestrator.nightly.attempt import LOADGEN_COMMAND
from orchestrator.nightly.pool import AT_ONCE, PoolManager, PoolRules, RunnerProcess, serve_manager
from orchestrator.nightly.queue import (
    HostPermissions,
    PollPace,
    QueueMaintenance,
    default_connection,
    notify_unclaimed_runs,
)
from orchestrator.nightly.runner import Runner, RunnerSettings, capabilities, runner_identity
from orchestrator.nightly.scheduler import SchedulerHooks, run_scheduler

if TYPE_CHECKING:
    from loadgen.control.tables.pool_workers import PoolWorker


@click.group(epilog="\b\nExample:\n  loadgen pool run -c prod --max 4 --labels zone=eu\n  loadgen pool stats -c prod")
def pool() -> None:
    """Execute queued runs on this machine, beside pools on other machines."""


def _runner_options(command: Command) -> Command:
    """What a pool passes on to its runners."""
    options: Sequence[Callable[[Command], Command]] = (
        click.option("--labels", metavar="KEY=VALUE", multiple=True, help="What the runners offer: zone=eu,disk=ssd."),
        click.option(
            "--lease",
            default="60s",
            show_default=True,
            metavar="TIME",
            help="Time after which the run of a dead runner is given to another.",
        ),
        click.option(
            "--poll", default="5s", show_default=True, metavar="TIME", help="How often to look at the queue for runs."
        ),
        click.option(
            "--grace",
            default="300s",
            show_default=True,
            metavar="TIME",
            help="Time for running runs to end after SIGTERM or Ctrl-C.",
        ),
        output_dir_option("Files of a run go to DIR/<run id>."),
        click.option(
            "--share-warehouse",
            is_flag=True,
            help="Let several runs measure on one warehouse at the same time; their results say so.",
        ),
        allow_options(),
        click.option("--program", hidden=True, help="The program that executes a run, instead of this loadgen."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@pool.command("run", epilog="\b\nExample:\n  loadgen pool run -c prod --min 1 --max 4 --labels zone=eu,disk=ssd")
@click.option(
    "--min", "least", type=click.IntRange(0, 1000), default=1, show_default=True, help="Minimum number of runners."
)
@click.option(
    "--max", "most", type=click.IntRange(1, 1000), default=4, show_default=True, help="Maximum number of runners."
)
@click.option(
    "--scale-up-at",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Start another runner while N runs wait of which it could execute one.",
)
@idle_poll_option(
    "How often to look while nothing is due, so that the control plane's warehouse suspends itself. Not with an"
    " embedded control plane."
)
@click.option("--idle", default="300s", show_default=True, metavar="TIME", help="End a surplus runner after this time.")
@click.option(
    "--max-age",
    default="3600s",
    show_default=True,
    metavar="TIME",
    help="Replace runners of this age that have executed a run.",
)
@click.option(
    "--max-runs", type=click.IntRange(1), default=1000, show_default=True, help="Replace runners after N runs."
)
@_runner_options
@control_options
def run(
    least: int,
    most: int,
    scale_up_at: int,
    idle: str,
    max_age: str,
    max_runs: int,
    idle_poll: str,
    connection: str | None,
    database: str | None,
    schema: str | None,
    warehouse: str | None,
    **runner: Any,
) -> int:
    """Keep a pool of runners that execute queued runs and fire schedules.

    More runners while many runs wait, fewer when there is nothing to do; dead ones are replaced, old ones recycled. On
    one warehouse one run measures at a time, unless --share-warehouse is given.

    While nothing is due, the pool looks once per --idle-poll, at the next fire of a schedule and when a queued run
    comes due; a run that is queued meanwhile waits for that.

    SIGTERM and Ctrl-C: nothing new is begun, runs under way have --grace to end, then they are stopped and queued
    again; a second signal queues them again within seconds, a third ends at once.

    Queued scenarios are data: they may use the pool's connection, and of this host what the options --allow-… name. A
    run that asks for more becomes FAILED; a notify.command that is not allowed is not started. Every event is a line
    on stderr.
    """
    from loadgen.cli.options import embedded_server_if_needed, resolve_target
    from orchestrator.nightly.pool import PoolRules
    from orchestrator.run_folder import make_runs_folder

    rules = PoolRules(
        min_runners=least,
        max_runners=most,
        scale_up_at=scale_up_at,
        idle_s=duration_s(idle, "--idle"),
        max_age_s=duration_s(max_age, "--max-age"),
        max_runs=max_runs,
    )
    labels = parse_labels(runner["labels"], "--labels")
    grace_s = duration_s(runner["grace"], "--grace")
    make_runs_folder(runner["output_dir"])
    place = resolve_target(None, connection, database=database, schema=schema, warehouse=warehouse).place
    allowed = HostPermissions.of_options(runner, place.connection or default_connection())
    words = runner_command(runner, allowed)
    share, poll_s = runner["share_warehouse"], duration_s(runner["poll"], "--poll")
    idle_poll_s = duration_s(idle_poll, "--idle-poll")
    with embedded_server_if_needed(place.connection):  # only then an embedded connection has an address
        pace = PollPace(poll_s=poll_s, idle_poll_s=poll_s if place.profile().is_embedded else idle_poll_s)
        return run_pool(place, rules, labels, words, allowed, share=share, pace=pace, grace_s=grace_s)


@pool.command("runner", hidden=True, epilog="\b\nExample:\n  loadgen pool runner -c prod --labels zone=eu")
@_runner_options
@control_options
def runner(
    labels: Sequence[str],
    lease: str,
    poll: str,
    grace: str,
    output_dir: Path,
    share_warehouse: bool,
    program: str | None,
    connection: str | None,
    database: str | None,
    schema: str | None,
    warehouse: str | None,
    **allow: Any,
) -> None:
    """Be one runner of a pool; its manager talks to it by stdin and stdout."""
    from loadgen.cli.options import resolve_target
    from orchestrator.nightly.attempt import LOADGEN_COMMAND
    from orchestrator.nightly.runner import RunnerSettings

    settings = RunnerSettings(
        runs_folder=output_dir.resolve(),
        lease_s=duration_s(lease, "--lease"),
        poll_s=duration_s(poll, "--poll"),
        share=share_warehouse,
        options=("--from-queue", *HostPermissions.of_options(allow).words),
        program=LOADGEN_COMMAND if program is None else shlex.split(program),
    )
    place = resolve_target(None, connection, database=database, schema=schema, warehouse=warehouse).place
    run_runner(place, parse_labels(labels, "--labels"), settings, grace_s=duration_s(grace, "--grace"))


@pool.command("stats", epilog="\b\nExample:\n  loadgen pool stats -c prod --format json")
@control_options
@format_option
def stats(output: str, **place: str | None) -> None:
    """Show the runners of all pools: idle or busy, and the attempts of the last week."""
    found = with_control_session(_stats, name="pool", **place)
    if output == "json":
        echo(json.dumps(found, indent=2))
        return
    for error in found["unreadable"]:
        echo(f"warning: row {printable(error['id'], 100)} of POOL_WORKERS is unreadable: {error['reason']}", err=True)
    echo(
        f"{counted(found['total_workers'], 'runner')}: {found['idle_workers']} idle,"
        f" {found['processing_workers']} busy;"
        f" {counted(found['total_completed'], 'attempt')} completed, {found['total_failed']} failed"
    )
    if (per_day := found["idle_credits_per_day"]) is not None:
        echo(f"an idle pool costs about {per_day:.1f} credits a day with --idle-poll {format_duration_s(IDLE_POLL_S)}")
    for worker_id, worker in found["workers"].items():
        echo(f"  {printable(worker_id, 100)}  {worker['status']}  {printable(worker['current_run'] or 'idle')}")


def _stats(session: ControlSession, patience: RetryPolicy) -> dict[str, Any]:
    from loadgen.control.tables import pool_workers
    from loadgen.model.nightly import PoolWorkerStatus

    living: list[PoolWorker] = []
    unreadable: list[dict[str, str]] = []
    for status in (PoolWorkerStatus.ONLINE, PoolWorkerStatus.DRAINING):
        token: str | None = None
        while True:
            page = pool_workers.page(session, patience, pool_workers.PAGE_MAX, token=token, status=status)
            living += page.workers
            unreadable += unreadable_as_json(page.workers)
            token = page.next_token
            if token is None:
                break
    completed, failed = pool_workers.totals(session, patience)
    processing = sum(worker.current_run is not None for worker in living)
    return {
        "total_workers": len(living),
        "idle_workers": len(living) - processing,
        "processing_workers": processing,
        "total_completed": completed,
        "total_failed": failed,
        "idle_credits_per_day": None if session.place.profile().is_embedded else look_credits_per_day(IDLE_POLL_S),
        "workers": {
            worker.identity.worker_id: {
                "status": worker.status.value,
                "current_run": worker.current_run,
                "completed": worker.completed,
                "failed": worker.failed,
            }
            for worker in living
        },
        "unreadable": unreadable,
    }


def idle_cost(warehouse: str, pace: PollPace) -> str:
    """What an idle pool costs, in a line."""
    return (
        f"while nothing is queued, one look per {format_duration_s(pace.idle_poll_s)} keeps {printable(warehouse, 80)}"
        f" running for about {pace.credits_per_day():.1f} credits a day (X-Small); with runs queued, 1 credit an hour"
    )


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
    pace: PollPace,
    grace_s: float,
) -> int:
    """Until a signal comes, and every runner has left. `words` is the command line of a runner. The exit code."""
    clock, stop = SystemClock(), threading.Event()
    patience = RetryPolicy(stop=stop, attempts=_FIRST_CONTACT, clock=clock)
    from loadgen.control.setup.installer import ensure_tables

    run_in_thread(lambda: ensure_tables(place, patience), name="pool")
    offers = capabilities(labels)
    upkeep = QueueMaintenance(ControlSession(place, role="queue"), offers, share=share, pace=pace, clock=clock)
    environment = _environment(place)

    def start(name: str) -> RunnerProcess:
        return RunnerProcess(name, words, environment, clock)

    def tell(line: str) -> None:
        with suppress(OSError):  # stderr may be gone; the pool goes on
            echo(f"{clock.utc_now():%Y-%m-%d %H:%M:%S} {printable(line, LINE_LIMIT)}", err=True)

    scheduler = threading.Thread(target=_tick, args=(place, stop, upkeep, allowed, tell), name="schedules", daemon=True)
    manager = PoolManager(
        rules,
        start,
        upkeep.take_depth,
        clock=clock,
        idle_beat_s=upkeep.idle_beat_s,
        release=upkeep.release,
        tell=tell,
    )
    with noted_signals() as received:
        upkeep.start()
        scheduler.start()
        echo(f"pool of {rules.min_runners} to {counted(rules.max_runners, 'runner')}: {' '.join(offers)}", err=True)
        if pace.idle_poll_s > pace.poll_s:
            echo(idle_cost(place.warehouse, pace), err=True)
        try:
            manager.run(received, grace_s=grace_s)
        finally:
            stop.set()
            upkeep.stop()
            if len(received) < AT_ONCE:
                upkeep.join(_JOIN_S)
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
    place: ControlPlaneLocation,
    stop: threading.Event,
    upkeep: QueueMaintenance,
    allowed: HostPermissions,
    tell: Callable[[str], None],
) -> None:
    session, patience = ControlSession(place, role="schedules"), RetryPolicy(stop=stop, attempts=1)

    def look_at_queue() -> None:
        if not upkeep.open_runs:
            return
        for one in notify_unclaimed_runs(session, patience, allowed, tell):
            tell(f"{one.queue_id} waits: {one.reason}")

    try:
        hooks = SchedulerHooks(idle_s=upkeep.idle_beat_s, then=look_at_queue, fired=upkeep.wake)
        run_scheduler(session, stop, hooks=hooks)
    finally:
        session.close()
