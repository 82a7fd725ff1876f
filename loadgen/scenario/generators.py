"""Parameter generators as a scenario writes them: one key that names the generator, its settings below it.

{literal: 5}                                    always this value; texts, numbers, true, false, null
{choice: [PAID, SHIPPED]}                       one of them, all alike
{choice: {NEW: 70, PAID: 20}}                   in proportion to the weights
{uniform: {min: 1, max: 10k}}                   whole numbers, both ends included; with a fraction, any number between
{normal: {mean: 50, stddev: 10, min: 0, max: 100, whole: true}}
{zipfian: {min: 1, max: 100k, theta: 0.99, scrambled: true}}
{hotspot: {min: 1, max: 100k, hot_fraction: 0.2, hot_share: 0.8}}
{latest: {min: 1, max: 100k, theta: 0.99, follows: insert}}
{sequence: {start: 1000001}}                    increasing, never the same twice over all workers and clients
{text: {length: 40, max_length: 80, alphabet: abc}}
{uuid: {}}   {shard: {}}
{timestamp: {min: "2025-01-01", max: "2026-01-01"}}
{pool: order_id, distribution: zipfian, theta: 0.99}
{previous: 0}                                   parameter 0 of the transaction so far
{remembered: user, of: {uniform: {min: 1, max: 10k}}}    drawn once for each session
{remembered: user}                              the same value again, in any statement of the session

uniform, zipfian, hotspot, latest and sequence take `sharded: true` instead of a range.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

from loadgen.model.workload import Normal, PoolOrder
from loadgen.scenario.document import Scalar
from loadgen.scenario.keys import ScenarioSection, key
from loadgen.scenario.types import (
    Boolean,
    FreeText,
    Integer,
    IntegerOrNumber,
    InvalidValue,
    JsonSchema,
    Label,
    Number,
    OneOf,
    ScalarValue,
    UtcTimestamp,
    ValueType,
)

CHOICES_MAX = 10_000
TEXT_LENGTH_MAX = 1_000_000
ALPHABET_MAX = 1_000

Theta = Annotated[float, Number(low=0, high=0.9999, above=True)]
Fraction = Annotated[float, Number(low=0, high=1, above=True)]
Bound = Annotated[int | None, Integer(low=-(10**18), nullable=True)]
Sharded = Annotated[bool, Boolean()]


class GeneratorSettings(ScenarioSection):
    """What stands below the generator's name."""


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
        for place, part in parts.items():
            try:
                found.append(kind.accept(part))
            except InvalidValue as wrong:
                raise InvalidValue(wrong.what, wrong.hint, at=(place,)) from None
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


class LiteralGenerator(ScenarioSection):
    literal: Annotated[Scalar, ScalarValue()] = key(description="Always this value.")


class ChoiceGenerator(ScenarioSection):
    choice: Annotated[ChoiceValues, ChoiceList()] = key(description="One of these values, or values with weights.")


class KeyRangeSettings(GeneratorSettings):
    """A range of whole numbers, or this worker's part of the sharding's."""

    min: Bound = key(default=None, description="The smallest value.")
    max: Bound = key(default=None, description="The largest value; it is included.")
    sharded: Sharded = key(default=False, description="Draw from this worker's part of sharding.key_range instead.")


class UniformSettings(GeneratorSettings):
    min: Annotated[int | float | None, IntegerOrNumber(nullable=True)] = key(
        default=None, description="The smallest value; whole numbers unless one of the two has a fraction."
    )
    max: Annotated[int | float | None, IntegerOrNumber(nullable=True)] = key(default=None, description="The largest.")
    sharded: Sharded = key(default=False, description="Draw from this worker's part of sharding.key_range instead.")


class UniformGenerator(ScenarioSection):
    uniform: UniformSettings = key(description="Every value of a range alike.")


class NormalSettings(GeneratorSettings):
    mean: Annotated[float, Number()]
    stddev: Annotated[float, Number(low=0, above=True)]
    min: Annotated[float | None, Number(nullable=True)] = key(default=None, description="Smaller ones: drawn again.")
    max: Annotated[float | None, Number(nullable=True)] = key(default=None, description="Larger ones: drawn again.")
    whole: Annotated[bool, Boolean()] = key(default=False, description="Round to whole numbers.")

    def parameter(self) -> Normal:
        """The typed form."""
        high = self.max if self.max is None or not self.whole else float(math.floor(self.max) + 1)  # the last one too
        return Normal(mean=self.mean, stddev=self.stddev, low=self.min, high=high, whole=self.whole)

    def has_whole_number(self) -> bool:
        """Is there one between min and max?"""
        return self.min is None or self.max is None or math.ceil(self.min) <= math.floor(self.max)


class NormalGenerator(ScenarioSection):
    normal: NormalSettings = key(description="A bell curve.")


class ZipfianSettings(KeyRangeSettings):
    theta: Theta = key(default=0.99, description="How uneven: 0.99 as in YCSB.")
    scrambled: Annotated[bool, Boolean()] = key(default=False, description="Spread the popular keys over the range.")


