"""Patience with the control plane: what may be tried again, how often, and what to do when an answer was lost.

A lost answer does not say whether the statement was executed. So a write comes with a look: after an unknown outcome
the row is read, and only when it is not there is the statement sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from loadgen.clock import Clock, SystemClock
from loadgen.control.session import ControlFailed
from loadgen.errors import LoadgenError

Result = TypeVar("Result")

ATTEMPTS = 10
FIRST_PAUSE_S = 1.0
PAUSE_MAX_S = 30.0


class RetryInterrupted(LoadgenError):
    """Stopped while waiting for the control plane to come back."""

    exit_code = 4
    remedy = "The last error of the control plane is in the log."


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to keep trying. Pauses double; `stop` ends them early."""

    stop: threading.Event
    attempts: int = ATTEMPTS
    first_pause_s: float = FIRST_PAUSE_S
    clock: Clock = field(default_factory=SystemClock)
    note: Callable[[ControlFailed], None] | None = None  # told of every failure that is tried again

    def call(self, action: Callable[[], Result]) -> Result:
        """Do something that is harmless to repeat, until it works or patience ends."""
        retrying = Retrying(
            retry=retry_if_exception(_may_be_tried_again),
            stop=stop_after_attempt(self.attempts),
            wait=wait_exponential(multiplier=self.first_pause_s, max=max(self.first_pause_s, PAUSE_MAX_S)),
            sleep=self._pause,
            before_sleep=self._noted,
            reraise=True,
        )
        return retrying(action)

    def settle(self, write: Callable[[], Result], look: Callable[[], Result | None]) -> Result:
        """Do a write that must happen once. `look` says what is there already; None: nothing yet."""
        in_doubt = False

        def attempt() -> Result:
            nonlocal in_doubt
            if in_doubt and (found := look()) is not None:
                return found
            try:
                return write()
            except ControlFailed as error:
                if error.failure.duplicate_key and in_doubt and (found := look()) is not None:
                    return found
                in_doubt = in_doubt or error.failure.unknown_outcome
                raise

        return self.call(attempt)

    def _pause(self, seconds: float) -> None:
        if self.clock.wait(self.stop, seconds):
            raise RetryInterrupted("stopped while the control plane did not answer")

    def _noted(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if self.note is not None and isinstance(error, ControlFailed):
            self.note(error)


def _may_be_tried_again(error: BaseException) -> bool:
    return isinstance(error, ControlFailed) and error.failure.retryable
