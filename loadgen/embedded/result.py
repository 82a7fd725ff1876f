"""What a statement answers: columns and rows in the protocol's own form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.embedded.types import NUMBER, TEXT, TIMESTAMP_LTZ, SnowType

Row = Sequence[str | None]


@dataclass(slots=True)
class Result:
    rowtype: orjson.Fragment
    rows: Sequence[Row]
    statement_type: int
    count: int  # rows returned, or changed
    width: int = 0
    parameters_changed: bool = False
    array_bind_supported: bool = True


_KINDS = {"number": NUMBER, "time": TIMESTAMP_LTZ, "": TEXT}


def columns(names: str) -> list[tuple[str, SnowType]]:
    """Columns from a list such as `created_on:time, name, rows:number`; text unless said otherwise."""
    parts = [name.strip().partition(":") for name in names.split(",")]
    return [(name, _KINDS[kind]) for name, _, kind in parts]


def table(columns: Sequence[tuple[str, SnowType]], rows: Sequence[Row], statement_type: int) -> Result:
    rowtype = orjson.Fragment(orjson.dumps([kind.rowtype(name) for name, kind in columns]))
    return Result(rowtype, rows, statement_type, len(rows))


_STATUS = orjson.Fragment(orjson.dumps([TEXT.rowtype("status")]))


def status(message: str, statement_type: int = 0x6000) -> Result:
    """The one-row answer of a command."""
    return Result(_STATUS, [[message]], statement_type, 1)


def text_of(value: Any) -> str | None:
    """A Python value as a text column shows it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
