"""`loadgen pool`: runners on this machine that execute queued runs. `loadgen workers`: the runners of all pools."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import (
    duration_s,
    echo,
    parse_labels,
    parse_status,
    text_table,
    unreadable_as_json,
    utc_stamp,
    utc_text,
    warn_unreadable,
)
from loadgen.cli.main import GlobalOptions
from loadgen.cli.options import (
    Command,
    allow_options,
    control_options,
    count_option,
    embedded_server_if_needed,
    format_option,
    idle_poll_option,
    location_arguments,
    output_dir_option,
    with_control_session,
)
from loadgen.cli.signals import noted_signals
from loadgen.clock import SystemClock
from loadgen.control.location import ControlPlaneLocation, resolve_target
from loadgen.control.session import ControlSession
from loadgen.log import LINE_LIMIT, printable
from loadgen.model.nightly import PoolWorkerStatus
from loadgen.model.warehouse import IDLE_POLL_S, look_credits_per_day
from loadgen.process import user_and_host
from loadgen.snowflake.session import RetryPolicy
from loadgen.threads import run_in_thread
from loadgen.units import counted, format_duration_s
from orchestrator.nightly.attempt import LOADGEN_COMMAND
from orchestrator.nightly.pool import PoolRules
from orchestrator.nightly.pool_service import PoolSettings, check_times, require_tables, serve_pool, serve_runner
from orchestrator.nightly.queue import HostPermissions, PollPace, default_connection, take_offline
from orchestrator.nightly.runner import RunnerSettings, capabilities
from orchestrator.run_folder import make_runs_folder

if TYPE_CHECKING:
    from loadgen.control.tables.pool_workers import PoolStats, PoolWorker, PoolWorkerPage


@click.group(epilog="\b\nExample:\n  loadgen pool run -c prod --max 4 --labels zone=eu\n  loadgen pool stats -c prod")
def pool() -> None:
    """Execute queued runs on this machine. Other machines may have pools for the same queue."""


def _runner_options(command: Command) -> Command:
    """Options that a pool passes on to its runners."""
    options: Sequence[Callable[[Command], Command]] = (
        click.option("--labels", metavar="KEY=VALUE", multiple=True, help="Labels of the runners: zone=eu,disk=ssd."),
        click.option(
            "--lease",
            default="60s",
            show_default=True,
            metavar="TIME",
            help="Time after which another runner may take the run of a lost runner.",
        ),
        click.option(
            "--poll", default="5s", show_default=True, metavar="TIME", help="Interval of polls for queued runs."
        ),
        click.option(
            "--grace",
            default="300s",
            show_default=True,
            metavar="TIME",
            help="Time for running runs to finish after SIGTERM or Ctrl-C.",
        ),
        output_dir_option("Files of a run go to DIR/<run id>."),
        click.option(
            "--share-warehouse",
            is_flag=True,
            help="Allow several runs to measure on one warehouse at the same time; their results say so.",
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
    help="Start another runner if at least N runs wait, and it can execute one of them.",
)
@idle_poll_option(
    "Interval of polls while nothing is due, so that the warehouse of the control plane can suspend. Not used with an"
    " embedded control plane."
)
@click.option(
    "--idle", default="300s", show_default=True, metavar="TIME", help="End a runner that is not needed after this time."
)
@click.option(
    "--max-age",
    default="3600s",
    show_default=True,
    metavar="TIME",
    help="Replace runners of this age, if they have executed a run.",
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
    **given: Any,
) -> int:
    """Keep a pool of runners that execute queued runs and fire schedules.

    The pool starts runners while many runs wait, and ends idle ones; it replaces lost runners, and recycles old ones.
    On one warehouse one run measures at a time, unless --share-warehouse is given.

    While nothing is due, the pool polls once per --idle-poll, at the next fire of a schedule, and when a queued run is
    due; a run that is queued meanwhile waits for the next poll.

    SIGTERM and Ctrl-C: nothing new is begun, runs under way have --grace to end, then they are stopped and queued
    again; a second signal queues them again within seconds, a third ends at once.

    Queued scenarios are data: they may use the pool's connection, and those resources of this host that --allow-…
    name. A run that asks for more becomes FAILED; a notify.command that is not allowed is not started. Every event is
    a line on stderr.
    """
    rules = PoolRules(
        min_runners=least,
        max_runners=most,
        scale_up_at=scale_up_at,
        idle_s=duration_s(idle, "--idle"),
        max_age_s=duration_s(max_age, "--max-age"),
        max_runs=max_runs,
    )
    labels, grace_s = parse_labels(given["labels"], "--labels"), duration_s(given["grace"], "--grace")
    poll_s, idle_poll_s = duration_s(given["poll"], "--poll"), duration_s(idle_poll, "--idle-poll")
    make_runs_folder(given["output_dir"])
    place = resolve_target(None, **location_arguments(given)).place
    allowed = HostPermissions.of_options(given, place.connection or default_connection())
    command = tuple(runner_command(given, allowed))
    with embedded_server_if_needed(place.connection):  # only then an embedded connection has an address
        settings = PoolSettings(
            rules=rules,
            offers=capabilities(labels),
            runner_command=command,
            runner_environment=_environment(place),
            allowed=allowed,
            share=given["share_warehouse"],
            pace=PollPace.of(place, poll_s, idle_poll_s),
            grace_s=grace_s,
        )
        return run_pool(place, settings)


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
    **given: Any,
) -> None:
    """Run one runner of a pool. Its manager communicates with it through stdin and stdout."""
    settings = RunnerSettings(
        runs_folder=output_dir.resolve(),
        lease_s=duration_s(lease, "--lease"),
        poll_s=duration_s(poll, "--poll"),
        share=share_warehouse,
        options=("--from-queue", *HostPermissions.of_options(given).words),
        program=LOADGEN_COMMAND if program is None else shlex.split(program),
    )
    place = resolve_target(None, **location_arguments(given)).place
    words, grace_s = parse_labels(labels, "--labels"), duration_s(grace, "--grace")
    with noted_signals() as received:
        serve_runner(place, words, settings, received, grace_s=grace_s)


@pool.command("stats", epilog="\b\nExample:\n  loadgen pool stats -c prod --format json")
@control_options
@format_option
def stats(output: str, **place: str | None) -> None:
    """Show the runners of all pools: idle or busy, and the attempts of the last week."""
    from loadgen.control.tables import pool_workers

    def read(session: ControlSession, retries: RetryPolicy) -> tuple[PoolStats, bool]:
        return pool_workers.read_stats(session, retries), session.place.profile().is_embedded

    found, is_embedded = with_control_session(read, name="pool", **place)
    per_day = None if is_embedded else look_credits_per_day(IDLE_POLL_S)
    if output == "json":
        echo(json.dumps(_stats_as_json(found, per_day), indent=2))
        return
    warn_unreadable(found.workers)
    echo(
        f"{counted(len(found.workers), 'runner')}: {len(found.workers) - found.busy} idle, {found.busy} busy;"
        f" {counted(found.completed, 'attempt')} completed, {found.failed} failed"
    )
    if per_day is not None:
        echo(f"an idle pool costs about {per_day:.1f} credits a day with --idle-poll {format_duration_s(IDLE_POLL_S)}")
    for worker in found.workers:
        doing = printable(worker.current_run or "idle")
        echo(f"  {printable(worker.identity.worker_id, 100)}  {worker.status.value}  {doing}")


def _stats_as_json(found: PoolStats, idle_credits_per_day: float | None) -> dict[str, Any]:
    return {
        "total_workers": len(found.workers),
        "idle_workers": len(found.workers) - found.busy,
        "processing_workers": found.busy,
        "total_completed": found.completed,
        "total_failed": found.failed,
        "idle_credits_per_day": idle_credits_per_day,
        "workers": {
            worker.identity.worker_id: {
                "status": worker.status.value,
                "current_run": worker.current_run,
                "completed": worker.completed,
                "failed": worker.failed,
            }
            for worker in found.workers
        },
        "unreadable": unreadable_as_json(found.workers),
    }


def idle_cost(warehouse: str, pace: PollPace) -> str:
    """The cost of an idle pool, in one line."""
    return (
        f"while nothing is queued, one poll per {format_duration_s(pace.idle_poll_s)} keeps {printable(warehouse, 80)}"
        f" running for about {pace.credits_per_day():.1f} credits a day (X-Small); with runs queued, 1 credit an hour"
    )


def run_pool(place: ControlPlaneLocation, settings: PoolSettings) -> int:
    """Serve the pool, and print its events. Returns the exit code."""
    clock = SystemClock()
    run_in_thread(lambda: require_tables(place, clock), name="pool")

    def tell(line: str) -> None:
        with suppress(OSError):  # stderr may be closed; the pool continues
            echo(f"{clock.utc_now():%Y-%m-%d %H:%M:%S} {printable(line, LINE_LIMIT)}", err=True)

    rules, pace = settings.rules, settings.pace
    with noted_signals() as received:
        offers = " ".join(settings.offers)
        echo(f"pool of {rules.min_runners} to {counted(rules.max_runners, 'runner')}: {offers}", err=True)
        if pace.idle_poll_s > pace.poll_s:
            echo(idle_cost(place.warehouse, pace), err=True)
        return serve_pool(place, settings, received, tell, clock=clock)


def runner_command(given: Mapping[str, Any], allowed: HostPermissions) -> list[str]:
    """The command line of a runner, from the options of its pool."""
    check_times(duration_s(given["lease"], "--lease"), duration_s(given["poll"], "--poll"))
    words = [*LOADGEN_COMMAND, "pool", "runner", *(f"--labels={text}" for text in given["labels"])]
    words += [f"--{name}={given[name]}" for name in ("lease", "poll", "grace")]
    words += [f"--output-dir={given['output_dir']}", *allowed.words]
    words += ["--share-warehouse"] if given["share_warehouse"] else []
    return words if given["program"] is None else [*words, f"--program={given['program']}"]


def _environment(place: ControlPlaneLocation) -> dict[str, str]:
    """The environment of runners: location of the control plane, and log level."""
    options = click.get_current_context().find_object(GlobalOptions) or GlobalOptions()
    level = "debug" if options.debug else options.log_level
    return {**os.environ, **place.to_environment(), "LOADGEN_LOG_LEVEL": level}


# --- `loadgen workers`: the runners of all pools, from POOL_WORKERS --------------------------------------------------


@click.group(
    epilog="\b\nExample:\n  loadgen workers list --status ONLINE --label zone=eu\n  loadgen workers drain bench-7-1203"
)
def workers() -> None:
    """List the runners of all pools, show one, drain it, or mark it as offline."""


@workers.command("list", epilog="\b\nExample:\n  loadgen workers list -c prod --status ONLINE --label zone=eu")
@click.option("--status", metavar="STATUS", help="Only runners with this status: ONLINE, DRAINING or OFFLINE.")
@click.option(
    "--label", "labels", metavar="KEY=VALUE", multiple=True, help="Only runners with this label. May be repeated."
)
@count_option("--page-size", default=50, maximum=100, help_text="Maximum number of runners.")
@click.option("--page-token", metavar="TOKEN", help="Continue after the page that printed this token.")
@control_options
@format_option
def list_workers(
    status: str | None,
    labels: Sequence[str],
    page_size: int,
    page_token: str | None,
    output: str,
    **place: str | None,
) -> None:
    """List runners. A runner without a heartbeat for 30 s is OFFLINE; after a week it is deleted."""
    from loadgen.control.tables import pool_workers

    only, words = None if status is None else parse_status(status, PoolWorkerStatus), parse_labels(labels, "--label")
    page = with_control_session(
        lambda session, retries: pool_workers.page(
            session, retries, page_size, token=page_token, status=only, labels=words
        ),
        name="workers",
        **place,
    )
    if output == "json":
        echo(json.dumps(_page_as_json(page), indent=2))
        return
    warn_unreadable(page.workers)
    echo(_page_as_text(page))


@workers.command("show", epilog="\b\nExample:\n  loadgen workers show bench-7-1203 -c prod")
@click.argument("worker_id", metavar="ID")
@control_options
@format_option
def show_worker(worker_id: str, output: str, **place: str | None) -> None:
    """Show one runner. ID may be shortened."""
    from loadgen.control.tables import pool_workers

    worker = with_control_session(
        lambda session, retries: pool_workers.find(session, retries, worker_id), name="workers", **place
    )
    echo(json.dumps(_worker_as_json(worker), indent=2) if output == "json" else _worker_as_text(worker))


@workers.command("drain", epilog="\b\nExample:\n  loadgen workers drain bench-7-1203 -c prod")
@click.argument("worker_id", metavar="ID")
@control_options
@format_option
def drain(worker_id: str, output: str, **place: str | None) -> None:
    """Let a runner finish its run, without a time limit, and end. It takes no new run.

    Its pool starts another runner when it needs one. To end the pool, send it SIGTERM.
    """
    from loadgen.control.tables import pool_workers

    def ask(session: ControlSession, retries: RetryPolicy) -> PoolWorker:
        found = pool_workers.find(session, retries, worker_id)
        pool_workers.drain(session, retries, found.identity.worker_id)
        return pool_workers.find(session, retries, found.identity.worker_id)

    _print_worker(with_control_session(ask, name="workers", **place), output)


@workers.command("offline", epilog="\b\nExample:\n  loadgen workers offline bench-7-1203 -c prod")
@click.argument("worker_id", metavar="ID")
@control_options
@format_option
def offline(worker_id: str, output: str, **place: str | None) -> None:
    """Mark a runner as offline. Other runners may take its run at once, instead of after its lease expires.

    For hosts that are lost. A runner that is alive loses its run, and registers again with its next heartbeat.
    """
    worker = with_control_session(
        lambda session, retries: take_offline(session, retries, worker_id, user_and_host()), name="workers", **place
    )
    _print_worker(worker, output)


def _print_worker(worker: PoolWorker, output: str) -> None:
    text = printable(f"{worker.identity.worker_id} is {worker.status}")
    echo(json.dumps(_worker_as_json(worker), indent=2) if output == "json" else text)


def _page_as_text(page: PoolWorkerPage) -> str:
    if not page.workers:
        return "no runners found" if page.total == 0 else "there are no more runners"
    head = ("ID", "STATUS", "RUN", "COMPLETED", "FAILED", "HEARTBEAT (UTC)", "LABELS")
    rows = [
        (
            printable(worker.identity.worker_id, 100),
            worker.status.value,
            worker.current_run or "-",
            str(worker.completed),
            str(worker.failed),
            utc_text(worker.last_beat_at),
            printable(" ".join(worker.identity.labels) or "-", 200),
        )
        for worker in page.workers
    ]
    lines = [text_table(head, rows, right=(3, 4))]
    if page.next_token is not None:
        lines.append(f"of {page.total}; more with --page-token {printable(page.next_token, 100)}")
    return "\n".join(lines)


def _page_as_json(page: PoolWorkerPage) -> dict[str, Any]:
    return {
        "workers": [_worker_as_json(worker) for worker in page.workers],
        "unreadable": unreadable_as_json(page.workers),
        "next_page_token": page.next_token,
        "total_count": page.total,
    }


def _worker_as_text(worker: PoolWorker) -> str:
    return "\n".join(
        f"{name:<16}  {printable(' '.join(value) if isinstance(value, list) else str(value), 500)}"
        for name, value in _worker_as_json(worker).items()
        if value not in (None, [])
    )


def _worker_as_json(worker: PoolWorker) -> dict[str, Any]:
    me = worker.identity
    return {
        "worker_id": me.worker_id,
        "status": worker.status.value,
        "hostname": me.hostname,
        "pid": me.pid,
        "version": me.version,
        "task_queue": me.task_queue,
        "labels": list(me.labels),
        "capabilities": list(me.capabilities),
        "capacity": me.capacity,
        "current_run": worker.current_run,
        "total_completed": worker.completed,
        "total_failed": worker.failed,
        "registered_at": utc_stamp(worker.registered_at),
        "last_beat_at": utc_stamp(worker.last_beat_at),
        "deregistered_at": utc_stamp(worker.deregistered_at),
    }
