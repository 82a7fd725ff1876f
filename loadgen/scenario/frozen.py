"""SCENARIO_CONFIG: the one writer and the one reader of a run's stored scenario.

Workers and orchestrator see only what `thaw` makes of it. `notify` is no part of it: its addresses are secrets that a
worker has no use for, and only whoever started the run tells. Secrets of the environment are stored as `${NAME}`, and
filled in where they are read; everything else is stored as it was resolved where the user typed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, get_type_hints

from loadgen.model.workload import KeyRange, Sharding, Statement, Workload
from loadgen.rules.find_max_step import FindMaxSettings
from loadgen.scenario.codec import Environment, InvalidStoredScenario, decode, encode, stored_name
from loadgen.scenario.model import Load, LoadMode, LoadStage, Pool, Scenario, UserSessionSettings
from loadgen.scenario.template import variables_in

FROZEN_VERSION = 1

LOAD_MODES = {
    LoadMode.CONCURRENCY: "CONCURRENCY",
    LoadMode.RATE: "RATE",
    LoadMode.FIND_MAX: "FIND_MAX_CONCURRENCY",
}
# What names a scenario, and says nothing about what it measures.
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
    """The JSON text for RUN_STATUS.SCENARIO_CONFIG. Settle the number of workers first: workers.with_workers()."""
    return json.dumps(frozen_config(scenario), ensure_ascii=False, separators=(",", ":"))


def template_id(scenario: Scenario) -> str:
    """What runs are compared by: the same for scenarios that differ in name, description and labels only."""
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
    return _scenario(config, environ)


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
    """A mapping of the configuration, taken apart key by key; done() complains about what is left."""

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
