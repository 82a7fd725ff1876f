"""How the keys of a file are declared and read: type, default, help and JSON Schema of a key are declared once.

    class LoadStage(Section):
        duration_s: Annotated[float, Duration(low_s=0.1)] = key("Length of the stage.")
        ramp_s: Ramp = key(default="0s")

The default of a key is declared as it would be written in the file; the attribute's default is what the type makes of
it. The key in the file is the attribute's name without its unit: `duration`, `rate`.

The type of a key is bool, a StrEnum, another type with its ValueType, a section, a tuple or a mapping of these, or a
union of sections, each of which is identified by its first key, or by `below`, one key with the whole section below it;
with `| None` the value may be null. Annotations are evaluated when the class is made, so modules that declare sections
do without `from __future__ import annotations`.

`CheckedFile` reads a document as a section. It notes every wrong key and value, leaves these out, and makes the section
of the rest, on which the rules between keys run. A rule asks `fine()` whether the keys that it reads are complete.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, dataclass_transform

from loadgen.log import is_secret_name, printable
from loadgen.scenario.document import SHOWN_MAX, TEXT_SHOWN, Document, KeyPath, YamlNode, data_of, shown, walk
from loadgen.scenario.value_types import (
    Boolean,
    Duration,
    InvalidParts,
    InvalidValue,
    OneOf,
    Rate,
    ValueType,
)
from loadgen.values import dataclass

# --- declaring -------------------------------------------------------------------------------------------------------

REQUIRED: Any = object()  # the default of a key that has none
_KEY = "key"  # in the metadata of a field


class AppliesWhen(NamedTuple):
    """The condition of a key that has a meaning only for some values of a sibling key: `rate` for `mode: rate`."""

    selector: str
    values: tuple[StrEnum, ...]


class KeyDeclaration(NamedTuple):
    """One key of a section."""

    default: Any = REQUIRED  # as it would be written in the file
    description: str | None = None
    applies: AppliesWhen | None = None
    attribute: str = ""
    type: Any = None  # the annotation


def key(description: str | None = None, *, default: Any = REQUIRED, applies: AppliesWhen | None = None) -> Any:
    """A key of a section. The default is written as in the file, so that it can be shown: "60s"."""
    return KeyDeclaration(default, description, applies)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(key,))
class Section:
    """Base of sections: frozen dataclasses that know their keys. An attribute with a plain default is not a key."""

    below: ClassVar[str | None] = None  # in a union: the key that has all keys of the section below it

    def __init_subclass__(cls, *, below: str | None = None) -> None:
        cls.below = below
        for name, annotation in inspect.get_annotations(cls).items():
            origin: Any = typing.get_origin(annotation)
            declared = cls.__dict__.get(name, KeyDeclaration())
            if origin is not ClassVar and isinstance(declared, KeyDeclaration):
                setattr(cls, name, _field(annotation, declared))
        described = cls.__doc__
        dataclass(frozen=True, kw_only=True)(cls)
        cls.__doc__ = described  # `dataclass` replaces a missing docstring


def _field(annotation: Any, declared: KeyDeclaration) -> Any:
    metadata = {_KEY: declared}
    default = declared.default
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    if isinstance(annotation, str) and default is not None:
        raise TypeError(f"the annotation {annotation!r} is not evaluated; see the module's docstring")
    value = default if isinstance(annotation, str) else _Reader().value(annotation, default, ())
    assert value is not UNUSABLE, "a default fits its type"
    return dataclasses.field(default=value, metadata=metadata)


def is_section(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, Section)


@cache
def declared_keys(cls: type) -> Mapping[str, KeyDeclaration]:
    """The keys of a section as they are written, in the order of their declaration."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cls) if _KEY in field.metadata}
    found = {}
    for name in getattr(cls, "order", fields):
        declared = fields[name].metadata[_KEY]._replace(attribute=name, type=hints[name])
        found[_written_name(name, value_type_of(declared.type))] = declared
    return found


def _written_name(attribute: str, value_type: ValueType | None) -> str:
    unit = "_s" if isinstance(value_type, Duration) else "_per_second" if isinstance(value_type, Rate) else ""
    return attribute.removesuffix(unit)


def values_of(value: Any) -> Iterator[tuple[str, KeyDeclaration, Any]]:
    """Each key of a section, its declaration and its value."""
    for name, declared in declared_keys(value.__class__).items():
        yield name, declared, getattr(value, declared.attribute)


def applies_to(value: Any, declared: KeyDeclaration) -> bool:
    """Whether this key has a meaning, given the values of its sibling keys."""
    return declared.applies is None or getattr(value, declared.applies.selector) in declared.applies.values


