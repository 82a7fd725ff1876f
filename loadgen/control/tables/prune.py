"""Deleting what old runs and old wishes left in the tables: a few statements, whatever their number."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from loadgen.control.session import ControlSession
from loadgen.control.sql import NamedQuery, load_queries
from loadgen.control.tables.run_status import server_time
from loadgen.snowflake.session import RetryPolicy

_Q = load_queries("prune")
_LOOKS = ("old", "old_queued")


@dataclass(frozen=True, slots=True, kw_only=True)
class OldRun:
    """A run, or a queued run."""

    id: str
    scenario: str
    ended_at: datetime  # naive UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneCandidates:
    """What ended before that moment."""

    before: datetime  # naive UTC
    runs: tuple[OldRun, ...]
    queued: tuple[OldRun, ...]


def look(session: ControlSession, patience: RetryPolicy, age_s: float) -> PruneCandidates:
    """Runs and queued runs that ended longer ago than this."""
    before = patience.call(lambda: server_time(session)) - timedelta(seconds=age_s)

    def old(query: NamedQuery) -> tuple[OldRun, ...]:
        rows = patience.call(lambda: session.fetch(query, before))
        return tuple(OldRun(id=id_, scenario=name, ended_at=ended) for id_, name, ended in rows)

    return PruneCandidates(before=before, runs=old(_Q["old"]), queued=old(_Q["old_queued"]))


def delete(session: ControlSession, patience: RetryPolicy, before: datetime) -> dict[str, int]:
    """Delete everything of what ended before that moment: rows by table. Safe to repeat."""
    deleted = {}
    for name, query in _Q.items():
        if name not in _LOOKS:
            deleted[name.upper()] = patience.call(lambda query=query: session.execute(query, before))  # type: ignore[misc]
    return deleted
