"""Which run is meant: its id, a beginning that no other has, `latest`, or `latest~1` for the one before."""

from __future__ import annotations

import re

from loadgen.control.session import ControlSession
from loadgen.control.tables import run_status
from loadgen.control.tables.run_status import Run
from loadgen.errors import UsageError
from loadgen.log import printable
from loadgen.snowflake.session import RetryPolicy

BACK_MAX = 1_000  # how far latest~N may go
SHOWN = 5  # of several that begin alike

_LATEST = re.compile(r"latest(?:~([0-9]{1,6}))?")
_REMEDY = "`loadgen runs list` shows the runs there are."


def is_latest(name: str) -> bool:
    """Is it a name that only the tables can tell the meaning of?"""
    return _LATEST.fullmatch(name) is not None


def find_run(session: ControlSession, patience: RetryPolicy, name: str) -> Run:
    """The run of that name. UsageError when there is none, or more than one."""
    if latest := _LATEST.fullmatch(name):
        return _latest(session, patience, int(latest[1] or 0))
    if not name:
        raise UsageError("the name of a run is empty", remedy=_REMEDY)
    ids = patience.call(lambda: run_status.beginning_with(session, name, SHOWN + 1))
    chosen = name if name in ids else ids[0] if len(ids) == 1 else None
    run = None if chosen is None else patience.call(lambda: run_status.read(session, chosen))
    if run is not None:
        return run
    if not ids:
        raise UsageError(f"there is no run {printable(name, 100)}", remedy=_REMEDY)
    more = ", …" if len(ids) > SHOWN else ""
    raise UsageError(
        f"{printable(name, 100)} is the beginning of several runs: {', '.join(ids[:SHOWN])}{more}",
        remedy="Write more of it.",
    )


def _latest(session: ControlSession, patience: RetryPolicy, back: int) -> Run:
    if back > BACK_MAX:
        raise UsageError(f"latest~{back} is too far back: at most latest~{BACK_MAX}", remedy=_REMEDY)
    runs = patience.call(lambda: run_status.newest(session, back + 1))
    if not runs:
        raise UsageError("there are no runs yet", remedy="Start one with `loadgen run FILE`.")
    if len(runs) <= back:
        raise UsageError(f"the oldest run is latest~{len(runs) - 1}: there is no latest~{back}", remedy=_REMEDY)
    return runs[back]
