"""What must fit together in `prepare` and `values`: tables, columns, indexes, pools and their files."""

from __future__ import annotations

import csv
import errno
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from loadgen.identifiers import canonical
from loadgen.model.workload import NORMAL_KEPT_MIN, malformed_reason, preparation_refusal, shape_of
from loadgen.scenario.document import KeyPath
from loadgen.scenario.file import PoolSection, ScenarioFile, TableSection
from loadgen.scenario.generators import (
    Generator,
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
    UuidGenerator,
    ZipfianGenerator,
    is_sharded,
    name_of,
    settings_of,
)
from loadgen.scenario.model import TableType
from loadgen.scenario.validation import CheckedDocument

WHOLE_NORMAL_MAX = float(1 << 62)
_NOT_FOR_COLUMNS = (PoolGenerator, PreviousGenerator, RememberedGenerator, ShardGenerator, LatestGenerator)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorContext:
    """What a generator may refer to."""

    pools: frozenset[str] | None  # None: not known, because `values` has problems
    followed: Mapping[str, SequenceGenerator | None] | None  # name → what makes its new keys, if it is sent
    written: tuple[str, ...]  # the names as the file has them, for showing
    sharding: bool | None
    previous: int | None  # how many parameters of the transaction come before; None outside of one


def check_generator(checked: CheckedDocument, path: KeyPath, generator: Generator, around: GeneratorContext) -> None:
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
            _check_pool_generator(checked, path, generator, around.pools)
        case PreviousGenerator():
            _check_previous(checked, (*path, "previous"), generator.previous, around.previous)
        case LatestGenerator() if generator.latest.follows is not None:
            _check_follows(checked, (*path, "latest", "follows"), generator.latest, around)
        case RememberedGenerator() if generator.of is not None:
            _check_of(checked, (*path, "of"), generator.of, around)
        case _:
            pass


def check_column_generator(checked: CheckedDocument, path: KeyPath, generator: Generator) -> None:
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
        checked.problem((*path, name, "sharded"), "rows are inserted before workers exist", "give min and max")


def _check_numbers(checked: CheckedDocument, path: KeyPath, generator: Generator) -> None:
    match generator:
        case UniformGenerator() | ZipfianGenerator() | HotspotGenerator() | LatestGenerator():
            _check_range(checked, path, settings_of(generator))
        case SequenceGenerator() if generator.sequence.sharded and generator.sequence.start is not None:
            checked.problem(
                (*path, "start"), "is set by sharding.key_range", "remove it, or remove sharded", at_key=True
            )
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
                checked.problem(
                    (*path, key), "is set by sharding.key_range", "remove it, or remove sharded", at_key=True
                )
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
        what = "draws less than one value in a hundred between min and max, and would draw again forever"
        checked.problem(path, what, "move mean between them, or change stddev", at_key=True)
    elif settings.whole and abs(settings.mean) + 40 * settings.stddev > WHOLE_NORMAL_MAX:
        checked.problem((*path, "whole"), "numbers as large as these do not fit 64 bits", "lower mean and stddev")


def _check_pool_generator(
    checked: CheckedDocument, path: KeyPath, generator: PoolGenerator, pools: frozenset[str] | None
) -> None:
    if pools is not None and generator.pool not in pools:
        known = f"pools are {', '.join(sorted(pools))}" if pools else "there are none"
        checked.problem((*path, "pool"), "is not a pool under values", known)


def _check_previous(checked: CheckedDocument, path: KeyPath, index: int, before: int | None) -> None:
    if before is None:
        checked.problem(path, "works inside a transaction only", "list the statements under transaction:")
    elif index >= before:
        parameters = "no parameter comes" if before == 0 else f"only parameters 0 to {before - 1} come"
        checked.problem(path, f"{parameters} before it in the transaction", "previous looks back, counted from 0")


