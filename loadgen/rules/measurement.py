"""One measurement of an experiment: its figures, from the result of its run. Pure.

Percentiles are interpolated within their bucket, so that differences below its width of 2 % can be seen when blocks are
averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import Any

from loadgen.metrics.percentile import PERCENTILES, mean, quantile
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import MergedWindows
from loadgen.model.experiment import ExperimentMetric, ExperimentMetricKind
from loadgen.model.threshold import ThresholdCheck
from loadgen.model.warehouse import CreditRates, WarehouseKind, size_name
from loadgen.rules.confidence_intervals import log_quantile
from loadgen.rules.experiment import BlockValues, ExperimentDesign
from loadgen.rules.price import WarehouseSample, credits_between
from loadgen.rules.thresholds import check_threshold
from loadgen.units import NS_PER_MS
from loadgen.values import dataclass

_REPORTED = ("p50", "p90", "p95", "p99", "avg")  # of every arm, compared or not


class MeasurementOutcome(StrEnum):
    OK = "OK"
    INVALID = "INVALID"  # the run ended, and its figures cannot be used
    FAILED = "FAILED"  # it did not end as planned


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWarehouse:
    """The warehouse of a measurement, as polls observed it."""

    size: str
    kind: WarehouseKind
    clusters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementFigures:
    """The figures of a valid run. Times are milliseconds."""

    values: Mapping[str, float]  # by metric, of those that are compared; the price is that of all statements
    latency_ms: Mapping[str, float | None]
    qps: float
    error_rate: float
    statements: int  # successful ones
    credits: float | None = None  # of the measured span; None: not known
    limits: Mapping[str, bool] = field(default_factory=dict)  # by check: whether it held
    warehouse: MeasuredWarehouse | None = None  # None: not known

    @property
    def inside(self) -> bool:
        return all(self.limits.values())

    def price(self, credit_price: float) -> float | None:
        """The price of 1,000 statements, inside the limits or not; None: not known."""
        return self.credits * credit_price * 1_000 / self.statements if self.credits and self.statements else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One attempt to measure an arm in a block, as it is stored."""

    block: int
    arm: str
    attempt: int  # 1, or 2 after an unusable one
    run_id: str | None
    outcome: MeasurementOutcome
    seconds: float  # with the wash-out before it
    billed: float | None = None  # credits of the whole run, estimated
    reason: str = ""  # why it cannot be used
    figures: MeasurementFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSource:
    """The data that the figures of a measurement are computed from."""

    merged: MergedWindows
    samples: Sequence[WarehouseSample]
    measures_s: float  # from the start of the run to the start of the measurement


def figures_of(
    run: MeasurementSource,
    metrics: Sequence[ExperimentMetric],
    limits: Sequence[ThresholdCheck],
    rates: CreditRates,
    credit_price: float,
) -> tuple[MeasurementFigures, list[str]]:
    """The figures, and which metrics have no value and why."""
    whole = run.merged.tally.whole
    ended_s = run.measures_s + run.merged.seconds
    succeeded = whole.ended.succeeded
    tried = succeeded + whole.ended.failed
    figures = MeasurementFigures(
        values={},
        latency_ms={name: latency_ms(ExperimentMetricKind(name), whole) for name in _REPORTED},
        qps=run.merged.qps,
        error_rate=whole.ended.failed / tried if tried else 0.0,
        statements=succeeded,
        credits=credits_between(run.samples, run.measures_s, ended_s, rates),
        limits={check.text: check_threshold(check, run.merged).passed for check in limits},
        warehouse=_warehouse(run.samples, run.measures_s, ended_s),
    )
    values: dict[str, float] = {}
    missing: list[str] = []
    for metric in metrics:
        if metric.kind is ExperimentMetricKind.PRICE:
            found = figures.price(credit_price)
        elif metric.kind is ExperimentMetricKind.QPS:
            found = run.merged.qps if metric.statement is None else run.merged.statement_qps.get(metric.statement)
        else:
            found = latency_ms(metric.kind, _tally(metric, run.merged))
        if found:
            values[metric.text] = found
        else:
            missing.append(f"{metric.text} {_why_missing(metric)}")
    return replace(figures, values=values), missing


