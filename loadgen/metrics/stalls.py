"""Stalls: statements are in flight, and each of them has run for more than 1 s and 10 × the median of its statement.

A closed loop sends nothing while it waits, so a server that does not answer leaves few slow samples. Slow queries are
no stall, because their median is high; neither are think time and low rates, because nothing is in flight then.

A stall begins when the last statement was sent or answered before it, so it is as long as the server did not work.
Statements that were cut off (timed out, cancelled) were not answered: the stall continues with the statements after
them. A stall that overlaps a window is reported in full: it may have begun in warm-up, and it continues after the end
of the window until one of its statements is answered.

In an open loop, and with think time, statements are sent during a stall, so some in flight are recent. There a stall is
a span without any answer, at the end of which a statement in flight has run for that long. A worker with few statements
has spans without an answer in any case: such a span only confirms the stall of another worker.

Time in which the process of the worker was paused does not count: no statement grows older in it, and no stall covers
it.

A worker finds its stalls, and its idle spans: nothing was in flight (in an open loop: no answer), or the process was
paused. The run was stalled while one worker was stalled and every other was stalled or idle. Spans are in milliseconds
since the start of the plan.

Statements with too few samples have no median, so it is not known whether they stalled. `possible` are the spans that
would be stalls if all of them were overdue after 1 s: no stall that is not known is longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.json_fields import COUNT_MAX, JsonFields, is_whole
from loadgen.metrics.percentile import quantile
from loadgen.metrics.recorder import CUT_OFF, Outcome, Sample, Window
from loadgen.metrics.tally import Tally
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.values import dataclass

OVERDUE_NS = NS_PER_S
OVERDUE_MEDIANS = 10
MEDIAN_SAMPLES_MIN = 10  # with fewer samples the median is unreliable, and the statement alone is never overdue
SHORTEST_MS = 100  # shorter stalls are not reported, and shorter gaps do not separate stalls
WARN_S = 1.0
SPANS_MAX = 100  # per window; the longest are reported
KEPT_MAX = 2_000  # per worker

_UNANSWERED = frozenset((*CUT_OFF, Outcome.SKIPPED))

Span = tuple[int, int]
InFlightStatement = tuple[int, int, int, int]  # statement, window, due_ns, sent_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStalls:
    """The stalls of one window of one worker."""

    from_ms: int
    until_ms: int
    stalled: tuple[Span, ...] = ()
    idle: tuple[Span, ...] = ()  # nothing was in flight (in an open loop: answered), or a stall was paused
    paused: tuple[Span, ...] = ()  # the process did not run: whether its statements were answered is not known
    possible: tuple[Span, ...] = ()  # may be stalls: statements in flight had too few samples for a median


@dataclass(frozen=True, slots=True)
class _Batch:
    """The statements of a worker in one collection. Times are of the monotonic clock."""

    executed: Sequence[tuple[int, int, int]]  # statement, sent, answered or now
    answers: Sequence[int]
    silent: Sequence[Span]  # more than OVERDUE_NS without an answer
    from_ns: int
    now_ns: int


class StallDetector:
    """Finds the stalls of one worker. add() is called with every collection. One thread."""

    def __init__(self, names: Sequence[str], *, keeps_sending: bool = False) -> None:
        self._names, self._keeps_sending = names, keeps_sending
        self._times: dict[str, Histogram] = {}  # service times of successful samples
        self._stalled: list[Span] = []  # by the monotonic clock, in order
        self._possible: list[Span] = []
        self._idle: list[Span] = []
        self._paused: list[Span] = []
        self._was_idle = True
        self._answered_ns = 0  # the last answer of earlier collections

    def add(
        self,
        samples: Sequence[Sample],
        flights: Sequence[InFlightStatement],
        news: Iterable[Tally],
        *,
        from_ns: int,
        now_ns: int,
        paused: Iterable[Span] = (),
    ) -> None:
        """Add the samples that ended since `from_ns`, their tallies `news`, and the statements in flight. `paused`: the
        spans in which this process did not run."""
        for span in paused:
            _append(self._paused, span)
        news, idle = list(news), not samples and not flights
        answers = sorted(one[4] for one in samples if int(one[5]) not in _UNANSWERED)
        silent = [span for span in pairwise([self._answered_ns, *answers, now_ns]) if span[1] - span[0] > OVERDUE_NS]
        if self._keeps_sending:
            for answered_ns, end_ns in silent:
                _append(self._idle, (answered_ns + NS_PER_MS, end_ns))
        elif idle and self._was_idle:
            _append(self._idle, (from_ns, now_ns))
        self._was_idle = idle
        longest = [
            times.service.max_ns for one in news for name in one.statements.values() for times in name.times.values()
        ]
        if max([*longest, *(now_ns - flight[3] for flight in flights)], default=0) > OVERDUE_NS:
            executed = [(one[0], one[3], one[4]) for one in samples if one[5] is not Outcome.SKIPPED]
            executed += [(number, sent_ns, now_ns) for number, _, _, sent_ns in flights]
            batch = _Batch(executed, answers, silent, from_ns, now_ns)
            limits = {number: self._limit_ns(number) for number in {number for number, _, _ in executed}}
            self._find(self._stalled, batch, limits)
            if None in limits.values():
                self._find(self._possible, batch, {number: one or OVERDUE_NS for number, one in limits.items()})
        self._answered_ns = max([self._answered_ns, *answers])
        for tally in news:
            for name, statement in tally.statements.items():
                self._times[name] = self._times.get(name, EMPTY) + statement.succeeded.service

    def of(self, window: Window, zero_ns: int, now_ns: int) -> WindowStalls:
        """The stalls that overlap a window, in full, and the idle spans inside of it."""
        inside = (window.opened_ns, now_ns if window.closed_ns is None else window.closed_ns)
        in_stalls = [span for span in self._paused if self._adjoins_a_stall(span)]
        idle = common(merged([*self._idle, *in_stalls]), [inside])
        paused = common(without(self._paused, in_stalls), [inside])
        ((from_ms, until_ms),) = _in_ms([inside], zero_ns)
        # A pause splits the stall around it, although the server may not have answered in the pause either.
        possible = merged([*self._possible, *self._stalled, *in_stalls]) if in_stalls else self._possible
        return WindowStalls(
            from_ms=from_ms,
            until_ms=until_ms,
            stalled=tuple(_longest(_reaching(_in_ms(self._stalled, zero_ns), [(from_ms, until_ms)]))),
            possible=tuple(_longest(_reaching(_in_ms(possible, zero_ns), [(from_ms, until_ms)]))),
            idle=tuple(_longest(_in_ms(idle, zero_ns))),
            paused=tuple(_longest(_in_ms(paused, zero_ns))),
        )

    def _adjoins_a_stall(self, pause: Span) -> bool:
        """Is a stall next to the pause? If so, statements in flight were probably not answered in the pause either."""
        near_ns = SHORTEST_MS * NS_PER_MS
        return any(abs(pause[0] - end) < near_ns or abs(start - pause[1]) < near_ns for start, end in self._stalled)

    def _find(self, spans: list[Span], batch: _Batch, limits: Mapping[int, int | None]) -> None:
        """Add the stalls of a collection to `spans`. `limits`: when statements are overdue; None: it is not known."""
        if self._keeps_sending:
            for span in without(list(self._unanswered(batch, limits)), self._paused):
                _append(spans, span)
        else:
            for span in self._overdue(batch, limits):
                self._stall(spans, span, batch)

    def _stall(self, spans: list[Span], overdue: Span, batch: _Batch) -> None:
        """Add a stall for a span in which only overdue statements were in flight. It begins at the last one sent or
        answered."""
        start_ns = overdue[0]
        answered_ns = max((done_ns for done_ns in batch.answers if done_ns <= start_ns), default=self._answered_ns)
        sent_ns = max(sent_ns for _, sent_ns, done_ns in batch.executed if sent_ns <= start_ns < done_ns)
        span = (max(answered_ns + NS_PER_MS, sent_ns), overdue[1])  # apart from a stall that the answer ended
        last_ns = spans[-1][1] if spans else 0
        if answered_ns < last_ns and span[0] - last_ns < SHORTEST_MS * NS_PER_MS:
            span = (min(last_ns, span[0]), span[1])  # it continues the last stall
        for part in without([span], self._paused):
            _append(spans, part)

    def _overdue(self, batch: _Batch, limits: Mapping[int, int | None]) -> list[Span]:
        """Spans in which statements were in flight, and all of them overdue."""
        first_ns = min(sent_ns for _, sent_ns, _ in batch.executed)
        paused = [span for span in self._paused if span[1] > first_ns]
        late, fine = [], []
        for number, sent_ns, done_ns in batch.executed:
            limit_ns = limits[number]
            due_ns = min(done_ns, _awake_ns(sent_ns, limit_ns or self._shortest_limit_ns(number), paused))
            fine.append((sent_ns, due_ns))
            if limit_ns is not None:  # otherwise it is not known whether it is overdue
                late.append((due_ns, done_ns))
        return without(common(merged(late), [(batch.from_ns, batch.now_ns)]), merged(fine))

    def _unanswered(self, batch: _Batch, limits: Mapping[int, int | None]) -> Iterator[Span]:
        """Spans between two answers, or since the last one, at the end of which a statement in flight is overdue."""
        for answered_ns, end_ns in batch.silent:
            flying = [(number, sent_ns) for number, sent_ns, done_ns in batch.executed if sent_ns < end_ns <= done_ns]
            overdue = [(sent_ns, limit_ns) for number, sent_ns in flying if (limit_ns := limits[number]) is not None]
            if any(_awake_ns(sent_ns, limit_ns, self._paused) < end_ns for sent_ns, limit_ns in overdue):
                yield max(answered_ns + NS_PER_MS, min(sent_ns for _, sent_ns in flying)), end_ns

    def _limit_ns(self, number: int) -> int | None:
        times = self._times.get(self._names[number], EMPTY)
        if times.count < MEDIAN_SAMPLES_MIN:
            return None
        median = quantile(500, times)
        return None if median is None else max(OVERDUE_NS, OVERDUE_MEDIANS * median.value_ns)

    def _shortest_limit_ns(self, number: int) -> int:
        """The limit for a statement with too few samples for a median: from the longest of them."""
        return max(OVERDUE_NS, OVERDUE_MEDIANS * self._times.get(self._names[number], EMPTY).max_ns)


def run_stalls(
    workers: Iterable[Iterable[WindowStalls | None]], *, until_ms: int | None = None
) -> tuple[Span, ...] | None:
    """The stalls of the run, up to `until_ms`; None: no worker measured them. Outside of its windows a worker has
    nothing in flight. A paused worker counts as answered, unless it was paused in a stall."""
    known = [[one for one in own if one is not None] for own in workers]
    known = [own for own in known if own]
    if not known:
        return None
    windows = merged((one.from_ms, one.until_ms) for own in known for one in own)
    stalled = merged(span for own in known for one in own for span in one.stalled)
    for own in known:
        quiet = merged(span for one in own for span in (*one.stalled, *one.idle))
        present = [(one.from_ms, one.until_ms) for one in own]
        present += [(start - 1, end + 1) for one in own for start, end in one.stalled]  # it had answers around them
        stalled = common(stalled, merged([*quiet, *without(stalled, merged(present))]))
    if until_ms is not None:
        stalled = [(start, min(end, until_ms)) for start, end in stalled if start < until_ms]
    return tuple(span for span in _reaching(stalled, windows) if span[1] - span[0] >= SHORTEST_MS)


def possible_stalls(
    workers: Iterable[Iterable[WindowStalls | None]], *, until_ms: int | None = None
) -> tuple[Span, ...]:
    """The spans that may have been stalls of the run, those that are known included; empty: all stalls are known."""
    own = [[one for one in windows if one is not None] for windows in workers]
    if not any(one.possible or one.paused for windows in own for one in windows):
        return ()
    return run_stalls(([_supposed(one) for one in windows] for windows in own), until_ms=until_ms) or ()


def _supposed(known: WindowStalls) -> WindowStalls:
    """The stalls, if every possible stall was one, and nothing was answered during pauses."""
    return replace(known, stalled=(*known.stalled, *known.possible), idle=(*known.idle, *known.paused))


def stalls_document(spans: Sequence[Span] | None) -> dict[str, Any] | None:
    """summary.json's `stalls`; None: not measured."""
    if spans is None:
        return None
    lengths = [end - start for start, end in spans]
    return {
        "count": len(spans),
        "longest_ms": float(max(lengths, default=0)),
        "total_ms": float(sum(lengths)),
        "spans_s": [[start / 1_000, end / 1_000] for start, end in spans],
    }


