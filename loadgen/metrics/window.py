"""What is known of a window in one worker, and of many together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from loadgen.metrics.client_resources import ClientResourceUse
from loadgen.metrics.connections import ConnectionTime
from loadgen.metrics.recorder import WindowState
from loadgen.metrics.replayed import ReplayTally, all_replayed
from loadgen.metrics.stalls import Span, WindowStalls, run_stalls
from loadgen.metrics.tally import StatementTally, Tally
from loadgen.model.counts import Counts, count_discrepancy
from loadgen.model.run import Phase

SURPLUS_IGNORED = 0.01  # of what succeeded
ALL_STATEMENTS = "*"  # stands for all statements together where a heartbeat had no room for each


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """One window of one worker; it may still grow unless it is FINAL."""

    window_id: int
    phase: Phase
    step_id: int | None
    state: WindowState
    seconds: float
    counts: Counts
    tally: Tally
    connections: ConnectionTime | None = None  # None: not measured
    client: ClientResourceUse | None = None  # None: not measured
    stalls: WindowStalls | None = None  # None: not measured
    surplus: int = 0  # succeeded statements answered after the window, less those of others answered inside it
    replayed: ReplayTally | None = None  # None: another mode, or the window is not final

    @property
    def folded(self) -> bool:
        """Is there no telling the statements apart, but for their counts in the worker?"""
        return ALL_STATEMENTS in self.tally.statements


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedWindows:
    """Windows of several workers as one."""

    seconds: float  # the measured span: the longest that a worker measured
    counts: Counts
    tally: Tally
    qps: float  # succeeded samples per second
    statement_qps: Mapping[str, float]
    stalls: tuple[Span, ...] | None = None  # None: not measured
    stages: Mapping[str, MergedWindows] = field(default_factory=dict)  # those that thresholds are about, by name
    surplus: int = 0
    replayed: ReplayTally | None = None  # None: not of all workers

    @property
    def surplus_fraction(self) -> float:
        """How much of the throughput was answered after the measured time; 0.0 where that does not matter.

        Statements count in the window in which they start. In a steady state, as many statements of earlier windows
        are answered inside it as statements of this window after it; where a queue grows, more of the latter are.
        """
        succeeded = self.counts.succeeded
        fraction = self.surplus / succeeded if succeeded else 0.0
        return fraction if fraction > SURPLUS_IGNORED else 0.0

    @property
    def longest_stall_ms(self) -> float | None:
        if self.stalls is None:
            return None
        return float(max((end - start for start, end in self.stalls), default=0))


def merge(workers: Iterable[Sequence[WindowResult]], *, live: bool = False) -> MergedWindows:
    """The windows of each worker, which follow one another, and then the workers, which ran side by side.

    A rate is a count by the measured span: a worker that left early has measured less of it. `live`: windows that are
    open are as old as the heartbeats that reported them, so each of those workers has its own seconds; and what is in
    flight will be counted in them, so it has its share of those seconds.
    """
    known = list(workers)
    own_seconds = [math.fsum(window.seconds for window in windows) for windows in known]
    span_s = max(own_seconds, default=0.0)
    counts, tally = Counts(), Tally()
    statement_qps: dict[str, float] = {}
    for windows, own_s in zip(known, own_seconds, strict=True):
        own_tally = reduce(add, (window.tally for window in windows), Tally())
        own_counts = reduce(add, (window.counts for window in windows), Counts())
        goes_on = live and any(window.state is WindowState.OPEN for window in windows)
        counted_s = (own_s if goes_on else span_s) * (_ended_share(own_counts) if live else 1.0)
        for name, statement in own_tally.statements.items():
            statement_qps[name] = statement_qps.get(name, 0.0) + rate(statement, counted_s)
        counts += own_counts
        tally += own_tally
    return MergedWindows(
        seconds=span_s,
        counts=counts,
        tally=tally,
        qps=math.fsum(statement_qps.values()),
        statement_qps=statement_qps,
        stalls=run_stalls([window.stalls for window in windows] for windows in known),
        surplus=sum(window.surplus for windows in known for window in windows),
        replayed=all_replayed(window.replayed for windows in known for window in windows),
    )


def _ended_share(counts: Counts) -> float:
    """Of what has begun."""
    return counts.ended / (counts.ended + counts.in_flight) if counts.ended else 1.0


def rate(tally: StatementTally, seconds: float) -> float:
    """Succeeded samples per second."""
    return tally.succeeded.response.count / seconds if seconds > 0.0 else 0.0


def window_discrepancy(result: WindowResult) -> str | None:
    """What in a window does not add up, in one sentence; None when everything does."""
    ended, counts = result.tally.ended, result.counts
    problem = count_discrepancy(counts)
    if problem is None and result.state is WindowState.FINAL and counts.in_flight:
        problem = f"it is final, and {counts.in_flight} are in flight"
    for name in ("skipped", "succeeded", "failed", "cancelled"):
        if problem is None and getattr(counts, name) != getattr(ended, name):
            problem = f"{name} is {getattr(counts, name)}, and its statements have {getattr(ended, name)}"
    errors = sum(group.count for group in result.tally.errors.values())
    if problem is None and errors != ended.failed:
        problem = f"{ended.failed} failed, and {errors} errors are described"
    sent = ended.succeeded + ended.failed + ended.cancelled
    lags = sum(statement.lag.count for statement in result.tally.statements.values())
    if problem is None and lags not in (0, sent):
        problem = f"{sent} were sent, and the lag of {lags} is known"
    for name, statement in result.tally.statements.items():
        if problem is None and statement.unsent.count > statement.skipped:
            problem = f"{name}: {statement.skipped} were skipped, and the age of {statement.unsent.count} is known"
    return problem and f"window {result.window_id}: {problem}"
