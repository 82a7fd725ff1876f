"""Making and updating the tables of the control plane, from the numbered files in schemas/control_plane.

Every statement is idempotent (IF NOT EXISTS), so applying a file twice, after a crash or by two people at once, is
harmless. A file that was applied is never applied again; its digest tells when it was edited after all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.sql import NamedQuery, load_queries, without_comments
from loadgen.errors import ConfigurationError, LoadgenError
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.session import RetryPolicy

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_TABLE = re.compile(r"CREATE (HYBRID )?TABLE IF NOT EXISTS (\w+)")
_Q = load_queries("schema_version")


class WrongSchema(ConfigurationError):
    """The control plane was made by another version of loadgen."""


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
        """(table, is hybrid) of each table it makes."""
        found = (_TABLE.match(statement.sql) for statement in self.statements)
        return tuple((match[2], match[1] is not None) for match in found if match)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """What is there."""

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
    """All of them, in order."""
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


def read_schema_state(session: ControlSession, patience: RetryPolicy) -> SchemaState:
    """What is there; WrongSchema when it is newer than this loadgen, or was made by an edited file."""
    try:
        rows = patience.call(lambda: session.fetch(_Q["applied"]))
    except ControlFailed as error:
        if not error.failure.is_missing_object:
            raise
        use = f"USE SCHEMA {session.place.schema_name.sql}"
        return SchemaState(schema_exists=can_use(session, patience, use), applied=())
    known = {migration.version: migration for migration in migrations()}
    for version, name, digest in rows:
        _check(int(version), name, digest, known, session.place)
    return SchemaState(schema_exists=True, applied=tuple(sorted({int(version) for version, _, _ in rows})))


def migration_statements(place: ControlPlaneLocation, state: SchemaState) -> Iterator[NamedQuery]:
    """Every statement that has to be executed to be current, in order."""
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
    session: ControlSession, patience: RetryPolicy, state: SchemaState, told: Callable[[str], None] = lambda _: None
) -> None:
    """Bring the control plane up to date; `told` hears of every step."""
    recorded: list[Migration] = []
    for query in migration_statements(session.place, state):
        patience.call(lambda query=query: _execute(session, query))  # type: ignore[misc]
        told(_step(query))
        for migration in state.pending:
            if query is migration.statements[-1]:
                patience.call(lambda done=migration: _record(session, done))  # type: ignore[misc]
                recorded.append(migration)
    assert len(recorded) == len(state.pending)


def require_current(session: ControlSession, patience: RetryPolicy) -> None:
    """For commands that use the tables: WrongSchema when there are none, or old ones."""
    state = read_schema_state(session, patience)
    if not state.is_current:
        where = session.place.schema_name.sql
        what = "has no tables yet" if not state.applied else "is older than this loadgen"
        raise WrongSchema(f"the control plane in {where} {what}", remedy="Run `loadgen setup`.")


def _check(version: int, name: str, digest: str, known: dict[int, Migration], place: ControlPlaneLocation) -> None:
    if version not in known:
        raise WrongSchema(
            f"the control plane in {place.schema_name.sql} is newer than this loadgen:"
            f" it has migration {version:04d}_{name}, and the last one known here is {max(known):04d}",
            remedy="Use a newer loadgen; nothing was changed.",
        )
    if digest != known[version].digest:
        raise WrongSchema(
            f"migration {version:04d}_{name} was applied to {place.schema_name.sql} in another wording",
            remedy="Use the loadgen it was made with, or another schema (control.schema); nothing was changed.",
        )


def can_use(session: ControlSession, patience: RetryPolicy, sql: str) -> bool:
    """Whether USE succeeds; False: there is no such object. It needs no right that using the object does not need."""
    use = NamedQuery(name="setup.use", sql=sql, binds=0)
    try:
        patience.call(lambda: session.execute(use))
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


def _record(session: ControlSession, migration: Migration) -> None:
    row = (migration.version, migration.name, migration.digest, migration.version)
    session.execute(_Q["record"], *row)


def _statements(name: str, text: str) -> Iterator[NamedQuery]:
    """The statements of a file. They end with a semicolon at the end of a line, and have none elsewhere."""
    for number, part in enumerate(re.split(r";\s*$", without_comments(text), flags=re.MULTILINE)):
        if sql := part.strip():
            if ";" in sql:
                raise LoadgenError(f"{name}: statement {number + 1} has a semicolon inside")
            yield NamedQuery(name=f"{name}:{number + 1}", sql=sql, binds=0)


def _step(query: NamedQuery) -> str:
    """What a statement does, in a few words: its beginning up to the name."""
    return " ".join(query.sql.split("(")[0].split())
