"""The workload of a scenario, read and checked: statements, their parameters, pools, sharding.

The scenario package makes these values, the frozen configuration stores them, the workload package draws from them.
Ranges are half-open inside (`low` included, `high` not), although a scenario file writes the last value too.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from enum import StrEnum

from loadgen.identifiers import canonical
from loadgen.values import dataclass

CYCLE_MAX = 1_000_000  # statements after which a mix repeats
ARRIVALS_MAX = 1_000_000_000  # of one open loop: a day at 10,000 per second
NORMAL_KEPT_MIN = 0.01  # of the draws must lie between the bounds, because others are repeated

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
    """Whole numbers of a range, with equal probability."""

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
    low: float | None = None  # values out of bounds are drawn again
    high: float | None = None
    whole: bool = False  # rounded to whole numbers before the comparison with the bounds

    @property
    def kept_fraction(self) -> float:
        """The share of draws between `low` and `high`."""
        up_to_low = 0.0 if self.low is None else self._fraction_below(self.low)
        up_to_high = 1.0 if self.high is None else self._fraction_below(self.high)
        return up_to_high - up_to_low

    def _fraction_below(self, bound: float) -> float:
        if self.mean + self.stddev == self.mean:  # every draw is the mean
            return float((round(self.mean) if self.whole else self.mean) < bound)
        if self.whole:
            bound = math.ceil(bound) - 0.5  # from here on, draws are rounded to the bound or more
        return (1.0 + math.erf((bound - self.mean) / (self.stddev * math.sqrt(2.0)))) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Zipfian:
    """YCSB's zipfian distribution: rank 0 is the most frequent; scrambled spreads the popular keys over the range."""

    keys: KeyRange | None
    theta: float = 0.99
    scrambled: bool = False
    sharded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hotspot:
    """A fraction of the keys, the first ones, receives a share of the draws."""

    keys: KeyRange | None
    hot_fraction: float = 0.2
    hot_share: float = 0.8
    sharded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """YCSB's latest distribution: zipfian over the keys, the newest first. With `follows` (the name of a statement with
    a sequence) the keys that it has inserted in this lane come before the last of `keys`."""

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
    """Naive UTC times from `low` up to `high`."""

    low: datetime
    high: datetime


class PoolOrder(StrEnum):
    """How values are taken from a pool."""

    SEQUENTIAL = "sequential"  # each client has a separate stride
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
    """A value that a user session draws once, from `of`. All parameters with this name get the same value."""

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
    """The position of a client: all draws depend on it.

    Both counts are the maxima of the whole run, so strides never change when clients start or end. A worker without
    lanes has no clients, and so no position in a closed loop; see loadgen.workload.draw_context. In an open loop only
    `worker` and `workers` matter.
    """

    worker: int
    workers: int
    client: int = 0
    clients: int = 1  # of this worker: its share() of the lanes
    lanes: int = 1  # all clients of the run


# Facts about an SQL text without a database: first words, binds, number of statements.
#
# Strings ('it''s', 'it\'s', $$…$$), quoted names and comments (--, //, /* */) are skipped as Snowflake skips them.

LENGTH_MAX = 100_000  # characters of one statement

