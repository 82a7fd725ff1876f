"""The location of the control plane, and the environment variables that pass it to the processes of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from loadgen.model.run import CONTROL_WAREHOUSE
from loadgen.snowflake.ident import Identifier, QualifiedName
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.values import dataclass

if TYPE_CHECKING:
    from loadgen.scenario.model import Scenario

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
    def schema_name(self) -> QualifiedName:
        return QualifiedName((Identifier.parse(self.database), Identifier.parse(self.schema)))

    def profile(self, environ: Mapping[str, str] = os.environ) -> ConnectionProfile:
        """The profile of the connection, with this database, schema and warehouse."""
        overrides = {"database": self.database, "schema": self.schema, "warehouse": self.warehouse}
        return find_profile(self.connection, environ=environ, overrides=overrides)
