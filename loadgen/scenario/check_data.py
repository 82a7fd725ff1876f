"""Rules for tables to prepare, value pools and their files, and the capture of a replay."""

from __future__ import annotations

import csv
import errno
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath

from loadgen.identifiers import canonical
from loadgen.model.capture import MANIFEST_FILE, CaptureManifest, InvalidCapture, SessionReplay, StatementRole
from loadgen.model.workload import malformed_reason, preparation_refusal, shape_of
from loadgen.scenario.check_workload import check_column_generator
from loadgen.scenario.document import KeyPath
from loadgen.scenario.file import CheckedScenario, LoadSection, PoolSection, ScenarioFile, TableSection
from loadgen.scenario.generators import SequenceGenerator, UuidGenerator
from loadgen.scenario.model import CONNECTIONS_MAX, LoadMode, TableType, replay_s, replayed_roles
from loadgen.scenario.value_types import DURATION_S_MAX
from loadgen.units import format_duration_s

HEADER_BYTES_MAX = 65_536
_TABLES: KeyPath = ("prepare", "tables")


def check_data(checked: CheckedScenario, file: ScenarioFile, folder: Path | None) -> None:
    """`folder` is the scenario's; None: files are not checked."""
    tables = file.prepare.tables
    checked.require_different_names(
        _TABLES, [canonical(table.name) for table in tables], "table", "list each table once"
    )
    for number, table in enumerate(tables):
        _check_table(checked, (*_TABLES, number), table)
    for number, sql in enumerate(file.prepare.statements):
        place: KeyPath = ("prepare", "statements", number)
        wrong = preparation_refusal(shape_of(sql)) if checked.fine(place) else None
        if wrong is not None:
            checked.problem(place, *wrong)
    for name, pool in file.values.items():
        if checked.fine(("values", name)):
            _check_pool(checked, ("values", name), pool, folder)


def _check_table(checked: CheckedScenario, path: KeyPath, table: TableSection) -> None:
    if not checked.fine((*path, "type")):
        return
    if table.type is TableType.EXISTING:
        for key in ("rows", "columns", "indexes"):
            if checked.given((*path, key)):
                what = "an existing table is never created or filled"
                checked.key_problem((*path, key), what, "remove it, or write type: hybrid or standard")
        return
    if not table.columns and checked.fine((*path, "columns")):
        hint = "list them, or write type: existing for a table that exists"
        checked.problem((*path, "columns"), f"is missing: a {table.type} table needs columns", hint)
    _check_columns(checked, path, table)
    _check_indexes(checked, path, table)


def _check_columns(checked: CheckedScenario, path: KeyPath, table: TableSection) -> None:
    names = [canonical(column.name) for column in table.columns]
    checked.require_different_names((*path, "columns"), names, "column", "rename one")
    for number, column in enumerate(table.columns):
        if column.generate is not None:
            check_column_generator(checked, (*path, "columns", number, "generate"), column.generate)
    if not checked.fine((*path, "columns"), (*path, "rows")) or not table.columns:
        return
    keys = [(number, column) for number, column in enumerate(table.columns) if column.primary_key]
    if table.type is TableType.HYBRID and not keys:
        checked.key_problem((*path, "columns"), "a hybrid table needs a primary key", "add primary_key: true")
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
        what = "may give the same key twice, and a primary key is unique"
        checked.key_problem(place, what, "write {sequence: {start: 1}} or {uuid: {}}")


def _check_indexes(checked: CheckedScenario, path: KeyPath, table: TableSection) -> None:
    if table.indexes and table.type is not TableType.HYBRID:
        what = f"a {table.type} table has no indexes"
        checked.key_problem((*path, "indexes"), what, "remove them, or write type: hybrid")
        return
    known = {canonical(column.name) for column in table.columns}
    for number, index in enumerate(table.indexes):
        place: KeyPath = (*path, "indexes", number, "columns")
        if not index.columns:
            checked.key_problem(place, "is empty", "name at least one column")
        for position, name in enumerate(index.columns):
            if not checked.fine((*path, "columns"), (*place, position)):
                continue
            if canonical(name) not in known:
                checked.problem((*place, position), "is not a column of the table", "name one of its columns")
            elif canonical(name) in map(canonical, index.columns[:position]):
                checked.problem((*place, position), "is in this index twice", "name each column once")


def _check_pool(checked: CheckedScenario, path: KeyPath, pool: PoolSection, folder: Path | None) -> None:
    if (pool.query is None) == (pool.file is None):
        what = "has both query and file" if pool.query is not None else "has neither query nor file"
        checked.key_problem(path, what, "write {query: SELECT …}, or {file: regions.csv, column: NAME}")
        return
    if pool.query is not None:
        if pool.column is not None:
            checked.key_problem((*path, "column"), "belongs to a file", "a query gives its first column")
        _check_query(checked, (*path, "query"), pool.query)
    elif pool.file is not None:
        _check_file(checked, path, pool.file, pool.column, folder)


