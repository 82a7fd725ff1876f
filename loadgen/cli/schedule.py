"""`loadgen schedule`: scenarios that are queued by themselves, by cron expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import duration_s, echo, parse_labels, unreadable_as_json, warn_unreadable
from loadgen.cli.options import (
    allow_options,
    baseline_check_of,
    baseline_options,
    connection_option,
    control_access,
    control_options,
    count_option,
    format_option,
    idle_poll_option,
    leads_to_embedded,
    location_arguments,
    location_options,
    print_scenario_warnings,
    resolve_target,
    with_control_session,
)
from loadgen.cli.schedule_view import print_units
from loadgen.clock import SystemClock
from loadgen.errors import UsageError
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.cli.options import CommandTarget
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.control.session import ControlSession, ParsedRows
    from loadgen.control.tables.run_queue import QueueRequest
    from loadgen.control.tables.schedules import FireRow, NewSchedule, ScheduleRow
    from loadgen.model.nightly import Overlap
    from loadgen.snowflake.session import RetryPolicy
    from orchestrator.nightly.queue import UnclaimedRun
    from orchestrator.nightly.scheduler import NextLookFile, SchedulerPass

SHOWN_FIRES = 10
NEXT_MAX = 1_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@click.group(
    epilog='\b\nExample:\n  loadgen schedule add reads reads.yaml --cron "0 2 * * *" --tz Europe/Berlin\n'
    "  loadgen schedule next"
)
def schedule() -> None:
    """Queue scenarios by cron expressions.

    Schedules are fired by `loadgen pool run`, or by `loadgen schedule tick` every minute from a crontab or timer
    (`loadgen schedule print` writes them). Any number of processes may do so at once; each fire is queued once.
    """


@schedule.command(
    "add", epilog='\b\nExample:\n  loadgen schedule add reads reads.yaml --cron "0 2 * * *" --tz Europe/Berlin'
)
@click.argument("name", metavar="NAME")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--cron", "expression", metavar="TEXT", required=True, help='"0 2 * * *"; with six fields, seconds first.'
)
@click.option("--tz", "timezone", metavar="ZONE", default="UTC", show_default=True, help="Such as Europe/Berlin.")
@count_option(
    "--max-catchup",
    default=1,
    minimum=0,
    maximum=500,
    help_text="After a downtime, fire the newest N that were missed; above 1 with --overlap queue.",
)
@click.option(
    "--overlap",
    type=click.Choice(["skip", "queue"]),
    default="skip",
    show_default=True,
    help="What to do when its last run has not ended yet.",
)
@click.option("--priority", type=click.IntRange(-1000, 1000), default=0, show_default=True, help="Higher comes first.")
@click.option(
    "--requires", metavar="KEY=VALUE", multiple=True, help="Only runners that offer this take it. May be repeated."
)
@connection_option
@baseline_options
@location_options
@format_option
def add(
    name: str,
    file: Path,
    expression: str,
    timezone: str,
    max_catchup: int,
    overlap: str,
    priority: int,
    requires: Sequence[str],
    connection: str | None,
    baseline: str | None,
    confirm: bool,
    output: str,
    **parts: str | None,
) -> None:
    """Queue the scenario FILE by a cron expression, from now on.

    The schedule keeps the text of the scenario and of its value files: later changes of the files change nothing. To
    change a schedule, remove it and add it again. Variables like ${NAME} are filled in now; those that are named like
    a secret, and addresses of `notify:`, stay references: they must be set where its runs are done, and be allowed by
    the pool there (--allow-variable and others). --baseline and `notify:` work as with `loadgen run`.

    \b
    Five fields: minute hour day-of-month month day-of-week
      0 2 * * *       every night at two
    Six fields: second minute hour day-of-month month day-of-week
      0 30 6 * * MON  Mondays at half past six

    When clocks are set forward, fires of the skipped hour follow right after it; when they are set back, nothing fires
    twice. Expressions whose minute or hour begins with * follow real time.
    """
    from loadgen.cli.schedule_view import schedule_as_json, upcoming_text
    from loadgen.control.tables.schedules import NewSchedule
    from loadgen.model.nightly import Overlap, parse_cron

    _check_name(name)
    _check_catchup(max_catchup, Overlap(overlap))
    parse_cron(expression, timezone)
    words = parse_labels(requires, "--requires")
    aim = resolve_target(file, connection, **parts)
    print_scenario_warnings(aim.loaded)
    new = NewSchedule(
        name=name,
        cron=expression,
        timezone=timezone,
        max_catchup=max_catchup,
        overlap=Overlap(overlap),
        wanted=replace(
            _wanted(file, connection, aim),
            requires=words,
            priority=priority,
            judging=baseline_check_of(baseline, confirm, aim.place),
        ),
    )
    row = _added(aim.place, new)
    if output == "json":
        echo(json.dumps(schedule_as_json(row, row.created_at), indent=2))
        return
    echo(f"added schedule {row.name}; {upcoming_text(row, row.created_at)}")


@schedule.command("list", epilog="\b\nExample:\n  loadgen schedule list -c prod")
@control_options
@format_option
def list_schedules(output: str, **place: str | None) -> None:
    """List all schedules, with when each comes due next."""
    from loadgen.cli.schedule_view import schedule_as_json, table

    rows, now = _all(place)
    if output == "json":
        told = {"schedules": [schedule_as_json(row, now) for row in rows], "unreadable": unreadable_as_json(rows)}
        echo(json.dumps(told, indent=2))
        return
    warn_unreadable(rows)
    echo(table(rows, now) if rows else "there are no schedules")


@schedule.command("show", epilog="\b\nExample:\n  loadgen schedule show nightly -c prod")
@click.argument("name", metavar="NAME")
@control_options
@format_option
def show(name: str, output: str, **place: str | None) -> None:
    """Show a schedule, and the outcome of its last fires."""
    from loadgen.cli.schedule_view import as_json, as_text
    from loadgen.control.tables import schedules
    from loadgen.model.nightly import BaselineCheck

    def look(
        session: ControlSession, patience: RetryPolicy
    ) -> tuple[ScheduleRow, BaselineCheck, ParsedRows[FireRow], datetime]:
        row = schedules.find(session, patience, name)
        wanted = patience.call(lambda: schedules.wanted(session, row.schedule_id))
        fires = patience.call(lambda: schedules.newest_fires(session, row.schedule_id, SHOWN_FIRES))
        return row, BaselineCheck() if wanted is None else wanted.judging, fires, _now(session, patience)

    shown = with_control_session(look, name="schedule", **place)
    warn_unreadable(shown[2])
    echo(json.dumps(as_json(*shown), indent=2) if output == "json" else as_text(*shown))


@schedule.command("next", epilog="\b\nExample:\n  loadgen schedule next nightly -n 10")
@click.argument("name", metavar="[NAME]", required=False)
@count_option("-n", "number", default=5, maximum=NEXT_MAX, help_text="Number of fires of each schedule.")
@control_options
@format_option
def show_next(name: str | None, number: int, output: str, **place: str | None) -> None:
    """Show when a schedule, or each of them, comes due next."""
    from loadgen.cli.schedule_view import next_as_json, next_as_text

    rows, now = _all(place) if name is None else _one(name, place)
    if output == "json":
        echo(json.dumps({"schedules": [next_as_json(row, now, number) for row in rows]}, indent=2))
        return
    warn_unreadable(rows)
    echo("\n".join(next_as_text(row, now, number) for row in rows) or "there are no schedules")


@schedule.command("enable", epilog="\b\nExample:\n  loadgen schedule enable nightly -c prod")
@click.argument("name", metavar="NAME")
@click.option("--catch-up", is_flag=True, help="Also fire what was missed, at most --max-catchup times.")
@control_options
@format_option
def enable(name: str, catch_up: bool, output: str, **place: str | None) -> None:
    """Let a schedule fire again. What came due while it was disabled is skipped, unless --catch-up is given."""
    from loadgen.control.tables import schedules

    def change(session: ControlSession, patience: RetryPolicy) -> tuple[bool, ScheduleRow, datetime]:
        row = schedules.find(session, patience, name)
        schedules.enable(session, patience, row.schedule_id, catch_up=catch_up)
        return row.enabled, schedules.find(session, patience, name), _now(session, patience)

    was_enabled, row, now = with_control_session(change, name="schedule", **place)
    _let_next_tick_look(resolve_target(None, **place).place)
    _print_changed(row, "was enabled already" if was_enabled else "is enabled", now, output)


@schedule.command("disable", epilog="\b\nExample:\n  loadgen schedule disable nightly -c prod")
@click.argument("name", metavar="NAME")
@control_options
@format_option
def disable(name: str, output: str, **place: str | None) -> None:
    """Stop a schedule from firing. Runs that it has queued stay queued; `loadgen queue cancel` removes them."""
    from loadgen.control.tables import schedules

    def change(session: ControlSession, patience: RetryPolicy) -> tuple[ScheduleRow, datetime]:
        row = schedules.find(session, patience, name)
        schedules.disable(session, patience, row.schedule_id)
        return schedules.find(session, patience, name), _now(session, patience)

    row, now = with_control_session(change, name="schedule", **place)
    _print_changed(row, "is disabled", now, output)


@schedule.command("remove", epilog="\b\nExample:\n  loadgen schedule remove nightly -c prod")
@click.argument("name", metavar="NAME")
@control_options
@format_option
def remove(name: str, output: str, **place: str | None) -> None:
    """Delete a schedule and its history. Its runs stay, queued ones too."""
    from loadgen.control.tables import schedules

    def change(session: ControlSession, patience: RetryPolicy) -> None:
        row = schedules.find(session, patience, name)
        schedules.remove(session, patience, row.schedule_id)
        schedules.remove_fires(session, patience, row.schedule_id)

    with_control_session(change, name="schedule", **place)
    echo(json.dumps({"removed": name}, indent=2) if output == "json" else f"schedule {printable(name)} is removed")


@schedule.command("tick", epilog="\b\nExample:\n  loadgen schedule tick --quiet -c prod")
@click.option("-q", "--quiet", is_flag=True, help="Print only new problems.")
@idle_poll_option("How often to look at the tables while nothing is due; 0s: now.")
@allow_options()
@control_options
@format_option
def tick(quiet: bool, idle_poll: str, output: str, **given: Any) -> None:
    """Check every schedule once, and queue what is due. For crontabs and timers; may run several times at once.

    A tick notes on this machine when the next fire is. Ticks before that connect to nothing, for at most --idle-poll,
    so that the control plane's warehouse suspends itself: a schedule that is added on another machine meanwhile waits
    for that. On an embedded control plane every tick looks.

    A schedule that cannot be fired says why, here and in `loadgen schedule list`, and stops no other. Queued runs that
    no runner takes within two minutes are named once, and their scenarios' `notify:` is told, as --allow-… lets it.
    """
    from loadgen.cli.schedule_view import not_looked_as_json, not_looked_as_text, ticked_as_json, ticked_as_text

    idle_poll_s, began = duration_s(idle_poll, "--idle-poll"), SystemClock().utc_now()
    memory = _next_look(resolve_target(None, **location_arguments(given)).place)
    if memory is not None and (until := memory.pending(began, idle_poll_s)) is not None:
        if output == "json":
            echo(json.dumps(not_looked_as_json(until), indent=2))
        elif not quiet:
            echo(not_looked_as_text(until))
        return

    def look(session: ControlSession, patience: RetryPolicy) -> tuple[SchedulerPass, tuple[UnclaimedRun, ...]]:
        from orchestrator.nightly.queue import HostPermissions, default_connection, notify_unclaimed_runs
        from orchestrator.nightly.scheduler import fire_due_schedules as tick_once

        done = tick_once(session, patience)
        allowed = HostPermissions.of_options(given, session.place.connection or default_connection())
        return done, notify_unclaimed_runs(session, patience, allowed, _warn)

    done, stuck = with_control_session(look, name="schedule", **location_arguments(given))
    if memory is not None:
        memory.note(began, done, idle_poll_s)
    for one in stuck:
        _warn(f"{one.queue_id} waits: {one.reason}")
    for complaint in done.complaints:
        if complaint.is_new or not quiet:
            echo(
                f"warning: schedule {printable(complaint.schedule, 100)}: {printable(complaint.reason, 500)}", err=True
            )
    if output == "json":
        echo(json.dumps(ticked_as_json(done), indent=2))
    elif not quiet:
        echo(ticked_as_text(done))


def _next_look(place: ControlPlaneLocation) -> NextLookFile | None:
    """None: looks cost nothing on an embedded control plane."""
    from orchestrator.nightly.scheduler import NextLookFile, place_key

    return None if leads_to_embedded(place.connection) else NextLookFile(place_key(place))


def _let_next_tick_look(place: ControlPlaneLocation) -> None:
    """Schedules have changed. On other machines the next tick after --idle-poll sees it."""
    memory = _next_look(place)
    if memory is not None:
        memory.forget()


schedule.add_command(print_units)


def _warn(line: str) -> None:
    echo(f"warning: {printable(line, 500)}", err=True)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{printable(name, 60)!r} is no name for a schedule",
            remedy="Write at most 100 letters, digits, dots, dashes and underscores, such as nightly-eu.",
        )


def _check_catchup(max_catchup: int, overlap: Overlap) -> None:
    if max_catchup > 1 and overlap == "skip":
        raise UsageError(
            f"--max-catchup {max_catchup} queues several runs at once, and --overlap skip lets one through",
            remedy="Add --overlap queue, or leave --max-catchup at 1.",
        )


def _wanted(file: Path, connection: str | None, aim: CommandTarget) -> QueueRequest:
    """What each fire queues."""
    from orchestrator.nightly.queue import pack_scenario

    assert aim.loaded is not None
    return pack_scenario(file, connection, aim.loaded)


def _added(place: ControlPlaneLocation, new: NewSchedule) -> ScheduleRow:
    from loadgen.control.setup.installer import ensure_tables
    from loadgen.control.tables import schedules

    def put(session: ControlSession, patience: RetryPolicy) -> ScheduleRow:
        ensure_tables(session.place, patience)
        schedules.add(session, patience, new)
        return schedules.find(session, patience, new.name)

    added = control_access(place, "schedule")(put)
    _let_next_tick_look(place)
    return added


def _now(session: ControlSession, patience: RetryPolicy) -> datetime:
    """The server's clock: the one that schedules go by."""
    from loadgen.control.tables import run_status
    from loadgen.control.tables.schedules import as_utc

    return as_utc(patience.call(lambda: run_status.server_time(session)))


