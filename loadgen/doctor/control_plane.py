"""The control plane: is it there, of the right version, and may we use it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.setup.grants import control_needs, control_statements
from loadgen.control.setup.installer import Prerequisites
from loadgen.control.setup.migrations import SchemaState, migrations
from loadgen.control.setup.privileges import required_privileges
from loadgen.control.sql import NamedQuery
from loadgen.doctor.finding import Finding, failed, ok, warning
from loadgen.model.credits import IDLE_POLL_S, look_credits_per_day
from loadgen.snowflake.ident import Identifier, QualifiedName
from loadgen.units import format_duration_s


def ground(found: Prerequisites, place: ControlPlaneLocation, *, is_embedded: bool) -> Finding:
    parts = {
        f"warehouse {Identifier.parse(place.warehouse)}": found.warehouse,
        f"database {Identifier.parse(place.database)}": found.database,
        f"schema {place.schema_name}": found.schema,
    }
    absent = [name for name, is_there in parts.items() if not is_there]
    if not absent:
        per_day = look_credits_per_day(IDLE_POLL_S)
        pool = f"an idle `loadgen pool run` starts the warehouse every {format_duration_s(IDLE_POLL_S)}"
        return ok(", ".join(parts), *([] if is_embedded else [f"{pool}: about {per_day:.1f} credits a day"]))
    remedy = "`loadgen setup` makes them, or says what an administrator must do."
    return failed(f"not there, or not for this role: {', '.join(absent)}", remedy)


def tables(state: SchemaState, *, is_embedded: bool) -> Finding:
    newest = migrations()[-1].title
    if not state.pending:
        return ok(f"all there, version {newest}")
    if state.applied:
        return failed(
            f"older than this loadgen: {', '.join(each.title for each in state.pending)} is missing",
            "Run `loadgen setup`.",
        )
    if is_embedded:
        return warning("not there yet", "Run `loadgen setup -c embedded`.")
    return failed("not there yet", "Run `loadgen setup`.")


def hybrid_count(state: SchemaState) -> int:
    """How many hybrid tables the applied migrations have made."""
    return sum(
        hybrid for migration in migrations() if migration.version in state.applied for _, hybrid in migration.tables
    )


def may_read(session: ControlSession) -> Sequence[Finding]:
    """Read no row of each table."""
    return _tried("SELECT", lambda name: _try(session, f"SELECT COUNT(*) FROM {name} WHERE 1 = 0", 0))


def may_write(session: ControlSession) -> Sequence[Finding]:
    """Insert no row, and change none: the statements are executed, so the rights are checked, and touch nothing."""
    inserted = _tried("INSERT", lambda name: _try(session, f"INSERT INTO {name} SELECT * FROM {name} WHERE 1 = 0", 0))
    updates = {name: query for query in control_statements() for name in _updated(query)}
    # Every UPDATE has `RUN_ID = ?`, and with NULL that is true of no row.
    changed = _tried("UPDATE", lambda name: _try(session, updates[name].sql, updates[name].binds))
    return [each for each in (*inserted, *changed) if each.remedy] or [*inserted, *changed][:1]


def _updated(query: NamedQuery) -> list[QualifiedName]:
    return [name for name, privileges in required_privileges(query.sql).items() if "UPDATE" in privileges]


def _tried(privilege: str, attempt: Callable[[QualifiedName], bool]) -> list[Finding]:
    names = sorted((name for name, needed in control_needs().items() if privilege in needed), key=str)
    refused = [str(name) for name in names if not attempt(name)]
    if refused:
        remedy = "`loadgen grants` prints what the role needs; an administrator runs it."
        return [failed(f"{privilege} is refused on {', '.join(refused)}", remedy)]
    return [ok(f"all {len(names)} tables")]


def _try(session: ControlSession, sql: str, binds: int) -> bool:
    query = NamedQuery(name="doctor", sql=sql, binds=binds)
    try:
        if sql.startswith("SELECT"):
            session.fetch(query)
        else:
            session.execute(query, *[None] * binds)
    except ControlFailed as error:
        if error.failure.is_missing_object or error.failure.is_missing_privilege:
            return False
        raise
    return True
