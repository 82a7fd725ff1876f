"""`loadgen doctor`: is everything ready for a run?

thread   does                                                              owns
main     prints, waits in bounded time; never calls the driver             the terminal
doctor   one check after another; left behind when one takes too long      the sessions of the checks
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.common import echo, print_lines, terminal_width
from loadgen.cli.options import (
    CommandTarget,
    embedded_server_if_needed,
    format_option,
    resolve_target,
    scenario_options,
)
from loadgen.clock import SystemClock
from loadgen.embedded.client import server_line
from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.units import counted

if TYPE_CHECKING:
    from loadgen.doctor.check_runner import CheckedFinding
    from loadgen.report.run_text import TextLine

CLOSE_TIMEOUT_S = 5.0
NAME_WIDTH = 20

# mark: (sign, sign where the terminal has only ASCII, colour)
_SIGNS = {
    "ok": ("✓", "+", "green"),
    "warning": ("!", "!", "yellow"),
    "failed": ("✗", "x", "red"),
    "skipped": ("·", "-", None),
}
_ARROW = ("→", "->")


@click.command()
@scenario_options
@format_option
def doctor(file: Path | None, connection: str | None, output: str) -> int:
    """Check that everything is ready for a run; changes nothing.

    Looks at this machine, the configuration and where each field of it comes from, the connection, the control plane
    and the rights on it, and the target's warehouse. With a scenario FILE it is checked for that one, and the worst
    case of its cost is told. Each check takes at most 20 seconds.

    Marks: ✓ ready, ! works but is worth knowing, ✗ a run would fail, · not looked at. Each says what to do.
    Exit code: 0 when nothing is ✗, 2 when the configuration is, 3 when anything else is.
    """
    aim = resolve_target(file, connection)
    with ExitStack() as stack:
        trouble: LoadgenError | None = None
        server: str | None = None
        try:
            address = stack.enter_context(embedded_server_if_needed(aim.connection, aim.place.connection))
            server = None if address is None else server_line(address)
        except LoadgenError as error:  # found by a check: the others still have something to say
            trouble = error
        examined = _examined(aim, server, trouble)
        if output == "text":
            examined = _printed(examined)
        found = list(examined)
    from loadgen.doctor.check_runner import exit_code

    code = exit_code(found)
    echo(json.dumps(_as_json(found, code), indent=2) if output == "json" else _summary(found))
    return code


def _examined(aim: CommandTarget, server: str | None, trouble: LoadgenError | None) -> Iterator[CheckedFinding]:
    from loadgen.doctor.check_runner import BoundedExecutor, run_checks
    from loadgen.doctor.checks import checks
    from loadgen.doctor.subject import DoctorSessions, DoctorTarget, KnownFacts

    subject, facts = DoctorTarget(connection=aim.connection, place=aim.place, loaded=aim.loaded), KnownFacts()
    lane = BoundedExecutor(lambda: DoctorSessions(subject, facts), name="doctor")
    yield from run_checks(checks(subject, SystemClock(), server, trouble), lane)
    lane.close(limit_s=CLOSE_TIMEOUT_S)


def _printed(examined: Iterable[CheckedFinding]) -> Iterator[CheckedFinding]:
    section, only_ascii = "", not _knows_signs()
    for each in examined:
        if each.check.section != section:
            section = each.check.section
            echo(section)
        print_lines(_lines(each, only_ascii, terminal_width()))
        yield each


def _lines(each: CheckedFinding, only_ascii: bool, width: int | None) -> Iterator[TextLine]:
    from loadgen.report.run_text import TextLine, wrapped

    finding = each.finding
    sign, in_ascii, colour = _SIGNS[finding.mark]
    mark = in_ascii if only_ascii else sign
    said = printable(finding.said)
    text = f"  {mark} {each.check.name.ljust(NAME_WIDTH)}  {said}"
    yield from wrapped(TextLine(text, mark if colour else "", colour, indent=NAME_WIDTH + 6), width)
    yield from (TextLine(f"      {printable(detail)}") for detail in finding.details)
    if finding.remedy is not None:
        yield from wrapped(TextLine(f"      {_ARROW[only_ascii]} {printable(finding.remedy)}", indent=8), width)


def _knows_signs() -> bool:
    if os.environ.get("TERM") == "dumb":
        return False
    try:
        "".join(sign for sign, _, _ in _SIGNS.values()).encode(sys.stdout.encoding or "ascii")
        _ARROW[0].encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _summary(found: list[CheckedFinding]) -> str:
    marks = [each.finding.mark for each in found]
    failures, warnings = marks.count("failed"), marks.count("warning")  # type: ignore[arg-type]
    if not failures and not warnings:
        return "ready"
    parts = [counted(failures, "problem")] if failures else ["ready"]
    return ", ".join([*parts, *([counted(warnings, "warning")] if warnings else [])])


def _as_json(found: list[CheckedFinding], code: int) -> dict[str, object]:
    listed = [
        {
            "section": each.check.section,
            "check": each.check.name,
            "mark": each.finding.mark,
            "message": each.finding.said,
            "hint": each.finding.remedy,
            "details": each.finding.details,
        }
        for each in found
    ]
    return {"ready": code == 0, "exit_code": code, "checks": listed}
