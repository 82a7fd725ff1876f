"""The minimum privileges of three roles, as GRANT statements.

    LOADGEN_ADMIN   creates tables: loadgen setup, loadgen prepare. It owns these tables and needs no grant on them
    LOADGEN_RUN     runs scenarios and reads results. It creates nothing
    LOADGEN_QUEUE   has the privileges of LOADGEN_RUN, and those on the queue: for pools, and for users who queue runs
                    or add schedules. A separate role, because the hosts of a pool execute what is queued

The privileges on tables are read from the statements themselves (required_privileges), so they include every statement.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Self

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import NamedQuery, load_queries, query_files
from loadgen.control.setup.installer import Prerequisites, missing_prerequisites
from loadgen.errors import ConfigurationError
from loadgen.log import printable
from loadgen.scenario.model import EMBEDDED, QueryPool, Scenario, TableType
from loadgen.snowflake.ident import Identifier, QualifiedName
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.values import dataclass

if TYPE_CHECKING:
    from loadgen.scenario.experiment import LoadedExperiment

# --- The privileges that a statement needs, read from its text --------------------------------------------------------
#
# A tokenizer, not a parser. Names of tables follow FROM, JOIN, INTO, UPDATE and USING, and commas between such names.
# Common table expressions, table functions, EXTRACT(… FROM …) and IS DISTINCT FROM are not tables. A role that changes
# or deletes rows also needs SELECT: the statement reads the table to find the rows, and the index of a hybrid table is
# used only by roles with SELECT.

PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")  # in the order they are written
TablePrivileges = Mapping[QualifiedName, frozenset[str]]

_TOKEN = re.compile(
    r"""
      (?P<skip>\s+|--[^\n]*|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    | (?P<value>'(?:[^'\\]|''|\\.)*' | \$\$(?:[^$]|\$(?!\$))*\$\$ | [0-9][\w.]*)
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<word>[A-Za-z_][\w$]*)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ENDS_FROM = frozenset(
    {"WHERE", "GROUP", "ORDER", "HAVING", "QUALIFY", "LIMIT", "OFFSET", "FETCH", "CONNECT"}
    | {"SELECT", "UNION", "EXCEPT", "INTERSECT", "MINUS", "SET", "WHEN"}
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str  # words in upper case

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")


@dataclass(slots=True)
class _Level:
    """The state inside one pair of brackets."""

    in_from: bool = False  # the name of a table follows a comma
    expecting: bool = False  # the next name is a table
    after: str = ""  # the word before the bracket


@dataclass(slots=True)
class _Reader:
    tokens: list[_Token]
    found: dict[QualifiedName, set[str]] = field(default_factory=dict)
    levels: list[_Level] = field(default_factory=lambda: [_Level()])
    has_source: bool = False  # USING of a MERGE or DELETE was read

    def read(self) -> None:
        verb, ctes = self.verb(), self._ctes()
        target: QualifiedName | None = None
        index = 0
        while index < len(self.tokens):
            token, level = self.tokens[index], self.levels[-1]
            before = self.tokens[index - 1].text if index else ""
            if token.text == "(" and token.kind == "other":
                self.levels.append(_Level(in_from=level.expecting, expecting=level.expecting, after=before))
                level.expecting = False
            elif token.text == ")" and token.kind == "other":
                self.levels = self.levels[:-1] or [_Level()]
            elif token.text == "," and token.kind == "other":
                level.expecting = level.in_from
            elif token.kind == "word" and self._is_target(verb, token, before, target):
                index, target = self._path(index + 1)
                self._add(target, _on_target(verb, self.tokens))
                continue
            elif token.kind == "word" and token.text in _ENDS_FROM:
                level.in_from = level.expecting = False
            elif token.kind == "word" and self._opens_tables(verb, token, before):
                level.in_from = level.expecting = True
            elif level.expecting and token.is_name and token.text != "LATERAL":
                level.expecting = False
                index, name = self._path(index)
                if not self._is_at(index, "(") and not (len(name.parts) == 1 and name.parts[0] in ctes):
                    self._add(name, {"SELECT"})
                continue
            elif token.text != "LATERAL":
                level.expecting = False
            index += 1

    def verb(self) -> str:
        return next((token.text for token in self.tokens if token.kind == "word"), "")

    def _is_target(self, verb: str, token: _Token, before: str, target: QualifiedName | None) -> bool:
        """Whether the name of the table that the statement writes to follows."""
        if token.text == "INTO":
            return verb in ("INSERT", "MERGE")
        if target is not None:
            return False
        return (verb == token.text == "UPDATE" and before == "") or (verb == "DELETE" and token.text == "FROM")

    def _opens_tables(self, verb: str, token: _Token, before: str) -> bool:
        if token.text == "FROM":
            return before != "DISTINCT" and self.levels[-1].after != "EXTRACT"
        if token.text == "USING" and verb in ("MERGE", "DELETE") and len(self.levels) == 1:
            is_first, self.has_source = not self.has_source, True
            return is_first  # a later USING belongs to JOIN … USING (columns)
        return token.text == "JOIN"

    def _path(self, index: int) -> tuple[int, QualifiedName]:
        """The index after the name that begins at `index`, and the name. `db..t` is a table in PUBLIC."""
        parts: list[Identifier] = []
        while index < len(self.tokens):
            token = self.tokens[index]
            if token.is_name:
                parts.append(Identifier.parse(token.text))
                index += 1
            elif token.text == ".":
                parts.append(Identifier("PUBLIC"))
            if not self._is_at(index, "."):
                break
            index += 1
        return index, QualifiedName(tuple(parts))

    def _is_at(self, index: int, text: str) -> bool:
        return index < len(self.tokens) and self.tokens[index] == _Token("other", text)

    def _ctes(self) -> set[Identifier]:
        """Names before `AS (` in a statement with WITH; a list of columns may be in between."""
        names: set[Identifier] = set()
        if _Token("word", "WITH") not in self.tokens:
            return names
        for index, token in enumerate(self.tokens):
            if token == _Token("word", "AS") and self._is_at(index + 1, "("):
                back = index - 1
                if self._is_at(back, ")"):
                    while back > 0 and not self._is_at(back, "("):
                        back -= 1
                    back -= 1
                if back >= 0 and self.tokens[back].is_name:
                    names.add(Identifier.parse(self.tokens[back].text))
        return names

    def _add(self, name: QualifiedName, privileges: Iterable[str]) -> None:
        self.found.setdefault(name, set()).update(privileges)


def required_privileges(sql: str) -> TablePrivileges:
    """The privileges that a statement needs on each table. Empty for CREATE, CALL and similar statements."""
    tokens = [
        _Token(str(match.lastgroup), match[0].upper() if match.lastgroup == "word" else match[0])
        for match in _TOKEN.finditer(sql)
        if match.lastgroup != "skip"
    ]
    reader = _Reader(tokens)
    if reader.verb() in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE"):
        reader.read()
    return {name: frozenset(privileges) for name, privileges in reader.found.items()}


def merge_privileges(several: Iterable[TablePrivileges]) -> TablePrivileges:
    """The privileges that all of the statements need together."""
    found: dict[QualifiedName, frozenset[str]] = {}
    for needs in several:
        for name, privileges in needs.items():
            found[name] = found.get(name, frozenset()) | privileges
    return found


def _on_target(verb: str, tokens: list[_Token]) -> set[str]:
    words = [token.text for token in tokens if token.kind == "word"]
    if verb == "INSERT":
        return {"INSERT", "DELETE"} if words[1] == "OVERWRITE" else {"INSERT"}
    if verb == "MERGE":
        done = {after for word, after in itertools.pairwise(words) if word == "THEN"}
        return {"SELECT"} | (done & set(PRIVILEGES))
    return {"SELECT", verb}


ADMIN, RUN, QUEUE = Identifier("LOADGEN_ADMIN"), Identifier("LOADGEN_RUN"), Identifier("LOADGEN_QUEUE")

_SETUP_ONLY = frozenset({"schema_version.create", "schema_version.record"})
_OF_THE_QUEUE = frozenset(
    {
        *("RUN_QUEUE", "RUN_ATTEMPTS", "RUN_ATTEMPT_ENDS", "POOL_WORKERS"),
        *("SCHEDULES", "SCHEDULE_FIRES", "SCHEDULE_PROGRESS"),
    }
)
_ADMINS_ONLY = "prune."  # a role that generates load must not delete the results of other users
_OF_THE_SYSTEM = (Identifier("INFORMATION_SCHEMA"), Identifier("SNOWFLAKE"))
_CREATE = {TableType.HYBRID: "CREATE HYBRID TABLE", TableType.STANDARD: "CREATE TABLE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantTarget:
    """The warehouse, database and schema of a load. None: not set."""

    warehouse: str | None
    database: str | None
    schema: str | None

    @classmethod
    def of_scenario(cls, scenario: Scenario, connection: str | None, warn: Callable[[str], None]) -> Self:
        """The target of the scenario; the connection supplies missing names, if it is configured on this machine."""
        wanted = scenario.target
        found = cls(warehouse=wanted.warehouse, database=wanted.database, schema=wanted.schema)
        if found.warehouse and found.database and found.schema:
            return found
        try:
            profile = find_profile(connection)
        except ConfigurationError as error:
            warn(str(error))
            return found
        return cls(
            warehouse=found.warehouse or profile.text("warehouse"),
            database=found.database or profile.text("database"),
            schema=found.schema or profile.text("schema"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmGrants:
    """An arm of an experiment."""

    scenario: Scenario
    target: GrantTarget
    modifies: bool  # changes settings of its warehouse
    makes: bool = False  # creates its warehouse, which the role then owns


def arm_grants(loaded: LoadedExperiment, connection: str | None, warn: Callable[[str], None]) -> list[ArmGrants]:
    """The arms of an experiment; `connection` replaces that of the scenario."""
    arms = []
    for name, arm in loaded.arms.items():
        given = loaded.file.arms[name]
        target = GrantTarget.of_scenario(arm.scenario, connection or arm.scenario.connection, warn)
        makes = given.warehouse is not None and given.warehouse.create
        arms.append(
            ArmGrants(
                scenario=arm.scenario,
                target=replace(target, warehouse=None) if makes else target,
                modifies=bool(given.settings),
                makes=makes,
            )
        )
    return arms


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantSection:
    """Statements that belong together; `notes` are comments in the script."""

    notes: tuple[str, ...]
    statements: tuple[str, ...]


_METERING = GrantSection(
    notes=(
        "Only for loadgen experiments enrich, which reads metered credits: the grants show those of the whole account.",
        "ACCOUNT_USAGE is read for experiments that are older than six months.",
    ),
    statements=(
        "USE ROLE ACCOUNTADMIN",
        f"GRANT MONITOR USAGE ON ACCOUNT TO ROLE {RUN.sql}",
        f"GRANT DATABASE ROLE SNOWFLAKE.USAGE_VIEWER TO ROLE {RUN.sql}",
    ),
)


def control_statements() -> Iterator[NamedQuery]:
    """Every statement that running scenarios and reading results send to the control plane."""
    for table in query_files():
        for query in load_queries(table).values():
            if query.name not in _SETUP_ONLY and not query.name.startswith(_ADMINS_ONLY):
                yield query


def control_needs(role: Identifier = RUN) -> TablePrivileges:
    """The privileges that LOADGEN_RUN, or LOADGEN_QUEUE in addition, needs on each control table."""
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
    """The complete script, in executable order."""
    before: list[str] = []
    after: list[str] = []
    notes: list[str] = []
    # With a control plane on the embedded server and a load elsewhere, the control plane needs no grants.
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
        elif arm.modifies and arm.target.warehouse is not None:  # MONITOR is granted above
            before.append(_grant(["MODIFY"], "WAREHOUSE", Identifier.parse(arm.target.warehouse).sql, RUN))
    memberships = [f"GRANT ROLE {ADMIN.sql} TO USER {Identifier.parse(name).sql}" for name in admins]
    memberships += [f"GRANT ROLE {RUN.sql} TO USER {Identifier.parse(name).sql}" for name in users]
    memberships += [f"GRANT ROLE {QUEUE.sql} TO USER {Identifier.parse(name).sql}" for name in queue_users]
    roles = [f"CREATE ROLE IF NOT EXISTS {role.sql}" for role in (ADMIN, RUN, QUEUE)]
    roles.append(f"GRANT ROLE {RUN.sql} TO ROLE {QUEUE.sql}")
    made = f"After {ADMIN.name} has run loadgen setup and loadgen prepare: the tables must exist."
    again = "Repeat this part for tables that prepare --drop has created again."
    parts = (
        GrantSection(notes=tuple(_preface(place, scenario)), statements=("USE ROLE SECURITYADMIN", *roles)),
        GrantSection(notes=("Before loadgen setup and loadgen prepare.",), statements=tuple(dict.fromkeys(before))),
        GrantSection(notes=(made, again, *dict.fromkeys(notes)), statements=tuple(dict.fromkeys(after))),
        GrantSection(notes=("Who may use the roles.",), statements=tuple(memberships)),
        *([_METERING] if arms else []),
    )
    return tuple(part for part in parts if part.statements)


def _preface(place: ControlPlaneLocation, scenario: Scenario | None) -> Iterator[str]:
    yield f"{ADMIN.name} creates tables (loadgen setup, loadgen prepare), {RUN.name} runs scenarios."
    yield f"{QUEUE.name} runs queued scenarios: for pools, and for users whom the hosts of the pools trust."
    yield "Execute as SECURITYADMIN; safe to repeat. Databases, schemas and warehouses must exist."
    if scenario is not None and place.connection != scenario.connection:
        where, load = (printable(name or "default", 80) for name in (place.connection, scenario.connection))
        yield f"The control plane is on connection {where}, the load on {load}: each needs a separate script."
        if place.connection == EMBEDDED:
            yield "The embedded server has no grants: this script is for the connection of the load."
            return
    yield "As SYSADMIN, create those of the control plane with:"
    yield from (f"  {query.sql};" for query in missing_prerequisites(place, Prerequisites()))


def script(parts: Iterable[GrantSection]) -> str:
    """The sections as one SQL script."""
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
    """The privileges that a scenario needs on its target."""

    def __init__(self, scenario: Scenario, target: GrantTarget) -> None:
        self._scenario = scenario
        self._target = target
        texts = [query.sql for statement in scenario.workload.statements for query in statement.queries]
        texts += [pool.query for pool in scenario.pools if isinstance(pool, QueryPool)]
        prepared = {QualifiedName.parse(table.name): frozenset({"SELECT"}) for table in scenario.prepare.tables}
        # A run checks its prepared tables, whether or not its statements read them.
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
            yield f"These names are assumed to be tables; for a view write VIEW: {', '.join(unknown)}."
        if self._target.warehouse is None:
            yield "Neither the scenario nor the connection sets a warehouse: grant USAGE and MONITOR on that one."
        if self._system:
            yield f"Not granted here, because Snowflake grants it by database roles: {', '.join(self._system)}."
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
                f"the database of table {name} is unknown: neither the scenario nor the connection sets one",
                remedy="Set target.database and target.schema, or choose a connection that sets them with -c.",
            )
        return name.within(*(Identifier.parse(part) for part in outer if part is not None))


def _is_of_the_system(name: QualifiedName) -> bool:
    return name.parts[0] == _OF_THE_SYSTEM[1] or name.parts[1] == _OF_THE_SYSTEM[0]
