"""Parameter generators as a scenario writes them: one key that names the generator, its settings below it.

    {uniform: {min: 1, max: 10k}}
    {choice: {NEW: 70, PAID: 20}}
    {pool: order_id, distribution: zipfian}

Defaults are those of the distributions in loadgen.model.workload.
"""

import math
import re
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from loadgen.model import workload as model
from loadgen.model.workload import PoolOrder, Scalar
from loadgen.scenario.key_reader import AppliesWhen, Section, key, name_in_union
from loadgen.scenario.value_types import (
    COUNT_PATTERN,
    INTEGER_MAX,
    FreeText,
    Integer,
    InvalidParts,
    InvalidValue,
    JsonSchema,
    Label,
    Number,
    ScalarValue,
    ValueType,
)
from loadgen.values import dataclass

CHOICES_MAX = 10_000
TEXT_LENGTH_MAX = 1_000_000
ALPHABET_MAX = 1_000

_ZIPFIAN, _HOTSPOT = model.Zipfian(keys=None), model.Hotspot(keys=None)
_LATEST, _SEQUENCE = model.Latest(keys=None), model.Sequence()
_TEXT, _POOL = model.Text(length=0), model.PoolValue(pool="")
_THETA_HELP = "Skew of the distribution; 0.99 as in YCSB."
_SHARDED_HELP = "Draw from this worker's part of sharding.key_range instead."

Theta = Annotated[float, Number(low=0, high=0.9999, above=True)]
Fraction = Annotated[float, Number(low=0, high=1, above=True)]
Bound = Annotated[int, Integer(low=-INTEGER_MAX)]


class IntegerOrNumber(ValueType):
    """A bound of a range: an integer stays an integer."""

    def parse(self, value: object) -> int | float:
        if isinstance(value, float) or (isinstance(value, str) and re.search(r"[.eE][0-9+-]*$", value)):
            return Number().parse(value)
        return Integer(low=-INTEGER_MAX).parse(value)

    def schema(self) -> JsonSchema:
        return {"anyOf": [{"type": "number"}, {"type": "string", "pattern": rf"^-?{COUNT_PATTERN}$|\$\{{"}]}


class UtcTimestamp(ValueType):
    """A date or a timestamp; UTC unless it has an offset."""

    def parse(self, value: object) -> datetime:
        how = 'write it in quotes, like "2026-01-31" or "2026-01-31T18:30:00"'
        try:
            timestamp = datetime.fromisoformat(value) if isinstance(value, str) else None
            if timestamp is not None and timestamp.tzinfo is not None:
                timestamp = timestamp.astimezone(UTC).replace(tzinfo=None)
        except (ValueError, OverflowError):
            timestamp = None
        if timestamp is None:
            raise InvalidValue("is not a date or timestamp", how)
        return timestamp


@dataclass(frozen=True, slots=True)
class ChoiceValues:
    values: tuple[Scalar, ...]
    weights: tuple[int, ...] | None


class ChoiceList(ValueType):
    """A list of values, or a mapping of texts to weights."""

    takes_variables: ClassVar[bool] = False

    def parse(self, value: object) -> ChoiceValues:
        how = "write [PAID, SHIPPED], or {PAID: 70, SHIPPED: 30} with weights"
        if isinstance(value, str) or not isinstance(value, (Mapping, Sequence)):
            raise InvalidValue("must be a list of values or a mapping of values to weights", how)
        if not value or len(value) > CHOICES_MAX:
            raise InvalidValue(f"must have 1 to {CHOICES_MAX:,} values")
        parts = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
        kind: ValueType = Integer(high=10**9) if isinstance(value, Mapping) else ScalarValue()
        found: list[Any] = []
        wrong: dict[str | int, InvalidValue] = {}
        for place, part in parts.items():
            try:
                found.append(kind.accept(part))
            except InvalidValue as error:
                wrong[place] = error
        if wrong:
            raise InvalidParts(wrong)
        if not isinstance(value, Mapping):
            return ChoiceValues(tuple(found), None)
        if sum(found) == 0:
            raise InvalidValue("has weights that are all 0", "give at least one a weight above 0")
        return ChoiceValues(tuple(map(str, value)), tuple(found))

    def schema(self) -> JsonSchema:
        values = {"type": ["string", "number", "boolean", "null"]}
        return {
            "anyOf": [
                {"type": "array", "items": values, "minItems": 1},
                {"type": "object", "additionalProperties": {"type": ["integer", "string"]}, "minProperties": 1},
            ]
        }