def stall_warnings(spans: Sequence[Span] | None) -> list[str]:
    """The warning about the longest stall, if it is long enough."""
    longest = max(spans or (), key=lambda span: span[1] - span[0], default=(0, 0))
    length_s = (longest[1] - longest[0]) / 1_000
    if not spans or length_s < WARN_S:
        return []
    others = f", and {len(spans) - 1} times more" if len(spans) > 1 else ""
    return [
        f"the server stalled for {length_s:.1f} s from second {longest[0] / 1_000:.1f} of the measurement on{others}:"
        " every statement in flight took more than 10 times its median"
    ]


# --- Spans, ordered and disjoint -------------------------------------------------------------------------------------


def merged(spans: Iterable[Span]) -> list[Span]:
    """The union of spans; spans that touch are joined."""
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _append(spans: list[Span], span: Span) -> None:
    """Append a span that does not begin before the others."""
    if spans and span[0] <= spans[-1][1]:
        spans[-1] = (spans[-1][0], max(spans[-1][1], span[1]))
    else:
        spans.append(span)
    del spans[:-KEPT_MAX]


def common(left: Sequence[Span], right: Sequence[Span]) -> list[Span]:
    both = ((max(a[0], b[0]), min(a[1], b[1])) for a in left for b in right)
    return [span for span in both if span[0] < span[1]]


