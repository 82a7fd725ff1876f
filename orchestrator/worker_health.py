"""The state of each worker of a run, from heartbeats, ends of processes, and time without heartbeats. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from loadgen.control.tables.worker_heartbeats import HeartbeatRow
from loadgen.errors import LoadgenError
from loadgen.metrics.live_metrics import LiveMetrics, read_live
from loadgen.model.run import Phase, ProcessEnd, WorkerStatus
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot


def worker_health(
    status: WorkerStatus | None,
    *,
    end: ProcessEnd | None,
    has_result: bool,
    silent_s: float,
    stale_s: float,
    dead_s: float,
) -> WorkerHealth:
    """The health of a worker. `status`: in its last heartbeat, if any; `has_result`: its complete result is stored;
    `silent_s`: seconds without a new heartbeat."""
    if status is WorkerStatus.COMPLETED:
        return WorkerHealth.DONE
    if status is WorkerStatus.DEAD or end is not None or silent_s > dead_s:
        # A result is stored after all windows, so only the last heartbeat is missing: it was not answered in time.
        complete = has_result and status not in (None, WorkerStatus.DEAD) and (end is None or end.code == 0)
        return WorkerHealth.DONE if complete else WorkerHealth.DEAD
    if status is None:
        return WorkerHealth.MISSING
    return WorkerHealth.STALE if silent_s > stale_s else WorkerHealth.ALIVE


class LivenessTracker:
    """Measures how long the heartbeat count of each worker has not changed, in seconds of successful observation.

    So neither an outage of the control plane nor a pause of this process makes a worker count as dead.
    """

    def __init__(self, *, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._counts: dict[str, int] = {}
        self._silent_s: dict[str, float] = {}
        self._last_s: float | None = None

    def observe(self, counts: Mapping[str, int], now_s: float) -> Mapping[str, float]:
        """Seconds of silence per worker, after one more successful read of all heartbeat counts."""
        gap_s = 0.0 if self._last_s is None else min(now_s - self._last_s, self._longest_gap_s)
        self._last_s = now_s
        for worker_id, count in counts.items():
            changed = self._counts.get(worker_id) != count
            self._silent_s[worker_id] = 0.0 if changed else self._silent_s.get(worker_id, 0.0) + gap_s
        self._counts.update(counts)
        return dict(self._silent_s)


class ReplacementTracker:
    """Workers that were replaced by another process during the measurement. What the first process had measured and
    not stored is lost with its row, and its part of the load was missing until the second one had started."""

    def __init__(self) -> None:
        self._last: dict[str, HeartbeatRow] = {}
        self.warnings: list[str] = []  # one sentence per replacement

    def observe(self, rows: Sequence[HeartbeatRow]) -> None:
        measured = any(row.beat.phase is Phase.MEASUREMENT for row in (*self._last.values(), *rows))
        for row in rows:
            before = self._last.get(row.identity.worker_id)
            if before is not None and measured and _is_another(row, before):
                first = before.identity
                self.warnings.append(
                    f"{first.worker_id} was replaced: the last measurements of process {first.pid} on"
                    f" {first.hostname} are not counted"
                )
            self._last[row.identity.worker_id] = row


def _is_another(row: HeartbeatRow, before: HeartbeatRow) -> bool:
    """A smaller count means another process, even with the same host name and process id (in a container)."""
    new, old = row.identity, before.identity
    return (new.hostname, new.pid) != (old.hostname, old.pid) or row.beat.count < before.beat.count


class LiveMetricsReader:
    """Parses the live metrics of heartbeats, each text once. Belongs to one thread."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, LiveMetrics | None]] = {}  # by worker: the text and its metrics

    def read(self, row: HeartbeatRow | None) -> LiveMetrics | None:
        """The metrics of a heartbeat. None: it has none, or they cannot be parsed."""
        if row is None or not row.beat.live_metrics:
            return None
        worker_id, text = row.identity.worker_id, row.beat.live_metrics
        known = self._known.get(worker_id)
        if known is None or known[0] != text:
            known = self._known[worker_id] = text, _live(text)
        return known[1]


def assess_workers(
    expected: Sequence[str],
    rows: Sequence[HeartbeatRow],
    ends: Sequence[ProcessEnd],
    silent_s: Mapping[str, float],
    *,
    stale_s: float,
    dead_s: float,
    with_result: Collection[str] = (),
    reader: LiveMetricsReader | None = None,
) -> tuple[WorkerSnapshot, ...]:
    """Every expected worker, in the order of their numbers. `with_result`: those whose complete result is stored.
    `reader` keeps what earlier calls have parsed."""
    reader = reader or LiveMetricsReader()
    by_id = {row.identity.worker_id: row for row in rows}
    ended = {end.worker_id: end for end in ends}
    views = []
    for worker_id in expected:
        row, end = by_id.get(worker_id), ended.get(worker_id)
        own_silent_s = silent_s.get(worker_id, 0.0)
        health = worker_health(
            None if row is None else row.beat.status,
            end=end,
            has_result=worker_id in with_result,
            silent_s=own_silent_s,
            stale_s=stale_s,
            dead_s=dead_s,
        )
        views.append(
            WorkerSnapshot(
                worker_id=worker_id,
                health=health,
                row=row,
                live=reader.read(row),
                end=end,
                silent_s=own_silent_s,
            )
        )
    return tuple(views)


def _live(text: str) -> LiveMetrics | None:
    try:
        return read_live(text)
    except LoadgenError:  # of another version, or damaged: missing, which never counts as zero
        return None
