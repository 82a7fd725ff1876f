"""Whether two runs may be compared: what differs between them, and which difference forbids it. Pure.

A comparison attributes every change to what the user changed. So everything else that affects a number must be equal:
the scenario except names and thresholds, the warehouse size, the major version of the driver and whether its telemetry
hooks were disabled, the number of workers and cores. The user names a difference that is the purpose of the comparison
(`--vary target.warehouse`), together with everything below that key. Keys are those of a scenario file; facts about the
surroundings of a run are `environment.…` and `warehouse.size`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any

from loadgen.errors import UsageError
from loadgen.log import printable
from loadgen.scenario.frozen import LOAD_MODES, TYPE_KEY, flattened
from loadgen.scenario.model import LoadMode
from loadgen.units import format_duration_s, format_rate_per_second
from loadgen.values import dataclass

# Parts of a stored scenario that do not change what is measured.
_NO_MATTER = ("name", "description", "labels", "thresholds", "control", "enrichment", "notify")
_NOTED = ("loadgen", "python", "platform", "server", "shared_warehouse")  # of the environment: shown when they differ
FORBIDDING_KEYS = ("cores", "driver_major", "driver_lightened")  # of the environment: they forbid a comparison
_FIRST = (
    "load.mode",
    "load",
    "workload",
    "target",
    "warehouse",
    "connection",
)  # sections, the most informative ones first


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """One setting that two runs do not share."""

    key: str
    a: Any  # None: it is not set there
    b: Any
    matters: bool  # it can change a number
    varied: bool = False  # the user named it with --vary

    @property
    def forbids(self) -> bool:
        return self.matters and not self.varied


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConditions:
    """The conditions of a run: the stored scenario and the environment."""

    config: Mapping[str, Any]
    environment: Mapping[str, Any]  # of summary.json
    workers: int
    warehouse_sizes: tuple[str, ...]  # observed during the run, each once, in order


def why_not_comparable(letter: str, run_id: str, status: str, summary: Mapping[str, Any] | None) -> str | None:
    """Why this run cannot be compared with any; None: it can."""
    if status != "COMPLETED":
        return f"{letter} ({run_id}) has the status {status}, and not COMPLETED"
    if summary is None:
        return f"{letter} ({run_id}) has no result"
    if not summary["validity"]["valid"]:
        return f"{letter} ({run_id}) is INVALID: {'; '.join(summary['validity']['reasons'])}"
    if summary.get("aborted"):
        return f"{letter} ({run_id}) was ended early by a threshold with `abort`"
    found = summary.get("find_max")
    if found is not None and found.get("max_concurrency") is None:
        return f"{letter} ({run_id}) found no maximum: {found.get('reason')}"
    return None


def differences(a: RunConditions, b: RunConditions, varied: Sequence[str] = ()) -> tuple[SettingDifference, ...]:
    """All differences by key; those that forbid a comparison come first."""
    names = tuple(map(key_as_written, varied))
    found = [
        SettingDifference(key=key, a=first, b=second, matters=_matters(key), varied=_is_at_or_below(key, names))
        for key, first, second in _differences_below("", _settings(a), _settings(b))
    ]
    return tuple(sorted(found, key=lambda one: (not one.forbids, not one.matters, _rank(one.key), one.key)))


def unmatched_keys(varied: Iterable[str], found: Iterable[SettingDifference]) -> list[str]:
    """Keys that the user named and that do not differ: they may be misspelt."""
    keys = [one.key for one in found]
    return [name for name in varied if not any(_is_at_or_below(key, [key_as_written(name)]) for key in keys)]


def is_setting(name: str, *settings: RunConditions) -> bool:
    """Whether one of the runs has a setting at or below the key that the user named."""
    return any(key_as_written(name) in _keys("", _settings(one)) for one in settings)


def _keys(above: str, section: Mapping[str, Any]) -> Iterator[str]:
    for name, value in section.items():
        key = f"{above}.{name}" if above else str(name)
        yield key
        if isinstance(value, Mapping):
            yield from _keys(key, value)


def _settings(setting: RunConditions) -> dict[str, Any]:
    written, environment = as_written(setting.config), setting.environment
    return {
        **written,
        "load": {**written["load"], "workers": setting.workers},
        "environment": {
            **{name: environment.get(name) for name in (*_NOTED, "cores", "driver")},
            "driver_major": driver_major(environment),
            "driver_lightened": driver_lightened(environment),
        },
        "warehouse": {"size": ", ".join(setting.warehouse_sizes) or None},
    }


def driver_major(environment: Mapping[str, Any]) -> str:
    return str(environment.get("driver")).partition(".")[0]


def driver_lightened(environment: Mapping[str, Any]) -> bool | str:
    """Whether telemetry hooks were disabled. Older runs do not store it: connector 5 always had them disabled."""
    known: bool | str | None = environment.get("driver_lightened")
    return driver_major(environment) == "5" if known is None else known


def _differences_below(key: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    """The differences below a key: (key, a, b). A section that only one run has is one difference."""
    if a == b or (_is_unset(a) and _is_unset(b)):
        return
    inner = [{} if one in ([], {}) else one for one in (a, b)]
    if all(isinstance(one, Mapping) for one in inner) and key.rpartition(".")[2] not in _ONE_VALUE:
        for name in dict.fromkeys((*inner[0], *inner[1])):
            yield from _differences_below(f"{key}.{name}" if key else str(name), inner[0].get(name), inner[1].get(name))
    else:
        yield key, a, b


def _is_unset(value: Any) -> bool:
    return value is None or value in ({}, [])


def _rank(key: str) -> int:
    return next((rank for rank, name in enumerate(_FIRST) if _is_at_or_below(key, [name])), len(_FIRST))


def _matters(key: str) -> bool:
    head = key.partition(".")[0]
    if head == "environment":
        return key.partition(".")[2] in FORBIDDING_KEYS
    return head not in _NO_MATTER


def _is_at_or_below(key: str, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


# --- stored scenarios in the keys of their files ---------------------------------------------------------------------
# Differences between runs are shown in these keys. Elements of lists are found by their name, durations are texts, and
# generators stay as they are stored.

_MODES = {stored: mode.value for mode, stored in LOAD_MODES.items()}
_FILE_KEYS = {
    "load_mode": "mode",
    "concurrent_connections": "connections",
    "worker_group_count": "workers",
    "rate_per_second": "rate",
    "step_duration_seconds": "step",
}
_MOVED = (  # beginnings of keys, as stored and in the file; the rest of the stored `workload` is `load`
    ("workload.statements.", "workload.statements."),
    ("workload.think_time", "workload.think_time"),
    ("workload.seed.", "seed."),
    ("workload.", "load."),
    ("scaling.", "load."),
    ("find_max.", "load.find_max."),
    ("workers.", "load.workers."),
    ("replay.", "load."),
)
# Each is shown as one value.
_ONE_VALUE = frozenset({"generate", "params", "transaction", "thresholds", "stages", "indexes", "key_range"})
_OF_CAPTURE = ("replay.planned", "replay.recorded", "replay.coverage")  # computed from the capture, not in the file
_SECONDS = "_seconds"
_MEMBER = re.compile(r"\[([^\]]*)\]")


def as_written(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a scenario file. Lists whose elements have names are mappings by name."""
    written: dict[str, Any] = {"workload": {}, "load": {}}
    stored = {"find_max": None, **flattened(config, ("workload", "scaling", "replay"))}
    for place, value in stored.items():
        if place in _OF_CAPTURE:
            continue
        if place == "workload.statements":
            value = [_file_statement(one) for one in value]
        elif place == "values":
            value = [{key: pool[key] for key in pool if key != TYPE_KEY} for pool in value]  # query or file
        section, _, key = key_as_written(place).rpartition(".")
        (written.setdefault(section, {}) if section else written)[key] = _as_value(place.rpartition(".")[2], value)
    load = written["load"]
    if load.get("mode") == LoadMode.RATE.value:
        load["max_connections"] = load.pop("connections", None)
    elif load.get("mode") == LoadMode.FIND_MAX.value:
        load.pop("connections", None)  # find_max.maximum
    return written


