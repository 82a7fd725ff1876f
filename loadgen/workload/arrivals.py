"""When each statement of an open loop is due.

Due times are computed from the index of an arrival, and never by adding intervals. The number of arrivals of a stage is
planned. Workers get them in turn, so parts differ by at most one and add up exactly.

    uniform   arrival j of a stage is due j / rate after its beginning; a worker has every `workers`-th of them, so
              that the arrivals of all workers together are evenly spaced
    poisson   given their number, the arrivals of a Poisson process are independent and uniform over the stage; each
              worker draws its part, and the merged parts are such a process too

To have Poisson arrivals in order without storing a whole run, a stage is halved repeatedly: n fair coins decide how
many of n arrivals lie in the first half. Only the halves that lead to the wanted arrival are computed, until one has
few enough arrivals to be drawn and sorted. The result has the same distribution as drawing and sorting all arrivals.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from loadgen.model.run import worker_share
from loadgen.model.workload import ARRIVALS_MAX
from loadgen.scenario.model import ArrivalProcess, Load, LoadStage
from loadgen.values import dataclass
from loadgen.workload.random_bits import ARRIVALS, FloatArray, RandomBits

# --- rates -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStage:
    """A rate with a duration: constant, or changing linearly from `start_rate_per_second`."""

    duration_s: float
    rate_per_second: float
    start_rate_per_second: float | None = None

    def __post_init__(self) -> None:
        rates = (self.rate_per_second, self.first_rate_per_second)
        if not (0.0 <= self.duration_s < math.inf and min(rates) >= 0.0 and max(rates) < math.inf):
            raise ValueError(f"a stage needs a duration and rates of 0 or more: {self}")
        if not self.expected <= ARRIVALS_MAX:
            raise ValueError(f"a stage has at most {ARRIVALS_MAX:,} arrivals: {self}")

    @property
    def first_rate_per_second(self) -> float:
        return self.rate_per_second if self.start_rate_per_second is None else self.start_rate_per_second

    @property
    def expected(self) -> float:
        """The expected number of arrivals: the area below the rate."""
        if self.start_rate_per_second is None:
            return self.duration_s * self.rate_per_second
        return self.duration_s * (self.start_rate_per_second + self.rate_per_second) / 2.0

    @property
    def arrivals(self) -> int:
        """The number of statements planned, over all workers."""
        return math.floor(self.expected + 0.5)


def planned_arrivals(stages: Sequence[RateStage]) -> int:
    """The number of statements that these stages plan, over all workers."""
    return sum(stage.arrivals for stage in stages)


def rate_windows(load: Load) -> tuple[tuple[RateStage, ...], ...]:
    """The rates of an open loop, one tuple per window: the warm-up (at the first level), then each stage.

    The ramp of the load leads from 0 to the first level, and may last into the first stage. Without a warm-up the first
    stage may have a ramp instead, and the window of the warm-up is empty.
    """
    levels = [(stage.duration_s, _rate_of(stage), stage.ramp_s) for stage in load.levels]
    if not levels:
        raise ValueError("there are no rates in this mode of load")
    duration_s, level, own_ramp_s = levels[0]
    ramp_s = load.ramp_s or (0.0 if load.warmup_s else own_ramp_s)
    if ramp_s > load.warmup_s:
        reached = level * load.warmup_s / ramp_s
        first = _window(load.warmup_s, 0.0, reached, load.warmup_s)
        windows = [first, _window(duration_s, reached, level, ramp_s - load.warmup_s)]
    else:
        windows = [_window(load.warmup_s, 0.0, level, ramp_s), _window(duration_s, level, level, 0.0)]
    for duration_s, rate, ramp_s in levels[1:]:
        windows.append(_window(duration_s, level, rate, ramp_s))
        level = rate
    return tuple(windows)


def _window(duration_s: float, before: float, rate: float, ramp_s: float) -> tuple[RateStage, ...]:
    ramp = RateStage(duration_s=ramp_s, rate_per_second=rate, start_rate_per_second=before)
    hold = RateStage(duration_s=max(0.0, duration_s - ramp_s), rate_per_second=rate)
    return tuple(stage for stage in (ramp, hold) if stage.duration_s > 0.0)


def _rate_of(stage: LoadStage) -> float:
    if stage.rate_per_second is None:
        raise ValueError("a stage of an open loop needs a rate")
    return stage.rate_per_second


# --- arrivals --------------------------------------------------------------------------------------------------------

CHUNK_ARRIVALS = 1_024
_HALVINGS_MAX = 31
_HALVE, _DRAW = 0, 1


def window_schedules(load: Load, *, worker: int, workers: int, seed: int) -> tuple[ArrivalSchedule, ...]:
    """One worker's schedules of a whole run: [0] is the warm-up, empty if there is none, and [n] is stage n.

    The numbers of arrivals continue from window to window, even if some were not sent, so that no number is drawn twice
    (see `draw`). The distribution to workers continues too, so that they differ by at most one arrival over the whole
    run. Due times are relative to the beginning of their window.
    """
    made, planned = [], 0
    for number, stages in enumerate(rate_windows(load)):
        made.append(
            ArrivalSchedule(
                stages,
                arrival=load.arrival,
                worker=worker,
                workers=workers,
                seed=seed,
                series=number,
                planned_before=planned,
            )
        )
        planned += planned_arrivals(stages)
    return tuple(made)


class ArrivalSchedule:
    """One worker's arrivals of a window, in order, numbered from `first` up to, not including, `end`.

    The numbers are those that are drawn with; see window_schedules(). due_s(): any thread.
    """

    def __init__(
        self,
        stages: Sequence[RateStage],
        *,
        arrival: ArrivalProcess,
        worker: int,
        workers: int,
        seed: int,
        series: int = 0,  # windows of different series have independent arrivals
        planned_before: int = 0,  # in earlier windows, over all workers
    ) -> None:
        self._spans: list[_Span] = []
        self._firsts: list[int] = []
        planned = planned_before
        for number, stage in enumerate(stages):
            first, end = worker_share(planned, worker, workers), worker_share(planned + stage.arrivals, worker, workers)
            if end > first:
                start_s = math.fsum(earlier.duration_s for earlier in stages[:number])
                if arrival is ArrivalProcess.UNIFORM:
                    offset = first * workers + worker - planned
                    self._spans.append(_UniformSpan(stage, start_s, end - first, offset=offset, step=workers))
                else:
                    key = (series, number, worker)
                    self._spans.append(_PoissonSpan(stage, start_s, end - first, seed=seed, key=key))
                self._firsts.append(first)
            planned += stage.arrivals
        self.first, self.end = worker_share(planned_before, worker, workers), worker_share(planned, worker, workers)
        self.duration_s = math.fsum(stage.duration_s for stage in stages)
        self._making = threading.Lock()  # guards the spans; _chunks is replaced as a whole
        nothing = _Chunk(0, [])
        self._chunks = (nothing, nothing)  # the newest, and the previous one, which late clients still need

    def due_s(self, i: int) -> float:
        """Seconds from the beginning of the window until arrival `i`."""
        for chunk in self._chunks:
            at = i - chunk.first
            if 0 <= at < len(chunk.dues_s):
                return chunk.dues_s[at]
        return self._find(i)

    def _find(self, i: int) -> float:
        if not self.first <= i < self.end:
            raise IndexError(f"there is no arrival {i}: the schedule has those from {self.first} up to {self.end}")
        with self._making:
            for chunk in self._chunks:
                if 0 <= i - chunk.first < len(chunk.dues_s):
                    return chunk.dues_s[i - chunk.first]
            number = bisect_right(self._firsts, i) - 1
            first = self._firsts[number]
            made = self._spans[number].chunk_at(i - first)
            chunk = _Chunk(first + made.first, made.dues_s)
            self._chunks = (chunk, self._chunks[0])
            return chunk.dues_s[i - chunk.first]


@dataclass(frozen=True, slots=True)
class _Chunk:
    first: int
    dues_s: list[float]


class _UniformSpan:
    """A worker's arrivals of one stage, evenly spaced: each is due when the area below the rate is a whole number."""

    def __init__(self, stage: RateStage, start_s: float, count: int, *, offset: int, step: int) -> None:
        self._stage = stage
        self._start_s = start_s
        self._count = count
        self._offset, self._step = offset, step

    def chunk_at(self, index: int) -> _Chunk:
        first = index - index % CHUNK_ARRIVALS
        indexes = np.arange(first, min(first + CHUNK_ARRIVALS, self._count), dtype=np.int64)
        areas = (indexes * self._step + self._offset).astype(np.float64)
        return _Chunk(first, (_moments_s(self._stage, areas) + self._start_s).tolist())


