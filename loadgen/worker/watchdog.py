"""How long a worker has been cut off, in seconds of being awake: a pause of this process is no silence of the others.

From the control plane: it is alone when nothing reaches it. It is deaf when its polls fail although its beats arrive:
nobody can tell it to stop then, and others take it for well. From the target: none of its clients is connected.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.metrics.connections import LoginCounts
from loadgen.model.worker import WorkerExit, WorkerStatus
from loadgen.scenario.model import TimingSettings
from loadgen.worker.worker_state import ExitReason, WorkerSharedState

_HINT = "Check it with `loadgen doctor`."
_TARGET_HINT = "`loadgen connections test` tries the connection; has its token expired, or its user been locked?"
_WORKING = (WorkerStatus.WAITING, WorkerStatus.RUNNING)


@dataclass(slots=True)
class ControlPlaneWatchdog:
    """The main thread's. count() every second; then ask."""

    alone_s: float = 0.0  # since the last answer
    deaf_s: float = 0.0  # from the first to the last of the polls that failed in a row
    _unheard_s: float = 0.0  # since the first of them
    _contacts: int = 0
    _polls: int = 0
    _missed: int = 0

    def count(self, board: WorkerSharedState, awake_s: float) -> None:
        self.alone_s = self.alone_s + awake_s if board.contacts == self._contacts else 0.0
        missed = board.missed_polls != self._missed
        if board.polls != self._polls:
            self.deaf_s = self._unheard_s = 0.0
        elif missed or self._unheard_s:
            self._unheard_s += awake_s
            # Only a poll that fails tells: while connections are opened there may be none for long.
            self.deaf_s = self._unheard_s if missed else self.deaf_s
        self._contacts, self._polls, self._missed = board.contacts, board.polls, board.missed_polls

    def is_alone(self, timing: TimingSettings) -> bool:
        return self.alone_s > timing.no_connection_s

    def is_deaf(self, timing: TimingSettings) -> bool:
        """Who has no answer at all is alone, a moment later."""
        return self.deaf_s > timing.no_connection_s and self.alone_s == 0.0

    def ending(self, board: WorkerSharedState, timing: TimingSettings) -> ExitReason | None:
        """The end that follows from it. One that ends already needs no polls any more."""
        if self.is_alone(timing):
            text = f"the control plane has not answered for {self.alone_s:.0f} s"
        elif self.is_deaf(timing) and not board.ended.is_set():
            text = f"the state of the run could not be read for {self.deaf_s:.0f} s"
        else:
            return None
        return ExitReason(code=WorkerExit.NO_CONTROL_PLANE, error=text, hint=_HINT)


@dataclass(slots=True)
class TargetWatchdog:
    """The main thread's. count() every second: for how long no client has been connected, of those that are wanted."""

    since_s: float = 0.0

    def count(self, *, wanted: int, connected: int, awake_s: float) -> None:
        self.since_s = self.since_s + awake_s if wanted and not connected else 0.0

    def ending(self, board: WorkerSharedState, timing: TimingSettings, logins: LoginCounts) -> ExitReason | None:
        """The end of a worker whose load nobody carries. Before it is ready, how long it may take is limited anyway."""
        if self.since_s < timing.no_connection_s or board.status not in _WORKING:
            return None
        why = f": {logins.last_refused[-1].text}" if logins.last_refused else ""
        text = f"no client has been connected for {self.since_s:.0f} s{why}"
        return ExitReason(code=WorkerExit.FATAL, error=text, hint=_TARGET_HINT)
