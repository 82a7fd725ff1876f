"""`loadgen workers`: the runners of all pools, as the registry knows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import echo, parse_labels, text_table, unreadable_as_json, user_and_host, warn_unreadable
from loadgen.cli.options import control_options, count_option, format_option, with_control_session
from loadgen.errors import UsageError
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.control.session import ControlSession
    from loadgen.control.tables.pool_workers import PoolWorker, PoolWorkerPage
    from loadgen.model.nightly import PoolWorkerStatus
    from loadgen.snowflake.session import RetryPolicy


@click.group(
    epilog="\b\nExample:\n  loadgen workers list --status ONLINE --label zone=eu\n  loadgen workers drain bench-7-1203"
)
def workers() -> None:
    """List the runners of all pools, show one, drain it, or mark it as gone."""


@workers.command("list", epilog="\b\nExample:\n  loadgen workers list -c prod --status ONLINE --label zone=eu")
@click.option("--status", metavar="STATUS", help="Only runners with this status: ONLINE, DRAINING or OFFLINE.")
@click.option(
    "--label", "labels", metavar="KEY=VALUE", multiple=True, help="Only runners with this label. May be repeated."
)
@count_option("--page-size", default=50, maximum=100, help_text="Maximum number of workers.")
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
    """List runners. One without a heartbeat for 30 s is OFFLINE, and is forgotten after a week."""
    from loadgen.control.tables import pool_workers

    only, words = None if status is None else _status(status), parse_labels(labels, "--label")
    page = with_control_session(
        lambda session, patience: pool_workers.page(
            session, patience, page_size, token=page_token, status=only, labels=words
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
def show(worker_id: str, output: str, **place: str | None) -> None:
    """Show one runner. ID may be shortened."""
    from loadgen.control.tables import pool_workers

    worker = with_control_session(
        lambda session, patience: pool_workers.find(session, patience, worker_id), name="workers", **place
    )
    echo(json.dumps(_as_json(worker), indent=2) if output == "json" else _as_text(worker))


@workers.command("drain", epilog="\b\nExample:\n  loadgen workers drain bench-7-1203 -c prod")
@click.argument("worker_id", metavar="ID")
@control_options
@format_option
def drain(worker_id: str, output: str, **place: str | None) -> None:
    """Let a runner finish its run, however long that takes, and leave. It takes no new run.

    Its pool starts another one when it needs one; end the pool itself with SIGTERM.
    """
    from loadgen.control.tables import pool_workers

    def ask(session: ControlSession, patience: RetryPolicy) -> PoolWorker:
        found = pool_workers.find(session, patience, worker_id)
        pool_workers.drain(session, patience, found.identity.worker_id)
        return pool_workers.find(session, patience, found.identity.worker_id)

    _print_asked(with_control_session(ask, name="workers", **place), output)


@workers.command("offline", epilog="\b\nExample:\n  loadgen workers offline bench-7-1203 -c prod")
@click.argument("worker_id", metavar="ID")
@control_options
@format_option
def offline(worker_id: str, output: str, **place: str | None) -> None:
    """Mark a runner as gone. Other runners may take its run at once, instead of after its lease.

    For hosts that will not come back. A runner that lives loses its run, and registers again with its next beat.
    """
    from loadgen.control.tables import pool_workers, run_queue_claims

    def say(session: ControlSession, patience: RetryPolicy) -> PoolWorker:
        found = pool_workers.find(session, patience, worker_id).identity.worker_id
        pool_workers.offline(session, patience, found)
        run_queue_claims.expire(session, patience, found, f"its runner was marked as gone by {user_and_host()}")
        return pool_workers.find(session, patience, found)

    _print_asked(with_control_session(say, name="workers", **place), output)


def _status(text: str) -> PoolWorkerStatus:
    from loadgen.model.nightly import PoolWorkerStatus

    try:
        return PoolWorkerStatus(text.upper())
    except ValueError:
        known = ", ".join(status.value for status in PoolWorkerStatus)
        raise UsageError(f"there is no status {printable(text, 40)!r}", remedy=f"Choose one of {known}.") from None


# --- as text and JSON ------------------------------------------------------------------------------------------------


def _print_asked(worker: PoolWorker, output: str) -> None:
    text = printable(f"{worker.identity.worker_id} is {worker.status}")
    echo(json.dumps(_as_json(worker), indent=2) if output == "json" else text)


def _page_as_text(page: PoolWorkerPage) -> str:
    if not page.workers:
        return "no runners found" if page.total == 0 else "there are no more runners"
    head = ("ID", "STATUS", "RUN", "COMPLETED", "FAILED", "LAST BEAT (UTC)", "LABELS")
    rows = [
        (
            printable(worker.identity.worker_id, 100),
            worker.status.value,
            worker.current_run or "-",
            str(worker.completed),
            str(worker.failed),
            worker.last_beat_at.isoformat(sep=" ", timespec="seconds"),
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
        "workers": [_as_json(worker) for worker in page.workers],
        "unreadable": unreadable_as_json(page.workers),
        "next_page_token": page.next_token,
        "total_count": page.total,
    }


def _as_text(worker: PoolWorker) -> str:
    return "\n".join(
        f"{name:<16}  {printable(' '.join(value) if isinstance(value, list) else str(value), 500)}"
        for name, value in _as_json(worker).items()
        if value not in (None, [])
    )


def _as_json(worker: PoolWorker) -> dict[str, Any]:
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
        "registered_at": _stamp(worker.registered_at),
        "last_beat_at": _stamp(worker.last_beat_at),
        "deregistered_at": _stamp(worker.deregistered_at),
    }


def _stamp(at: datetime | None) -> str | None:
    return None if at is None else f"{at.isoformat(timespec='milliseconds')}Z"