def without(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    left: list[Span] = []
    for start, end in spans:
        for taken_start, taken_end in taken:
            if taken_end <= start or taken_start >= end:
                continue
            if taken_start > start:
                left.append((start, taken_start))
            start = max(start, taken_end)
        if start < end:
            left.append((start, end))
    return left


def _awake_ns(from_ns: int, length_ns: int, paused: Sequence[Span]) -> int:
    """The time at which a process has run for `length_ns` since `from_ns`, without its pauses."""
    until_ns = from_ns + length_ns
    for start_ns, end_ns in paused:
        if from_ns < end_ns and start_ns < until_ns:
            until_ns += end_ns - max(start_ns, from_ns)
    return until_ns


def _in_ms(spans: Iterable[Span], zero_ns: int) -> list[Span]:
    return [((start - zero_ns) // NS_PER_MS, (end - zero_ns) // NS_PER_MS) for start, end in spans]


def _reaching(spans: Iterable[Span], windows: Sequence[Span]) -> list[Span]:
    """The spans with at least SHORTEST_MS inside the windows. After the windows nothing is sent, so a slow statement
    there is not a stall."""
    return [span for span in spans if sum(end - start for start, end in common([span], windows)) >= SHORTEST_MS]


def _longest(spans: Iterable[Span]) -> list[Span]:
    long_enough = [span for span in spans if span[1] - span[0] >= SHORTEST_MS]
    return sorted(sorted(long_enough, key=lambda span: span[0] - span[1])[:SPANS_MAX])


# --- JSON ------------------------------------------------------------------------------------------------------------


def stalls_data(stalls: WindowStalls) -> dict[str, Any]:
    spans: Mapping[str, tuple[Span, ...]] = {
        "stalled": stalls.stalled,
        "idle": stalls.idle,
        "paused": stalls.paused,
        "possible": stalls.possible,
    }
    return {
        "from_ms": stalls.from_ms,
        "until_ms": stalls.until_ms,
        **{name: [list(span) for span in known] for name, known in spans.items() if known},
    }


def read_stalls(fields: JsonFields) -> WindowStalls:
    return WindowStalls(
        from_ms=fields.whole("from_ms", low=-COUNT_MAX),
        until_ms=fields.whole("until_ms", low=-COUNT_MAX),
        stalled=_read_spans(fields, "stalled"),
        idle=_read_spans(fields, "idle"),
        paused=_read_spans(fields, "paused"),
        possible=_read_spans(fields, "possible"),
    )


def _read_spans(fields: JsonFields, name: str) -> tuple[Span, ...]:
    items = fields.items(name) if fields.has(name) else []
    for item in items:
        if not (isinstance(item, list) and len(item) == 2 and all(map(is_whole, item)) and item[0] <= item[1]):
            fields.refuse(f"has {name} spans that are invalid")
    return tuple((start, end) for start, end in items)
