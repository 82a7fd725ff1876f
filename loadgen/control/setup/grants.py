"""The GRANT statements that loadgen needs and no more: for three roles, on the very tables its SQL touches.

    LOADGEN_ADMIN   makes tables: loadgen setup, loadgen prepare. It owns them then, and needs nothing else on them
    LOADGEN_RUN     runs scenarios and reads results. Makes nothing
    LOADGEN_QUEUE   may do that too, and use the queue: pools, and users who queue runs and add schedules. Apart:
                    the hosts of a pool execute what is queued

What a role may do with a table is read from the statements themselves (`privileges`), so the list cannot be
forgotten when a statement is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.setup.installer import Prerequisites, missing_prerequisites
from loadgen.control.setup.privileges import PRIVILEGES, TablePrivileges, merge_privileges, required_privileges
from loadgen.control.sql import NamedQuery, load_queries, query_files
from loadgen.errors import ConfigurationError
from loadgen.log import printable
from loadgen.scenario.model import EMBEDDED, QueryPool, Scenario, TableType
from loadgen.snowflake.ident import Identifier, QualifiedName

ADMIN, RUN, QUEUE = Identifier("LOADGEN_ADMIN"), Identifier("LOADGEN_RUN"), Identifier("LOADGEN_QUEUE")

_SETUP_ONLY = frozenset({"schema_version.create", "schema_version.record"})
_OF_THE_QUEUE = frozenset(
    {
        *("RUN_QUEUE", "RUN_ATTEMPTS", "RUN_ATTEMPT_ENDS", "POOL_WORKERS"),
        *("SCHEDULES", "SCHEDULE_FIRES", "SCHEDULE_PROGRESS"),
    }
)
_ADMINS_ONLY = "prune."  # a role that generates load must not delete results of others
_OF_THE_SYSTEM = (Identifier("INFORMATION_SCHEMA"), Identifier("SNOWFLAKE"))
_CREATE = {TableType.HYBRID: "CREATE HYBRID TABLE", TableType.STANDARD: "CREATE TABLE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantTarget:
    """What a scenario's load runs on. None: not named."""

    warehouse: str | None
    database: str | None
    schema: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmGrants:
    """An arm of an experiment."""

    scenario: Scenario
    target: GrantTarget
    modifies: bool  # settings of its warehouse
    makes: bool = False  # its warehouse, which the role then owns


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantSection:
    """Statements that belong together; `notes` are comments in the script."""

    notes: tuple[str, ...]
    statements: tuple[str, ...]


def control_statements() -> Iterator[NamedQuery]:
    """Every statement that a run, or a look at one, sends to the control plane."""
    for table in query_files():
        for query in load_queries(table).values():
            if query.name not in _SETUP_ONLY and not query.name.startswith(_ADMINS_ONLY):
                yield query


def control_needs(role: Identifier = RUN) -> TablePrivileges:
    """What LOADGEN_RUN, or LOADGEN_QUEUE beside it, needs on each control table."""
    all_of_them = merge_privileges(required_privileges(query.sql) for query in control_statements())
    return {
        name: needs for name, needs in all_of_them.items() if (name.parts[-1].name in _OF_THE_QUEUE) == (role == QUEUE)
    }


