"""Samples, statements, histograms and workers that have measured, for the tests of metrics; valid by default."""

from datetime import datetime

import numpy as np
from hypothesis import strategies as st

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.live_metrics import LiveMetrics
from loadgen.metrics.recorder import FailedOutcome, Outcome, Sample, WindowRegistry
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.metrics.stalls import WindowStalls
from loadgen.metrics.window import WindowResult, WindowRow
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import Phase
from loadgen.model.workload import Query, Statement, StatementKind

HOUR_NS = 3_600 * 10**9
MS = 1_000_000
S = 10**9
MOMENT = datetime.fromisoformat("2026-11-15T02:00:00.123456")
NAMES = ["a", "b", 'c "√"']

# Whole nanoseconds from nothing to days: uniform over the magnitudes, so that tails are heavy, and with edge cases.
times_ns = st.one_of(
    st.integers(0, 3 * HOUR_NS),
    st.floats(0, 33).map(lambda power: int(np.exp(power))),
    st.sampled_from([0, 1, 999, 1_000, 1_001, 1_020, HOUR_NS, 2 * HOUR_NS, 2**62]),
)
time_lists = st.one_of(
    st.lists(times_ns, min_size=1, max_size=300),
    st.tuples(times_ns, st.integers(1, 300)).map(lambda pair: [pair[0]] * pair[1]),
)
failures = st.builds(
    FailedOutcome,
    st.sampled_from(ErrorCategory),
    st.none() | st.integers(0, 60),
    st.text(max_size=8) | st.just("x" * 999),
)
outcomes = st.one_of(st.sampled_from([Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.SKIPPED]), failures)


def histogram(times: list[int]) -> Histogram:
    return Histogram.of(np.array(times, np.int64))


def statement(name: str, kind: StatementKind = StatementKind.READ) -> Statement:
    return Statement(name=name, kind=kind, weight=1, queries=(Query(sql="select 1"),))


def sample(
    *,
    statement: int = 0,
    window: int = 1,
    due_ns: int = 0,
    lag_ns: int = 0,
    service_ns: int = 10 * MS,
    outcome: Outcome | FailedOutcome = Outcome.SUCCEEDED,
) -> Sample:
    sent_ns = due_ns + lag_ns
    return statement, window, due_ns, sent_ns, sent_ns + service_ns, outcome


def samples(*, open_loop: bool) -> st.SearchStrategy[Sample]:
    return st.builds(
        lambda number, window, due, lag, service, outcome: sample(
            statement=number, window=window, due_ns=due, lag_ns=lag, service_ns=service, outcome=outcome
        ),
        st.integers(0, 2),
        st.integers(1, 3),
        st.integers(0, 2**61),
        st.integers(-1_000, 2**40) if open_loop else st.just(0),
        st.integers(0, 2**45),
        outcomes,
    )


def worker(many: list[Sample], *, open_loop: bool = False, names: list[str] = NAMES) -> SampleCollector:
    """A worker with windows 1 (closed), 2 and 3, and these samples in them; one statement of window 1 is in flight."""
    windows = WindowRegistry()
    harvester = SampleCollector(windows, [statement(name) for name in names], open_loop=open_loop, started_ns=0)
    recorder = harvester.recorder()
    for window, phase in enumerate([Phase.WARMUP, Phase.MEASUREMENT, Phase.MEASUREMENT], 1):
        windows.open(window, phase=phase, step_id=window if window > 1 else None, at_ns=window * S)
        for one in many:
            if one[1] == window:
                recorder.begin()
                recorder.append(one)
        if window == 1:
            harvester.recorder().begin()
    return harvester


def live_of(many: list[Sample], *, open_loop: bool = False, names: list[str] = NAMES) -> LiveMetrics:
    harvester = worker(many, open_loop=open_loop, names=names)
    harvester.harvest(9 * S)
    return harvester.live(9 * S)


def row_of(result: WindowResult) -> WindowRow:
    """The window as a worker stores it."""
    return WindowRow.of(result, worker_id="worker-0", epoch=1)


class Loop:
    """A worker whose clients send statements that take so long; harvested every second, from 0 on."""

    def __init__(
        self, clients: int = 1, names: tuple[str, ...] = ("a",), *, open_loop: bool = False, thinks: bool = False
    ) -> None:
        self.windows = WindowRegistry()
        self.harvester = SampleCollector(
            self.windows, [statement(name) for name in names], open_loop=open_loop, thinks=thinks, started_ns=0
        )
        self.recorder = self.harvester.recorder()
        self.free_ns = [0] * clients
        self.flights: list[tuple[int, int, int, Outcome]] = []  # statement, sent, done, outcome
        self.harvested_s = 0
        self.pauses: list[tuple[int, int]] = []  # not reported yet
        self.windows.open(1, phase=Phase.MEASUREMENT, at_ns=0)

    def send(
        self, client: int, service_ns: int, *, number: int = 0, think_ns: int = 0, ends: Outcome = Outcome.SUCCEEDED
    ) -> None:
        sent_ns = self.free_ns[client] + think_ns
        self.free_ns[client] = sent_ns + service_ns
        self.flights.append((number, sent_ns, sent_ns + service_ns, ends))

    def pause(self, from_s: float, to_s: float) -> None:
        """The process does not run: what would end meanwhile ends with the pause."""
        span = (round(from_s * S), round(to_s * S))
        self.pauses.append(span)
        self.flights = [
            (number, sent_ns, span[1] if span[0] < done_ns < span[1] else done_ns, ends)
            for number, sent_ns, done_ns, ends in self.flights
        ]
        self.free_ns = [span[1] if span[0] < free_ns < span[1] else free_ns for free_ns in self.free_ns]

    def until(self, end_s: int) -> WindowStalls:
        while self.harvested_s < end_s:
            self.harvested_s += 1
            if not any(start < self.harvested_s * S < end for start, end in self.pauses):
                self._harvest(self.harvested_s * S)
        found = self.harvester.stalls(1, 0)
        assert found is not None
        return found

    def _harvest(self, now_ns: int) -> None:
        for number, sent_ns, done_ns, ends in [one for one in self.flights if one[2] <= now_ns]:
            self.recorder.begin()
            self.recorder.append((number, 1, sent_ns, sent_ns, done_ns, ends))
        self.flights = [one for one in self.flights if one[2] > now_ns]
        flying = [(number, 1, sent_ns, sent_ns) for number, sent_ns, _, _ in self.flights if sent_ns <= now_ns]
        told = [span for span in self.pauses if span[1] <= now_ns]
        self.pauses = [span for span in self.pauses if span[1] > now_ns]
        self.harvester.harvest(now_ns, flying, told)
