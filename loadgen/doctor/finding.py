"""What a check found."""

from __future__ import annotations

from enum import StrEnum

from loadgen.values import dataclass


class FindingLevel(StrEnum):
    OK = "ok"
    WARNING = "warning"  # a run works, but something is worth knowing
    FAILED = "failed"  # a run would not work
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence, and what to do about it unless all is well."""

    mark: FindingLevel
    said: str
    remedy: str | None = None
    details: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert (self.remedy is None) == (self.mark in (FindingLevel.OK, FindingLevel.SKIPPED)), f"remedy of {self}"


def ok(said: str, *details: str) -> Finding:
    return Finding(mark=FindingLevel.OK, said=said, details=details)


def warning(said: str, remedy: str, *details: str) -> Finding:
    return Finding(mark=FindingLevel.WARNING, said=said, remedy=remedy, details=details)


def failed(said: str, remedy: str) -> Finding:
    return Finding(mark=FindingLevel.FAILED, said=said, remedy=remedy)


def skipped(said: str) -> Finding:
    return Finding(mark=FindingLevel.SKIPPED, said=said)
