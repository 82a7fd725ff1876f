"""Collects the samples of the clients every second, keeps a tally per window, and decides when a window is final.

One thread calls everything except recorder(), which any thread may call. A client uses only its Recorder. The ramp
controller opens and closes windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add

import numpy as np

from loadgen.metrics.connections import ConnectionMeter, LoginCounts
from loadgen.metrics.interval import Interval, MeasuredCounts, SampleBatch
from loadgen.metrics.live_metrics import LiveMetrics
from loadgen.metrics.recorder import FailedOutcome, Outcome, Recorder, Sample, Window, WindowRegistry, WindowState
from loadgen.metrics.stalls import InFlightStatement, Span, StallDetector, WindowStalls
from loadgen.metrics.tally import ErrorGrouper, Tally
from loadgen.metrics.window import WindowResult
from loadgen.model.counts import Counts
from loadgen.model.run import Phase
from loadgen.model.workload import Statement
from loadgen.units import NS_PER_MS, NS_PER_S


class SampleCollector:
    """The measurements of one worker that are not stored yet."""

    def __init__(
        self,
        windows: WindowRegistry,
        statements: Sequence[Statement],
        *,
        open_loop: bool,
        thinks: bool = False,
        started_ns: int,
        connections: ConnectionMeter | None = None,
    ) -> None:
        self._windows = windows
        self._connections = connections
        self._names = [statement.name for statement in statements]
        self._kinds = {statement.name: statement.kind for statement in statements}
        self._open_loop = open_loop
        self._recorders: list[Recorder] = []
        self._tallies: dict[int, Tally] = {}  # of the windows that are held
        self._surplus: dict[int, int] = {}  # of the windows that are held
        self._book = ErrorGrouper()
        self._stalls = StallDetector(self._names, keeps_sending=open_loop or thinks)
        self._measured = MeasuredCounts()
        self._stored = Counts()  # of the windows that are stored
        self._last: list[Sample] = []  # samples of the last collection, if no window was open any more
        self._started_ns = self._harvested_ns = started_ns

    def recorder(self) -> Recorder:
        """A recorder for another client. It is never removed, so the next client in the same slot should reuse it."""
        recorder = Recorder(self._windows)
        self._recorders.append(recorder)
        return recorder

    def harvest(self, now_ns: int, flights: Sequence[InFlightStatement] = (), paused: Iterable[Span] = ()) -> Interval:
        """Take all samples, and return the interval since the last call. `flights`: the statements in flight; `paused`:
        time spans in which this process did not run."""
        closed = [window for window in self._windows.held() if window.state is WindowState.CLOSED]
        samples = [sample for recorder in tuple(self._recorders) for sample in recorder.take()]
        self._last = [] if self._windows.current is not None else samples
        batch = SampleBatch.of(samples, open_loop=self._open_loop)
        failures = [samples[row] for row in np.flatnonzero(batch.outcome >= Outcome.CONNECTION)]
        errors = self._book.group(
            (sample[1], self._names[sample[0]], sample[5])
            for sample in failures
            if isinstance(sample[5], FailedOutcome)
        )
        news = batch.tallies(self._names, errors)
        self._add(news)
        for window in self._windows.held() if samples else ():
            more = batch.surplus(window.window_id, window.opened_ns, window.closed_ns)
            self._surplus[window.window_id] = self._surplus.get(window.window_id, 0) + more
        self._stalls.add(samples, flights, news.values(), from_ns=self._harvested_ns, now_ns=now_ns, paused=paused)
        for (
            window
        ) in closed:  # closed before their samples were taken; begun() is read afterwards: see WindowRegistry.settle
            if self._begun(window) == self._ended(window).ended and self._is_decided(window):
                self._windows.settle(window.window_id)
        return self._interval(batch, news, now_ns)

    def results(self, now_ns: int) -> tuple[WindowResult, ...]:
        """The results of all windows that are not stored, as of the last collection. Store final ones, then forget()
        them."""
        return tuple(self._result(window, now_ns) for window in self._windows.held())

    def forget(self, window_id: int) -> None:
        """Remove a window whose final result is stored. Until then every heartbeat contains it."""
        window = self._windows.forget(window_id)
        self._stored += self._counts(window)
        self._tallies.pop(window_id, None)
        self._surplus.pop(window_id, None)
        if self._connections is not None:
            self._connections.forget(window_id)

    def stalls(self, window_id: int, zero_ns: int) -> WindowStalls | None:
        """The stalls of a window that is not stored, as of the last collection."""
        held = (window for window in self._windows.held() if window.window_id == window_id)
        window = next(held, None)
        return None if window is None else self._stalls.of(window, zero_ns, self._harvested_ns)

    def in_time(self, closed_ns: int) -> Tally:
        """The samples of the last collection that ended before the measurement was closed."""
        return self._tally([sample for sample in self._last_measured() if sample[4] <= closed_ns])

    def drained(self, zero_ns: int, closed_ns: int) -> dict[int, Tally]:
        """The samples of the last collection that ended after the measurement was closed, by the second in which they
        started, from 1. An arrival that was never sent counts in the last second."""
        last = max(1, round((closed_ns - zero_ns) / NS_PER_S))
        seconds: dict[int, list[Sample]] = {}
        for sample in self._last_measured():
            if sample[4] > closed_ns:
                second = last if sample[5] is Outcome.SKIPPED else (sample[3] - zero_ns) // NS_PER_S + 1
                seconds.setdefault(min(max(second, 1), last), []).append(sample)
        return {second: self._tally(samples) for second, samples in seconds.items()}

    def _last_measured(self) -> Iterator[Sample]:
        measured = {window.window_id for window in self._windows.held() if window.phase is Phase.MEASUREMENT}
        return (sample for sample in self._last if sample[1] in measured)

    def _tally(self, samples: Sequence[Sample]) -> Tally:
        tallies = SampleBatch.of(samples, open_loop=self._open_loop).tallies(self._names, {})
        return reduce(add, tallies.values(), Tally())

    @property
    def measured(self) -> MeasuredCounts:
        """All samples of the measurement so far."""
        return self._measured

    def live(self, now_ns: int) -> LiveMetrics:
        """The content of the next heartbeat."""
        results = self.results(now_ns)
        return LiveMetrics(
            elapsed_s=(now_ns - self._started_ns) / NS_PER_S,
            totals=reduce(add, (result.counts for result in results), self._stored),
            measured=self._measured,
            windows=results,
            logins=self.logins,
        )

    @property
    def logins(self) -> LoginCounts:
        return LoginCounts() if self._connections is None else self._connections.logins

    def _add(self, news: Mapping[int, Tally]) -> None:
        phases = {window.window_id: window.phase for window in self._windows.held()}
        strays = news.keys() - phases.keys()
        if strays:
            raise ValueError(f"samples of windows that are not held: {sorted(strays)}")
        for window_id, tally in news.items():
            self._tallies[window_id] = self._tallies.get(window_id, Tally()) + tally
            if phases[window_id] is Phase.MEASUREMENT:
                self._measured = self._measured.plus(tally, self._kinds)

    def _interval(self, batch: SampleBatch, news: Mapping[int, Tally], now_ns: int) -> Interval:
        phase = self._windows.newest.phase if self._windows.newest else None
        windows = {window.window_id for window in self._windows.held() if window.phase is phase}
        earlier = self._earlier(news, phase)
        seconds, self._harvested_ns = (now_ns - self._harvested_ns) / NS_PER_S, now_ns
        return Interval.of(
            batch,
            windows,
            phase=phase,
            seconds=seconds,
            tally=reduce(add, (tally for window_id, tally in news.items() if window_id in windows), Tally()),
            measured=self._measured,
            earlier=earlier,
        )

    def _earlier(self, news: Mapping[int, Tally], phase: Phase | None) -> Tally | None:
        """The tally of the other phases; None: none of them ended since the last collection, nor did their samples."""
        others = {window.window_id: window for window in self._windows.held() if window.phase is not phase}
        ended_ns = max((window.closed_ns or 0 for window in others.values()), default=0)
        tallies = [tally for window_id, tally in news.items() if window_id in others]
        return reduce(add, tallies, Tally()) if tallies or ended_ns > self._harvested_ns else None

    def _result(self, window: Window, now_ns: int) -> WindowResult:
        return WindowResult(
            window_id=window.window_id,
            phase=window.phase,
            step_id=window.step_id,
            state=window.state,
            seconds=window.seconds(now_ns),
            counts=self._counts(window),
            tally=self._tallies.get(window.window_id, Tally()),
            connections=None if self._connections is None else self._connections.time(window.window_id, now_ns),
            surplus=self._surplus.get(window.window_id, 0),
            uncertain_ms=-(-window.uncertain_ns // NS_PER_MS),
        )

    def _counts(self, window: Window) -> Counts:
        """Begun statements are counted by the clients, ended ones by the collection."""
        ended, begun = self._ended(window), self._begun(window)
        return Counts(scheduled=begun, in_flight=begun - ended.ended) + ended

    def _is_decided(self, window: Window) -> bool:
        """Whether its connection time is known: a login that is under way may be refused."""
        return self._connections is None or self._connections.is_decided(window.window_id)

    def _begun(self, window: Window) -> int:
        return sum(recorder.begun(window.window_id) for recorder in tuple(self._recorders))

    def _ended(self, window: Window) -> Counts:
        tally = self._tallies.get(window.window_id)
        return tally.ended if tally else Counts()
