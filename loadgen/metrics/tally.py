"""Tallies: measurements per statement that add, so that tallies of batches, windows and workers are merged by `+`.

Tally            statement name → StatementTally, and the errors
StatementTally   outcome → Times; lag; number and age of skipped statements
Times            response and service times of the samples with one outcome
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import reduce
from operator import add
from typing import NamedTuple, TypeVar

from loadgen.log import printable
from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.percentile import ConfidenceBounds, Quantile, quantile, quantile_bounds
from loadgen.metrics.recorder import CUT_OFF, FailedOutcome, Outcome
from loadgen.model.counts import Counts, ErrorCategory
from loadgen.values import dataclass

CODES_MAX = 32  # per worker; further codes are counted with the errors of their category without a code
NAMED_MAX = 32  # groups with a statement, per worker; further groups are counted without their statement
EXAMPLE_MAX = 200  # characters


class ErrorKey(NamedTuple):
    """The common properties of a group of failures."""

    category: ErrorCategory
    code: int | None = None
    statement: str | None = None  # None: any statement, because there were too many groups


@dataclass(frozen=True, slots=True)
class ErrorTally:
    """The failures in one group."""

    count: int
    example: str

    def __add__(self, other: ErrorTally) -> ErrorTally:
        return ErrorTally(self.count + other.count, min(self.example, other.example))  # min: the same in any order


class ErrorGrouper:
    """Groups the errors of one worker, with the first text of each group. One thread."""

    def __init__(self) -> None:
        self._examples: dict[ErrorKey, str] = {}
        self._codes: set[tuple[ErrorCategory, int]] = set()
        self._named = 0

    def group(self, failures: Iterable[tuple[int, str, FailedOutcome]]) -> dict[int, dict[ErrorKey, ErrorTally]]:
        """Group (window, statement, failure) by window and error."""
        counts = Counter((window, self._key(statement, failed)) for window, statement, failed in failures)
        groups: dict[int, dict[ErrorKey, ErrorTally]] = {}
        for (window, key), count in counts.items():
            groups.setdefault(window, {})[key] = ErrorTally(count, self._examples[key])
        return groups

    def _key(self, statement: str, failed: FailedOutcome) -> ErrorKey:
        code = self._code(failed)
        key = ErrorKey(failed.category, code, statement)
        if key not in self._examples:
            if self._named == NAMED_MAX:
                key = ErrorKey(failed.category, code)
            else:
                self._named += 1
        if key not in self._examples:
            self._examples[key] = printable(failed.text, EXAMPLE_MAX)
        return key

    def _code(self, failed: FailedOutcome) -> int | None:
        if failed.code is None or (failed.category, failed.code) in self._codes:
            return failed.code
        if len(self._codes) == CODES_MAX:
            return None
        self._codes.add((failed.category, failed.code))
        return failed.code


def by_kind(errors: Mapping[ErrorKey, ErrorTally]) -> dict[ErrorKey, ErrorTally]:
    """The errors without statements: one group for each category and code."""
    kinds: dict[ErrorKey, ErrorTally] = {}
    for key, group in errors.items():
        kind = key._replace(statement=None)
        kinds[kind] = kinds[kind] + group if kind in kinds else group
    return kinds


Key = TypeVar("Key")
Item = TypeVar("Item", "Times", "StatementTally", "ErrorTally")


@dataclass(frozen=True, slots=True)
class Times:
    response: Histogram = EMPTY  # done - due
    service: Histogram = EMPTY  # done - sent; in a closed loop the same object as response

    def __add__(self, other: Times) -> Times:
        response = self.response + other.response
        if self.service is self.response and other.service is other.response:
            return Times(response, response)
        return Times(response, self.service + other.service)


NO_TIMES = Times()


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementTally:
    times: Mapping[Outcome, Times] = field(default_factory=dict)
    lag: Histogram = EMPTY  # sent - due of all statements that were sent; empty in a closed loop
    skipped: int = 0
    unsent: Histogram = EMPTY  # age of skipped statements whose connections were all busy: a lower bound of their wait

    def __add__(self, other: StatementTally) -> StatementTally:
        return StatementTally(
            times=merged(self.times, other.times),
            lag=self.lag + other.lag,
            skipped=self.skipped + other.skipped,
            unsent=self.unsent + other.unsent,
        )

    @property
    def succeeded(self) -> Times:
        return self.times.get(Outcome.SUCCEEDED, NO_TIMES)

    @property
    def cancelled(self) -> Times:
        return self.times.get(Outcome.CANCELLED, NO_TIMES)

    @property
    def failures(self) -> Mapping[Outcome, Times]:
        return {outcome: times for outcome, times in self.times.items() if outcome.is_failure}

    @property
    def failed(self) -> int:
        return sum(times.response.count for times in self.failures.values())

    @property
    def ended(self) -> Counts:
        """The counts of ended statements. `scheduled` and `in_flight` are 0: only the window knows them."""
        return Counts(
            skipped=self.skipped,
            succeeded=self.succeeded.response.count,
            failed=self.failed,
            cancelled=self.cancelled.response.count,
        )

    @property
    def cut_off(self) -> Times:
        """The times of statements that timed out, gave up a lock or were cancelled: lower bounds."""
        return reduce(add, (self.times.get(outcome, NO_TIMES) for outcome in CUT_OFF))

    @property
    def responses(self) -> tuple[Histogram, Histogram]:
        """Known response times, and lower bounds: of statements that were cut off or never sent."""
        return self.succeeded.response, self.cut_off.response + self.unsent

    @property
    def every_response(self) -> Histogram:
        known, at_least = self.responses
        return known + at_least

    @property
    def services(self) -> tuple[Histogram, Histogram]:
        return self.succeeded.service, self.cut_off.service

    def response_at(self, per_mille: int) -> Quantile | None:
        return quantile(per_mille, *self.responses)

    def service_at(self, per_mille: int) -> Quantile | None:
        return quantile(per_mille, *self.services)

    def response_bounds(self, per_mille: int) -> ConfidenceBounds:
        return quantile_bounds(per_mille, *self.responses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    statements: Mapping[str, StatementTally] = field(default_factory=dict)
    errors: Mapping[ErrorKey, ErrorTally] = field(default_factory=dict)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            statements=merged(self.statements, other.statements),
            errors=merged(self.errors, other.errors),
        )

    @property
    def ended(self) -> Counts:
        return reduce(add, (statement.ended for statement in self.statements.values()), Counts())

    @property
    def whole(self) -> StatementTally:
        """All statements together."""
        return reduce(add, self.statements.values(), StatementTally())


def merged(left: Mapping[Key, Item], right: Mapping[Key, Item]) -> Mapping[Key, Item]:
    """The union of both mappings; values of common keys are added."""
    both = dict(left)
    for key, item in right.items():
        both[key] = both[key] + item if key in both else item
    return both