class NoSettings(ValueType):
    """The value of a generator without settings: `uuid: {}`, or `uuid:` alone."""

    takes_variables: ClassVar[bool] = False

    def parse(self, value: object) -> None:
        if value is not None and value != {}:
            raise InvalidValue("has no settings", "write {} behind it")

    def schema(self) -> JsonSchema:
        return {"type": "object", "additionalProperties": False}


class LiteralGenerator(Section):
    literal: Annotated[Scalar, ScalarValue()] = key("The same value for every execution.")


class ChoiceGenerator(Section):
    choice: Annotated[ChoiceValues, ChoiceList()] = key(
        "One of these values with equal probability, or a mapping of values to weights."
    )


class KeyRangeSection(Section):
    """A range of integers, or this worker's part of sharding.key_range."""

    min: Bound | None = key("The smallest value.", default=None)
    max: Bound | None = key("The largest value; it is included.", default=None)
    sharded: bool = key(_SHARDED_HELP, default=False)

    def keys(self) -> model.KeyRange | None:
        """The typed range; None with sharded."""
        if self.sharded or self.min is None or self.max is None:
            return None
        return model.KeyRange(low=self.min, high=self.max + 1)


class UniformGenerator(Section, below="uniform"):
    """Every value of a range with equal probability."""

    min: Annotated[int | float, IntegerOrNumber()] | None = key(
        "The smallest value; integers unless one of the two has a fraction.", default=None
    )
    max: Annotated[int | float, IntegerOrNumber()] | None = key("The largest value.", default=None)
    sharded: bool = key(_SHARDED_HELP, default=False)

    def parameter(self) -> model.Uniform | model.UniformFloat:
        """The typed form."""
        if isinstance(self.min, float) or isinstance(self.max, float):
            return model.UniformFloat(low=float(self.min or 0), high=float(self.max or 0))
        keys = None if self.sharded else model.KeyRange(low=self.min or 0, high=(self.max or 0) + 1)
        return model.Uniform(keys=keys, sharded=self.sharded)


class NormalGenerator(Section, below="normal"):
    """A normal distribution."""

    mean: Annotated[float, Number()] = key("Mean.")
    stddev: Annotated[float, Number(low=0, above=True)] = key("Standard deviation.")
    min: Annotated[float, Number()] | None = key("The smallest value; smaller values are drawn again.", default=None)
    max: Annotated[float, Number()] | None = key("The largest value; larger values are drawn again.", default=None)
    whole: bool = key("Round to integers.", default=False)

    def parameter(self) -> model.Normal:
        """The typed form."""
        high = self.max if self.max is None or not self.whole else float(math.floor(self.max) + 1)  # the last one too
        return model.Normal(mean=self.mean, stddev=self.stddev, low=self.min, high=high, whole=self.whole)

    def has_whole_number(self) -> bool:
        """Whether there is a whole number between min and max."""
        return self.min is None or self.max is None or math.ceil(self.min) <= math.floor(self.max)


class ZipfianGenerator(KeyRangeSection, below="zipfian"):
    """A few keys are drawn often, most keys rarely."""

    theta: Theta = key(_THETA_HELP, default=_ZIPFIAN.theta)
    scrambled: bool = key("Spread the popular keys over the range.", default=_ZIPFIAN.scrambled)


class HotspotGenerator(KeyRangeSection, below="hotspot"):
    """A fraction of the keys gets most of the draws."""

    hot_fraction: Fraction = key(
        "Fraction of the keys that is hot: the first keys of the range.", default=_HOTSPOT.hot_fraction
    )
    hot_share: Fraction = key("Fraction of the draws that goes to hot keys.", default=_HOTSPOT.hot_share)


class LatestGenerator(KeyRangeSection, below="latest"):
    """Zipfian from the newest key backwards."""

    theta: Theta = key(_THETA_HELP, default=_LATEST.theta)
    follows: Annotated[str, Label()] | None = key(
        "A statement with a sequence; the newest keys are those that it has successfully inserted (mode rate: in the"
        " same worker; otherwise: in the same client).",
        default=None,
    )


class SequenceGenerator(Section, below="sequence"):
    """Increasing integers, each drawn once."""

    start: Annotated[int, Integer(low=-INTEGER_MAX, nullable=True, null_value=_SEQUENCE.start)] = key(
        f"The first value; null: {_SEQUENCE.start}.", default=None
    )
    sharded: bool = key("Use this worker's part of sharding.key_range instead.", default=False)


