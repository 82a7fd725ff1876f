"""Deleting what old runs left in the tables: a few statements, whatever the number of runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from loadgen.control.queries import queries
from loadgen.control.retry import Patience
from loadgen.control.run_status import server_time
from loadgen.control.session import ControlSession

_Q = queries("prune")


@dataclass(frozen=True, slots=True, kw_only=True)
class OldRun:
    run_id: str
    scenario: str
    ended_at: datetime  # naive UTC


def old_runs(session: ControlSession, patience: Patience, age_s: float) -> tuple[datetime, tuple[OldRun, ...]]:
    """Runs that ended longer ago than this, and the moment that divides old from new."""
    before = patience.call(lambda: server_time(session)) - timedelta(seconds=age_s)
    rows = patience.call(lambda: session.fetch(_Q["old"], before))
    return before, tuple(OldRun(run_id=run_id, scenario=name, ended_at=ended) for run_id, name, ended in rows)


def delete(session: ControlSession, patience: Patience, before: datetime) -> dict[str, int]:
    """Delete everything of the runs that ended before that moment: rows by table. Safe to repeat."""
    deleted = {}
    for name, query in _Q.items():
        if name != "old":
            deleted[name.upper()] = patience.call(lambda query=query: session.execute(query, before))  # type: ignore[misc]
    return deleted
