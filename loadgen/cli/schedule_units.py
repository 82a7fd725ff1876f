"""`loadgen schedule print`: what makes a machine look at the schedules, ready for cron or systemd."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import click

from loadgen.cli.common import echo
from loadgen.cli.control_session import control_options
from loadgen.errors import ConfigurationError, UsageError
from loadgen.log import printable

LIMIT_S = 300  # for a tick; the next one, or another host's, does what it left
UNIT = "loadgen-schedule"
_PLACE = ("connection", "database", "schema", "warehouse")

CRONTAB = """\
# loadgen: fire the schedules that are due. Add these lines with `crontab -e`.
# cron mails what is printed: nothing, unless something is wrong. One tick at a time; one that hangs is ended.
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
# and `loginctl enable-linger` so that it goes on when nobody is logged in.
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
@control_options
def print_units(kind: str | None, out: Path | None, **place: str | None) -> None:
    """Print crontab lines or systemd units that check the schedules every minute.

    One tick at a time, ended when it hangs, silent unless something is wrong. Connects to nothing. -c and the other
    options become part of the command.
    """
    if kind is None:
        raise UsageError("what shall be printed?", remedy="Add --cron or --systemd.")
    if kind == "cron":
        if out is not None:
            raise UsageError("--out is for units of systemd", remedy="`crontab -e` takes the lines for cron.")
        echo(crontab(_words(place)), nl=False)
        return
    units = systemd_units(_words(place))
    if out is None:
        echo("\n".join(units.values()), nl=False)
        return
    for name, text in units.items():
        _write(out / name, text)
        echo(f"wrote {printable(str(out / name))}")


def crontab(words: list[str]) -> str:
    command = shlex.join(words).replace("%", "\\%")  # cron takes a bare one for the end of the line
    return CRONTAB.format(unit=UNIT, limit_s=LIMIT_S, command=command)


def systemd_units(words: list[str]) -> dict[str, str]:
    """By file name."""
    command = " ".join(map(_for_systemd, words))
    return {
        f"{UNIT}.service": SERVICE.format(unit=UNIT, limit_s=LIMIT_S, command=command),
        f"{UNIT}.timer": TIMER.format(unit=UNIT),
    }


def program() -> str:
    """How to start this very loadgen from anywhere: neither cron nor systemd knows our PATH."""
    beside, checkout = Path(sys.executable).parent / "loadgen", Path(__file__).parents[2] / "bin" / "loadgen"
    for path in (beside, checkout):
        if path.is_file():
            return str(path)
    return shutil.which("loadgen") or "loadgen"


def _words(place: dict[str, str | None]) -> list[str]:
    options = [f"--{name}={place[name]}" for name in _PLACE if place[name] is not None]
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
