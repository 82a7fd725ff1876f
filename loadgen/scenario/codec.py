"""Frozen values to JSON and back, by their annotations. Exact: what is decoded equals what was encoded.

Field names ending in `_s` are written out as `_seconds`; unions of classes carry the class in `type`; every text is a
template, see `loadgen.scenario.template`. Decoding is strict: a missing, unknown or ill-typed field is an error.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any

from loadgen.errors import ConfigurationError
from loadgen.model.workload import Parameter, Statement
from loadgen.rules.find_max_step import FindMaxSettings
from loadgen.scenario.model import LoadStage, Pool
from loadgen.scenario.template import resolve_template, template_of

Environment = Mapping[str, str] | None  # None: variables stay `${NAME}`, for showing

_TYPE = "type"  # no class of a union may have a field of this name
# Classes that stand in a union with others, and so need their name beside them.
_IN_UNIONS: frozenset[type] = frozenset(typing.get_args(Parameter)) | frozenset(typing.get_args(Pool))
_RENAMED: dict[type, dict[str, str]] = {
    FindMaxSettings: {"step_s": "step_duration_seconds"},
    LoadStage: {"connections": "concurrent_connections"},
}
# Fields that are left out while they have their default, so that scenarios without them keep their stored form, and
# with it what their runs are compared by.
_OPTIONAL: dict[type, frozenset[str]] = {Statement: frozenset({"session"}), LoadStage: frozenset({"name"})}


class InvalidStoredScenario(ConfigurationError):
    """A stored scenario that this loadgen cannot read."""

    remedy = "Start the run anew with this version of loadgen, or use the version that started it."


def encode(value: Any) -> Any:
    """A value as JSON data."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return template_of(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        tag = {_TYPE: type(value).__name__} if type(value) in _IN_UNIONS else {}
        return tag | {_key(type(value), name): encode(getattr(value, name)) for name in _written(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return [encode(item) for item in value] if isinstance(value, tuple) else value


def decode(kind: Any, data: Any, environ: Environment, where: str = "") -> Any:
    """The value of this type that the JSON data stands for."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, data, environ, where)
    if origin is tuple and isinstance(data, list):
        return tuple(decode(arguments[0], item, environ, f"{where}[{n}]") for n, item in enumerate(data))
    if origin in (dict, Mapping) and isinstance(data, dict):
        return {key: decode(arguments[1], item, environ, f"{where}.{key}") for key, item in data.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_class(kind, data, environ, where)
    return _decode_scalar(kind, data, environ, where)


def _decode_scalar(kind: Any, data: Any, environ: Environment, where: str) -> Any:
    number = isinstance(data, (int, float)) and not isinstance(data, bool)
    if kind is float and number and math.isfinite(data):
        return float(data)
    if kind is str and isinstance(data, str):
        return resolve_template(data, environ)
    if (kind is int and number and isinstance(data, int)) or (kind is bool and isinstance(data, bool)):
        return data
    if kind is types.NoneType and data is None:
        return None
    if isinstance(data, str) and isinstance(kind, type):
        try:
            if issubclass(kind, Enum):
                return kind(data)
            if issubclass(kind, datetime):
                return datetime.fromisoformat(data)
        except ValueError:
            pass  # told below, with everything else that does not fit
    raise InvalidStoredScenario(f"the stored scenario has an unusable value at {where}")


def _decode_union(options: tuple[Any, ...], data: Any, environ: Environment, where: str) -> Any:
    classes = {kind.__name__: kind for kind in options if isinstance(kind, type) and dataclasses.is_dataclass(kind)}
    if isinstance(data, dict) and len(classes) > 1:
        chosen = classes.get(str(data.get(_TYPE)))
        if chosen is None:
            raise InvalidStoredScenario(f"the stored scenario has an unknown {_TYPE} at {where}")
        inner = {key: item for key, item in data.items() if key != _TYPE}
        return _decode_class(chosen, inner, environ, where)
    for option in sorted(options, key=_exactness):
        if _fits(option, data):
            return decode(option, data, environ, where)
    raise InvalidStoredScenario(f"the stored scenario has an unusable value at {where}")


def _exactness(option: Any) -> int:
    """JSON's own types first: 1 is an int although a float could hold it."""
    order = [types.NoneType, bool, int, float, str]
    return order.index(option) if option in order else len(order)


def _fits(option: Any, data: Any) -> bool:
    if option in (types.NoneType, bool, int, str):
        return type(data) is option
    if option is float:
        return isinstance(data, (int, float)) and not isinstance(data, bool)
    return data is not None


def _decode_class(kind: type, data: Any, environ: Environment, where: str) -> Any:
    hints = {_key(kind, name): (name, hint) for name, hint in _hints(kind).items()}
    found = data.keys() if isinstance(data, dict) else set()
    absent = {_key(kind, name) for name in _OPTIONAL.get(kind, ())} - found
    if not isinstance(data, dict) or found != hints.keys() - absent:
        odd = ", ".join(sorted(map(str, (hints.keys() - absent) ^ found))[:5])
        raise InvalidStoredScenario(f"the stored scenario does not fit at {where or 'its top'}: {odd}")
    return kind(
        **{
            name: decode(hint, data[key], environ, f"{where}.{key}")
            for key, (name, hint) in hints.items()
            if key not in absent
        }
    )


def _written(value: Any) -> list[str]:
    """The fields of a value that are stored."""
    kind: type = type(value)
    optional = _OPTIONAL.get(kind, frozenset())
    defaults = {field.name: field.default for field in dataclasses.fields(value)}
    return [name for name in _hints(kind) if name not in optional or getattr(value, name) != defaults[name]]


def _key(kind: type, name: str) -> str:
    return _RENAMED.get(kind, {}).get(name) or stored_name(name)


def stored_name(name: str) -> str:
    """Of a field: times are written out."""
    return f"{name}econds" if name.endswith("_s") else name


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
