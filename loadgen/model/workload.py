"""What a scenario's workload is, once read and checked: statements, their parameters, pools, sharding.

The scenario package makes these values, the frozen configuration stores them, the workload package draws from them.
Ranges are half-open inside (`low` included, `high` not), although a scenario file writes the last value too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

CYCLE_MAX = 1_000_000  # statements of a mix until it repeats
ARRIVALS_MAX = 1_000_000_000  # of one open loop: a day at 10,000 a second
NORMAL_KEPT_MIN = 0.01  # of a normal's draws; with less between the bounds, drawing again would take too long

Scalar = str | int | float | bool | None


class StatementKind(StrEnum):
    """Whether a statement counts as a read or as a write."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """Whole numbers from `low` up to, not including, `high`."""

    low: int
    high: int

    @property
    def size(self) -> int:
        return self.high - self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    value: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the values; with weights, in their proportion."""

    values: tuple[Scalar, ...]
    weights: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Whole numbers of a range, all alike."""

    keys: KeyRange | None  # None with sharded: this worker's part of the sharding's key_range
    sharded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformFloat:
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    mean: float
    stddev: float
    low: float | None = None  # values outside are drawn again
    high: float | None = None
    whole: bool = False  # rounded to whole numbers, before they are held against the bounds

    @property
    def kept_fraction(self) -> float:
        """How many of the draws lie from `low` up to `high`."""
        up_to_low = 0.0 if self.low is None else self._fraction_below(self.low)
        up_to_high = 1.0 if self.high is None else self._fraction_below(self.high)
        return up_to_high - up_to_low

    def _fraction_below(self, bound: float) -> float:
        if self.mean + self.stddev == self.mean:  # always the mean
            return float((round(self.mean) if self.whole else self.mean) < bound)
        if self.whole:
            bound = math.ceil(bound) - 0.5  # from there on draws are rounded to the bound or above it
        return (1.0 + math.erf((bound - self.mean) / (self.stddev * math.sqrt(2.0)))) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Zipfian:
    """As YCSB defines it: rank 0 is the most frequent; scrambled spreads the popular keys over the range."""

    keys: KeyRange | None
    theta: float = 0.99
    scrambled: bool = False
    sharded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hotspot:
    """A fraction of the keys (the first ones) gets a share of the draws."""

    keys: KeyRange | None
    hot_fraction: float = 0.2
    hot_share: float = 0.8
    sharded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """As YCSB defines it: zipfian over the keys, the newest first. With `follows` (the name of a statement with a
    sequence) the keys that this client has drawn from it come before the last of `keys`."""

    keys: KeyRange | None
    theta: float = 0.99
    follows: str | None = None
    sharded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Increasing whole numbers, disjoint over all workers and clients; their union has no gap."""

    start: int = 1
    sharded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    length: int
    length_max: int | None = None  # None: always `length`
    alphabet: str = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uuid:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timestamp:
    """Naive UTC moments from `low` up to `high`."""

    low: datetime
    high: datetime


class PoolOrder(StrEnum):
    """How values are taken from a pool."""

    SEQUENTIAL = "sequential"  # each client walks its own stride
    UNIFORM = "uniform"
    ZIPFIAN = "zipfian"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolValue:
    pool: str
    order: PoolOrder = PoolOrder.SEQUENTIAL
    theta: float = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """The parameter with this number (from 0) of the transaction so far, counted over all its statements."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A value that a user session draws once, from `of`, and keeps; the same one wherever its name stands."""

    name: str
    of: Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """This worker's shard: group_id % total_partitions."""


Parameter = (
    Literal | Choice | Uniform | UniformFloat | Normal | Zipfian | Hotspot | Latest | Sequence | Text | Uuid | Timestamp
    | PoolValue | Previous | Remembered | Shard
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One SQL text with its parameters."""

    sql: str
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One entry of the mix. Several queries are one transaction and one sample."""

    name: str
    kind: StatementKind
    weight: int
    queries: tuple[Query, ...]
    transaction: bool = False
    expected_rows: int | None = None
    session: bool = False  # executed as one of the logical users


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    total_partitions: int
    key_column: str
    keys: KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    statements: tuple[Statement, ...]
    seed: int
    think_time_s: float = 0.0
    sharding: Sharding | None = None

    def heaviest(self, limit: int) -> list[str]:
        """Names of the statements with the highest weights, at most `limit`, in the order of the scenario."""
        ranked = sorted(self.statements, key=lambda statement: -statement.weight)[:limit]
        return [statement.name for statement in self.statements if statement in ranked]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPosition:
    """Which worker of how many, and which client in it: everything that is drawn depends on it.

    Both counts are ceilings of the whole run, not what is open at the moment, so that strides never change. A worker
    whose part of the lanes is 0 has no clients, and so no Place in a closed loop; see loadgen.workload.split. In an
    open loop `worker` and `workers` say everything.
    """

    worker: int
    workers: int
    client: int = 0
    clients: int = 1  # of this worker: its share() of the lanes
    lanes: int = 1  # all clients of the run
