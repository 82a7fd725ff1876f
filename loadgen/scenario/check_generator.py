"""What must fit together in a parameter generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.model.workload import NORMAL_KEPT_MIN, PoolOrder
from loadgen.scenario.generators import (
    HotspotGenerator,
    LatestGenerator,
    LatestSettings,
    NormalGenerator,
    PoolGenerator,
    PreviousGenerator,
    RememberedGenerator,
    SequenceGenerator,
    ShardGenerator,
    TextGenerator,
    TimestampGenerator,
    UniformGenerator,
    ZipfianGenerator,
    name_of,
)
from loadgen.scenario.keys import ScenarioSection
from loadgen.scenario.problem import KeyPath
from loadgen.scenario.validation import CheckedDocument

WHOLE_NORMAL_MAX = float(1 << 62)
_NOT_FOR_COLUMNS = (PoolGenerator, PreviousGenerator, RememberedGenerator, ShardGenerator, LatestGenerator)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorContext:
    """What a generator may refer to."""

    pools: frozenset[str] | None  # None: not known, because `values` has problems of its own
    followed: Mapping[str, SequenceGenerator | None] | None  # name → what makes its new keys, if it is sent
    written: tuple[str, ...]  # the names as the file has them, for showing
    sharding: bool | None
    previous: int | None  # how many parameters of the transaction come before; None outside of one


def settings_of(generator: ScenarioSection) -> Any:
    """What stands below the generator's name; the generator itself when it is flat."""
    inner = getattr(generator, name_of(generator))
    return inner if isinstance(inner, ScenarioSection) else generator


def is_sharded(generator: ScenarioSection) -> bool:
    return isinstance(generator, ShardGenerator) or bool(getattr(settings_of(generator), "sharded", False))


def check_generator(
    checked: CheckedDocument, path: KeyPath, generator: ScenarioSection, around: GeneratorContext
) -> None:
    """Check one parameter of a statement; `path` leads to it."""
    if not checked.fine(path):
        return
    name = name_of(generator)
    _check_numbers(checked, (*path, name), generator)
    if is_sharded(generator) and around.sharding is False:
        place: KeyPath = (*path, name) if isinstance(generator, ShardGenerator) else (*path, name, "sharded")
        checked.problem(
            place, "needs sharding", "write sharding: {enabled: true, key_range: [first, last]}", at_key=True
        )
    match generator:
        case PoolGenerator():
            _check_pool(checked, path, generator, around.pools)
        case PreviousGenerator():
            _check_previous(checked, (*path, "previous"), generator.previous, around.previous)
        case LatestGenerator() if generator.latest.follows is not None:
            _check_follows(checked, (*path, "latest", "follows"), generator.latest, around)
        case RememberedGenerator() if generator.of is not None:
            _check_of(checked, (*path, "of"), generator.of, around)
        case _:
            pass


def check_column_generator(checked: CheckedDocument, path: KeyPath, generator: ScenarioSection) -> None:
    """Check the generator of a column of a table to prepare."""
    if not checked.fine(path):
        return
    name = name_of(generator)
    if isinstance(generator, _NOT_FOR_COLUMNS):
        hint = "columns take literal, choice, uniform, normal, zipfian, hotspot, sequence, text, uuid or timestamp"
        checked.problem((*path, name), f"{name} cannot fill a column", hint, at_key=True)
        return
    _check_numbers(checked, (*path, name), generator)
    if is_sharded(generator):
        checked.problem((*path, name, "sharded"), "rows are made before there are workers", "give min and max")


def _check_numbers(checked: CheckedDocument, path: KeyPath, generator: ScenarioSection) -> None:
    match generator:
        case UniformGenerator() | ZipfianGenerator() | HotspotGenerator() | LatestGenerator():
            _check_range(checked, path, settings_of(generator))
        case SequenceGenerator() if generator.sequence.sharded and generator.sequence.start is not None:
            checked.problem((*path, "start"), "is said by sharding.key_range", "remove it, or sharded", at_key=True)
        case NormalGenerator():
            _check_normal(checked, path, generator)
        case TextGenerator():
            longest = generator.text.max_length
            if longest is not None and longest < generator.text.length:
                checked.problem((*path, "max_length"), "is below length", "raise it, or lower length")
        case TimestampGenerator() if generator.timestamp.min >= generator.timestamp.max:
            checked.problem((*path, "max"), "is not after min", "write a later moment")
        case _:
            pass


