"""What a statement answers: columns and rows in the protocol's own form."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.embedded.result_memory import Charge
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.sql_types import NUMBER, TEXT, TIMESTAMP_LTZ, SnowflakeType

Row = Sequence[str | None]
KEPT_MAX = 500
KEPT_ROWS_MAX = 1_000
KEPT_CHARACTERS_MAX = 64 * 1024 * 1024  # of all results together


@dataclass(slots=True)
class StatementResult:
    rowtype: orjson.Fragment
    rows: Sequence[Row]
    statement_type: int
    count: int  # rows returned, or changed
    parameters_changed: bool = False
    array_bind_supported: bool = True
    charge: Charge | None = None  # of a large one, for as long as anybody has it


_KINDS = {"number": NUMBER, "time": TIMESTAMP_LTZ, "": TEXT}


def columns(names: str) -> list[tuple[str, SnowflakeType]]:
    """Columns from a list such as `created_on:time, name, rows:number`; text unless said otherwise."""
    parts = [name.strip().partition(":") for name in names.split(",")]
    return [(name, _KINDS[kind]) for name, _, kind in parts]


def table(columns: Sequence[tuple[str, SnowflakeType]], rows: Sequence[Row], statement_type: int) -> StatementResult:
    rowtype = orjson.Fragment(orjson.dumps([kind.rowtype(name) for name, kind in columns]))
    return StatementResult(rowtype, rows, statement_type, len(rows))


_STATUS = orjson.Fragment(orjson.dumps([TEXT.rowtype("status")]))


def status(message: str, statement_type: int = 0x6000) -> StatementResult:
    """The one-row answer of a command."""
    return StatementResult(_STATUS, [[message]], statement_type, 1)


class ResultCache:
    """The newest results, for clients that ask again by query id. Each belongs to the user who ran the statement."""

    def __init__(self) -> None:
        self._results: OrderedDict[str, tuple[str, StatementResult, int]] = OrderedDict()
        self._characters = 0

    def keep(self, query_id: str, user: str, result: StatementResult) -> None:
        if len(result.rows) > KEPT_ROWS_MAX:
            return
        length = sum(len(value) for row in result.rows for value in row if isinstance(value, str))
        if length > KEPT_CHARACTERS_MAX:
            return
        self._results[query_id] = (user, result, length)
        self._characters += length
        while len(self._results) > KEPT_MAX or self._characters > KEPT_CHARACTERS_MAX:
            self._characters -= self._results.popitem(last=False)[1][2]

    def get(self, query_id: str, user: str) -> StatementResult:
        owner, found, _ = self._results.get(query_id, ("", None, 0))
        if found is None or owner != user:
            raise SqlError(709, "02000", f"Statement {query_id[:60]} not found")
        return found


def text_of(value: Any) -> str | None:
    """A Python value as a text column shows it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
