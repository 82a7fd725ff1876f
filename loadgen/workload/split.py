"""One total over many workers. Orchestrator and workers compute shares here, so they agree."""

from __future__ import annotations

from loadgen.model.run import worker_share
from loadgen.model.workload import ClientPosition, KeyRange
from loadgen.values import dataclass


def shares(total: int, count: int) -> tuple[int, ...]:
    """All parts of `total`."""
    return tuple(worker_share(total, index, count) for index in range(count))


def shard_of(worker: int, total_partitions: int) -> int:
    """The partition that a worker is responsible for."""
    if total_partitions < 1:
        raise ValueError(f"there must be at least one partition, not {total_partitions}")
    return worker % total_partitions


def shard_range(keys: KeyRange, worker: int, workers: int) -> KeyRange:
    """A worker's part of the keys: disjoint, in order, covering; the remainder goes to the last worker."""
    check_worker(worker, workers)
    per_worker = keys.size // workers
    low = keys.low + worker * per_worker
    return KeyRange(low=low, high=keys.high if worker == workers - 1 else low + per_worker)


@dataclass(frozen=True, slots=True)
class Lane:
    """One of `count` walkers over the same numbers: it visits `number`, `number + count`, `number + 2 * count` …"""

    number: int
    count: int


def places(worker: int, workers: int, lanes: int) -> tuple[ClientPosition, ...]:
    """The clients of one worker of a closed loop; none when there are more workers than lanes."""
    clients = worker_share(lanes, worker, workers)
    return tuple(
        ClientPosition(worker=worker, workers=workers, client=client, clients=clients, lanes=lanes)
        for client in range(clients)
    )


def lane_of_client(place: ClientPosition) -> Lane:
    """Closed loop: each client of the run is a lane.

    Clients are dealt to the workers in turn, as share() splits them, so lanes are numbered without a gap; and when
    every worker opens its share of a lower target, those are the first lanes.
    """
    return Lane(place.client * place.workers + place.worker, place.lanes)


def lane_of_worker(place: ClientPosition) -> Lane:
    """Open loop: each worker is a lane, because its clients share one schedule."""
    return Lane(place.worker, place.workers)


def check_place(place: ClientPosition) -> None:
    """Of a closed loop: the client must be one that the split gives its worker."""
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