class TextGenerator(Section, below="text"):
    """Random characters."""

    length: Annotated[int, Integer(high=TEXT_LENGTH_MAX)] = key(
        "Number of characters; with max_length the smallest number."
    )
    max_length: Annotated[int, Integer(high=TEXT_LENGTH_MAX)] | None = key(
        "The largest number of characters.", default=None
    )
    alphabet: Annotated[str, FreeText(length_max=ALPHABET_MAX)] = key(
        "The characters to draw from.", default=_TEXT.alphabet
    )


class UuidGenerator(Section):
    uuid: Annotated[None, NoSettings()] = key("A random UUID.")


class TimestampGenerator(Section, below="timestamp"):
    """Timestamps in UTC, all with equal probability."""

    min: Annotated[datetime, UtcTimestamp()] = key('The earliest, in quotes: "2026-01-01".')
    max: Annotated[datetime, UtcTimestamp()] = key("The end, which is not included.")


class PoolGenerator(Section):
    pool: Annotated[str, Label()] = key("The name of a value pool under `values`.")
    distribution: PoolOrder = key(
        "sequential: in order, each client with a different part of the values; uniform; zipfian.",
        default=_POOL.order.value,
    )
    theta: Annotated[float, Number(low=0, high=0.9999, above=True, nullable=True, null_value=_POOL.theta)] = key(
        f"With zipfian: the skew; null: {_POOL.theta}.",
        default=None,
        applies=AppliesWhen("distribution", (PoolOrder.ZIPFIAN,)),
    )


class PreviousGenerator(Section):
    previous: Annotated[int, Integer(high=100_000)] = key(
        "The value of an earlier parameter of the transaction, by its number from 0."
    )


class RememberedGenerator(Section):
    remembered: Annotated[str, Label()] = key("The name of a value that is drawn once per user session.")
    of: "Generator | None" = key("The generator of the value; given in one place for each name.", default=None)


class ShardGenerator(Section):
    shard: Annotated[None, NoSettings()] = key("This worker's shard: its number modulo sharding.total_partitions.")


Generator = (
    LiteralGenerator | ChoiceGenerator | UniformGenerator | NormalGenerator | ZipfianGenerator | HotspotGenerator
    | LatestGenerator | SequenceGenerator | TextGenerator | UuidGenerator | TimestampGenerator | PoolGenerator
    | PreviousGenerator | RememberedGenerator | ShardGenerator
)  # fmt: skip

GENERATORS: dict[str, type] = {name_in_union(one): one for one in typing.get_args(Generator)}


def name_of(generator: Generator) -> str:
    """The name of a generator in a file."""
    return name_in_union(type(generator))


def is_sharded(generator: Generator) -> bool:
    return isinstance(generator, ShardGenerator) or bool(getattr(generator, "sharded", False))


def parameter(generator: Generator, remembered: Mapping[str, model.Parameter]) -> model.Parameter:
    """The typed form of one generator; `remembered` contains the generators of remembered values, by name."""
    match g := generator:
        case LiteralGenerator():
            return model.Literal(value=g.literal)
        case ChoiceGenerator():
            return model.Choice(values=g.choice.values, weights=g.choice.weights)
        case UniformGenerator() | NormalGenerator():
            return g.parameter()
        case ZipfianGenerator():
            return model.Zipfian(keys=g.keys(), theta=g.theta, scrambled=g.scrambled, sharded=g.sharded)
        case HotspotGenerator():
            return model.Hotspot(keys=g.keys(), hot_fraction=g.hot_fraction, hot_share=g.hot_share, sharded=g.sharded)
        case LatestGenerator():
            return model.Latest(keys=g.keys(), theta=g.theta, follows=g.follows, sharded=g.sharded)
        case SequenceGenerator():
            return model.Sequence(start=g.start, sharded=g.sharded)
        case TextGenerator():
            return model.Text(length=g.length, length_max=g.max_length, alphabet=g.alphabet)
        case TimestampGenerator():
            return model.Timestamp(low=g.min, high=g.max)
        case PoolGenerator():
            return model.PoolValue(pool=g.pool, order=g.distribution, theta=g.theta)
        case PreviousGenerator():
            return model.Previous(index=g.previous)
        case RememberedGenerator(remembered=name):
            return model.Remembered(name=name, of=remembered[name])
        case ShardGenerator():
            return model.Shard()
        case UuidGenerator():
            return model.Uuid()