WORKLOAD_VERBS = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE", "CALL")
READING_VERBS = ("SELECT", "WITH")

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    | (?P<text>'(?:[^'\\]|''|\\.)*' | "(?:[^"]|"")*" | \$\$(?:[^$]|\$(?!\$))*\$\$)
    | (?P<open>' | " | \$\$ | /\*)
    | (?P<bind>\?)
    | (?P<end>;)
    | (?P<word>[A-Za-z_][\w$]*)
    | (?P<other>\$?[0-9][\w.]* | .)
    """,
    re.VERBOSE | re.DOTALL,
)
_UNCLOSED = {"'": "a text in single quotes", '"': "a name in double quotes", "$$": "a $$ text", "/*": "a comment"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlShape:
    """Facts about an SQL text."""

    words: tuple[str, ...]  # the first two words, upper-cased
    binds: int
    statements: int
    unclosed: str | None = None  # a quote or comment that is never closed

    @property
    def verb(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def reads(self) -> bool:
        return self.verb in READING_VERBS


def shape_of(sql: str) -> SqlShape:
    """Scan an SQL text."""
    words: list[str] = []
    binds, statements, in_statement = 0, 0, False
    only_brackets = True  # so far: (SELECT …) UNION … begins with SELECT
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup
        if kind == "space":
            continue
        if kind == "open":
            return SqlShape(
                words=tuple(words), binds=binds, statements=max(statements, 1), unclosed=_UNCLOSED[match[0]]
            )
        if kind == "end":
            in_statement = False
            continue
        if not in_statement:
            in_statement = True
            statements += 1
        binds += kind == "bind"
        if statements == 1 and len(words) < 2 and (words or only_brackets):
            if kind == "word":
                words.append(match[0].upper())
            elif match[0] != "(":
                only_brackets = False
    return SqlShape(words=tuple(words), binds=binds, statements=statements)


def databases_of(sql: str) -> tuple[str, ...]:
    """The first parts of names with three parts, as in the catalogue. Some may be columns."""
    tokens = [match for match in _TOKEN.finditer(sql) if match.lastgroup != "space"]
    parts = ["." if one[0] == "." else canonical(one[0]) if _is_name(one) else "" for one in tokens]
    found = [
        parts[at]
        for at in range(len(parts) - 4)
        if parts[at + 1] == parts[at + 3] == "."
        and all(part not in ("", ".") for part in parts[at : at + 5 : 2])
        and (at == 0 or tokens[at - 1][0] not in (".", ":"))  # else it is longer, or a path in a VARIANT
    ]
    return tuple(dict.fromkeys(found))


def _is_name(token: re.Match[str]) -> bool:
    return token.lastgroup == "word" or token[0].startswith('"')


def workload_refusal(sql: SqlShape) -> tuple[str, str] | None:
    """Why a text cannot be a statement of a workload, with a remedy; None: it can."""
    wrong = malformed_reason(sql) or _changes_session(sql)
    if wrong is not None:
        return wrong
    if sql.verb in WORKLOAD_VERBS:
        return None
    allowed = ", ".join(WORKLOAD_VERBS)
    if sql.verb in _DEFINING:
        return f"{sql.verb} is not a statement of a workload", "put it under prepare.statements"
    return f"a statement of a workload begins with one of {allowed}", "put everything else under prepare.statements"


def preparation_refusal(sql: SqlShape) -> tuple[str, str] | None:
    """Why a text cannot be one of prepare.statements, which may create and change tables; None: it can."""
    wrong = malformed_reason(sql) or _changes_session(sql)
    if wrong is not None:
        return wrong
    if sql.binds:
        return "a statement of prepare cannot have parameters; it contains a ?", "write the value into the text"
    return None


def malformed_reason(sql: SqlShape) -> tuple[str, str] | None:
    if sql.unclosed:
        return f"{sql.unclosed} is not closed", "close it"
    if sql.statements == 0:
        return "contains no statement", "write one SQL statement"
    if sql.statements > 1:
        return f"contains {sql.statements} statements", "write one statement per text; transaction: takes several"
    return None


_DEFINING = {"CREATE", "DROP", "ALTER", "TRUNCATE", "UNDROP", "GRANT", "REVOKE", "COMMENT", "COPY", "ANALYZE"}
_TRANSACTION = ("begins or ends a transaction", "list the statements under transaction: instead of sql:")
_FILES = ("moves files", "stage files before the run; a workload and its preparation send SQL only")
_VARIABLES = ("changes the session", "write the value into the statement, or give it as a parameter")
_REFUSED: dict[str, tuple[str, str]] = {
    "USE": ("changes the session", "set target.warehouse, target.database and target.schema"),
    "SET": _VARIABLES,
    "UNSET": _VARIABLES,
    **dict.fromkeys(("BEGIN", "START", "COMMIT", "ROLLBACK", "DECLARE"), _TRANSACTION),
    **dict.fromkeys(("PUT", "GET", "LIST", "LS", "REMOVE", "RM"), _FILES),
}


def _changes_session(sql: SqlShape) -> tuple[str, str] | None:
    if sql.words[:2] == ("ALTER", "SESSION"):
        return "ALTER SESSION changes the session", "put session parameters under target.session"
    if sql.verb in _REFUSED:
        what, hint = _REFUSED[sql.verb]
        return f"{sql.verb} {what}", hint
    return None