def _all(place: dict[str, str | None]) -> tuple[ParsedRows[ScheduleRow], datetime]:
    from loadgen.control.tables import schedules

    def look(session: ControlSession, patience: RetryPolicy) -> tuple[ParsedRows[ScheduleRow], datetime]:
        return patience.call(lambda: schedules.by_name(session)), _now(session, patience)

    return with_control_session(look, name="schedule", **place)


def _one(name: str, place: dict[str, str | None]) -> tuple[ParsedRows[ScheduleRow], datetime]:
    from loadgen.control.session import ParsedRows
    from loadgen.control.tables import schedules

    def look(session: ControlSession, patience: RetryPolicy) -> tuple[ParsedRows[ScheduleRow], datetime]:
        return ParsedRows([schedules.find(session, patience, name)]), _now(session, patience)

    return with_control_session(look, name="schedule", **place)


def _print_changed(row: ScheduleRow, what: str, now: datetime, output: str) -> None:
    from loadgen.cli.schedule_view import schedule_as_json, upcoming_text

    if output == "json":
        echo(json.dumps(schedule_as_json(row, now), indent=2))
        return
    upcoming = f"; {upcoming_text(row, now)}" if row.enabled else ""
    echo(f"schedule {printable(row.name, 100)} {what}{upcoming}")
