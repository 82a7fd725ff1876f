"""The results of a run, from the rows its workers left. Pure but for reading them.

Final windows come from WINDOW_RESULTS. Of a worker that died, what its last beat said of windows that were not stored
is used as well: it is what is known, and the run is marked for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.control.test_results import ResultRow
from loadgen.control.window_results import WindowResult as StoredWindow
from loadgen.errors import LoadgenError
from loadgen.metrics.document import WindowRow, read_window
from loadgen.metrics.result import Merged, WindowResult, merge, window_discrepancy
from loadgen.model.run import Phase
from loadgen.model.sessions import SessionCounts
from loadgen.report.summary import WorkerResult
from loadgen.report.verdict import ClientHealth
from orchestrator.crew import WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Everything that was measured, worker by worker."""

    windows: Mapping[str, tuple[WindowResult, ...]]  # of the measurement
    gaps: tuple[str, ...]

    @property
    def merged(self) -> Merged:
        return merge(self.windows.values())

    def step(self, step_id: int | None) -> Merged:
        """One stage or step."""
        return merge(self.step_windows(step_id))

    def step_windows(self, step_id: int | None) -> list[list[WindowResult]]:
        """The windows of one stage or step, worker by worker."""
        return [[window for window in windows if window.step_id == step_id] for windows in self.windows.values()]


def gather(crew: Sequence[WorkerView], stored: Sequence[StoredWindow], *, phase: Phase = Phase.MEASUREMENT) -> Gathered:
    """The measured windows of every worker; what is missing or does not add up is named."""
    gaps: list[str] = []
    windows: dict[str, tuple[WindowResult, ...]] = {}
    for worker in crew:
        known = _stored(worker.worker_id, stored, gaps)
        if worker.live is not None:
            for window in worker.live.windows:
                known.setdefault(window.window_id, window)
        measured = tuple(window for _, window in sorted(known.items()) if window.phase is phase)
        for window in measured:
            problem = window_discrepancy(window)
            if problem is not None:
                gaps.append(f"{worker.worker_id}: {problem}")
        if not measured:
            gaps.append(f"{worker.worker_id} measured nothing")
        windows[worker.worker_id] = measured
    return Gathered(windows=windows, gaps=tuple(gaps))


def worker_results(
    crew: Sequence[WorkerView], gathered: Gathered, rows: Sequence[ResultRow]
) -> tuple[tuple[WorkerResult, ...], ClientHealth]:
    """What each contributed, and how loaded the busiest was."""
    clients = {row.worker_id: _client(row) for row in rows if row.worker_id is not None}
    results = []
    for worker in crew:
        merged = merge([gathered.windows.get(worker.worker_id, ())])
        cpu, wakeup = clients.get(worker.worker_id, (None, None))
        results.append(
            WorkerResult(
                worker_id=worker.worker_id,
                status=worker.health.value,
                succeeded=merged.counts.succeeded,
                failed=merged.counts.failed,
                qps=merged.qps,
                cpu_percent_of_core=cpu,
                wakeup_p99_ms=wakeup,
            )
        )
    busy = [result.cpu_percent_of_core for result in results if result.cpu_percent_of_core is not None]
    late = [result.wakeup_p99_ms for result in results if result.wakeup_p99_ms is not None]
    health = ClientHealth(cpu_percent_of_core=max(busy, default=None), wakeup_p99_ms=max(late, default=None))
    return tuple(results), health


def _stored(worker_id: str, stored: Sequence[StoredWindow], gaps: list[str]) -> dict[int, WindowResult]:
    known: dict[int, WindowResult] = {}
    for row in stored:
        if row.worker_id != worker_id:
            continue
        try:
            known[row.window_id] = read_stored(row)
        except LoadgenError as error:
            gaps.append(f"{worker_id}: {error}")
    return known


def read_stored(row: StoredWindow) -> WindowResult:
    """A row of WINDOW_RESULTS, as what was measured; raises BadMetrics when it does not add up."""
    written = WindowRow(
        window_id=row.window_id,
        phase=row.phase.value,
        step_id=row.step_id,
        seconds=row.seconds,
        counts=row.counts,
        buckets=row.buckets,
    )
    return read_window(written)


def _client(row: ResultRow) -> tuple[float | None, float | None]:
    """What a worker said of itself: {"client": {"cpu_percent_of_core": …, "wakeup_p99_ms": …}}; None: it did not."""
    try:
        said: Any = json.loads(row.summary or "{}").get("client") or {}
        return _number(said.get("cpu_percent_of_core")), _number(said.get("wakeup_p99_ms"))
    except (ValueError, AttributeError):
        return None, None


def session_counts(rows: Sequence[ResultRow]) -> SessionCounts:
    """User sessions over all workers that told."""
    return sum((_sessions(row) for row in rows if row.worker_id is not None), SessionCounts())


def _sessions(row: ResultRow) -> SessionCounts:
    """{"sessions": {"created": …, "expired": …, "current": …}}; what does not add up is not counted."""
    try:
        said: Any = json.loads(row.summary or "{}").get("sessions") or {}
        created, expired, current = (int(_number(said.get(name)) or 0) for name in ("created", "expired", "current"))
    except (ValueError, AttributeError):
        return SessionCounts()
    counts = SessionCounts(created=created, expired=expired)
    return counts if 0 <= counts.current == current else SessionCounts()


def _number(value: object) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if known else None  # type: ignore[arg-type]
