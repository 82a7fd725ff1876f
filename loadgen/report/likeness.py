"""May two runs be compared at all? What differs between them, and which difference forbids it. Pure.

A comparison blames every change on what the user changed. So whatever else may change a number must be alike: the
scenario but for names and thresholds, the size of the warehouse, the driver's major version, the number of workers and
of cores. A difference that is the point of the comparison is named by the user (`--vary target.warehouse`), together
with everything below that key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Parts of a stored scenario that do not change what is measured.
_NO_MATTER = ("name", "description", "labels", "thresholds", "control", "enrichment", "notify", "frozen_version")
_NOTED = ("loadgen", "python", "platform", "server", "shared_warehouse")  # of the environment: shown when they differ
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting that two runs do not share."""

    key: str
    a: Any  # None: it is not set there
    b: Any
    matters: bool  # it can change a number
    varied: bool = False  # the user said that it is what he compares

    @property
    def forbids(self) -> bool:
        return self.matters and not self.varied


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run was made with: the stored scenario, and what was found around it."""

    config: Mapping[str, Any]
    environment: Mapping[str, Any]  # of summary.json
    workers: int
    warehouse_sizes: tuple[str, ...]  # seen while it ran, each once, in order


def unfit(letter: str, run_id: str, status: str, summary: Mapping[str, Any] | None) -> str | None:
    """Why this run cannot be compared with any; None: it can."""
    if status != "COMPLETED":
        return f"{letter} ({run_id}) is {status}, and not COMPLETED"
    if summary is None:
        return f"{letter} ({run_id}) has no result"
    if not summary["validity"]["valid"]:
        return f"{letter} ({run_id}) is INVALID: {'; '.join(summary['validity']['reasons'])}"
    found = summary.get("find_max")
    if found is not None and found.get("max_concurrency") is None:
        return f"{letter} ({run_id}) found no maximum: {found.get('reason')}"
    return None


def differences(a: Setting, b: Setting, varied: Sequence[str] = ()) -> tuple[Difference, ...]:
    """Everything that is not the same, by key; what forbids a comparison first."""
    first, second = dict(_facts(a)), dict(_facts(b))
    found = [
        Difference(
            key=key,
            a=_shown(first.get(key, _MISSING)),
            b=_shown(second.get(key, _MISSING)),
            matters=_matters(key),
            varied=_is_varied(key, varied),
        )
        for key in sorted(first.keys() | second.keys())
        if first.get(key, _MISSING) != second.get(key, _MISSING)
    ]
    return tuple(sorted(found, key=lambda one: (not one.forbids, not one.matters, one.key)))


def unused(varied: Iterable[str], found: Iterable[Difference]) -> list[str]:
    """Keys the user named that do not differ: perhaps they are misspelt."""
    keys = [one.key for one in found]
    return [name for name in varied if not any(_is_varied(key, [name]) for key in keys)]


def _facts(setting: Setting) -> Iterator[tuple[str, Any]]:
    yield from _flat(setting.config, "")
    environment = setting.environment
    for name in (*_NOTED, "cores"):
        yield f"environment.{name}", environment.get(name)
    yield "environment.driver_major", str(environment.get("driver")).partition(".")[0]
    yield "environment.driver", environment.get("driver")
    yield "workers", setting.workers
    yield "warehouse.size", ", ".join(setting.warehouse_sizes) or None


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Leaves with their keys; members of a list by their name where they have one: workload.statements[pay].weight."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            name = inner.get("name", number) if isinstance(inner, Mapping) else number
            yield from _flat(inner, f"{key}[{name}]")
    else:
        yield key, value


def _matters(key: str) -> bool:
    head = key.partition(".")[0].partition("[")[0]
    if head == "environment":
        return key.partition(".")[2] in ("cores", "driver_major")
    return head not in _NO_MATTER


def _is_varied(key: str, varied: Sequence[str]) -> bool:
    return any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in varied)


def _shown(value: Any) -> Any:
    return None if value is _MISSING else value
