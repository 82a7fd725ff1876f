"""Which control plane a command means: a scenario's, or that of options and variables; and its embedded server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loadgen.cli.common import echo
from loadgen.errors import ConfigurationError, UsageError
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.model.nightly import BaselineCheck
    from loadgen.scenario.read import LoadedScenario


Command = TypeVar("Command", bound=Callable[..., Any])


def scenario_options(command: Command) -> Command:
    """FILE and -c."""
    command = click.option("-c", "--connection", metavar="NAME", help="Use this connection, not the scenario's.")(
        command
    )
    return click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))(command)


def location_options(command: Command) -> Command:
    """Where the tables of the control plane are."""
    for name, default in (("warehouse", "LOADGEN_CONTROL_WH"), ("schema", "CONTROL"), ("database", "LOADGEN")):
        command = click.option(
            f"--{name}", metavar="NAME", help=f"The control plane's {name}.  [default: the scenario's, or {default}]"
        )(command)
    return command


def format_option(command: Command) -> Command:
    choice = click.Choice(["text", "json"])
    return click.option("--format", "output", type=choice, default="text", show_default=True, help="How to print.")(
        command
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTarget:
    """What a command line is about."""

    place: ControlPlaneLocation
    connection: str | None  # the target's; None: the default one
    loaded: LoadedScenario | None  # the scenario, with this connection


def resolve_target(file: Path | None, connection: str | None, **parts: str | None) -> CommandTarget:
    """The scenario's control plane, or that of the variables LOADGEN_CONTROL_*; options come before both."""
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.snowflake.ident import Identifier

    given = {name: text for name, text in parts.items() if text is not None}
    for text in given.values():
        Identifier.parse(text)  # here, where the option can still be told
    if file is None:
        place = ControlPlaneLocation.from_environment()
        place = replace(place, connection=connection or place.connection or _the_only_one())
        loaded = None
        target = connection or os.environ.get("LOADGEN_CONNECTION") or place.connection
    else:
        loaded = _loaded(file, connection, [f"control.{name}={text}" for name, text in given.items()])
        place, target = ControlPlaneLocation.of_scenario(loaded.scenario), loaded.scenario.connection
    return CommandTarget(place=replace(place, **given), connection=target, loaded=loaded)


def _the_only_one() -> str | None:
    """Whoever has no connection at all, as after the first run of an example, can only mean the embedded server."""
    from loadgen.snowflake.profile import EMBEDDED
    from loadgen.snowflake.profile_lookup import known_profiles

    try:
        found = [profile.name for profile in known_profiles(os.environ)[0]]
    except ConfigurationError:  # told by whoever looks for the connection itself
        return None
    return EMBEDDED if found == [EMBEDDED] else None


def _loaded(file: Path, connection: str | None, overrides: Sequence[str]) -> LoadedScenario:
    from loadgen.scenario.read import read_scenario

    loaded = read_scenario(file, overrides=overrides, environ=os.environ)
    return replace(loaded, scenario=replace(loaded.scenario, connection=connection or loaded.scenario.connection))


def print_scenario_warnings(loaded: LoadedScenario | None) -> None:
    """Say what the scenario's reader had to say."""
    for warning in loaded.warnings if loaded is not None else ():
        echo(f"warning: {printable(str(warning))}", err=True)


@contextmanager
def embedded_server_if_needed(*connections: str | None) -> Iterator[str | None]:
    """Keep the embedded server up when one of the connections leads there, and say its address. Any will do: nothing is
    measured."""
    if not any(map(_leads_to_embedded, connections)):
        yield None
        return
    from loadgen.embedded.client import embedded_server

    with embedded_server() as address:
        yield address


def _leads_to_embedded(connection: str | None) -> bool:
    from loadgen.snowflake.config_files import read_config_files
    from loadgen.snowflake.profile import EMBEDDED

    if connection is not None:
        return connection == EMBEDDED
    try:
        return read_config_files(os.environ).default_name == EMBEDDED
    except ConfigurationError:  # told by whoever looks for the connection itself, with what it was for
        return False


TREND = "trend"


def baseline_options(command: Command) -> Command:
    baseline = click.option(
        "--baseline",
        metavar="RUN|trend",
        help="Compare with this run, or with the trend of the same scenario; exit code 11 when it is worse.",
    )
    confirm = click.option(
        "--confirm", is_flag=True, help="With --baseline trend: run once more when a regression is suspected."
    )
    return baseline(confirm(command))


def check_confirm(baseline: str | None, confirm: bool) -> None:
    if confirm and baseline != TREND:
        raise UsageError("--confirm needs --baseline trend", remedy="Add --baseline trend.")


def baseline_check_of(baseline: str | None, confirm: bool, place: ControlPlaneLocation) -> BaselineCheck:
    """For a run that is done later: what it will be compared with, which must be fit for that now."""
    from loadgen.cli.baseline import check_baseline
    from loadgen.model.nightly import BaselineCheck

    check_confirm(baseline, confirm)
    return BaselineCheck(baseline=None if baseline is None else check_baseline(baseline, place), confirm=confirm)
