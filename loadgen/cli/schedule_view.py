"""Schedules, their fires and what a tick did, as text and as JSON."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from loadgen.cli.common import duration_s, echo, text_table
from loadgen.cli.options import control_options, idle_poll_option
from loadgen.errors import ConfigurationError, UsageError
from loadgen.log import printable
from loadgen.model.nightly import ScheduleInvalid, parse_cron
from loadgen.model.warehouse import IDLE_POLL_S, look_credits_per_day
from loadgen.units import counted, format_duration_s

if TYPE_CHECKING:
    from loadgen.control.tables.schedules import FireRow, ScheduleRow
    from loadgen.model.nightly import BaselineCheck
    from orchestrator.nightly.scheduler import SchedulerPass


def upcoming(row: ScheduleRow, now: datetime, number: int) -> tuple[list[datetime], str | None]:
    """The next fires; or none, and why."""
    if not row.enabled:
        return [], "it is disabled"
    try:
        cron = parse_cron(row.cron, row.timezone)
    except ScheduleInvalid as error:
        return [], str(error)
    try:
        return list(itertools.islice(cron.after(max(now, row.last_fire_at)), number)), None
    except OverflowError:
        return [], f"it is settled up to {_moment(row.last_fire_at)}"


def upcoming_text(row: ScheduleRow, now: datetime) -> str:
    """When it comes next, in a few words."""
    fires, why = upcoming(row, now, 1)
    return f"next {_both(fires[0], row.timezone)}" if fires else f"it will not fire: {printable(why or '', 300)}"


def table(rows: Sequence[ScheduleRow], now: datetime) -> str:
    head = ("NAME", "CRON", "ZONE", "SCENARIO", "NEXT (UTC)", "STATE")
    cells = [
        (
            printable(row.name, 100),
            printable(row.cron, 40),
            printable(row.timezone, 40),
            printable(row.scenario_name, 40),
            _moment(fires[0]) if (fires := upcoming(row, now, 1)[0]) else "-",
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
        "requires": printable(" ".join(_words(row.requires)), 500) or None,
        "judged by": printable(" ".join(judging.words), 200) or None,
        "priority": str(row.priority),
        "overlap": printable(row.overlap, 10),
        "max catchup": str(row.max_catchup),
        "settled": f"{_moment(row.last_fire_at)} UTC",
        "created": f"{_moment(row.created_at)} UTC",
    }
    lines = [
        f"schedule {printable(row.name, 100)}",
        *(f"  {name:<11}  {printable(value)}" for name, value in facts.items() if value),
    ]
    return "\n".join([*lines, "", _fires(fires) if fires else "it has not come due yet"])


def schedule_as_json(row: ScheduleRow, now: datetime) -> dict[str, Any]:
    fires, why = upcoming(row, now, 1)
    return {
        "schedule_id": row.schedule_id,
        "name": row.name,
        "cron": row.cron,
        "timezone": row.timezone,
        "scenario": row.scenario_name,
        "connection": row.connection,
        "target": row.target,
        "requires": _words(row.requires),
        "priority": row.priority,
        "enabled": row.enabled,
        "max_catchup": row.max_catchup,
        "overlap": row.overlap,
        "next_fire_at": _stamp(fires[0]) if fires else None,
        "reason": row.reason or (why if row.enabled else None),
        "settled_at": _stamp(row.last_fire_at),
        "created_at": _stamp(row.created_at),
    }


def as_json(row: ScheduleRow, judging: BaselineCheck, fires: Sequence[FireRow], now: datetime) -> dict[str, Any]:
    history = [
        {
            "fire_at": _stamp(fire.at),
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
    fires, why = upcoming(row, now, number)
    lines = [f"  {_both(fire, row.timezone)}" for fire in fires] or [f"  none: {printable(why or '', 300)}"]
    return "\n".join([f"{printable(row.name, 100)}  {printable(row.cron, 200)}", *lines])


def next_as_json(row: ScheduleRow, now: datetime, number: int) -> dict[str, Any]:
    fires, why = upcoming(row, now, number)
    return {"name": row.name, "next": [_stamp(fire) for fire in fires], "reason": why}


def ticked_as_text(done: SchedulerPass) -> str:
    lines = [
        f"{_moment(fired.at)} UTC  {fired.outcome:<7}  {printable(fired.schedule, 100)}"
        + (f"  {fired.queue_id}" if fired.queue_id else "")
        for fired in done.fired
    ]
    more = ["more is due than one tick may do: tick again"] if done.more else []
    return "\n".join([*lines, *more]) or f"nothing is due ({counted(done.schedules, 'schedule')})"


def not_looked_as_text(until: datetime) -> str:
    """Of a tick before the next look."""
    return f"nothing is due before {_moment(until)} UTC; --idle-poll 0s looks now"


def not_looked_as_json(until: datetime) -> dict[str, Any]:
    """As ticked_as_json; how many schedules there are is not known."""
    nothing: dict[str, Any] = {"schedules": None, "fired": [], "complaints": [], "more": False}
    return {"looked": False, **nothing, "next_look_at": _stamp(until)}


def ticked_as_json(done: SchedulerPass) -> dict[str, Any]:
    return {
        "looked": True,
        "schedules": done.schedules,
        "fired": [
            {
                "schedule": fired.schedule,
                "fire_at": _stamp(fired.at),
                "outcome": fired.outcome.value,
                "queue_id": fired.queue_id,
            }
            for fired in done.fired
        ],
        "complaints": [{"schedule": one.schedule, "reason": one.reason} for one in done.complaints],
        "more": done.more,
    }


def _fires(fires: Sequence[FireRow]) -> str:
    head = ("CAME DUE (UTC)", "OUTCOME", "QUEUED AS", "STATUS", "EXIT", "RUN")
    rows = [
        (
            _moment(fire.at),
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
    reason = row.reason or upcoming(row, now, 1)[1]
    return f"cannot be fired: {printable(reason, 200)}" if reason else "enabled"


def _words(requires: str) -> list[str]:
    """Of a row that any user of the table may have written."""
    try:
        found = json.loads(requires)
    except (ValueError, RecursionError):
        return [requires]
    return [str(word) for word in found] if isinstance(found, list) else [requires]


def _both(fire: datetime, timezone: str) -> str:
    """On the wall there, and in UTC."""
    local = fire.astimezone(ZoneInfo(timezone))
    utc = "" if timezone == "UTC" else f"  ({_moment(fire)} UTC)"
    return f"{local:%a %Y-%m-%d %H:%M:%S} {printable(timezone, 100)}{utc}"


def _moment(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(sep=" ", timespec="seconds")


def _stamp(at: datetime) -> str:
    return f"{at.replace(tzinfo=None).isoformat(timespec='seconds')}Z"


LIMIT_S = 300  # for a tick; the next one, or another host's, does what it left
UNIT = "loadgen-schedule"
_PLACE = ("connection", "database", "schema", "warehouse")

CRONTAB = """\
# loadgen: fire the schedules that are due. Add these lines with `crontab -e`.
# cron mails what is printed: nothing, unless something is wrong. One tick at a time; one that hangs is ended.
{cost}
SHELL=/bin/sh
* * * * * flock -n -E 75 "$HOME/.{unit}.lock" timeout -k 10 {limit_s} {command}
"""
SERVICE = """\
# ~/.config/systemd/user/{unit}.service: fire the schedules of loadgen that are due.
[Unit]
Description=Fire the schedules of loadgen that are due

