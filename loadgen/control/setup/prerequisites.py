"""What the tables of the control plane stand on: a warehouse, a database and a schema. Are they there?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.retry import RetryPolicy
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.sql import NamedQuery
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile

_MISSING = (2003, 2043, 90105, 90106)  # no such object; no current database or schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Prerequisites:
    """Which of them can be used."""

    warehouse: bool = False
    database: bool = False
    schema: bool = False

    @property
    def is_complete(self) -> bool:
        return self.warehouse and self.schema


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialLocation(ControlPlaneLocation):
    """A place that may not be complete: a log-in names only what is there, since the embedded server makes the rest."""

    ground: Prerequisites = Prerequisites()

    def profile(self, environ: Mapping[str, str] = os.environ) -> ConnectionProfile:
        parts = {"warehouse": self.ground.warehouse, "database": self.ground.database, "schema": self.ground.schema}
        return find_profile(
            self.connection,
            environ=environ,
            overrides={name: getattr(self, name) for name, is_there in parts.items() if is_there},
        )


def partial_location(place: ControlPlaneLocation, ground: Prerequisites) -> PartialLocation:
    """The place, to be entered with what is there."""
    return PartialLocation(
        connection=place.connection,
        database=place.database,
        schema=place.schema,
        warehouse=place.warehouse,
        ground=ground,
    )


def check_prerequisites(session: ControlSession, patience: RetryPolicy) -> Prerequisites:
    """Try to use each; asked in this way, it needs no right that using them does not need."""
    place = session.place
    schema = _usable(session, patience, f"USE SCHEMA {place.schema_name.sql}")
    return Prerequisites(
        warehouse=_usable(session, patience, f"USE WAREHOUSE {Identifier.parse(place.warehouse).sql}"),
        database=schema or _usable(session, patience, f"USE DATABASE {Identifier.parse(place.database).sql}"),
        schema=schema,
    )


def missing_prerequisites(place: ControlPlaneLocation, ground: Prerequisites) -> Iterator[NamedQuery]:
    """The statements that make what is missing. What is there is not made again: even that would need the right to."""
    if not ground.warehouse:
        name = Identifier.parse(place.warehouse).sql
        yield _query(
            f"CREATE WAREHOUSE IF NOT EXISTS {name} WITH WAREHOUSE_SIZE = XSMALL AUTO_SUSPEND = 60 AUTO_RESUME = TRUE"
            " INITIALLY_SUSPENDED = TRUE COMMENT = 'control plane of loadgen'"
        )
    if not ground.database:
        yield _query(f"CREATE DATABASE IF NOT EXISTS {Identifier.parse(place.database).sql}")
    if not ground.schema:
        yield _query(f"CREATE SCHEMA IF NOT EXISTS {place.schema_name.sql}")


def _usable(session: ControlSession, patience: RetryPolicy, sql: str) -> bool:
    query = _query(sql)
    try:
        patience.call(lambda: session.execute(query))
    except ControlFailed as error:
        if error.failure.code in _MISSING:
            return False
        raise
    return True


def _query(sql: str) -> NamedQuery:
    return NamedQuery(name="setup", sql=sql, binds=0)
