"""How keys are declared, once: type, default, help, and when a key applies.

    @section
    class LoadStage:
        duration_s: Annotated[float, Duration(low_s=0.1)] = key(description="Length of the stage.")
        ramp_s: Ramp = key(default="0s")

A section is a frozen dataclass. The default of a key is declared as it would be written in the file; the attribute's
default is what its type makes of it. The key in the file is the attribute's name without its unit: `duration`, `rate`.

The type of a key is a ValueType, a section, a tuple or a mapping of these, or a union of sections, each of which is
named by its first key; with `| None` the value may be null. Annotations are evaluated when the class is made, so
modules that declare sections do without `from __future__ import annotations`.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from functools import cache
from typing import Any, ClassVar, TypeVar, dataclass_transform

from loadgen.scenario.document import KeyPath
from loadgen.scenario.types import Duration, InvalidValue, Rate, ValueType

REQUIRED: Any = object()  # the default of a key that has none
_KEY = "key"  # in the metadata of a field
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AppliesWhen:
    """A key that has a meaning for some values of a key beside it only: `rate` for `mode: rate`."""

    selector: str
    values: tuple[StrEnum, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDeclaration:
    """One key of a section."""

    default: Any = REQUIRED  # as it would be written in the file
    description: str | None = None
    applies: AppliesWhen | None = None
    attribute: str = ""
    type: Any = None  # the annotation


def key(*, default: Any = REQUIRED, description: str | None = None, applies: AppliesWhen | None = None) -> Any:
    """A key of a section. The default is written as in the file, so that it can be shown: "60s"."""
    return KeyDeclaration(default=default, description=description, applies=applies)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(key,))
def section(cls: type[T]) -> type[T]:
    """Make a class a section: a frozen dataclass that knows its keys."""
    annotations: Mapping[str, Any] = inspect.get_annotations(cls)
    for name, annotation in annotations.items():
        origin: Any = typing.get_origin(annotation)
        if origin is ClassVar:
            continue
        declared = cls.__dict__.get(name, KeyDeclaration())
        setattr(cls, name, _field(annotation, declared))
    made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    if made.__doc__ and made.__doc__.startswith(f"{cls.__name__}("):  # a signature that dataclass wrote
        made.__doc__ = None
    return made


def _field(annotation: Any, declared: KeyDeclaration) -> Any:
    metadata = {_KEY: declared}
    default = declared.default
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    value_type = value_type_of(annotation)
    if value_type is not None:
        return dataclasses.field(default=value_type.accept(default), metadata=metadata)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    if isinstance(annotation, str) and default is not None:
        raise TypeError(f"the annotation {annotation!r} is not evaluated; see the module's docstring")
    faults: list[KeyFault] = []
    value = default if isinstance(annotation, str) else read_value(annotation, default, (), faults)
    assert not faults, "a default fits its type"
    return dataclasses.field(default=value, metadata=metadata)


def is_section(type_: Any) -> bool:
    """Is it a class made by `section`?"""
    return isinstance(type_, type) and dataclasses.is_dataclass(type_) and all(map(_is_key, dataclasses.fields(type_)))


def _is_key(field: dataclasses.Field[Any]) -> bool:
    return _KEY in field.metadata


def declared_keys(cls: type) -> Mapping[str, KeyDeclaration]:
    """The keys of a section as they are written, in the order of their declaration."""
    return _declared_keys(cls)


@cache
def _declared_keys(cls: Hashable) -> Mapping[str, KeyDeclaration]:
    assert isinstance(cls, type)
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {}
    for field in dataclasses.fields(cls):
        declared = dataclasses.replace(field.metadata[_KEY], attribute=field.name, type=hints[field.name])
        found[_written_name(field.name, value_type_of(declared.type))] = declared
    return found


def _written_name(attribute: str, value_type: ValueType | None) -> str:
    unit = "_s" if isinstance(value_type, Duration) else "_per_second" if isinstance(value_type, Rate) else ""
    return attribute.removesuffix(unit)


def values_of(value: Any) -> Iterator[tuple[str, KeyDeclaration, Any]]:
    """Each key of a section, its declaration and its value."""
    for name, declared in declared_keys(type(value)).items():
        yield name, declared, getattr(value, declared.attribute)


def applies_to(value: Any, declared: KeyDeclaration) -> bool:
    """Has this key of the section a meaning, with the values beside it?"""
    return declared.applies is None or getattr(value, declared.applies.selector) in declared.applies.values


class KeyFaultKind(Enum):
    UNKNOWN = auto()  # a key that the section does not have
    MISSING = auto()
    WRONG = auto()  # a value that its type rejected
    NOT_A_LIST = auto()
    NOT_A_MAPPING = auto()
    NOT_NAMED = auto()  # a mapping that names none of the sections it may be, or several


@dataclass(frozen=True, slots=True)
class KeyFault:
    """Something in the data that a section cannot be made of."""

    kind: KeyFaultKind
    path: KeyPath
    wrong: InvalidValue | None = None


# --- values ----------------------------------------------------------------------------------------------------------


def read_section(cls: type[T], data: Any, path: KeyPath, faults: list[KeyFault]) -> T | None:
    """The section at `path`; None when there are faults, which are added to `faults`."""
    if isinstance(data, cls):
        return data  # a default
    shorthand = getattr(cls, "shorthand", None)
    if shorthand is not None and isinstance(data, str):
        data = {shorthand: data}
    if not isinstance(data, Mapping):
        faults.append(KeyFault(KeyFaultKind.NOT_A_MAPPING, path))
        return None
    before = len(faults)
    values: dict[str, Any] = {}
    declared = declared_keys(cls)
    for name, one in declared.items():
        value = data.get(name, one.default)
        if value is REQUIRED:
            faults.append(KeyFault(KeyFaultKind.MISSING, (*path, name)))
            continue
        if value is None and one.default is not REQUIRED and _is_container(one.type):
            value = one.default  # a key with nothing behind it
        values[one.attribute] = read_value(one.type, value, (*path, name), faults)
    faults += [KeyFault(KeyFaultKind.UNKNOWN, (*path, name)) for name in data if name not in declared]
    return cls(**values) if len(faults) == before else None


def read_value(type_: Any, value: Any, path: KeyPath, faults: list[KeyFault]) -> Any:
    """A value of the file as its type makes it; what is wrong with it is added to `faults`."""
    value_type = value_type_of(type_)
    if value_type is not None:
        try:
            return value_type.accept(value)
        except ValueError as error:
            wrong = error if isinstance(error, InvalidValue) else InvalidValue("cannot be used")
            faults.append(KeyFault(KeyFaultKind.WRONG, (*path, *wrong.at), wrong))
            return None
    if value is None and is_nullable(type_):
        return None
    options = options_of(type_)
    if len(options) > 1:
        named = named_section(options, value)
        if named is None:
            faults.append(KeyFault(KeyFaultKind.NOT_NAMED, path))
            return None
        return read_section(named, value, path, faults)
    option = options[0]
    if is_section(option):
        return read_section(option, value, path, faults)
    inner = element_type(option)
    if typing.get_origin(option) is tuple:
        if not isinstance(value, list):
            faults.append(KeyFault(KeyFaultKind.NOT_A_LIST, path))
            return None
        return tuple(read_value(inner, element, (*path, number), faults) for number, element in enumerate(value))
    if not isinstance(value, Mapping):
        faults.append(KeyFault(KeyFaultKind.NOT_A_MAPPING, path))
        return None
    return {name: read_value(inner, element, (*path, name), faults) for name, element in value.items()}


def named_section(options: tuple[type, ...], data: Any) -> type | None:
    """The section that a mapping names by its first key, when it names exactly one."""
    if not isinstance(data, Mapping):
        return None
    found = [option for option in options if first_key(option) in data]
    return found[0] if len(found) == 1 else None


def first_key(cls: type) -> str:
    return next(iter(declared_keys(cls)))


def value_type_of(type_: Any) -> ValueType | None:
    """The ValueType of `Annotated[int, Integer()]`."""
    return next((one for one in getattr(type_, "__metadata__", ()) if isinstance(one, ValueType)), None)


def element_type(type_: Any) -> Any:
    """Of the elements of a tuple, or of the values of a mapping."""
    arguments = [one for one in typing.get_args(type_) if one is not Ellipsis]
    return arguments[-1] if arguments else None


def options_of(type_: Any) -> tuple[Any, ...]:
    """What a value may be: one type, or the members of a union; null apart."""
    if typing.get_origin(type_) not in (typing.Union, types.UnionType):
        return (type_,)
    return tuple(option for option in typing.get_args(type_) if option is not type(None))


def is_nullable(type_: Any) -> bool:
    return type(None) in typing.get_args(type_)


def _is_container(type_: Any) -> bool:
    return value_type_of(type_) is None and not is_nullable(type_)