def _check_query(checked: CheckedScenario, path: KeyPath, sql: str) -> None:
    shape = shape_of(sql)
    wrong = malformed_reason(shape)
    if wrong is None and not shape.reads:
        wrong = ("a pool is filled by a query", "begin with SELECT or WITH")
    if wrong is None and shape.binds:
        wrong = ("a pool's query takes no parameters, and this has a ?", "write the value into the text")
    if wrong is not None:
        checked.problem(path, *wrong)


def _check_file(checked: CheckedScenario, path: KeyPath, file: str, column: str | None, folder: Path | None) -> None:
    place: KeyPath = (*path, "file")
    if _is_outside(file):
        what = "is outside of the scenario's folder"
        checked.problem(place, what, "move the file into the scenario's folder, and write its name")
        return
    if folder is None:
        return
    try:
        require_inside(folder, file)
        if not stat.S_ISREG((folder / file).stat().st_mode):  # opening a pipe would block
            checked.problem(place, "is not a file", "name a CSV file beside the scenario")
            return
        with (folder / file).open("rb") as stream:
            start = stream.read(HEADER_BYTES_MAX)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "a bad name"
        checked.problem(place, f"cannot be read: {reason}", "the name is relative to the scenario's folder")
        return
    _check_header(checked, path, _header(start), column)


def _is_outside(name: str) -> bool:
    """Does a name lead out of the scenario's folder, on any operating system?"""
    path = PurePosixPath(name)
    return path.is_absolute() or bool(PureWindowsPath(name).drive) or ".." in path.parts or "\\" in name


def require_inside(folder: Path, file: str) -> None:
    """Raises PermissionError when a link leads out of the scenario's folder."""
    if not (folder / file).resolve().is_relative_to(folder.resolve()):
        raise PermissionError(errno.EACCES, "a link leads out of the scenario's folder", file)


def _check_header(checked: CheckedScenario, path: KeyPath, header: list[str] | None, column: str | None) -> None:
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


# --- replay ---

_CAPTURE = "load.capture"


def read_manifest(folder: Path, capture: str) -> CaptureManifest:
    """Raises OSError, or InvalidCapture."""
    require_inside(folder, capture)
    return CaptureManifest.of_text((folder / capture / MANIFEST_FILE).read_text("utf-8"))


def check_replay(checked: CheckedScenario, folder: Path | None) -> CaptureManifest | None:
    """The capture of mode replay; None in other modes, and after a problem, which is noted."""
    file = checked.file
    if file is None or file.load.mode is not LoadMode.REPLAY or not checked.fine(_CAPTURE, "load.mode"):
        return None
    name = file.load.capture
    if name is None:
        checked.problem(_CAPTURE, "is missing: mode replay needs it", "add capture: DIR, made by `loadgen capture`")
        return None
    if folder is None or _is_outside(name):
        what = "is outside of the scenario's folder"
        checked.problem(_CAPTURE, what, "move the capture into the scenario's folder, and write its name")
        return None
    try:
        capture = read_manifest(folder, name)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        what = f"is no capture: {reason}" if isinstance(error, InvalidCapture) else f"cannot be read: {reason}"
        checked.problem(_CAPTURE, what, "name a folder that `loadgen capture` has written, beside the scenario")
        return None
    return capture if _fits(checked, capture, file.load) else None


def _fits(checked: CheckedScenario, capture: CaptureManifest, load: LoadSection) -> bool:
    keeps = load.sessions is SessionReplay.KEEP
    if capture.names_hidden:
        what = "has hidden names (--hide-names), so it cannot be executed"
        checked.problem(_CAPTURE, what, "capture again without --hide-names")
    elif not any(capture.roles.get(role.value) for role in replayed_roles(load.writes)):
        hint = "write writes: replay" if capture.roles.get(StatementRole.WRITE.value) else "capture another span"
        checked.problem(_CAPTURE, "has no statement to send", hint)
    elif keeps and capture.sessions > CONNECTIONS_MAX:
        what = f"has {capture.sessions:,} sessions, and a run has at most {CONNECTIONS_MAX:,} connections"
        checked.problem(_CAPTURE, what, "write sessions: spread, or capture a shorter span")
    elif replay_s(capture, load.speed) > DURATION_S_MAX:
        duration, longest = format_duration_s(replay_s(capture, load.speed)), format_duration_s(DURATION_S_MAX)
        what = f"takes {duration}, and a run takes at most {longest}"
        checked.problem(_CAPTURE, what, "raise load.speed, or capture a shorter span")
    elif keeps and capture.sessions * load.users > CONNECTIONS_MAX:
        asked = f"{capture.sessions:,} recorded sessions × {load.users:,} users"
        most = CONNECTIONS_MAX // capture.sessions
        checked.problem(
            "load.users",
            f"needs {capture.sessions * load.users:,} connections ({asked}), and a run has at most {CONNECTIONS_MAX:,}",
            f"write at most {most:,}, or sessions: spread",
        )
    else:
        if keeps and checked.given("load.max_connections"):
            what = "belongs to sessions: spread; here every recorded session has a connection"
            checked.key_problem("load.max_connections", what, "remove it")
        return True
    return False
