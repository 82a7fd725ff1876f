"""The processes of the simulated world: thin shells around the real decisions, that give their time to the world."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Generator
from dataclasses import replace
from typing import TypeVar

from loadgen.control import run_control_events, run_leases, run_status, test_results, worker_heartbeats
from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.run_control_events import Event, NewEvent
from loadgen.control.run_status import Fenced, Move, Rollup, Run
from loadgen.control.session import ControlFailed
from loadgen.control.test_results import ResultRow
from loadgen.control.worker_heartbeats import Beat, WorkerIdentity
from loadgen.errors import LoadgenError, RunFailed
from loadgen.model.event import EventType, SetPhase, Start, Stop
from loadgen.model.run import Phase, RunStatus
from loadgen.model.worker import WorkerExit, WorkerStatus
from loadgen.worker.agenda import Agenda
from loadgen.worker.board import Board, Ending, ending_for
from loadgen.worker.control_loop import ControlLoop
from orchestrator import course
from orchestrator.commands import plan_events
from orchestrator.course import Action, Announce, Course, EndWorkers, Finish, SayStart, SayStop, Step, View
from orchestrator.crew import Health, Liveness, WorkerView, view_crew
from orchestrator.leader import AWAY_MAX_S
from orchestrator.spawn.spawner import WorkerEnd
from tests.unit.orchestrator_tables import ZERO, Broken, Rule, Violation
from tests.unit.orchestrator_world import LAST_BEAT_S, TIMING, Life, Process, World

TIMES = LeaseTimes(ttl_s=TIMING.lease_ttl_s, renew_s=TIMING.lease_renew_s, margin_s=TIMING.lease_margin_s)
SILENT_MS = 10_000
TRY_S = 3.0  # whoever wants to lead tries so often

Result = TypeVar("Result")
Turn = Generator[float, None, Result]  # a part of a life, that comes to something


class Orchestrator(Process):
    """As orchestrator/service.py and leader.py: claims the run, leads it, finishes it."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._interrupts = 0
        self._said: set[EventType] = set()
        self._started_workers = False
        self._ids = tuple(f"worker-{number}" for number in range(world.workers_expected))
        self._forget()

    def _forget(self) -> None:
        self._keeper: LeaseKeeper | None = None
        gap_s = 1e9 if self.world.broken is Broken.LIVENESS else 2 * TIMING.tick_s
        self._liveness = Liveness(longest_gap_s=gap_s)
        self._course = Course(since_s=self.now_s, seen=RunStatus.PREPARED)
        self._zero_s: float | None = None
        self._unsaid: deque[NewEvent] | None = None
        self._published: Rollup | None = None
        self._next_sequence_id = 1
        self._crew: tuple[WorkerView, ...] = ()
        self._said.clear()

    def interrupt(self) -> None:
        if self.alive and self._keeper is not None:
            self.world.note("interrupt", self.name)
            self._interrupts += 1

    def crash(self) -> None:
        super().crash()
        self._let_workers_go(hard=False)

    def ended(self, error: LoadgenError | None) -> None:
        if error is not None:
            self.world.note("gave up", self.name, str(error))
            self.alive = False
            self._let_workers_go(hard=True)

    def _let_workers_go(self, *, hard: bool) -> None:
        """Children notice the death of their parent; one that gives up ends them."""
        for worker in self.world.workers if self._started_workers else ():
            worker.kill() if hard else worker.orphaned()

    # --- a life --------------------------------------------------------------------------------------------------

    def life(self) -> Life:
        """Lead the run, or stand by and take it over; a standby that fails begins anew."""
        first = self is self.world.orchestrators[0]
        while not self.world.tables.status.is_terminal:
            try:
                if self._claim(run_leases.new_owner()):
                    yield from self._lead_to_the_end(adopts=not first)
                    return
            except LoadgenError as error:
                if first or not isinstance(error, (ControlFailed, Fenced, RunFailed)):
                    raise
                self.world.note("begins anew", self.name, str(error))
                self._forget()
            yield TRY_S

    def _lead_to_the_end(self, *, adopts: bool) -> Life:
        run = self._read_run()
        yield 0.0
        if run.status is RunStatus.PREPARED:
            self._move(run, Step(RunStatus.STARTING, Phase.PREPARING))
        if not adopts and not self.world.adopts:
            self._started_workers = True
            for worker in self.world.workers:
                worker.begin(self.world.rng.uniform(0, 3))
        ending = yield from self._lead()
        yield from self._finish(ending)
        assert self._keeper is not None
        if self._keeper.trusted:
            run_leases.release(self.session, self._keeper.term)
        self._keeper.stop(releasing=False)

    def _lead(self) -> Turn[course.Ending]:
        heard_s = self.now_s
        self._course = Course(since_s=heard_s, seen=RunStatus.PREPARED)
        while True:
            try:
                ending = yield from self._tick()
                heard_s = self.now_s
                if ending is not None:
                    return ending
            except ControlFailed as error:
                if self.now_s - heard_s > AWAY_MAX_S:
                    raise RunFailed("the control plane is away") from error
            except Fenced:
                yield from self._regain()
                heard_s = self.now_s
            yield TIMING.tick_s

    def _tick(self) -> Turn[course.Ending | None]:
        view, run = self._observe()
        yield 0.0
        self._course, actions = course.decide(self._course, view, self._rules)
        for action in actions:
            if isinstance(action, Finish):
                self._publish()
                return action.ending
            self._require_trust()
            yield 0.0
            if isinstance(action, Step):
                if not self._move(run, action):
                    return None
                if action.to is RunStatus.STOPPING:
                    self._check_loss()
            else:
                self._carry_out(action)
            if self.world.broken is not Broken.MEMORY:
                self._course = course.carried_out(self._course, action)
            yield 0.0
        self._publish()
        return None

    @property
    def _rules(self) -> course.Rules:
        missing = self.world.broken is Broken.LOSS
        return replace(self.world.rules, on_worker_loss=course.OnWorkerLoss.CONTINUE) if missing else self.world.rules

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Announce):
            self._announce()
        elif isinstance(action, SayStart):
            self._say(NewEvent(command=Start(expected_workers=len(self._ids))), EventType.START)
        elif isinstance(action, SayStop):
            ending = action.ending
            self._say(NewEvent(command=Stop(reason=ending.stop, drain_timeout_s=ending.drain_s)), EventType.STOP)
        elif isinstance(action, EndWorkers) and self._started_workers:
            for worker in self.world.workers:
                worker.kill() if action.hard else worker.asked_to_end()

    def _observe(self) -> tuple[View, Run]:
        ends = [worker.end for worker in self.world.workers if worker.end is not None] if self._started_workers else []
        run = run_status.read(self.session, "run")
        assert run is not None
        if run.status.is_terminal:
            raise RunFailed("it was ended by somebody else")
        if self._zero_s is None and run.status is RunStatus.RUNNING and run.start_time is not None:
            running = run_status.server_time(self.session) - run.start_time
            self._zero_s = self.now_s - running.total_seconds()
        rows = worker_heartbeats.read(self.session, "run")
        silent_s = self._liveness.observe(rows, self.now_s)
        self._crew = view_crew(self._ids, rows, ends, silent_s, stale_s=TIMING.stale_s, dead_s=TIMING.dead_s)
        self._check_deaths()
        return View(
            now_s=self.now_s,
            status=run.status,
            phase=run.phase,
            reason=run.reason,
            crew=self._crew,
            zero_s=self._zero_s,
            interrupts=self._interrupts,
        ), run

    def _announce(self) -> None:
        if self._unsaid is None:
            zero = run_status.server_time(self.session)
            self._zero_s = self._zero_s or self.now_s
            self._unsaid = deque(plan_events(self.world.rules.plan, self._ids, zero))
        while self._unsaid:
            self._say(self._unsaid[0])
            self._unsaid.popleft()

    def _say(self, new: NewEvent, kind: EventType | None = None) -> None:
        assert self._keeper is not None
        number = run_control_events.emit(self.session, self.patience, self._keeper.term, new)
        self._next_sequence_id = number + 1
        if kind in self._said:
            raise Violation(Rule.ONCE, f"{self.name} said {kind} again")
        self._said |= {kind} if kind is not None else set()
        self.world.note("said", self.name, type(new.command).__name__)

    def _publish(self) -> None:
        assert self._keeper is not None
        healths = [worker.health for worker in self._crew]
        rollup = Rollup(
            workers_registered=sum(health is not Health.MISSING for health in healths),
            workers_active=sum(health in (Health.ALIVE, Health.STALE) for health in healths),
            workers_completed=sum(health is Health.DONE for health in healths),
            targets={},
            next_sequence_id=self._next_sequence_id,
        )
        if rollup != self._published and run_status.publish(self.session, self._keeper.term, rollup):
            self._published = rollup

    # --- the end -------------------------------------------------------------------------------------------------

    def _finish(self, ending: course.Ending) -> Life:
        yield from self._in_office(Step(RunStatus.STOPPING, Phase.PROCESSING, ending.reason), stays=True)
        run = self._read_run()
        test_results.append(self.session, self.patience, result_row(run, ending.status))
        yield 0.0
        moved = yield from self._in_office(Step(ending.status, Phase.PROCESSING, ending.reason))
        if not moved:
            raise RunFailed("it could not be ended")
        self.world.note("finished", self.name, ending.status)

    def _in_office(self, step: Step, *, stays: bool = False) -> Turn[bool]:
        """A step under this term or, when that is lost meanwhile, under the next that is won."""
        while True:
            try:
                self._require_trust()
                run = self._read_run()
                yield 0.0
                if stays and run.phase is step.to_phase:
                    return True
                return self._move(run, replace(step, to=run.status) if stays else step)
            except Fenced:
                yield from self._regain()

    # --- the term ------------------------------------------------------------------------------------------------

    def _claim(self, owner: str) -> bool:
        begun_ns = self.clock.boottime_ns()
        term = run_leases.claim(self.session, self.patience, "run", owner, TIMES.ttl_s)
        if term is None:
            return False
        self._keeper = LeaseKeeper(self.session, term, TIMES, claimed_ns=begun_ns, clock=self.clock)
        self.thread(self._keep(self._keeper), TIMES.renew_s)
        self.world.note("claimed", self.name, str(term.epoch))
        return True

    def _keep(self, keeper: LeaseKeeper) -> Life:
        while keeper is self._keeper and keeper.step():
            yield TIMES.renew_s

    def _regain(self) -> Life:
        assert self._keeper is not None
        lost, self._keeper = self._keeper, None
        self.world.note("lost its term", self.name, str(lost.term.epoch))
        owner = run_leases.new_owner()
        for _ in range(round(2 * TIMES.ttl_s + run_leases.TAKEOVER_MARGIN_S)):
            if self._claim(owner):
                self.world.note("regained", self.name)
                return
            holder = run_leases.read(self.session, "run")
            if holder is not None and holder.remaining_ms > 0 and holder.epoch > lost.term.epoch:
                break
            yield 1.0
        raise Fenced("it is led by somebody else now")

    def _require_trust(self) -> None:
        assert self._keeper is not None
        if not self._keeper.trusted:
            raise Fenced("not to be trusted any more")
        lease = self.world.tables.leases[-1]
        if lease.epoch != self._keeper.term.epoch or lease.expires_s <= self.world.now_s:
            raise Violation(Rule.TRUST, f"{self.name} trusts term {self._keeper.term.epoch}")

    def _move(self, run: Run, step: Step) -> bool:
        self._require_trust()
        assert self._keeper is not None
        change = Move(status=run.status, phase=run.phase, to=step.to, to_phase=step.to_phase, reason=step.reason)
        moved = run_status.move(self.session, self.patience, self._keeper.term, change)
        self.world.note("moved" if moved else "not moved", self.name, step.to, step.to_phase)
        return moved

    def _read_run(self) -> Run:
        run = self.patience.call(lambda: run_status.read(self.session, "run"))
        assert run is not None
        return run

    # --- what must hold ------------------------------------------------------------------------------------------

    def _check_deaths(self) -> None:
        """Whoever is taken for dead has said so, or been silent for long enough while he could have spoken."""
        for view, worker in zip(self._crew, self.world.workers, strict=True):
            by_silence = view.end is None and view.status not in (WorkerStatus.DEAD, WorkerStatus.COMPLETED, None)
            if view.health is Health.DEAD and by_silence:
                silent_s = self.world.up_s() - worker.beaten_up_s
                if silent_s < TIMING.dead_s - 2 * TIMING.tick_s:
                    raise Violation(Rule.OUTAGE, f"{worker.name} could speak for {silent_s:.0f} s")

    def _check_loss(self) -> None:
        ending = self._course.ending
        dead = [worker.worker_id for worker in self._crew if worker.health is Health.DEAD]
        if ending is not None and ending.status is RunStatus.COMPLETED and dead:
            raise Violation(Rule.KNOWN_LOSS, f"{', '.join(dead)} was lost")


