"""The life of a queued run: its states, what the end of an attempt means for it, and how long to wait for the next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

ATTEMPTS_MAX = 5
FIRST_PAUSE_S = 1.0
PAUSE_MAX_S = 60.0
BUSY_PAUSE_S = 15.0  # another run has the warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineCheck:
    """What a wanted run is to be judged by, beside its own thresholds: options of `loadgen run`."""

    baseline: str | None = None  # a run's id, or `trend`
    confirm: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        words = () if self.baseline is None else (f"--baseline={self.baseline}",)
        return (*words, "--confirm") if self.confirm else words


class QueueStatus(StrEnum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"  # its owner has not obeyed yet
    COMPLETED = "COMPLETED"  # it ran; the exit code says what came out
    FAILED = "FAILED"  # it never will: trying again cannot help
    CANCELLED = "CANCELLED"
    EXHAUSTED = "EXHAUSTED"  # every attempt failed

    @property
    def is_terminal(self) -> bool:
        return self not in (QueueStatus.QUEUED, QueueStatus.RUNNING, QueueStatus.CANCEL_REQUESTED)


class AttemptStatus(StrEnum):
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"  # another run had the warehouse: it does not count
    INTERRUPTED = "INTERRUPTED"  # its runner was told to go: it does not count
    LOST = "LOST"  # its runner let the lease expire: whatever it did afterwards was not accepted


class ExitCodeMeaning(StrEnum):
    """What the exit code of `loadgen run` means for the run that is wanted."""

    COMPLETED = "COMPLETED"
    HOPELESS = "HOPELESS"
    STOPPED = "STOPPED"
    BUSY = "BUSY"
    RETRY = "RETRY"


_JUDGED = {
    0: ExitCodeMeaning.COMPLETED,  # passed
    5: ExitCodeMeaning.COMPLETED,  # INVALID: a result, and the same again is somebody's decision
    10: ExitCodeMeaning.COMPLETED,  # a threshold failed
    11: ExitCodeMeaning.COMPLETED,  # a regression is confirmed
    2: ExitCodeMeaning.HOPELESS,  # the scenario or a setting is wrong: it stays wrong
    75: ExitCodeMeaning.BUSY,
    130: ExitCodeMeaning.STOPPED,  # somebody stopped this run; he does not want it again
    143: ExitCodeMeaning.STOPPED,
}


_SIGNALLED = (-15, -2, -1, 129, 130, 131, 143)  # negative: the process itself


def was_signalled(exit_code: int) -> bool:
    """Did a signal to end it end the run, or the process that watches it?"""
    return exit_code in _SIGNALLED


def exit_code_meaning(exit_code: int) -> ExitCodeMeaning:
    """Everything else is tried again: a bug or crash (1, a signal), no connection (3), a run that failed (4)."""
    return _JUDGED.get(exit_code, ExitCodeMeaning.RETRY)


def unmet_requirements(requires: Collection[str], offers: Sequence[Collection[str]]) -> str | None:
    """Why no runner takes a run: `offers` are what each runner that is online offers. None: one can."""
    if not offers:
        return "no runner is online"
    if any(set(requires) <= set(offered) for offered in offers):
        return None
    missing = set(requires).difference(*offers)
    return f"no runner that is online offers {' '.join(sorted(missing or requires))}"


def retry_pause_s(attempts: int, chance: float) -> float:
    """How long to wait after so many attempts: doubling, and spread over its upper half by `chance` (0 to 1)."""
    longest_s = min(PAUSE_MAX_S, FIRST_PAUSE_S * 2.0 ** min(max(attempts - 1, 0), 30))
    return longest_s * (0.5 + 0.5 * chance)
