"""YAML within limits, without its surprises.

The tree is built from the parser's events, not by the library, so that size, depth and number of values are limited
while reading: 10,000 brackets or an alias bomb cost no more than their first few. Anchors, aliases, merge keys, tags,
several documents, dates, keys that are not texts and duplicate keys are problems; reading continues after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)
from ruamel.yaml.reader import ReaderError

from loadgen.log import printable
from loadgen.scenario.document import (
    Document,
    KeyPath,
    MappingEntry,
    NotAScalar,
    Problem,
    SourcePosition,
    YamlNode,
    resolve,
    shown,
)

BYTES_MAX = 1_000_000


DEPTH_MAX = 32


VALUES_MAX = 20_000  # keys and values together


BRACKETS_MAX = 200  # open at once; the library's scanner needs quadratic time for them before it returns the first


def read_text(path: Path) -> str | Problem:
    """The text of a file, or why it cannot be had. Never reads more than the limit."""

    def no(what: str, hint: str | None = None) -> Problem:
        return Problem(source=str(path), mark=None, path=(), what=what, hint=hint)

    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        inside = "name a scenario in it, such as scenario.yaml"
        hint = inside if isinstance(error, IsADirectoryError) else "`loadgen init` writes a scenario to start from"
        return no(f"cannot be read: {error.strerror}", hint)
    if len(content) > BYTES_MAX:
        return no(f"is larger than {BYTES_MAX // 1_000_000} MB", "large lists of values belong in a CSV file: values")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return no(f"is not UTF-8 text: line {line} has the byte 0x{content[error.start]:02x}", "save it as UTF-8")


def compose(text: str, source: str) -> Document:
    """Read one YAML document."""
    document = Document(source)
    composer = _Composer(document)
    if _brackets(text) > BRACKETS_MAX:
        composer.no(None, f"is nested more than {DEPTH_MAX} levels deep", _FLAT)
        return document
    try:
        document.root = composer.compose(YAML(typ="safe", pure=True).parse(text))
    except _Hopeless:
        pass  # its problem is noted
    except ReaderError as error:
        before = text[: error.position]
        mark = SourcePosition(before.count("\n") + 1, len(before) - before.rfind("\n"))
        composer.no(mark, "contains a control character, which YAML does not allow", "remove it")
    except MarkedYAMLError as error:
        composer.unreadable(error)
    except (YAMLError, ValueError, OverflowError) as error:  # the last two: "\U99999999"
        composer.no(composer.mark, f"cannot be read as YAML: {printable(str(error), 200)}")
    return document


_FLAT = "a scenario needs fewer than ten levels"


_BRACKET = re.compile(r"[][{}]")


def _brackets(text: str) -> int:
    """The most brackets open at once, those in texts included."""
    depth = deepest = 0
    for match in _BRACKET.finditer(text):
        depth = depth + 1 if match[0] in "[{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest


class _Hopeless(Exception):
    """Reading cannot continue, or would cost too much."""


@dataclass(slots=True)
class _Open:
    """A mapping or list that is being read. `key` None: a key comes next."""

    node: YamlNode
    path: KeyPath
    key: str | None = None
    key_mark: SourcePosition | None = None
    dropped: bool = False  # the next value has a rejected key


class _Composer:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._open: list[_Open] = []
        self._values = 0
        self._root: YamlNode | None = None
        self.mark: SourcePosition | None = None  # of the newest event

    def no(self, mark: SourcePosition | None, what: str, hint: str | None = None) -> None:
        problem = Problem(source=self._document.source, mark=mark, path=self._path(), what=what, hint=hint)
        self._document.problems.append(problem)

    def unreadable(self, error: MarkedYAMLError) -> None:
        place = error.problem_mark or error.context_mark
        mark = SourcePosition(place.line + 1, place.column + 1) if place else self.mark
        said = " ".join(part for part in (error.problem, error.context) if part) or "syntax error"
        hints = {
            "\\t": "indent with spaces, never with tabs",
            "but got '{'": "quote ${NAME} inside of braces and brackets",
            "mapping values are not allowed": "quote a text that contains ': ', and check the indentation",
            "cannot start any token": "quote a text that begins with a special character such as @ ` or %",
            "alias": "quote a text that begins with *",
            "quoted scalar": "a quote is not closed",
        }
        hint = next((hint for words, hint in hints.items() if words in said), "check indentation, colons and quotes")
        self.no(mark, f"cannot be read as YAML: {printable(said, 200)}", hint)

    def compose(self, events: Iterable[Any]) -> YamlNode | None:
        documents = 0
        for event in events:
            self.mark = SourcePosition(event.start_mark.line + 1, event.start_mark.column + 1)
            if isinstance(event, DocumentStartEvent):
                documents += 1
                self._begin(event, documents)
            elif isinstance(event, CollectionEndEvent):
                self._open.pop()
            elif isinstance(event, NodeEvent):
                self._add(event)
        if self._root is None or self._root.value is None:
            self.no(None, "is empty", "`loadgen init` writes a scenario to start from")
        return self._root

    def _begin(self, event: DocumentStartEvent, documents: int) -> None:
        if documents > 1:
            self.no(self.mark, "holds more than one document", "write each scenario to its own file, without ---")
            raise _Hopeless
        if event.version not in (None, (1, 2)) or event.tags:
            self.no(self.mark, "has a % directive, which is not supported", "remove it; files are read as YAML 1.2")

    def _add(self, event: NodeEvent) -> None:
        self._values += 1
        if self._values > VALUES_MAX:
            self.no(self.mark, f"has more than {VALUES_MAX:,} keys and values", "large lists belong in a CSV file")
            raise _Hopeless
        parent = self._open[-1] if self._open else None
        if parent is not None and isinstance(parent.node.value, dict) and parent.key is None and not parent.dropped:
            self._add_key(event, parent)
            return
        node, path = self._node(event), self._path()
        if parent is None:
            self._root = node
        elif isinstance(parent.node.value, list):
            parent.node.value.append(node)
        elif isinstance(parent.node.value, dict):
            if not parent.dropped and parent.key is not None:
                parent.node.value[parent.key] = MappingEntry(parent.key_mark, node)
            parent.key, parent.dropped = None, False
        if not isinstance(event, (ScalarEvent, AliasEvent)):
            self._begin_inner(node, path)

    def _begin_inner(self, node: YamlNode, path: KeyPath) -> None:
        if len(self._open) >= DEPTH_MAX:
            self._open.clear()  # a path of 32 parts is not readable
            self.no(self.mark, f"is nested more than {DEPTH_MAX} levels deep", _FLAT)
            raise _Hopeless
        self._open.append(_Open(node, path))

    def _add_key(self, event: NodeEvent, parent: _Open) -> None:
        assert isinstance(parent.node.value, dict)
        parent.dropped = True  # until the key has proved good
        if not isinstance(event, ScalarEvent):
            self.no(self.mark, "a key must be a text", "lists, mappings and aliases cannot be keys")
            node = self._node(event)
            if not isinstance(event, AliasEvent):
                self._begin_inner(node, parent.path)
            return
        key = _joined(event.value)
        self._refuse_decorations(event)
        if event.implicit[0] and key == "<<":
            self.no(self.mark, "merge keys (<<) are not supported", "write the keys out")
        elif event.implicit[0] and not _is_text(key):
            self.no(self.mark, f"the key {shown(key)} is not a text", f'quote it: "{printable(key, 20)}"')
        elif key in parent.node.value:
            first = parent.node.value[key].mark
            line = f" on line {first.line}" if first else ""
            self.no(self.mark, f"the key {shown(key)} is there twice, first{line}", "remove one of them")
        else:
            parent.key, parent.key_mark, parent.dropped = key, self.mark, False

    def _node(self, event: NodeEvent) -> YamlNode:
        self._refuse_decorations(event)
        if isinstance(event, AliasEvent):
            self.no(self.mark, "aliases (*name) are not supported", "write the value out; quote a text with a * first")
            return YamlNode(self.mark, None, f"*{event.anchor}", refused=True)
        if isinstance(event, MappingStartEvent):
            return YamlNode(self.mark, {})
        if not isinstance(event, ScalarEvent):
            return YamlNode(self.mark, [])
        text = _joined(event.value)
        if not event.implicit[0]:
            return YamlNode(self.mark, text, text or '""')
        try:
            return YamlNode(self.mark, resolve(text), text)
        except NotAScalar as error:
            self.no(self.mark, f"{error}, got {shown(text)}")
            return YamlNode(self.mark, text, text, refused=True)

    def _refuse_decorations(self, event: NodeEvent) -> None:
        if isinstance(event, AliasEvent):
            return
        if event.anchor is not None:
            self.no(self.mark, "anchors (&name) are not supported", "write the value out where it is needed")
        if getattr(event, "tag", None) is not None:
            self.no(self.mark, "tags (!name) are not supported", "quote a text that begins with !")

    def _path(self) -> KeyPath:
        """Of the value that comes next."""
        if not self._open:
            return ()
        parent = self._open[-1]
        if isinstance(parent.node.value, list):
            return (*parent.path, len(parent.node.value))
        return parent.path if parent.key is None else (*parent.path, parent.key)


_HALVES = re.compile("[\ud800-\udfff]")


def _joined(text: str) -> str:
    """JSON writes 😀 as two halves, and JSON is YAML: put them together. A half alone stays, and is refused later."""
    if not _HALVES.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _is_text(key: str) -> bool:
    try:
        return isinstance(resolve(key), str)
    except NotAScalar:
        return False
