"""The n-th value of a parameter, for each kind of parameter.

A generator makes its values in chunks with numpy and hands them out as plain Python values, which is what the driver
can bind. A chunk depends on its number and on the generator's `Source` only, so any value can be had at any time.

take(), items(): any thread. A chunk is made under the generator's own lock, which takes well below a millisecond unless
texts are very long.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import RunFailed
from loadgen.model.workload import ClientPosition, Sharding
from loadgen.values import dataclass
from loadgen.workload.pools import Pool
from loadgen.workload.random_bits import VALUES, RandomBits
from loadgen.workload.split import Lane, check_place, check_worker, lane_of_client, lane_of_worker

CHUNK_VALUES = 256  # a power of two

Value = str | int | float | bool | bytes | Decimal | datetime | date | time | None
Item = TypeVar("Item")
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedSequence:
    """The sequence of another statement, as far as this lane has drawn from it: first, first + step, …"""

    first: int
    step: int
    drawn_before: Callable[[IntArray], IntArray]  # how many of its numbers, before the n-th draws of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawContext:
    """All that the values of one parameter depend on."""

    seed: int
    statement: int = 0  # number in the workload
    position: int = 0  # number among the statement's parameters, counted over all its queries
    place: ClientPosition = field(default_factory=lambda: ClientPosition(worker=0, workers=1))
    open_loop: bool = False  # values belong to the worker's schedule, whichever client takes them
    sharding: Sharding | None = None
    pools: Mapping[str, Pool] = field(default_factory=dict)
    followed: FollowedSequence | None = None  # for Latest: where new keys come from

    def __post_init__(self) -> None:
        if self.open_loop:  # also for a worker that has no clients
            check_worker(self.place.worker, self.place.workers)
        else:
            check_place(self.place)

    @property
    def lane(self) -> Lane:
        return lane_of_worker(self.place) if self.open_loop else lane_of_client(self.place)

    def bits(self, chunk: int) -> RandomBits:
        """The random bits of one chunk, shared with nothing else."""
        client = 0 if self.open_loop else self.place.client + 1
        return RandomBits(self.seed, VALUES, self.statement, self.position, self.place.worker, client, chunk)


class Chunked(ABC, Generic[Item]):
    """Endless items with numbers, made in chunks of a size that is a power of two."""

    chunk_items = CHUNK_VALUES

    def __init__(self) -> None:
        self._making = threading.Lock()  # guards the making of _chunks, which is replaced as a whole
        self._chunks: dict[int, Sequence[Item]] = {}

    @abstractmethod
    def make(self, chunk: int) -> Sequence[Item]:
        """The items of a chunk: `chunk_items` of them from n = chunk * chunk_items on, or as many as there are."""

    def take(self, n: int) -> Item:
        """The n-th item, from 0."""
        chunk, at = divmod(n, self.chunk_items)
        items = self._chunks.get(chunk)
        try:
            return (self._made(chunk) if items is None else items)[at]
        except IndexError:
            raise _used_up() from None

    def items(self, first: int, count: int) -> Sequence[Item]:
        """The items from `first` on; they must lie in one chunk."""
        chunk, at = divmod(first, self.chunk_items)
        if count == self.chunk_items and at == 0:
            return self.make(chunk)
        if at + count > self.chunk_items:
            raise ValueError(f"{count} items from {first} on do not lie in one chunk of {self.chunk_items}")
        items = self._chunks.get(chunk)
        return (self._made(chunk) if items is None else items)[at : at + count]

    def _made(self, chunk: int) -> Sequence[Item]:
        """The chunk, kept together with the last one: in an open loop some clients still draw from that."""
        with self._making:
            items = self._chunks.get(chunk)
            if items is None:
                items = self.make(chunk)
                last = list(self._chunks.items())[-1:]
                self._chunks = dict([*last, (chunk, items)])
            return items


class Generator(Chunked[Value]):
    """The values of one parameter in one lane."""


class Constant(Generator):
    """Always the same value."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self._values = (value,) * CHUNK_VALUES

    def make(self, chunk: int) -> Sequence[Value]:
        return self._values


def plain(numbers: NDArray[Any]) -> list[Value]:
    """As Python's own values: the driver cannot bind numpy's."""
    values: list[Value] = numbers.tolist()
    return values


def _used_up() -> RunFailed:
    """No value is left: only a sharded sequence can end."""
    return RunFailed(
        "a sharded sequence has given all keys of its worker",
        remedy="Widen key_range under sharding, or shorten the run; no key was given twice.",
    )
