"""VALUE_POOLS: the values that parameters of a run are taken from, written once by its leader, read by every worker."""

from __future__ import annotations

from loadgen.control.batch import append_row
from loadgen.control.session import ControlSession
from loadgen.control.sql import load_queries
from loadgen.snowflake.session import RetryPolicy
from loadgen.workload.pools import Pool, from_chunks, to_chunks

_Q = load_queries("value_pools")


def store(session: ControlSession, patience: RetryPolicy, run_id: str, pool: Pool) -> None:
    """Write a pool, chunk by chunk; a chunk that is there already is not written again."""
    for number, chunk in enumerate(to_chunks(pool)):
        key = (run_id, pool.name, number)
        append_row(session, patience, _Q, (*key, chunk), *key)


def load(session: ControlSession, patience: RetryPolicy, run_id: str) -> dict[str, Pool]:
    """All pools of a run, by name."""
    names = patience.call(lambda: [row[0] for row in session.fetch(_Q["pools"], run_id)])
    return {name: from_chunks(name, _chunks(session, patience, run_id, name)) for name in names}


def _chunks(session: ControlSession, patience: RetryPolicy, run_id: str, name: str) -> list[str]:
    return patience.call(lambda: [row[0] for row in session.fetch(_Q["read"], run_id, name)])
