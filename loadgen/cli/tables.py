"""The tables of a control plane, before a command uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.control.retry import RetryPolicy


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
