"""SCENARIO_CONFIG, the stored scenario of a run: written and read as a Scenario here only.

Workers and orchestrator use only what `thaw` returns. `notify` is not stored: its addresses are secrets that workers do
not need, and the process that started the run sends the messages. Secrets of the environment are stored as `${NAME}`
and resolved where they are read; all other variables are resolved where the run is started.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Collection, Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any

from loadgen.errors import ConfigurationError
from loadgen.model.capture import RecordedTimes, Replay
from loadgen.model.workload import KeyRange, Parameter, Sharding, Statement, Workload
from loadgen.scenario.document import resolve_template, template_of, variables_in
from loadgen.scenario.model import FindMaxSettings, Load, LoadMode, LoadStage, PoolSource, Scenario
from loadgen.scenario.settings import UserSessionSettings

Environment = Mapping[str, str] | None  # None: variables stay `${NAME}`, for showing

TYPE_KEY = "type"  # no class of a union may have a field of this name
# Members of unions: stored with their name.
_IN_UNIONS: frozenset[type] = frozenset(typing.get_args(Parameter)) | frozenset(typing.get_args(PoolSource))
_RENAMED: dict[type, dict[str, str]] = {
    FindMaxSettings: {"step_s": "step_duration_seconds"},
    LoadStage: {"connections": "concurrent_connections"},
}
# Fields that are stored only when they differ from their default, so that scenarios without them keep their stored form
# and their template id.
_OPTIONAL: dict[type, frozenset[str]] = {
    Statement: frozenset({"session"}),
    LoadStage: frozenset({"name"}),
    Replay: frozenset({"folder", "users", "coverage"}),
    RecordedTimes: frozenset({"rows", "rows_known", "failed"}),
}


class InvalidStoredScenario(ConfigurationError):
    """A stored scenario that this loadgen cannot read."""

    remedy = "Start the run again with this version of loadgen, or use the version that started it."


def encode(value: Any) -> Any:
    """A value as JSON data."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return template_of(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        tag = {TYPE_KEY: type(value).__name__} if type(value) in _IN_UNIONS else {}
        return tag | {_key(type(value), name): encode(getattr(value, name)) for name in _written(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return [encode(item) for item in value] if isinstance(value, tuple) else value


def decode(kind: Any, data: Any, environ: Environment, where: str = "") -> Any:
    """The value of this type for the JSON data."""
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
    try:
        if kind is str and isinstance(data, str):
            return resolve_template(data, environ)
        if kind is float and type(data) in (int, float) and math.isfinite(data):
            return float(data)
        if kind in (int, bool, types.NoneType) and type(data) is kind:
            return data
        if isinstance(data, str) and isinstance(kind, type) and issubclass(kind, Enum):
            return kind(data)
        if isinstance(data, str) and kind is datetime:
            return datetime.fromisoformat(data)
    except (ValueError, OverflowError):
        pass  # raised below, as for every unusable value
    raise InvalidStoredScenario(f"the stored scenario has an unusable value at {where}")


def _decode_union(options: tuple[Any, ...], data: Any, environ: Environment, where: str) -> Any:
    if type(data) in options:  # a type of JSON: 1 is an int, not a float
        return _decode_scalar(type(data), data, environ, where)
    classes = {kind.__name__: kind for kind in options if isinstance(kind, type) and dataclasses.is_dataclass(kind)}
    if isinstance(data, dict) and len(classes) > 1:
        chosen = classes.get(str(data.get(TYPE_KEY)))
        if chosen is None:
            raise InvalidStoredScenario(f"the stored scenario has an unknown {TYPE_KEY} at {where}")
        inner = {key: item for key, item in data.items() if key != TYPE_KEY}
        return _decode_class(chosen, inner, environ, where)
    return decode(next(kind for kind in options if kind is not types.NoneType), data, environ, where)


def _decode_class(kind: type, data: Any, environ: Environment, where: str) -> Any:
    hints = {_key(kind, name): (name, hint) for name, hint in _hints(kind).items()}
    optional = {_key(kind, name) for name in _OPTIONAL.get(kind, ())}
    found = data.keys() if isinstance(data, dict) else set()
    odd = (found - hints.keys()) | (hints.keys() - optional - found)
    if not isinstance(data, dict) or odd:
        shown = ", ".join(sorted(map(str, odd))[:5])
        raise InvalidStoredScenario(f"the stored scenario does not fit at {where or 'its top'}: {shown}")
    return kind(
        **{
            name: decode(hint, data[key], environ, f"{where}.{key}")
            for key, (name, hint) in hints.items()
            if key in found
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
    """The stored name of a field: `_s` becomes `_seconds`."""
    return f"{name}econds" if name.endswith("_s") else name


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


# --- the configuration -----------------------------------------------------------------------------------------------

FROZEN_VERSION = 1

LOAD_MODES = {
    LoadMode.CONCURRENCY: "CONCURRENCY",
    LoadMode.RATE: "RATE",
    LoadMode.FIND_MAX: "FIND_MAX_CONCURRENCY",
    LoadMode.REPLAY: "REPLAY",
}
# Keys that do not change what a scenario measures.
_NOT_MEASURED = ("name", "description", "labels")
# `notify` is not stored; the others are written by frozen_config() in another form.
_OTHERS = ("load", "workload", "sessions", "notify", "load.mode", "load.replay", "workload.sharding")


def _places() -> dict[str, str]:
    """Where each attribute of a scenario is stored."""
    found = {field.name: field.name for field in dataclasses.fields(Scenario)} | {"pools": "values"}
    for owner, kind in (("load", Load), ("workload", Workload)):
        found |= {f"{owner}.{field.name}": f"workload.{stored_name(field.name)}" for field in dataclasses.fields(kind)}
    found |= {
        "load.connections": "workload.concurrent_connections",
        "load.workers": "scaling.worker_group_count",
        "load.per_worker_connections": "scaling.per_worker_connections",
        "load.find_max": "find_max",
    }
    return {attribute: place for attribute, place in found.items() if attribute not in _OTHERS}


_PLACES = _places()
_CLASSES: dict[str, type] = {"": Scenario, "load": Load, "workload": Workload}


def freeze(scenario: Scenario) -> str:
    """The JSON text for RUN_STATUS.SCENARIO_CONFIG. The number of workers must be set: `with_workers`."""
    return json.dumps(frozen_config(scenario), ensure_ascii=False, separators=(",", ":"))


def template_id(scenario: Scenario) -> str:
    """The id by which runs are compared: the same for scenarios that differ in name, description and labels only."""
    measured = {key: value for key, value in frozen_config(scenario).items() if key not in _NOT_MEASURED}
    canonical = json.dumps(measured, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()[:32]


def thaw(text: str, environ: Environment) -> Scenario:
    """The scenario of a stored configuration. With `environ` None, variables stay `${NAME}`: for display only."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidStoredScenario(f"the stored scenario is not JSON: {error}") from None
    if not isinstance(config, dict) or config.get("frozen_version") != FROZEN_VERSION:
        version = config.get("frozen_version") if isinstance(config, dict) else None
        raise InvalidStoredScenario(
            f"the stored scenario has version {version!r}, and this loadgen reads {FROZEN_VERSION}"
        )
    scenario = _scenario(config, environ)
    return dataclasses.replace(scenario, timing=scenario.timing.for_workers(scenario.load.workers or 1))


def secrets_in(scenario: Scenario) -> tuple[str, ...]:
    """The variables that must be set wherever the stored scenario is used."""
    return tuple(sorted(_variables(frozen_config(scenario))))


def _variables(data: Any) -> set[str]:
    if isinstance(data, str):
        return variables_in(data)
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return set().union(*map(_variables, inner))


def frozen_config(scenario: Scenario) -> dict[str, Any]:
    """The stored configuration, as JSON data."""
    load, sharding = scenario.load, scenario.workload.sharding
    config: dict[str, Any] = {
        "frozen_version": FROZEN_VERSION,
        "workload": {"load_mode": LOAD_MODES[load.mode]},
        "scaling": {},
        "sharding": {"enabled": sharding is not None},
    }
    for attribute, place in _PLACES.items():
        section, _, key = place.rpartition(".")
        (config[section] if section else config)[key] = encode(attrgetter(attribute)(scenario))
    if sharding is not None:
        config["sharding"] |= {
            "total_partitions": sharding.total_partitions,
            "key_column": encode(sharding.key_column),
            "key_range": [sharding.keys.low, sharding.keys.high - 1],
        }
    if scenario.sessions.count:
        config["sessions"] = encode(scenario.sessions)
    if load.replay is not None:
        config["replay"] = encode(dataclasses.replace(load.replay, folder=""))
    return config


def _scenario(config: Mapping[str, Any], environ: Environment) -> Scenario:
    try:
        left = _Left(flattened(config, ("workload", "scaling", "sharding")), environ)
    except (TypeError, ValueError):
        raise InvalidStoredScenario("the stored scenario has a section that is not a mapping") from None
    found: dict[str, dict[str, Any]] = {owner: {} for owner in _CLASSES}
    for attribute, place in _PLACES.items():
        owner, _, name = attribute.rpartition(".")
        found[owner][name] = left.take(place, _hints(_CLASSES[owner])[name])
    modes = {text: mode for mode, text in LOAD_MODES.items()}
    mode = modes.get(left.take("workload.load_mode", str))
    if mode is None:
        raise InvalidStoredScenario("the stored scenario has an unknown load_mode")
    sessions = left.take("sessions", UserSessionSettings) if left.has("sessions") else UserSessionSettings()
    scenario = Scenario(
        load=Load(mode=mode, replay=left.take("replay", Replay) if left.has("replay") else None, **found["load"]),
        workload=Workload(sharding=_sharding(left), **found["workload"]),
        sessions=sessions,
        **found[""],
    )
    left.require_none()
    return scenario


def _sharding(left: _Left) -> Sharding | None:
    if not left.take("sharding.enabled", bool):
        return None
    keys = left.take("sharding.key_range", tuple[int, ...])
    if len(keys) != 2:
        raise InvalidStoredScenario("the stored scenario has an unusable key_range")
    return Sharding(
        total_partitions=left.take("sharding.total_partitions", int),
        key_column=left.take("sharding.key_column", str),
        keys=KeyRange(low=keys[0], high=keys[1] + 1),
    )


def flattened(config: Mapping[str, Any], sections: Collection[str]) -> dict[str, Any]:
    """The configuration with the keys of these sections at its top: `workload.seed`.

    Raises TypeError or ValueError when one of the sections is not a mapping.
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if key in sections:
            found |= {f"{key}.{inner}": one for inner, one in dict(value or {}).items()}
        elif key != "frozen_version":
            found[key] = value
    return found


class _Left:
    """The keys of a configuration that are not read yet."""

    def __init__(self, data: dict[str, Any], environ: Environment) -> None:
        self._data = data
        self._environ = environ

    def take(self, key: str, kind: Any) -> Any:
        if key not in self._data:
            raise InvalidStoredScenario(f"the stored scenario has no {key}")
        return decode(kind, self._data.pop(key), self._environ, key)

    def has(self, key: str) -> bool:
        return key in self._data

    def require_none(self) -> None:
        """Raises InvalidStoredScenario when keys are left."""
        if self._data:
            unknown = ", ".join(sorted(map(str, self._data))[:5])
            raise InvalidStoredScenario(f"the stored scenario has unknown keys: {unknown}")
