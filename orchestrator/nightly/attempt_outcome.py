"""What the end of an attempt means for the queued run. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.model.queue import (
    BUSY_PAUSE_S,
    AttemptStatus,
    ExitCodeMeaning,
    QueueStatus,
    exit_code_meaning,
    retry_pause_s,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """`final`: the run has ended so; None: it goes back into the queue, for at least `pause_s`."""

    attempt: AttemptStatus
    final: QueueStatus | None
    pause_s: float = 0.0
    counts: bool = True  # against the attempts it may have


def judge_attempt(
    exit_code: int, *, attempts: int, cancelled: bool, interrupted: bool, chance: float
) -> AttemptOutcome:
    """`cancelled`: its end was asked for; `interrupted`: its runner had to go. A result is one in spite of both."""
    judgement = exit_code_meaning(exit_code)
    if judgement is ExitCodeMeaning.COMPLETED:
        return AttemptOutcome(attempt=AttemptStatus.COMPLETED, final=QueueStatus.COMPLETED)
    if cancelled:
        return AttemptOutcome(attempt=AttemptStatus.CANCELLED, final=QueueStatus.CANCELLED)
    if judgement is ExitCodeMeaning.HOPELESS:
        return AttemptOutcome(attempt=AttemptStatus.FAILED, final=QueueStatus.FAILED)
    if interrupted:
        return AttemptOutcome(attempt=AttemptStatus.INTERRUPTED, final=None, counts=False)
    if judgement is ExitCodeMeaning.STOPPED:
        return AttemptOutcome(attempt=AttemptStatus.CANCELLED, final=QueueStatus.CANCELLED)
    if judgement is ExitCodeMeaning.BUSY:
        pause_s = BUSY_PAUSE_S * (0.5 + chance)
        return AttemptOutcome(attempt=AttemptStatus.SKIPPED, final=None, pause_s=pause_s, counts=False)
    return AttemptOutcome(attempt=AttemptStatus.FAILED, final=None, pause_s=retry_pause_s(attempts, chance))
