"""Runs that are led, step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from loadgen.control.session import load_queries
from loadgen.control.tables.run_status import Run, StatusChange, move, read
from loadgen.model.run import Phase, RunStatus
from tests.control_plane import ControlPlane, retries
from tests.processes import PATIENCE_S

S, P = RunStatus, Phase
Result = TypeVar("Result")
# How a run gets to each state, step by step.
WAY: dict[RunStatus, list[tuple[RunStatus, Phase]]] = {
    S.PREPARED: [],
    S.STARTING: [(S.STARTING, P.PREPARING)],
    S.RUNNING: [(S.STARTING, P.PREPARING), (S.RUNNING, P.WARMUP)],
    S.STOPPING: [(S.STARTING, P.PREPARING), (S.RUNNING, P.WARMUP), (S.STOPPING, P.COOLDOWN)],
    S.CANCELLING: [(S.CANCELLING, P.PREPARING)],
    S.COMPLETED: [(S.STARTING, P.PREPARING), (S.STOPPING, P.COOLDOWN), (S.COMPLETED, P.PROCESSING)],
    S.CANCELLED: [(S.CANCELLING, P.PREPARING), (S.CANCELLED, P.PREPARING)],
    S.FAILED: [(S.FAILED, P.PREPARING)],
}
HOSTILE = {
    "quotes": 'it\'s "quoted" \\ `and` $$ ; -- ? :1 %s {}',
    "injection": "'); DROP TABLE RUN_STATUS; --",
    "emoji": "🙂🏳️‍🌈é中" * 10,
    "NUL": "before\0after",
    "half a character": "\ud800 and \udfff",
    "escape": "\x1b[2J\x1b]0;title\x07",
    "direction": "\u202egnihtyna",
    "lines": "a\nb\r\nc\td",
    "empty": "",
    "1 MB": "x" * 1_000_000,
    "1 MB of emoji": "🙂" * 250_000,
}


class Led:
    """A run with a holder of its lease, who takes its steps."""

    def __init__(self, plane: ControlPlane, status: RunStatus = S.PREPARED) -> None:
        self.plane = plane
        self.run_id = plane.new_run()
        self.term = plane.claim(self.run_id)
        for to, to_phase in WAY[status]:
            assert self.step(to, to_phase)
        assert self.row.status is status

    @property
    def row(self) -> Run:
        row = read(self.plane.session, self.run_id)
        assert row is not None
        return row

    def step(self, to: RunStatus, to_phase: Phase | None = None, **more: Any) -> bool:
        """The next step, from where the run really is."""
        row = self.row
        step = StatusChange(status=row.status, phase=row.phase, to=to, to_phase=to_phase or row.phase, **more)
        return move(self.plane.session, retries(), self.term, step)


def at_once(plane: ControlPlane, *actions: Callable[[Any], Any]) -> list[Any]:
    """The results of actions that begin together, each in a thread with a separate session."""
    barrier = threading.Barrier(len(actions))

    def run(action: Callable[[Any], Result]) -> Result:
        session = plane.open("racer")
        session.fetch(load_queries("run_status")["server_time"])  # logged in before the start
        barrier.wait(PATIENCE_S)
        return action(session)

    with ThreadPoolExecutor(len(actions), thread_name_prefix="racer") as pool:
        return list(pool.map(run, actions))
