"""SYSTEM$ functions, context functions, table functions of the server, RESULT_SCAN; sessions and transactions."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from loadgen import __version__
from loadgen.embedded import sql_errors
from loadgen.embedded.backend_pool import Backend
from loadgen.embedded.commands.registry import CommandCall, command
from loadgen.embedded.commands.services import service_logs
from loadgen.embedded.postgres_names import shown
from loadgen.embedded.result import TEXT, UNCOUNTED_BYTES, StatementResult, is_number, status, table
from loadgen.embedded.session import DEFAULTS, PARAMETERS, ServerSession, checked
from loadgen.embedded.statement_history import ACCOUNT_USAGE, COLUMNS, RESULT_LIMIT_DEFAULT, usage_rows
from loadgen.embedded.transactions import RunningStatement
from loadgen.embedded.translate import parser, planner
from loadgen.embedded.translate.emitter import BindTypes, Emitter, ServerTableFunction
from loadgen.embedded.translate.parser import TokenReader, word_of
from loadgen.embedded.translate.sources import METERING_FUNCTION
from loadgen.embedded.warehouse import HOUR_MS, WarehouseSlot

if TYPE_CHECKING:
    from loadgen.embedded.engine import Engine


SELECT_TYPE = 0x1000
_CONSTANT = (exp.Literal, exp.Placeholder, exp.Parameter, exp.Null, exp.Boolean)
WAIT_UNITS = {"DAYS": 86_400.0, "HOURS": 3600.0, "MINUTES": 60.0, "SECONDS": 1.0, "MILLISECONDS": 0.001}
WAIT_S_MAX = 172_800.0  # two days, the default statement timeout


def context_value(session: ServerSession, name: str, query_id: str) -> str | None:
    """The value of a CURRENT_… function in this session."""
    match name:
        case "CURRENT_SESSION":
            return str(session.number)
        case "CURRENT_USER":
            return session.user
        case "CURRENT_ROLE":
            return session.role
        case "CURRENT_WAREHOUSE":
            return session.warehouse
        case "CURRENT_DATABASE":
            return session.database
        case "CURRENT_SCHEMA":
            return session.schema
        case "CURRENT_SCHEMAS":
            return json.dumps([f"{session.database}.{session.schema}"] if session.schema else [])
        case "CURRENT_TRANSACTION":
            return str(session.transaction.number) if session.transaction else None
        case "LAST_TRANSACTION":
            return str(session.last_transaction) if session.last_transaction else None
        case "LAST_QUERY_ID":
            return session.last_query_id
        case "CURRENT_STATEMENT":
            return query_id
    return _CONSTANTS[name]


_CONSTANTS: dict[str, str | None] = {
    "CURRENT_ACCOUNT": "EMBEDDED",
    "CURRENT_ACCOUNT_NAME": "EMBEDDED",
    "CURRENT_ORGANIZATION_NAME": "LOADGEN",
    "CURRENT_REGION": "LOCAL",
    "CURRENT_VERSION": f"{__version__}-embedded",
    "CURRENT_CLIENT": None,
    "CURRENT_IP_ADDRESS": "127.0.0.1",
    "CURRENT_AVAILABLE_ROLES": '["ACCOUNTADMIN","PUBLIC"]',
    "CURRENT_SECONDARY_ROLES": '{"roles":"","value":""}',
}


async def server_function_rows(
    engine: Engine, backend: Backend, running: RunningStatement, call: ServerTableFunction
) -> str:
    """The rows of a table function of the server as JSON; PostgreSQL evaluates its arguments."""
    session = running.session
    values: dict[str, str | None] = {}
    if call.arguments:
        # Times become epoch milliseconds; LTZ, NTZ and text are accepted.
        parts = [
            f"(extract(epoch FROM sf.cast_ltz({sql})) * 1000)::text" if "RANGE" in name else f"({sql})::text"
            for name, sql in call.arguments.items()
        ]
        row = await _evaluated(backend, running, parts, [])
        values = dict(zip(call.arguments, row, strict=True))
    if call.function == METERING_FUNCTION:
        return json.dumps(_metered(engine, values))
    limit = values.get("RESULT_LIMIT")
    own = call.function.rsplit("_", 1)[-1]
    start, end = values.get("END_TIME_RANGE_START"), values.get("END_TIME_RANGE_END")
    try:
        if call.function.startswith(f"{ACCOUNT_USAGE[1]}."):
            found = usage_rows(engine.history, call.function.partition(".")[2], engine.now_ms())
            return json.dumps([{name: _history_value(name, value) for name, value in row.items()} for row in found])
        rows = engine.history.query_history(
            float(start) if start else None,
            float(end) if end else None,
            _whole("RESULT_LIMIT", limit) if limit else RESULT_LIMIT_DEFAULT,
            session_id=_whole("SESSION_ID", values.get("SESSION_ID") or str(session.number))
            if own == "SESSION"
            else None,
            user=(values.get("USER_NAME") or session.user) if own == "USER" else None,
            warehouse=(values.get("WAREHOUSE_NAME") or session.warehouse) if own == "WAREHOUSE" else None,
        )
    except ValueError as error:
        raise sql_errors.compilation(1008, "22023", str(error)) from None
    return json.dumps([_history_row(row) for row in rows])


def _metered(engine: Engine, values: dict[str, str | None]) -> list[dict[str, Any]]:
    """Credits by warehouse and hour, newest first."""
    begin, end, only = (values.get(name) for name in ("DATE_RANGE_START", "DATE_RANGE_END", "WAREHOUSE_NAME"))
    begin_ms, end_ms = float(begin or 0.0), float(end) if end else engine.now_ms()
    rows = [
        {
            "START_TIME": _instant(hour_ms),
            "END_TIME": _instant(hour_ms + HOUR_MS),
            "WAREHOUSE_NAME": warehouse.settings.name,
            "CREDITS_USED": credits,
            "CREDITS_USED_COMPUTE": credits,
            "CREDITS_USED_CLOUD_SERVICES": 0.0,
        }
        for warehouse in engine.warehouses
        if only is None or warehouse.settings.name == _name(only)
        for hour_ms, credits in warehouse.credits_by_hour(begin_ms, end_ms)
    ]
    return sorted(rows, key=lambda row: str(row["START_TIME"]), reverse=True)


def _name(text: str) -> str:
    """An identifier, upper-cased unless quoted."""
    return text[1:-1].replace('""', '"') if text[:1] == '"' else text.upper()


def _whole(name: str, text: str) -> int:
    if not is_number(text):
        raise sql_errors.compilation(1008, "22023", f"invalid value [{text[:100]}] for parameter '{name}'")
    return int(text)


_TIMES = {"START_TIME", "END_TIME", "INTERVAL_START_TIME", "INTERVAL_END_TIME"}
# NUL and unpaired surrogates, which PostgreSQL cannot store and a rejected statement may contain.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def _history_row(row: Any) -> dict[str, Any]:
    return {name: _history_value(name, value) for (name, _), value in zip(COLUMNS, row, strict=True)}


def _history_value(name: str, value: Any) -> Any:
    if name in _TIMES:
        return _instant(value)
    if name == "BIND_VALUES":
        return None if value is None else json.loads(_UNSTORABLE.sub("\ufffd", value).replace("\\u0000", "\\ufffd"))
    return _UNSTORABLE.sub("\ufffd", value) if isinstance(value, str) else value


def _instant(milliseconds: float) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)).isoformat()


@command("SELECT", "SELECT SYSTEM$")
async def system(call: CommandCall) -> StatementResult:
    """SELECT SYSTEM$NAME(arguments), without other parts of a query."""
    tree = parser.parse(call.request.text, parser.tokens_of(call.request.text))
    item = tree.expressions[0] if isinstance(tree, exp.Select) and len(tree.expressions) == 1 else None
    node = item.this if isinstance(item, exp.Alias) else item
    if not isinstance(node, exp.Anonymous) or any(tree.args.get(part) for part in ("from_", "where", "with_")):
        raise sql_errors.unsupported("SYSTEM$ function inside a larger query")
    column = parser.identifier(item.args["alias"]) if isinstance(item, exp.Alias) else parser.shown(node)
    arguments = await _arguments(call, node)
    value = await _answer(call, str(node.this).upper(), arguments)
    return table([(column, TEXT)], [[value]], SELECT_TYPE)


async def _arguments(call: CommandCall, node: Any) -> list[str | None]:
    if not node.expressions:
        return []
    types, arrays = planner.signature(call.request.bindings)
    binds = BindTypes(types, parser.placeholders(call.tokens), arrays)
    emitter = Emitter(call.engine.catalog, call.session.database, call.session.schema, binds)
    texts = [f"({emitter.emit(argument)})::text" for argument in node.expressions]
    values = [
        planner.value(call.request.bindings or {}, binds, key)
        if isinstance(key, int)
        else context_value(call.session, key, call.running.statement.query_id)
        for key in emitter.parameters
    ]
    # Constants need no slot, so a statement can be cancelled while all slots are in use.
    constant = all(isinstance(argument, _CONSTANT) for argument in node.expressions)
    slot = None if constant else await _admitted(call)
    try:
        backend = call.running.backend = await call.engine.backends.acquire(call.session.timezone)
        try:
            return await _evaluated(backend, call.running, texts, values)
        finally:
            call.running.backend = None
            await call.engine.backends.release(backend)
    finally:
        if slot is not None:
            slot.release()


async def _evaluated(
    backend: Backend, running: RunningStatement, texts: list[str], values: list[Any]
) -> list[str | None]:
    """The values of arguments, which have the limits of a result."""
    prepared = await backend.connection.prepare("SELECT " + ", ".join(texts))
    (row,), charge = await backend.fetch(prepared, values, len(texts), reject=running.cancel, check=running.check)
    if charge is not None:
        raise sql_errors.compilation(1008, "22023", f"the arguments are longer than {UNCOUNTED_BYTES:,} bytes")
    return list(row)


async def _admitted(call: CommandCall) -> WarehouseSlot:
    call.running.statement.status = "queued"
    queued_s = call.running.parameter("STATEMENT_QUEUED_TIMEOUT_IN_SECONDS")
    slot = await call.engine.warehouse_of(call.session).admit(queued_timeout_s=float(queued_s))
    call.running.statement.status = "running"
    call.running.statement.queued_ms += slot.queued_s * 1000
    return slot


async def _answer(call: CommandCall, name: str, arguments: list[str | None]) -> str:
    match name:
        case "SYSTEM$CANCEL_QUERY":
            return _cancel_query(call, _one(name, arguments))
        case "SYSTEM$CANCEL_ALL_QUERIES":
            return _cancel_session(call, _one(name, arguments))
        case "SYSTEM$ABORT_SESSION":
            number = _one(name, arguments)
            session = call.engine.sessions.by_number.get(int(number) if is_number(number) else 0)
            if session is None:
                raise sql_errors.missing_object("Session", str(arguments[0]))
            _require_own(call, session)
            await call.engine.close(session)
            return "session aborted."
        case "SYSTEM$WAIT":
            return await _wait(call, arguments)
        case "SYSTEM$GET_SERVICE_LOGS":
            return service_logs(call, arguments)
    raise sql_errors.unknown_function(name)


def _one(name: str, arguments: list[str | None]) -> str:
    if len(arguments) != 1:
        raise sql_errors.wrong_arity(name, 1, 1, len(arguments))
    return arguments[0] or ""


def _require_own(call: CommandCall, session: ServerSession) -> None:
    if session.user != call.session.user:
        what = f"SQL access control error:\nInsufficient privileges to operate on session '{session.number}'."
        raise sql_errors.SqlError(3001, "42501", what)


def _cancel_query(call: CommandCall, query_id: str) -> str:
    running = call.engine.running.get(query_id)
    if running is not None and running.session.user == call.session.user:
        running.cancel(sql_errors.canceled())
        return f"query [{query_id}] terminated."
    ended = call.engine.history.find_ended(query_id)
    if ended is not None and ended.context.user == call.session.user:
        return "Identified SQL statement is not currently executing."
    raise sql_errors.SqlError(707, "02000", f"SQL execution error: Invalid UUID or unknown query: {query_id[:60]}")


def _cancel_session(call: CommandCall, number: str) -> str:
    session = call.engine.sessions.by_number.get(int(number) if is_number(number) else 0)
    if session is not None:
        _require_own(call, session)
    count = 0
    for running in list(call.engine.running.values()):
        if running.session is session and running is not call.running:
            running.cancel(sql_errors.canceled())
            count += 1
    return f"{count} cancelled."


async def _wait(call: CommandCall, arguments: list[str | None]) -> str:
    """SYSTEM$WAIT: sleep with a warehouse slot, like a long statement."""
    if not 1 <= len(arguments) <= 2:
        raise sql_errors.wrong_arity("SYSTEM$WAIT", 1, 2, len(arguments))
    unit = (arguments[1] or "SECONDS").upper() if len(arguments) > 1 else "SECONDS"
    if unit not in WAIT_UNITS:
        raise sql_errors.compilation(1008, "22023", f"invalid value [{unit[:40]}] for unit of SYSTEM$WAIT")
    try:
        amount = float(arguments[0] or 0)
    except ValueError:
        raise sql_errors.SqlError(
            100038, "22018", f"Numeric value '{str(arguments[0])[:40]}' is not recognized"
        ) from None
    seconds = amount * WAIT_UNITS[unit]
    if not 0 <= seconds <= WAIT_S_MAX:
        raise sql_errors.compilation(1008, "22023", f"invalid value [{str(arguments[0])[:40]}] for SYSTEM$WAIT")
    slot = await _admitted(call)
    try:
        await asyncio.sleep(seconds)
    finally:
        slot.release()
    return f"waited {arguments[0]} {unit.lower()}"


@command("SELECT", "RESULT_SCAN")
async def result_scan(call: CommandCall) -> StatementResult:
    """SELECT * FROM TABLE(RESULT_SCAN('id')), which connector 4 uses to fetch asynchronous results."""
    cursor = call.cursor(7)
    query_id = (call.session.last_query_id or "") if cursor.accept("LAST_QUERY_ID", "(", ")") else cursor.string()
    cursor.expect(")", ")")
    cursor.end()
    return call.engine.results.get(query_id, call.session.user)


@command("CALL", "CALL")
async def call_procedure(call: CommandCall) -> StatementResult:
    """CALL is rejected: the server has no stored procedures."""
    name = call.tokens[1].text.upper() if len(call.tokens) > 1 else ""
    raise sql_errors.unknown_function(name[:100]) if name.startswith("SYSTEM$") else sql_errors.unsupported("CALL")


# --- USE, ALTER SESSION, BEGIN, COMMIT, ROLLBACK ---------------------------------------------------------------------

SUCCESS = "Statement executed successfully."
USE, ALTER_SESSION, BEGIN, COMMIT, ROLLBACK = 0x4300, 0x4100, 0x5000 + 0x100, 0x5000 + 0x200, 0x5000 + 0x300


@command("USE", "USE")
async def use(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    if cursor.accept("WAREHOUSE"):
        _use_warehouse(call, cursor.name())
    elif cursor.accept("ROLE"):
        call.session.role = cursor.name()
    elif cursor.accept("SECONDARY", "ROLES"):
        cursor.expect(cursor.word())
    elif cursor.accept("DATABASE"):
        _use_database(call, cursor.name())
    elif cursor.accept("SCHEMA"):
        _use_schema(call, cursor.path())
    else:
        path = cursor.path()
        if len(path) == 1:
            _use_database(call, path[0])
        else:
            _use_schema(call, path)
    cursor.end()
    call.session.changed()
    return status(SUCCESS, USE)


def _use_warehouse(call: CommandCall, name: str) -> None:
    warehouse = call.engine.warehouses.get(name)
    if warehouse is None:
        raise sql_errors.no_such_object()
    call.session.warehouse = name
    call.session.warehouse_size = warehouse.settings.size


def _use_database(call: CommandCall, name: str) -> None:
    database = call.engine.catalog.databases.get(name)
    if database is None:
        raise sql_errors.no_such_object()
    call.session.database = name
    call.session.schema = "PUBLIC" if "PUBLIC" in database.schemas else None


def _use_schema(call: CommandCall, path: list[str]) -> None:
    database = path[-2] if len(path) > 1 else call.session.database
    if database is None:
        raise sql_errors.no_current_database("USE SCHEMA")
    found = call.engine.catalog.databases.get(database)
    if found is None or (path[-1] not in found.schemas and path[-1] != "INFORMATION_SCHEMA"):
        raise sql_errors.no_such_object()
    call.session.database, call.session.schema = database, path[-1]


@command("ALTER_SESSION", "ALTER SESSION")
async def alter_session(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    if cursor.accept("SET"):
        for name, value in assignments(cursor):
            call.session.parameters[name] = checked(name, value)
            if name == "AUTOCOMMIT" and value and call.session.transaction is not None:
                await call.engine.transactions.end(call.session, "COMMIT")
    elif cursor.accept("UNSET"):
        while not cursor.done:
            name = cursor.name()
            if name not in PARAMETERS:
                raise sql_errors.compilation(1006, "22023", f"invalid parameter '{shown(name)}'")
            call.session.parameters[name] = DEFAULTS[name]
            if not cursor.done:
                cursor.expect(",")
    else:
        raise cursor.unexpected()
    call.session.changed()
    result = status(SUCCESS, ALTER_SESSION)
    result.parameters_changed = True
    return result


def assignments(cursor: TokenReader) -> list[tuple[str, str]]:
    """The pairs `NAME = value` up to the end of the statement, with or without commas."""
    pairs = []
    while not cursor.done:
        name = cursor.name()
        cursor.expect("=")
        pairs.append((name, cursor.value()))
        cursor.accept(",")
    if not pairs:
        raise cursor.unexpected()
    return pairs


@command("BEGIN_TRANSACTION", "BEGIN", "START TRANSACTION")
async def begin(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    _ = cursor.accept("TRANSACTION") or cursor.accept("WORK")
    name = cursor.name() if cursor.accept("NAME") else ""
    if not cursor.done:
        raise (
            sql_errors.unsupported("Snowflake Scripting block")
            if word_of(call.tokens[0]) == "BEGIN"
            else cursor.unexpected()
        )
    await call.engine.transactions.begin(call.session, name)
    return status(SUCCESS, BEGIN)


@command("COMMIT", "COMMIT")
async def commit(call: CommandCall) -> StatementResult:
    return await _end(call, "COMMIT", COMMIT)


@command("ROLLBACK", "ROLLBACK")
async def rollback(call: CommandCall) -> StatementResult:
    return await _end(call, "ROLLBACK", ROLLBACK)


async def _end(call: CommandCall, verb: str, statement_type: int) -> StatementResult:
    cursor = call.cursor(1)
    _ = cursor.accept("WORK")
    cursor.end()
    transaction = call.session.transaction
    if transaction is not None:
        async with transaction.lock:
            await call.engine.transactions.end(call.session, verb)
    return status(SUCCESS, statement_type)
