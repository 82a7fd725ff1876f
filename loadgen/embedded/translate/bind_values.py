"""Binds: from the protocol's typed texts to PostgreSQL's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from loadgen.embedded.sql_errors import SqlError, compilation
from loadgen.embedded.translate.emitter import BindTypes

Bindings = Mapping[str, Mapping[str, Any]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BINDS_MAX = 30_000
ARRAY_VALUES_MAX = 500_000  # they are encoded on the event loop
NULL = "NULL"  # the type of a bind without a value: it fits everywhere


def signature(bindings: Bindings | None) -> tuple[tuple[str, ...], bool]:
    """The types of the binds in their order, and whether each carries many rows."""
    if not bindings:
        return (), False
    if len(bindings) > BINDS_MAX:
        raise compilation(2049, "42601", f"Too many bind variables: {len(bindings)}.")
    types = []
    arrays = False
    for number in range(1, len(bindings) + 1):
        bind = bindings.get(str(number))
        if bind is None:
            raise compilation(2049, "42601", f"Bind variable {number} not set.")
        given = bind.get("value")
        arrays = arrays or isinstance(given, list)
        empty = given is None or (isinstance(given, list) and not any(item is not None for item in given))
        types.append(NULL if empty else str(bind.get("type", "TEXT")).upper())
    return tuple(types), arrays


def value(bindings: Bindings, binds: BindTypes, number: int) -> Any:
    """PostgreSQL's parameter for one bind."""
    kind = binds.types[number - 1]
    given = bindings[str(number)].get("value")
    try:
        if binds.arrays:
            return _column(kind, given)
        if given is None:
            return None
        return _timestamp_tz(given) if kind == "TIMESTAMP_TZ" else str(given)
    except (ValueError, OverflowError):
        raise _bad(number) from None


def check_lengths(columns: list[Any]) -> None:
    values = sum(len(column) for column in columns if isinstance(column, list))
    if values > ARRAY_VALUES_MAX:
        text = f"Array binds have {values} values, more than {ARRAY_VALUES_MAX}. Send them in several statements."
        raise compilation(2049, "42601", text)
    if len({len(column) for column in columns if isinstance(column, list)}) > 1:
        raise compilation(2049, "42601", "Array binds of different lengths.")


def _bad(number: int) -> SqlError:
    return compilation(2049, "42601", f"Bind variable {number} has a value that does not fit its type.")


def _column(kind: str, value: Any) -> list[str | None]:
    """A column of an array bind as texts that PostgreSQL casts to the bind's type."""
    items = value if isinstance(value, list) else [value]
    convert = _TEXTS.get(kind, str)
    return [None if item is None else convert(item) for item in items]


def _date(milliseconds: Any) -> str:
    return (_EPOCH + timedelta(days=int(milliseconds) // 86_400_000)).date().isoformat()


def _time(nanoseconds: Any) -> str:
    return (_EPOCH + timedelta(microseconds=int(nanoseconds) // 1000)).time().isoformat()


def _timestamp(nanoseconds: Any) -> str:
    moment = _EPOCH + timedelta(microseconds=int(nanoseconds) // 1000)
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def _timestamp_ltz(nanoseconds: Any) -> str:
    return _timestamp(nanoseconds) + "+00"


def _timestamp_tz(value: Any) -> str:
    """`nanoseconds minutes`, the offset counted from −1440."""
    nanoseconds, _, shifted = str(value).partition(" ")
    minutes = int(shifted or 1440) - 1440
    local = _EPOCH + timedelta(microseconds=int(nanoseconds) // 1000, minutes=minutes)
    sign, size = ("-", -minutes) if minutes < 0 else ("+", minutes)
    text = local.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return f"{text} {sign}{size // 60:02d}:{size % 60:02d}"


_TEXTS: dict[str, Callable[[Any], str]] = {
    "DATE": _date,
    "TIME": _time,
    "TIMESTAMP_NTZ": _timestamp,
    "TIMESTAMP_LTZ": _timestamp_ltz,
    "TIMESTAMP_TZ": _timestamp_tz,
}
