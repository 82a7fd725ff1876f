"""`loadgen doctor`: check that everything is ready for a run. `loadgen connections`: list and test connections.

thread   does                                                              owns
main     prints, waits in bounded time; never calls the driver             the terminal
doctor   executes the checks; abandoned if one takes too long              the sessions of the checks
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import echo, print_lines, terminal_width, text_table, warn
from loadgen.cli.options import embedded_server_if_needed, experiment_remedy, format_option, scenario_options
from loadgen.clock import SystemClock
from loadgen.control.location import CommandTarget, resolve_target
from loadgen.embedded.client import server_line
from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.snowflake import driver
from loadgen.snowflake.connect import ROUND_TRIPS, ConnectionProbe, probe
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile, known_profiles
from loadgen.threads import run_in_thread
from loadgen.units import counted

if TYPE_CHECKING:
    from loadgen.doctor.checks import CheckedFinding
    from loadgen.report.run_text import TextLine


CLOSE_TIMEOUT_S = 5.0
NAME_WIDTH = 20

# mark: (sign, sign in ASCII, colour)
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
    """Check that everything is ready for a run. Nothing is changed.

    Checks this machine, the configuration and the origin of each field, the connection, the control plane and the
    privileges on it, and the warehouse of the target. With a scenario FILE, the checks are those of this scenario, and
    its worst-case cost is shown. Each check takes at most 20 seconds.

    Marks: ✓ ready, ! warning, ✗ a run would fail, · skipped. Findings come with a remedy. Exit code: 0 without ✗, 2 if
    the configuration has ✗, 3 if another check has.
    """
    with experiment_remedy("Check the file that it names under scenario."):
        aim = resolve_target(file, connection)
    with ExitStack() as stack:
        trouble: LoadgenError | None = None
        server: str | None = None
        try:
            address = stack.enter_context(embedded_server_if_needed(aim.connection, aim.place.connection))
            server = None if address is None else server_line(address)
        except LoadgenError as error:  # a check reports it; the other checks are executed too
            trouble = error
        examined = _examined(aim, server, trouble)
        if output == "text":
            examined = _printed(examined)
        found = list(examined)
    from loadgen.doctor.checks import exit_code

    code = exit_code(found)
    echo(json.dumps(_as_json(found, code), indent=2) if output == "json" else _summary(found))
    return code


def _examined(aim: CommandTarget, server: str | None, trouble: LoadgenError | None) -> Iterator[CheckedFinding]:
    from loadgen.doctor.check_context import DoctorSessions, DoctorTarget, KnownFacts
    from loadgen.doctor.checks import BoundedExecutor, checks, run_checks

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
    sign, in_ascii, colour = _SIGNS[finding.level]
    mark = in_ascii if only_ascii else sign
    message = printable(finding.message)
    text = f"  {mark} {each.check.name.ljust(NAME_WIDTH)}  {message}"
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
    marks = [each.finding.level for each in found]
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
            "mark": each.finding.level,
            "message": each.finding.message,
            "hint": each.finding.remedy,
            "details": each.finding.details,
        }
        for each in found
    ]
    return {"ready": code == 0, "exit_code": code, "checks": listed}


# --- `loadgen connections`: list and test connections ----------------------------------------------------------------


@click.group()
def connections() -> None:
    """List the available Snowflake connections, and test one.

    They are read from the same places as by the Snowflake CLI: connections.toml, config.toml and SNOWFLAKE_* variables.
    """


@connections.command("list", epilog="\b\nExample:\n  loadgen connections list --format json")
@format_option
def list_connections(output: str) -> None:
    """List all connections with their origin. Secrets are not shown."""
    address, where = _running_server()
    profiles, default, warnings = known_profiles(embedded=address, embedded_origin=where)
    for warning in dict.fromkeys([*warnings, *(warning for profile in profiles for warning in profile.warnings)]):
        warn(warning)
    rows = [{**_row(profile), "default": profile.name == default} for profile in profiles]
    if output == "json":
        echo(json.dumps({"connections": rows, "default": default}, indent=2))
        return
    titles = ("name", "account", "user", "host", "authenticator", "source")
    lines = [("*" if row["default"] else "", *(_shown(row[title]) for title in titles)) for row in rows]
    echo(text_table(("", *(title.upper() for title in titles)), lines))


@connections.command("test", epilog="\b\nExample:\n  loadgen connections test -c prod")
@click.option("-c", "--connection", "name", metavar="NAME", help="The connection to test.  [default: the default one]")
@format_option
def test_connection(name: str | None, output: str) -> None:
    """Connect once, show the session's user, role and warehouse, and measure the round trip."""
    with embedded_server_if_needed(name):
        profile = find_profile(name)
        for warning in profile.warnings:
            warn(warning)
        found = run_in_thread(lambda: probe(profile), name="connections-test")
    if output == "json":
        echo(json.dumps(_connections_as_json(profile, found), indent=2))
    else:
        lines = _as_lines(profile, found)
        echo(text_table(lines[0], lines[1:]))


def _running_server() -> tuple[str | None, str]:
    """The address of the server that runs on the data directory, if any; and a text with the directory."""
    from loadgen.embedded.datadir import choose_data_dir, running_server

    data_dir = choose_data_dir()
    with suppress(LoadgenError):  # an unusable directory has no server; starting one reports the reason
        address = running_server(data_dir)
        if address is not None:
            return f"{address.host}:{address.port}", f"running on {data_dir}"
    return None, f"starts when needed on {data_dir}"


def _row(profile: ConnectionProfile) -> dict[str, Any]:
    running = "host" in profile.fields or not profile.is_embedded
    values = {
        "name": profile.name,
        "account": profile.text("account"),
        "user": profile.text("user"),
        "host": profile.address if running and profile.fields else None,
        "authenticator": profile.authenticator.lower(),
        "source": profile.origin("account") or profile.origin("host") or profile.origin("user"),
    }
    return {key: None if value is None else printable(value, 300) for key, value in values.items()}


def _connections_as_json(profile: ConnectionProfile, found: ConnectionProbe) -> dict[str, Any]:
    return {
        "connection": profile.name,
        "host": profile.address,
        "authenticator": profile.authenticator.lower(),
        "driver_version": driver.version(),
        "server_version": found.server_version,
        "account": found.account,
        "region": found.region,
        "user": found.user,
        "role": found.role,
        "warehouse": found.warehouse,
        "database": found.database,
        "schema": found.schema,
        "round_trip_ms": {
            "p50": round(found.round_trip_ms_p50, 3),
            "tries": [round(value, 3) for value in found.round_trips_ms],
        },
    }


def _as_lines(profile: ConnectionProfile, found: ConnectionProbe) -> list[tuple[str, ...]]:
    facts = {key: value for key, value in _connections_as_json(profile, found).items() if key != "round_trip_ms"}
    lines = [(key.replace("_", " "), _shown(value)) for key, value in facts.items()]
    return [*lines, ("round trip", f"p50 {found.round_trip_ms_p50:.1f} ms of {ROUND_TRIPS} tries")]


def _shown(value: object) -> str:
    return "-" if value in (None, "") else str(value)
