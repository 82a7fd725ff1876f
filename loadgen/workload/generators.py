"""From a parameter of the scenario to the generator of its values."""

from __future__ import annotations

from loadgen.model.workload import (
    Choice,
    Hotspot,
    Latest,
    Literal,
    Normal,
    Parameter,
    PoolValue,
    Previous,
    Remembered,
    Sequence,
    Shard,
    Text,
    Timestamp,
    Uniform,
    UniformFloat,
    Uuid,
    Zipfian,
)
from loadgen.workload.generator import Constant, DrawContext, Generator
from loadgen.workload.keys import HotspotKeys, LatestKeys, SequenceKeys, UniformKeys, ZipfianKeys
from loadgen.workload.scalars import (
    NormalNumbers,
    PoolValues,
    Texts,
    Timestamps,
    UniformFloats,
    Uuids,
    WeightedChoices,
)
from loadgen.workload.split import shard_of


def make_generator(parameter: Parameter, source: DrawContext) -> Generator:
    """The generator of a parameter; ValueError when it can draw nothing."""
    match parameter:
        case Uniform():
            return UniformKeys(parameter, source)
        case Zipfian():
            return ZipfianKeys(parameter, source)
        case Hotspot():
            return HotspotKeys(parameter, source)
        case Latest():
            return LatestKeys(parameter, source)
        case Sequence():
            return SequenceKeys(parameter, source)
        case Choice():
            return WeightedChoices(parameter, source)
        case UniformFloat():
            return UniformFloats(parameter, source)
        case Normal():
            return NormalNumbers(parameter, source)
        case Text():
            return Texts(parameter, source)
        case Uuid():
            return Uuids(source)
        case Timestamp():
            return Timestamps(parameter, source)
        case PoolValue():
            return PoolValues(parameter, source)
        case Literal():
            return Constant(parameter.value)
        case Shard():
            if source.sharding is None:
                raise ValueError("the generator `shard` needs sharding")
            return Constant(shard_of(source.place.worker, source.sharding.total_partitions))
        case Remembered():
            return Constant(None)  # a blank: the session fills it in, see loadgen.workload.memory
        case Previous():
            raise ValueError("`previous` repeats another parameter and has no values of its own")
