"""USE, ALTER SESSION, BEGIN, COMMIT, ROLLBACK."""

from __future__ import annotations

from loadgen.embedded import sql_errors
from loadgen.embedded.commands import CommandCall, command
from loadgen.embedded.postgres_names import shown
from loadgen.embedded.result import StatementResult, status
from loadgen.embedded.session import DEFAULTS, PARAMETERS, checked
from loadgen.embedded.translate.token_reader import TokenReader, word_of

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
    """`NAME = value` pairs up to the end, with or without commas."""
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
