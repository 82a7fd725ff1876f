"""Setting up the control plane: what is missing, the same as a script, and doing it.

First the ground (warehouse, database, schema), in a session that names none of them; then the tables, in a session
that names all of them, so that one which has to be opened again stands where the last one stood.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.setup.migrations import (
    Migration,
    SchemaState,
    apply_migrations,
    can_use,
    migration_statements,
    read_schema_state,
    require_current,
)
from loadgen.control.sql import NamedQuery, load_queries
from loadgen.control.tables.run_status import server_time
from loadgen.errors import LoadgenError, PrivilegeMissing
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.profile import EMBEDDED, ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.session import RetryPolicy


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
    """Which of them can be used."""
    place = session.place
    schema = can_use(session, patience, f"USE SCHEMA {place.schema_name.sql}")
    return Prerequisites(
        warehouse=can_use(session, patience, f"USE WAREHOUSE {Identifier.parse(place.warehouse).sql}"),
        database=schema or can_use(session, patience, f"USE DATABASE {Identifier.parse(place.database).sql}"),
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


def _query(sql: str) -> NamedQuery:
    return NamedQuery(name="setup", sql=sql, binds=0)


STATEMENT_LIMIT_S = 120  # a warehouse may have to start first, and the first hybrid table of a database takes longer

NO_HYBRID = (
    "Trial accounts, Google Cloud and government regions have no hybrid tables. There, keep the control plane on this"
    " machine: control: {connection: embedded} in the scenario."
)
_ROLE = NamedQuery(name="setup", sql="SELECT CURRENT_ROLE()", binds=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupState:
    """What there is, and therefore what has to be done."""

    place: ControlPlaneLocation
    role: str  # whose rights are asked for, when one is missing
    ground: Prerequisites
    state: SchemaState

    @property
    def is_current(self) -> bool:
        return self.ground.is_complete and not self.state.pending

    @property
    def statements(self) -> tuple[str, ...]:
        """Everything that would be executed, in order; together a script that does the same."""
        if self.is_current:
            return ()
        made = [query.sql for query in missing_prerequisites(self.place, self.ground)]
        use = f"USE WAREHOUSE {Identifier.parse(self.place.warehouse).sql}"
        made.insert(0 if self.ground.warehouse else 1, use)
        tables = list(migration_statements(self.place, self.state))
        for migration in self.state.pending:
            after = tables.index(migration.statements[-1]) + 1
            tables.insert(after, NamedQuery(name="setup", sql=_record(migration), binds=0))
        return (*made, *(query.sql for query in tables))


def inspect_setup(
    place: ControlPlaneLocation, patience: RetryPolicy, environ: Mapping[str, str] = os.environ
) -> SetupState:
    """See what is there; changes nothing. WrongSchema when it is newer than this loadgen."""
    with closing(_session(partial_location(place, Prerequisites()), environ)) as session:
        # The first contact is not repeated: a wrong address should be told at once.
        role = str(session.fetch(_ROLE)[0][0] or "PUBLIC")
        try:
            ground = check_prerequisites(session, patience)
        except ControlFailed as error:
            raise _refused(error, None, place, role) from error
    state = SchemaState(schema_exists=True, applied=())  # once the ground is there
    if ground.schema:
        with closing(_session(partial_location(place, ground), environ)) as session:
            state = read_schema_state(session, patience)
    return SetupState(place=place, role=role, ground=ground, state=state)


def apply_setup(
    setup: SetupState, patience: RetryPolicy, told: Callable[[str], None], environ: Mapping[str, str] = os.environ
) -> None:
    """Do what is missing; `told` hears of every step that was done."""
    place = setup.place
    missing = list(missing_prerequisites(place, setup.ground))
    if missing:
        with closing(_session(partial_location(place, Prerequisites()), environ)) as session:
            for query in missing:
                _make(session, patience, query, setup)
                told(query.sql)
    with closing(_session(place, environ)) as session:
        state = read_schema_state(session, patience)  # again: another setup may have been faster
        steps = list(migration_statements(place, state))
        done = 0

        def step_done(step: str) -> None:
            nonlocal done
            done += 1
            if not step.startswith("USE "):
                told(step)

        try:
            apply_migrations(session, patience, state, step_done)
        except ControlFailed as error:
            failed = steps[done].sql if done < len(steps) else None
            raise _refused(error, failed, place, setup.role) from error
        for migration in state.pending:
            told(f"recorded migration {migration.title}")


def _session(place: ControlPlaneLocation, environ: Mapping[str, str]) -> ControlSession:
    return ControlSession(place, role="setup", environ=environ, statement_limit_s=STATEMENT_LIMIT_S)


def _make(session: ControlSession, patience: RetryPolicy, query: NamedQuery, setup: SetupState) -> None:
    try:
        patience.call(lambda: session.execute(query))
    except ControlFailed as error:
        if not error.failure.is_existing_object:  # another setup at the same time was faster
            raise _refused(error, query.sql, setup.place, setup.role) from error


def _record(migration: Migration) -> str:
    """The statement that records a migration, with its values written out: digits, letters and underscores only."""
    sql = load_queries("schema_version")["record"].sql
    for value in (str(migration.version), f"'{migration.name}'", f"'{migration.digest}'", str(migration.version)):
        sql = sql.replace("?", value, 1)
    return sql


def _refused(error: ControlFailed, sql: str | None, place: ControlPlaneLocation, role: str) -> LoadgenError:
    """The error to show: when a right is missing, with the very statements that an administrator has to run."""
    failure = error.failure
    if failure.is_missing_privilege or failure.is_missing_object:
        wanted = "; ".join(_wanted(sql, place, Identifier(role).sql))
        return PrivilegeMissing(
            f"role {Identifier(role).sql} may not do it: {error}", remedy=f"Have an administrator run: {wanted};"
        )
    if sql is not None and sql.startswith("CREATE HYBRID") and not failure.retryable:
        return ControlFailed(str(error), failure, remedy=NO_HYBRID)
    return error


def _wanted(sql: str | None, place: ControlPlaneLocation, role: str) -> list[str]:
    warehouse, database = Identifier.parse(place.warehouse).sql, Identifier.parse(place.database).sql
    to = f"TO ROLE {role}"
    on_warehouse = f"GRANT USAGE ON WAREHOUSE {warehouse} {to}"
    on_database = f"GRANT USAGE ON DATABASE {database} {to}"
    on_schema = f"GRANT USAGE, CREATE TABLE, CREATE HYBRID TABLE ON SCHEMA {place.schema_name.sql} {to}"
    if sql is None:
        return [on_warehouse, on_database, on_schema]
    if sql.startswith("CREATE WAREHOUSE"):
        return [sql, on_warehouse]
    if sql.startswith("CREATE DATABASE"):
        return [sql, f"GRANT USAGE, CREATE SCHEMA ON DATABASE {database} {to}"]
    if sql.startswith("CREATE SCHEMA"):
        return [sql, on_database, on_schema]
    return [on_schema]


def ensure_tables(place: ControlPlaneLocation, patience: RetryPolicy) -> None:
    """Create missing tables on the embedded server; elsewhere require that `loadgen setup` has created them."""
    if place.connection == EMBEDDED:
        apply_setup(inspect_setup(place, patience), patience, lambda _: None)
        return
    with closing(ControlSession(place, role="tables")) as session:
        server_time(session)  # not retried: a wrong address is reported at once
        require_current(session, patience)
