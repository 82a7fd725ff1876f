"""The results of a run, from the rows its workers left. Pure but for reading them.

Final windows come from WINDOW_RESULTS. Of a worker that died, what its last beat said of windows that were not stored
is used as well: it is what is known, and the run is marked for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.control.test_results import ResultRow
from loadgen.control.window_results import WindowResult as StoredWindow
from loadgen.errors import LoadgenError
from loadgen.metrics.client_effect import ClientEffect
from loadgen.metrics.document import WindowRow, read_window
from loadgen.metrics.result import Merged, WindowResult, merge, window_discrepancy
from loadgen.model.run import Phase
from loadgen.model.sessions import SessionCounts
from loadgen.report.client_health import ClientHealth, ClientPart
from loadgen.report.summary import WorkerResult
from loadgen.units import NS_PER_MS
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
        return merge(
            [tuple(window for window in windows if window.step_id == step_id) for windows in self.windows.values()]
        )


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


def worker_results(crew: Sequence[WorkerView], gathered: Gathered) -> tuple[WorkerResult, ...]:
    """What each contributed, and how loaded it was."""
    results = []
    for worker in crew:
        windows = gathered.windows.get(worker.worker_id, ())
        merged, health = merge([windows]), ClientHealth.of(_client(windows))
        results.append(
            WorkerResult(
                worker_id=worker.worker_id,
                status=worker.health.value,
                succeeded=merged.counts.succeeded,
                failed=merged.counts.failed,
                qps=merged.qps,
                cpu_percent_of_core=health.cpu_percent_of_core,
                wakeup_p99_ms=health.wakeup_p99_ms,
            )
        )
    return tuple(results)


def client_parts(gathered: Gathered, steps: Collection[int] | None = None) -> tuple[ClientPart, ...]:
    """Each worker in each stage; or in these steps of a search."""
    parts, part = [], "stage" if steps is None else "step"
    for worker_id, windows in gathered.windows.items():
        by_step: dict[int | None, list[WindowResult]] = {}
        for window in windows:
            by_step.setdefault(window.step_id, []).append(window)
        for step_id, own in by_step.items():
            if steps is not None and step_id not in steps:
                continue
            mean_ns = merge([own]).tally.whole.succeeded.service.mean_ns
            parts.append(
                ClientPart(
                    where=worker_id if len(by_step) == 1 else f"{worker_id} in {part} {step_id}",
                    health=ClientHealth.of(_client(own)),
                    service_mean_ms=None if mean_ns is None else mean_ns / NS_PER_MS,
                )
            )
    return tuple(parts)


def _client(windows: Sequence[WindowResult]) -> ClientEffect | None:
    """What the process of the worker did to them; None: it did not say."""
    known = [window.client for window in windows if window.client is not None]
    return sum(known[1:], known[0]) if known else None


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
