"""Metrics, decisions and endings of experiments. Every metric is a positive number, so that two arms have a ratio."""

from __future__ import annotations

import difflib
from enum import StrEnum
from typing import Self

from loadgen.values import dataclass

PRICE = "price"
_HOW = "write [statement.]metric, such as p95, pay.p99, qps or price"


class ExperimentMetricKind(StrEnum):
    """Names as in summary.json, and the price of 1,000 statements."""

    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    P999 = "p999"
    AVG = "avg"
    QPS = "qps"
    PRICE = PRICE

    @property
    def more_is_better(self) -> bool:
        return self is ExperimentMetricKind.QPS

    @property
    def is_latency(self) -> bool:
        return self not in (ExperimentMetricKind.QPS, ExperimentMetricKind.PRICE)

    @property
    def is_percentile(self) -> bool:
        return self.is_latency and self is not ExperimentMetricKind.AVG


class InvalidMetric(ValueError):
    """A text that names no metric of an experiment."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


@dataclass(frozen=True, slots=True)
class ExperimentMetric:
    """A metric of one statement, or of all statements together."""

    kind: ExperimentMetricKind
    statement: str | None = None

    @property
    def text(self) -> str:
        return self.kind.value if self.statement is None else f"{self.statement}.{self.kind}"

    @classmethod
    def parse(cls, text: str) -> Self:
        statement, dot, word = text.strip().rpartition(".")
        if word == "error_rate":
            raise InvalidMetric("error_rate has no ratio: it may be 0", "put it in limits: error_rate < 1%")
        if word not in list(ExperimentMetricKind):
            near = difflib.get_close_matches(word, list(ExperimentMetricKind), n=1)
            known = f"metrics are {' '.join(ExperimentMetricKind)}"
            raise InvalidMetric("is not a metric of experiments", f"did you mean {near[0]}?" if near else known)
        kind = ExperimentMetricKind(word)
        if dot and not statement:
            raise InvalidMetric("names no statement before the dot", _HOW)
        if statement and kind is ExperimentMetricKind.PRICE:
            raise InvalidMetric("price is of all statements together", "write price")
        return cls(kind, statement or None)


class Decision(StrEnum):
    """The decision about an arm, compared with another arm in one metric."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"  # the difference is inside the margin
    UNDECIDED = "undecided"
    OUTSIDE = "outside"  # the arm is outside the limits, so it has no price


class ExperimentEnding(StrEnum):
    """Why an experiment has no further block."""

    DECIDED = "decided"
    BLOCKS = "blocks"  # all are done
    TIME = "time"  # the next block would exceed the budget
    CREDITS = "credits"
    LOST_BLOCKS = "lost_blocks"  # two consecutive blocks could not be completed