# --- reading ---------------------------------------------------------------------------------------------------------

UNUSABLE: Any = object()  # in place of a value that is wrong


@dataclass(slots=True)
class _Reader:
    """Makes values of plain data. Wrong values are left out: a key has its default, a list has an element less."""

    root: type = Section
    document: Document | None = None  # where problems are noted
    broken: set[KeyPath] = field(default_factory=set)  # what was left out
    kept: dict[KeyPath, list[int]] = field(default_factory=dict)  # of shortened lists: the numbers in the file

    def section(self, cls: type, data: Any, path: KeyPath) -> Any:
        if isinstance(data, cls):
            return data  # a default
        shorthand = getattr(cls, "shorthand", None)
        if shorthand is not None and isinstance(data, str):
            data = {shorthand: data}
        if not isinstance(data, Mapping):
            return self._fault(path, *_NOT_A_MAPPING)
        declared = declared_keys(cls)
        unknown = self._unknown(data, declared, path)
        values = {one.attribute: self._key(one, data, (*path, name), unknown) for name, one in declared.items()}
        if any(value is UNUSABLE for value in values.values()):
            self.broken.add(path)
            return UNUSABLE
        return cls(**values)

    def _unknown(self, data: Mapping[str, Any], known: Collection[str], path: KeyPath) -> list[str]:
        """The unknown keys of a mapping, each noted as a problem."""
        unknown = [name for name, value in data.items() if name not in known and value is not UNUSABLE]
        for name in unknown:
            place = (*path, name)
            self._fault(place, f"{shown(name)} is not a known key", self._nearest(place, known), key_at=place)
        return unknown

    def _key(self, declared: KeyDeclaration, data: Mapping[str, Any], path: KeyPath, unknown: list[str]) -> Any:
        name, default = str(path[-1]), declared.default
        value = data.get(name, default)
        if value is None and default is not REQUIRED and _is_container(declared.type):
            value = default  # a key with nothing after it
        if value is not REQUIRED:
            found = self.value(declared.type, value, path)
        elif difflib.get_close_matches(name, unknown, n=1):
            found = UNUSABLE  # misspelt: the unknown key is a problem already
            self.broken.add(path)
        else:
            found = self._fault(path, "is missing", f"add {name}: …")
        if found is not UNUSABLE:
            return found
        if default is not REQUIRED:
            return self.value(declared.type, default, path)
        # With a substitute for a missing name or version, the other keys can be checked.
        return {"version": 0, "name": f"MISSING_{len(self.broken)}"}.get(name, UNUSABLE)

    def value(self, type_: Any, value: Any, path: KeyPath) -> Any:
        if value is UNUSABLE:  # its problem is noted already
            self.broken.add(path)
            return UNUSABLE
        value_type = value_type_of(type_)
        if value_type is not None:
            return self._accepted(value_type, value, path)
        if value is None and is_nullable(type_):
            return None
        options = options_of(type_)
        if is_section(options[0]):
            return self.section(options[0], value, path) if len(options) == 1 else self._member(options, value, path)
        inner = element_type(options[0])
        if typing.get_origin(options[0]) is tuple:
            return self._elements(inner, value, path)
        if not isinstance(value, Mapping):
            return self._fault(path, *_NOT_A_MAPPING)
        fits = {name: self._is_key(options[0], name, (*path, name)) for name in value}
        found = {name: self.value(inner, element, (*path, name)) for name, element in value.items()}
        return {name: element for name, element in found.items() if fits[name] and element is not UNUSABLE}

    def _is_key(self, mapping: Any, name: str, path: KeyPath) -> bool:
        """Whether the name fits the type of the mapping's keys."""
        key_type = value_type_of(typing.get_args(mapping)[0])
        try:
            if key_type is not None:
                key_type.accept(name)
        except InvalidValue as error:
            self._fault(path, f"the key {error.what}", error.hint, key_at=path)
            return False
        return True

    def _elements(self, inner: Any, value: Any, path: KeyPath) -> Any:
        if not isinstance(value, list):
            return self._fault(path, "must be a list", "write - before each element, or [ ] around them")
        found = [self.value(inner, element, (*path, number)) for number, element in enumerate(value)]
        kept = [number for number, element in enumerate(found) if element is not UNUSABLE]
        if len(kept) < len(found):
            self.kept[path] = kept
        return tuple(found[number] for number in kept)

    def _accepted(self, value_type: ValueType, value: Any, path: KeyPath) -> Any:
        try:
            return value_type.accept(value)
        except InvalidParts as error:
            for place, part in error.parts.items():
                self._fault((*path, place), part.what, part.hint)
            self.broken.add(path)
            return UNUSABLE
        except InvalidValue as error:
            return self._fault(path, error.what, error.hint)
        except ValueError:
            return self._fault(path, "cannot be used")

    def _member(self, options: tuple[type[Section], ...], data: Any, path: KeyPath) -> Any:
        """The section of a union whose name the mapping has."""
        named = self._named(options, data, path)
        if named is UNUSABLE:
            return UNUSABLE
        if named.below is None:
            return self.section(named, data, path)
        self._unknown(data, (named.below,), path)
        return self.value(named, data[named.below], (*path, named.below))

    def _named(self, options: tuple[type[Section], ...], data: Any, path: KeyPath) -> Any:
        named = {name_in_union(option): option for option in options}
        generators = f"generators are {', '.join(named)}"
        if not isinstance(data, Mapping):
            hint = f"for a fixed value write {{literal: …}}; {generators}"
            return self._fault(path, "must name a generator", hint)
        found = [key for key in data if key in named]
        if len(found) == 1:
            return named[found[0]]
        if found:
            what = f"names {len(found)} generators: {', '.join(found)}"
            return self._fault(path, what, "write one per parameter")
        if not data:
            return self._fault(path, "names no generator", generators)
        key = next(iter(data))
        near = difflib.get_close_matches(key, named, n=1)
        hint = f"did you mean {near[0]}?" if near else generators
        return self._fault(path, f"{shown(key)} is not a generator", hint, key_at=(*path, key))

    def _nearest(self, path: KeyPath, known: Collection[str]) -> str | None:
        """A hint for an unknown key: the key that is spelt most like it, or the section that it belongs to."""
        if self.document is None or len(self.document.problems) > SHOWN_MAX:
            return None  # it would not be shown, and finding it takes time
        key = str(path[-1])
        near = difflib.get_close_matches(key, known, n=1)
        elsewhere = [place for place, keys in _all_keys(self.root).items() if key in keys and place != path[0]]
        if near and (not elsewhere or difflib.get_close_matches(key, known, n=1, cutoff=0.8)):
            return f"did you mean {near[0]}?"
        if elsewhere:
            return f"it belongs under {' or '.join(elsewhere[:3])}"
        return f"known here: {', '.join(known)}"

    def _fault(self, path: KeyPath, what: str, hint: str | None = None, *, key_at: KeyPath | None = None) -> Any:
        """Note a problem with the value at `path`, or with the key at `key_at`, and leave the value out."""
        self.broken.add(path)
        if self.document is not None and not self.document.is_rejected(path):
            place = key_at or _written_place(self.document, path)
            self.document.problem(place, what, hint, at_key=key_at is not None)
        return UNUSABLE


