"""Orchestrators of the simulated world.

Each is a thin shell around the real decisions, that of orchestrator/service.py, leader.py and office.py; it gives its
time to the world between any two statements.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from loadgen.control import run_control_events, run_leases, run_status, test_results, worker_heartbeats
from loadgen.control.lease import LeaseKeeper
from loadgen.control.run_control_events import Emitted, NewEvent
from loadgen.control.run_status import Fenced, Move, Rollup, Run
from loadgen.control.session import ControlFailed
from loadgen.errors import LoadgenError, RunFailed
from loadgen.model.event import EventType, Start, Stop
from loadgen.model.run import STEPS, Phase, RunStatus
from loadgen.model.worker import WorkerStatus
from loadgen.scenario.scenario import OnWorkerLoss
from orchestrator.commands import lead_ms, start_event
from orchestrator.course import (
    Action,
    Course,
    Ending,
    EndWorkers,
    Finish,
    Rules,
    SayStart,
    SayStop,
    Step,
    View,
    carried_out,
    decide,
)
from orchestrator.crew import Health, Liveness, WorkerView, view_crew
from orchestrator.leader import AWAY_MAX_S
from orchestrator.office import LOOK_S
from tests.control_plane import result_row
from tests.unit.orchestrator_processes import TIMES, TIMING, TRY_S, Life, Process, Turn
from tests.unit.orchestrator_tables import ZERO, Broken, Rule, Violation

if TYPE_CHECKING:
    from tests.unit.orchestrator_world import World


class Orchestrator(Process):
    """As orchestrator/service.py and leader.py: claims the run, leads it, finishes it."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._lease_session = self.wire(lambda: world.now_s < world.renewals_fail_until_s)
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
        self._start: NewEvent | None = None
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

    def _lead(self) -> Turn[Ending]:
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

    def _tick(self) -> Turn[Ending | None]:
        view, run = self._observe()
        yield 0.0
        self._course, actions = decide(self._course, view, self._rules)
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
                self._course = carried_out(self._course, action)
            yield 0.0
        self._publish()
        return None

    @property
    def _rules(self) -> Rules:
        missing = self.world.broken is Broken.LOSS
        return replace(self.world.rules, on_worker_loss=OnWorkerLoss.CONTINUE) if missing else self.world.rules

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, SayStart):
            self._say_start()
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
        if run.status is RunStatus.RUNNING and self._zero_s is None:
            self._look_for_start()
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

    def _look_for_start(self) -> None:
        """Another leader may have said it."""
        for one in run_control_events.catch_up(self.session, "run", 0):
            if isinstance(one.command, Start):
                assert one.due_in_ms is not None
                self._zero_s = self.now_s + one.due_in_ms / 1000

    def _say_start(self) -> None:
        self._look_for_start()
        if self._zero_s is not None:
            return
        if self._start is None:
            self._start = start_event(self.world.rules.plan, len(self._ids), lead_ms(TIMING, 0.0))
        emitted, start = self._say(self._start, EventType.START), self._start.command
        assert isinstance(start, Start)
        assert start.lead_ms is not None
        self._zero_s = self.now_s + (start.lead_ms - emitted.age_ms) / 1000

    def _say(self, new: NewEvent, kind: EventType) -> Emitted:
        assert self._keeper is not None
        emitted = run_control_events.emit(self.session, self.patience, self._keeper.term, new)
        number = emitted.sequence_id
        self._next_sequence_id = number + 1
        events = self.world.tables.events
        if not 0 < number <= len(events) or events[number - 1].event_id != new.event_id:
            raise Violation(Rule.ANSWER, f"{self.name} said {new.command}, and it is not there")
        if kind in self._said:
            raise Violation(Rule.ONCE, f"{self.name} said {kind} again")
        self._said |= {kind}
        self.world.note("said", self.name, type(new.command).__name__)
        return emitted

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

    def _finish(self, ending: Ending) -> Life:
        yield from self._in_office(Step(RunStatus.STOPPING, Phase.PROCESSING, ending.reason), stays=True)
        run = self._read_run()
        stored = [row for row, _ in test_results.read(self.session, "run")]
        if stored and RunStatus(stored[0].status) in STEPS[run.status]:
            ending = replace(ending, status=RunStatus(stored[0].status))
        else:
            row = result_row("run", template_id=run.template_id, status=ending.status.value, created_at=ZERO)
            test_results.append(self.session, self.patience, row)
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
        if self.world.tables.leases[-1].owner != owner:
            raise Violation(Rule.ANSWER, f"{self.name} claimed term {term.epoch}, and it is another's")
        self._keeper = LeaseKeeper(self._lease_session, term, TIMES, claimed_ns=begun_ns, clock=self.clock)
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
        for _ in range(round((2 * TIMES.ttl_s + run_leases.TAKEOVER_MARGIN_S) / LOOK_S)):
            if self._claim(owner):
                self.world.note("regained", self.name)
                return
            holder = run_leases.read(self.session, "run")
            if holder is not None and holder.remaining_ms > 0 and holder.epoch > lost.term.epoch:
                break
            yield LOOK_S
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
        tables = self.world.tables
        if moved and (tables.status, tables.phase) != (step.to, step.to_phase):
            raise Violation(Rule.ANSWER, f"{self.name} moved to {step.to}, and it is {tables.status}")
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
