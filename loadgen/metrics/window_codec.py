"""Metrics as JSON: the one writer and the one reader of everything that is stored.

A histogram is written as {"count", "sum_ns", "min_ns", "max_ns", "buckets"}. Its buckets are a list: the number of the
first one in use, then one count after another; -n stands for n buckets without any. With "coarseness" 3 the numbers
are those of groups of 3 (`edges`). A service time that equals the response time, as always in a closed loop, is left
out.

    COUNTS    {"version", scheduled … in_flight, "statements": {name: {skipped … cancelled}}, "errors": [{…}],
               "connections": {planned_ms, delivered_ms, logging_in_ms}, "client": {…}, "stalls": {…}, "surplus": n,
               "replayed": {sent, rows}}
    BUCKETS   {"version", "statements": {name: {OUTCOME: {"response": h, "service": h}, "lag": h, "unsent": h}}}

Counts could be had from buckets; they are written for people, and so that a reader can tell when one of the two has
been damaged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any, Self

import numpy as np

from loadgen.metrics.client_resources import ClientResourceUse
from loadgen.metrics.connections import read_time, time_data
from loadgen.metrics.histogram import (
    BUCKETS,
    COARSENESSES,
    EMPTY,
    INNER_BUCKETS,
    Histogram,
    bucket_of,
    group_of,
    join,
    spread,
)
from loadgen.metrics.json_fields import COUNT_MAX, TIME_NS_MAX, JsonFields, parse
from loadgen.metrics.outcome import Outcome
from loadgen.metrics.recorder import WindowState
from loadgen.metrics.replayed import read_replayed, replayed_data
from loadgen.metrics.stalls import read_stalls, stalls_data
from loadgen.metrics.tally import ErrorKey, ErrorTally, StatementTally, Tally, Times
from loadgen.metrics.window import WindowResult, window_discrepancy
from loadgen.model.counts import Counts, ErrorCategory
from loadgen.model.run import Phase

VERSION = 1
_LAG, _UNSENT = "lag", "unsent"
_ENDED = ("skipped", "succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """A window as it is stored, spooled and read back: the columns of WINDOW_RESULTS after RUN_ID, in order."""

    worker_id: str
    window_id: int
    epoch: int  # of the leader whose commands the worker followed
    phase: str
    step_id: int | None
    seconds: float
    counts: str
    buckets: str

    @classmethod
    def of(cls, result: WindowResult, *, worker_id: str, epoch: int) -> Self:
        """A window to be stored: a final one, or at a worker's end one with statements that never came back."""
        return cls(
            worker_id=worker_id,
            window_id=result.window_id,
            epoch=epoch,
            phase=result.phase.value,
            step_id=result.step_id,
            seconds=result.seconds,
            counts=dump({"version": VERSION, **counts_data(result)}),
            buckets=dump({"version": VERSION, "statements": buckets_data(result.tally)}),
        )

    def to_row(self) -> tuple[Any, ...]:
        return astuple(self)

    @property
    def is_measurement(self) -> bool:
        return self.phase == Phase.MEASUREMENT.value

    def result(self) -> WindowResult:
        """The window; raises InvalidMetrics when anything in it does not add up."""
        place = f"window {self.window_id}"
        counts = parse(self.counts, f"{place}, COUNTS", version=VERSION)
        buckets = parse(self.buckets, f"{place}, BUCKETS", version=VERSION)
        columns = JsonFields({"phase": self.phase, "seconds": self.seconds}, place)
        in_flight = counts.whole("in_flight")
        return read_result(
            counts,
            buckets.part("statements"),
            window_id=self.window_id,
            phase=columns.one_of("phase", Phase),
            step_id=self.step_id,
            seconds=columns.number("seconds"),
            state=WindowState.CLOSED if in_flight else WindowState.FINAL,
        )


