"""The location of the control plane: from options, a scenario or the environment, and for the processes of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from loadgen.model.run import CONTROL_WAREHOUSE
from loadgen.snowflake.ident import Identifier, QualifiedName
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile, only_connection
from loadgen.values import dataclass

if TYPE_CHECKING:
    from loadgen.scenario.model import Scenario
    from loadgen.scenario.read import LoadedScenario

_VARIABLES = {
    "connection": "LOADGEN_CONTROL_CONNECTION",
    "database": "LOADGEN_CONTROL_DATABASE",
    "schema": "LOADGEN_CONTROL_SCHEMA",
    "warehouse": "LOADGEN_CONTROL_WAREHOUSE",
}
_CONNECTION = "LOADGEN_CONNECTION"  # of the target, and of the control plane unless it has another connection


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder for files that loadgen keeps between the commands of a user."""
    state = environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path(environ.get("HOME") or "/tmp") / ".local" / "state"
    return base / "loadgen"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneLocation:
    """Connection, database, schema and warehouse of the control plane. Names are written as in a scenario."""

    connection: str | None = None  # None: the default connection
    database: str = "LOADGEN"
    schema: str = "CONTROL"
    warehouse: str = CONTROL_WAREHOUSE

    @classmethod
    def of_scenario(cls, scenario: Scenario) -> Self:
        control = scenario.control
        return cls(
            connection=control.connection or scenario.connection,
            database=control.database,
            schema=control.schema,
            warehouse=control.warehouse,
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        given = {name: environ[variable] for name, variable in _VARIABLES.items() if environ.get(variable)}
        if "connection" not in given and environ.get(_CONNECTION):
            given["connection"] = environ[_CONNECTION]
        return cls(**given)

    def to_environment(self) -> dict[str, str]:
        """The variables for the environment of a worker. All of them are set, empty for the default connection: a
        variable of the user's shell must not lead a worker elsewhere."""
        return {variable: getattr(self, name) or "" for name, variable in _VARIABLES.items()}

    @property
    def is_default(self) -> bool:
        """Whether these are the database and schema of a control plane for which nothing is configured."""
        return self.schema_name == ControlPlaneLocation().schema_name

    @property
    def schema_name(self) -> QualifiedName:
        return QualifiedName((Identifier.parse(self.database), Identifier.parse(self.schema)))

    def profile(self, environ: Mapping[str, str] = os.environ) -> ConnectionProfile:
        """The profile of the connection, with this database, schema and warehouse."""
        overrides = {"database": self.database, "schema": self.schema, "warehouse": self.warehouse}
        return find_profile(self.connection, environ=environ, overrides=overrides)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTarget:
    """The control plane, the target and the scenario of a command line."""

    place: ControlPlaneLocation
    connection: str | None  # the target's; None: the default one
    loaded: LoadedScenario | None  # the scenario, with this connection


def resolve_target(file: Path | None, connection: str | None, **parts: str | None) -> CommandTarget:
    """The control plane of the scenario, or without a scenario that of the variables LOADGEN_CONTROL_*; `connection`
    and `parts` (database, schema, warehouse) override both."""
    given = {name: text for name, text in parts.items() if text is not None}
    for text in given.values():
        Identifier.parse(text)  # checked here, where the error can name the option
    if file is None:
        place = ControlPlaneLocation.from_environment()
        place = replace(place, connection=connection or place.connection or only_connection())
        return CommandTarget(
            place=replace(place, **given),
            connection=connection or os.environ.get(_CONNECTION) or place.connection,
            loaded=None,
        )
    from loadgen.scenario.read import read_scenario  # takes long to import, and workers need none of it

    overrides = [f"control.{name}={text}" for name, text in given.items()]
    loaded = read_scenario(file, overrides=overrides, environ=os.environ)
    scenario = replace(loaded.scenario, connection=connection or loaded.scenario.connection)
    return CommandTarget(
        place=replace(ControlPlaneLocation.of_scenario(scenario), **given),
        connection=scenario.connection,
        loaded=replace(loaded, scenario=scenario),
    )
