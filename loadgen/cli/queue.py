"""`loadgen queue`: runs that the runners of a pool execute."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import (
    echo,
    fact_lines,
    parse_labels,
    parse_status,
    text_table,
    unreadable_as_json,
    utc_stamp,
    utc_text,
    warn,
    warn_unreadable,
)
from loadgen.cli.options import (
    ONLY_SCENARIOS,
    baseline_check_of,
    control_access,
    control_options,
    count_option,
    experiment_remedy,
    format_option,
    print_scenario_warnings,
    queue_options,
    with_control_session,
)
from loadgen.control.location import resolve_target
from loadgen.errors import UsageError
from loadgen.log import printable
from loadgen.model.nightly import QueueStatus
from loadgen.process import user_and_host

if TYPE_CHECKING:
    from loadgen.control.session import ControlSession, ParsedRows
    from loadgen.control.tables.run_attempts import AttemptRow
    from loadgen.control.tables.run_queue import QueuedRun
    from loadgen.model.nightly import BaselineCheck
    from loadgen.snowflake.session import RetryPolicy
    from orchestrator.nightly.queue import UnclaimedRun


LIMIT_MAX = 10_000


@click.group(epilog="\b\nExample:\n  loadgen queue add nightly.yaml --priority 5\n  loadgen queue show orders-7f3a")
def queue() -> None:
    """Queue runs for the runners of `loadgen pool run`: add, list, show, cancel, retry."""


@queue.command("add", epilog="\b\nExample:\n  loadgen queue add nightly.yaml -c prod --requires zone=eu --priority 5")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--idempotency-key", metavar="TEXT", help="Queue the run only once per key: the command can be repeated safely."
)
@click.option("--not-before", metavar="TIME", help="Earliest start: 2026-11-17T02:00, in UTC unless it has an offset.")
@queue_options
def add(
    file: Path,
    connection: str | None,
    priority: int,
    requires: Sequence[str],
    idempotency_key: str | None,
    not_before: str | None,
    baseline: str | None,
    confirm: bool,
    output: str,
    **parts: str | None,
) -> None:
    """Put a run of the scenario FILE into the queue.

    The queue stores the text of the scenario and of its value files: later changes of the files have no effect.
    Variables like ${NAME} are replaced now. Variables with a name like a secret, and addresses of `notify:`, stay
    references: they must be set where the run is executed, and the pool there must allow them (--allow-variable and
    others). --baseline and `notify:` work as in `loadgen run`.

    \b
    Exit code of the run, and the resulting status of the queued run:
      0, 5, 10, 11  COMPLETED: it has a result
      2             FAILED: it would fail again
      75            queued again: the warehouse is in use; no attempt is counted
      130, 143      CANCELLED: it was stopped
      others        tried again after a pause, five times in all, then EXHAUSTED
    """
    from loadgen.control.tables import run_queue
    from orchestrator.nightly.queue import enqueue, pack_scenario

    words, at = parse_labels(requires, "--requires"), None if not_before is None else _not_before(not_before)
    run_queue.check_key(idempotency_key)
    with experiment_remedy(ONLY_SCENARIOS):
        aim = resolve_target(file, connection, **parts)
    print_scenario_warnings(aim.loaded)
    assert aim.loaded is not None
    wanted = replace(
        pack_scenario(file, connection, aim.loaded),
        requires=words,
        priority=priority,
        judging=baseline_check_of(baseline, confirm, aim.place),
        idempotency_key=idempotency_key,
        not_before=at,
    )
    added = control_access(aim.place, "queue")(lambda session, retries: enqueue(session, retries, wanted))
    if output == "json":
        echo(json.dumps({"queue_id": added.queue_id, "added": added.is_new}, indent=2))
        return
    echo(f"queued {added.queue_id}" if added.is_new else f"already queued with this key: {added.queue_id}")


@queue.command("list", epilog="\b\nExample:\n  loadgen queue list -c prod --status EXHAUSTED")
@count_option("-n", "--limit", default=20, maximum=LIMIT_MAX, help_text="Maximum number of queued runs.")
@click.option("--status", metavar="STATUS", help="Only queued runs with this status, for example QUEUED.")
@control_options
@format_option
def list_queued(limit: int, status: str | None, output: str, **place: str | None) -> None:
    """List queued runs, newest first."""
    from loadgen.control.tables import run_queue
    from orchestrator.nightly.queue import find_unclaimed_runs

    only = None if status is None else parse_status(status, QueueStatus)

    def read(session: ControlSession, retries: RetryPolicy) -> tuple[ParsedRows[QueuedRun], tuple[UnclaimedRun, ...]]:
        found = retries.call(lambda: run_queue.newest(session, limit, status=only))
        return found, find_unclaimed_runs(session, retries)

    found, stuck = with_control_session(read, name="queue", **place)
    if output == "json":
        document = {"queue": [queued_as_json(row) for row in found], "unreadable": unreadable_as_json(found)}
        document["waiting"] = [{"queue_id": one.queue_id, "reason": one.reason} for one in stuck]
        echo(json.dumps(document, indent=2))
        return
    warn_unreadable(found)
    for one in stuck:
        warn(f"{one.queue_id} waits: {one.reason}")
    none = "there are no queued runs" if status is None else f"no queued run is {status.upper()}"
    echo(table(found) if found else none)


@queue.command("show", epilog="\b\nExample:\n  loadgen queue show orders-7f3a -c prod")
@click.argument("queue_id", metavar="ID")
@control_options
@format_option
def show(queue_id: str, output: str, **place: str | None) -> None:
    """Show a queued run and all its attempts. ID may be shortened."""
    from loadgen.control.tables import run_queue

    shown = with_control_session(
        lambda session, retries: run_queue.read_all(session, retries, queue_id), name="queue", **place
    )
    warn_unreadable(shown[2])
    echo(json.dumps(as_json(*shown), indent=2) if output == "json" else as_text(*shown))


@queue.command("cancel", epilog="\b\nExample:\n  loadgen queue cancel orders-7f3a -c prod")
@click.argument("queue_id", metavar="ID")
@control_options
@format_option
def cancel(queue_id: str, output: str, **place: str | None) -> None:
    """Cancel a queued run. A waiting run is cancelled at once; a running one is ended by its runner soon afterwards.

    A run that has ended is not changed.
    """
    from loadgen.control.tables import run_queue

    reason = f"cancelled by {user_and_host()}"

    def ask(session: ControlSession, retries: RetryPolicy) -> QueuedRun:
        return run_queue.cancel(session, retries, run_queue.find(session, retries, queue_id), reason)

    _print_asked(with_control_session(ask, name="queue", **place), reason, output)


@queue.command("retry", epilog="\b\nExample:\n  loadgen queue retry orders-7f3a -c prod")
@click.argument("queue_id", metavar="ID")
@control_options
@format_option
def retry(queue_id: str, output: str, **place: str | None) -> None:
    """Queue a FAILED, CANCELLED or EXHAUSTED run again, with all attempts."""
    from orchestrator.nightly.queue import retry_queued

    reason = f"tried again by {user_and_host()}"
    row = with_control_session(
        lambda session, retries: retry_queued(session, retries, queue_id, reason), name="queue", **place
    )
    _print_asked(row, reason, output)


def _print_asked(row: QueuedRun, reason: str, output: str) -> None:
    if output == "json":
        echo(json.dumps({**queued_as_json(row), "asked": row.follows(reason)}, indent=2))
        return
    left = "" if row.follows(reason) else ", and was not changed"
    echo(printable(f"{row.queue_id} is {row.status}{left}"))


def _not_before(text: str) -> datetime:
    """The earliest start, in naive UTC."""
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo is None else at.astimezone(UTC)).replace(tzinfo=None)
    except (ValueError, OverflowError):
        remedy = "Write --not-before 2026-11-17T02:00 (UTC), or with an offset: 2026-11-17T02:00+01:00."
        raise UsageError(f"--not-before {printable(text, 40)!r} is not a time", remedy=remedy) from None


def table(found: Sequence[QueuedRun]) -> str:
    head = ("ID", "STATUS", "PRIORITY", "ATTEMPTS", "EXIT", "CREATED (UTC)", "WHAT")
    rows = [
        (
            row.queue_id,
            row.status.value,
            str(row.priority),
            f"{row.attempts}/{row.max_attempts}",
            "-" if row.exit_code is None else str(row.exit_code),
            utc_text(row.created_at),
            _what(row),
        )
        for row in found
    ]
    return text_table(head, rows, right=(2, 3, 4))


def as_text(row: QueuedRun, judging: BaselineCheck, attempts: Sequence[AttemptRow]) -> str:
    facts = {
        "scenario": printable(row.name, 100),
        "status": row.status.value,
        "reason": None if row.reason is None else printable(row.reason, 500),
        "lease": None if row.lease_expired_s is None else f"expired {row.lease_expired_s} s ago",
        "exit code": None if row.exit_code is None else str(row.exit_code),
        "run": row.run_id,
        "priority": str(row.priority),
        "requires": printable(" ".join(row.requires), 500) or None,
        "connection": None if row.connection is None else printable(row.connection, 100),
        "target": printable(row.target, 200) or None,
        "judged by": printable(" ".join(judging.words), 200) or None,
        "attempts": _counted_attempts(row, len(attempts)),
        "key": None if row.idempotency_key == row.queue_id else printable(row.idempotency_key, 200),
        "created": utc_text(row.created_at),
        "not before": utc_text(row.available_at) if row.status is QueueStatus.QUEUED else None,
        "ended": utc_text(row.ended_at),
    }
    lines = [f"queued run {printable(row.queue_id)}", *fact_lines(facts)]
    return "\n".join([*lines, "", _attempts(attempts) if attempts else "no attempts yet"])


def _counted_attempts(row: QueuedRun, made: int) -> str:
    """The number of attempts. Attempts before a retry, and interrupted ones, do not count."""
    counted = f"{row.attempts} of {row.max_attempts}"
    return counted if row.attempts == made else f"{counted} counted, {made} in all"


def queued_as_json(row: QueuedRun) -> dict[str, Any]:
    return {
        "queue_id": row.queue_id,
        "idempotency_key": row.idempotency_key,
        "scenario": row.name,
        "status": row.status.value,
        "priority": row.priority,
        "requires": list(row.requires),
        "connection": row.connection,
        "target": row.target,
        "attempts": row.attempts,
        "max_attempts": row.max_attempts,
        "epoch": row.epoch,
        "owner": row.owner,
        "lease_expired_s": row.lease_expired_s,
        "run_id": row.run_id,
        "exit_code": row.exit_code,
        "reason": row.reason,
        "available_at": utc_stamp(row.available_at),
        "created_at": utc_stamp(row.created_at),
        "ended_at": utc_stamp(row.ended_at),
    }


def as_json(row: QueuedRun, judging: BaselineCheck, attempts: Sequence[AttemptRow]) -> dict[str, Any]:
    history = [
        {
            "attempt": attempt.number,
            "epoch": attempt.epoch,
            "owner": attempt.owner,
            "run_id": attempt.run_id,
            "status": attempt.status.value,
            "exit_code": attempt.exit_code,
            "reason": attempt.reason,
            "started_at": utc_stamp(attempt.started_at),
            "ended_at": utc_stamp(attempt.ended_at),
        }
        for attempt in attempts
    ]
    return {**queued_as_json(row), **asdict(judging), "history": history}


def _attempts(attempts: Sequence[AttemptRow]) -> str:
    head = ("#", "STATUS", "EXIT", "RUN", "BEGUN (UTC)", "BY", "REASON")
    rows = [
        (
            str(attempt.number),
            attempt.status.value,
            "-" if attempt.exit_code is None else str(attempt.exit_code),
            attempt.run_id or "-",
            utc_text(attempt.started_at),
            printable(attempt.owner, 100),
            printable(attempt.reason or "-", 200),
        )
        for attempt in attempts
    ]
    return text_table(head, rows, right=(0, 2))


def _what(row: QueuedRun) -> str:
    """The most important fact about a queued run in its status."""
    if row.is_under_way:
        stale = f"lease expired {row.lease_expired_s} s ago, " if row.lease_expired_s is not None else ""
        return printable(f"{stale}by {row.owner}" + (f", run {row.run_id}" if row.run_id else ""), 160)
    if row.status is QueueStatus.QUEUED and row.available_in_ms > 0:
        return f"in {row.available_in_ms / 1000:.0f} s"
    return printable(row.run_id if row.status is QueueStatus.COMPLETED and row.run_id else row.reason or row.name, 120)
