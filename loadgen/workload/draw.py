"""The next statement and its bound parameters: mix and generators together.

    closed loop   one StatementStream per lane; draw(k) with the count k of the lane
    open loop     one StatementStream per worker, shared by its clients; draw(i) with the index of the arrival

No number is drawn twice, because a sequence would then give a key twice. So k and i continue from the warm-up into the
measurement and from stage to stage: each ArrivalSchedule begins where the previous one ends. The worker keeps the
stream and k of each lane until it ends. When a lane is closed and opened again (a ramp down and up, a replaced
connection), the new client continues with the next k. Draws that were not sent are skipped.

Every statement prepares its rows in chunks, so that a draw is two look-ups. draw() may be called by any thread.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from typing import cast

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import RunFailed, ScenarioInvalid
from loadgen.model.workload import CYCLE_MAX, ClientPosition, Latest, Previous, Query, Statement, Workload
from loadgen.model.workload import Sequence as SequenceParameter
from loadgen.values import dataclass
from loadgen.workload.draw_context import CHUNK_VALUES, DrawContext, FollowedSequence, InsertedKeys
from loadgen.workload.generators import Chunked, Generator, LatestKeys, SequenceKeys, Value, make_generator
from loadgen.workload.pools import Pool

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0  # its multiples modulo 1 are spread most evenly

IntArray = NDArray[np.int64]


class MixCycle:
    """The order in which statements with these weights follow one another, until it repeats."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = _reduced(weights)
        self.cycle = _cycle(self.weights)
        self.length = len(self.cycle)
        # nth[position]: how often the statement at this position occurs at earlier positions
        drawn = [0] * len(self.weights)
        nth = []
        for statement in self.cycle:
            nth.append(drawn[statement])
            drawn[statement] += 1
        self.nth = array("l", nth)


class MixSequence:
    """The order of statements in one lane. Lanes begin at different positions of the cycle, so that they do not all
    send the same statement at the same time."""

    def __init__(self, mix: MixCycle, phase: int = 0) -> None:
        if not 0 <= phase < mix.length:
            raise ValueError(f"a lane cannot begin at {phase}: the cycle has {mix.length} positions")
        self.mix = mix
        self.phase = phase
        # Statements before the first position are not drawn.
        skipped = np.bincount(np.asarray(mix.cycle)[:phase], minlength=len(mix.weights))
        self._skipped: tuple[int, ...] = tuple(skipped.tolist())

    def at(self, k: int) -> tuple[int, int]:
        """Draw k (from 0): the number of the statement, and how often this lane has drawn it before."""
        mix = self.mix
        cycles, position = divmod(k + self.phase, mix.length)
        statement = mix.cycle[position]
        return statement, cycles * mix.weights[statement] + mix.nth[position] - self._skipped[statement]

    def counter(self, other: int, statement: int) -> Callable[[IntArray], IntArray]:
        """A function from draws n (from 0) of `statement` to the number of earlier draws of `other`."""
        cycle = np.array(self.mix.cycle)
        positions = np.flatnonzero(cycle == statement)
        before = (np.cumsum(cycle == other) - (cycle == other))[positions]
        weight, skipped, skipped_other = self.mix.weights[other], self._skipped[statement], self._skipped[other]

        def drawn_before(draws: IntArray) -> IntArray:
            cycles, nth = np.divmod(draws + skipped, len(positions))
            counts: IntArray = cycles * weight + before[nth] - skipped_other
            return counts

        return drawn_before


def mix_sequence(weights: Sequence[int], lane: int) -> MixSequence:
    """The order of one lane. Lanes begin at positions that are spread evenly over the cycle; as many lanes as there
    are positions begin at each position once."""
    mix = _mix(tuple(weights))
    return MixSequence(mix, lane * _stride(mix.length) % mix.length)


@functools.lru_cache(maxsize=16)
def _stride(length: int) -> int:
    """The number nearest to the golden section of `length` that has no factor in common with it."""
    golden = round(length * _GOLDEN)
    return next(
        stride
        for distance in range(length + 1)
        for stride in (golden + distance, golden - distance)
        if stride > 0 and math.gcd(stride, length) == 1
    )


