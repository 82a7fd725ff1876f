"""One total over many workers, and who gets what. Both sides, whoever commands and whoever obeys, ask here."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from loadgen.model.split import share
from loadgen.model.workload import KeyRange, Place


def shares(total: int, count: int) -> tuple[int, ...]:
    """All parts of `total`."""
    return tuple(share(total, index, count) for index in range(count))


def rate_share(rate_per_second: float, index: int, count: int) -> Fraction:
    """Part `index` of a rate: the same for all, and exact, so the parts add up to the rate as it was given."""
    _check(index, count)
    return Fraction(rate_per_second) / count


def shard_of(worker: int, total_partitions: int) -> int:
    """The partition that a worker is responsible for."""
    if total_partitions < 1:
        raise ValueError(f"there must be at least one partition, not {total_partitions}")
    return worker % total_partitions


def shard_range(keys: KeyRange, worker: int, workers: int) -> KeyRange:
    """A worker's part of the keys: disjoint, in order, covering; the remainder goes to the last worker."""
    _check(worker, workers)
    per_worker = keys.size // workers
    low = keys.low + worker * per_worker
    return KeyRange(low=low, high=keys.high if worker == workers - 1 else low + per_worker)


@dataclass(frozen=True, slots=True)
class Lane:
    """One of `count` walkers over the same numbers: it visits `number`, `number + count`, `number + 2 * count` …"""

    number: int
    count: int


def lane_of_client(place: Place) -> Lane:
    """Closed loop: each client of the run is a lane. Every worker must name the same number of clients."""
    return Lane(place.client * place.workers + place.worker, place.workers * place.clients)


def lane_of_worker(place: Place) -> Lane:
    """Open loop: each worker is a lane, because its clients share one schedule."""
    return Lane(place.worker, place.workers)


def check_place(place: Place) -> None:
    _check(place.worker, place.workers)
    _check(place.client, place.clients)


def _check(index: int, count: int) -> None:
    if not 0 <= index < count:
        raise ValueError(f"there is no part {index} of {count}: parts are numbered from 0")
