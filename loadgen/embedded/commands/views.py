"""CREATE VIEW, and the query inside a CREATE statement.

A view is kept as its text and put in its place wherever it is read: it sees its tables as they are then, and does not
stand in the way of their change.
"""

from __future__ import annotations

from typing import Any

from loadgen.embedded import catalog as store
from loadgen.embedded import postgres_names, sql_errors
from loadgen.embedded.catalog import CatalogColumn, CatalogTable, now_ms
from loadgen.embedded.commands import CommandCall, command
from loadgen.embedded.commands.objects import change, full_path, head
from loadgen.embedded.result import StatementResult, status
from loadgen.embedded.translate import dialect
from loadgen.embedded.translate.planner import StatementPlan, describe


@command("CREATE", "CREATE VIEW", "CREATE SECURE VIEW")
async def create_view(call: CommandCall) -> StatementResult:
    cursor = call.cursor(1)
    replacing = cursor.accept("OR", "REPLACE")
    _ = cursor.accept("SECURE")
    cursor.expect("VIEW")
    absent, _present = head(cursor)
    database, schema_name, name = full_path(call, cursor.path(), "CREATE VIEW")
    columns = cursor.names() if cursor.word() == "(" else ()
    comment = ""
    if cursor.accept("COMMENT"):
        cursor.expect("=")
        comment = cursor.string()
    cursor.expect("AS")
    if call.request.bindings:
        raise sql_errors.unsupported("bind variable in a view")
    catalog = call.engine.catalog
    schema = catalog.schema(database, schema_name)
    body = cursor.source(cursor.index, len(cursor.tokens) - 1)
    plan = query_plan(call, body, database, schema_name)

    async def work(backend: Any) -> Any:
        existing = schema.tables.get(name)
        if existing is not None and absent:
            return lambda: None
        if existing is not None and (not replacing or existing.kind != "VIEW"):
            raise sql_errors.already_exists(existing.qualified)
        await describe(plan, backend, catalog.version)
        found = _view_columns(plan, columns)
        view = CatalogTable(
            database=database, schema=schema_name, name=name, kind="VIEW", columns=found, comment=comment,
            text=call.request.text, query=body, created_ms=now_ms(),
        )  # fmt: skip
        await store.store_table(backend.connection, view)
        return lambda: schema.tables.__setitem__(name, view)

    await change(call, work)
    return status(f"View {postgres_names.shown(name)} successfully created.")


def query_plan(call: CommandCall, body: str, database: str | None, schema: str | None) -> StatementPlan:
    """The plan of a query inside a DDL statement."""
    plan = call.engine.planner.plan(body, dialect.tokens_of(body), database, schema, (), False)
    if plan.kind != "SELECT" or plan.demands or plan.for_update or plan.last_hidden:
        raise sql_errors.unsupported("this query inside CREATE")
    return plan


def _view_columns(plan: StatementPlan, given: tuple[str, ...]) -> tuple[CatalogColumn, ...]:
    found = given or tuple(name for name, _ in plan.columns)
    if len(found) != len(plan.columns):
        text = f"Invalid column definition list: {len(found)} names for {len(plan.columns)} columns."
        raise sql_errors.compilation(2026, "42601", text)
    duplicate = next((name for name in found if found.count(name) > 1), None)
    if duplicate is not None:
        raise sql_errors.compilation(2025, "42S21", f"duplicate column name '{postgres_names.shown(duplicate)}'")
    return tuple(CatalogColumn(name=name, type=kind) for name, (_, kind) in zip(found, plan.columns, strict=True))
