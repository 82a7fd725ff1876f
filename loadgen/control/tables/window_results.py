"""WINDOW_RESULTS: what each worker measured in each window, final. A run's results are made from these rows."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from loadgen.control.batch import append_row
from loadgen.control.session import ControlSession
from loadgen.control.sql import load_queries
from loadgen.model.run import Phase
from loadgen.snowflake.session import RetryPolicy

_Q = load_queries("window_results")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResultRow:
    """Counts and buckets are JSON of loadgen.metrics."""

    worker_id: str
    window_id: int
    epoch: int
    phase: Phase
    step_id: int | None
    seconds: float
    counts: str
    buckets: str


def append(session: ControlSession, patience: RetryPolicy, run_id: str, result: WindowResultRow) -> None:
    key = (run_id, result.worker_id, result.window_id)
    append_row(session, patience, _Q, (run_id, *astuple(result)), *key)


def read(session: ControlSession, run_id: str) -> tuple[WindowResultRow, ...]:
    return tuple(
        WindowResultRow(
            worker_id=worker_id,
            window_id=int(window_id),
            epoch=int(epoch),
            phase=Phase(phase),
            step_id=step_id,
            seconds=float(seconds),
            counts=counts,
            buckets=buckets,
        )
        for worker_id, window_id, epoch, phase, step_id, seconds, counts, buckets in session.fetch(_Q["read"], run_id)
    )
