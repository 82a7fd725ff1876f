"""The last minutes of a run, second by second, from the differences between looks. Pure.

Beats carry totals, so a second that nobody looked at is not lost: it is part of the next difference, and a gap in the
picture. Nothing is made up for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadgen.metrics.difference import since
from loadgen.metrics.errors import ErrorKey, Errors
from loadgen.metrics.live import Live
from loadgen.metrics.result import WindowResult
from loadgen.metrics.tally import StatementTally, merged
from loadgen.model.run import PHASES, Phase
from loadgen.tui.look import Look, WorkerLook
from loadgen.units import NS_PER_MS

KEPT_S = 300
RECENT_S = 10  # what "now" means for percentiles: one second has too few samples
SECOND_S = 0.9  # looks come about once a second; those that come more often are put together
CARRIED_S = 3.0  # a worker's last rate holds so long without a new beat

Scope = tuple[int, int]  # phase and step, in the order of time


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """About one second before a look. None: too few samples to say."""

    at_s: float
    span_s: float  # since the look before
    phase: Phase
    qps: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """The last seconds together."""

    qps: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(slots=True)
class _Worker:
    """One worker, as it was at the last second."""

    live: Live
    tallies: dict[int, StatementTally]
    rate: float = 0.0
    heard_s: float = 0.0


@dataclass(slots=True)
class History:
    """note() every look, in order."""

    seconds: deque[Second] = field(default_factory=lambda: deque(maxlen=KEPT_S))
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _recent: deque[tuple[float, float, StatementTally]] = field(default_factory=deque)  # moment, rate, what ended
    _errors: dict[tuple[str, int], Mapping[ErrorKey, Errors]] = field(default_factory=dict)
    _scope: Scope | None = None
    _windows: dict[tuple[str, int], WindowResult] = field(default_factory=dict)  # of the scope

    def note(self, look: Look) -> None:
        for worker in look.workers:
            for window in worker.live.windows if worker.live is not None else ():
                self._remember(worker.worker_id, window)
        due = not self.seconds or look.seen_s - self.seconds[-1].at_s >= SECOND_S
        if due and look.run.phase is not Phase.PREPARING:
            self._next_second(look)

    @property
    def newest_windows(self) -> list[list[WindowResult]]:
        """Of the newest phase or step that anything was heard of, worker by worker; also after they were stored."""
        workers: dict[str, list[WindowResult]] = {}
        for (worker_id, _), window in self._windows.items():
            workers.setdefault(worker_id, []).append(window)
        return list(workers.values())

    @property
    def errors(self) -> Mapping[ErrorKey, Errors]:
        """Of every window of this phase that was seen."""
        found: Mapping[ErrorKey, Errors] = {}
        for errors in self._errors.values():
            found = merged(found, errors)
        return found

    @property
    def recent(self) -> Recent | None:
        """None: nothing was heard yet."""
        if not self._recent:
            return None
        tally = sum((tally for _, _, tally in self._recent), StatementTally())
        times = tally.succeeded.response
        return Recent(
            qps=self._recent[-1][1],
            p50_ms=_ms(tally, 500),
            p95_ms=_ms(tally, 950),
            p99_ms=_ms(tally, 990),
            max_ms=times.max_ns / NS_PER_MS if times.count else None,
        )

    # --- one look ----------------------------------------------------------------------------------------------------

    def _remember(self, worker_id: str, window: WindowResult) -> None:
        scope = (PHASES.index(window.phase), window.step_id or 0)
        if self._scope is None or scope > self._scope:
            if self._scope is not None and scope[0] > self._scope[0]:
                self._errors.clear()  # of the warm-up: they are none of the measurement's
            self._scope = scope
            self._windows.clear()
        if scope == self._scope:
            self._windows[worker_id, window.window_id] = window
        if scope[0] == self._scope[0] and window.tally.errors:
            self._errors[worker_id, window.window_id] = window.tally.errors

    def _next_second(self, look: Look) -> None:
        rate, tally, fresh = 0.0, StatementTally(), False
        for worker in look.workers:
            own_rate, own_tally, own_fresh = self._heard(worker, look.seen_s)
            rate, tally, fresh = rate + own_rate, tally + own_tally, fresh or own_fresh
        span_s = look.seen_s - self.seconds[-1].at_s if self.seconds else 1.0
        if not fresh and span_s < CARRIED_S:
            return  # no beat has come in between: it will be part of the next second
        self._recent.append((look.seen_s, rate, tally))
        while self._recent[0][0] <= look.seen_s - RECENT_S:
            self._recent.popleft()
        self.seconds.append(
            Second(
                at_s=look.seen_s,
                span_s=span_s,
                phase=look.run.phase,
                qps=rate,
                p50_ms=_ms(tally, 500),
                p95_ms=_ms(tally, 950),
                p99_ms=_ms(tally, 990),
            )
        )

    def _heard(self, worker: WorkerLook, now_s: float) -> tuple[float, StatementTally, bool]:
        """Statements per second, and what ended, since this worker's last beat that we know; and is there a new one?"""
        live = worker.live
        if live is None:
            return 0.0, StatementTally(), False
        tallies = {window.window_id: window.tally.whole for window in live.windows}
        before = self._workers.get(worker.worker_id)
        if before is None or live.elapsed_s < before.live.elapsed_s:  # the first, or that of another process
            self._workers[worker.worker_id] = _Worker(live, tallies, heard_s=now_s)
            return 0.0, StatementTally(), True
        passed_s = live.elapsed_s - before.live.elapsed_s
        if passed_s <= 0.0:
            holds = not worker.state.is_over and now_s - before.heard_s <= CARRIED_S
            return (before.rate if holds else 0.0), StatementTally(), False
        rate = max(0, live.totals.succeeded - before.live.totals.succeeded) / passed_s
        ended = _ended(before.tallies, tallies)
        self._workers[worker.worker_id] = _Worker(live, tallies, rate, now_s)
        return rate, ended, True


def _ended(before: Mapping[int, StatementTally], now: Mapping[int, StatementTally]) -> StatementTally:
    """What ended between two beats; windows whose buckets cannot be compared are left out."""
    differences = (since(before.get(window_id, StatementTally()), tally) for window_id, tally in now.items())
    return sum((difference for difference in differences if difference is not None), StatementTally())


def _ms(tally: StatementTally, per_mille: int) -> float | None:
    found = tally.response_at(per_mille)
    return None if found is None else found.value_ns / NS_PER_MS


def least_seconds(windows: Sequence[Sequence[WindowResult]]) -> float:
    """How long every worker has measured."""
    return min((math.fsum(window.seconds for window in own) for own in windows), default=0.0)
