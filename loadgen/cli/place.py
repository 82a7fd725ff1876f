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
from loadgen.errors import ConfigurationError
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.control.place import ControlPlace
    from loadgen.scenario.read import Loaded

Command = TypeVar("Command", bound=Callable[..., Any])


def scenario_option(command: Command) -> Command:
    """FILE and -c."""
    command = click.option("-c", "--connection", metavar="NAME", help="Use this connection, not the scenario's.")(
        command
    )
    return click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))(command)


def place_options(command: Command) -> Command:
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
class Meant:
    """What a command line is about."""

    place: ControlPlace
    connection: str | None  # the target's; None: the default one
    loaded: Loaded | None  # the scenario, with this connection


def meant(file: Path | None, connection: str | None, **parts: str | None) -> Meant:
    """The scenario's control plane, or that of the variables LOADGEN_CONTROL_*; options come before both."""
    from loadgen.control.place import ControlPlace
    from loadgen.snowflake.ident import Ident

    given = {name: text for name, text in parts.items() if text is not None}
    for text in given.values():
        Ident.parse(text)  # here, where the option can still be told
    if file is None:
        place = ControlPlace.from_environment()
        place = replace(place, connection=connection or place.connection or _the_only_one())
        loaded = None
        target = connection or os.environ.get("LOADGEN_CONNECTION") or place.connection
    else:
        loaded = _loaded(file, connection, [f"control.{name}={text}" for name, text in given.items()])
        place, target = ControlPlace.of_scenario(loaded.scenario), loaded.scenario.connection
    return Meant(place=replace(place, **given), connection=target, loaded=loaded)


def _the_only_one() -> str | None:
    """Whoever has no connection at all, as after the first run of an example, can only mean the embedded server."""
    from loadgen.snowflake.lookup import known_profiles
    from loadgen.snowflake.profile import EMBEDDED

    try:
        found = [profile.name for profile in known_profiles(os.environ)[0]]
    except ConfigurationError:  # told by whoever looks for the connection itself
        return None
    return EMBEDDED if found == [EMBEDDED] else None


def _loaded(file: Path, connection: str | None, overrides: Sequence[str]) -> Loaded:
    from loadgen.scenario.read import read_scenario

    loaded = read_scenario(file, overrides=overrides, environ=os.environ)
    return replace(loaded, scenario=replace(loaded.scenario, connection=connection or loaded.scenario.connection))


def warn(loaded: Loaded | None) -> None:
    """Say what the scenario's reader had to say."""
    for warning in loaded.warnings if loaded is not None else ():
        echo(f"warning: {printable(str(warning))}", err=True)


@contextmanager
def serving(*connections: str | None) -> Iterator[None]:
    """Keep the embedded server up when one of the connections leads there. Any will do: nothing is measured."""
    if not any(map(_leads_to_embedded, connections)):
        yield
        return
    from loadgen.cli.embedded_server import embedded_server

    with embedded_server():
        yield


def _leads_to_embedded(connection: str | None) -> bool:
    from loadgen.snowflake.configfile import read_config_files
    from loadgen.snowflake.profile import EMBEDDED

    if connection is not None:
        return connection == EMBEDDED
    try:
        return read_config_files(os.environ).default_name == EMBEDDED
    except ConfigurationError:  # told by whoever looks for the connection itself, with what it was for
        return False
