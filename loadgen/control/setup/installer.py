"""Creates and updates the control plane, or prints the missing statements as a script.

First the prerequisites (warehouse, database, schema) are created, in a session whose login names none of them. Then the
tables are created, in a session whose login names all of them, so that a reconnect restores the current schema.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import cache
from importlib.resources import files
from typing import TypeVar

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession, NamedQuery, load_queries, without_comments
from loadgen.control.tables.run_status import server_time
from loadgen.errors import ConfigurationError, LoadgenError, PrivilegeMissing
from loadgen.log import printable
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.profile import EMBEDDED, ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

Result = TypeVar("Result")

# --- Migrations: the numbered files in schemas/control_plane ----------------------------------------------------------
#
# Every statement is idempotent (IF NOT EXISTS), so a file may be applied twice, after a crash or by two processes at
# once. An applied file is never applied again. Its digest shows whether it was edited afterwards.

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_TABLE = re.compile(r"CREATE (HYBRID )?TABLE IF NOT EXISTS (\w+)")
_Q = load_queries("schema_version")


class WrongSchema(ConfigurationError):
    """The control plane was created by another version of loadgen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    version: int
    name: str
    digest: str
    statements: tuple[NamedQuery, ...]

    @property
    def title(self) -> str:
        return f"{self.version:04d}_{self.name}"

    @property
    def tables(self) -> tuple[tuple[str, bool], ...]:
        """(table, is hybrid) of each table that the migration creates."""
        found = (_TABLE.match(statement.sql) for statement in self.statements)
        return tuple((match[2], match[1] is not None) for match in found if match)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """The schema as it was found."""

    schema_exists: bool
    applied: tuple[int, ...]

    @property
    def pending(self) -> tuple[Migration, ...]:
        return tuple(migration for migration in migrations() if migration.version not in self.applied)

    @property
    def is_current(self) -> bool:
        return self.schema_exists and not self.pending


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations, in order."""
    found = []
    for path in (files("schemas") / "control_plane").iterdir():
        match = _FILE.fullmatch(path.name)
        if match is not None:
            text = path.read_text("utf-8")
            found.append(
                Migration(
                    version=int(match[1]),
                    name=match[2],
                    digest=hashlib.sha256(without_comments(text).encode()).hexdigest(),
                    statements=tuple(_statements(path.name, text)),
                )
            )
    return tuple(sorted(found, key=lambda migration: migration.version))


def read_schema_state(session: ControlSession, retries: RetryPolicy) -> SchemaState:
    """The state of the schema; WrongSchema if it is newer than this loadgen, or was created by an edited file."""
    try:
        rows = retries.call(lambda: session.fetch(_Q["applied"]))
    except ControlFailed as error:
        if not error.failure.is_missing_object:
            raise
        use = f"USE SCHEMA {session.place.schema_name.sql}"
        return SchemaState(schema_exists=can_use(session, retries, use), applied=())
    known = {migration.version: migration for migration in migrations()}
    for version, name, digest in rows:
        _check(int(version), name, digest, known, session.place)
    return SchemaState(schema_exists=True, applied=tuple(sorted({int(version) for version, _, _ in rows})))


def migration_statements(place: ControlPlaneLocation, state: SchemaState) -> Iterator[NamedQuery]:
    """The statements that bring the tables up to date, in order."""
    if not state.schema_exists:
        database, schema = Identifier.parse(place.database), place.schema_name
        yield NamedQuery(name="setup.database", sql=f"CREATE DATABASE IF NOT EXISTS {database.sql}", binds=0)
        yield NamedQuery(name="setup.schema", sql=f"CREATE SCHEMA IF NOT EXISTS {schema.sql}", binds=0)
    if state.pending:
        yield NamedQuery(name="setup.use", sql=f"USE SCHEMA {place.schema_name.sql}", binds=0)
        if not state.applied:
            yield _Q["create"]
    for migration in state.pending:
        yield from migration.statements


def apply_migrations(
    session: ControlSession, retries: RetryPolicy, state: SchemaState, told: Callable[[str], None] = lambda _: None
) -> None:
    """Bring the tables up to date. `told` is called with every step."""
    recorded: list[Migration] = []
    for query in migration_statements(session.place, state):
        retries.call(lambda query=query: _execute(session, query))  # type: ignore[misc]
        told(_step(query))
        for migration in state.pending:
            if query is migration.statements[-1]:
                retries.call(lambda done=migration: _migrations_record(session, done))  # type: ignore[misc]
                recorded.append(migration)
    assert len(recorded) == len(state.pending)


def require_current(session: ControlSession, retries: RetryPolicy) -> None:
    """For commands that use the tables: WrongSchema if they do not exist or are out of date."""
    state = read_schema_state(session, retries)
    if not state.is_current:
        where = session.place.schema_name.sql
        what = "has no tables yet" if not state.applied else "is older than this loadgen"
        raise WrongSchema(f"the control plane in {where} {what}", remedy="Run `loadgen setup`.")


def _check(version: int, name: str, digest: str, known: dict[int, Migration], place: ControlPlaneLocation) -> None:
    if version not in known:
        raise WrongSchema(
            f"the control plane in {place.schema_name.sql} is newer than this loadgen:"
            f" it has migration {version:04d}_{name}, and the last one that it knows is {max(known):04d}",
            remedy="Use a newer loadgen; nothing was changed.",
        )
    if digest != known[version].digest:
        raise WrongSchema(
            f"migration {version:04d}_{name} was applied to {place.schema_name.sql} with another text",
            remedy="Use the loadgen that created it, or another schema (control.schema); nothing was changed.",
        )


def can_use(session: ControlSession, retries: RetryPolicy, sql: str) -> bool:
    """Whether USE succeeds; False: the object does not exist. USE needs no more privileges than using the object."""
    use = NamedQuery(name="setup.use", sql=sql, binds=0)
    try:
        retries.call(lambda: session.execute(use))
    except ControlFailed as error:
        if error.failure.is_missing_object:
            return False
        raise
    return True


def _execute(session: ControlSession, query: NamedQuery) -> None:
    try:
        session.execute(query)
    except ControlFailed as error:
        if not error.failure.is_existing_object:  # another setup at the same time was faster
            raise


def _migrations_record(session: ControlSession, migration: Migration) -> None:
    row = (migration.version, migration.name, migration.digest, migration.version)
    session.execute(_Q["record"], *row)


def _statements(name: str, text: str) -> Iterator[NamedQuery]:
    """The statements of a file. A semicolon ends a statement and a line, and occurs nowhere else."""
    for number, part in enumerate(re.split(r";\s*$", without_comments(text), flags=re.MULTILINE)):
        if sql := part.strip():
            if ";" in sql:
                raise LoadgenError(f"{name}: statement {number + 1} has a semicolon inside")
            yield NamedQuery(name=f"{name}:{number + 1}", sql=sql, binds=0)


def _step(query: NamedQuery) -> str:
    """A short description of a statement: its beginning up to the name of the object."""
    return " ".join(query.sql.split("(")[0].split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Prerequisites:
    """Which of the prerequisites exist and can be used."""

    warehouse: bool = False
    database: bool = False
    schema: bool = False

    @property
    def is_complete(self) -> bool:
        return self.warehouse and self.schema


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialLocation(ControlPlaneLocation):
    """A location with parts that may be missing. A login names only existing parts: the embedded server creates
    others."""

    prerequisites: Prerequisites = Prerequisites()

    def profile(self, environ: Mapping[str, str] = os.environ) -> ConnectionProfile:
        found = self.prerequisites
        parts = {"warehouse": found.warehouse, "database": found.database, "schema": found.schema}
        return find_profile(
            self.connection,
            environ=environ,
            overrides={name: getattr(self, name) for name, is_there in parts.items() if is_there},
        )


def partial_location(place: ControlPlaneLocation, prerequisites: Prerequisites) -> PartialLocation:
    """The location with the parts that exist."""
    return PartialLocation(
        connection=place.connection,
        database=place.database,
        schema=place.schema,
        warehouse=place.warehouse,
        prerequisites=prerequisites,
    )


def check_prerequisites(session: ControlSession, retries: RetryPolicy) -> Prerequisites:
    """Which of the prerequisites exist and can be used."""
    place = session.place
    schema = can_use(session, retries, f"USE SCHEMA {place.schema_name.sql}")
    return Prerequisites(
        warehouse=can_use(session, retries, f"USE WAREHOUSE {Identifier.parse(place.warehouse).sql}"),
        database=schema or can_use(session, retries, f"USE DATABASE {Identifier.parse(place.database).sql}"),
        schema=schema,
    )


def missing_prerequisites(place: ControlPlaneLocation, prerequisites: Prerequisites) -> Iterator[NamedQuery]:
    """The statements that create the missing parts. For existing parts even IF NOT EXISTS would need the privilege."""
    if not prerequisites.warehouse:
        name = Identifier.parse(place.warehouse).sql
        yield _query(
            f"CREATE WAREHOUSE IF NOT EXISTS {name} WITH WAREHOUSE_SIZE = XSMALL AUTO_SUSPEND = 60 AUTO_RESUME = TRUE"
            " INITIALLY_SUSPENDED = TRUE COMMENT = 'control plane of loadgen'"
        )
    if not prerequisites.database:
        yield _query(f"CREATE DATABASE IF NOT EXISTS {Identifier.parse(place.database).sql}")
    if not prerequisites.schema:
        yield _query(f"CREATE SCHEMA IF NOT EXISTS {place.schema_name.sql}")


def _query(sql: str) -> NamedQuery:
    return NamedQuery(name="setup", sql=sql, binds=0)


STATEMENT_LIMIT_S = 120  # the warehouse may have to start, and the first hybrid table of a database takes longer

NO_HYBRID = (
    "Trial accounts, Google Cloud and government regions have no hybrid tables. There, keep the control plane on this"
    " machine: control: {connection: embedded} in the scenario."
)
_ROLE = NamedQuery(name="setup", sql="SELECT CURRENT_ROLE()", binds=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupState:
    """The state of the control plane, from which the missing steps follow."""

    place: ControlPlaneLocation
    role: str  # for the GRANT statements when a privilege is missing
    prerequisites: Prerequisites
    state: SchemaState

    @property
    def is_current(self) -> bool:
        return self.prerequisites.is_complete and not self.state.pending

    @property
    def statements(self) -> tuple[str, ...]:
        """Everything that would be executed, in order: a complete script."""
        if self.is_current:
            return ()
        made = [query.sql for query in missing_prerequisites(self.place, self.prerequisites)]
        use = f"USE WAREHOUSE {Identifier.parse(self.place.warehouse).sql}"
        made.insert(0 if self.prerequisites.warehouse else 1, use)
        tables = list(migration_statements(self.place, self.state))
        for migration in self.state.pending:
            after = tables.index(migration.statements[-1]) + 1
            tables.insert(after, NamedQuery(name="setup", sql=_record(migration), binds=0))
        return (*made, *(query.sql for query in tables))


def inspect_setup(
    place: ControlPlaneLocation, retries: RetryPolicy, environ: Mapping[str, str] = os.environ
) -> SetupState:
    """Read the state of the control plane. WrongSchema if it is newer than this loadgen."""
    with closing(_session(partial_location(place, Prerequisites()), environ)) as session:
        # Not retried: a wrong address is reported at once.
        role = str(session.fetch(_ROLE)[0][0] or "PUBLIC")
        try:
            prerequisites = check_prerequisites(session, retries)
        except ControlFailed as error:
            raise _refused(error, None, place, role) from error
    state = SchemaState(schema_exists=True, applied=())  # the state once the schema is created
    if prerequisites.schema:
        with closing(_session(partial_location(place, prerequisites), environ)) as session:
            state = read_schema_state(session, retries)
    return SetupState(place=place, role=role, prerequisites=prerequisites, state=state)


def apply_setup(
    setup: SetupState, retries: RetryPolicy, told: Callable[[str], None], environ: Mapping[str, str] = os.environ
) -> None:
    """Execute the missing steps. `told` is called after every step."""
    place = setup.place
    missing = list(missing_prerequisites(place, setup.prerequisites))
    if missing:
        with closing(_session(partial_location(place, Prerequisites()), environ)) as session:
            for query in missing:
                _make(session, retries, query, setup)
                told(query.sql)
    with closing(_session(place, environ)) as session:
        state = read_schema_state(session, retries)  # again: another setup may have been faster
        steps = list(migration_statements(place, state))
        done = 0

        def step_done(step: str) -> None:
            nonlocal done
            done += 1
            if not step.startswith("USE "):
                told(step)

        try:
            apply_migrations(session, retries, state, step_done)
        except ControlFailed as error:
            failed = steps[done].sql if done < len(steps) else None
            raise _refused(error, failed, place, setup.role) from error
        for migration in state.pending:
            told(f"recorded migration {migration.title}")


def _session(place: ControlPlaneLocation, environ: Mapping[str, str]) -> ControlSession:
    return ControlSession(place, role="setup", environ=environ, statement_limit_s=STATEMENT_LIMIT_S)


def _make(session: ControlSession, retries: RetryPolicy, query: NamedQuery, setup: SetupState) -> None:
    try:
        retries.call(lambda: session.execute(query))
    except ControlFailed as error:
        if not error.failure.is_existing_object:  # another setup at the same time was faster
            raise _refused(error, query.sql, setup.place, setup.role) from error


def _record(migration: Migration) -> str:
    """The statement that records a migration, with literal values: digits, letters and underscores only."""
    sql = load_queries("schema_version")["record"].sql
    for value in (str(migration.version), f"'{migration.name}'", f"'{migration.digest}'", str(migration.version)):
        sql = sql.replace("?", value, 1)
    return sql


def _refused(error: ControlFailed, sql: str | None, place: ControlPlaneLocation, role: str) -> LoadgenError:
    """The error to show. If a privilege is missing, with the statements that an administrator has to execute."""
    failure = error.failure
    if failure.is_missing_privilege or failure.is_missing_object:
        wanted = "; ".join(_wanted(sql, place, Identifier(role).sql))
        return PrivilegeMissing(
            f"role {Identifier(role).sql} lacks a privilege: {error}", remedy=f"Have an administrator run: {wanted};"
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


def ensure_tables(place: ControlPlaneLocation, retries: RetryPolicy) -> None:
    """Create missing tables on the embedded server; elsewhere require that `loadgen setup` has created them."""
    if place.connection == EMBEDDED:
        setup = inspect_setup(place, retries)
        if not setup.is_current:
            apply_setup(setup, retries, lambda _: None)
        return
    with closing(ControlSession(place, role="tables")) as session:
        server_time(session)  # not retried: a wrong address is reported at once
        require_current(session, retries)


def call_with_tables(
    place: ControlPlaneLocation,
    role: str,
    action: Callable[[ControlSession, RetryPolicy], Result],
    retries: RetryPolicy,
) -> Result:
    """Call `action` with a session. A new embedded server has no tables yet: they are created, and it is repeated.
    Elsewhere than at the default location tables are only updated, because the name may be mistyped."""
    with closing(ControlSession(place, role=role)) as session:
        try:
            return action(session, retries)
        except ControlFailed as error:
            if not error.failure.is_missing_object or place.connection != EMBEDDED:
                raise
            if not place.is_default and not read_schema_state(session, retries).applied:
                where = printable(f"{place.database}.{place.schema}", 300)
                remedy = "Correct --database and --schema, or create it with `loadgen setup`."
                raise WrongSchema(f"there is no control plane in {where}", remedy=remedy) from error
            ensure_tables(place, retries)
            return action(session, retries)