def dump(data: object) -> str:
    """Compact, and ASCII: as many bytes as characters."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


# --- a window --------------------------------------------------------------------------------------------------------


def counts_data(result: WindowResult) -> dict[str, Any]:
    statements = result.tally.statements
    return {
        **asdict(result.counts),
        "statements": {name: ended_data(statement.ended) for name, statement in statements.items()},
        "errors": [
            {
                "category": key.category.value,
                "code": key.code,
                **_named(key),
                "count": group.count,
                "example": group.example,
            }
            for key, group in result.tally.errors.items()
        ],
        **({} if result.connections is None else {"connections": time_data(result.connections)}),
        **({} if result.client is None else {"client": _client_data(result.client)}),
        **({} if result.stalls is None else {"stalls": stalls_data(result.stalls)}),
        **({} if not result.surplus else {"surplus": result.surplus}),
        **({} if result.replayed is None else {"replayed": replayed_data(result.replayed)}),
    }


def _named(key: ErrorKey) -> dict[str, str]:
    return {} if key.statement is None else {"statement": key.statement}


def buckets_data(tally: Tally) -> dict[str, Any]:
    return {name: statement_data(statement) for name, statement in tally.statements.items()}


def ended_data(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in _ENDED}


def read_ended(fields: JsonFields) -> Counts:
    return Counts(**{name: fields.whole(name) for name in _ENDED})


def read_counts(fields: JsonFields) -> Counts:
    return Counts(**{name: fields.whole(name) for name in Counts.__slots__})


def read_result(counts: JsonFields, buckets: JsonFields, **window: Any) -> WindowResult:
    """Counts, buckets and what is said about the window, put together and held against each other."""
    written = counts.part("statements")
    if set(written.names()) != set(buckets.names()):
        buckets.refuse("has other statements than the counts")
    statements = {}
    for name in written.names():
        ended = read_ended(written.part(name))
        statements[name] = read_statement(buckets.part(name), skipped=ended.skipped)
        if statements[name].ended != ended:
            buckets.part(name).refuse("does not hold as many as were counted")
    tally = Tally(statements=statements, errors=_read_errors(counts))
    connections = read_time(counts.part("connections")) if counts.has("connections") else None
    client = _read_client(counts.part("client")) if counts.has("client") else None
    stalls = read_stalls(counts.part("stalls")) if counts.has("stalls") else None
    surplus = counts.whole("surplus", low=-COUNT_MAX) if counts.has("surplus") else 0
    result = WindowResult(
        counts=read_counts(counts),
        tally=tally,
        connections=connections,
        client=client,
        stalls=stalls,
        surplus=surplus,
        replayed=read_replayed(counts.part("replayed")) if counts.has("replayed") else None,
        **window,
    )
    problem = window_discrepancy(result)
    if problem:
        counts.refuse(f"does not add up: {problem}")
    return result


def _read_errors(counts: JsonFields) -> Mapping[ErrorKey, ErrorTally]:
    errors: dict[ErrorKey, ErrorTally] = {}
    for group in counts.parts("errors"):
        statement = group.text("statement") if group.has("statement") else None
        key = ErrorKey(group.one_of("category", ErrorCategory), group.whole_or_none("code"), statement)
        if key in errors:
            group.refuse("is there twice")
        errors[key] = ErrorTally(group.whole("count", low=1), group.text("example"))
    return errors


def statement_data(statement: StatementTally) -> dict[str, Any]:
    data: dict[str, Any] = {outcome.name: _times_data(times) for outcome, times in statement.times.items()}
    for name, histogram in ((_LAG, statement.lag), (_UNSENT, statement.unsent)):
        if histogram.count:
            data[name] = histogram_data(histogram)
    return data


def read_statement(fields: JsonFields, *, skipped: int) -> StatementTally:
    times, lag, unsent = {}, EMPTY, EMPTY
    for name in fields.names():
        if name == _LAG:
            lag = read_histogram(fields.part(name))
        elif name == _UNSENT:
            unsent = read_histogram(fields.part(name))
        elif name in Outcome.__members__ and name != Outcome.SKIPPED.name:
            times[Outcome[name]] = _read_times(fields.part(name))
        else:
            fields.refuse(f"has an unknown outcome {name!r}")
    return StatementTally(times=times, lag=lag, skipped=skipped, unsent=unsent)


def _times_data(times: Times) -> dict[str, Any]:
    data = {"response": histogram_data(times.response)}
    if times.service != times.response:
        data["service"] = histogram_data(times.service)
    return data


def _read_times(fields: JsonFields) -> Times:
    response = read_histogram(fields.part("response"))
    service = read_histogram(fields.part("service")) if fields.has("service") else response
    if service.count != response.count:
        fields.refuse("has more of one time than of the other")
    return Times(response, service)


# --- what the client itself did --------------------------------------------------------------------------------------

_CLIENT = ("elapsed_ms", "cpu_ms", "machine_cpu_ms", "cores", "gap_ms")


def _client_data(effect: ClientResourceUse) -> dict[str, Any]:
    data: dict[str, Any] = {name: getattr(effect, name) for name in _CLIENT}
    if effect.minute_cpu_ms:
        data["minute_cpu_ms"] = effect.minute_cpu_ms
    found = {"late": effect.late, "sent_late": effect.sent_late}
    return data | {name: histogram_data(histogram) for name, histogram in found.items() if histogram.count}


def _read_client(fields: JsonFields) -> ClientResourceUse:
    late, sent_late = (
        read_histogram(fields.part(name)) if fields.has(name) else EMPTY for name in ("late", "sent_late")
    )
    minute_cpu_ms = fields.whole("minute_cpu_ms") if fields.has("minute_cpu_ms") else 0
    known = {name: fields.whole(name) for name in _CLIENT}
    return ClientResourceUse(late=late, sent_late=sent_late, minute_cpu_ms=minute_cpu_ms, **known)


# --- a histogram -----------------------------------------------------------------------------------------------------


def histogram_data(histogram: Histogram) -> dict[str, Any]:
    data: dict[str, Any] = {
        "count": histogram.count,
        "sum_ns": histogram.sum_ns,
        "min_ns": histogram.min_ns,
        "max_ns": histogram.max_ns,
    }
    if histogram.coarseness > 1:
        data["coarseness"] = histogram.coarseness
    groups = join(histogram.counts, histogram.coarseness)
    used = np.flatnonzero(groups)
    buckets: list[int] = used[:1].tolist()
    expected = buckets[0] if buckets else 0
    for number, count in zip(used.tolist(), groups[used].tolist(), strict=True):
        if number > expected:
            buckets.append(expected - number)
        buckets.append(count)
        expected = number + 1
    return {**data, "buckets": buckets}


def read_histogram(fields: JsonFields) -> Histogram:
    coarseness = fields.whole("coarseness") if fields.has("coarseness") else 1
    if coarseness not in COARSENESSES:
        fields.refuse(f"has a coarseness that is none of {COARSENESSES}")
    length = INNER_BUCKETS // coarseness + BUCKETS - INNER_BUCKETS
    items = fields.items("buckets")
    if not items or not {int}.issuperset(map(type, items)) or not -BUCKETS < min(items) <= max(items) <= COUNT_MAX:
        fields.refuse("has buckets that are not whole numbers, or none")
    if items[0] < 0:
        fields.refuse("has buckets that are not whole numbers, or none")
    number, used, counts = items[0], [], []
    for item in items[1:]:
        if item > 0 and number < length:
            used.append(number)
            counts.append(item)
            number += 1
        elif item < 0:
            number -= item
        else:
            fields.refuse("has an empty bucket, or too many")
    groups = np.zeros(length, np.int64)
    groups[used] = counts
    histogram = Histogram(
        counts=groups if coarseness == 1 else spread(groups, coarseness),
        count=fields.whole("count", low=1),
        sum_ns=fields.whole("sum_ns", high=COUNT_MAX * TIME_NS_MAX),
        min_ns=fields.whole("min_ns", high=TIME_NS_MAX),
        max_ns=fields.whole("max_ns", high=TIME_NS_MAX),
        coarseness=coarseness,
    )
    _check(histogram, used, sum(counts), fields)
    return histogram


def _check(histogram: Histogram, used: list[int], counted: int, fields: JsonFields) -> None:
    """Its parts say some things twice; they must agree."""
    count, coarseness = histogram.count, histogram.coarseness
    if counted != count:
        fields.refuse(f"has {counted} in its buckets, and a count of {count}")
    ends = [group_of(bucket_of(time_ns), coarseness) for time_ns in (histogram.min_ns, histogram.max_ns)]
    if not used or ends != [used[0], used[-1]]:
        fields.refuse("has a minimum or maximum outside its first or last bucket")
    if not count * histogram.min_ns <= histogram.sum_ns <= count * histogram.max_ns:
        fields.refuse("has a sum that its minimum, maximum and count do not allow")