_NOT_A_MAPPING = ("must be a mapping", "write keys and values below it")


def _written_place(document: Document, path: KeyPath) -> KeyPath:
    """The path of the value as it is written: a text may stand for a section."""
    while len(path) > 1 and document.entry(path) is None:
        parent = document.entry(path[:-1])
        if parent is None or isinstance(parent.node.value, (dict, list)):
            break
        path = path[:-1]
    return path


def _all_keys(root: type) -> dict[str, Mapping[str, KeyDeclaration]]:
    """The keys of each section at the top of the file."""
    types = {name: options_of(declared.type)[0] for name, declared in declared_keys(root).items()}
    return {name: declared_keys(section) for name, section in types.items() if is_section(section)}


def name_in_union(cls: type) -> str:
    """The key by which a mapping is recognised as this section: `below`, which contains all keys, or the first key."""
    return getattr(cls, "below", None) or next(iter(declared_keys(cls)))


@cache
def value_type_of(type_: Any) -> ValueType | None:
    """The type of `Annotated[int, Integer()]`, of a StrEnum, of bool, and of each of these `| None`; else None."""
    declared: Any = next((one for one in getattr(type_, "__metadata__", ()) if isinstance(one, ValueType)), None)
    if declared is not None:
        return declared  # type: ignore[no-any-return]
    if is_nullable(type_) and len(options_of(type_)) == 1:
        declared = copy.copy(value_type_of(options_of(type_)[0]))
        vars(declared).update(nullable=True) if declared is not None else None
        return declared  # type: ignore[no-any-return]
    if isinstance(type_, type) and issubclass(type_, StrEnum):
        return OneOf(words=type_)
    return Boolean() if type_ is bool else None


def element_type(type_: Any) -> Any:
    """The type of the elements of a tuple, or of the values of a mapping."""
    arguments = [one for one in typing.get_args(type_) if one is not Ellipsis]
    return arguments[-1] if arguments else None