def key_as_written(stored: str) -> str:
    """The key in the file for a stored key, such as workload.statements[pay].weight or workload.duration_seconds."""
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
    if name in _ONE_VALUE:
        return value
    if isinstance(value, Mapping):
        return {_file_key(inner): _as_value(inner, one) for inner, one in value.items()}
    if isinstance(value, list) and value and all(isinstance(one, Mapping) and "name" in one for one in value):
        return {str(one["name"]): _as_value("", {key: one[key] for key in one if key != "name"}) for one in value}
    return value


# --- limits of changes -----------------------------------------------------------------------------------------------

_LIMIT = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?)\s*%")
_HOW = "Write [statement.]metric=percent, such as --limit p95=10% or --limit pay.p99=25%."


class Measure(StrEnum):
    """Names as in summary.json."""

    QPS = "qps"
    AVG = "avg"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    ERROR_RATE = "error_rate"
    MAX_CONCURRENCY = "max_concurrency"

    @property
    def more_is_worse(self) -> bool:
        return self not in (Measure.QPS, Measure.MAX_CONCURRENCY)

    @property
    def per_mille(self) -> int | None:
        """The percentile in thousandths; None: the metric is not a percentile."""
        return int(self.value[1:]) * 10 if re.fullmatch(r"p[0-9]{2}", self.value) else None


DEFAULTS: Mapping[Measure, float] = {
    Measure.QPS: 0.05,
    Measure.AVG: 0.10,
    Measure.P50: 0.10,
    Measure.P90: 0.10,
    Measure.P95: 0.10,
    Measure.P99: 0.15,
    Measure.ERROR_RATE: 0.005,
    Measure.MAX_CONCURRENCY: 0.10,
}

Subject = tuple[str | None, Measure]  # a statement, or None for all together; and its metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLimits:
    """The defaults, and the limits that the user set."""

    given: Mapping[Subject, float] = field(default_factory=dict)

    def of(self, statement: str | None, measure: Measure) -> float:
        """A statement has the limit of all statements together unless it has a separate one."""
        own = self.given.get((statement, measure))
        return self.given.get((None, measure), DEFAULTS[measure]) if own is None else own


def parse_limits(texts: Iterable[str]) -> ChangeLimits:
    """The values of --limit; the last one of a metric counts."""
    return ChangeLimits(given=dict(map(_parsed, texts)))


def _parsed(text: str) -> tuple[Subject, float]:
    subject, _, limit = text.rpartition("=")
    statement, _, word = subject.strip().rpartition(".")
    if word not in list(Measure):
        near = difflib.get_close_matches(word, list(Measure), n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"--limit {printable(text, 100)}: there is no such metric", remedy=f"{meant}{_metrics()} {_HOW}"
        )
    match = _LIMIT.fullmatch(limit.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"--limit {printable(text, 100)}: the limit is not a percentage above 0", remedy=_HOW)
    return (statement or None, Measure(word)), float(match[1]) / 100


def _metrics() -> str:
    return f"Metrics are {' '.join(Measure)}."
