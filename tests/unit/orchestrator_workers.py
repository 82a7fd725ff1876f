"""Workers of the simulated world: the real agenda, control loop and board, in a shell that gives its time to the world.

The shell is that of loadgen/worker/worker.py: registers, gets ready, follows the run, drains, says goodbye.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from loadgen.control.run_control_events import Event
from loadgen.control.session import ControlFailed
from loadgen.control.worker_heartbeats import Beat, WorkerIdentity, beat, register
from loadgen.errors import LoadgenError
from loadgen.model.event import EventType, SetPhase
from loadgen.model.run import Phase, RunStatus
from loadgen.model.worker import WorkerExit, WorkerStatus
from loadgen.worker.agenda import Agenda
from loadgen.worker.board import Board, Ending, ending_for
from loadgen.worker.control_loop import ControlLoop
from loadgen.worker.heartbeat import LAST_BEAT_S, SILENT_MS
from loadgen.worker.silence import Silence
from orchestrator.spawn.spawner import WorkerEnd
from tests.unit.orchestrator_processes import TIMING, Life, Process
from tests.unit.orchestrator_tables import Rule, Violation

if TYPE_CHECKING:
    from tests.unit.orchestrator_world import World


class WatchedAgenda(Agenda):
    """Its orders, and a look at whose they are."""

    newest_epoch = 0

    def receive(self, event: Event, now_ns: int) -> str | None:
        before = self._state()
        said = super().receive(event, now_ns)
        self._check(event, before)
        self.newest_epoch = max(self.newest_epoch, event.epoch)
        return said

    def notice(self, event: Event) -> None:
        before = self._state()
        super().notice(event)  # a look ahead: what came before is still to be received
        self._check(event, before)

    def _state(self) -> tuple[object, ...]:
        return self.started, self.stop, self.next_ns()

    def _check(self, event: Event, before: tuple[object, ...]) -> None:
        if event.epoch < self.newest_epoch and self._state() != before:
            raise Violation(Rule.OBEY, f"{event.command} of term {event.epoch} after one of term {self.newest_epoch}")


class OneTurn(threading.Event):
    """Lets a thread's loop go round once."""

    turns = 0

    def is_set(self) -> bool:
        self.turns += 1
        return self.turns > 1