def grants(
    place: ControlPlaneLocation,
    scenario: Scenario | None = None,
    target: GrantTarget | None = None,
    *,
    arms: Sequence[ArmGrants] = (),
    users: Sequence[str] = (),
    admins: Sequence[str] = (),
    queue_users: Sequence[str] = (),
) -> tuple[GrantSection, ...]:
    """The whole script, in the order it can be run."""
    before: list[str] = []
    after: list[str] = []
    notes: list[str] = []
    # A control plane on the embedded server beside a real account: there is nothing to grant there.
    if not (scenario is not None and place.connection == EMBEDDED != scenario.connection):
        before += _on_control(place)
        for role in (RUN, QUEUE):
            after += _on_tables(role, _within(control_needs(role), place.schema_name))
    if scenario is not None and target is not None:
        work = _Work(scenario, target)
        before += work.before()
        after += work.after()
        notes += work.notes()
    for arm in arms:
        work = _Work(arm.scenario, arm.target)
        before += work.before()
        after += work.after()
        notes += work.notes()
        if arm.makes:
            before.append(f"GRANT CREATE WAREHOUSE ON ACCOUNT TO ROLE {RUN.sql}")
        elif arm.modifies and arm.target.warehouse is not None:  # and MONITOR, which it has: to see whether it settled
            before.append(_grant(["MODIFY"], "WAREHOUSE", Identifier.parse(arm.target.warehouse).sql, RUN))
    memberships = [f"GRANT ROLE {ADMIN.sql} TO USER {Identifier.parse(name).sql}" for name in admins]
    memberships += [f"GRANT ROLE {RUN.sql} TO USER {Identifier.parse(name).sql}" for name in users]
    memberships += [f"GRANT ROLE {QUEUE.sql} TO USER {Identifier.parse(name).sql}" for name in queue_users]
    roles = [f"CREATE ROLE IF NOT EXISTS {role.sql}" for role in (ADMIN, RUN, QUEUE)]
    roles.append(f"GRANT ROLE {RUN.sql} TO ROLE {QUEUE.sql}")
    made = f"After {ADMIN.name} has run loadgen setup and loadgen prepare: the tables must be there."
    again = "Tables that prepare --drop makes anew need it again."
    parts = (
        GrantSection(notes=tuple(_preface(place, scenario)), statements=("USE ROLE SECURITYADMIN", *roles)),
        GrantSection(notes=("Before loadgen setup and loadgen prepare.",), statements=tuple(dict.fromkeys(before))),
        GrantSection(notes=(made, again, *dict.fromkeys(notes)), statements=tuple(dict.fromkeys(after))),
        GrantSection(notes=("Who may use the roles.",), statements=tuple(memberships)),
    )
    return tuple(part for part in parts if part.statements)


def _preface(place: ControlPlaneLocation, scenario: Scenario | None) -> Iterator[str]:
    yield f"{ADMIN.name} makes tables (loadgen setup, loadgen prepare), {RUN.name} runs scenarios."
    yield f"{QUEUE.name} runs them by the queue: for pools, and users whom their hosts trust."
    yield "To be run as SECURITYADMIN; safe to repeat. Databases, schemas and warehouses must be there."
    if scenario is not None and place.connection != scenario.connection:
        where, load = (printable(name or "default", 80) for name in (place.connection, scenario.connection))
        yield f"The control plane is on connection {where}, the load on {load}: each needs its own part."
        if place.connection == EMBEDDED:
            yield "The embedded server knows no grants: all of this is for the other."
            return
    yield "Those of the control plane are made, as SYSADMIN, by:"
    yield from (f"  {query.sql};" for query in missing_prerequisites(place, Prerequisites()))


def script(parts: Iterable[GrantSection]) -> str:
    """All of it as text that can be run."""
    return "\n\n".join(
        "\n".join([*(f"-- {note}" for note in part.notes), *(f"{statement};" for statement in part.statements)])
        for part in parts
    )


def _on_control(place: ControlPlaneLocation) -> Iterator[str]:
    for role in (ADMIN, RUN):
        yield _grant(["USAGE"], "WAREHOUSE", Identifier.parse(place.warehouse).sql, role)
        yield _grant(["USAGE"], "DATABASE", Identifier.parse(place.database).sql, role)
        yield _grant(["USAGE"], "SCHEMA", place.schema_name.sql, role)
    yield _grant(["CREATE TABLE", "CREATE HYBRID TABLE"], "SCHEMA", place.schema_name.sql, ADMIN)


def _within(needs: TablePrivileges, schema: QualifiedName) -> TablePrivileges:
    return {name.within(*schema.parts): privileges for name, privileges in needs.items()}


def _on_tables(role: Identifier, needs: TablePrivileges) -> Iterator[str]:
    for name in sorted(needs, key=str):
        yield _grant([each for each in PRIVILEGES if each in needs[name]], "TABLE", name.sql, role)


def _grant(privileges: Sequence[str], kind: str, name: str, role: Identifier) -> str:
    return f"GRANT {', '.join(privileges)} ON {kind} {name} TO ROLE {role.sql}"


