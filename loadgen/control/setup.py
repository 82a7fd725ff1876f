"""Setting up the control plane: what is missing, the same as a script, and doing it.

First the ground (warehouse, database, schema), in a session that names none of them; then the tables, in a session
that names all of them, so that one which has to be opened again stands where the last one stood.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from loadgen.control.ground import Ground, as_found, groundwork, look_at_ground
from loadgen.control.migrations import Migration, State, apply, inspect, plan
from loadgen.control.place import ControlPlace
from loadgen.control.queries import Query, queries
from loadgen.control.retry import Patience
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.errors import LoadgenError, PrivilegeMissing
from loadgen.snowflake.ident import Ident

STATEMENT_LIMIT_S = 120  # a warehouse may have to start first, and the first hybrid table of a database takes longer

NO_HYBRID = (
    "Trial accounts, Google Cloud and government regions have no hybrid tables. There, keep the control plane on this"
    " machine: control: {connection: embedded} in the scenario."
)
_ALREADY_THERE = 2002
_MISSING = (2003, 2043, 90105, 90106)  # no such object; no current database or schema
_MISSING_PRIVILEGE = (3001, 3041)
_ROLE = Query(name="setup", sql="SELECT CURRENT_ROLE()", binds=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What there is, and therefore what has to be done."""

    place: ControlPlace
    role: str  # whose rights are asked for, when one is missing
    ground: Ground
    state: State

    @property
    def is_current(self) -> bool:
        return self.ground.is_complete and not self.state.pending

    @property
    def statements(self) -> tuple[str, ...]:
        """Everything that would be executed, in order; together a script that does the same."""
        if self.is_current:
            return ()
        made = [query.sql for query in groundwork(self.place, self.ground)]
        use = f"USE WAREHOUSE {Ident.parse(self.place.warehouse).sql}"
        made.insert(0 if self.ground.warehouse else 1, use)
        tables = list(plan(self.place, self.state))
        for migration in self.state.pending:
            after = tables.index(migration.statements[-1]) + 1
            tables.insert(after, Query(name="setup", sql=_record(migration), binds=0))
        return (*made, *(query.sql for query in tables))


def look(place: ControlPlace, patience: Patience, environ: Mapping[str, str] = os.environ) -> Setup:
    """See what is there; changes nothing. WrongSchema when it is newer than this loadgen."""
    with closing(_session(as_found(place, Ground()), environ)) as session:
        # The first contact is not repeated: a wrong address should be told at once.
        role = str(session.fetch(_ROLE)[0][0] or "PUBLIC")
        try:
            ground = look_at_ground(session, patience)
        except ControlFailed as error:
            raise _refused(error, None, place, role) from error
    state = State(schema_exists=True, applied=())  # once the ground is there
    if ground.schema:
        with closing(_session(as_found(place, ground), environ)) as session:
            state = inspect(session, patience)
    return Setup(place=place, role=role, ground=ground, state=state)


def do(setup: Setup, patience: Patience, told: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> None:
    """Do what is missing; `told` hears of every step that was done."""
    place = setup.place
    missing = list(groundwork(place, setup.ground))
    if missing:
        with closing(_session(as_found(place, Ground()), environ)) as session:
            for query in missing:
                _make(session, patience, query, setup)
                told(query.sql)
    with closing(_session(place, environ)) as session:
        state = inspect(session, patience)  # again: somebody may have been faster
        steps = list(plan(place, state))
        done = 0

        def step_done(step: str) -> None:
            nonlocal done
            done += 1
            if not step.startswith("USE "):
                told(step)

        try:
            apply(session, patience, state, step_done)
        except ControlFailed as error:
            failed = steps[done].sql if done < len(steps) else None
            raise _refused(error, failed, place, setup.role) from error
        for migration in state.pending:
            told(f"recorded migration {migration.title}")


def _session(place: ControlPlace, environ: Mapping[str, str]) -> ControlSession:
    return ControlSession(place, role="setup", environ=environ, statement_limit_s=STATEMENT_LIMIT_S)


def _make(session: ControlSession, patience: Patience, query: Query, setup: Setup) -> None:
    try:
        patience.call(lambda: session.execute(query))
    except ControlFailed as error:
        if error.failure.code != _ALREADY_THERE:  # somebody who sets up at the same time was faster
            raise _refused(error, query.sql, setup.place, setup.role) from error


def _record(migration: Migration) -> str:
    """The statement that records a migration, with its values written out: digits, letters and underscores only."""
    sql = queries("schema_version")["record"].sql
    for value in (str(migration.version), f"'{migration.name}'", f"'{migration.digest}'", str(migration.version)):
        sql = sql.replace("?", value, 1)
    return sql


def _refused(error: ControlFailed, sql: str | None, place: ControlPlace, role: str) -> LoadgenError:
    """The error to show: when a right is missing, with the very statements that an administrator has to run."""
    failure = error.failure
    lacking = failure.code in _MISSING_PRIVILEGE or failure.sqlstate == "42501"
    if lacking or failure.code in _MISSING:
        wanted = "; ".join(_wanted(sql, place, Ident(role).sql))
        return PrivilegeMissing(
            f"role {Ident(role).sql} may not do it: {error}", remedy=f"Have an administrator run: {wanted};"
        )
    if sql is not None and sql.startswith("CREATE HYBRID") and not failure.retryable:
        return ControlFailed(str(error), failure, remedy=NO_HYBRID)
    return error


def _wanted(sql: str | None, place: ControlPlace, role: str) -> list[str]:
    warehouse, database = Ident.parse(place.warehouse).sql, Ident.parse(place.database).sql
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
