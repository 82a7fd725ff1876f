"""SCENARIO_CONFIG: the one writer and the one reader of a run's stored scenario.

Workers and orchestrator use only what `thaw` returns. `notify` is not stored: its addresses are secrets that workers do
not need, and the process that started the run sends the messages. Secrets of the environment are stored as `${NAME}`
and resolved where they are read; everything else is stored as it was resolved where the user typed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, get_type_hints

from loadgen.errors import ConfigurationError
from loadgen.model.capture import RecordedTimes, Replay
from loadgen.model.workload import KeyRange, Parameter, Sharding, Statement, Workload
from loadgen.scenario.document import resolve_template, template_of, variables_in
from loadgen.scenario.model import FindMaxSettings, Load, LoadMode, LoadStage, Pool, Scenario
from loadgen.scenario.settings import UserSessionSettings
from loadgen.units import format_duration_s, format_rate_per_second

Environment = Mapping[str, str] | None  # None: variables stay `${NAME}`, for showing

_TYPE = "type"  # no class of a union may have a field of this name
# Members of unions: stored with their name.
_IN_UNIONS: frozenset[type] = frozenset(typing.get_args(Parameter)) | frozenset(typing.get_args(Pool))
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
        tag = {_TYPE: type(value).__name__} if type(value) in _IN_UNIONS else {}
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
            pass  # raised below, as for every unusable value
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
    """Sort key: types of JSON first, so that 1 is an int, not a float."""
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
    """The stored name of a field: `_s` becomes `_seconds`."""
    return f"{name}econds" if name.endswith("_s") else name


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


FROZEN_VERSION = 1

LOAD_MODES = {
    LoadMode.CONCURRENCY: "CONCURRENCY",
    LoadMode.RATE: "RATE",
    LoadMode.FIND_MAX: "FIND_MAX_CONCURRENCY",
    LoadMode.REPLAY: "REPLAY",
}
# Keys that do not change what a scenario measures.
_NOT_MEASURED = ("name", "description", "labels")
# Sections that are stored as the typed value has them.
_SECTIONS = (
    *("name", "description", "labels", "connection", "control", "target", "prepare", "connections", "thresholds"),
    *("guardrails", "query_log", "enrichment", "spawner", "on_worker_loss", "timing", "embedded"),
)
# Fields of Load that go into `workload` under their own names, `_s` written out.
_LOAD_FIELDS = (
    *("min_connections", "profile", "pin", "warmup_s", "ramp_s", "duration_s"),
    *("rate_per_second", "arrival", "max_lag_s"),
)


def freeze(scenario: Scenario) -> str:
    """The JSON text for RUN_STATUS.SCENARIO_CONFIG. The number of workers must be set: `with_workers`."""
    return json.dumps(frozen_config(scenario), ensure_ascii=False, separators=(",", ":"))


def template_id(scenario: Scenario) -> str:
    """The id by which runs are compared: the same for scenarios that differ in name, description and labels only."""
    measured = {key: value for key, value in frozen_config(scenario).items() if key not in _NOT_MEASURED}
    canonical = json.dumps(measured, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()[:32]


def thaw(text: str, environ: Environment) -> Scenario:
    """The scenario of a stored configuration. With `environ` None variables stay `${NAME}`: to show, not to run."""
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
    """The configuration as JSON data."""
    load, workload = scenario.load, scenario.workload
    return {
        "frozen_version": FROZEN_VERSION,
        **{name: encode(getattr(scenario, name)) for name in _SECTIONS},
        "values": encode(scenario.pools),
        "workload": {
            "load_mode": LOAD_MODES[load.mode],
            "concurrent_connections": load.connections,
            **{stored_name(name): encode(getattr(load, name)) for name in _LOAD_FIELDS},
            "stages": encode(load.stages),
            "think_time_seconds": workload.think_time_s,
            "seed": workload.seed,
            "statements": encode(workload.statements),
        },
        "scaling": {"worker_group_count": load.workers, "per_worker_connections": load.per_worker_connections},
        "sharding": _frozen_sharding(workload.sharding),
        "find_max": encode(load.find_max) if load.find_max is not None else None,
        **({"sessions": encode(scenario.sessions)} if scenario.sessions.count else {}),
        **({"replay": encode(dataclasses.replace(load.replay, folder=""))} if load.replay is not None else {}),
    }


def _frozen_sharding(sharding: Sharding | None) -> dict[str, Any]:
    if sharding is None:
        return {"enabled": False}
    return {
        "enabled": True,
        "total_partitions": sharding.total_partitions,
        "key_column": encode(sharding.key_column),
        "key_range": [sharding.keys.low, sharding.keys.high - 1],
    }


def _scenario(config: dict[str, Any], environ: Environment) -> Scenario:
    parts = _Parts(config, environ, "")
    workload = parts.inner("workload")
    scaling = parts.inner("scaling")
    hints, load_hints = get_type_hints(Scenario), get_type_hints(Load)
    modes = {text: mode for mode, text in LOAD_MODES.items()}
    mode = modes.get(workload.take("load_mode", str))
    if mode is None:
        raise InvalidStoredScenario("the stored scenario has an unknown load_mode")
    load = Load(
        mode=mode,
        connections=workload.take("concurrent_connections", int),
        workers=scaling.take("worker_group_count", int | None),
        per_worker_connections=scaling.take("per_worker_connections", int | None),
        stages=workload.take("stages", tuple[LoadStage, ...]),
        find_max=parts.take("find_max", FindMaxSettings | None),
        replay=parts.take("replay", Replay) if parts.has("replay") else None,
        **{name: workload.take(stored_name(name), load_hints[name]) for name in _LOAD_FIELDS},
    )
    scenario = Scenario(
        load=load,
        workload=Workload(
            statements=workload.take("statements", tuple[Statement, ...]),
            seed=workload.take("seed", int),
            think_time_s=workload.take("think_time_seconds", float),
            sharding=_sharding(parts.inner("sharding")),
        ),
        pools=parts.take("values", tuple[Pool, ...]),
        sessions=parts.take("sessions", UserSessionSettings) if parts.has("sessions") else UserSessionSettings(),
        **{name: parts.take(name, hints[name]) for name in _SECTIONS},
    )
    for section in (parts, workload, scaling):
        section.done()
    return scenario


def _sharding(part: _Parts) -> Sharding | None:
    if not part.take("enabled", bool):
        part.done()
        return None
    keys = part.take("key_range", tuple[int, ...])
    if len(keys) != 2:
        raise InvalidStoredScenario("the stored scenario has an unusable key_range")
    sharding = Sharding(
        total_partitions=part.take("total_partitions", int),
        key_column=part.take("key_column", str),
        keys=KeyRange(low=keys[0], high=keys[1] + 1),
    )
    part.done()
    return sharding


class _Parts:
    """A mapping of the configuration, read key by key; done() rejects keys that are left."""

    def __init__(self, data: Any, environ: Environment, where: str) -> None:
        if not isinstance(data, dict):
            raise InvalidStoredScenario(f"the stored scenario has no {where}")
        self._left = {key: value for key, value in data.items() if key != "frozen_version"}
        self._environ = environ
        self._where = where

    def take(self, key: str, kind: Any) -> Any:
        if key not in self._left:
            raise InvalidStoredScenario(f"the stored scenario has no {self._where}{key}")
        return decode(kind, self._left.pop(key), self._environ, f"{self._where}{key}")

    def has(self, key: str) -> bool:
        return key in self._left

    def inner(self, key: str) -> _Parts:
        return _Parts(self._left.pop(key, None), self._environ, f"{key}.")

    def done(self) -> None:
        if self._left:
            unknown = ", ".join(sorted(map(str, self._left))[:5])
            raise InvalidStoredScenario(f"the stored scenario has keys this loadgen does not know: {unknown}")


# Scenarios in the keys of their files: stored ones, to show what differs between runs, and the origin of each value.
#
# Elements of lists go by their name, durations are texts; generators stay as they are stored. What is stored is
# defined in `frozen`.

# Of the stored `workload`; everything else in it is `load` in the file.
_WORKLOAD = ("statements", "think_time_seconds")
_MODES = {stored: mode.value for mode, stored in LOAD_MODES.items()}
_FILE_KEYS = {
    "load_mode": "mode",
    "concurrent_connections": "connections",
    "worker_group_count": "workers",
    "rate_per_second": "rate",
    "step_duration_seconds": "step",
}
_MOVED = (  # what keys begin with as stored, and in the file
    ("workload.statements.", "workload.statements."),
    ("workload.think_time", "workload.think_time"),
    ("workload.seed.", "seed."),
    ("workload.", "load."),
    ("scaling.", "load."),
    ("find_max.", "load.find_max."),
    ("workers.", "load.workers."),
    ("replay.", "load."),
)
# Shown as one value each.
ONE_VALUE = frozenset({"generate", "params", "transaction", "thresholds", "stages", "indexes", "key_range"})
_DEALT = ("planned", "recorded", "coverage")  # of a replay: made from its capture, never written
_SECONDS = "_seconds"
_MEMBER = re.compile(r"\[([^\]]*)\]")


def as_written(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a scenario file. Lists whose elements have names are mappings by name."""
    sections = {name: value for name, value in config.items() if name != "frozen_version"}
    stored = dict(sections.pop("workload", {}))
    workload = {name: stored.pop(name) for name in _WORKLOAD if name in stored}
    load = {**stored, **sections.pop("scaling", {}), "find_max": sections.pop("find_max", None)}
    if load.get("load_mode") == LOAD_MODES[LoadMode.RATE]:
        load["max_connections"] = load.pop("concurrent_connections", None)
    elif load.get("load_mode") == LOAD_MODES[LoadMode.FIND_MAX]:
        load.pop("concurrent_connections", None)  # find_max.maximum
    replay = sections.pop("replay", None)
    if replay is not None:
        load |= {name: value for name, value in replay.items() if name not in _DEALT}
    workload["statements"] = [_file_statement(one) for one in workload.get("statements", ())]
    pools = [{key: pool[key] for key in pool if key != "type"} for pool in sections.get("values", ())]  # query or file
    sections |= {"values": pools, "seed": load.pop("seed", None), "workload": workload, "load": load}
    return {_file_key(name): _as_value(name, value) for name, value in sections.items()}


