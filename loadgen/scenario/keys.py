"""What all sections of the file share: how keys are declared, and how a mapping of the file becomes a section.

    class StageSection(Section):
        duration: Annotated[float, Duration(low_s=0.1)] = key(description="How long it lasts.")
        ramp: Ramp = key(default="0s")

The type of a key is a Kind, a section, a list or a mapping of these, or a union of sections, each of which is named by
its first key; with `| None` the value may be null. Types are read from the annotations themselves, so modules that
declare sections do without `from __future__ import annotations`.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, Self

from loadgen.scenario.document import KeyPath
from loadgen.scenario.types import InvalidValue, JsonSchema, ValueType

REQUIRED: Any = object()  # the default of a key that has none


@dataclass(frozen=True, slots=True)
class KeyDeclaration:
    """One key of a section."""

    default: Any  # as one would write it in the file
    description: str | None = None
    alias: str | None = None  # the key, where its name cannot be an attribute's
    type: Any = None  # the annotation


def key(*, default: Any = REQUIRED, description: str | None = None, alias: str | None = None) -> Any:
    """A key of a section. The default is what one would write in the file, so that it can be shown: "60s"."""
    return KeyDeclaration(default, description, alias)


class KeyFaultKind(Enum):
    UNKNOWN = auto()  # a key that the section does not have
    MISSING = auto()
    WRONG = auto()  # a value that its kind refused
    NOT_A_LIST = auto()
    NOT_A_MAPPING = auto()
    NOT_NAMED = auto()  # a mapping that names none of the sections it may be, or several


@dataclass(frozen=True, slots=True)
class KeyFault:
    """Something in the data that a section cannot be made of."""

    kind: KeyFaultKind
    path: KeyPath
    wrong: InvalidValue | None = None


class ScenarioSection:
    """A mapping of the file: unknown keys are refused; a container key with nothing behind it counts as absent.

    A section never changes. Without arguments it is made of the defaults.
    """

    containers: ClassVar[frozenset[str]] = frozenset()
    shorthand: ClassVar[JsonSchema | None] = None  # what may be written instead of the mapping
    _keys: ClassVar[Mapping[str, KeyDeclaration]]  # once they were asked for

    def __init__(self) -> None:
        faults: list[KeyFault] = []
        self.__dict__.update(self._values({}, (), faults))
        assert not faults, "a section of defaults has no required keys, and its defaults are right"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a section does not change: {name}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # it holds lists

    @classmethod
    def declared_keys(cls) -> Mapping[str, KeyDeclaration]:
        """Its keys by the names of the attributes, in the order in which they are declared."""
        found: dict[str, KeyDeclaration] | None = cls.__dict__.get("_keys")  # of this class, not of a base
        if found is None:
            found = {}
            for declaring in reversed(cls.__mro__):
                if issubclass(declaring, ScenarioSection) and declaring is not ScenarioSection:
                    found |= _declared(declaring)
            cls._keys = found
        return found

    @classmethod
    def read(cls, data: Any, path: KeyPath, faults: list[KeyFault]) -> Self | None:
        """The section that stands at `path`; None when there are faults, which are added to `faults`."""
        if isinstance(data, cls):
            return data  # a default
        data = cls.accept(data)
        if not isinstance(data, Mapping):
            faults.append(KeyFault(KeyFaultKind.NOT_A_MAPPING, path))
            return None
        before = len(faults)
        values = cls._values(data, path, faults)
        if len(faults) > before:
            return None
        section = cls.__new__(cls)
        section.__dict__.update(values)
        return section

    @classmethod
    def accept(cls, data: Any) -> Any:
        """The mapping that is meant by what was written."""
        if not isinstance(data, Mapping):
            return data
        return {name: value for name, value in data.items() if value is not None or name not in cls.containers}

    @classmethod
    def _values(cls, data: Mapping[str, Any], path: KeyPath, faults: list[KeyFault]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        written = set()
        for name, declared in cls.declared_keys().items():
            known_as = declared.alias or name
            written.add(known_as)
            value = data.get(known_as, declared.default)
            place = (*path, known_as)
            if value is REQUIRED:
                faults.append(KeyFault(KeyFaultKind.MISSING, place))
            else:
                values[name] = read_value(declared.type, value, place, faults)
        faults += [KeyFault(KeyFaultKind.UNKNOWN, (*path, name)) for name in data if name not in written]
        return values


def _declared(section: type[ScenarioSection]) -> dict[str, KeyDeclaration]:
    """The keys that this class adds to those of its bases."""
    annotations: Mapping[str, Any] = inspect.get_annotations(section)
    if any(isinstance(annotation, str) for annotation in annotations.values()):  # of names that are defined further on
        known = typing.get_type_hints(section, include_extras=True)
        annotations = {name: known[name] for name in annotations}
    found = {}
    for name, annotation in annotations.items():
        if typing.get_origin(annotation) is not ClassVar:
            given = section.__dict__.get(name, REQUIRED)
            declared = given if isinstance(given, KeyDeclaration) else KeyDeclaration(given)
            found[name] = KeyDeclaration(declared.default, declared.description, declared.alias, annotation)
    return found


# --- values ----------------------------------------------------------------------------------------------------------


def read_value(type_: Any, value: Any, path: KeyPath, faults: list[KeyFault]) -> Any:
    """A value of the file as its type makes it; what is wrong with it is added to `faults`."""
    kind = kind_of(type_)
    if kind is not None:
        try:
            return kind.accept(value)
        except ValueError as error:
            wrong = error if isinstance(error, InvalidValue) else InvalidValue("cannot be used")
            faults.append(KeyFault(KeyFaultKind.WRONG, (*path, *wrong.at), wrong))
            return None
    if value is None and is_nullable(type_):
        return None
    options = options_of(type_)
    if len(options) > 1:
        return _read_one_of(options, value, path, faults)
    option = options[0]
    if isinstance(option, type) and issubclass(option, ScenarioSection):
        return option.read(value, path, faults)
    inner = typing.get_args(option)[-1]
    if typing.get_origin(option) is list:
        if not isinstance(value, list):
            faults.append(KeyFault(KeyFaultKind.NOT_A_LIST, path))
            return None
        return [read_value(inner, element, (*path, number), faults) for number, element in enumerate(value)]
    if not isinstance(value, Mapping):
        faults.append(KeyFault(KeyFaultKind.NOT_A_MAPPING, path))
        return None
    return {name: read_value(inner, element, (*path, name), faults) for name, element in value.items()}


def _read_one_of(options: tuple[Any, ...], value: Any, path: KeyPath, faults: list[KeyFault]) -> Any:
    section = named_section(options, value)
    if section is None:
        faults.append(KeyFault(KeyFaultKind.NOT_NAMED, path))
        return None
    return section.read(value, path, faults)


def named_section(options: tuple[type[ScenarioSection], ...], data: Any) -> type[ScenarioSection] | None:
    """The section that a mapping names by its first key, when it names exactly one."""
    if not isinstance(data, Mapping):
        return None
    found = [section for section in options if next(iter(section.declared_keys())) in data]
    return found[0] if len(found) == 1 else None


def kind_of(type_: Any) -> ValueType | None:
    """The Kind of `Annotated[int, Whole()]`."""
    return next((one for one in getattr(type_, "__metadata__", ()) if isinstance(one, ValueType)), None)


def options_of(type_: Any) -> tuple[Any, ...]:
    """What a value may be: one type, or the members of a union; null apart."""
    if typing.get_origin(type_) not in (typing.Union, types.UnionType):
        return (type_,)
    return tuple(option for option in typing.get_args(type_) if option is not type(None))


def is_nullable(type_: Any) -> bool:
    return type(None) in typing.get_args(type_)
