"""Plans statements: parses, translates and describes them, and caches the plans; converts values of binds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson
from sqlglot import exp
from sqlglot.tokenizer_core import Token

from loadgen.embedded import postgres_names
from loadgen.embedded.backend_pool import Backend
from loadgen.embedded.catalog import Catalog, CatalogTable
from loadgen.embedded.result import NUMBER, SEMI_STRUCTURED, SnowflakeType, described, shortener
from loadgen.embedded.sql_errors import SqlError, compilation, unsupported
from loadgen.embedded.translate import calls, dml, parser, queries
from loadgen.embedded.translate.emitter import BindTypes, Emitter, ServerTableFunction
from loadgen.embedded.translate.parser import budget_of, too_deep
from loadgen.values import dataclass

PLANS_MAX = 5_000
PLAN_CHARACTERS_MAX = 100_000  # longer plans, which list rows, are not cached
_HANDLER_MODULES = (calls, queries, dml)  # importing them registers their handlers
STATEMENT_TYPES = {"SELECT": 0x1000, "INSERT": 0x3100, "UPDATE": 0x3200, "DELETE": 0x3300, "MERGE": 0x3400}
_KINDS: dict[type[exp.Expr], str] = {
    exp.Select: "SELECT",
    exp.Union: "SELECT",
    exp.Except: "SELECT",
    exp.Intersect: "SELECT",
    exp.Subquery: "SELECT",
    exp.Insert: "INSERT",
    exp.Update: "UPDATE",
    exp.Delete: "DELETE",
    exp.Merge: "MERGE",
}
COUNT_NAMES = {
    "INSERT": ("number of rows inserted",),
    "UPDATE": ("number of rows updated", "number of multi-joined rows updated"),
    "DELETE": ("number of rows deleted",),
    "MERGE": ("number of rows inserted", "number of rows updated", "number of rows deleted"),
}


@dataclass(slots=True)
class StatementPlan:
    """A translated statement. Only its description is set later."""

    kind: str
    sql: str
    binds: BindTypes
    parameters: tuple[int | str, ...]  # numbers of binds, names of context values
    server_functions: tuple[ServerTableFunction, ...]
    hybrid_only: bool
    reads_tables: bool
    locked_table: CatalogTable | None  # a standard table, on which DML is serialized
    lock_wait_s: int | None
    for_update: bool
    describing_sql: str
    long_names: dict[str, str]
    not_null: frozenset[str]
    last_hidden: bool  # the last column is not returned
    array_bindable: bool  # accepts array binds, according to its description
    tables: frozenset[tuple[str, str]]  # database and schema of each table that it reads or writes
    rowtype: orjson.Fragment | None = None
    columns: tuple[tuple[str, SnowflakeType], ...] = ()
    converters: tuple[tuple[int, Callable[[Any], Any]], ...] = field(default=())
    json_columns: tuple[int, ...] = ()  # of semi-structured values

    @property
    def statement_type(self) -> int:
        return STATEMENT_TYPES[self.kind]


class Planner:
    """Creates plans, and caches them until the catalogue changes."""

    def __init__(self, catalog: Catalog, *, strict: bool = False) -> None:
        self._catalog = catalog
        self._strict = strict
        self._plans: OrderedDict[tuple[Any, ...], StatementPlan] = OrderedDict()
        self._version = -1

    def cached(self, key: tuple[Any, ...]) -> StatementPlan | None:
        if self._version != self._catalog.version:
            self._plans.clear()
            self._version = self._catalog.version
        return self._plans.get(key)

    def keep(self, key: tuple[Any, ...], plan: StatementPlan) -> None:
        if len(plan.sql) > PLAN_CHARACTERS_MAX:
            return
        self._plans[key] = plan
        if len(self._plans) > PLANS_MAX:
            self._plans.popitem(last=False)

    def plan(
        self, text: str, tokens: list[Token], database: str | None, schema: str | None, types: tuple[str, ...],
        arrays: bool,
    ) -> StatementPlan:  # fmt: skip
        """Raises SqlError. Long texts are planned in a PlanningThread."""
        with budget_of(len(tokens)):
            return self._plan(text, tokens, database, schema, types, arrays)

    def _plan(
        self, text: str, tokens: list[Token], database: str | None, schema: str | None, types: tuple[str, ...],
        arrays: bool,
    ) -> StatementPlan:  # fmt: skip
        tree = parser.parse(text, tokens)
        kind = _KINDS.get(type(tree))
        if kind is None:
            raise unsupported(type(tree).__name__.upper())
        binds = BindTypes(types, parser.placeholders(tokens), arrays)
        if arrays and kind != "INSERT":
            raise compilation(2, "0A000", "Unsupported feature 'array bind outside INSERT'.")
        emitter = Emitter(self._catalog, database, schema, binds, strict=self._strict)
        emitter.text = text
        emitter.result_names = parser.select_list(text, tokens)
        describing = ""
        try:
            sql = emitter.emit(tree)
            if kind == "SELECT":
                second = Emitter(self._catalog, database, schema, binds, typed_nulls=True, strict=self._strict)
                second.text = text
                describing = second.emit(tree)
        except RecursionError:
            raise too_deep() from None
        return _plan_of(kind, sql, describing, emitter)


def _plan_of(kind: str, sql: str, describing: str, emitter: Emitter) -> StatementPlan:
    touched = [*emitter.reads, *emitter.writes]
    standard = next((table for table in emitter.writes if not table.hybrid), None)
    wait = emitter.lock_wait
    for_update = wait is not None
    return StatementPlan(
        kind=kind,
        sql=sql,
        binds=emitter.binds,
        parameters=tuple(emitter.parameters),
        server_functions=tuple(emitter.server_functions),
        hybrid_only=bool(touched) and all(table.hybrid for table in touched) and not emitter.system_tables,
        reads_tables=bool(touched) or emitter.system_tables,
        locked_table=standard if kind in ("UPDATE", "DELETE", "MERGE") else None,
        lock_wait_s=int(str(wait.this)) if isinstance(wait, exp.Literal) else None,
        for_update=for_update,
        describing_sql=describing,
        long_names=emitter.long_names,
        not_null=frozenset(emitter.not_null),
        last_hidden=emitter.last_hidden,
        array_bindable=kind == "INSERT" and (emitter.inserts_values or not emitter.strict),
        tables=frozenset((table.database, table.schema) for table in touched),
    )


async def describe(plan: StatementPlan, backend: Backend, catalog_version: int) -> None:
    """Set the columns of the result: names of the prepared statement, types with modifiers of a view."""
    statement = await backend.prepare(plan.sql, catalog_version)  # PostgreSQL reports unknown columns
    if plan.kind != "SELECT":
        plan.columns = tuple((name, NUMBER) for name in COUNT_NAMES[plan.kind])
    else:
        stored = [attribute.name for attribute in statement.get_attributes()]
        found = [plan.long_names.get(name) or postgres_names.full(name) for name in stored]
        types = await _result_types(backend.connection, plan.describing_sql, len(found))
        columns = tuple(zip(found, types, strict=True))
        plan.columns = columns[:-1] if plan.last_hidden else columns
    plan.rowtype = rowtype(plan, plan.columns)
    plan.converters = tuple(_converters(plan.columns))
    plan.json_columns = tuple(i for i, (_, kind) in enumerate(plan.columns) if kind.kind in SEMI_STRUCTURED)


def rowtype(plan: StatementPlan, columns: Sequence[tuple[str, SnowflakeType]]) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps([kind.rowtype(name, name not in plan.not_null) for name, kind in columns]))


@asynccontextmanager
async def _rolled_back(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """Roll back the changes of the block, also inside a transaction of the user."""
    inside = connection.is_in_transaction()
    await connection.execute("SAVEPOINT described" if inside else "BEGIN")
    try:
        yield
    finally:
        if not connection.is_closed():
            end = "ROLLBACK TO SAVEPOINT described; RELEASE SAVEPOINT described" if inside else "ROLLBACK"
            await connection.execute(end)


async def _result_types(connection: asyncpg.Connection, sql: str, width: int) -> list[SnowflakeType]:
    """The types of an expression's columns: PostgreSQL shows length, precision and scale for views only."""
    if not width:
        return []
    columns = ", ".join(f"c{number}" for number in range(width))
    async with _rolled_back(connection):
        await connection.fetch(
            f'CREATE TEMP VIEW "~described" ({columns}) AS {sql}'
        )  # fetch accepts one statement only, unlike execute
        rows = await connection.fetch(
            "SELECT t.typname::text, a.atttypmod::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
            " WHERE a.attrelid = 'pg_temp.\"~described\"'::regclass AND a.attnum > 0 ORDER BY a.attnum"
        )
    return [described(str(row[0]), int(row[1])) for row in rows]


