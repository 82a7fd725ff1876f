"""`dataclass` as in the standard library, made faster for frozen classes.

The standard library compiles six methods for every frozen class, 1.4 ms each on a slow core: with five hundred of them
that was half of what every command and every worker spent before its first statement. Here only `__init__` is compiled;
the other methods are shared by all classes.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, slots=False, kw_only=False):
        """Fields, defaults, equality, hash, repr and pickling are those of the standard library."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq, slots=slots, kw_only=kw_only)
        if not frozen:
            return dataclasses.dataclass(cls, eq=eq, slots=slots, kw_only=kw_only)
        if cls.__doc__ is None:
            cls.__doc__ = cls.__name__  # else the standard library computes a signature
        shared = _FROZEN | (_COMPARED if eq else {}) | (_PICKLED if slots else {})
        for name, method in shared.items():
            if name not in cls.__dict__ or (name == "__hash__" and cls.__hash__ is None):
                setattr(cls, name, method)
        made = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
        fields = dataclasses.fields(made)
        made.__init__ = _init(made, fields)
        made.__match_args__ = tuple(field.name for field in fields if not field.kw_only)
        compared = [field.name for field in fields if field.compare]
        # The last field twice: attrgetter then always gives a tuple.
        made._compared = attrgetter(*compared, *compared[-1:]) if compared else staticmethod(_nothing)
        return made


def _init(cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    """The one method that is compiled: values are made often."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_factory": _FACTORY, "__name__": cls.__module__}
    body = []
    for field in fields:
        value = field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_make_{field.name}"] = field.default_factory
            value = f"_make_{field.name}() if {field.name} is _factory else {field.name}"
        body.append(f" _set(self, {field.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    positional = [_parameter(field, names) for field in fields if not field.kw_only]
    keywords = [_parameter(field, names) for field in fields if field.kw_only]
    parameters = ["self", *positional, *(["*", *keywords] if keywords else [])]
    exec(f"def __init__({', '.join(parameters)}):\n" + ("\n".join(body) or " pass"), names)
    made = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _parameter(field: dataclasses.Field[Any], names: dict[str, Any]) -> str:
    if field.default is not dataclasses.MISSING:
        names[f"_default_{field.name}"] = field.default
        return f"{field.name}=_default_{field.name}"
    return field.name if field.default_factory is dataclasses.MISSING else f"{field.name}=_factory"


_FACTORY = object()  # the default of a parameter whose value a factory makes


def _nothing(_: object) -> tuple[()]:
    return ()


@recursive_repr()
def _repr(self: Any) -> str:
    shown = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _setattr(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_FROZEN = {"__repr__": _repr, "__setattr__": _setattr, "__delattr__": _delattr}
_COMPARED = {"__eq__": _eq, "__hash__": _hash}
_PICKLED = {"__getstate__": _getstate, "__setstate__": _setstate}
