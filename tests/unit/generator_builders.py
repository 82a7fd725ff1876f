"""Values drawn from one parameter."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from loadgen.model.run import worker_share
from loadgen.model.workload import ClientPosition, KeyRange, Parameter, Sharding
from loadgen.workload.draw_context import DrawContext
from loadgen.workload.generators import Generator, make_generator
from loadgen.workload.pools import Pool

KEYS = KeyRange(low=101, high=201)
LOW, HIGH = datetime(2024, 1, 1), datetime(2024, 1, 2)  # noqa: DTZ001  naive is the definition
POOLS = {"city": Pool("city", ("Graz", "Lyon", "Turku", "Zadar", "Brno"))}
SHARDING = Sharding(total_partitions=4, key_column="ID", keys=KeyRange(low=1, high=1_001))
DRAWS = 40_000


def places(worker: int, workers: int, lanes: int) -> tuple[ClientPosition, ...]:
    """The clients of one worker of a closed loop; none when there are more workers than lanes."""
    clients = worker_share(lanes, worker, workers)
    return tuple(
        ClientPosition(worker=worker, workers=workers, client=client, clients=clients, lanes=lanes)
        for client in range(clients)
    )


def made(
    parameter: Parameter, *, open_loop: bool = False, statement: int = 0, position: int = 0, **place: int
) -> Generator:
    where = {"worker": 0, "workers": 1, "clients": 1, **place}  # all workers have as many clients
    source = DrawContext(
        seed=1,
        statement=statement,
        position=position,
        place=ClientPosition(**where, lanes=where["workers"] * where["clients"]),
        open_loop=open_loop,
        sharding=SHARDING,
        pools=POOLS,
    )
    return make_generator(parameter, source)


def drawn(parameter: Parameter, count: int = DRAWS, **where: Any) -> list[Any]:
    generator = made(parameter, **where)
    return [generator.take(n) for n in range(count)]


def walks(parameter: Parameter, lanes: int, workers: int, draws: int, size: int = 1) -> list[list[Any]]:
    """What each client of a closed loop draws."""
    pools = {"numbers": Pool("numbers", tuple(range(size)))}
    own = [place for worker in range(workers) for place in places(worker, workers, lanes)]
    generators = [make_generator(parameter, DrawContext(seed=1, place=place, pools=pools)) for place in own]
    return [[generator.take(n) for n in range(draws)] for generator in generators]


def zipf_probabilities(items: int, theta: float) -> list[float]:
    """The published formula."""
    masses = [1.0 / (rank + 1) ** theta for rank in range(items)]
    return [mass / math.fsum(masses) for mass in masses]
