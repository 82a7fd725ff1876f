"""Outcomes of planned statements. Counts of windows and workers can be added."""

from __future__ import annotations

from enum import StrEnum

from loadgen.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """scheduled = skipped + succeeded + failed + cancelled + in flight; `count_discrepancy` finds a difference."""

    scheduled: int = 0
    skipped: int = 0  # due, but never sent
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0  # ended by loadgen; its full time is unknown
    in_flight: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            scheduled=self.scheduled + other.scheduled,
            skipped=self.skipped + other.skipped,
            succeeded=self.succeeded + other.succeeded,
            failed=self.failed + other.failed,
            cancelled=self.cancelled + other.cancelled,
            in_flight=self.in_flight + other.in_flight,
        )

    @property
    def ended(self) -> int:
        """All statements that are no longer in flight, including skipped ones."""
        return self.skipped + self.succeeded + self.failed + self.cancelled

    @property
    def error_rate(self) -> float | None:
        """failed ÷ (succeeded + failed); None if there are none of both."""
        tried = self.succeeded + self.failed
        return self.failed / tried if tried else None


def count_discrepancy(counts: Counts) -> str | None:
    """One sentence that names the difference; None: the counts add up."""
    for name in Counts.__slots__:
        if getattr(counts, name) < 0:
            return f"{name} is {getattr(counts, name)}: more statements ended than began"
    off = counts.scheduled - counts.ended - counts.in_flight
    if off == 0:
        return None
    parts = " + ".join(f"{name} {getattr(counts, name)}" for name in Counts.__slots__[1:])
    lost = f"{off} lost" if off > 0 else f"{-off} too many"
    return f"scheduled {counts.scheduled} is not {parts}: {lost}"


class ErrorCategory(StrEnum):
    """The kind of a failure. The names are stored in QUERY_EXECUTIONS.ERROR_CATEGORY and in summary.json."""

    CONNECTION = "CONNECTION"  # no usable answer: network, HTTP, lost session
    QUERY_TIMEOUT = "QUERY_TIMEOUT"  # no success within the statement's time limit: the server or the client ended it
    SNOWFLAKE_ERROR = "SNOWFLAKE_ERROR"  # the server rejected the statement, or failed to execute it
    CHECK = "CHECK"  # it succeeded, but the result is not what the scenario expects
    CONFIGURATION = "CONFIGURATION"  # it can never succeed: invalid SQL, missing object, privilege or credential
    FATAL = "FATAL"  # an internal error, or the process cannot continue


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSessionCounts:
    """Numbers of user sessions. A session that ended before the load counts as expired, for any reason."""

    created: int = 0
    expired: int = 0

    @property
    def current(self) -> int:
        return self.created - self.expired

    def __add__(self, other: UserSessionCounts) -> UserSessionCounts:
        return UserSessionCounts(created=self.created + other.created, expired=self.expired + other.expired)

    def document(self) -> dict[str, int]:
        """The JSON of results and reports."""
        return {"created": self.created, "expired": self.expired, "current": self.current}