class SimulatedWorker(Process):
    """begin() starts it; others may ask it to end, kill it, or leave it alone."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"worker-{number}")
        self._me = WorkerIdentity(
            run_id="run", worker_id=self.name, worker_group_id=number, hostname="host", pid=100 + number, version="1"
        )
        self._ready_s, self._drain_s = world.rng.uniform(0, 6), world.rng.choice((0.5, 3.0, 3.0, 8.0, 300.0))
        self._board = Board(clock=self.clock)
        self._agenda = WatchedAgenda(
            self.name,
            number,
            world.workers_expected,
            drain_s=TIMING.drain_s,
            drain_interrupt_s=TIMING.drain_interrupt_s,
            patience_s=TIMING.events_poll_s,
        )
        self._loop: ControlLoop | None = None
        self._count, self._alone_polls, self._silence = 1, 0, Silence()
        self._is_slow = world.rng.random() < 0.02  # storing what it measured takes as long as somebody waits for it
        self._asked = self._hurry = False
        self._windows = 0
        self.working = False  # the process is there
        self.end: WorkerEnd | None = None
        self.is_lost = False  # it ended otherwise than in good order, before the run began to stop
        self.beaten_up_s = 0.0

    def begin(self, after_s: float) -> None:
        if self.alive:
            self.working = True
            self.thread(self._life(), after_s)

    def crash(self) -> None:
        self.kill()

    def kill(self) -> None:
        if self.working:
            self._over(-9)
        self.alive = False

    def asked_to_end(self) -> None:
        self._hurry = self._board.ending is not None
        self._board.end(Ending(code=WorkerExit.CLEAN, drain_s=TIMING.drain_interrupt_s))

    def orphaned(self) -> None:
        self._board.end(Ending(code=WorkerExit.FATAL, error="the parent is gone", drain_s=TIMING.drain_interrupt_s))

    def _over(self, code: int) -> None:
        self.working = False
        self.is_lost = code != 0 and self.world.tables.stopping_s is None
        self.end = WorkerEnd(worker_id=self.name, code=code)
        self.world.note("worker over", self.name, str(code))

    def _life(self) -> Life:
        yield from self._register()
        self._loop = ControlLoop(
            self.session, "run", self._board, self._agenda, TIMING, self.clock, wake=threading.Event(), begin=self._load
        )
        ready_s = self.now_s + self._ready_s
        while self.now_s < ready_s and not self._board.ended.is_set():
            self._beat()
            yield 0.0
            self._loop.look()
            yield from self._next()
        self._board.advance(WorkerStatus.WAITING)
        yield from self._follow(self._loop)
        yield from self._end()

    def _register(self) -> Life:
        while not self._board.ended.is_set():
            try:
                register(self.session, self.patience, self._me, silent_ms=SILENT_MS)
            except ControlFailed:
                yield from self._next()
                if self.name in self.world.tables.beats:  # as it would find by itself, trying without an end
                    return self._contact()
            except LoadgenError as error:
                self._board.end(ending_for(error))
            else:
                self._contact()
                return

    def _follow(self, loop: ControlLoop) -> Life:
        since_s = self.now_s
        while not self._board.ended.is_set():
            self._beat()
            yield 0.0
            contacts = self._board.contacts
            loop.watch(OneTurn())
            self._check_alone(polled=self._board.contacts > contacts)
            for due in self._agenda.take_due(self.clock.monotonic_ns()):
                self._windows += isinstance(due.command, SetPhase) and due.command.phase is Phase.MEASUREMENT
            if self._windows > len(self.world.rules.plan.windows):
                raise Violation(Rule.PLAN, f"{self.name} opened {self._windows}")
            if self._board.status is WorkerStatus.WAITING and self.now_s - since_s > TIMING.start_s:
                self._board.end(Ending(code=WorkerExit.NO_START, error="nobody said START"))
            yield from self._next()

    def _end(self) -> Life:
        board = self._board
        assert board.ending is not None
        board.advance(WorkerStatus.DRAINING)
        until_s = self.now_s + min(self._drain_s, board.ending.drain_s)
        heard = False  # what it measured was stored
        while not heard or self._is_storing or (self.now_s < until_s and not self._hurry):
            heard = self._beat(active_connections=int(self.now_s < until_s))
            yield from self._next()
            if self._silence.is_alone(TIMING):
                break
        assert board.ending is not None
        board.advance(WorkerStatus.COMPLETED if board.ending.code is WorkerExit.CLEAN else WorkerStatus.DEAD)
        board.last_error = board.ending.error
        last_s = self.now_s + LAST_BEAT_S
        while not self._beat() and self.now_s < last_s:
            yield 0.5
        self._over(int(board.ending.code))

    @property
    def _is_storing(self) -> bool:
        over_s = self.world.tables.lease_over_s
        return self._is_slow and over_s is not None and over_s < 0

    def _next(self) -> Life:
        """The main thread listens; then the next second, or the next two."""
        yield TIMING.heartbeat_s
        self._silence.count(self._board, TIMING.heartbeat_s)
        ending = self._silence.ending(self._board, TIMING)
        if ending is not None:
            self._board.end(ending)

    def _beat(self, active_connections: int = 0) -> bool:
        if self.name not in self.world.tables.beats:
            return False
        self._count += 1
        said = Beat(
            status=self._board.status,
            phase=None,
            count=self._count,
            active_connections=active_connections,
            last_error=self._board.last_error,
        )
        try:
            beat(self.session, self._me, said)
        except LoadgenError:
            return False
        self._contact()
        return True

    def _contact(self) -> None:
        self._board.contact()
        self.beaten_up_s = self.world.up_s()

    # --- what must hold ------------------------------------------------------------------------------------------

    def _load(self, phase: Phase | None) -> None:
        """START, as the control loop found it."""
        tables = self.world.tables
        if self._asked:
            raise Violation(Rule.LOAD, f"{self.name} was to begin again")
        self._asked = True
        if not self._board.advance(WorkerStatus.RUNNING):
            return
        self.world.note("load", self.name)
        if tables.started_s is None and not tables.is_said(EventType.START):
            raise Violation(Rule.LOAD, f"{self.name} began, and nobody had asked for it")
        if tables.status not in (RunStatus.STARTING, RunStatus.RUNNING):
            raise Violation(Rule.LOAD, f"{self.name} began when the run was {tables.status}")

    def _check_alone(self, *, polled: bool) -> None:
        over_s = self.world.tables.lease_over_s
        alone = polled and over_s is not None and over_s > TIMING.orchestrator_lost_s
        self._alone_polls = self._alone_polls + 1 if alone else 0
        if self._alone_polls > 1 and not self._board.ended.is_set():  # the first may have looked just before
            raise Violation(Rule.ALONE, f"nobody has led {self.name} for {over_s:.0f} s, and it goes on")
