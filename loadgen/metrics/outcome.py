"""How a scheduled statement can end, as a number small enough for an array."""

from __future__ import annotations

from enum import IntEnum

from loadgen.model.counts import ErrorCategory
from loadgen.values import dataclass


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

    __hash__ = int.__hash__  # the one of Enum is a Python function, and tallies are dictionaries by outcome

    @property
    def is_failure(self) -> bool:
        return self >= Outcome.CONNECTION


CUT_OFF = (Outcome.CANCELLED, Outcome.QUERY_TIMEOUT)  # their times are lower bounds

_BY_CATEGORY = {category: Outcome[category.name] for category in ErrorCategory}


@dataclass(frozen=True, slots=True)
class FailedOutcome:
    """The outcome of a failed sample. To numpy it is the number of its category (`__index__`)."""

    category: ErrorCategory
    code: int | None
    text: str
    answered: bool = True  # by the server; else the cursor still has the query id of the statement before

    @classmethod
    def after(
        cls, waited_s: float, category: ErrorCategory, code: int | None, text: str, *, limit_s: float
    ) -> FailedOutcome:
        """Of a statement that waited so long for its end. Without an answer within its time limit it has timed out,
        whichever side gave up. A connection that fails sooner says nothing about how long success takes."""
        answered = category not in (ErrorCategory.CONNECTION, ErrorCategory.FATAL)
        if category is ErrorCategory.CONNECTION and waited_s >= limit_s:
            category = ErrorCategory.QUERY_TIMEOUT
        return cls(category, code, text, answered)

    def __index__(self) -> int:
        return _BY_CATEGORY[self.category].value
