"""The next statement and its bound parameters: mix and generators together.

    closed loop   one Drawer per lane; draw(k) with the lane's own count k
    open loop     one Drawer per worker, shared by its clients; draw(i) with the index of the arrival

A number is never drawn twice, or a sequence would give a key twice. So k goes on from the warm-up into the measurement
and from stage to stage, and so does i: each Schedule begins where the one before it ends. The worker keeps each lane's
Drawer and k for as long as it lives. When a lane is closed and opened again (a ramp down and up, a connection
replaced), the new client takes both over and draws the next k. What was drawn and not sent is left out.

Every statement keeps its rows ready in chunks, so that a draw is two look-ups. draw() may be called by any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat

from loadgen.errors import RunFailed, ScenarioInvalid
from loadgen.model.workload import ClientPosition, Latest, Previous, Query, Statement, Workload
from loadgen.model.workload import Sequence as SequenceParameter
from loadgen.workload.generator import CHUNK_VALUES, Chunked, DrawContext, FollowedSequence, Generator, Value
from loadgen.workload.generators import make_generator
from loadgen.workload.keys import SequenceKeys
from loadgen.workload.mix import MixSequence, mix_sequence
from loadgen.workload.pools import Pool

AHEAD = 64  # draws that a client of a closed loop holds
Row = tuple[tuple[Value, ...], ...]  # the parameters of each query of a statement


class StatementStream:
    """What a client, or a schedule, sends in which order."""

    def __init__(
        self, workload: Workload, place: ClientPosition, pools: Mapping[str, Pool], *, open_loop: bool = False
    ) -> None:
        source = DrawContext(
            seed=workload.seed, place=place, open_loop=open_loop, sharding=workload.sharding, pools=pools
        )
        weights = [statement.weight for statement in workload.statements]
        try:
            walk = mix_sequence(weights, source.lane.number)
        except ValueError as error:
            raise ScenarioInvalid(f"workload: {error}") from error
        self._at = walk.at
        self._rows = [
            _StatementRows(statement, workload, replace(source, statement=number), walk)
            for number, statement in enumerate(workload.statements)
        ]

    def ahead(self, k: int) -> list[tuple[int, Row]]:
        """Draw k and the next ones, as many as a client wants to hold; fewer where no value is left for more."""
        drawn = [self.draw(k)]
        with suppress(RunFailed):  # raised when it is its turn
            drawn += [self.draw(n) for n in range(k + 1, k + AHEAD)]
        return drawn

    def draw(self, k: int) -> tuple[int, Row]:
        """Draw k, from 0: the number of its statement, and the parameters of each of that statement's queries."""
        statement, n = self._at(k)
        return statement, self._rows[statement].take(n)


class _StatementRows(Chunked[Row]):
    """All parameters of one statement, row by row. `previous` is a column used twice."""

    def __init__(self, statement: Statement, workload: Workload, source: DrawContext, walk: MixSequence) -> None:
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
                        own = replace(own, followed=_followed(parameter.follows, workload, own, walk))
                    self._columns.append(make_generator(parameter, own))
                    parameters.append(len(self._columns) - 1)
                except ValueError as error:
                    raise ScenarioInvalid(f"statement {statement.name}, parameter {position}: {error}") from error
            self._queries.append(parameters[len(parameters) - len(query.parameters) :])
        self.chunk_items = min([CHUNK_VALUES, *(column.chunk_items for column in self._columns)])

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


def _followed(follows: str, workload: Workload, source: DrawContext, walk: MixSequence) -> FollowedSequence:
    """The sequence of the statement that is followed, in this lane."""
    for number, statement in enumerate(workload.statements):
        if statement.name == follows and statement.weight:
            sequence = SequenceKeys(_sequence_of(statement.queries, follows), source)
            drawn_before = walk.counter(number, source.statement)
            return FollowedSequence(first=sequence.first, step=sequence.step, drawn_before=drawn_before)
    raise ValueError(f"`latest` follows {follows!r}, which is no statement of the mix")


def _sequence_of(queries: Sequence[Query], name: str) -> SequenceParameter:
    for query in queries:
        for parameter in query.parameters:
            if isinstance(parameter, SequenceParameter):
                return parameter
    raise ValueError(f"`latest` follows {name!r}, which has no sequence")
