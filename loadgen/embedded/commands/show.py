"""SHOW and DESCRIBE."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from loadgen.embedded import postgres_names, sql_errors
from loadgen.embedded.catalog import INFORMATION_SCHEMA, CatalogTable
from loadgen.embedded.commands.objects import full_path
from loadgen.embedded.commands.registry import CommandCall, command
from loadgen.embedded.result import StatementResult, table, text_of
from loadgen.embedded.result import columns as columns_of
from loadgen.embedded.session import PARAMETERS
from loadgen.embedded.translate.parser import TokenReader, word_of
from loadgen.values import dataclass

# --- LIKE, in time proportional to the lengths of pattern and name ---------------------------------------------------


def like(pattern: str, name: str) -> bool:
    """Match as SHOW … LIKE: case-insensitive, with the wildcards % and _, which a backslash escapes."""
    wanted, characters = _like_parts(pattern)
    if characters > len(name):
        return False
    parent = [_lower(character) for character in name]
    position = index = 0
    after_percent, resumed = -1, 0  # where to resume if the part after the last % does not match
    while index < len(parent):
        part = wanted[position] if position < len(wanted) else ""
        if part == "%":
            position += 1
            after_percent, resumed = position, index
        elif part and (part == "_" or part[-1] == parent[index]):
            position, index = position + 1, index + 1
        elif after_percent >= 0:  # the last % takes one more character; earlier ones need no backtracking
            resumed += 1
            position, index = after_percent, resumed
        else:
            return False
    return all(part == "%" for part in wanted[position:])


@lru_cache(maxsize=8)
def _like_parts(pattern: str) -> tuple[list[str], int]:
    """The wildcards and lower-case characters of a pattern, with their backslashes; the minimum length of a match."""
    single = re.sub("(?<!\\\\)%%+", "%", pattern)
    parts = [part[:-1] + _lower(part[-1]) for part in re.findall(r"\\.|.", single, re.DOTALL)]
    return parts, sum(part != "%" for part in parts)


def _lower(character: str) -> str:
    """The lower-case character, unless that has several characters."""
    lower = character.lower()
    return lower if len(lower) == 1 else character


SHOW_TYPE, DESCRIBE_TYPE = 0x4400, 0x4500
OWNER = "ACCOUNTADMIN"


@dataclass(slots=True)
class ShowFilter:
    """LIKE, IN, STARTS WITH and LIMIT of a SHOW command."""

    pattern: str | None = None
    database: str | None = None
    schema: str | None = None
    table: tuple[str, str, str] | None = None
    starts: str | None = None
    limit: int | None = None

    def matches(self, name: str) -> bool:
        if self.starts is not None and not name.startswith(self.starts):
            return False
        return self.pattern is None or like(self.pattern, name)


def read_filter(call: CommandCall, cursor: TokenReader) -> ShowFilter:
    found = ShowFilter()
    _ = cursor.accept("HISTORY")
    if cursor.accept("LIKE"):
        found.pattern = cursor.string()
    if cursor.accept("IN"):
        _scope(call, cursor, found)
    else:
        found.database, found.schema = call.session.database, call.session.schema
    if cursor.accept("STARTS", "WITH"):
        found.starts = cursor.string()
    if cursor.accept("LIMIT"):
        found.limit = cursor.integer()
        if cursor.accept("FROM"):
            cursor.string()
    cursor.end()
    return found


def _scope(call: CommandCall, cursor: TokenReader, found: ShowFilter) -> None:
    if cursor.accept("ACCOUNT"):
        return
    if cursor.accept("DATABASE"):
        path = (
            cursor.path()
            if not cursor.done and cursor.word() not in ("LIMIT", "STARTS")
            else [call.session.database or ""]
        )
        found.database = call.engine.catalog.database(path[0]).name
    elif cursor.accept("TABLE") or cursor.accept("VIEW"):
        found.table = full_path(call, cursor.path(), "SHOW")
    else:
        _ = cursor.accept("SCHEMA")
        path = cursor.path()
        database = path[-2] if len(path) > 1 else call.session.database or ""
        found.database, found.schema = database, path[-1]
        if len(path) == 1 and path[0] in call.engine.catalog.databases and not _has_schema(call, database, path[0]):
            found.database, found.schema = path[0], None  # `IN name` may name a database too
        elif path[-1] != INFORMATION_SCHEMA:
            call.engine.catalog.schema(database, path[-1])


def _has_schema(call: CommandCall, database: str, name: str) -> bool:
    parent = call.engine.catalog.databases.get(database)
    return parent is not None and name in parent.schemas


def _answer(columns: str, rows: Iterable[Sequence[object]], found: ShowFilter) -> StatementResult:
    texts = [[text_of(value) for value in row] for row in rows]
    return table(columns_of(columns), texts[: found.limit] if found.limit is not None else texts, SHOW_TYPE)


def _yes(is_so: bool) -> str:
    return "Y" if is_so else "N"


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.3f}000000"


@command("SHOW", "SHOW DATABASES", "SHOW TERSE DATABASES")
async def databases(call: CommandCall) -> StatementResult:
    found = read_filter(call, _after(call, "DATABASES"))
    columns = "created_on:time, name, is_default, is_current, origin, owner, comment, options, retention_time, kind"
    rows = [
        [_time(d.created_ms), d.name, "N", _yes(d.name == call.session.database), "", OWNER, d.comment,
         "TRANSIENT" if d.transient else "", "1", "STANDARD"]
        for d in sorted(call.engine.catalog.databases.values(), key=lambda d: d.name) if found.matches(d.name)
    ]  # fmt: skip
    return _answer(columns, rows, found)


def _after(call: CommandCall, word: str) -> TokenReader:
    index = next(i for i, token in enumerate(call.tokens) if word_of(token) == word)
    return call.cursor(index + 1)


@command("SHOW", "SHOW SCHEMAS", "SHOW TERSE SCHEMAS")
async def schemas(call: CommandCall) -> StatementResult:
    found = read_filter(call, _after(call, "SCHEMAS"))
    columns = "created_on:time, name, is_default, is_current, database_name, owner, comment, options, retention_time"
    database = found.database if found.schema is None or found.schema == call.session.schema else found.schema
    rows: list[list[object]] = []
    for parent in call.engine.catalog.databases.values():
        if database in (None, parent.name):
            listed = [(s.name, s.created_ms, s.comment) for s in parent.schemas.values()]
            listed.append(
                (
                    INFORMATION_SCHEMA,
                    parent.created_ms,
                    "Views describing the contents of schemas in this database",
                )
            )
            rows += [
                [_time(created), name, "N", _yes(name == call.session.schema), parent.name, OWNER, comment, "",
                "1"] for name, created, comment in sorted(listed) if found.matches(name)
            ]  # fmt: skip
    return _answer(columns, rows, found)


async def _row_counts(call: CommandCall, tables: list[CatalogTable]) -> dict[tuple[str, str, str], str]:
    counts: dict[tuple[str, str, str], str] = {}
    backend = await call.engine.backends.acquire(call.session.timezone)
    try:
        for one in tables:
            counts[one.path] = str(await backend.connection.fetchval(f"SELECT count(*)::text FROM {one.relation}"))
    finally:
        await call.engine.backends.release(backend)
    return counts


def _listed(call: CommandCall, found: ShowFilter) -> list[CatalogTable]:
    every = call.engine.catalog.tables(found.database, found.schema)
    return sorted((t for t in every if found.matches(t.name)), key=lambda t: t.path)


@command("SHOW", "SHOW TABLES", "SHOW TERSE TABLES", "SHOW HYBRID TABLES", "SHOW TERSE HYBRID")
async def tables(call: CommandCall) -> StatementResult:
    cursor = _after(call, "TABLES")
    found = read_filter(call, cursor)
    hybrid_only = any(word_of(token) == "HYBRID" for token in call.tokens[:3])
    listed = [t for t in _listed(call, found) if t.kind == "TABLE" and (t.hybrid or not hybrid_only)]
    listed = listed[: found.limit] if found.limit is not None else listed
    counts = await _row_counts(call, listed)
    columns = (
        "created_on:time, name, database_name, schema_name, kind, comment, cluster_by, rows:number, "
        "bytes:number, owner, retention_time, is_hybrid"
    )
    rows = [
        [_time(t.created_ms), t.name, t.database, t.schema, "TRANSIENT" if t.transient else "TABLE", t.comment, "",
         counts[t.path], "0", OWNER, "1", _yes(t.hybrid)]
        for t in listed
    ]  # fmt: skip
    return _answer(columns, rows, found)


@command("SHOW", "SHOW VIEWS", "SHOW TERSE VIEWS")
async def views(call: CommandCall) -> StatementResult:
    found = read_filter(call, _after(call, "VIEWS"))
    columns = "created_on:time, name, database_name, schema_name, owner, comment, text"
    rows = [
        [_time(t.created_ms), t.name, t.database, t.schema, OWNER, t.comment, t.text]
        for t in _listed(call, found) if t.kind == "VIEW"
    ]  # fmt: skip
    return _answer(columns, rows, found)


@command("SHOW", "SHOW OBJECTS", "SHOW TERSE OBJECTS")
async def objects(call: CommandCall) -> StatementResult:
    found = read_filter(call, _after(call, "OBJECTS"))
    columns = "created_on:time, name, database_name, schema_name, kind, comment, owner, is_hybrid"
    rows = [
        [_time(t.created_ms), t.name, t.database, t.schema, t.kind, t.comment, OWNER, _yes(t.hybrid)]
        for t in _listed(call, found)
    ]  # fmt: skip
    return _answer(columns, rows, found)


def _tables_of(call: CommandCall, found: ShowFilter) -> list[CatalogTable]:
    if found.table is not None:
        return [call.engine.catalog.table(*found.table, ".".join(map(postgres_names.shown, found.table)))]
    return list(call.engine.catalog.tables(found.database, found.schema))


@command("SHOW", "SHOW COLUMNS")
async def show_columns(call: CommandCall) -> StatementResult:
    found = read_filter(call, call.cursor(2))
    columns = (
        "table_name, schema_name, column_name, data_type, null?, default, kind, expression, comment, "
        "database_name, autoincrement"
    )
    rows = [
        [t.name, t.schema, c.name, json.dumps({"type": c.type.kind, "nullable": c.nullable}), text_of(c.nullable),
         c.default or "", "COLUMN", "", c.comment or "", t.database, "IDENTITY" if c.autoincrement else ""]
        for t in _tables_of(call, found) for c in t.columns if found.matches(c.name)
    ]  # fmt: skip
    return _answer(columns, rows, found)


@command("SHOW", "SHOW INDEXES")
async def indexes(call: CommandCall) -> StatementResult:
    found = read_filter(call, call.cursor(2))
    columns = (
        "created_on:time, name, is_unique, columns, included_columns, table, database_name, schema_name, owner, status"
    )
    rows: list[list[object]] = []
    for t in _tables_of(call, found):
        if not t.hybrid:
            continue
        keys = [(k, "N") for k in t.indexes] + [(k, "Y") for k in t.uniques]
        if t.primary_key is not None:
            keys.insert(0, (t.primary_key, "Y"))
        for key, unique in keys:
            name = f"SYS_INDEX_{t.name}_PRIMARY" if key is t.primary_key else key.name
            if found.matches(name):
                listed, included = f"[{', '.join(key.columns)}]", f"[{', '.join(key.include)}]"
                place = [t.name, t.database, t.schema, OWNER, "ACTIVE"]
                rows.append([_time(t.created_ms), name, unique, listed, included, *place])
    return _answer(columns, rows, found)


@command("SHOW", "SHOW PRIMARY KEYS")
async def primary_keys(call: CommandCall) -> StatementResult:
    found = read_filter(call, call.cursor(3))
    columns = (
        "created_on:time, database_name, schema_name, table_name, column_name, key_sequence:number, constraint_name"
    )
    rows = [
        [_time(t.created_ms), t.database, t.schema, t.name, c, i, f"SYS_CONSTRAINT_{t.name}_PK"]
        for t in _tables_of(call, found) if t.primary_key for i, c in enumerate(t.primary_key.columns, 1)
    ]  # fmt: skip
    return _answer(columns, rows, found)


@command("SHOW", "SHOW WAREHOUSES")
async def warehouses(call: CommandCall) -> StatementResult:
    found = read_filter(call, call.cursor(2))
    columns = (
        "name, state, type, size, min_cluster_count:number, max_cluster_count:number, "
        "started_clusters:number, running:number, queued:number, is_default, is_current, "
        "auto_suspend:number, auto_resume, available, provisioning, quiescing, other, created_on:time, "
        "resumed_on:time, updated_on:time, owner, comment, enable_query_acceleration, "
        "query_acceleration_max_scale_factor:number, resource_monitor, scaling_policy, generation"
    )
    rows: list[list[object]] = []
    for w in call.engine.warehouses:
        s = w.settings
        if found.matches(s.name):
            rows.append(
                [s.name, w.state, s.type, s.size, s.min_cluster_count, s.max_cluster_count, w.started_clusters,
                 w.running, w.queued, "N", _yes(s.name == call.session.warehouse), s.auto_suspend_s or None,
                 s.auto_resume, "100" if w.state == "STARTED" else "", "0", "0", "0", _time(s.created_on_ms),
                 _time(w.resumed_on_ms), _time(s.updated_on_ms), s.owner, s.comment, s.enable_query_acceleration,
                 s.query_acceleration_max_scale_factor, s.resource_monitor or "null", s.scaling_policy, s.generation]
            )  # fmt: skip
    return _answer(columns, rows, found)


@command("SHOW", "SHOW PARAMETERS")
async def parameters(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    found = ShowFilter(pattern=cursor.string() if cursor.accept("LIKE") else None)
    warehouse = None
    if cursor.accept("IN") or cursor.accept("FOR"):
        if cursor.accept("WAREHOUSE"):
            warehouse = call.engine.warehouses.get(cursor.name() if not cursor.done else call.session.warehouse or "")
            if warehouse is None:
                raise sql_errors.no_such_object()
        elif not (cursor.accept("SESSION") or cursor.accept("ACCOUNT")):
            raise sql_errors.unsupported(f"SHOW PARAMETERS IN {cursor.word()}")
    cursor.end()
    columns = "key, value, default, level, description, type"
    if warehouse is not None:
        s = warehouse.settings
        pairs = [
            ("MAX_CONCURRENCY_LEVEL", s.max_concurrency_level, 8),
            ("STATEMENT_QUEUED_TIMEOUT_IN_SECONDS", s.statement_queued_timeout_s, 0),
            ("STATEMENT_TIMEOUT_IN_SECONDS", s.statement_timeout_s, 172_800),
        ]
        rows: list[list[object]] = [
            [name, value, default, "WAREHOUSE" if value != default else "", "", "NUMBER"]
            for name, value, default in pairs if found.matches(name)
        ]  # fmt: skip
        return _answer(columns, rows, found)
    rows = []
    for p in PARAMETERS.values():
        if found.matches(p.name):
            kind = "BOOLEAN" if isinstance(p.default, bool) else "NUMBER" if isinstance(p.default, int) else "STRING"
            level = "SESSION" if p.name in call.session.parameters else ""
            rows.append([p.name, call.session.get(p.name), p.default, level, p.description, kind])
    return _answer(columns, rows, found)


@command("SHOW", "SHOW TRANSACTIONS")
async def transactions(call: CommandCall) -> StatementResult:
    columns = "id:number, user, session:number, name, started_on:time, state, scope:number"
    rows: list[list[object]] = [
        [s.transaction.number, s.user, s.number, s.transaction.name, _time(s.transaction.started_ms), "running", 0]
        for s in call.engine.sessions.by_number.values() if s.transaction is not None
    ]  # fmt: skip
    return _answer(columns, rows, ShowFilter())


@command("SHOW", "SHOW ROLES")
async def roles(call: CommandCall) -> StatementResult:
    columns = "created_on:time, name, is_current, owner, comment"
    rows: list[list[object]] = [
        [_time(0), name, _yes(name == call.session.role), OWNER, ""] for name in ("ACCOUNTADMIN", "PUBLIC")
    ]
    return _answer(columns, rows, ShowFilter())


@command("SHOW", "SHOW GRANTS")
async def grants(call: CommandCall) -> StatementResult:
    """One row, because all users have all privileges."""
    columns = "created_on:time, privilege, granted_on, name, granted_to, grantee_name, grant_option, granted_by"
    return _answer(
        columns, [[_time(0), "OWNERSHIP", "ACCOUNT", "EMBEDDED", "ROLE", call.session.role, True, OWNER]], ShowFilter()
    )


@command("DESCRIBE", "DESCRIBE TABLE", "DESC TABLE", "DESCRIBE VIEW", "DESC VIEW", "DESCRIBE HYBRID TABLE")
async def describe_table(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    _ = cursor.accept("TABLE")
    path = full_path(call, cursor.path(), "DESCRIBE")
    if cursor.accept("TYPE"):
        cursor.expect("=", "COLUMNS")
    cursor.end()
    one = call.engine.catalog.table(*path, ".".join(map(postgres_names.shown, path)))
    primary = one.primary_key.columns if one.primary_key else ()
    unique = {column for key in one.uniques for column in key.columns}
    columns = columns_of(
        "name, type, kind, null?, default, primary key, unique key, check, expression, comment, policy name"
    )
    rows = [
        [c.name, c.type.sql, "COLUMN", _yes(c.nullable), c.default, _yes(c.name in primary),
         _yes(c.name in unique), None, None, c.comment, None]
        for c in one.columns
    ]  # fmt: skip
    return table(columns, rows, DESCRIBE_TYPE)


@command("DESCRIBE", "DESCRIBE WAREHOUSE", "DESC WAREHOUSE")
async def describe_warehouse(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    name = cursor.name()
    cursor.end()
    warehouse = call.engine.warehouses.get(name)
    if warehouse is None:
        raise sql_errors.no_such_object()
    columns = columns_of("created_on:time, name, kind")
    return table(columns, [[_time(warehouse.settings.created_on_ms), name, "WAREHOUSE"]], DESCRIBE_TYPE)
