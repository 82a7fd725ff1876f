"""What it costs to make the parameters of a statement, compared with a bare draw in the same run.

    ./bin/bench workload                    every generator, the mix, whole draws, due times
    ./bin/bench workload --values 200000    longer

A value costs what its take() costs, chunk making included, in order, as a client draws. The baselines: numpy's own
uniform integers, handed out from a list, for what is random; a bare list look-up for what is not. The fastest of
several rounds counts, so that a noisy neighbour does not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial

import numpy as np

from loadgen.model.workload import (
    Choice,
    ClientPosition,
    Hotspot,
    KeyRange,
    Latest,
    Literal,
    Normal,
    Parameter,
    PoolOrder,
    PoolValue,
    Previous,
    Query,
    Sequence,
    Shard,
    Sharding,
    Statement,
    StatementKind,
    Text,
    Timestamp,
    Uniform,
    UniformFloat,
    Uuid,
    Workload,
    Zipfian,
)
from loadgen.scenario.model import ArrivalProcess
from loadgen.workload.arrivals import ArrivalSchedule, RateStage
from loadgen.workload.draw import StatementStream
from loadgen.workload.draw_context import CHUNK_VALUES, DrawContext
from loadgen.workload.generators import make_generator
from loadgen.workload.pools import Pool

ROUNDS = 5
KEYS = KeyRange(low=1, high=1_000_001)
PLACE = ClientPosition(worker=1, workers=2, client=3, clients=25, lanes=50)
POOLS = {"order_id": Pool("order_id", tuple(range(10_000)))}
SHARDING = Sharding(total_partitions=100, key_column="ID", keys=KEYS)
LOW, HIGH = datetime(2024, 1, 1), datetime(2025, 1, 1)  # noqa: DTZ001  naive is the definition

PARAMETERS: dict[str, Parameter] = {
    "literal": Literal(value=1),
    "shard": Shard(),
    "sequence": Sequence(),
    "pool, sequential": PoolValue(pool="order_id"),
    "pool, uniform": PoolValue(pool="order_id", order=PoolOrder.UNIFORM),
    "pool, zipfian": PoolValue(pool="order_id", order=PoolOrder.ZIPFIAN),
    "choice": Choice(values=("NEW", "PAID", "SHIPPED"), weights=(70, 20, 10)),
    "uniform": Uniform(keys=KEYS),
    "uniform, float": UniformFloat(low=0.0, high=100.0),
    "normal": Normal(mean=0.0, stddev=1.0),
    "normal, within 1 σ": Normal(mean=0.0, stddev=1.0, low=-1.0, high=1.0),
    "zipfian": Zipfian(keys=KEYS),
    "zipfian, scrambled": Zipfian(keys=KEYS, scrambled=True),
    "hotspot": Hotspot(keys=KEYS),
    "latest": Latest(keys=KEYS),
    "text of 40": Text(length=40),
    "text of 10 to 100": Text(length=10, length_max=100),
    "text of 1,000": Text(length=1_000),
    "uuid": Uuid(),
    "timestamp": Timestamp(low=LOW, high=HIGH),
}


class BareDraws:
    """The least that chunked random values can cost: numpy's integers, a list, an index."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)
        self._values: list[int] = []

    def take(self, n: int) -> int:
        at = n % CHUNK_VALUES
        if at == 0:
            self._values = self._random.integers(1, 1_000_001, CHUNK_VALUES).tolist()
        return self._values[at]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Cost of the workload's values, per generator.")
    parser.add_argument("--values", type=int, default=50_000, help="draws per round")
    count = parser.parse_args(arguments).values
    fixed = list(range(CHUNK_VALUES))
    bare_us = cost_us(lambda: BareDraws().take, count)
    look_up_us = cost_us(lambda: lambda n: fixed[n % CHUNK_VALUES], count)
    print(f"{'':24} {'µs a value':>10} {'× bare draw':>12} {'× look-up':>10}")
    for name, parameter in PARAMETERS.items():
        show(name, cost_us(partial(generator_take, parameter), count), bare_us, look_up_us)
    print()
    wholes = {
        "draw, closed loop": lambda: StatementStream(mix(), PLACE, POOLS).draw,
        "draw, open loop": lambda: StatementStream(mix(), PLACE, POOLS, open_loop=True).draw,
        "draw, latest of a mix": lambda: StatementStream(reads_and_inserts(), PLACE, POOLS).draw,
        "due time, uniform": lambda: schedule(ArrivalProcess.UNIFORM, count).due_s,
        "due time, poisson": lambda: schedule(ArrivalProcess.POISSON, count).due_s,
    }
    for name, make in wholes.items():
        show(name, cost_us(make, count), bare_us, look_up_us)
    print(f"\nbare draw {bare_us:.3f} µs, look-up {look_up_us:.3f} µs; wanted: at most 2 µs a value of ordinary length")
    return 0


def cost_us(make: Callable[[], Callable[[int], object]], count: int) -> float:
    """Microseconds of processor time per call, the best of several rounds; each begins with nothing made."""
    best_ns = sys.maxsize
    for _ in range(ROUNDS):
        take = make()
        begun_ns = time.thread_time_ns()
        for n in range(count):
            take(n)
        best_ns = min(best_ns, time.thread_time_ns() - begun_ns)
    return best_ns / count / 1_000


def show(name: str, us: float, bare_us: float, look_up_us: float) -> None:
    print(f"{name:24} {us:10.3f} {us / bare_us:12.1f} {us / look_up_us:10.1f}")


def generator_take(parameter: Parameter) -> Callable[[int], object]:
    return make_generator(parameter, DrawContext(seed=1, place=PLACE, sharding=SHARDING, pools=POOLS)).take


def schedule(arrival: ArrivalProcess, count: int) -> ArrivalSchedule:
    stages = [RateStage(duration_s=2 * count / 10_000, rate_per_second=10_000.0)]
    return ArrivalSchedule(stages, arrival=arrival, worker=0, workers=1, seed=1)


def mix() -> Workload:
    """Three statements, one a transaction; two parameters a draw, about."""
    statements = (
        statement("point_lookup", 80, (PARAMETERS["pool, zipfian"],)),
        statement("pay", 15, (PARAMETERS["choice"], PARAMETERS["pool, sequential"])),
        statement("checkout", 5, (PARAMETERS["sequence"], PARAMETERS["uniform"]), (Previous(index=0),)),
    )
    return Workload(statements=statements, seed=1)


def reads_and_inserts() -> Workload:
    """As in YCSB's workload D: reads of the latest keys, of which there are ever more."""
    statements = (
        statement("read", 95, (Latest(keys=KEYS, follows="insert"),)),
        statement("insert", 5, (Sequence(start=KEYS.high),)),
    )
    return Workload(statements=statements, seed=1)


def statement(name: str, weight: int, *queries: tuple[Parameter, ...]) -> Statement:
    return Statement(
        name=name,
        kind=StatementKind.READ,
        weight=weight,
        queries=tuple(Query(sql="", parameters=query) for query in queries),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
