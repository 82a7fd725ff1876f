"""Deletes the rows of old runs, queued runs and experiments from all tables, in parts of bounded size.

A part consists of the oldest remaining runs. Their rows in RUN_STATUS or RUN_QUEUE are deleted last, so an interrupted
part is found again, and a deleted part is not. A part that exceeds the time limit of a statement is retried with half
as many runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from loadgen.control.session import ControlFailed, ControlSession, NamedQuery, load_queries
from loadgen.control.tables import run_leases
from loadgen.control.tables.experiments import LEASE_PREFIX
from loadgen.control.tables.run_status import server_time
from loadgen.snowflake.session import RetryPolicy, is_retryable_soon
from loadgen.values import dataclass

PART_RUNS = 200

_Q = load_queries("prune")
_OLD = ("old", "old_queued", "old_experiments")
_OF_QUEUED = ("run_attempts", "run_attempt_ends", "run_queue")
_OF_EXPERIMENTS = (  # in this order: see prune.sql
    *("experiment_warehouses", "experiment_warehouse_restores", "experiment_measurements", "experiment_blocks"),
    *("experiment_ends", "experiment_meterings", "experiments", "experiment_lease"),
)
# Deleted at once, because there are few rows; with their tables.
_AT_ONCE = {"stop_requests": "STOP_REQUESTS", "warehouse_leases": "RUN_LEASES", "experiment_leases": "RUN_LEASES"}
_TABLES = {**_AT_ONCE, "experiment_lease": "RUN_LEASES"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OldRun:
    """A run, a queued run, or an experiment that has ended, and whose lease has expired."""

    id: str
    scenario: str
    ended_at: datetime  # naive UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneCandidates:
    """What ended before a point in time, the oldest first."""

    before: datetime  # naive UTC
    runs: tuple[OldRun, ...]
    queued: tuple[OldRun, ...]
    experiments: tuple[OldRun, ...] = ()


def find_old(session: ControlSession, retries: RetryPolicy, age_s: float) -> PruneCandidates:
    """Runs, queued runs and experiments that ended more than `age_s` ago, except those with an unrestored warehouse."""
    before = retries.call(lambda: server_time(session)) - timedelta(seconds=age_s)

    def old(query: NamedQuery) -> tuple[OldRun, ...]:
        rows = retries.call(lambda: session.fetch(query, before))
        return tuple(OldRun(id=id_, scenario=name, ended_at=ended) for id_, name, ended in rows)

    runs, queued, experiments = (old(_Q[name]) for name in _OLD)
    return PruneCandidates(before=before, runs=runs, queued=queued, experiments=experiments)


def delete(
    session: ControlSession, retries: RetryPolicy, found: PruneCandidates, *, part_runs: int = PART_RUNS
) -> dict[str, int]:
    """Delete all rows of the candidates. Returns the number of rows by table. Safe to repeat after a failure."""
    once = replace(retries, retryable=is_retryable_soon)
    deleted: Counter[str] = Counter()

    def execute(queries: Mapping[str, NamedQuery], bind: datetime | str) -> None:
        for name, query in queries.items():
            rows = once.call(lambda query=query: session.execute(query, bind))  # type: ignore[misc]
            deleted[_TABLES.get(name, name.upper())] += rows

    of_queued = {name: _Q[name] for name in _OF_QUEUED}
    others = {*_OLD, *_OF_QUEUED, *_AT_ONCE, *_OF_EXPERIMENTS}
    of_runs = {name: query for name, query in _Q.items() if name not in others}
    _in_parts(found.runs, found.before, part_runs, lambda before: execute(of_runs, before))
    _in_parts(found.queued, found.before, part_runs, lambda before: execute(of_queued, before))
    for experiment in found.experiments:
        key = f"{LEASE_PREFIX}{experiment.id}"
        if run_leases.claim(session, retries, key, run_leases.new_owner(), run_leases.SHORT_TTL_S) is not None:
            execute({name: _Q[name] for name in _OF_EXPERIMENTS}, experiment.id)
    execute({name: _Q[name] for name in _AT_ONCE}, found.before)
    return dict(+deleted)  # without zeros


def _in_parts(old: Sequence[OldRun], before: datetime, size: int, delete_until: Callable[[datetime], None]) -> None:
    """Delete the oldest runs first; fewer at a time, down to one, after a timeout."""
    ends = sorted(one.ended_at for one in old)
    while ends:
        newest = ends[min(size, len(ends)) - 1]
        until = next((end for end in ends if end > newest), before)  # several runs may have ended at the same time
        try:
            delete_until(until)
        except ControlFailed as error:
            if not error.failure.is_timeout or size == 1:
                raise
            size = max(1, min(size, len(ends)) // 2)
        else:
            ends = [end for end in ends if end >= until]
