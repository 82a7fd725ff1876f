"""The target's warehouse: what it is, what in it disturbs a measurement, and what a run on it may cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from loadgen.doctor.finding import Finding, failed, ok, warning
from loadgen.log import printable
from loadgen.model.credits import credits_per_hour
from loadgen.rules.scenario_plan import CostEstimate, format_span
from loadgen.snowflake.ident import Identifier
from loadgen.units import counted

_TRUE = ("true", "y", "yes", "on")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseDescription:
    """A row of SHOW WAREHOUSES. None: not reported."""

    name: str
    state: str
    type: str
    size: str
    generation: str | None
    clusters_min: int
    clusters_max: int
    auto_suspend_s: int | None
    auto_resume: bool
    query_acceleration: bool
    max_concurrency: int | None

    @classmethod
    def from_row(cls, row: Mapping[str, Any], max_concurrency: int | None) -> Self:
        return cls(
            name=_text(row, "name"),
            state=_text(row, "state").upper(),
            type=_text(row, "type").upper(),
            size=_text(row, "size"),
            generation=_text(row, "generation") or None,
            clusters_min=_number(row, "min_cluster_count") or 1,
            clusters_max=_number(row, "max_cluster_count") or 1,
            auto_suspend_s=_number(row, "auto_suspend") or None,
            auto_resume=_text(row, "auto_resume").lower() in _TRUE,
            query_acceleration=_text(row, "enable_query_acceleration").lower() in _TRUE,
            max_concurrency=max_concurrency,
        )

    @property
    def credits_per_hour(self) -> float | None:
        """Of all its clusters, at the rate of generation 1; None for a kind that is billed otherwise."""
        rate = credits_per_hour(self.size) if self.type == "STANDARD" else None
        return None if rate is None else rate * self.clusters_max


def absent(name: Identifier, role: str) -> Finding:
    return failed(
        f"{name} is not there, or not for role {role}",
        "Create it, or have an administrator run:"
        f" GRANT USAGE, MONITOR ON WAREHOUSE {name} TO ROLE {Identifier(role)};",
    )


def judge(found: WarehouseDescription, *, is_embedded: bool, connections: int | None) -> Sequence[Finding]:
    """First what it is, then everything that is worth a thought."""
    name = Identifier(found.name)
    if found.state == "SUSPENDED" and not found.auto_resume:
        return [
            failed(
                f"{name} is suspended and does not start by itself",
                f"ALTER WAREHOUSE {name} RESUME, or SET AUTO_RESUME = TRUE.",
            )
        ]
    findings = [ok(_described(found), *_notes(found, connections))]
    if found.auto_suspend_s is None and not is_embedded:
        remedy = f"ALTER WAREHOUSE {name} SET AUTO_SUSPEND = 60, unless it is meant to run all the time."
        findings.append(warning(f"{name} never suspends: it costs credits while it is idle", remedy))
    if found.query_acceleration and not is_embedded:
        remedy = f"ALTER WAREHOUSE {name} SET ENABLE_QUERY_ACCELERATION = FALSE, unless that is what you measure."
        findings.append(warning("query acceleration is on: others' load decides when it helps", remedy))
    if found.clusters_min != found.clusters_max:
        remedy = "Set MIN_CLUSTER_COUNT = MAX_CLUSTER_COUNT, unless scaling is what you measure."
        findings.append(warning(f"clusters start during the run: {_clusters(found)}", remedy))
    return findings


def _described(found: WarehouseDescription) -> str:
    generation = f", generation {found.generation}" if found.generation else ""
    suspend = f"suspends after {found.auto_suspend_s} s" if found.auto_suspend_s else "never suspends"
    kind = "" if found.type == "STANDARD" else f"{found.type.lower()}, "
    name, state = Identifier(found.name), found.state.lower()
    return f"{name}: {kind}{found.size}{generation}, {_clusters(found)}, {suspend}, {state}"


def _clusters(found: WarehouseDescription) -> str:
    if found.clusters_min == found.clusters_max:
        return counted(found.clusters_max, "cluster")
    return f"{found.clusters_min} to {found.clusters_max} clusters"


def _notes(found: WarehouseDescription, connections: int | None) -> list[str]:
    notes = []
    if found.max_concurrency is not None:
        slots = found.max_concurrency * found.clusters_max
        notes.append(
            f"MAX_CONCURRENCY_LEVEL {found.max_concurrency} per cluster: about {counted(slots, 'statement')} at once"
        )
        if connections is not None and connections > slots:
            notes.append(f"the scenario has {counted(connections, 'connection')}: larger statements would queue")
    if found.state == "SUSPENDED":
        notes.append("the first statement starts it: let the warm-up be long enough")
    return notes


# --- cost ------------------------------------------------------------------------------------------------------------


def cost(planned: CostEstimate | None, found: WarehouseDescription | None, max_credits: float | None) -> Finding:
    """The worst case: every cluster busy for as long as the run can last."""
    if planned is None:
        return ok("none: the embedded server runs on this machine")
    rate = found.credits_per_hour if found is not None else None
    if found is None or rate is None:
        sizes = ", ".join(f"{size} {credits:.2f}" for size, credits in planned.by_size)
        return ok(f"at most, in credits by size: {sizes}; plus {planned.control:.2f} for the control warehouse")
    credits = rate * planned.control  # an X-Small costs one credit an hour, so this is the number of hours
    total = credits + planned.control
    said = (
        f"at most {total:.2f} credits: {credits:.2f} for {found.size}, {_clusters(found)}, and {planned.control:.2f}"
        f" for the control warehouse, running for {format_span(planned.longest_s)}"
    )
    note = "at the rate of generation 1; a later one costs more. Preparing, and idling until it suspends, come on top"
    if max_credits is not None and total > max_credits:
        remedy = "Shorten the run, use a smaller warehouse, or raise guardrails.max_credits."
        return warning(f"{said}; guardrails.max_credits is {max_credits:g}", remedy, note)
    return ok(said, note)


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else printable(str(value), 300)


def _number(row: Mapping[str, Any], key: str) -> int | None:
    text = _text(row, key)
    return int(text) if text.isdigit() else None