def _with_offset(scale: int) -> Callable[[Any], str]:
    cut = shortener(scale) if scale < 9 else str
    return lambda row: f"{cut(row[0])} {int(row[1]) + 1440}"


def _converters(columns: tuple[tuple[str, SnowflakeType], ...]) -> list[tuple[int, Callable[[Any], Any]]]:
    found: list[tuple[int, Callable[[Any], Any]]] = []
    for index, (_, kind) in enumerate(columns):
        if kind.kind == "TIMESTAMP_TZ":
            found.append((index, _with_offset(9 if kind.scale is None else kind.scale)))
        elif kind.kind in ("TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ") and kind.scale not in (None, 9):
            found.append((index, shortener(int(kind.scale or 0))))
    return found


Bindings = Mapping[str, Mapping[str, Any]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BINDS_MAX = 30_000
ARRAY_VALUES_MAX = 500_000  # encoded on the event loop
NULL = "NULL"  # the type of a bind without a value, which is accepted everywhere


def signature(bindings: Bindings | None) -> tuple[tuple[str, ...], bool]:
    """The types of the binds, and whether they are array binds."""
    if not bindings:
        return (), False
    if len(bindings) > BINDS_MAX:
        raise compilation(2049, "42601", f"Too many bind variables: {len(bindings)}.")
    types = []
    arrays = False
    for number in range(1, len(bindings) + 1):
        bind = bindings.get(str(number))
        if bind is None:
            raise compilation(2049, "42601", f"Bind variable {number} not set.")
        given = bind.get("value")
        arrays = arrays or isinstance(given, list)
        empty = given is None or (isinstance(given, list) and not any(item is not None for item in given))
        types.append(NULL if empty else str(bind.get("type", "TEXT")).upper())
    return tuple(types), arrays


def value(bindings: Bindings, binds: BindTypes, number: int) -> Any:
    """PostgreSQL's parameter for one bind."""
    kind = binds.types[number - 1]
    given = bindings[str(number)].get("value")
    try:
        if binds.arrays:
            return _column(kind, given)
        if given is None:
            return None
        return _timestamp_tz(given) if kind == "TIMESTAMP_TZ" else str(given)
    except (ValueError, OverflowError):
        raise _bad(number) from None


def check_lengths(columns: list[Any]) -> None:
    values = sum(len(column) for column in columns if isinstance(column, list))
    if values > ARRAY_VALUES_MAX:
        text = f"Array binds have {values} values, more than {ARRAY_VALUES_MAX}. Send them in several statements."
        raise compilation(2049, "42601", text)
    if len({len(column) for column in columns if isinstance(column, list)}) > 1:
        raise compilation(2049, "42601", "Array binds of different lengths.")


def _bad(number: int) -> SqlError:
    return compilation(2049, "42601", f"Bind variable {number} has a value that does not fit its type.")


def _column(kind: str, value: Any) -> list[str | None]:
    """A column of an array bind as texts, which PostgreSQL casts to the type of the bind."""
    items = value if isinstance(value, list) else [value]
    convert = _TEXTS.get(kind, str)
    return [None if item is None else convert(item) for item in items]


def _date(milliseconds: Any) -> str:
    return (_EPOCH + timedelta(days=int(milliseconds) // 86_400_000)).date().isoformat()


def _time(nanoseconds: Any) -> str:
    return (_EPOCH + timedelta(microseconds=int(nanoseconds) // 1000)).time().isoformat()


def _timestamp(nanoseconds: Any) -> str:
    moment = _EPOCH + timedelta(microseconds=int(nanoseconds) // 1000)
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def _timestamp_ltz(nanoseconds: Any) -> str:
    return _timestamp(nanoseconds) + "+00"


def _timestamp_tz(value: Any) -> str:
    """`nanoseconds minutes`, where 1440 minutes stand for the offset 0."""
    nanoseconds, _, shifted = str(value).partition(" ")
    minutes = int(shifted or 1440) - 1440
    local = _EPOCH + timedelta(microseconds=int(nanoseconds) // 1000, minutes=minutes)
    sign, size = ("-", -minutes) if minutes < 0 else ("+", minutes)
    text = local.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return f"{text} {sign}{size // 60:02d}:{size % 60:02d}"


_TEXTS: dict[str, Callable[[Any], str]] = {
    "DATE": _date,
    "TIME": _time,
    "TIMESTAMP_NTZ": _timestamp,
    "TIMESTAMP_LTZ": _timestamp_ltz,
    "TIMESTAMP_TZ": _timestamp_tz,
}
