"""The tables of a control plane, before a command uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.control.place import ControlPlace
    from loadgen.control.retry import Patience


def ensure_tables(place: ControlPlace, patience: Patience) -> None:
    """On the embedded server they are made when missing; elsewhere that is somebody's decision."""
    from loadgen.control.migrations import require_current
    from loadgen.control.run_status import server_time
    from loadgen.control.session import ControlSession
    from loadgen.control.setup import do, look
    from loadgen.snowflake.profile import EMBEDDED

    if place.connection == EMBEDDED:
        do(look(place, patience), patience, lambda _: None)
        return
    session = ControlSession(place, role="tables")
    try:
        server_time(session)  # the first contact is not repeated: a wrong address is told at once
        require_current(session, patience)
    finally:
        session.close()
