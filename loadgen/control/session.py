"""Sessions of the control plane: named statements, rows as checked records, storable values, exactly-once appends."""

from __future__ import annotations

import json
import math
import os
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from enum import Enum, StrEnum
from functools import cache, partial
from importlib.resources import files
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from loadgen.control.location import ControlPlaneLocation
from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.snowflake import driver
from loadgen.snowflake.connect import connect
from loadgen.snowflake.driver import Connection, Cursor
from loadgen.snowflake.failure import Failure, classify, describe
from loadgen.snowflake.session import RetryPolicy, SnowflakeSession, StatementFailed, login_failure
from loadgen.snowflake.settings import CONTROL_STATEMENT_S, control_settings, control_tag
from loadgen.values import dataclass

# --- The SQL of the control plane: one file per table in schemas/queries, a named block per statement ----------------
#
# -- name: renew       a statement, with comments and a semicolon
# -- part: columns     text that statements and later parts contain as {columns}

LIMIT_MAX = 10_000_000
_LIMIT = "{limit}"  # in the text of a statement: see NamedQuery.limited
_BLOCK = re.compile(r"^-- (name|part): ([a-z_]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """One statement with its binds."""

    name: str  # table.verb
    sql: str
    binds: int

    @property
    def takes_limit(self) -> bool:
        return _LIMIT in self.sql

    def limited(self, rows: int) -> NamedQuery:
        """The statement with a limit of rows. Snowflake documents LIMIT with a constant, not with a bind."""
        if type(rows) is not int or not 0 <= rows <= LIMIT_MAX:
            raise ValueError(f"{rows!r} is not a number of rows")
        if not self.takes_limit:
            raise ValueError(f"{self.name} has no {_LIMIT}")
        return replace(self, sql=self.sql.replace(_LIMIT, str(rows)))


@cache
def load_queries(table: str) -> Mapping[str, NamedQuery]:
    """The statements in the file of a table, by name. A `part` is text that statements and later parts contain."""
    _, *pieces = _BLOCK.split((files("schemas") / "queries" / f"{table}.sql").read_text("utf-8"))
    queries: dict[str, NamedQuery] = {}
    parts: dict[str, str] = {}
    for kind, name, block in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        sql = without_comments(block).strip().removesuffix(";").strip()
        for part, text in parts.items():
            sql = sql.replace(f"{{{part}}}", text)
        if kind == "part":
            parts[name] = sql
        else:
            queries[name] = NamedQuery(name=f"{table}.{name}", sql=sql, binds=sql.count("?"))
    return queries


def query_files() -> tuple[str, ...]:
    """The tables that have a file of statements."""
    found = (path.name for path in (files("schemas") / "queries").iterdir())
    return tuple(sorted(name.removesuffix(".sql") for name in found if name.endswith(".sql")))


def without_comments(text: str) -> str:
    """SQL without comment lines, which would only make each request longer."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))


# --- Rows as checked records: other programs may have written rows ---------------------------------------------------
#
# The type of a field decides how a value is checked. A single invalid row raises RowUnreadable. A list of rows is
# returned without the invalid ones, together with their errors.

_SHOWN = 60  # characters of a value in a message

Record = TypeVar("Record")


class RowUnreadable(LoadgenError):
    """A row has a value that loadgen never writes."""

    exit_code = 4
    remedy = "Correct the row or delete it: loadgen did not write it."

    def __init__(self, table: str, key: object, why: str) -> None:
        super().__init__(f"row {_shown(key)} of {table} is unreadable: {why}")
        self.key, self.why = key, why


class ParsedRows(tuple[Record, ...]):
    """The valid rows; `unreadable` contains the errors of the others."""

    unreadable: tuple[RowUnreadable, ...]

    def __new__(cls, rows: Iterable[Record], unreadable: Iterable[RowUnreadable] = ()) -> Self:
        made = super().__new__(cls, rows)
        made.unreadable = tuple(unreadable)
        return made


def read_rows(found: Iterable[tuple[Any, ...]], parse: Callable[[tuple[Any, ...]], Record]) -> ParsedRows[Record]:
    """Parse each row. An invalid row does not prevent the others from being read."""
    rows: list[Record] = []
    unreadable: list[RowUnreadable] = []
    for row in found:
        try:
            rows.append(parse(row))
        except RowUnreadable as error:
            unreadable.append(error)
    return ParsedRows(rows, unreadable)


def parse_row(table: str, kind: type[Record], row: tuple[Any, ...], *, key: object = None, **more: Any) -> Record:
    """A record whose fields are the columns, in order. `more` are the fields that are not columns."""
    fields = dict(more)
    columns = [column for column in _columns(kind) if column[0] not in more]  # type: ignore[arg-type]  # it is hashable
    for (name, as_it_is, read), value in zip(columns, row, strict=True):
        try:
            fields[name] = value if type(value) in as_it_is else read(value)
        except (ValueError, TypeError, ArithmeticError, RecursionError):
            raise RowUnreadable(table, row[0] if key is None else key, f"{name} is {_shown(value)}") from None
    return kind(**fields)


def row_values(record: object) -> tuple[Any, ...]:
    """The fields of a record as columns, in order. dataclasses.astuple would copy each value."""
    return tuple(getattr(record, name) for name in _hints(type(record)))  # type: ignore[arg-type]  # every class is hashable


def text_list(written: object) -> tuple[str, ...]:
    """A JSON list of texts."""
    try:
        found = json.loads(written) if isinstance(written, str) else None
    except RecursionError:
        found = None
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise ValueError("not a JSON list of texts")
    return tuple(found)


def json_object(table: str, key: object, column: str, written: str | None) -> dict[str, Any]:
    """The JSON object in a column; an empty one if the column is empty."""
    try:
        found = json.loads(written) if written else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RowUnreadable(table, key, f"{column} is {_shown(written)}")
    return found


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


Read = Callable[[Any], Any]


@cache
def _columns(kind: Any) -> list[tuple[str, tuple[Any, ...], Read]]:
    """The fields of a record: name, the types of values that need no conversion, and what reads the others."""
    return [(name, _taken_as_it_is(hint), _reader(hint)) for name, hint in _hints(kind).items()]


def _taken_as_it_is(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return (type(None), *_taken_as_it_is(get_args(hint)[0]))
    return (hint,) if hint in (int, str, datetime) else ()


def _reader(hint: Any) -> Read:
    """Converts a value, or raises."""
    if get_origin(hint) in (Union, types.UnionType):
        read = _reader(get_args(hint)[0])
        return lambda value: None if value is None else read(value)
    if get_origin(hint) is tuple:
        return text_list
    if hint in (int, float):
        return partial(_number, hint)
    return hint if issubclass(hint, StrEnum) else partial(_instance, hint)


def _number(kind: type[int] | type[float], value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise TypeError("not a number")
    if not math.isfinite(value):
        raise ValueError("not finite")
    return kind(value)


def _instance(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"not {kind.__name__}")
    return value


def _shown(value: object) -> str:
    return printable(repr(value) if isinstance(value, (str, type(None))) else str(value), _SHOWN)


TRUNCATION_MARK = "...(truncated)"

_REPLACEMENT = "\ufffd"
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_MAYBE_UNSTORABLE = ("\\u0000", "\\ud", "\\uD", "NaN", "Infinity")  # in JSON; often harmless


def clean_text(foreign: str) -> str:
    """The text without characters that cannot be stored."""
    return foreign if foreign.isascii() and "\0" not in foreign else _UNSTORABLE.sub(_REPLACEMENT, foreign)


REASON_MAX = 2_000  # characters of the REASON of a row, in every table


def clip_text(foreign: str, limit: int) -> str:
    """At most `limit` storable characters. A truncated text ends with TRUNCATION_MARK."""
    kept = clean_text(foreign[: limit + 1])
    return kept if len(kept) <= limit else kept[: limit - len(TRUNCATION_MARK)] + TRUNCATION_MARK


def clean_json(written: str | None) -> str | None:
    """JSON that PARSE_JSON accepts. Invalid JSON is returned unchanged, and the server rejects it."""
    if written is None or (written.isascii() and not any(part in written for part in _MAYBE_UNSTORABLE)):
        return written
    try:
        return json.dumps(_value(json.loads(written)), separators=(",", ":"))
    except (ValueError, RecursionError):
        return written


def details_json(foreign: Mapping[str, Any], limit: int) -> str:
    """Any mapping as JSON of about `limit` characters. Never raises: details must not prevent the log row."""
    try:
        written = json.dumps(_value(foreign))
    except (ValueError, RecursionError):  # for example, a list that contains itself
        return json.dumps({"unreadable": type(foreign).__name__})
    return written if len(written) <= limit else json.dumps({"truncated": written[:limit]})


def _value(foreign: Any) -> Any:
    if foreign is None or isinstance(foreign, (bool, int)):
        return foreign
    if isinstance(foreign, float):
        return foreign if math.isfinite(foreign) else str(foreign)
    if isinstance(foreign, Mapping):
        return {clean_text(str(key)): _value(value) for key, value in foreign.items()}
    if isinstance(foreign, (list, tuple)):
        return [_value(value) for value in foreign]
    return clean_text(str(foreign))


def rows_json(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as one bind, which SQL flattens: an array of arrays, in ASCII, so that its length is its size in bytes."""
    return json.dumps([list(map(_cell, row)) for row in rows], separators=(",", ":"), allow_nan=False)


def _cell(value: Any) -> Any:
    """A JSON value from which a cast in SQL restores the exact value."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


# Roles whose statements read or delete many rows. They write nothing under a lease: the takeover margin of leases
# depends on the statement limit of all other roles.
LONG_STATEMENTS_S = {"enrich": 300, "prune": 300}


class ControlFailed(StatementFailed):
    """A statement of the control plane failed."""

    remedy = "Check the control plane with `loadgen doctor`."


class ControlSession(SnowflakeSession):
    """A session of the control plane. Each call is one attempt; see `loadgen.snowflake.session`."""

    def __init__(
        self,
        place: ControlPlaneLocation,
        *,
        role: str,
        environ: Mapping[str, str] = os.environ,
        statement_limit_s: int | None = None,
    ) -> None:
        """`statement_limit_s`: None means the limit of the role."""
        super().__init__(self._connect)
        self.place = place
        self._tag = control_tag(role)
        self._environ = environ
        self._statement_limit_s = statement_limit_s or LONG_STATEMENTS_S.get(role, CONTROL_STATEMENT_S)

    def fetch(self, query: NamedQuery, *binds: Any) -> list[tuple[Any, ...]]:
        """All rows of a SELECT."""
        with self.named_cursor(query.name) as cursor:
            rows: list[tuple[Any, ...]] = cursor.execute(query.sql, _bound(binds)).fetchall()
            return rows

    def execute(self, query: NamedQuery, *binds: Any) -> int:
        """The number of rows that an INSERT, UPDATE or DELETE affected."""
        with self.named_cursor(query.name) as cursor:
            return int(cursor.execute(query.sql, _bound(binds)).rowcount or 0)

    def append(self, query: NamedQuery, rows: Sequence[Sequence[Any]]) -> int:
        """Insert rows with one statement, as JSON in one bind: all of them or none."""
        return self.execute(query, rows_json(rows))

    @contextmanager
    def named_cursor(self, name: str) -> Iterator[Cursor]:
        """A cursor for one statement. Failures are raised as ControlFailed with the name of the statement."""
        self._check_thread()  # outside of try: a wrong thread is a bug of the caller, not a failed statement
        try:
            with self.cursor() as cursor:
                yield cursor
        except LoadgenError:
            raise
        except Exception as error:  # the driver also raises exceptions of its libraries
            raise _explained(name, error, classify(error), self.place) from error

    def _connect(self) -> Connection:
        profile = self.place.profile(self._environ)
        settings = control_settings(
            profile, major=driver.major(), tag=self._tag, statement_limit_s=self._statement_limit_s
        )
        try:
            return connect(profile, settings, environ=self._environ)
        except LoadgenError as error:
            failure = login_failure(error)
            if not failure.retryable:
                raise
            raise ControlFailed(str(error), failure, remedy=error.remedy) from error


OpenSession = Callable[[str], ControlSession]  # opens a session for a role, whose name is in the QUERY_TAG


def _bound(values: Sequence[Any]) -> tuple[Any, ...]:
    """Binds for both major versions: 4.x decides by the exact class and rejects a StrEnum."""
    return tuple(value.value if isinstance(value, Enum) else value for value in values)


def _explained(name: str, error: Exception, failure: Failure, place: ControlPlaneLocation) -> ControlFailed:
    where = printable(f"{place.database}.{place.schema}", 300)
    what = f"the control plane in {where} failed at {name}: {describe(error)}"
    if failure.is_disk_full:
        return ControlFailed(what, failure, remedy="Free disk space, then try again.")
    if failure.is_missing_object:
        return ControlFailed(what, failure, remedy="Create or update its tables with `loadgen setup`.")
    if failure.is_missing_privilege:
        return ControlFailed(what, failure, remedy="`loadgen grants` prints what the role needs.")
    return ControlFailed(what, failure)


# --- Appending once to standard tables, which do not enforce keys ----------------------------------------------------
#
# A batch is one statement with its rows as JSON in one bind, so either all of them are stored or none. (Array binds of
# an INSERT … SELECT are rejected by Snowflake with connector 4, and sent row by row by connector 5.) After a lost
# answer the first row of the batch is looked up by its key. Before the first attempt it is looked up only if an earlier
# process may have written it. The server may execute an abandoned statement after its repetition. A look-up cannot
# prevent that, so readers use one row per key, the one that was written first.

Row = Sequence[Any]
Table = Mapping[str, NamedQuery]  # has `append`, and `find`, which counts the rows of a key

# Limits of one statement. Snowflake recommends at most 1 MB, including binds.
ROWS_MAX = 500
BYTES_MAX = 900_000


def append_row(
    session: ControlSession, retries: RetryPolicy, table: Table, row: Row, *key: Any, fresh: bool = False
) -> None:
    """Append a row unless it exists: an earlier process may have written it and ended before the answer.

    `fresh`: there was no earlier process, so the first attempt needs no look-up.
    """
    look_up = _looker(session, table, key)
    if fresh or retries.call(look_up) is None:
        retries.settle(lambda: session.execute(table["append"], *row) == 1, look_up)


def append_rows(session: ControlSession, retries: RetryPolicy, table: Table, rows: Sequence[Row], *key: Any) -> None:
    """Append new rows in one statement; `key` is the key of the first row."""
    retries.settle(lambda: session.append(table["append"], rows) == len(rows), _looker(session, table, key))


def in_batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in groups that fit into one statement. The same rows always give the same groups."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        row_bytes = len(rows_json([row]))
        if batch and (len(batch) == ROWS_MAX or size + row_bytes > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += row_bytes
    if batch:
        yield batch


def _looker(session: ControlSession, table: Table, key: tuple[Any, ...]) -> Callable[[], bool | None]:
    return lambda: True if session.fetch(table["find"], *key)[0][0] else None
