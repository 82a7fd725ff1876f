"""`loadgen connections`: which connections there are, and whether one works."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from loadgen.cli.common import echo, run_in_thread
from loadgen.cli.options import embedded_server_if_needed, format_option
from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.snowflake import driver
from loadgen.snowflake.probe import ROUND_TRIPS, ConnectionProbe, probe
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile, known_profiles


@click.group()
def connections() -> None:
    """List the Snowflake connections loadgen can use, and test one.

    They are found as the Snowflake CLI finds them: connections.toml, config.toml and SNOWFLAKE_* variables.
    """


@connections.command("list", epilog="\b\nExample:\n  loadgen connections list --format json")
@format_option
def list_connections(output: str) -> None:
    """Show every connection, and where it comes from. Secrets are never shown."""
    address, where = _running_server()
    profiles, default, warnings = known_profiles(embedded=address, embedded_origin=where)
    for warning in dict.fromkeys([*warnings, *(warning for profile in profiles for warning in profile.warnings)]):
        echo(f"warning: {warning}", err=True)
    rows = [{**_row(profile), "default": profile.name == default} for profile in profiles]
    if output == "json":
        echo(json.dumps({"connections": rows, "default": default}, indent=2))
        return
    titles = ("name", "account", "user", "host", "authenticator", "source")
    lines = [("*" if row["default"] else "", *(_shown(row[title]) for title in titles)) for row in rows]
    echo(_table([("", *(title.upper() for title in titles)), *lines]))


@connections.command("test", epilog="\b\nExample:\n  loadgen connections test -c prod")
@click.option("-c", "--connection", "name", metavar="NAME", help="Which connection.  [default: the default one]")
@format_option
def test_connection(name: str | None, output: str) -> None:
    """Connect once, show who we are there, and time the round trip."""
    with embedded_server_if_needed(name):
        profile = find_profile(name)
        for warning in profile.warnings:
            echo(f"warning: {warning}", err=True)
        found = run_in_thread(lambda: probe(profile), name="connections-test")
    if output == "json":
        echo(json.dumps(_as_json(profile, found), indent=2))
    else:
        echo(_table(_as_lines(profile, found)))


def _running_server() -> tuple[str | None, str]:
    """The address of the server that runs on the data directory, None when none does; and where that is."""
    from loadgen.embedded.datadir import choose_data_dir, running_server

    data_dir = choose_data_dir()
    with suppress(LoadgenError):  # a directory that cannot be used has no server; starting one reports why
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


def _as_json(profile: ConnectionProfile, found: ConnectionProbe) -> dict[str, Any]:
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
    facts = {key: value for key, value in _as_json(profile, found).items() if key != "round_trip_ms"}
    lines = [(key.replace("_", " "), _shown(value)) for key, value in facts.items()]
    return [*lines, ("round trip", f"p50 {found.round_trip_ms_p50:.1f} ms of {ROUND_TRIPS} tries")]


def _shown(value: object) -> str:
    return "-" if value in (None, "") else str(value)


def _table(lines: Sequence[Sequence[str]]) -> str:
    """Columns side by side; nothing is cut off."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)
