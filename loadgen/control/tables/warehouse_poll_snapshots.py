"""WAREHOUSE_POLL_SNAPSHOTS: what the warehouse under test looked like, every few seconds."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import field, replace
from datetime import datetime
from typing import Any

from loadgen.control.session import (
    ControlSession,
    ParsedRows,
    RowUnreadable,
    append_rows,
    clean_json,
    in_batches,
    load_queries,
    parse_row,
    read_rows,
    row_values,
)
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

COUNT_MAX = 1_000_000  # of statements or clusters

_Q = load_queries("warehouse_poll_snapshots")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehousePoll:
    """One look. Columns as in the table, in its order."""

    snapshot_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    run_id: str
    timestamp: datetime  # naive UTC
    running: int | None
    queued: int | None
    started_clusters: int | None
    size: str | None
    raw: str | None  # JSON


def append(session: ControlSession, patience: RetryPolicy, polls: Sequence[WarehousePoll]) -> None:
    for batch in in_batches([row_values(replace(poll, raw=clean_json(poll.raw))) for poll in polls]):
        append_rows(session, patience, _Q, batch, *batch[0][:2])


def read(session: ControlSession, run_id: str) -> ParsedRows[WarehousePoll]:
    return read_rows(session.fetch(_Q["read"], run_id), _poll)


def newest(session: ControlSession, run_id: str, limit: int) -> ParsedRows[WarehousePoll]:
    """The last looks, oldest first."""
    return read_rows(reversed(session.fetch(_Q["newest"].limited(limit), run_id)), _poll)


def of_scenario(session: ControlSession, scenario: str, limit: int) -> dict[str, tuple[str | None, str | None]]:
    """SIZE and RAW of the last look of each of the newest runs, by run id."""
    return {run_id: (size, raw) for run_id, size, raw in session.fetch(_Q["of_scenario"].limited(limit), scenario)}


def _poll(row: tuple[Any, ...]) -> WarehousePoll:
    found = parse_row("WAREHOUSE_POLL_SNAPSHOTS", WarehousePoll, row)
    counts = {name: getattr(found, name) for name in ("running", "queued", "started_clusters")}
    for name, count in counts.items():
        if count is not None and not 0 <= count <= COUNT_MAX:
            raise RowUnreadable("WAREHOUSE_POLL_SNAPSHOTS", found.snapshot_id, f"{name} is {count}")
    return found