def key_as_written(stored: str) -> str:
    """The same for one key: workload.statements[pay].weight, workload.duration_seconds, scaling.worker_group_count."""
    key = _MEMBER.sub(r".\1", stored)
    if key == "workload":  # a section of the file too
        return key
    before, after = next(((old, new) for old, new in _MOVED if f"{key}.".startswith(old)), ("", ""))
    return ".".join(map(_file_key, (after + f"{key}."[len(before) :]).rstrip(".").split(".")))


def _file_statement(stored: Mapping[str, Any]) -> dict[str, Any]:
    written = {name: value for name, value in stored.items() if name not in ("queries", "transaction", "expected_rows")}
    queries = [
        {"sql": query["sql"], "params": query["parameters"]} if "parameters" in query else dict(query)
        for query in stored.get("queries", ())
    ]
    if stored.get("expected_rows") is not None:
        written["expect"] = {"rows": stored["expected_rows"]}
    if stored.get("transaction"):
        return {**written, "transaction": queries}
    return written | (queries[0] if queries else {})


def _file_key(name: str) -> str:
    return _FILE_KEYS.get(name) or name.removesuffix(_SECONDS)


def _as_value(name: str, value: Any) -> Any:
    if name == "load_mode":
        return _MODES.get(value, value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        write = format_rate_per_second if name == "rate_per_second" else format_duration_s
        return write(value) if name == "rate_per_second" or name.endswith(_SECONDS) else value
    if name in ONE_VALUE:
        return value
    if isinstance(value, Mapping):
        return {_file_key(inner): _as_value(inner, one) for inner, one in value.items()}
    if isinstance(value, list) and value and all(isinstance(one, Mapping) and "name" in one for one in value):
        return {str(one["name"]): _as_value("", {key: one[key] for key in one if key != "name"}) for one in value}
    return value
