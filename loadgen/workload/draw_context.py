"""What the values of a parameter depend on: the seed, the lane of the client, its shard, keys that were inserted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from loadgen.model.run import worker_share
from loadgen.model.workload import ClientPosition, KeyRange, Sharding
from loadgen.values import dataclass
from loadgen.workload.pools import Pool
from loadgen.workload.random_bits import VALUES, IntArray, RandomBits

# --- shares of workers: computed here by the orchestrator and the workers, so that they agree ------------------------


def shard_of(worker: int, total_partitions: int) -> int:
    """The partition that a worker is responsible for."""
    if total_partitions < 1:
        raise ValueError(f"there must be at least one partition, not {total_partitions}")
    return worker % total_partitions


def shard_range(keys: KeyRange, worker: int, workers: int) -> KeyRange:
    """A worker's part of the keys. The parts are disjoint and in order; the last worker has the remainder."""
    check_worker(worker, workers)
    per_worker = keys.size // workers
    low = keys.low + worker * per_worker
    return KeyRange(low=low, high=keys.high if worker == workers - 1 else low + per_worker)


@dataclass(frozen=True, slots=True)
class Lane:
    """One of `count` interleaved series of the same numbers: `number`, `number + count`, `number + 2 * count` …"""

    number: int
    count: int


def lane_of_client(place: ClientPosition) -> Lane:
    """Closed loop: each client of the run is a lane.

    Workers get clients in turn, as worker_share() splits them, so lanes are numbered without a gap. When each worker
    opens its share of a lower target, the open lanes are the first ones.
    """
    return Lane(place.client * place.workers + place.worker, place.lanes)


def lane_of_worker(place: ClientPosition) -> Lane:
    """Open loop: each worker is a lane, because its clients share one schedule."""
    return Lane(place.worker, place.workers)


def check_place(place: ClientPosition) -> None:
    """Require a client of a closed loop that the split gives its worker. Raises ValueError."""
    check_worker(place.worker, place.workers)
    own = worker_share(place.lanes, place.worker, place.workers)
    if place.clients != own:
        raise ValueError(
            f"worker {place.worker} of {place.workers} has {own} of {place.lanes} lanes, not {place.clients}"
        )
    if not 0 <= place.client < own:
        raise ValueError(f"there is no client {place.client} of {own}: clients are numbered from 0")


def check_worker(worker: int, workers: int) -> None:
    if not 0 <= worker < workers:
        raise ValueError(f"there is no worker {worker} of {workers}: workers are numbered from 0")


# --- the context of a draw -------------------------------------------------------------------------------------------

CHUNK_VALUES = 256  # a power of two


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedSequence:
    """The numbers that this lane draws from the sequence of another statement: first, first + step, …"""

    first: int
    step: int
    drawn_before: Callable[[IntArray], IntArray]  # how many of them, before the n-th draws of the follower


class InsertedKeys:
    """The numbers of a sequence whose statement has succeeded, one byte for each. Any thread."""

    def __init__(self, first: int, step: int) -> None:
        self._first, self._step = first, step
        self._inserted = bytearray()

    def add(self, key: int) -> None:
        at = (key - self._first) // self._step
        missing = at + 1 - len(self._inserted)
        if missing > 0:  # if two threads extend it, it is only longer than needed
            self._inserted.extend(bytes(missing + CHUNK_VALUES))
        self._inserted[at] = 1

    def newest(self, key: int) -> int | None:
        """The newest inserted number that is not newer than `key`, or None."""
        at = self._inserted.rfind(1, 0, (key - self._first) // self._step + 1)
        return None if at < 0 else self._first + at * self._step


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawContext:
    """Everything that the values of a parameter depend on."""

    seed: int
    statement: int = 0  # number in the workload
    position: int = 0  # number among the statement's parameters, counted over all its queries
    place: ClientPosition = field(default_factory=lambda: ClientPosition(worker=0, workers=1))
    open_loop: bool = False  # values belong to the worker's schedule, whichever client takes them
    sharding: Sharding | None = None
    pools: Mapping[str, Pool] = field(default_factory=dict)
    followed: FollowedSequence | None = None  # for Latest: the source of new keys

    def __post_init__(self) -> None:
        if self.open_loop:  # a worker may have no clients
            check_worker(self.place.worker, self.place.workers)
        else:
            check_place(self.place)

    @property
    def lane(self) -> Lane:
        return lane_of_worker(self.place) if self.open_loop else lane_of_client(self.place)

    def bits(self, chunk: int) -> RandomBits:
        """The random bits of one chunk; nothing else uses them."""
        client = 0 if self.open_loop else self.place.client + 1
        return RandomBits(self.seed, VALUES, self.statement, self.position, self.place.worker, client, chunk)
