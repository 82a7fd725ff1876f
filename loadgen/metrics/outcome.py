"""How a scheduled statement can end, as a number small enough for an array."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from loadgen.model.outcome import ErrorCategory


class Outcome(IntEnum):
    """The names are keys in stored documents. From CONNECTION on they are failures, one for each ErrorCategory."""

    SUCCEEDED = 0
    CANCELLED = 1  # by us: its time is censored
    SKIPPED = 2  # due, and never sent: it has no time, or an age when every connection was executing
    CONNECTION = 3
    QUERY_TIMEOUT = 4
    SNOWFLAKE_ERROR = 5
    CHECK = 6
    CONFIGURATION = 7
    FATAL = 8

    @property
    def is_failure(self) -> bool:
        return self >= Outcome.CONNECTION


CUT_OFF = (Outcome.CANCELLED, Outcome.QUERY_TIMEOUT)  # their times are lower bounds

_BY_CATEGORY = {category: Outcome[category.name] for category in ErrorCategory}


@dataclass(frozen=True, slots=True)
class Failed:
    """The outcome of a failed sample. To numpy it is the number of its category (`__index__`)."""

    category: ErrorCategory
    code: int | None
    text: str

    def __index__(self) -> int:
        return _BY_CATEGORY[self.category].value
