"""`loadgen schedule`: scenarios that are queued at the times of cron expressions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from loadgen.cli.common import (
    duration_s,
    echo,
    fact_lines,
    parse_labels,
    text_table,
    unreadable_as_json,
    utc_stamp,
    utc_text,
    warn,
    warn_unreadable,
)
from loadgen.cli.options import (
    ONLY_SCENARIOS,
    allow_options,
    baseline_check_of,
    control_access,
    control_options,
    count_option,
    experiment_remedy,
    format_option,
    idle_poll_option,
    location_arguments,
    print_scenario_warnings,
    queue_options,
    with_control_session,
)
from loadgen.clock import SystemClock
from loadgen.control.location import resolve_target
from loadgen.errors import ConfigurationError, UsageError
from loadgen.log import printable
from loadgen.model.nightly import parse_cron
from loadgen.units import counted
from orchestrator.nightly.queue import HostPermissions, default_connection
from orchestrator.nightly.scheduler import (
    NextLookFile,
    add_schedule,
    crontab,
    disable_schedule,
    enable_schedule,
    next_fires,
    read_schedules,
    remove_schedule,
    server_now,
    skipped_tick_document,
    systemd_units,
    tick_command,
    tick_document,
    tick_once,
)

if TYPE_CHECKING:
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.control.session import ControlSession, ParsedRows
    from loadgen.control.tables.schedules import FireRow, ScheduleRow
    from loadgen.model.nightly import BaselineCheck
    from loadgen.snowflake.session import RetryPolicy
    from orchestrator.nightly.queue import UnclaimedRun
    from orchestrator.nightly.scheduler import SchedulerPass

SHOWN_FIRES = 10
NEXT_MAX = 1_000


@click.group(
    epilog='\b\nExample:\n  loadgen schedule add reads reads.yaml --cron "0 2 * * *" --tz Europe/Berlin\n'
    "  loadgen schedule next"
)
def schedule() -> None:
    """Queue scenarios by cron expressions.

    `loadgen pool run` fires schedules, or `loadgen schedule tick` does, every minute from a crontab or timer (`loadgen
    schedule print` prints them). Any number of processes may do so at the same time; each fire is queued once.
    """


@schedule.command(
    "add", epilog='\b\nExample:\n  loadgen schedule add reads reads.yaml --cron "0 2 * * *" --tz Europe/Berlin'
)
@click.argument("name", metavar="NAME")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--cron",
    "expression",
    metavar="TEXT",
    required=True,
    help='For example "0 2 * * *". With six fields, seconds come first.',
)
@click.option(
    "--tz", "timezone", metavar="ZONE", default="UTC", show_default=True, help="Time zone, for example Europe/Berlin."
)
@count_option(
    "--max-catchup",
    default=1,
    minimum=0,
    maximum=500,
    help_text="After a downtime, fire the newest N missed fires. Above 1 only with --overlap queue.",
)
@click.option(
    "--overlap",
    type=click.Choice(["skip", "queue"]),
    default="skip",
    show_default=True,
    help="What to do if the previous run has not ended.",
)
@queue_options
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
    """Queue the scenario FILE at the times of a cron expression, from now on.

    The schedule stores the text of the scenario and of its value files: later changes of the files have no effect. To
    change a schedule, remove it and add it again. Variables like ${NAME} are replaced now. Variables with a name like a
    secret, and addresses of `notify:`, stay references: they must be set where the runs are executed, and the pool
    there must allow them (--allow-variable and others). --baseline and `notify:` work as in `loadgen run`.

    \b
    Five fields: minute hour day-of-month month day-of-week
      0 2 * * *       every day at 02:00
    Six fields: second minute hour day-of-month month day-of-week
      0 30 6 * * MON  every Monday at 06:30

    When clocks are set forward, fires in the skipped hour follow right after it; when they are set back, nothing fires
    twice. Expressions whose minute or hour begins with * follow elapsed time.
    """
    from loadgen.control.tables.schedules import NewSchedule, check_new
    from loadgen.model.nightly import Overlap
    from orchestrator.nightly.queue import pack_scenario

    check_new(name, max_catchup, Overlap(overlap))
    parse_cron(expression, timezone)
    with experiment_remedy(ONLY_SCENARIOS):
        aim = resolve_target(file, connection, **parts)
    print_scenario_warnings(aim.loaded)
    assert aim.loaded is not None
    new = NewSchedule(
        name=name,
        cron=expression,
        timezone=timezone,
        max_catchup=max_catchup,
        overlap=Overlap(overlap),
        wanted=replace(
            pack_scenario(file, connection, aim.loaded),
            requires=parse_labels(requires, "--requires"),
            priority=priority,
            judging=baseline_check_of(baseline, confirm, aim.place),
        ),
    )
    row = control_access(aim.place, "schedule")(lambda session, retries: add_schedule(session, retries, new))
    _make_next_tick_poll(aim.place)
    if output == "json":
        echo(json.dumps(schedule_as_json(row, row.created_at), indent=2))
        return
    echo(f"added schedule {row.name}; {upcoming_text(row, row.created_at)}")


@schedule.command("list", epilog="\b\nExample:\n  loadgen schedule list -c prod")
@control_options
@format_option
def list_schedules(output: str, **place: str | None) -> None:
    """List all schedules, with the time of their next fire."""
    rows, now = _read(None, place)
    if output == "json":
        document = {"schedules": [schedule_as_json(row, now) for row in rows], "unreadable": unreadable_as_json(rows)}
        echo(json.dumps(document, indent=2))
        return
    warn_unreadable(rows)
    echo(table(rows, now) if rows else "there are no schedules")


@schedule.command("show", epilog="\b\nExample:\n  loadgen schedule show nightly -c prod")
@click.argument("name", metavar="NAME")
@control_options
@format_option
def show(name: str, output: str, **place: str | None) -> None:
    """Show a schedule, and the outcomes of its last fires."""
    from loadgen.control.tables import schedules
    from loadgen.model.nightly import BaselineCheck

    def read(
        session: ControlSession, retries: RetryPolicy
    ) -> tuple[ScheduleRow, BaselineCheck, ParsedRows[FireRow], datetime]:
        row = schedules.find(session, retries, name)
        wanted = retries.call(lambda: schedules.wanted(session, row.schedule_id))
        fires = retries.call(lambda: schedules.newest_fires(session, row.schedule_id, SHOWN_FIRES))
        return row, BaselineCheck() if wanted is None else wanted.judging, fires, server_now(session, retries)

    shown = with_control_session(read, name="schedule", **place)
    warn_unreadable(shown[2])
    echo(json.dumps(as_json(*shown), indent=2) if output == "json" else as_text(*shown))


@schedule.command("next", epilog="\b\nExample:\n  loadgen schedule next nightly -n 10")
@click.argument("name", metavar="[NAME]", required=False)
@count_option("-n", "number", default=5, maximum=NEXT_MAX, help_text="Number of fires per schedule.")
@control_options
@format_option
def show_next(name: str | None, number: int, output: str, **place: str | None) -> None:
    """Show the times of the next fires of one schedule, or of all."""
    rows, now = _read(name, place)
    if output == "json":
        echo(json.dumps({"schedules": [next_as_json(row, now, number) for row in rows]}, indent=2))
        return
    warn_unreadable(rows)
    echo("\n".join(next_as_text(row, now, number) for row in rows) or "there are no schedules")


@schedule.command("enable", epilog="\b\nExample:\n  loadgen schedule enable nightly -c prod")
@click.argument("name", metavar="NAME")
@click.option("--catch-up", is_flag=True, help="Also fire the missed fires, at most --max-catchup.")
@control_options
@format_option
def enable(name: str, catch_up: bool, output: str, **place: str | None) -> None:
    """Enable a schedule. Fires that were due while it was disabled are skipped, unless --catch-up is given."""
    was_enabled, row, now = with_control_session(
        lambda session, retries: enable_schedule(session, retries, name, catch_up=catch_up), name="schedule", **place
    )
    _make_next_tick_poll(resolve_target(None, **place).place)
    _print_changed(row, "was already enabled" if was_enabled else "is enabled", now, output)


@schedule.command("disable", epilog="\b\nExample:\n  loadgen schedule disable nightly -c prod")
@click.argument("name", metavar="NAME")
@control_options
@format_option
def disable(name: str, output: str, **place: str | None) -> None:
    """Disable a schedule. Runs that it has queued stay in the queue; `loadgen queue cancel` cancels them."""
    row, now = with_control_session(
        lambda session, retries: disable_schedule(session, retries, name), name="schedule", **place
    )
    _print_changed(row, "is disabled", now, output)


@schedule.command("remove", epilog="\b\nExample:\n  loadgen schedule remove nightly -c prod")
@click.argument("name", metavar="NAME")
@control_options
@format_option
def remove(name: str, output: str, **place: str | None) -> None:
    """Delete a schedule and its history. Its runs and queued runs are kept."""
    with_control_session(lambda session, retries: remove_schedule(session, retries, name), name="schedule", **place)
    echo(json.dumps({"removed": name}, indent=2) if output == "json" else f"schedule {printable(name)} is removed")


@schedule.command("tick", epilog="\b\nExample:\n  loadgen schedule tick --quiet -c prod")
@click.option("-q", "--quiet", is_flag=True, help="Print new problems only.")
@idle_poll_option("Interval of polls while nothing is due; 0s polls now.")
@allow_options()
@control_options
@format_option
def tick(quiet: bool, idle_poll: str, output: str, **given: Any) -> None:
    """Check every schedule once, and queue the runs that are due. For crontabs and timers; ticks may run concurrently.

    A tick stores the time of the next fire on this machine. Ticks before that time connect to nothing, for at most
    --idle-poll, so that the warehouse of the control plane can suspend. So a schedule that is added on another machine
    may fire late by at most --idle-poll. On an embedded control plane every tick connects.

    If a schedule cannot be fired, the reason is printed here and by `loadgen schedule list`; other schedules are not
    affected. A queued run that no runner takes within two minutes is reported once, and the `notify:` of its scenario
    is sent as far as --allow-… permits.
    """
    idle_poll_s, began = duration_s(idle_poll, "--idle-poll"), SystemClock().utc_now()
    memory = NextLookFile.of(resolve_target(None, **location_arguments(given)).place)
    if memory is not None and (until := memory.pending(began, idle_poll_s)) is not None:
        if output == "json":
            echo(json.dumps(skipped_tick_document(until), indent=2))
        elif not quiet:
            echo(not_looked_as_text(until))
        return

    def fire(session: ControlSession, retries: RetryPolicy) -> tuple[SchedulerPass, tuple[UnclaimedRun, ...]]:
        allowed = HostPermissions.of_options(given, session.place.connection or default_connection())
        return tick_once(session, retries, allowed, warn)

    done, stuck = with_control_session(fire, name="schedule", **location_arguments(given))
    if memory is not None:
        memory.note(began, done, idle_poll_s)
    for one in stuck:
        warn(f"{one.queue_id} waits: {one.reason}")
    for failure in done.failures:
        if failure.is_new or not quiet:
            warn(f"schedule {failure.schedule}: {failure.reason}")
    if output == "json":
        echo(json.dumps(tick_document(done), indent=2))
    elif not quiet:
        echo(ticked_as_text(done))


def _make_next_tick_poll(place: ControlPlaneLocation) -> None:
    """Let the next tick on this machine poll, because schedules have changed."""
    if (memory := NextLookFile.of(place)) is not None:
        memory.forget()


@schedule.command(
    "print",
    epilog="\b\nExample:\n  loadgen schedule print --cron -c prod\n"
    "  loadgen schedule print --systemd -c prod --out ~/.config/systemd/user",
)
@click.option("--cron", "kind", flag_value="cron", help="Print lines for a crontab.")
@click.option("--systemd", "kind", flag_value="systemd", help="Print a systemd service and a timer.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the systemd units to this directory.",
)
@idle_poll_option("Passed to the ticks: interval of polls while nothing is due.")
@control_options
def print_units(kind: str | None, out: Path | None, idle_poll: str, **place: str | None) -> None:
    """Print crontab lines or systemd units that check the schedules every minute.

    Ticks do not overlap, are ended if they hang, and print problems only. The command connects to nothing. -c and the
    other options become part of the printed command.
    """
    if kind is None:
        raise UsageError("neither --cron nor --systemd is given", remedy="Add one of them.")
    idle_poll_s = duration_s(idle_poll, "--idle-poll")
    options = [f"--{name}={value}" for name, value in location_arguments(place).items() if value is not None]
    if any(ord(character) < ord(" ") for option in options for character in option):
        raise UsageError("a name contains a line break or another control character", remedy="Remove it.")
    words = tick_command(options, idle_poll_s)
    if kind == "cron":
        if out is not None:
            raise UsageError(
                "--out works with --systemd only", remedy="Leave it out, and add the lines with `crontab -e`."
            )
        echo(crontab(words, idle_poll_s), nl=False)
        return
    units = systemd_units(words, idle_poll_s)
    if out is None:
        echo("\n".join(units.values()), nl=False)
        return
    for name, text in units.items():
        _write(out / name, text)
        echo(f"wrote {printable(str(out / name))}")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{printable(str(path))} cannot be written: {error.strerror}", remedy="Choose another directory with --out."
        ) from error


def _read(name: str | None, place: dict[str, str | None]) -> tuple[ParsedRows[ScheduleRow], datetime]:
    return with_control_session(
        lambda session, retries: read_schedules(session, retries, name), name="schedule", **place
    )


def _print_changed(row: ScheduleRow, what: str, now: datetime, output: str) -> None:
    if output == "json":
        echo(json.dumps(schedule_as_json(row, now), indent=2))
        return
    upcoming = f"; {upcoming_text(row, now)}" if row.enabled else ""
    echo(f"schedule {printable(row.name, 100)} {what}{upcoming}")


# --- schedules, their fires and the result of a tick, as text and as JSON --------------------------------------------


def upcoming_text(row: ScheduleRow, now: datetime) -> str:
    """The time of the next fire, or why there is none."""
    fires, why = next_fires(row, now, 1)
    return f"next {_both(fires[0], row.timezone)}" if fires else f"it will not fire: {printable(why or '', 300)}"


def table(rows: Sequence[ScheduleRow], now: datetime) -> str:
    head = ("NAME", "CRON", "ZONE", "SCENARIO", "NEXT (UTC)", "STATE")
    cells = [
        (
            printable(row.name, 100),
            printable(row.cron, 40),
            printable(row.timezone, 40),
            printable(row.scenario_name, 40),
            utc_text(fires[0]) if (fires := next_fires(row, now, 1)[0]) else "-",
            _state(row, now),
        )
        for row in rows
    ]
    return text_table(head, cells)


def as_text(row: ScheduleRow, judging: BaselineCheck, fires: Sequence[FireRow], now: datetime) -> str:
    facts = {
        "cron": f"{printable(row.cron, 200)}  ({printable(row.timezone, 100)})",
        "state": _state(row, now),
        "next": upcoming_text(row, now).removeprefix("next ") if row.enabled else None,
        "scenario": printable(row.scenario_name, 100),
        "connection": None if row.connection is None else printable(row.connection, 100),
        "target": printable(row.target, 200) or None,
        "requires": printable(" ".join(row.labels), 500) or None,
        "judged by": printable(" ".join(judging.words), 200) or None,
        "priority": str(row.priority),
        "overlap": printable(row.overlap, 10),
        "max catchup": str(row.max_catchup),
        "settled": f"{utc_text(row.last_fire_at)} UTC",
        "created": f"{utc_text(row.created_at)} UTC",
    }
    lines = [f"schedule {printable(row.name, 100)}", *fact_lines(facts)]
    return "\n".join([*lines, "", _fires(fires) if fires else "no fires yet"])


def schedule_as_json(row: ScheduleRow, now: datetime) -> dict[str, Any]:
    fires, why = next_fires(row, now, 1)
    return {
        "schedule_id": row.schedule_id,
        "name": row.name,
        "cron": row.cron,
        "timezone": row.timezone,
        "scenario": row.scenario_name,
        "connection": row.connection,
        "target": row.target,
        "requires": list(row.labels),
        "priority": row.priority,
        "enabled": row.enabled,
        "max_catchup": row.max_catchup,
        "overlap": row.overlap,
        "next_fire_at": utc_stamp(fires[0], "seconds") if fires else None,
        "reason": row.reason or (why if row.enabled else None),
        "settled_at": utc_stamp(row.last_fire_at, "seconds"),
        "created_at": utc_stamp(row.created_at, "seconds"),
    }


def as_json(row: ScheduleRow, judging: BaselineCheck, fires: Sequence[FireRow], now: datetime) -> dict[str, Any]:
    history = [
        {
            "fire_at": utc_stamp(fire.at, "seconds"),
            "outcome": fire.outcome.value,
            "queue_id": fire.queue_id,
            "queue_status": None if fire.queue_status is None else fire.queue_status.value,
            "run_id": fire.run_id,
            "exit_code": fire.exit_code,
        }
        for fire in fires
    ]
    return {**schedule_as_json(row, now), **asdict(judging), "fires": history}


def next_as_text(row: ScheduleRow, now: datetime, number: int) -> str:
    fires, why = next_fires(row, now, number)
    lines = [f"  {_both(fire, row.timezone)}" for fire in fires] or [f"  none: {printable(why or '', 300)}"]
    return "\n".join([f"{printable(row.name, 100)}  {printable(row.cron, 200)}", *lines])


def next_as_json(row: ScheduleRow, now: datetime, number: int) -> dict[str, Any]:
    fires, why = next_fires(row, now, number)
    return {"name": row.name, "next": [utc_stamp(fire, "seconds") for fire in fires], "reason": why}


def ticked_as_text(done: SchedulerPass) -> str:
    lines = [
        f"{utc_text(fired.at)} UTC  {fired.outcome:<7}  {printable(fired.schedule, 100)}"
        + (f"  {fired.queue_id}" if fired.queue_id else "")
        for fired in done.fired
    ]
    more = ["more runs are due than one tick may queue: tick again"] if done.more else []
    return "\n".join([*lines, *more]) or f"nothing is due ({counted(done.schedules, 'schedule')})"


def not_looked_as_text(until: datetime) -> str:
    """The result of a tick that did not poll."""
    return f"nothing is due before {utc_text(until)} UTC; --idle-poll 0s polls now"


def _fires(fires: Sequence[FireRow]) -> str:
    head = ("DUE (UTC)", "OUTCOME", "QUEUED AS", "STATUS", "EXIT", "RUN")
    rows = [
        (
            utc_text(fire.at),
            fire.outcome.value,
            fire.queue_id or "-",
            "-" if fire.queue_status is None else fire.queue_status.value,
            "-" if fire.exit_code is None else str(fire.exit_code),
            fire.run_id or "-",
        )
        for fire in fires
    ]
    return text_table(head, rows, right=(4,))


def _state(row: ScheduleRow, now: datetime) -> str:
    if not row.enabled:
        return "disabled"
    reason = row.reason or next_fires(row, now, 1)[1]
    return f"cannot be fired: {printable(reason, 200)}" if reason else "enabled"


def _both(fire: datetime, timezone: str) -> str:
    """The local time in that zone, and UTC."""
    local = fire.astimezone(ZoneInfo(timezone))
    utc = "" if timezone == "UTC" else f"  ({utc_text(fire)} UTC)"
    return f"{local:%a %Y-%m-%d %H:%M:%S} {printable(timezone, 100)}{utc}"