def _warehouse(samples: Sequence[WarehouseSample], begin_s: float, end_s: float) -> MeasuredWarehouse | None:
    """The warehouse as polls observed it in this span, with the largest number of clusters; None: there was no poll."""
    seen = sorted((one for one in samples if one.at_s <= end_s), key=lambda one: one.at_s)
    within = [one for one in seen if one.at_s >= begin_s] or seen[-1:]
    size = size_name(within[-1].size or "") if within else None
    if size is None:
        return None
    return MeasuredWarehouse(size=size, kind=within[-1].kind, clusters=max(one.clusters for one in within))


def _tally(metric: ExperimentMetric, merged: MergedWindows) -> StatementTally:
    if metric.statement is None:
        return merged.tally.whole
    return merged.tally.statements.get(metric.statement, StatementTally())


def _why_missing(metric: ExperimentMetric) -> str:
    if metric.kind is ExperimentMetricKind.PRICE:
        return "is not known: the warehouse could not be polled, or the rate table has no rate for it"
    if metric.kind is ExperimentMetricKind.QPS:
        return "is 0"
    return "is not known: too few statements ended, or too many were cut off"


def latency_ms(kind: ExperimentMetricKind, tally: StatementTally) -> float | None:
    """A percentile, interpolated, or the mean; None: too few samples, or only a lower bound is known."""
    known, cut_off = tally.responses
    if kind is ExperimentMetricKind.AVG:
        found = mean(known, cut_off)
        return None if found is None or found.at_least else found.value_ns / NS_PER_MS
    per_mille = PERCENTILES[kind.value]
    found = quantile(per_mille, known, cut_off)
    if found is None or found.at_least:
        return None
    return math.exp(log_quantile((known + cut_off).counts, per_mille)) / NS_PER_MS


def complete_blocks(design: ExperimentDesign, measured: Sequence[Measurement]) -> tuple[BlockValues, ...]:
    """Blocks in which every arm has a usable measurement with a value for every metric. A measurement counts once,
    however often it is listed."""
    usable: dict[int, dict[str, Mapping[ExperimentMetric, float]]] = {}
    inside: dict[tuple[int, str], bool] = {}
    for one in sorted(measured, key=lambda one: one.attempt):
        if one.outcome is MeasurementOutcome.OK and one.figures is not None:
            values = {metric: one.figures.values.get(metric.text, 0.0) for metric in design.margins}
            if all(value > 0 for value in values.values()):
                usable.setdefault(one.block, {})[one.arm] = values
                inside[one.block, one.arm] = one.figures.inside
    return tuple(
        BlockValues(number=number, values=by_arm, outside=frozenset(arm for arm in by_arm if not inside[number, arm]))
        for number, by_arm in sorted(usable.items())
        if by_arm.keys() == set(design.arms)
    )


def figures_document(figures: MeasurementFigures) -> dict[str, Any]:
    """The figures as they are stored, and shown as JSON."""
    return {
        "values": dict(figures.values),
        "latency_ms": dict(figures.latency_ms),
        "qps": figures.qps,
        "error_rate": figures.error_rate,
        "statements": figures.statements,
        "credits": figures.credits,
        "limits": dict(figures.limits),
        "warehouse": None if figures.warehouse is None else warehouse_document(figures.warehouse),
    }


def warehouse_document(one: MeasuredWarehouse) -> dict[str, Any]:
    return {"size": one.size, "kind": one.kind.value, "clusters": one.clusters}


def _read_warehouse(found: Mapping[str, Any]) -> MeasuredWarehouse:
    return MeasuredWarehouse(
        size=str(found["size"]), kind=WarehouseKind(found["kind"]), clusters=int(found["clusters"])
    )


def read_figures(document: Mapping[str, Any]) -> MeasurementFigures:
    """Read a document of figures_document. Raises ValueError, TypeError or KeyError for others."""
    credits = document["credits"]
    return MeasurementFigures(
        values={str(name): float(value) for name, value in document["values"].items()},
        latency_ms={
            str(name): None if value is None else float(value) for name, value in document["latency_ms"].items()
        },
        qps=float(document["qps"]),
        error_rate=float(document["error_rate"]),
        statements=int(document["statements"]),
        credits=None if credits is None else float(credits),
        limits={str(check): bool(held) for check, held in document["limits"].items()},
        warehouse=_read_warehouse(document["warehouse"]) if document.get("warehouse") else None,
    )
