"""Keys and types: the tree checked against the declarations, every problem at once.

A section with a fault cannot be made, so faulty parts are removed and the rest is read again, until no fault is left.
The rules between keys then run on the rest; they ask `fine()` whether the keys they look at are complete.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Generic, TypeAlias, TypeVar

from loadgen.log import is_secret_name, printable
from loadgen.scenario.document import SHOWN_MAX, TEXT_SHOWN, Document, KeyPath, MappingEntry, YamlNode, shown
from loadgen.scenario.file import VERSION, ScenarioFile
from loadgen.scenario.generators import GENERATORS
from loadgen.scenario.keys import (
    KeyFault,
    KeyFaultKind,
    declared_keys,
    element_type,
    is_section,
    named_section,
    options_of,
    read_section,
)
from loadgen.values import dataclass

PASSES_MAX = 100
# Placeholders for missing keys, so that the rest can still be checked.
_STAND_INS: dict[str, Any] = {"version": VERSION, "workload": {}}


class Elements(list[Any]):
    """A list of the file with the original positions of its elements."""

    __slots__ = ("numbers",)

    def __init__(self, elements: list[Any]) -> None:
        super().__init__(elements)
        self.numbers = list(range(len(elements)))


FileSection = TypeVar("FileSection")


@dataclass(slots=True)
class CheckedFile(Generic[FileSection]):
    """A document and the section made of it. `file` is None when too little is left to check."""

    document: Document
    section: type[FileSection]  # of the whole file
    data: Any
    file: FileSection | None = None
    broken: set[KeyPath] = field(default_factory=set)  # positions of the file that were removed

    def fine(self, *paths: KeyPath | str) -> bool:
        """Are all these values right, and everything below and above them?"""
        originals = [self.original(path) for path in paths]
        return not any(_related(path, broken) for path in originals for broken in self.broken)

    def given(self, path: KeyPath | str) -> bool:
        """Does the file (or an option) set it to something other than null or an empty value?"""
        entry = self.document.entry(self.original(path))
        return entry is not None and entry.node.value not in (None, {}, [])

    def written(self, path: KeyPath) -> str:
        """The scalar as it was written: safe to show, because variables are not resolved."""
        entry = self.document.entry(self.original(path))
        return printable(entry.node.text, TEXT_SHOWN) if entry is not None else ""

    def problem(self, path: KeyPath | str, what: str, hint: str | None = None) -> None:
        """Note a problem with the value at this path."""
        self.document.problem(self.original(path), what, hint)

    def key_problem(self, path: KeyPath | str, what: str, hint: str | None = None) -> None:
        """Note a problem with the key at this path, or with everything below it."""
        self.document.problem(self.original(path), what, hint, at_key=True)

    def require_different_names(self, path: KeyPath, names: Iterable[str], kind: str, hint: str) -> None:
        """Note elements of the list at `path` that have the name of an earlier element."""
        seen: set[str] = set()
        for number, name in enumerate(names):
            place = (*path, number, "name")
            if name in seen and self.fine(place):
                self.problem(place, f"is the name of another {kind} too", hint)
            seen.add(name)

    def warn(self, path: KeyPath | str, what: str, hint: str | None = None) -> None:
        """Note something that works, but is probably a mistake."""
        before = len(self.document.problems)
        self.document.problem(self.original(path), what, hint, at_key=True)
        self.document.warnings += self.document.problems[before:]
        del self.document.problems[before:]

    def original(self, path: KeyPath | str) -> KeyPath:
        """The position in the file of `path` in the section: elements before it may have been removed."""
        path = tuple(path.split(".")) if isinstance(path, str) else path
        parts: list[str | int] = []
        here: Any = self.data
        for part in path:
            if isinstance(here, Elements) and isinstance(part, int) and part < len(here):
                parts.append(here.numbers[part])
                here = here[part]
            else:
                parts.append(part)
                here = here.get(part) if isinstance(here, Mapping) else None
        return tuple(parts)


CheckedDocument: TypeAlias = CheckedFile[ScenarioFile]


def validate(document: Document) -> CheckedDocument:
    """Check keys and types of a scenario; the problems are noted in the document."""
    return validate_as(ScenarioFile, document)


def validate_as(section: type[FileSection], document: Document) -> CheckedFile[FileSection]:
    """Check keys and types of a file whose root is this section."""
    checked = CheckedFile(document, section, None if document.root is None else _plain(document.root))
    if document.root is None:
        return checked
    _remove_rejected(checked, document.root, ())
    for _ in range(PASSES_MAX):
        faults: list[KeyFault] = []
        checked.file = read_section(section, checked.data, (), faults)
        if checked.file is not None or not _remove_causes(checked, faults):
            break
    return checked


def _plain(node: YamlNode) -> Any:
    if isinstance(node.value, dict):
        return {key: _plain(entry.node) for key, entry in node.value.items()}
    return Elements([_plain(element) for element in node.value]) if isinstance(node.value, list) else node.value


def _related(path: KeyPath, other: KeyPath) -> bool:
    shorter = min(len(path), len(other))
    return path[:shorter] == other[:shorter]


# --- secrets ---------------------------------------------------------------------------------------------------------

_DATA = {"values", "choice"}  # keys below these are data of the user
_NAMES_ONLY: set[KeyPath] = {("spawner", "secret")}  # the name of an object in Kubernetes, not its content


def _remove_rejected(checked: CheckedFile[Any], node: YamlNode, path: KeyPath) -> None:
    """Remove values that already have a problem, and keys that look like secrets."""
    if isinstance(node.value, list):
        for number, element in reversed(list(enumerate(node.value))):
            _remove_rejected(checked, element, (*path, number))
    elif isinstance(node.value, dict):
        for key, entry in node.value.items():
            if is_secret_name(key) and not (path and path[-1] in _DATA) and (*path, key) not in _NAMES_ONLY:
                _note_secret(checked.document, path, key, entry)
                _remove(checked, (*path, key))
            else:
                _remove_rejected(checked, entry.node, (*path, key))
    elif node.rejected and path:
        _remove(checked, path)


def _note_secret(document: Document, path: KeyPath, key: str, entry: MappingEntry) -> None:
    # At the mapping's path: `password: …` would be masked wherever it is printed.
    what = f"the key {shown(key)} looks like a secret, and a scenario holds none"
    hint = "put it in connections.toml and name that connection; `loadgen connections list` shows the file"
    document.problems.append(document.problem_of(entry.node, entry.mark, path, what, hint))


# --- faults ----------------------------------------------------------------------------------------------------------


def _remove_causes(checked: CheckedFile[Any], faults: Sequence[KeyFault]) -> bool:
    """Note each fault and remove its cause; False when nothing is left to check."""
    unknown = [fault.path for fault in faults if fault.kind is KeyFaultKind.UNKNOWN]
    for fault in faults:
        mistyped = fault.kind is KeyFaultKind.MISSING and _is_mistyped(fault.path, unknown)
        if not mistyped and not any(_related(checked.original(fault.path), broken) for broken in checked.broken):
            _note(checked, fault)
    causes = {_cause(checked, fault) for fault in faults}
    if () in causes:
        return False
    for path in sorted(causes, key=_from_the_end):
        _remove(checked, path)
    return True


def _is_mistyped(missing: KeyPath, unknown: list[KeyPath]) -> bool:
    """Is an unknown key beside it probably this one, mistyped? Then one problem is enough."""
    beside = [str(path[-1]) for path in unknown if path[:-1] == missing[:-1]]
    return bool(difflib.get_close_matches(str(missing[-1]), beside, n=1))


def _from_the_end(path: KeyPath) -> tuple[Any, ...]:
    """Sort key: removing one element must not move those still to be removed."""
    return (-len(path), *((0, -part, "") if isinstance(part, int) else (1, 0, part) for part in path))


def _cause(checked: CheckedFile[Any], fault: KeyFault) -> KeyPath:
    """What to remove: the value, or for a missing key the mapping that lacks it."""
    path = fault.path
    if fault.kind is not KeyFaultKind.MISSING:
        return path
    name = path[-1]
    if name in _STAND_INS or name == "name":
        mapping = _at(checked.data, path[:-1])
        mapping[name] = _STAND_INS.get(str(name), f"MISSING_{len(checked.broken)}")
        checked.broken.add(checked.original(path))
        return ("",)  # nothing to remove
    return path[:-1]


def _remove(checked: CheckedFile[Any], path: KeyPath) -> None:
    *above, last = path
    parent = _at(checked.data, tuple(above))
    if isinstance(parent, Elements) and isinstance(last, int) and last < len(parent):
        checked.broken.add(checked.original(path))
        del parent[last]
        del parent.numbers[last]
    elif isinstance(parent, dict) and last in parent:
        checked.broken.add(checked.original(path))
        del parent[last]
    elif parent is not None and last != "":
        _remove(checked, tuple(above))


def _at(data: Any, path: KeyPath) -> Any:
    for part in path:
        inside = (isinstance(data, list) and isinstance(part, int) and part < len(data)) or (
            isinstance(data, dict) and part in data
        )
        if not inside:
            return None
        data = data[part]
    return data


# --- messages --------------------------------------------------------------------------------------------------------


def _note(checked: CheckedFile[Any], fault: KeyFault) -> None:
    path = fault.path
    match fault.kind:
        case KeyFaultKind.UNKNOWN:
            _note_unknown(checked, path)
        case KeyFaultKind.MISSING:
            checked.problem(path, "is missing", f"add {path[-1]}: …")
        case KeyFaultKind.WRONG:
            assert fault.wrong is not None
            checked.problem(_down_to_the_value(checked, path), fault.wrong.what, fault.wrong.hint)
        case KeyFaultKind.NOT_NAMED:
            _note_generator(checked, path)
        case KeyFaultKind.NOT_A_LIST:
            hint = "write - before each element, or [ ] around them"
            checked.problem(_down_to_the_value(checked, path), "must be a list", hint)
        case KeyFaultKind.NOT_A_MAPPING:
            checked.problem(_down_to_the_value(checked, path), "must be a mapping", "write keys and values below it")


def _down_to_the_value(checked: CheckedFile[Any], path: KeyPath) -> KeyPath:
    """A threshold may be written as a text, where the section is a mapping."""
    while len(path) > 1 and checked.document.entry(checked.original(path)) is None:
        parent = checked.document.entry(checked.original(path[:-1]))
        if parent is None or isinstance(parent.node.value, (dict, list)):
            break
        path = path[:-1]
    return path


def _note_unknown(checked: CheckedFile[Any], path: KeyPath) -> None:
    key = str(path[-1])
    if len(checked.document.problems) > SHOWN_MAX:  # the hint is not shown, and finding it takes time
        checked.key_problem(path, f"{shown(key)} is not a known key")
        return
    known = keys_at(checked.section, checked.data, path[:-1])
    near = difflib.get_close_matches(key, known, n=1)
    elsewhere = [place for place, keys in _all_keys(checked.section).items() if key in keys and place != path[0]]
    if near and (not elsewhere or difflib.get_close_matches(key, known, n=1, cutoff=0.8)):
        hint = f"did you mean {near[0]}?"
    elif elsewhere:
        hint = f"it belongs under {' or '.join(elsewhere[:3])}"
    else:
        hint = f"known here: {', '.join(known)}" if known else "it has no keys"
    checked.key_problem(path, f"{shown(key)} is not a known key", hint)


def _note_generator(checked: CheckedFile[Any], path: KeyPath) -> None:
    entry = checked.document.entry(checked.original(path))
    value = entry.node.value if entry is not None else None
    if not isinstance(value, dict):
        hint = "for a fixed value write {literal: …}; generators are " + ", ".join(GENERATORS)
        checked.problem(path, "must name a generator", hint)
        return
    found = [key for key in value if key in GENERATORS]
    if len(found) > 1:
        checked.problem(path, f"names {len(found)} generators: {', '.join(found)}", "write one per parameter")
        return
    key = next(iter(value), None)
    near = difflib.get_close_matches(key, GENERATORS, n=1) if key else []
    hint = f"did you mean {near[0]}?" if near else f"generators are {', '.join(GENERATORS)}"
    if key is None:
        checked.problem(path, "names no generator", hint)
    else:
        checked.key_problem((*path, key), f"{shown(key)} is not a generator", hint)


def keys_at(root: type, data: Any, path: KeyPath) -> list[str]:
    """The keys that a mapping of the file may have."""
    type_: Any = root
    for depth, part in enumerate(path):
        type_ = _below(type_, part, _at(data, path[:depth]))
    section = _section(type_, _at(data, path))
    return [] if section is None else list(declared_keys(section))


def _below(type_: Any, part: str | int, value: Any) -> Any:
    section = _section(type_, value)
    if section is None:
        return element_type(options_of(type_)[0])
    declared = declared_keys(section).get(str(part))
    return declared.type if declared is not None else None


def _section(type_: Any, value: Any) -> type | None:
    """The section of a type; of a union, the one that `value` names."""
    options = options_of(type_)
    if len(options) > 1:
        return named_section(options, value)
    return options[0] if is_section(options[0]) else None


def _all_keys(root: type) -> dict[str, set[str]]:
    sections = {name: _section(declared.type, None) for name, declared in declared_keys(root).items()}
    return {name: set(declared_keys(section)) for name, section in sections.items() if section is not None}
