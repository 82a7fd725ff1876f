"""Strict reading of JSON that may be damaged or hostile: an invalid value is rejected with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from loadgen.errors import RunFailed

COUNT_MAX = 2**53  # far more than any run counts; sums of many such counts fit into 64 bits
TIME_NS_MAX = 2**63 - 1
NUMBER_MAX = 1e15

Kind = TypeVar("Kind", bound=StrEnum)


class InvalidMetrics(RunFailed):
    """Stored metrics are unreadable or inconsistent."""

    remedy = "Check the row in the control tables: it is damaged, or another version of loadgen wrote it."


class JsonFields:
    """An object in a JSON document, and its place in the document."""

    __slots__ = ("_data", "_name", "_parent")

    def __init__(self, data: Any, name: str, parent: JsonFields | None = None) -> None:
        self._name, self._parent = name, parent
        if not isinstance(data, dict):
            self.refuse("is not an object")
        self._data: dict[str, Any] = data

    @property
    def place(self) -> str:
        """Computed on demand: a leader reads thousands of objects per second, and almost never needs it."""
        return self._name if self._parent is None else f"{self._parent.place}.{self._name}"

    def refuse(self, why: str) -> NoReturn:
        raise InvalidMetrics(f"{self.place} {why}")

    def names(self) -> Iterator[str]:
        return iter(self._data)

    def has(self, name: str) -> bool:
        return name in self._data

    def part(self, name: str) -> JsonFields:
        return JsonFields(self._value(name), name, self)

    def parts(self, name: str) -> list[JsonFields]:
        return [JsonFields(item, f"{name}[{number}]", self) for number, item in enumerate(self.items(name))]

    def items(self, name: str) -> list[Any]:
        value = self._value(name)
        if not isinstance(value, list):
            self.refuse(f"has a {name} that is not a list")
        return value

    def whole(self, name: str, *, low: int = 0, high: int = COUNT_MAX) -> int:
        value = self._value(name)
        if type(value) is not int or not low <= value <= high:
            self.refuse(f"has a {name} that is not a whole number from {low} to {high}")
        return value

    def whole_or_none(self, name: str) -> int | None:
        return None if self._value(name) is None else self.whole(name, low=-COUNT_MAX)

    def number(self, name: str) -> float:
        value = self._value(name)
        if not (is_whole(value) or isinstance(value, float)) or not 0 <= value <= NUMBER_MAX:
            self.refuse(f"has a {name} that is not a number of 0 or more")
        return float(value)

    def text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str):
            self.refuse(f"has a {name} that is not a text")
        return value

    def one_of(self, name: str, kind: type[Kind]) -> Kind:
        try:
            return kind(self.text(name))
        except ValueError:
            self.refuse(f"has a {name} that is none of {' '.join(kind)}")

    def _value(self, name: str) -> Any:
        if name not in self._data:
            self.refuse(f"has no {name}")
        return self._data[name]


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def parse(text: str, place: str, *, version: int) -> JsonFields:
    """Parse the object in this text. It must have this version."""
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidMetrics(f"{place} is not JSON: {error}") from None
    fields = JsonFields(data, place)
    if fields.whole("version") != version:
        fields.refuse(f"has version {fields.whole('version')}, and this loadgen reads {version}")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a name occurs twice")
    return data


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