def _check_of(checked: CheckedDocument, path: KeyPath, of: Generator, around: GeneratorContext) -> None:
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
        checked.problem(path, "is not a statement of the workload", hint)
    elif sequence is None:
        checked.problem(path, "is a statement that makes no new keys", "name one with a sequence and a weight")
    elif sequence.sequence.sharded:
        what = "is a statement with a sharded sequence, whose keys below the newest belong to other workers"
        checked.problem(path, what, "give that sequence a start instead of sharded")


HEADER_BYTES_MAX = 65_536
_TABLES: KeyPath = ("prepare", "tables")


def check_data(checked: CheckedDocument, file: ScenarioFile, folder: Path | None) -> None:
    """`folder` is the scenario's own; None when files cannot be looked at."""
    seen: set[str] = set()
    for number, table in enumerate(file.prepare.tables):
        path: KeyPath = (*_TABLES, number)
        if canonical(table.name) in seen and checked.fine((*path, "name")):
            checked.problem((*path, "name"), "is the name of another table too", "list each table once")
        seen.add(canonical(table.name))
        _check_table(checked, path, table)
    for number, sql in enumerate(file.prepare.statements):
        place: KeyPath = ("prepare", "statements", number)
        wrong = preparation_refusal(shape_of(sql)) if checked.fine(place) else None
        if wrong is not None:
            checked.problem(place, *wrong)
    for name, pool in file.values.items():
        if checked.fine(("values", name)):
            _check_pool(checked, ("values", name), pool, folder)


def _check_table(checked: CheckedDocument, path: KeyPath, table: TableSection) -> None:
    if not checked.fine((*path, "type")):
        return
    if table.type is TableType.EXISTING:
        for key in ("rows", "columns", "indexes"):
            if checked.given((*path, key)):
                what = "an existing table is never created or filled"
                checked.problem((*path, key), what, "remove it, or write type: hybrid or standard", at_key=True)
        return
    if not table.columns and checked.fine((*path, "columns")):
        hint = "list them, or write type: existing for a table that exists"
        checked.problem((*path, "columns"), f"is missing: a {table.type} table needs columns", hint)
    _check_columns(checked, path, table)
    _check_indexes(checked, path, table)


def _check_columns(checked: CheckedDocument, path: KeyPath, table: TableSection) -> None:
    seen: set[str] = set()
    for number, column in enumerate(table.columns):
        place: KeyPath = (*path, "columns", number)
        if canonical(column.name) in seen and checked.fine((*place, "name")):
            checked.problem((*place, "name"), "is the name of another column too", "rename one")
        seen.add(canonical(column.name))
        if column.generate is not None:
            check_column_generator(checked, (*place, "generate"), column.generate)
    if not checked.fine((*path, "columns"), (*path, "rows")) or not table.columns:
        return
    keys = [(number, column) for number, column in enumerate(table.columns) if column.primary_key]
    if table.type is TableType.HYBRID and not keys:
        checked.problem((*path, "columns"), "a hybrid table needs a primary key", "add primary_key: true", at_key=True)
    if table.rows == 0 or not keys:
        return
    for number, column in keys:
        if column.generate is None:
            place = (*path, "columns", number, "generate")
            checked.problem(place, "is missing: a primary key is never NULL", "add generate: {sequence: {start: 1}}")
            return
    unique = (SequenceGenerator, UuidGenerator)
    if not any(isinstance(column.generate, unique) for _, column in keys):
        place = (*path, "columns", keys[0][0], "generate")
        what = "gives the same key twice, and a primary key holds each once"
        checked.problem(place, what, "write {sequence: {start: 1}} or {uuid: {}}", at_key=True)