def result_row(run: Run, status: RunStatus) -> ResultRow:
    return ResultRow(
        test_id="run",
        run_id="run",
        worker_id=None,
        worker_group_id=None,
        template_id=run.template_id,
        status=status.value,
        created_at=ZERO,
        total_operations=0,
        read_operations=0,
        write_operations=0,
        failed_operations=0,
        p50_latency_ms=None,
        p95_latency_ms=None,
        p99_latency_ms=None,
        avg_latency_ms=None,
        find_max_result=None,
        summary='{"verdict": "passed"}',
    )


# --- a worker --------------------------------------------------------------------------------------------------------


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
    """As loadgen/worker/worker.py: registers, gets ready, follows the run, drains, says goodbye."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"worker-{number}")
        self._me = WorkerIdentity(
            run_id="run", worker_id=self.name, worker_group_id=number, hostname="host", pid=100 + number, version="1"
        )
        rng = random.Random(world.rng.random())
        self._ready_s, self._drain_s = rng.uniform(0, 6), rng.choice((0.5, 3.0, 3.0, 8.0, 300.0))
        self._board = Board(clock=self.clock)
        self._agenda = WatchedAgenda(self.name, number, drain_s=TIMING.drain_s, patience_s=TIMING.events_poll_s)
        self._loop: ControlLoop | None = None
        self._count, self._contacts, self._silent_s, self._alone_polls = 1, 0, 0.0, 0
        self._hurry, self._windows = False, 0
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
        self._board.end(
            Ending(code=WorkerExit.FATAL, error="the parent is gone", drain_s=TIMING.drain_interrupt_s)
        )

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
                worker_heartbeats.register(self.session, self.patience, self._me, silent_ms=SILENT_MS)
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
                self._windows += isinstance(due.command, SetPhase)
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
        while not heard or (self.now_s < until_s and not self._hurry):
            heard = self._beat()
            yield from self._next()
            if self._silent_s > TIMING.no_connection_s:
                break
        assert board.ending is not None
        board.advance(WorkerStatus.COMPLETED if board.ending.code is WorkerExit.CLEAN else WorkerStatus.DEAD)
        board.last_error = board.ending.error
        last_s = self.now_s + LAST_BEAT_S
        while not self._beat() and self.now_s < last_s:
            yield 0.5
        self._over(int(board.ending.code))

    def _next(self) -> Life:
        """The main thread listens; then the next second, or the next two."""
        yield TIMING.heartbeat_s
        silent = self._board.contacts == self._contacts
        self._silent_s = self._silent_s + TIMING.heartbeat_s if silent else 0.0
        self._contacts = self._board.contacts
        if self._silent_s > TIMING.no_connection_s:
            self._board.end(Ending(code=WorkerExit.NO_CONTROL_PLANE, error="the control plane is away"))

    def _beat(self) -> bool:
        if self.name not in self.world.tables.beats:
            return False
        self._count += 1
        said = Beat(status=self._board.status, phase=None, count=self._count, last_error=self._board.last_error)
        try:
            worker_heartbeats.beat(self.session, self._me, said)
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
        if self._alone_polls and not self._board.ended.is_set():
            raise Violation(Rule.ALONE, f"nobody has led {self.name} for {over_s:.0f} s, and it goes on")
