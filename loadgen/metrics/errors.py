"""Failures grouped by what they were: category, code and statement, how often, and one text to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from loadgen.log import printable
from loadgen.metrics.outcome import FailedOutcome
from loadgen.model.outcome import ErrorCategory

CODES_MAX = 32  # in one worker; what comes later is counted with the errors of its category that have no code
NAMED_MAX = 32  # groups with a statement, in one worker; what comes later is counted without its statement
EXAMPLE_MAX = 200  # characters


class ErrorKey(NamedTuple):
    """What a group of failures has in common."""

    category: ErrorCategory
    code: int | None = None
    statement: str | None = None  # None: of any statement, because there were too many groups


@dataclass(frozen=True, slots=True)
class ErrorTally:
    """Failures of one group."""

    count: int
    example: str

    def __add__(self, other: ErrorTally) -> ErrorTally:
        return ErrorTally(self.count + other.count, min(self.example, other.example))  # min: the same in any order


class ErrorGrouper:
    """Which errors one worker has met, and the first text of each. One thread."""

    def __init__(self) -> None:
        self._examples: dict[ErrorKey, str] = {}
        self._codes: set[tuple[ErrorCategory, int]] = set()
        self._named = 0

    def group(self, failures: Iterable[tuple[int, str, FailedOutcome]]) -> dict[int, dict[ErrorKey, ErrorTally]]:
        """(window, statement, failure) as errors of each window."""
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
    """The same without statements: one group for each category and code."""
    kinds: dict[ErrorKey, ErrorTally] = {}
    for key, group in errors.items():
        kind = key._replace(statement=None)
        kinds[kind] = kinds[kind] + group if kind in kinds else group
    return kinds