def _check_indexes(checked: CheckedDocument, path: KeyPath, table: TableSection) -> None:
    if table.indexes and table.type is not TableType.HYBRID:
        what = f"a {table.type} table has no indexes"
        checked.problem((*path, "indexes"), what, "remove them, or write type: hybrid", at_key=True)
        return
    known = {canonical(column.name) for column in table.columns}
    for number, index in enumerate(table.indexes):
        place: KeyPath = (*path, "indexes", number, "columns")
        if not index.columns:
            checked.problem(place, "is empty", "name at least one column", at_key=True)
        for position, name in enumerate(index.columns):
            if not checked.fine((*path, "columns"), (*place, position)):
                continue
            if canonical(name) not in known:
                checked.problem((*place, position), "is not a column of the table", "name one of its columns")
            elif canonical(name) in map(canonical, index.columns[:position]):
                checked.problem((*place, position), "is in this index twice", "name each column once")


def _check_pool(checked: CheckedDocument, path: KeyPath, pool: PoolSection, folder: Path | None) -> None:
    if (pool.query is None) == (pool.file is None):
        what = "has both query and file" if pool.query is not None else "has neither query nor file"
        checked.problem(path, what, "write {query: SELECT …}, or {file: regions.csv, column: NAME}", at_key=True)
        return
    if pool.query is not None:
        if pool.column is not None:
            checked.problem((*path, "column"), "belongs to a file", "a query gives its first column", at_key=True)
        _check_query(checked, (*path, "query"), pool.query)
    elif pool.file is not None:
        _check_file(checked, path, pool.file, pool.column, folder)


def _check_query(checked: CheckedDocument, path: KeyPath, sql: str) -> None:
    shape = shape_of(sql)
    wrong = malformed_reason(shape)
    if wrong is None and not shape.reads:
        wrong = ("a pool is filled by a query", "begin with SELECT or WITH")
    if wrong is None and shape.binds:
        wrong = ("a pool's query takes no parameters, and this has a ?", "write the value into the text")
    if wrong is not None:
        checked.problem(path, *wrong)


def _check_file(checked: CheckedDocument, path: KeyPath, file: str, column: str | None, folder: Path | None) -> None:
    place: KeyPath = (*path, "file")
    parts = PurePosixPath(file).parts
    if PurePosixPath(file).is_absolute() or PureWindowsPath(file).drive or ".." in parts or "\\" in file:
        what = "is outside of the scenario's folder"
        checked.problem(place, what, "move the file into the scenario's folder, and write its name")
        return
    if folder is None:
        return
    try:
        require_inside(folder, file)
        if not stat.S_ISREG((folder / file).stat().st_mode):  # opening a pipe would wait for its writer
            checked.problem(place, "is not a file", "name a CSV file beside the scenario")
            return
        with (folder / file).open("rb") as stream:
            start = stream.read(HEADER_BYTES_MAX)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "a bad name"
        checked.problem(place, f"cannot be read: {reason}", "the name is relative to the scenario's folder")
        return
    _check_header(checked, path, _header(start), column)


def require_inside(folder: Path, file: str) -> None:
    """Raises PermissionError when a link leads a value file out of the scenario's folder."""
    if not (folder / file).resolve().is_relative_to(folder.resolve()):
        raise PermissionError(errno.EACCES, "a link leads out of the scenario's folder", file)


def _check_header(checked: CheckedDocument, path: KeyPath, header: list[str] | None, column: str | None) -> None:
    place: KeyPath = (*path, "file")
    if header is None:
        checked.problem(place, "is not a CSV file with a header in UTF-8", "its first line must name the columns")
    elif column is None and len(header) != 1:
        checked.problem(place, f"has {len(header)} columns", "name one of them: column: NAME")
    elif column is not None and column not in header:
        checked.problem((*path, "column"), "is not a column of the file", f"it has {', '.join(header[:10])[:200]}")
    elif column is not None and header.count(column) > 1:
        checked.problem((*path, "column"), "is the name of several columns of the file", "rename one in its first line")


def _header(start: bytes) -> list[str] | None:
    try:
        line = start.partition(b"\n")[0].decode("utf-8-sig").rstrip("\r")
        header = next(csv.reader([line], strict=True), None)
    except (UnicodeDecodeError, csv.Error):
        return None
    names = [name.strip() for name in header or []]  # as loadgen.workload.pools reads them
    return names if names and all(names) else None
