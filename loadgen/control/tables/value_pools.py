"""VALUE_POOLS: parameter values of a run. The leader stores them once, and every worker reads them."""

from __future__ import annotations

from loadgen.control.session import ControlSession, append_row, load_queries
from loadgen.snowflake.session import RetryPolicy
from loadgen.workload.pools import Pool, from_chunks, to_chunks
from loadgen.workload.replay import POOL_NAME

_Q = load_queries("value_pools")


def store(session: ControlSession, retries: RetryPolicy, run_id: str, pool: Pool) -> None:
    """Store a pool, chunk by chunk. Only for a run that this process has created."""
    for number, chunk in enumerate(to_chunks(pool)):
        key = (run_id, pool.name, number)
        append_row(session, retries, _Q, (*key, chunk), *key, fresh=True)


def load(session: ControlSession, retries: RetryPolicy, run_id: str, worker: int | None = None) -> dict[str, Pool]:
    """The pools of a run by name. Of pools with statements to replay, only those of one worker."""
    found = retries.call(lambda: [row[0] for row in session.fetch(_Q["pools"], run_id)])
    names = [name for name in found if not name.startswith(POOL_NAME) or name == f"{POOL_NAME}{worker}"]
    return {name: from_chunks(name, _chunks(session, retries, run_id, name)) for name in names}


def _chunks(session: ControlSession, retries: RetryPolicy, run_id: str, name: str) -> list[str]:
    return retries.call(lambda: [row[0] for row in session.fetch(_Q["read"], run_id, name)])