[Service]
# One at a time: systemd does not start it again while it runs. One that hangs is ended.
Type=oneshot
TimeoutStartSec={limit_s}
ExecStart={command}
SyslogIdentifier={unit}
"""
TIMER = """\
# ~/.config/systemd/user/{unit}.timer: `systemctl --user enable --now {unit}.timer`,
# and `loginctl enable-linger` so that it continues while you are not logged in.
{cost}
[Unit]
Description=Look at the schedules of loadgen every minute

[Timer]
OnCalendar=minutely
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


@click.command(
    "print",
    epilog="\b\nExample:\n  loadgen schedule print --cron -c prod\n"
    "  loadgen schedule print --systemd -c prod --out ~/.config/systemd/user",
)
@click.option("--cron", "kind", flag_value="cron", help="Lines for a crontab.")
@click.option("--systemd", "kind", flag_value="systemd", help="A service and a timer.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write the units there.")
@idle_poll_option("For the ticks: how often to look at the tables while nothing is due.")
@control_options
def print_units(kind: str | None, out: Path | None, idle_poll: str, **place: str | None) -> None:
    """Print crontab lines or systemd units that check the schedules every minute.

    One tick at a time, ended when it hangs, silent unless something is wrong. Connects to nothing. -c and the other
    options become part of the command.
    """
    if kind is None:
        raise UsageError("what shall be printed?", remedy="Add --cron or --systemd.")
    idle_poll_s = duration_s(idle_poll, "--idle-poll")
    words = _tick_command(place, idle_poll_s)
    if kind == "cron":
        if out is not None:
            raise UsageError("--out is for units of systemd", remedy="`crontab -e` takes the lines for cron.")
        echo(crontab(words, idle_poll_s), nl=False)
        return
    units = systemd_units(words, idle_poll_s)
    if out is None:
        echo("\n".join(units.values()), nl=False)
        return
    for name, text in units.items():
        _write(out / name, text)
        echo(f"wrote {printable(str(out / name))}")


