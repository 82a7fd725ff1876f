"""What the tables of the control plane stand on: a warehouse, a database and a schema. Are they there?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loadgen.control.place import ControlPlace
from loadgen.control.queries import Query
from loadgen.control.retry import Patience
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.snowflake.ident import Ident
from loadgen.snowflake.lookup import find_profile
from loadgen.snowflake.profile import Profile

_MISSING = (2003, 2043, 90105, 90106)  # no such object; no current database or schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Which of them can be used."""

    warehouse: bool = False
    database: bool = False
    schema: bool = False

    @property
    def is_complete(self) -> bool:
        return self.warehouse and self.schema


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlace(ControlPlace):
    """A place that may not be complete: a log-in names only what is there, since the embedded server makes the rest."""

    ground: Ground = Ground()

    def profile(self, environ: Mapping[str, str] = os.environ) -> Profile:
        parts = {"warehouse": self.ground.warehouse, "database": self.ground.database, "schema": self.ground.schema}
        return find_profile(
            self.connection,
            environ=environ,
            overrides={name: getattr(self, name) for name, is_there in parts.items() if is_there},
        )


def as_found(place: ControlPlace, ground: Ground) -> FoundPlace:
    """The place, to be entered with what is there."""
    return FoundPlace(
        connection=place.connection,
        database=place.database,
        schema=place.schema,
        warehouse=place.warehouse,
        ground=ground,
    )


def look_at_ground(session: ControlSession, patience: Patience) -> Ground:
    """Try to use each; asked in this way, it needs no right that using them does not need."""
    place = session.place
    schema = _usable(session, patience, f"USE SCHEMA {place.schema_name.sql}")
    return Ground(
        warehouse=_usable(session, patience, f"USE WAREHOUSE {Ident.parse(place.warehouse).sql}"),
        database=schema or _usable(session, patience, f"USE DATABASE {Ident.parse(place.database).sql}"),
        schema=schema,
    )


def groundwork(place: ControlPlace, ground: Ground) -> Iterator[Query]:
    """The statements that make what is missing. What is there is not made again: even that would need the right to."""
    if not ground.warehouse:
        name = Ident.parse(place.warehouse).sql
        yield _query(
            f"CREATE WAREHOUSE IF NOT EXISTS {name} WITH WAREHOUSE_SIZE = XSMALL AUTO_SUSPEND = 60 AUTO_RESUME = TRUE"
            " INITIALLY_SUSPENDED = TRUE COMMENT = 'control plane of loadgen'"
        )
    if not ground.database:
        yield _query(f"CREATE DATABASE IF NOT EXISTS {Ident.parse(place.database).sql}")
    if not ground.schema:
        yield _query(f"CREATE SCHEMA IF NOT EXISTS {place.schema_name.sql}")


def _usable(session: ControlSession, patience: Patience, sql: str) -> bool:
    query = _query(sql)
    try:
        patience.call(lambda: session.execute(query))
    except ControlFailed as error:
        if error.failure.code in _MISSING:
            return False
        raise
    return True


def _query(sql: str) -> Query:
    return Query(name="setup", sql=sql, binds=0)