class _Work:
    """What a scenario needs on its target."""

    def __init__(self, scenario: Scenario, target: GrantTarget) -> None:
        self._scenario = scenario
        self._target = target
        texts = [query.sql for statement in scenario.workload.statements for query in statement.queries]
        texts += [pool.query for pool in scenario.pools if isinstance(pool, QueryPool)]
        prepared = {QualifiedName.parse(table.name): frozenset({"SELECT"}) for table in scenario.prepare.tables}
        # A run looks at its prepared tables, whether or not its statements read them.
        named = self._full(merge_privileges([*map(required_privileges, texts), prepared]))
        self._needs = {name: named[name] for name in named if not _is_of_the_system(name)}
        self._system = sorted(str(name) for name in named if _is_of_the_system(name))

    def before(self) -> Iterator[str]:
        if self._target.warehouse is not None:
            warehouse = Identifier.parse(self._target.warehouse).sql
            yield _grant(["USAGE"], "WAREHOUSE", warehouse, ADMIN)
            yield _grant(["USAGE", "MONITOR"], "WAREHOUSE", warehouse, RUN)  # MONITOR: queue lengths, query history
        created: dict[QualifiedName, list[str]] = {}
        read: dict[QualifiedName, frozenset[str]] = {}
        for table in self._scenario.prepare.tables:
            name = self._full_name(QualifiedName.parse(table.name))
            if table.type is TableType.EXISTING:
                read[name] = frozenset({"SELECT"})
            else:
                created.setdefault(QualifiedName(name.parts[:2]), []).append(_CREATE[table.type])
        schemas = {QualifiedName(name.parts[:2]) for name in self._needs}
        for role, used in ((ADMIN, {*created, *(QualifiedName(name.parts[:2]) for name in read)}), (RUN, schemas)):
            for schema in sorted(used, key=str):
                yield _grant(["USAGE"], "DATABASE", schema.parts[0].sql, role)
                yield _grant(["USAGE"], "SCHEMA", schema.sql, role)
        for schema in sorted(created, key=str):
            yield _grant(sorted(set(created[schema])), "SCHEMA", schema.sql, ADMIN)
        yield from _on_tables(ADMIN, read)

    def after(self) -> Iterator[str]:
        yield from _on_tables(RUN, self._needs)

    def notes(self) -> Iterator[str]:
        made = {self._full_name(QualifiedName.parse(table.name)) for table in self._scenario.prepare.tables}
        if unknown := sorted(str(name) for name in self._needs if name not in made):
            yield f"Taken for tables; where one is a view, write VIEW: {', '.join(unknown)}."
        if self._target.warehouse is None:
            yield "No warehouse is named, here or by the connection: grant USAGE and MONITOR on the one that is used."
        if self._system:
            yield f"Not granted here, since Snowflake grants it by database roles: {', '.join(self._system)}."
        for statement in self._scenario.workload.statements:
            if any(query.sql.lstrip().upper().startswith("CALL") for query in statement.queries):
                name = printable(statement.name, 80)
                yield f"Statement {name} calls a procedure: grant USAGE on it, with its signature."
        if self._scenario.prepare.statements:
            yield f"prepare.statements may need more for {ADMIN.name}: see the scenario."

    def _full(self, needs: TablePrivileges) -> TablePrivileges:
        return {self._full_name(name): privileges for name, privileges in needs.items()}

    def _full_name(self, name: QualifiedName) -> QualifiedName:
        missing = {2: (self._target.database,), 1: (self._target.database, self._target.schema)}
        outer = missing.get(len(name.parts), ())
        if None in outer:
            raise ConfigurationError(
                f"table {name} is in no database: neither the scenario nor the connection names one",
                remedy="Set target.database and target.schema, or name a connection that has them with -c.",
            )
        return name.within(*(Identifier.parse(part) for part in outer if part is not None))


def _is_of_the_system(name: QualifiedName) -> bool:
    return name.parts[0] == _OF_THE_SYSTEM[1] or name.parts[1] == _OF_THE_SYSTEM[0]
