"""Semi-structured values as Snowflake sends them, from PostgreSQL's text of a jsonb value.

Takes time in proportion to the text it makes, whatever the value looks like: no recursion, no text is copied per level.
It is plain Python in small steps, so a thread that formats a large value gives up the interpreter's lock in between.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from loadgen.embedded.result_memory import ResultSize
from loadgen.embedded.sql_errors import SqlError

DEPTH_MAX = 1_000  # each level adds two spaces to every line inside it
COUNTED_AT_ONCE = 1_000  # values
_TOKEN = re.compile(r'\s*([\[\]{},:"]|[^\s\[\]{},:"]+)')


@dataclass(slots=True)
class _Container:
    """An array or object that is being read."""

    opening: str
    closing: str
    values: list[Any] = field(default_factory=list)  # texts, and lists of texts and lists
    keys: list[str] = field(default_factory=list)  # of an object, as JSON strings
    is_leaf: bool = True  # it holds no other container that holds something

    def lines(self, depth: int) -> Any:
        """One text of a leaf; the parts of any other, so that no text is copied once per level."""
        if not self.values:
            return self.opening + self.closing
        newline = "\n" + "  " * depth
        inner = newline + "  "
        values = self._members() if self.opening == "{" else self.values
        if self.is_leaf:
            return f"{self.opening}{inner}{f',{inner}'.join(values)}{newline}{self.closing}"
        parts = [self.opening]
        for value in values:
            parts += (inner if len(parts) == 1 else f",{inner}", value)
        return [*parts, newline, self.closing]

    def _members(self) -> list[Any]:
        pairs = sorted(zip(self.keys, self.values, strict=True), key=lambda pair: _decoded(pair[0]))
        return [f"{key}: {value}" if isinstance(value, str) else [f"{key}: ", value] for key, value in pairs]


def format_json(text: str, size: ResultSize) -> str:
    """Two spaces of indent, keys in order, numbers untouched. `size` refuses what takes too much memory."""
    root = _Container("", "")
    open_containers = [root]
    inner = root
    position, count, characters = 0, 0, 0
    while (found := _TOKEN.match(text, position)) is not None:
        token, position = found[1], found.end()
        if token in ",:":
            continue
        if token == '"':
            start, position = position - 1, _string_end(text, position)
            token = text[start:position]
        count += 1
        characters += len(token) + 2 * len(open_containers)
        if count >= COUNTED_AT_ONCE:
            size.add(characters, count)
            count = characters = 0
        if token in "[{":
            if len(open_containers) > DEPTH_MAX:
                raise too_deep()
            inner = _Container(token, "]" if token == "[" else "}")
            open_containers.append(inner)
        elif token in "]}":
            closed = open_containers.pop()
            inner = open_containers[-1]
            inner.values.append(closed.lines(len(open_containers) - 1))
            inner.is_leaf = inner.is_leaf and not closed.values
        elif inner.opening == "{" and len(inner.keys) == len(inner.values):
            inner.keys.append(token)
        else:
            inner.values.append(token)
    size.add(characters, count)
    return _joined(root.values)


def too_deep() -> SqlError:
    return SqlError(100069, "22P02", f"Semi-structured value is nested too deeply: the limit is {DEPTH_MAX:,} levels.")


def _string_end(text: str, start: int) -> int:
    """The position after the quote that ends the string whose content begins at `start`."""
    while True:
        quote = text.index('"', start)
        before = quote
        while before > start and text[before - 1] == "\\":
            before -= 1
        start = quote + 1
        if (quote - before) % 2 == 0:
            return start


def _decoded(key: str) -> str:
    return str(json.loads(key)) if "\\" in key else key[1:-1]


def _joined(parts: list[Any]) -> str:
    flat: list[str] = []
    open_lists = [iter(parts)]
    while open_lists:
        for part in open_lists[-1]:
            if isinstance(part, str):
                flat.append(part)
            else:
                open_lists.append(iter(part))
                break
        else:
            open_lists.pop()
    return flat[0] if len(flat) == 1 else "".join(flat)