def tick_cost(idle_poll_s: float) -> str:
    """What a tick every minute costs, as a comment."""
    every, per_day = format_duration_s(idle_poll_s), look_credits_per_day(idle_poll_s)
    return (
        f"# In Snowflake ticks start the control plane's warehouse once per {every}, and when a schedule fires, for a\n"
        f"# minute each: about {per_day:.1f} credits a day (X-Small). The other ticks connect to nothing."
    )


def crontab(words: list[str], idle_poll_s: float = IDLE_POLL_S) -> str:
    command = shlex.join(words).replace("%", "\\%")  # cron takes a bare one for the end of the line
    return CRONTAB.format(unit=UNIT, limit_s=LIMIT_S, command=command, cost=tick_cost(idle_poll_s))


def systemd_units(words: list[str], idle_poll_s: float = IDLE_POLL_S) -> dict[str, str]:
    """By file name."""
    command = " ".join(map(_for_systemd, words))
    return {
        f"{UNIT}.service": SERVICE.format(unit=UNIT, limit_s=LIMIT_S, command=command),
        f"{UNIT}.timer": TIMER.format(unit=UNIT, cost=tick_cost(idle_poll_s)),
    }


def program() -> str:
    """How to start this very loadgen from anywhere: neither cron nor systemd knows our PATH."""
    beside, checkout = Path(sys.executable).parent / "loadgen", Path(__file__).parents[2] / "bin" / "loadgen"
    for path in (beside, checkout):
        if path.is_file():
            return str(path)
    return shutil.which("loadgen") or "loadgen"


def _tick_command(place: dict[str, str | None], idle_poll_s: float) -> list[str]:
    options = [f"--{name}={place[name]}" for name in _PLACE if place[name] is not None]
    options += [] if idle_poll_s == IDLE_POLL_S else [f"--idle-poll={format_duration_s(idle_poll_s)}"]
    if any(ord(character) < ord(" ") for word in options for character in word):
        raise UsageError("a name has a line break or another control character in it", remedy="Write it without.")
    return [program(), "schedule", "tick", "--quiet", *options]


def _for_systemd(word: str) -> str:
    """Quoted, with its specifiers and variables taken away."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if escaped == word and word and not set(word) & set(" ';\t") else f'"{escaped}"'


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{printable(str(path))} cannot be written: {error.strerror}", remedy="Choose another directory with --out."
        ) from error
