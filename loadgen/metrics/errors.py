"""Failures grouped by what they were: category and code, how often, and one text to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from loadgen.log import plain
from loadgen.metrics.outcome import Failed
from loadgen.model.outcome import ErrorCategory

CODES_MAX = 32  # in one worker; what comes later is counted with the errors of its category that have no code
EXAMPLE_MAX = 200  # characters

ErrorKey = tuple[ErrorCategory, int | None]  # category and code


@dataclass(frozen=True, slots=True)
class Errors:
    """Failures with one category and code."""

    count: int
    example: str

    def __add__(self, other: Errors) -> Errors:
        return Errors(self.count + other.count, min(self.example, other.example))  # min: the same in any order


class ErrorBook:
    """Which codes one worker has met, and the first text of each. One thread."""

    def __init__(self) -> None:
        self._examples: dict[ErrorKey, str] = {}
        self._codes = 0

    def group(self, failures: Iterable[tuple[int, Failed]]) -> dict[int, dict[ErrorKey, Errors]]:
        """(window, failure) pairs as errors of each window."""
        counts = Counter((window, self._key(failed)) for window, failed in failures)
        groups: dict[int, dict[ErrorKey, Errors]] = {}
        for (window, key), count in counts.items():
            groups.setdefault(window, {})[key] = Errors(count, self._examples[key])
        return groups

    def _key(self, failed: Failed) -> ErrorKey:
        key = failed.category, failed.code
        if key not in self._examples and failed.code is not None:
            if self._codes == CODES_MAX:
                key = failed.category, None
            else:
                self._codes += 1
        if key not in self._examples:
            self._examples[key] = plain(failed.text, EXAMPLE_MAX)
        return key