class _PoissonSpan:
    """A worker's arrivals of one stage: independent, uniform in the area below the rate, sorted."""

    def __init__(self, stage: RateStage, start_s: float, count: int, *, seed: int, key: tuple[int, ...]) -> None:
        self._stage = stage
        self._start_s = start_s
        self._count = count
        self._seed, self._key = seed, key
        self._halved: dict[int, tuple[int, int]] = {}  # by depth: last halved part, arrivals in its first half

    def chunk_at(self, index: int) -> _Chunk:
        depth = part = first = 0  # part number `part` of 2**depth equal parts has `count` arrivals from `first` on
        count = self._count
        while count > CHUNK_ARRIVALS and depth < _HALVINGS_MAX:
            early = self._early(depth, part, count)
            depth, part = depth + 1, 2 * part
            if index < first + early:
                count = early
            else:
                first, count, part = first + early, count - early, part + 1
        units = np.sort(self._bits(_DRAW, depth, part).units(count))
        moments = _moments_s(self._stage, (units + part) * 2.0**-depth * self._stage.expected)
        return _Chunk(first, (moments + self._start_s).tolist())

    def _early(self, depth: int, part: int, count: int) -> int:
        known = self._halved.get(depth)
        if known is None or known[0] != part:
            known = self._halved[depth] = (part, self._bits(_HALVE, depth, part).coin_heads(count))
        return known[1]

    def _bits(self, use: int, depth: int, part: int) -> RandomBits:
        return RandomBits(self._seed, ARRIVALS, *self._key, use, depth, part)


_Span = _UniformSpan | _PoissonSpan


def _moments_s(stage: RateStage, areas: FloatArray) -> FloatArray:
    """The times at which the area below the rate reaches these values: roots of r t + (R - r) t² / 2 d = area."""
    if stage.start_rate_per_second is None:
        return np.minimum(areas / stage.rate_per_second, stage.duration_s)
    first, change = stage.start_rate_per_second, stage.rate_per_second - stage.start_rate_per_second
    rates = np.sqrt(np.maximum(first * first + 2.0 * change * areas / stage.duration_s, 0.0))
    moments = np.divide(2.0 * areas, first + rates, out=np.zeros_like(areas), where=first + rates > 0.0)
    return np.minimum(moments, stage.duration_s)
