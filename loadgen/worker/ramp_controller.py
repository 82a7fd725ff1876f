"""The thread that carries out the commands: opens and closes windows, and changes the number of clients.

    START        with a plan: windows open and targets begin at their times after the zero of the plan, in all workers
                 together; without a plan: the first window opens at once, in the phase of the run
    SET_PHASE    the next window opens at the announced time; with a duration it closes by itself
    find_max     a new target ends the window of the step; the next window opens when the target is reached and has
                 settled; only these windows are measured

After the last window clients wait: the run is over, and STOP follows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from itertools import islice

from loadgen.clock import Clock
from loadgen.log import event
from loadgen.model.event import SetPhase, SetWorkerTarget
from loadgen.model.run import Phase
from loadgen.scenario.model import LoadMode
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.values import dataclass
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.client import ClientPool
from loadgen.worker.client_context import ArrivalQueue, ClientContext, ClientSlot
from loadgen.worker.commands import CommandQueue
from loadgen.workload.arrivals import ArrivalSchedule, window_schedules
from loadgen.workload.ramp import Ramp, follow
from loadgen.workload.replay import RecordedStream, SessionArrivals

log = logging.getLogger(__name__)

REAP_S = 0.5  # ended clients are replaced within this time
SETTLING_S = 0.02  # between checks of the connections while a step settles
AHEAD_S = 2.0  # connections are opened this much before they are wanted, plus the expected time of the logins
LOGIN_S = 0.5  # the assumed time of a login, unless a slower one was observed
UNSENT_ARRIVALS_BATCH = 10_000  # per batch: other threads wait for the lock meanwhile

_WINDOWS = (Phase.WARMUP, Phase.MEASUREMENT)


@dataclass(frozen=True, slots=True)
class _Leftovers:
    """The arrivals of a closed window that no client took."""

    arrivals: ArrivalQueue | SessionArrivals
    numbers: Iterator[int]
    given_up_ns: int
    complete_ns: int | None  # since when no connection has been missing; None: one is missing

    def age_ns(self, number: int) -> int:
        """How long an arrival has waited while every connection was executing or logging in again. 0: a connection
        was missing since the arrival was due, so the wait does not show an overload."""
        due_ns = self.arrivals.due_ns(number)
        is_overload = self.complete_ns is not None and self.complete_ns <= due_ns
        return max(0, self.given_up_ns - due_ns) if is_overload else 0


class RampController:
    """The thread executes run(); other threads call begin() and finish()."""

    def __init__(
        self,
        context: ClientContext,
        pool: ClientPool,
        command_queue: CommandQueue,
        arguments: WorkerArguments,
        spare: ClientSlot | None,
        clock: Clock,
        first_window: int = 0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`spare`: in an open loop, a slot without a client, in which unsent arrivals are recorded.

        Windows are numbered from `first_window`: a dead process may have stored windows under the same worker id.
        `say` is called with a line for each new phase, step and target.
        """
        self._say = say
        self._reported: tuple[Phase | None, int | None, int] = (None, None, 0)  # phase, step, target
        self._context, self._pool, self._command_queue, self._clock = context, pool, command_queue, clock
        self._spare = spare
        load = context.scenario.load
        self._find_max = load.find_max if load.mode is LoadMode.FIND_MAX else None
        self._schedules: tuple[ArrivalSchedule | RecordedStream, ...] = ()
        if load.mode is LoadMode.RATE:
            place = {"worker": arguments.worker_group_id, "workers": arguments.worker_group_count}
            self._schedules = window_schedules(load, **place, seed=context.scenario.workload.seed)
        if context.recorded is not None:
            self._schedules = (context.recorded, context.recorded)  # there is no warm-up
        self._ramp = Ramp(origin=0, target=0)
        self._window_id = first_window - 1
        self._started_ns: int | None = None  # when START was read
        self._zero_ns: int | None = None  # the planned begin of the measurement, after it has begun
        self._joined_ns: int | None = None  # when the first window opened
        self._closes_ns: int | None = None
        self._leftovers: list[_Leftovers] = []
        self._settling: SetWorkerTarget | None = None  # find_max: the step whose window is not open yet
        self._level_ns = 0  # the planned begin of its level
        self._uncertain_ns = 0  # the error of the time of the last command
        self._settled_ns: int | None = None  # when its window opens, once its level is reached
        self._finished = False
        self._lock = threading.Lock()  # guards everything here but wake: step() of the thread against the others
        self.wake = threading.Event()
        self.phase: Phase | None = None
        self.step_id: int | None = None

    def aligned_ns(self, moment_ns: int, second_ns: int) -> int:
        """The nearest end of a second of the run. All workers count seconds from the same zero."""
        zero_ns = self.zero_ns
        return moment_ns if zero_ns is None else zero_ns + round((moment_ns - zero_ns) / second_ns) * second_ns

    @property
    def target(self) -> int:
        return self._ramp.target

    @property
    def zero_ns(self) -> int | None:
        """The announced begin of the measurement, the same in all workers. None: not known yet."""
        with self._lock:
            at_ns, ahead = self._command_queue.next_phase() or (None, None)
            return at_ns if self._zero_ns is None and ahead is Phase.MEASUREMENT else self._zero_ns

    def set_first_target(self, target: int) -> None:
        """Set the target before START, and open its connections."""
        with self._lock:
            self._ramp = Ramp(origin=target, target=target)
            self._context.connections.plan(self._ramp, self._clock.monotonic_ns())
            self._pool.resize(target)

    def begin(self, phase: Phase, duration_s: float | None) -> None:
        """START: open the first window now, unless the plan in START has its time, or an announced window is due."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            self._started_ns = now_ns if self._started_ns is None else self._started_ns
            at_ns, ahead = self._command_queue.next_phase() or (None, None)
            if self._joined_ns is not None or self._finished or self._command_queue.has_plan:
                return
            if at_ns is not None and at_ns <= now_ns:
                return
            if phase is ahead is Phase.MEASUREMENT:
                return  # it begins in all workers together, as announced, and without a warm-up nothing comes before it
            closes_ns = None if duration_s is None else now_ns + round(duration_s * NS_PER_S)
            self._enter(phase, None, now_ns, now_ns, closes_ns)
            self._command_queue.began(phase)
            self._tell()

    def finish(self) -> None:
        """Close the open window, and drain the clients. Safe to call twice."""
        with self._lock:
            self._finished = True
            self._close(self._clock.monotonic_ns())
            self.phase = Phase.COOLDOWN if self.phase is not None else None
            self._tell()
            self._pool.drain()

    def count_all_unsent(self) -> None:
        """After the drain: count all unsent arrivals."""
        with self._lock:
            while self._leftovers:
                self._count_leftovers()

    def run(self, stopping: threading.Event) -> None:
        """Do everything that is due, and wait for the next time, until stopped."""
        while not stopping.is_set():
            wait_s = self.step()
            self._clock.wait(self.wake, wait_s)
            self.wake.clear()

    def step(self) -> float:
        """Do everything that is due. Returns the time until something is due again, in seconds."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if self._finished:
                return REAP_S
            for item in self._command_queue.take_due(now_ns):
                event(log, logging.INFO, "command_applied", sequence_id=item.sequence_id, command=item.command)
                self._uncertain_ns = item.uncertain_ns
                if isinstance(item.command, SetPhase):
                    self._set_phase(item.command, item.at_ns, now_ns)
                else:
                    self._set_target(item.command, item.at_ns, now_ns)
            if self._closes_ns is not None and now_ns >= self._closes_ns:  # and no other window has opened
                self._close(now_ns)
                self.phase = Phase.COOLDOWN
            wanted, ahead = self._ramp.at(now_ns), self._wanted_soon(now_ns)
            changed = (wanted, ahead) != (self._pool.wanted, self._pool.ahead)
            self._pool.resize(wanted, ahead) if changed else self._pool.reap()
            self._settle_step(now_ns)
            self._count_leftovers()
            self._tell()
            return self._idle_s(now_ns)

    def _tell(self) -> None:
        """Report the changes since the last call."""
        before, now = self._reported, (self.phase, self.step_id, self._ramp.target)
        self._reported = now
        if now[:2] != before[:2] and self.phase is not None:
            self._say(f"phase {self.phase}{'' if self.step_id is None else f', step {self.step_id}'}")
        if now[2] != before[2]:
            self._say(f"target {now[2]} connections")

    # --- windows -----------------------------------------------------------------------------------------------------

    def _set_phase(self, command: SetPhase, at_ns: int, now_ns: int) -> None:
        if command.phase not in _WINDOWS:
            self._close(now_ns)
            self.phase = command.phase
            return
        closes_ns = None
        if command.duration_ms is not None:
            # Counted from the announced time: a worker that joins late measures only the rest of the window.
            closes_ns = max(now_ns, at_ns + round(command.duration_ms * NS_PER_MS))
        self._enter(command.phase, command.step_id, at_ns, now_ns, closes_ns)

    def _enter(self, phase: Phase, step_id: int | None, at_ns: int, now_ns: int, closes_ns: int | None) -> None:
        """Begin a phase of the run with a new window. A search measures only its steps."""
        if phase is Phase.MEASUREMENT and self._zero_ns is None:
            self._zero_ns = at_ns
        if self._find_max is None or phase is not Phase.MEASUREMENT:
            self._open(phase, step_id, at_ns, now_ns, closes_ns)
        elif self._context.windows.current is None:
            self._open(Phase.WARMUP, step_id, at_ns, now_ns, closes_ns)
        self.phase = phase

    def _open(self, phase: Phase, step_id: int | None, at_ns: int, now_ns: int, closes_ns: int | None) -> None:
        """Open a window now that was announced for `at_ns`."""
        context = self._context
        self._window_id += 1
        context.tags[self._window_id] = context.sessions.tag(phase, step_id)
        self._joined_ns = now_ns if self._joined_ns is None else self._joined_ns
        arrivals = self._arrivals(phase, step_id, at_ns, closes_ns)
        held = self._hold()
        context.arrivals = arrivals
        # Time between the announced and the actual opening counts as not measured, and pauses count from then on.
        since_ns = min(now_ns, now_ns if self._started_ns is None else max(at_ns, self._started_ns))
        context.windows.open(
            self._window_id,
            phase=phase,
            at_ns=now_ns,
            step_id=step_id,
            due_ns=since_ns,
            uncertain_ns=self._uncertain_ns,
        )
        context.connections.open(self._window_id, now_ns, closes_ns)
        self._let_go(held, now_ns)
        self.phase, self.step_id, self._closes_ns = phase, step_id, closes_ns
        context.go.set()

    def _close(self, now_ns: int) -> None:
        held = self._hold()
        self._context.go.clear()
        self._context.arrivals = None
        self._context.windows.close(at_ns=now_ns)
        self._context.connections.close(now_ns)
        self._let_go(held, now_ns)
        self._closes_ns = self._settling = self._settled_ns = None

    # --- arrivals ----------------------------------------------------------------------------------------------------

    def _arrivals(
        self, phase: Phase, step_id: int | None, at_ns: int, closes_ns: int | None
    ) -> ArrivalQueue | SessionArrivals | None:
        """The arrivals of a window that is about to open, due from its announced time. A worker that joins late leaves
        out earlier arrivals; a worker that was delayed sends them late, or skips them."""
        schedule = self._schedule(phase, step_id)
        if schedule is None:
            return None
        since_ns = self._started_ns  # not the actual opening of the window: the first arrival may be due before
        if isinstance(schedule, RecordedStream) and self._context.scenario.load.keeps_sessions:
            return SessionArrivals(self._window_id, schedule, at_ns, since_ns=since_ns)
        ahead_ns, _ = self._command_queue.next_phase() or (None, None)
        ends_ns = [moment_ns for moment_ns in (closes_ns, ahead_ns) if moment_ns is not None]
        return ArrivalQueue(self._window_id, schedule, at_ns, since_ns=since_ns, until_ns=min(ends_ns, default=None))

    def _schedule(self, phase: Phase, step_id: int | None) -> ArrivalSchedule | RecordedStream | None:
        """The schedule of a window: of the warm-up, or of the stage with this number, from 1."""
        if not self._schedules:
            return None
        number = 0 if phase is Phase.WARMUP else step_id or 1
        return self._schedules[number] if 0 <= number < len(self._schedules) else None

    def _hold(self) -> ArrivalQueue | SessionArrivals | None:
        """Begin a statement in the open window, so that it does not become final before its unsent arrivals are
        counted."""
        arrivals = self._context.arrivals
        if arrivals is None or self._spare is None or self._spare.recorder.begin() is None:
            return None
        return arrivals

    def _let_go(self, held: ArrivalQueue | SessionArrivals | None, now_ns: int) -> None:
        if held is not None:
            complete_ns = self._context.connections.complete_since_ns
            self._leftovers.append(_Leftovers(held, held.close(now_ns), now_ns, complete_ns))

    def _count_leftovers(self) -> None:
        """Count a batch of unsent arrivals. After the last batch their window may become final."""
        if not self._leftovers:
            return
        assert self._spare is not None
        left, spare = self._leftovers[0], self._spare
        window_id = left.arrivals.window_id
        portion = list(islice(left.numbers, UNSENT_ARRIVALS_BATCH))
        for number in portion:
            spare.recorder.skip(window_id, spare.drawer.draw(number)[0], left.age_ns(number))
        if len(portion) < UNSENT_ARRIVALS_BATCH:
            spare.recorder.unbegin(window_id)
            del self._leftovers[0]

    # --- targets -----------------------------------------------------------------------------------------------------

    def _set_target(self, command: SetWorkerTarget, at_ns: int, now_ns: int) -> None:
        origin = self._ramp.at(at_ns)  # the value at the announced time, also if the command is applied late
        self._ramp = Ramp.toward(command.target_connections, origin=origin, began_ns=at_ns, seconds=command.ramp_s)
        self._context.connections.plan(self._ramp, at_ns)
        if self._find_max is not None and command.step_id is not None:
            # Until the step has settled, its statements count as warm-up.
            self._open(Phase.WARMUP, command.step_id, now_ns, now_ns, None)
            self.phase = Phase.MEASUREMENT
            self._settling, self._settled_ns, self._level_ns = command, None, at_ns

    def _wanted_soon(self, now_ns: int) -> int:
        """The number of clients to connect now: those of a higher level are connected before it begins. A step of a
        search has time to settle, and earlier logins would disturb the step before."""
        wanted = self._ramp.at(now_ns)
        if self._find_max is not None:
            return wanted
        announced = self._command_queue.targets()
        lines = follow(self._ramp, ((at_ns, one.target_connections, one.ramp_s) for at_ns, one in announced))
        gained = max(line.target for line in lines) - wanted
        if gained <= 0:
            return wanted
        until_ns = now_ns + self._lead_ns(gained)
        ends_ns = [*(line.began_ns for line in lines[1:]), until_ns]
        levels = [
            line.at(min(end_ns, until_ns))
            for line, end_ns in zip(lines, ends_ns, strict=True)
            if line.began_ns <= until_ns
        ]
        return max(wanted, *levels)

    def _lead_ns(self, logins: int) -> int:
        """The expected time of this number of logins, of which `open_parallel` are executed at the same time."""
        login_ns = max(round(LOGIN_S * NS_PER_S), self._context.connections.slowest_login_ns)
        return round(AHEAD_S * NS_PER_S) + -(-logins // self._context.scenario.connections.open_parallel) * login_ns

    def _settle_step(self, now_ns: int) -> None:
        if self._settling is None or self._find_max is None:
            return
        reached = self._pool.wanted == self._ramp.target and self._pool.settled
        settle_ns = round(self._find_max.settle_s * NS_PER_S)
        if not reached:
            self._settled_ns = None
        elif self._settled_ns is None:
            # Logins do not take equally long in all workers, so they count from a time that all know.
            self._settled_ns = max(self._level_ns + settle_ns + settle_ns // 2, now_ns + settle_ns)
        if self._settled_ns is not None and now_ns >= self._settled_ns:
            self._open(Phase.MEASUREMENT, self._settling.step_id, now_ns, now_ns, None)
            self._settling = self._settled_ns = None

    def _idle_s(self, now_ns: int) -> float:
        moments = [now_ns + round(REAP_S * NS_PER_S)]
        moments += [moment for moment in (self._command_queue.next_ns(), self._closes_ns) if moment is not None]
        change_ns = self._ramp.next_change_ns(now_ns)
        moments += [] if change_ns is None else [change_ns]
        if self._settling is not None:
            moments.append(now_ns + round(SETTLING_S * NS_PER_S))
        if self._leftovers:
            moments.append(now_ns)
        return max(0.0, (min(moments) - now_ns) / NS_PER_S)