def options_of(type_: Any) -> tuple[Any, ...]:
    """What a value may be: one type, or the members of a union; without null."""
    if typing.get_origin(type_) not in (typing.Union, types.UnionType):
        return (type_,)
    return tuple(option for option in typing.get_args(type_) if option is not type(None))


def is_nullable(type_: Any) -> bool:
    return type(None) in typing.get_args(type_)


def _is_container(type_: Any) -> bool:
    return value_type_of(type_) is None and not is_nullable(type_)


# --- checking a document ---------------------------------------------------------------------------------------------

FileSection = TypeVar("FileSection")

_DATA = {"values", "choice"}  # keys below these are data of the user
_NAMES_ONLY: set[KeyPath] = {("spawner", "secret")}  # the name of an object in Kubernetes, not its content


class CheckedFile(Generic[FileSection]):
    """A document and the section made of it. `file` is None when too little is left to check."""

    def __init__(self, section: type[FileSection], document: Document) -> None:
        self.document = document
        self.file: FileSection | None = None
        self._reader = _Reader(section, document)
        if document.root is None:
            return
        _reject_secrets(document, document.root)
        found = self._reader.section(section, plain(document.root), ())
        self.file = None if found is UNUSABLE else found

    def fine(self, *paths: KeyPath | str) -> bool:
        """Whether these values, and all values below and above them, are without problems of type."""
        originals = [self.original(path) for path in paths]
        return not any(_related(path, broken) for path in originals for broken in self._reader.broken)

    def members_fine(self, path: KeyPath, key: str) -> bool:
        """As fine(), for this key of every member of a list: other keys of a member may have problems."""
        place, size = self.original(path), len(self.original(path))
        inner = (one[size:] for one in self._reader.broken if _related(place, one))
        return not any(len(one) < 2 or one[1] == key for one in inner)

    def given(self, path: KeyPath | str) -> bool:
        """Whether the file (or an option) sets it to something other than null or an empty value."""
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

    def require(self, holds: bool, path: KeyPath | str, what: str, hint: str, *others: KeyPath | str) -> None:
        """Note a problem with the value at this path unless the rule holds, or this value or one of the `others` that
        the rule reads is wrong already."""
        if not holds and self.fine(path, *others):
            self.problem(path, what, hint)

    def require_absent(self, path: KeyPath | str, what: str, hint: str) -> None:
        """Note a problem with the key at this path if it is given."""
        if self.given(path):
            self.key_problem(path, what, hint)

    def require_different_names(self, path: KeyPath, names: Iterable[str], kind: str, hint: str) -> None:
        """Note elements of the list at `path` that have the name of an earlier element."""
        seen: set[str] = set()
        for number, name in enumerate(names):
            self.require(name not in seen, (*path, number, "name"), f"is the name of another {kind} too", hint)
            seen.add(name)

    def warn(self, path: KeyPath | str, what: str, hint: str | None = None) -> None:
        """Note something that works, but is probably a mistake."""
        before = len(self.document.problems)
        self.document.problem(self.original(path), what, hint, at_key=True)
        self.document.warnings += self.document.problems[before:]
        del self.document.problems[before:]

    def original(self, path: KeyPath | str) -> KeyPath:
        """The path in the file. It differs from the path in the section where wrong elements of lists are left out."""
        found: KeyPath = ()
        for part in path.split(".") if isinstance(path, str) else path:
            kept = self._reader.kept.get(found)
            found = (*found, kept[part] if kept is not None and isinstance(part, int) else part)
        return found


def plain(root: YamlNode) -> Any:
    """The data of a document; values that have a problem already are UNUSABLE."""
    return data_of(root, lambda node, path: UNUSABLE if node.rejected and path else node.value)


def _related(path: KeyPath, other: KeyPath) -> bool:
    shorter = min(len(path), len(other))
    return path[:shorter] == other[:shorter]


def _reject_secrets(document: Document, root: YamlNode) -> None:
    """Note keys that look like secrets, and reject their values."""
    for path, node in walk(root):
        for key, entry in node.value.items() if isinstance(node.value, dict) else ():
            if is_secret_name(key) and not (path and path[-1] in _DATA) and (*path, key) not in _NAMES_ONLY:
                # At the mapping's path: `password: …` would be masked wherever it is printed.
                what = f"the key {shown(key)} looks like a secret, which a scenario must not contain"
                hint = "put it in connections.toml and name that connection; `loadgen connections list` shows the file"
                document.problems.append(document.problem_of(entry.node, entry.mark, path, what, hint))
                entry.node.rejected = True