def _check_range(checked: CheckedDocument, path: KeyPath, settings: Any) -> None:
    if settings.sharded:
        for key in ("min", "max"):
            if getattr(settings, key) is not None:
                checked.problem((*path, key), "is said by sharding.key_range", "remove it, or sharded", at_key=True)
        return
    missing = [key for key in ("min", "max") if getattr(settings, key) is None]
    if missing:
        checked.problem(
            path, f"needs {' and '.join(missing)}", "write {min: 1, max: 10k}, or sharded: true", at_key=True
        )
    elif settings.max < settings.min:
        checked.problem((*path, "max"), "is below min", "raise it, or lower min")
    elif settings.max == settings.min and float in (type(settings.min), type(settings.max)):
        checked.problem((*path, "max"), "is min itself", "write {literal: …} for a fixed value")


def _check_normal(checked: CheckedDocument, path: KeyPath, generator: NormalGenerator) -> None:
    settings = generator.normal
    if settings.min is not None and settings.max is not None and settings.max <= settings.min:
        checked.problem((*path, "max"), "is not above min", "raise it, or lower min")
    elif settings.whole and not settings.has_whole_number():
        checked.problem((*path, "whole"), "there is no whole number between min and max", "widen them", at_key=True)
    elif settings.parameter().kept_fraction < NORMAL_KEPT_MIN:
        what = "draws less than one value in a hundred between min and max, and would draw again for ever"
        checked.problem(path, what, "move mean between them, or change stddev", at_key=True)
    elif settings.whole and abs(settings.mean) + 40 * settings.stddev > WHOLE_NORMAL_MAX:
        checked.problem((*path, "whole"), "numbers as large as these do not fit 64 bits", "lower mean and stddev")


def _check_pool(
    checked: CheckedDocument, path: KeyPath, generator: PoolGenerator, pools: frozenset[str] | None
) -> None:
    if pools is not None and generator.pool not in pools:
        known = f"pools are {', '.join(sorted(pools))}" if pools else "there are none"
        checked.problem((*path, "pool"), "is no pool under values", known)
    if generator.theta is not None and generator.distribution is not PoolOrder.ZIPFIAN:
        what = f"belongs to distribution zipfian, and this is {generator.distribution}"
        checked.problem((*path, "theta"), what, "remove it, or write distribution: zipfian", at_key=True)


def _check_previous(checked: CheckedDocument, path: KeyPath, index: int, before: int | None) -> None:
    if before is None:
        checked.problem(path, "works inside a transaction only", "list the statements under transaction:")
    elif index >= before:
        parameters = "no parameter comes" if before == 0 else f"only parameters 0 to {before - 1} come"
        checked.problem(path, f"{parameters} before it in the transaction", "previous looks back, counted from 0")


def _check_of(checked: CheckedDocument, path: KeyPath, of: ScenarioSection, around: GeneratorContext) -> None:
    follows = isinstance(of, LatestGenerator) and of.latest.follows is not None
    if follows or isinstance(of, (PreviousGenerator, RememberedGenerator)):
        what = "belongs to one statement, and a session remembers from one statement to the next"
        checked.problem((*path, name_of(of)), what, "draw it from another generator", at_key=True)
    else:
        check_generator(checked, path, of, around)


def _check_follows(checked: CheckedDocument, path: KeyPath, latest: LatestSettings, around: GeneratorContext) -> None:
    if latest.sharded:
        what = "does not go with sharded: new keys do not lie in this worker's part of the old ones"
        checked.problem(path, what, "remove one of them", at_key=True)
    if around.followed is None or latest.follows is None:
        return
    sequence = around.followed.get(latest.follows)
    if latest.follows not in around.followed:
        hint = f"statements are {', '.join(around.written[:10])}"
        checked.problem(path, "is no statement of the workload", hint)
    elif sequence is None:
        checked.problem(path, "is a statement that makes no new keys", "name one with a sequence and a weight")
    elif sequence.sequence.sharded:
        what = "is a statement with a sharded sequence, whose keys below the newest belong to other workers"
        checked.problem(path, what, "give that sequence a start instead of sharded")
