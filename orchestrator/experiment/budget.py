"""What an experiment has spent, and what its next block may take. Pure.

Credits are estimates from polls. Where a run could not be observed, the worst case of its arm counts: a budget that
counts the unknown as nothing does not limit anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadgen.model.warehouse import CreditRates, WarehouseKind
from loadgen.rules.experiment import REPEATS, ExperimentProgress
from loadgen.rules.measurement import Measurement
from loadgen.rules.price import BILLED_MIN_S, HOUR_S
from loadgen.rules.scenario_plan import longest_s
from loadgen.scenario.experiment import ArmSection
from loadgen.scenario.model import Scenario
from loadgen.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWarehouse:
    """The warehouse of an arm, as it will be while the arm is measured."""

    size: str | None
    kinds: tuple[WarehouseKind, ...]  # several: it is not known which
    clusters_max: int


def planned_warehouse(arm: ArmSection, shown: PlannedWarehouse | None) -> PlannedWarehouse | None:
    """`shown`: what it is set to now; None: that is not known. One that the experiment makes has Snowflake's defaults,
    of which the generation depends on the account."""
    settings = arm.settings
    if arm.warehouse is not None and arm.warehouse.create:
        shown = PlannedWarehouse(size="X-Small", kinds=(WarehouseKind.GEN1, WarehouseKind.GEN2), clusters_max=1)
    if shown is None:
        return None
    kinds = {"1": (WarehouseKind.GEN1,), "2": (WarehouseKind.GEN2,)}
    return PlannedWarehouse(
        size=str(settings.get("size", shown.size)),
        kinds=kinds.get(str(settings.get("generation")), shown.kinds),
        clusters_max=max(int(settings.get("max_clusters", shown.clusters_max)), int(settings.get("min_clusters", 1))),
    )


def worst_case_credits(scenario: Scenario, warehouse: PlannedWarehouse | None, rates: CreditRates) -> float | None:
    """Credits of one measurement at most: every cluster for the longest time that a run can take. None: not known."""
    if warehouse is None:
        return None
    known = [rates.of(warehouse.size, kind) for kind in warehouse.kinds]
    highest = max((rate for rate in known if rate is not None), default=None)
    if highest is None:
        return None
    return highest * warehouse.clusters_max * max(longest_s(scenario, None), BILLED_MIN_S) / HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSpending:
    """Seconds and credits by block."""

    seconds: Mapping[int, float]
    credits: Mapping[int, float]
    unknown: int  # measurements whose credits are not known

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def total_credits(self) -> float:
        return sum(self.credits.values())


def spending_of(measured: Sequence[Measurement], worst: Mapping[str, float | None]) -> ExperimentSpending:
    """Of all measurements, usable or not. `worst`: credits of one measurement at most, by arm."""
    seconds: dict[int, float] = {}
    credits: dict[int, float] = {}
    for one in measured:
        spent = one.billed if one.billed is not None else worst.get(one.arm) or 0.0
        seconds[one.block] = seconds.get(one.block, 0.0) + one.seconds
        credits[one.block] = credits.get(one.block, 0.0) + spent
    return ExperimentSpending(seconds=seconds, credits=credits, unknown=sum(one.billed is None for one in measured))


def progress_of(
    spent: ExperimentSpending,
    *,
    begun: int,
    complete: Sequence[int],
    lost_in_a_row: int,
    planned_block_s: float,
    worst: Mapping[str, float | None],
) -> ExperimentProgress:
    """`complete`: numbers of complete blocks. Without any, the next block may cost its worst case: every measurement
    repeated."""
    costliest = max(spent.credits.values(), default=0.0)
    if not complete:
        costliest = max(costliest, REPEATS * sum(credits or 0.0 for credits in worst.values()))
    return ExperimentProgress(
        begun=begun,
        lost_in_a_row=lost_in_a_row,
        elapsed_s=spent.total_s,
        credits=spent.total_credits,
        longest_block_s=max([planned_block_s, *spent.seconds.values()]),
        costliest_block_credits=costliest,
    )
