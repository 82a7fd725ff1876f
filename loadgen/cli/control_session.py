"""A look at the control plane by a command that is soon over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from loadgen.cli.common import echo, run_in_thread
from loadgen.cli.options import Command, embedded_server_if_needed, location_options, resolve_target
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.control.session import ControlSession
    from loadgen.snowflake.session import RetryPolicy


Result = TypeVar("Result")

INTERACTIVE_ATTEMPTS = 5  # half a minute of pauses; a person waits


def control_options(command: Command) -> Command:
    """-c, and where the tables are."""
    return click.option("-c", "--connection", metavar="NAME", help="The control plane's connection.")(
        location_options(command)
    )


def location_arguments(options: Mapping[str, str | None]) -> dict[str, str | None]:
    """What control_options gave."""
    return {name: options[name] for name in ("connection", "database", "schema", "warehouse")}


def with_control_session(
    action: Callable[[ControlSession, RetryPolicy], Result],
    *,
    name: str,
    connection: str | None,
    database: str | None,
    schema: str | None,
    warehouse: str | None,
) -> Result:
    """What `action` finds out, with a session of its own and some patience."""
    aim = resolve_target(None, connection, database=database, schema=schema, warehouse=warehouse)
    stop = threading.Event()

    def look() -> Result:
        from loadgen.control.session import ControlFailed, ControlSession
        from loadgen.snowflake.profile import EMBEDDED
        from loadgen.snowflake.session import RetryPolicy

        session, patience = (
            ControlSession(aim.place, role=name),
            RetryPolicy(stop=stop, attempts=INTERACTIVE_ATTEMPTS, note=note),
        )
        try:
            return action(session, patience)
        except ControlFailed as error:
            if not error.failure.is_missing_object or aim.place.connection != EMBEDDED:
                raise
            ensure_tables(aim.place, patience)  # nobody has used this server before
            return action(session, patience)
        finally:
            session.close()

    def note(error: BaseException) -> None:
        if not stop.is_set():
            echo(f"warning: {printable(str(error))}; trying again", err=True)

    try:
        with embedded_server_if_needed(aim.place.connection):
            return run_in_thread(look, name=name)
    finally:
        stop.set()  # after Ctrl-C the thread is left behind, and has nothing to say any more


def ensure_tables(place: ControlPlaneLocation, patience: RetryPolicy) -> None:
    """On the embedded server they are made when missing; elsewhere that is somebody's decision."""
    from loadgen.control.session import ControlSession
    from loadgen.control.setup.installer import apply_setup, inspect_setup
    from loadgen.control.setup.migrations import require_current
    from loadgen.control.tables.run_status import server_time
    from loadgen.snowflake.profile import EMBEDDED

    if place.connection == EMBEDDED:
        apply_setup(inspect_setup(place, patience), patience, lambda _: None)
        return
    session = ControlSession(place, role="tables")
    try:
        server_time(session)  # the first contact is not repeated: a wrong address is told at once
        require_current(session, patience)
    finally:
        session.close()
