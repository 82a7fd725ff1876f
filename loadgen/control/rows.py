"""Rows as records, checked: the account may hold rows that another program wrote.

Each field is read by its type. One row that cannot be read is an error by itself; in a list it is left out and told.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum, StrEnum
from functools import cache
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from loadgen.errors import LoadgenError
from loadgen.log import printable

_SHOWN = 60  # characters of a value

Record = TypeVar("Record")


class RowUnreadable(LoadgenError):
    """A row has a value that loadgen never writes."""

    exit_code = 4
    remedy = "Correct the row or delete it: loadgen did not write it."

    def __init__(self, table: str, key: object, why: str) -> None:
        super().__init__(f"row {_shown(key)} of {table} is unreadable: {why}")
        self.key, self.why = key, why


class ParsedRows(tuple[Record, ...]):
    """The rows that could be read; `unreadable` are the others."""

    unreadable: tuple[RowUnreadable, ...]

    def __new__(cls, rows: Iterable[Record], unreadable: Iterable[RowUnreadable] = ()) -> Self:
        made = super().__new__(cls, rows)
        made.unreadable = tuple(unreadable)
        return made


def read_rows(found: Iterable[tuple[Any, ...]], parse: Callable[[tuple[Any, ...]], Record]) -> ParsedRows[Record]:
    """Each row by itself: one that is unreadable keeps no other from being read."""
    rows: list[Record] = []
    unreadable: list[RowUnreadable] = []
    for row in found:
        try:
            rows.append(parse(row))
        except RowUnreadable as error:
            unreadable.append(error)
    return ParsedRows(rows, unreadable)


def parse_row(table: str, kind: type[Record], row: tuple[Any, ...], *, key: object = None, **more: Any) -> Record:
    """A frozen dataclass whose fields are the columns, in order; `more` are fields that are no columns."""
    hints, fields = _hints(kind), dict(more)  # type: ignore[arg-type]  # every class is hashable
    names = [name for name in hints if name not in more]
    for name, value in zip(names, row, strict=True):
        try:
            fields[name] = _read(hints[name], value)
        except (ValueError, TypeError, ArithmeticError, RecursionError):
            raise RowUnreadable(table, row[0] if key is None else key, f"{name} is {_shown(value)}") from None
    return kind(**fields)


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
    """A column's JSON object; empty: there is none."""
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


def _read(hint: Any, value: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return None if value is None else _read(get_args(hint)[0], value)
    if get_origin(hint) is tuple:
        return text_list(value)
    if hint in (int, float):
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            raise TypeError("not a number")
        if not math.isfinite(value):
            raise ValueError("not finite")
        return hint(value)
    if issubclass(hint, StrEnum):
        return hint(value)
    if not isinstance(value, hint):
        raise TypeError(f"not {hint.__name__}")
    return value


def _shown(value: object) -> str:
    return printable(repr(value) if isinstance(value, (str, type(None))) else str(value), _SHOWN)


TRUNCATION_MARK = "...(truncated)"

_REPLACEMENT = "\ufffd"
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_MAYBE_UNSTORABLE = ("\\u0000", "\\ud", "\\uD", "NaN", "Infinity")  # in JSON; often harmless


def clean_text(foreign: str) -> str:
    """The text with nothing in it that cannot be stored."""
    return foreign if foreign.isascii() and "\0" not in foreign else _UNSTORABLE.sub(_REPLACEMENT, foreign)


def clip_text(foreign: str, limit: int) -> str:
    """At most `limit` storable characters; says so when there were more."""
    kept = clean_text(foreign[: limit + 1])
    return kept if len(kept) <= limit else kept[: limit - len(TRUNCATION_MARK)] + TRUNCATION_MARK


def clean_json(written: str | None) -> str | None:
    """JSON that PARSE_JSON takes. What is no JSON stays as it is: the server says so in its own words."""
    if written is None or (written.isascii() and not any(part in written for part in _MAYBE_UNSTORABLE)):
        return written
    try:
        return json.dumps(_value(json.loads(written)), separators=(",", ":"))
    except (ValueError, RecursionError):
        return written


def details_json(foreign: Mapping[str, Any], limit: int) -> str:
    """Details of any shape as JSON, about `limit` characters of it at most: they never stop what they explain."""
    try:
        written = json.dumps(_value(foreign))
    except (ValueError, RecursionError):  # one that contains itself, for example
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
    """Rows for one bind that SQL flattens: an array of arrays, in ASCII, so that its length is its size."""
    return json.dumps([list(map(_cell, row)) for row in rows], separators=(",", ":"), allow_nan=False)


def _cell(value: Any) -> Any:
    """A value that a cast of the JSON value gives back exactly."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