class ZipfianGenerator(ScenarioSection):
    zipfian: ZipfianSettings = key(description="Few keys often, many rarely.")


class HotspotSettings(KeyRangeSettings):
    hot_fraction: Fraction = key(default=0.2, description="This part of the keys, the first ones …")
    hot_share: Fraction = key(default=0.8, description="… gets this part of the draws.")


class HotspotGenerator(ScenarioSection):
    hotspot: HotspotSettings = key(description="A part of the keys gets most of the draws.")


class LatestSettings(KeyRangeSettings):
    theta: Theta = key(default=0.99, description="How uneven: 0.99 as in YCSB.")
    follows: Annotated[str | None, Label(nullable=True)] = key(
        default=None, description="A statement with a sequence: its keys, of the same client, are the newest."
    )


class LatestGenerator(ScenarioSection):
    latest: LatestSettings = key(description="Zipfian from the newest key backwards.")


class SequenceSettings(GeneratorSettings):
    start: Bound = key(default=None, description="The first value; 1 unless told.")
    sharded: Sharded = key(default=False, description="Use this worker's part of sharding.key_range instead.")


class SequenceGenerator(ScenarioSection):
    sequence: SequenceSettings = key(description="Increasing, never the same twice.")


class TextSettings(GeneratorSettings):
    length: Annotated[int, Integer(high=TEXT_LENGTH_MAX)] = key(description="Characters; the fewest with max_length.")
    max_length: Annotated[int | None, Integer(high=TEXT_LENGTH_MAX, nullable=True)] = key(
        default=None, description="The most characters."
    )
    alphabet: Annotated[str, FreeText(length_max=ALPHABET_MAX)] = "abcdefghijklmnopqrstuvwxyz"


class TextGenerator(ScenarioSection):
    text: TextSettings = key(description="Random characters.")


class GeneratorWithoutSettings(ScenarioSection):
    """A generator without settings: `uuid: {}`, or `uuid:` with nothing behind it."""

    @classmethod
    def accept(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {key: {} if value is None else value for key, value in data.items()}


class UuidGenerator(GeneratorWithoutSettings):
    uuid: GeneratorSettings = key(description="A random UUID.")


class TimestampSettings(GeneratorSettings):
    min: Annotated[datetime, UtcTimestamp()] = key(description='The earliest, in quotes: "2026-01-01".')
    max: Annotated[datetime, UtcTimestamp()] = key(description="The end; all moments are before it.")


class TimestampGenerator(ScenarioSection):
    timestamp: TimestampSettings = key(description="Moments in UTC, all alike.")


class PoolGenerator(ScenarioSection):
    pool: Annotated[str, Label()] = key(description="A name under values.")
    distribution: Annotated[PoolOrder, OneOf(words=PoolOrder)] = key(
        default="sequential", description="In order, each client its own stride; or uniform; or zipfian."
    )
    theta: Annotated[float | None, Number(low=0, high=0.9999, above=True, nullable=True)] = key(
        default=None, description="With zipfian: how uneven; 0.99 unless told."
    )


class PreviousGenerator(ScenarioSection):
    previous: Annotated[int, Integer(high=100_000)] = key(description="A parameter of the transaction so far, from 0.")


class RememberedGenerator(ScenarioSection):
    remembered: Annotated[str, Label()] = key(description="The name of a value that a session keeps.")
    of: "Generator | None" = key(default=None, description="Where it is drawn from; said once for each name.")


class ShardGenerator(GeneratorWithoutSettings):
    shard: GeneratorSettings = key(description="This worker's shard: its number modulo sharding.total_partitions.")


GENERATORS: dict[str, type[ScenarioSection]] = {
    "literal": LiteralGenerator,
    "choice": ChoiceGenerator,
    "uniform": UniformGenerator,
    "normal": NormalGenerator,
    "zipfian": ZipfianGenerator,
    "hotspot": HotspotGenerator,
    "latest": LatestGenerator,
    "sequence": SequenceGenerator,
    "text": TextGenerator,
    "uuid": UuidGenerator,
    "timestamp": TimestampGenerator,
    "pool": PoolGenerator,
    "previous": PreviousGenerator,
    "remembered": RememberedGenerator,
    "shard": ShardGenerator,
}


_NAMES = {section: name for name, section in GENERATORS.items()}


def name_of(generator: ScenarioSection) -> str:
    """What a generator is called in a file."""
    return _NAMES[type(generator)]


Generator = (
    LiteralGenerator
    | ChoiceGenerator
    | UniformGenerator
    | NormalGenerator
    | ZipfianGenerator
    | HotspotGenerator
    | LatestGenerator
    | SequenceGenerator
    | TextGenerator
    | UuidGenerator
    | TimestampGenerator
    | PoolGenerator
    | PreviousGenerator
    | RememberedGenerator
    | ShardGenerator
)
