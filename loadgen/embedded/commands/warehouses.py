"""CREATE, ALTER and DROP WAREHOUSE."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from loadgen.embedded import catalog as store
from loadgen.embedded import postgres_names, sql_errors
from loadgen.embedded.commands.objects import change_catalog, read_if_not_exists
from loadgen.embedded.commands.registry import CommandCall, command
from loadgen.embedded.result import StatementResult, status
from loadgen.embedded.session import checked
from loadgen.embedded.translate.parser import TokenReader
from loadgen.embedded.warehouse import VirtualWarehouse, WarehouseSettings, size_name

_BOOLEANS = {
    "AUTO_RESUME": "auto_resume",
    "ENABLE_QUERY_ACCELERATION": "enable_query_acceleration",
    "ENABLE_USE_STABLE_PATH": "enable_use_stable_path",
}
_NUMBERS = {
    "MIN_CLUSTER_COUNT": "min_cluster_count",
    "MAX_CLUSTER_COUNT": "max_cluster_count",
    "AUTO_SUSPEND": "auto_suspend_s",
    "MAX_CONCURRENCY_LEVEL": "max_concurrency_level",
    "STATEMENT_TIMEOUT_IN_SECONDS": "statement_timeout_s",
    "STATEMENT_QUEUED_TIMEOUT_IN_SECONDS": "statement_queued_timeout_s",
    "QUERY_ACCELERATION_MAX_SCALE_FACTOR": "query_acceleration_max_scale_factor",
}
_WORDS = {"SCALING_POLICY": "scaling_policy", "WAREHOUSE_TYPE": "type"}
SUCCESS = "Statement executed successfully."


def _settings(cursor: TokenReader) -> tuple[dict[str, Any], bool]:
    """The properties of CREATE and ALTER … SET, and the value of INITIALLY_SUSPENDED."""
    found: dict[str, Any] = {}
    suspended = False
    _ = cursor.accept("WITH")
    while not cursor.done:
        name = cursor.name()
        cursor.expect("=")
        value = cursor.value()
        cursor.accept(",")
        if name == "WAREHOUSE_SIZE":
            found["size"] = _converted(name, value, size_name)
        elif name == "INITIALLY_SUSPENDED":
            suspended = _boolean(name, value)
        elif name == "COMMENT":
            found["comment"] = value
        elif name == "GENERATION":
            found["generation"] = value
        elif name == "RESOURCE_MONITOR":
            found["resource_monitor"] = value
        elif name in _BOOLEANS:
            found[_BOOLEANS[name]] = _boolean(name, value)
        elif name in _NUMBERS:
            found[_NUMBERS[name]] = 0 if value.upper() == "NULL" else _converted(name, value, int)
        elif name in _WORDS:
            found[_WORDS[name]] = value.upper()
        else:
            raise sql_errors.compilation(1006, "22023", f"invalid property '{name}' for 'WAREHOUSE'")
    return found, suspended


def _boolean(name: str, value: str) -> bool:
    return bool(checked("AUTOCOMMIT", value)) if value.upper() in ("TRUE", "FALSE") else _reject(name, value)


def _reject(name: str, value: str) -> Any:
    raise sql_errors.compilation(1008, "22023", f"invalid value [{value[:100]}] for parameter '{name}'")


def _converted(name: str, value: str, convert: Any) -> Any:
    try:
        return convert(value)
    except ValueError:
        return _reject(name, value)


async def store_warehouse(connection: Any, warehouse: VirtualWarehouse) -> None:
    await store.save_object(connection, "warehouse", [warehouse.settings.name], asdict(warehouse.settings))


@command("CREATE", "CREATE WAREHOUSE", "CREATE INTERACTIVE WAREHOUSE", "CREATE ADAPTIVE WAREHOUSE")
async def create(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    replacing = cursor.accept("OR", "REPLACE")
    if cursor.word() in ("INTERACTIVE", "ADAPTIVE"):
        raise sql_errors.unsupported(f"{cursor.word()} WAREHOUSE")
    cursor.expect("WAREHOUSE")
    if_not_exists = read_if_not_exists(cursor, replacing)
    name = cursor.name()
    given, suspended = _settings(cursor)
    warehouses = call.engine.warehouses
    shown = postgres_names.shown(name)
    if name in warehouses and if_not_exists:
        return status(f"{shown} already exists, statement succeeded.")
    if name in warehouses and not replacing:
        raise sql_errors.already_exists(shown)
    now = call.engine.now_ms()
    try:
        settings = WarehouseSettings(name=name, created_on_ms=now, updated_on_ms=now, **given)
    except ValueError as error:
        raise sql_errors.compilation(1008, "22023", str(error)) from None

    async def work(backend: Any) -> Any:
        await store.save_object(backend.connection, "warehouse", [name], asdict(settings))

        def done() -> None:
            if name in warehouses:
                warehouses.drop(name)
            warehouses.add(settings, suspended=suspended)

        return done

    await change_catalog(call, work)
    call.session.warehouse, call.session.warehouse_size = name, settings.size
    call.session.changed()
    return status(f"Warehouse {shown} successfully created.")


def _found(call: CommandCall, name: str, if_exists: bool) -> VirtualWarehouse | None:
    warehouse = call.engine.warehouses.get(name)
    if warehouse is None and not if_exists:
        raise sql_errors.no_such_object()
    return warehouse


@command("ALTER_WAREHOUSE", "ALTER WAREHOUSE")
async def alter(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    if_exists = cursor.accept("IF", "EXISTS")
    verbs = ("SET", "UNSET", "SUSPEND", "RESUME", "ABORT", "RENAME")
    name = call.session.warehouse or "" if cursor.word() in verbs else cursor.name()
    warehouse = _found(call, name, if_exists)
    if warehouse is None:
        return status(SUCCESS)
    if cursor.accept("SUSPEND"):
        if warehouse.state == "SUSPENDED":
            raise _invalid_state(90064, name, "suspended")
        warehouse.suspend()
    elif cursor.accept("RESUME"):
        if not cursor.accept("IF", "SUSPENDED") and warehouse.state != "SUSPENDED":
            raise _invalid_state(90063, name, "resumed")
        warehouse.resume()
    elif cursor.accept("ABORT", "ALL", "QUERIES"):
        for running in list(call.engine.running.values()):
            if running.session.warehouse == name and running is not call.running:
                running.cancel(sql_errors.canceled())
    elif cursor.accept("SET"):
        await _set(call, warehouse, cursor)
    else:
        raise sql_errors.unsupported(f"ALTER WAREHOUSE {cursor.word()}")
    cursor.end()
    return status(SUCCESS)


def _invalid_state(errno: int, name: str, action: str) -> sql_errors.SqlError:
    return sql_errors.compilation(
        errno, "22000", f"Invalid state. Warehouse '{postgres_names.shown(name)}' cannot be {action}."
    )


async def _set(call: CommandCall, warehouse: VirtualWarehouse, cursor: TokenReader) -> None:
    given, _ = _settings(cursor)
    try:
        warehouse.alter(**given)
    except ValueError as error:
        raise sql_errors.compilation(1008, "22023", str(error)) from None

    async def work(backend: Any) -> Any:
        await store_warehouse(backend.connection, warehouse)
        return lambda: None

    await change_catalog(call, work)


@command("DROP", "DROP WAREHOUSE")
async def drop(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name()
    cursor.end()
    warehouse = call.engine.warehouses.get(name)
    if warehouse is None:
        if not if_exists:
            raise sql_errors.missing_object("Warehouse", postgres_names.shown(name))
        return status(f"Drop statement executed successfully ({postgres_names.shown(name)} already dropped).")

    async def work(backend: Any) -> Any:
        await store.delete_object(backend.connection, "warehouse", [name])
        return lambda: call.engine.warehouses.drop(name)

    await change_catalog(call, work)
    return status(f"{postgres_names.shown(name)} successfully dropped.")
