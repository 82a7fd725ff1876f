"""LIVE_METRICS: the metrics in a heartbeat. They are state, not a change, so a lost heartbeat loses nothing.

A heartbeat has at most LIMIT_BYTES. A longer one is reduced in this order, and the reductions are marked in it:

    1. the statements of the last seconds are put together    as one statement "*"
    2. buckets are joined by three, then by seven             every histogram has its "coarseness": an error of 3 or 7 %
    3. the statements of a window are put together            as one statement "*", joined by three, then by seven
    4. the last seconds are left out, the newest one last     sliding thresholds read them from the table as well
    5. the oldest windows are left out                        their ids are in "left_out"

The leader of a run with many workers reads all their heartbeats. So their seconds are brief: counts of all statements
together, unless sliding thresholds need more. Counts and totals are always exact. Stored results (WINDOW_RESULTS) are
never reduced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime, timedelta
from functools import reduce
from itertools import chain
from operator import add
from typing import Any, overload

from loadgen.metrics.connections import LoginCounts, logins_data, read_logins
from loadgen.metrics.histogram import COARSENESSES, EMPTY, Histogram
from loadgen.metrics.interval import KEY as JUDGED
from loadgen.metrics.interval import (
    EarlierSamples,
    Interval,
    MeasuredCounts,
    ThresholdSecond,
    earlier_data,
    judged_data,
    read_earlier,
    read_judged,
)
from loadgen.metrics.json_fields import COUNT_MAX, JsonFields, is_whole, parse
from loadgen.metrics.recorder import WindowState
from loadgen.metrics.tally import StatementTally, Tally, Times, by_kind
from loadgen.metrics.window import (
    ALL_STATEMENTS,
    VERSION,
    WindowResult,
    buckets_data,
    counts_data,
    dump,
    ended_data,
    histogram_data,
    read_counts,
    read_ended,
    read_histogram,
    read_result,
)
from loadgen.model.counts import Counts, count_discrepancy
from loadgen.model.run import PHASES, Phase
from loadgen.values import dataclass

LIMIT_BYTES = 65_536
_MICROSECOND = timedelta(microseconds=1)
_YEARS = range(1970, 2200)
# µs before the end of the last one, length in µs, phase, executing, skipped, succeeded, failed, cancelled
_BRIEF_COLUMNS = 8
_BRIEF_MAX = 10**15
SECONDS_COARSENESS = 3  # of the times in LiveSecond, which are for charts
SECONDS_STATEMENTS_MAX = 8
FULL_SECONDS_WORKERS_MAX = 100  # in a run; with more workers seconds are brief


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSecond:
    """One interval of a worker, as WORKER_METRICS_SNAPSHOTS will contain it some seconds later."""

    ended_at: datetime  # naive UTC, as in the row
    seconds: float
    phase: Phase
    executing: int
    statements: Mapping[str, Counts]  # ended statements
    times: Mapping[str, Histogram]  # response of successful samples
    cut_off: Histogram = EMPTY  # response of statements that timed out or were cancelled: lower bounds
    earlier: EarlierSamples | None = None  # None: the phase did not change, or it is not known
    judged: ThresholdSecond | None = None  # for sliding thresholds; None: there are none, or it is not measured time

    @classmethod
    def of(
        cls,
        interval: Interval,
        phase: Phase,
        *,
        ended_at: datetime,
        executing: int,
        judged: ThresholdSecond | None = None,
    ) -> LiveSecond:
        """The second of an interval. Many statements are put together: every heartbeat contains several seconds."""
        statements = interval.tally.statements
        second = cls(
            ended_at=ended_at,
            seconds=interval.seconds,
            phase=phase,
            executing=executing,
            statements={name: statement.ended for name, statement in statements.items()},
            times={
                name: statement.succeeded.response.coarse(SECONDS_COARSENESS)
                for name, statement in statements.items()
                if statement.succeeded.response.count
            },
            cut_off=interval.tally.whole.cut_off.response.coarse(SECONDS_COARSENESS),
            earlier=None
            if interval.earlier is None
            else EarlierSamples.of(interval.earlier).coarse(SECONDS_COARSENESS),
            judged=judged,
        )
        return second if len(statements) <= SECONDS_STATEMENTS_MAX else second.folded

    @property
    def folded(self) -> LiveSecond:
        """The second with all statements as one."""
        return replace(
            self,
            statements={ALL_STATEMENTS: reduce(add, self.statements.values(), Counts())},
            times={ALL_STATEMENTS: reduce(add, self.times.values(), EMPTY)} if self.times else {},
            earlier=None if self.earlier is None else self.earlier.folded,
        )

    @property
    def brief(self) -> LiveSecond:
        """The second with the counts of all statements together, without times."""
        return replace(self.folded, times={}, cut_off=EMPTY, earlier=None)

    @property
    def is_brief(self) -> bool:
        has_more = self.times or self.cut_off.count or self.earlier is not None or self.judged is not None
        return not has_more and [*self.statements] == [ALL_STATEMENTS]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMetrics:
    """The current rate is the difference of the totals of two heartbeats, divided by the difference of `elapsed_s`."""

    elapsed_s: float  # since the start of the worker, by its clock
    totals: Counts  # of all windows, including stored ones
    measured: MeasuredCounts
    windows: tuple[WindowResult, ...]  # all that are not stored yet, the oldest first
    left_out: tuple[int, ...] = ()  # ids of windows that the heartbeat had no room for
    logins: LoginCounts = field(default_factory=LoginCounts)
    unstored: Mapping[str, int] = field(default_factory=dict)  # in the last heartbeat: numbers of rows in the spool
    seconds: Sequence[LiveSecond] = ()  # the newest, oldest first
    signal: str | None = None  # the worker ends because of this signal, not because the run ends


def write_live(live: LiveMetrics, *, limit_bytes: int = LIMIT_BYTES) -> str:
    """The JSON of the metrics, reduced to the limit."""
    for shorter in _ever_shorter(live):
        text = dump(_live_data(shorter))
        if len(text) <= limit_bytes:
            return text
    raise ValueError(f"a heartbeat does not fit into {limit_bytes} bytes")


def read_live(text: str) -> LiveMetrics:
    """Parse the JSON of a heartbeat. Raises InvalidMetrics if it is inconsistent."""
    fields = parse(text, "LIVE_METRICS", version=VERSION)
    measured = _read_measured(fields.part("measured"))
    totals = read_counts(fields.part("totals"))
    left_out = fields.items("left_out")
    if not all(map(is_whole, left_out)):
        fields.refuse("has a left_out that is not a list of ids")
    problem = count_discrepancy(totals)
    if problem:
        fields.refuse(f"has totals that do not add up: {problem}")
    windows = tuple(_read_window(window) for window in fields.parts("windows"))
    if len({window.window_id for window in windows} | set(left_out)) != len(windows) + len(left_out):
        fields.refuse("has a window twice")
    return LiveMetrics(
        elapsed_s=fields.number("elapsed_s"),
        totals=totals,
        measured=measured,
        windows=windows,
        left_out=tuple(left_out),
        logins=read_logins(fields.part("logins")) if fields.has("logins") else LoginCounts(),
        unstored=_read_unstored(fields.part("unstored")) if fields.has("unstored") else {},
        seconds=_read_seconds(fields),
        signal=fields.text("signal") if fields.has("signal") else None,
    )


def _read_unstored(fields: JsonFields) -> dict[str, int]:
    return {name: fields.whole(name) for name in fields.names()}


def _read_measured(fields: JsonFields) -> MeasuredCounts:
    measured = MeasuredCounts(**{name: fields.whole(name) for name in MeasuredCounts.__slots__})
    if measured.queries != measured.reads + measured.writes or measured.errors > measured.queries:
        fields.refuse("does not add up")
    return measured


def _live_data(live: LiveMetrics) -> dict[str, Any]:
    return {
        "version": VERSION,
        "elapsed_s": live.elapsed_s,
        "totals": {name: getattr(live.totals, name) for name in Counts.__slots__},
        "measured": {name: getattr(live.measured, name) for name in MeasuredCounts.__slots__},
        "windows": [_window_data(window) for window in live.windows],
        "left_out": live.left_out,
        "logins": logins_data(live.logins),
        **({"unstored": dict(live.unstored)} if live.unstored else {}),
        **_seconds_data(live.seconds),
        **({} if live.signal is None else {"signal": live.signal}),
    }


def _seconds_data(seconds: Sequence[LiveSecond]) -> dict[str, Any]:
    if not seconds:
        return {}
    if not all(second.is_brief for second in seconds):
        return {"seconds": list(map(_second_data, seconds))}
    last = seconds[-1].ended_at
    rows = [
        [
            round((last - second.ended_at) / _MICROSECOND),
            round(second.seconds * 1e6),
            PHASES.index(second.phase),
            second.executing,
            *ended_data(second.statements[ALL_STATEMENTS]).values(),
        ]
        for second in seconds
    ]
    return {"brief_seconds": {"ended_at": last.isoformat(), "rows": rows}}


def _read_seconds(fields: JsonFields) -> Sequence[LiveSecond]:
    if fields.has("brief_seconds"):
        return _read_brief_seconds(fields.part("brief_seconds"))
    return tuple(map(_read_second, fields.parts("seconds"))) if fields.has("seconds") else ()


class BriefSeconds(Sequence[LiveSecond]):
    """The checked seconds of a heartbeat. Each is created on access: the leader of many workers reads thousands of them
    in every tick, but only a live view uses them."""

    __slots__ = ("_last", "_rows")

    def __init__(self, last: datetime, rows: Sequence[Sequence[int]]) -> None:
        self._last, self._rows = last, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> LiveSecond: ...
    @overload
    def __getitem__(self, index: slice) -> BriefSeconds: ...
    def __getitem__(self, index: int | slice) -> LiveSecond | BriefSeconds:
        if isinstance(index, slice):
            return BriefSeconds(self._last, self._rows[index])
        before_us, length_us, phase, executing, skipped, succeeded, failed, cancelled = self._rows[index]
        counts = Counts(skipped=skipped, succeeded=succeeded, failed=failed, cancelled=cancelled)
        return LiveSecond(
            ended_at=self._last - before_us * _MICROSECOND,
            seconds=length_us / 1e6,
            phase=PHASES[phase],
            executing=executing,
            statements={ALL_STATEMENTS: counts},
            times={},
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)


def _read_brief_seconds(fields: JsonFields) -> BriefSeconds:
    last, rows = _read_moment(fields), fields.items("rows")
    if not all(type(row) is list and len(row) == _BRIEF_COLUMNS for row in rows):
        fields.refuse(f"has a row that is not {_BRIEF_COLUMNS} whole numbers")
    numbers = list(chain.from_iterable(rows))
    if not {int}.issuperset(map(type, numbers)):
        fields.refuse(f"has a row that is not {_BRIEF_COLUMNS} whole numbers")
    if rows and (min(numbers) < 0 or max(numbers) > _BRIEF_MAX or max(numbers[2::_BRIEF_COLUMNS]) >= len(PHASES)):
        fields.refuse("has a number that is out of range")
    return BriefSeconds(last, rows)


def _read_moment(fields: JsonFields) -> datetime:
    try:
        moment = datetime.fromisoformat(fields.text("ended_at"))
        if moment.tzinfo is None and moment.year in _YEARS:
            return moment
    except ValueError:
        pass
    fields.refuse("has a moment that cannot be read")


def _second_data(second: LiveSecond) -> dict[str, Any]:
    times = {name: {"response": histogram_data(histogram)} for name, histogram in second.times.items()}
    return {
        "ended_at": second.ended_at.isoformat(),
        "seconds": second.seconds,
        "phase": second.phase.value,
        "executing": second.executing,
        "statements": {
            name: ended_data(counts) | times.get(name, {}) for name, counts in second.statements.items() if counts.ended
        },
        **({"cut_off": histogram_data(second.cut_off)} if second.cut_off.count else {}),
        **earlier_data(second.earlier),
        **({} if second.judged is None else {JUDGED: judged_data(second.judged)}),
    }


def _read_second(fields: JsonFields) -> LiveSecond:
    written = fields.part("statements")
    statements = {name: read_ended(written.part(name)) for name in written.names()}
    times = {
        name: read_histogram(written.part(name).part("response"))
        for name in statements
        if written.part(name).has("response")
    }
    if any(counts.succeeded != times.get(name, EMPTY).count for name, counts in statements.items()):
        written.refuse("has other times than were counted")
    return LiveSecond(
        ended_at=_read_moment(fields),
        seconds=fields.number("seconds"),
        phase=fields.one_of("phase", Phase),
        executing=fields.whole("executing"),
        statements=statements,
        times=times,
        cut_off=read_histogram(fields.part("cut_off")) if fields.has("cut_off") else EMPTY,
        earlier=read_earlier(fields),
        judged=read_judged(fields.part(JUDGED)) if fields.has(JUDGED) else None,
    )


def _window_data(result: WindowResult) -> dict[str, Any]:
    return {
        "window_id": result.window_id,
        "phase": result.phase.value,
        "step_id": result.step_id,
        "state": result.state.value,
        "seconds": result.seconds,
        "counts": counts_data(result),
        "buckets": buckets_data(result.tally),
    }


def _read_window(fields: JsonFields) -> WindowResult:
    return read_result(
        fields.part("counts"),
        fields.part("buckets"),
        window_id=fields.whole("window_id", low=-COUNT_MAX),
        phase=fields.one_of("phase", Phase),
        step_id=fields.whole_or_none("step_id"),
        state=fields.one_of("state", WindowState),
        seconds=fields.number("seconds"),
    )


def _ever_shorter(live: LiveMetrics) -> Iterator[LiveMetrics]:
    yield live
    live = replace(live, seconds=tuple(second.folded for second in live.seconds))
    for fold in (False, True):
        for coarseness in COARSENESSES:
            windows = tuple(_shorter(window, coarseness, fold=fold) for window in live.windows)
            yield replace(live, windows=windows)
    yield replace(live, windows=windows, seconds=live.seconds[-1:])
    live = replace(live, seconds=())
    for left_out in range(len(windows) + 1):
        ids = tuple(window.window_id for window in windows[:left_out])
        yield replace(live, windows=windows[left_out:], left_out=ids)


def _shorter(result: WindowResult, coarseness: int, *, fold: bool) -> WindowResult:
    statements, errors = result.tally.statements, result.tally.errors
    if fold and statements:
        statements, errors = {ALL_STATEMENTS: result.tally.whole}, by_kind(errors)
    statements = {name: _coarse(statement, coarseness) for name, statement in statements.items()}
    return replace(result, tally=Tally(statements=statements, errors=errors))


def _coarse(statement: StatementTally, coarseness: int) -> StatementTally:
    times = {
        outcome: Times(times.response.coarse(coarseness), times.service.coarse(coarseness))
        for outcome, times in statement.times.items()
    }
    return StatementTally(
        times=times,
        lag=statement.lag.coarse(coarseness),
        skipped=statement.skipped,
        unsent=statement.unsent.coarse(coarseness),
    )