@functools.lru_cache(maxsize=16)
def _mix(weights: tuple[int, ...]) -> MixCycle:
    return MixCycle(weights)


def _reduced(weights: Sequence[int]) -> tuple[int, ...]:
    if not weights or min(weights) < 0 or not any(weights):
        raise ValueError(f"a mix needs weights of 0 or more, at least one of them above 0; got {tuple(weights)}")
    common = math.gcd(*weights)
    reduced = tuple(weight // common for weight in weights)
    if sum(reduced) > CYCLE_MAX:
        raise ValueError(
            f"the weights add up to a cycle of {sum(reduced):,} statements, more than {CYCLE_MAX:,}; "
            "use smaller weights, or weights with a common factor"
        )
    return reduced


def _cycle(weights: tuple[int, ...]) -> array[int]:
    total = sum(weights)
    drawable = [statement for statement, weight in enumerate(weights) if weight]
    gathered = [0] * len(weights)
    cycle = array("l")
    for _ in range(total):
        best = drawable[0]
        for statement in drawable:
            gathered[statement] += weights[statement]
            if gathered[statement] > gathered[best]:
                best = statement
        gathered[best] -= total
        cycle.append(best)
    return cycle


AHEAD = 64  # draws that a client of a closed loop takes at once
Row = tuple[tuple[Value, ...], ...]  # the parameters of each query of a statement


@dataclass(frozen=True, slots=True)
class FollowedKeys:
    """A `latest` parameter with `follows`: where its key is in the row, and which keys it may read."""

    places: tuple[tuple[int, int], ...]  # (query, parameter)
    last: int  # of the range, whose keys exist before the run
    inserted: InsertedKeys

    def replaced(self, row: Row) -> Row:
        """The row with the newest key that exists. The key was drawn before its INSERT was sent, which may be still
        executing, failed, or skipped."""
        query, parameter = self.places[0]
        key = row[query][parameter]
        if not isinstance(key, int) or key <= self.last:
            return row
        found = self.inserted.newest(key)
        if found == key:
            return row
        values = [list(one) for one in row]
        for query, parameter in self.places:
            values[query][parameter] = self.last if found is None else max(found, self.last)
        return tuple(map(tuple, values))


class StatementStream:
    """The statements of a client, or of the clients that share a schedule, in order.

    With `latest.follows` (`follows` is true) the sender calls current() just before it sends a statement, and
    succeeded() after it.
    """

    def __init__(
        self, workload: Workload, place: ClientPosition, pools: Mapping[str, Pool], *, open_loop: bool = False
    ) -> None:
        source = DrawContext(
            seed=workload.seed, place=place, open_loop=open_loop, sharding=workload.sharding, pools=pools
        )
        weights = [statement.weight for statement in workload.statements]
        try:
            order = mix_sequence(weights, source.lane.number)
        except ValueError as error:
            raise ScenarioInvalid(f"workload: {error}") from error
        self._at, self._names = order.at, [statement.name for statement in workload.statements]
        self._inserted: dict[str, InsertedKeys] = {}  # by the name of the followed statement
        self._rows = [
            _StatementRows(statement, workload, replace(source, statement=number), order, self._inserted)
            for number, statement in enumerate(workload.statements)
        ]

    def ahead(self, k: int) -> list[tuple[int, Row]]:
        """Draw k and the next ones, AHEAD in total, or fewer if no values are left."""
        drawn = [self.draw(k)]
        with suppress(RunFailed):  # raised again by the first draw that has no values
            drawn += [self.draw(n) for n in range(k + 1, k + AHEAD)]
        return drawn

    @property
    def follows(self) -> bool:
        return bool(self._inserted)

    def current(self, number: int, row: Row) -> Row:
        """A drawn row with keys that exist now."""
        for followed in self._rows[number].followed:
            row = followed.replaced(row)
        return row

    def succeeded(self, number: int, row: Row) -> None:
        """Note that a statement succeeded: the key that it inserted can be read."""
        inserted = self._inserted.get(self._names[number])
        place = self._rows[number].sequence
        if inserted is not None and place is not None:
            query, parameter = place
            inserted.add(cast("int", row[query][parameter]))

    def draw(self, k: int) -> tuple[int, Row]:
        """Draw k, from 0: the number of the statement, and the parameters of each of its queries."""
        statement, n = self._at(k)
        return statement, self._rows[statement].take(n)


class _StatementRows(Chunked[Row]):
    """All parameters of one statement, row by row. `previous` uses a column a second time."""

    def __init__(
        self,
        statement: Statement,
        workload: Workload,
        source: DrawContext,
        order: MixSequence,
        inserted: dict[str, InsertedKeys],
    ) -> None:
        """`inserted` receives the keys of each statement that this one follows."""
        super().__init__()
        self._columns: list[Generator] = []
        self._queries: list[list[int]] = []  # the columns of each query
        parameters: list[int] = []  # the column of each parameter so far
        for query in statement.queries:
            for parameter in query.parameters:
                position = len(parameters)
                try:
                    if isinstance(parameter, Previous):
                        parameters.append(_earlier(parameters, parameter.index))
                        continue
                    own = replace(source, position=position)
                    if isinstance(parameter, Latest) and parameter.follows is not None:
                        followed = _followed(parameter.follows, workload, own, order)
                        inserted.setdefault(parameter.follows, InsertedKeys(followed.first, followed.step))
                        own = replace(own, followed=followed)
                    self._columns.append(make_generator(parameter, own))
                    parameters.append(len(self._columns) - 1)
                except ValueError as error:
                    raise ScenarioInvalid(f"statement {statement.name}, parameter {position}: {error}") from error
            self._queries.append(parameters[len(parameters) - len(query.parameters) :])
        self.chunk_items = min([CHUNK_VALUES, *(column.chunk_items for column in self._columns)])
        self.sequence = _sequence_place(statement.queries)
        self.followed = tuple(
            FollowedKeys(places=self._places(column), last=keys.last, inserted=inserted[keys.follows])
            for column, keys in enumerate(self._columns)
            if isinstance(keys, LatestKeys) and keys.follows is not None
        )

    def _places(self, column: int) -> tuple[tuple[int, int], ...]:
        return tuple((q, p) for q, query in enumerate(self._queries) for p, at in enumerate(query) if at == column)

    def make(self, chunk: int) -> Sequence[Row]:
        count = self.chunk_items
        columns = [column.items(chunk * count, count) for column in self._columns]
        queries = [
            zip(*(columns[at] for at in query), strict=False) if query else repeat((), count) for query in self._queries
        ]
        return list(zip(*queries, strict=False))


def _earlier(parameters: list[int], index: int) -> int:
    if not 0 <= index < len(parameters):
        raise ValueError(f"`previous` names parameter {index}, but only {len(parameters)} come before it")
    return parameters[index]


def _followed(follows: str, workload: Workload, source: DrawContext, order: MixSequence) -> FollowedSequence:
    """The sequence, in this lane, of the statement that is followed."""
    for number, statement in enumerate(workload.statements):
        if statement.name == follows and statement.weight:
            sequence = SequenceKeys(_sequence_of(statement.queries, follows), source)
            drawn_before = order.counter(number, source.statement)
            return FollowedSequence(first=sequence.first, step=sequence.step, drawn_before=drawn_before)
    raise ValueError(f"`latest` follows {follows!r}, which is no statement of the mix")


def _sequence_place(queries: Sequence[Query]) -> tuple[int, int] | None:
    """Query and parameter of the first sequence of a statement."""
    places = ((q, p) for q, query in enumerate(queries) for p in range(len(query.parameters)))
    return next(((q, p) for q, p in places if isinstance(queries[q].parameters[p], SequenceParameter)), None)


def _sequence_of(queries: Sequence[Query], name: str) -> SequenceParameter:
    parameters = (parameter for query in queries for parameter in query.parameters)
    sequence = next((one for one in parameters if isinstance(one, SequenceParameter)), None)
    if sequence is None:
        raise ValueError(f"`latest` follows {name!r}, which has no sequence")
    return sequence
