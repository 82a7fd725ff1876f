"""A pool of runners: how many it needs, and the manager that starts, pings and ends them. It never calls the driver."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field

from loadgen.clock import Clock
from loadgen.control.tables.run_queue import QueueDepth
from loadgen.errors import LoadgenError, UsageError
from loadgen.log import event
from loadgen.threads import Service, ThreadDied
from loadgen.units import NS_PER_S, counted
from loadgen.values import dataclass
from orchestrator.nightly.attempt import STOP_S
from orchestrator.nightly.runner import ASKED_TO_END, Runner, RunnerState

log = logging.getLogger(__name__)

# --- How many runners a pool needs, and which of them end: pure ------------------------------------------------------

PING_S = 2.0
PING_TIMEOUT_S = 10.0
MISSES_MAX = 3
START_MAX_S = 300.0  # until the first answer: on a busy machine imports take long, and repeated starts delay them more
START_PAUSE_MAX_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    min_runners: int = 1
    max_runners: int = 4
    scale_up_at: int = 5  # runs that wait
    idle_s: float = 300.0
    max_age_s: float = 3600.0
    max_runs: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.min_runners <= self.max_runners or self.max_runners < 1:
            raise UsageError(
                f"a pool of {self.min_runners} to {self.max_runners} runners is not possible",
                remedy="Make --max at least 1 and not less than --min.",
            )
        if self.scale_up_at < 1 or self.max_runs < 1 or self.max_age_s <= 0:
            raise UsageError(
                "--scale-up-at, --max-runs and --max-age must be greater than 0",
                remedy="Omit them to use the defaults that `loadgen pool run --help` shows.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerView:
    """A runner with a alive process, as its manager observes it."""

    name: str
    age_s: float
    runs: int  # number of runs that it has executed
    idle_s: float | None  # None: it executes a run, or has not begun to read the queue
    busy: bool  # it executes a run
    draining: bool  # it takes no new run
    misses: int  # consecutive pings without an answer
    has_answered: bool  # False: it is starting

    @property
    def is_silent(self) -> bool:
        """Whether it no longer answers, or did not send its first answer in time."""
        return self.misses >= MISSES_MAX and (self.has_answered or self.age_s >= START_MAX_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDecision:
    """The next actions of the manager: number of runners to start, and names of runners to end."""

    start: int = 0
    drain: tuple[str, ...] = ()  # surplus runners
    recycle: tuple[str, ...] = ()  # drained as well, and replaced
    kill: tuple[str, ...] = ()
    size: int = field(default=0, compare=False)  # the wanted number of serving runners, for the next decision


def decide_pool_size(
    rules: PoolRules, depth: QueueDepth | None, runners: Sequence[RunnerView], size: int | None = None
) -> PoolDecision:
    """The next decision. `depth`: waiting runs; None: not read since the last decision. `size`: of the last decision;
    None: the number of serving runners.

    Draining runners still use the machine, so they count against the maximum.
    """
    kill = tuple(runner.name for runner in runners if runner.is_silent)
    alive = [runner for runner in runners if runner.name not in kill]
    serving = [runner for runner in alive if not runner.draining]
    size = min(max(rules.min_runners, len(serving) if size is None else size), rules.max_runners)
    if depth is not None and _is_short(rules, depth, serving):
        size = max(size, min(len(serving) + 1, rules.max_runners))
    recycle = _recycled(rules, alive, serving)
    serving = [runner for runner in serving if runner.name not in recycle]
    drain = _surplus(rules, serving) if depth is not None and not depth.startable and not recycle else ()
    if drain:
        size = len(serving) - len(drain)
    start = min(size - len(serving), rules.max_runners - len(alive))
    return PoolDecision(start=max(start, 0), drain=drain, recycle=recycle, kill=kill, size=size)


def _is_short(rules: PoolRules, depth: QueueDepth, serving: Sequence[RunnerView]) -> bool:
    """Enough runs wait, and more of them can begin than there are free runners."""
    if not serving:
        return depth.startable > 0
    free = sum(not runner.busy for runner in serving)
    return depth.waiting >= rules.scale_up_at and depth.startable > free


def start_pause_s(failures: int) -> float:
    """The pause before the next start, after this number of consecutive runners that never became ready."""
    return 0.0 if failures == 0 else min(START_PAUSE_MAX_S, 2.0 ** min(failures - 1, 30))


def _recycled(rules: PoolRules, alive: Sequence[RunnerView], serving: Sequence[RunnerView]) -> tuple[str, ...]:
    """The oldest runner that has reached its maximum age or number of runs; one at a time, so that the others serve.

    A runner without a run is not replaced: that has no use, and would start the control plane's warehouse.
    """
    if len(alive) > len(serving):
        return ()
    used = [runner for runner in serving if runner.runs > 0]
    over = [runner for runner in used if runner.age_s >= rules.max_age_s or runner.runs >= rules.max_runs]
    return (max(over, key=lambda runner: runner.age_s).name,) if over else ()


def _surplus(rules: PoolRules, serving: Sequence[RunnerView]) -> tuple[str, ...]:
    """The runner that has been idle for the longest time, if there are more runners than the minimum."""
    idle = [(runner.idle_s, runner.name) for runner in serving if runner.idle_s is not None]
    if len(serving) <= rules.min_runners or not idle:
        return ()
    longest_s, name = max(idle)
    return (name,) if longest_s >= rules.idle_s else ()


def drain_text(signals: int, runs: int, grace_s: float) -> str:
    """What a stopping pool waits for, and what the next signal does."""
    if runs == 0:
        return "stopping: no run is under way"
    them, under_way = "it" if runs == 1 else "them", f"stopping: {counted(runs, 'run')} under way"
    if signals == 1:
        finish = "finishes" if runs == 1 else "finish"
        return f"{under_way} {finish} first, within {grace_s:.0f} s; press Ctrl-C again to queue {them} again"
    return f"{under_way} {'is' if runs == 1 else 'are'} ended and queued again; press Ctrl-C again to end at once"


# --- The protocol between a runner and its manager -------------------------------------------------------------------

CHECK_PERIOD_S = 0.1  # between checks of the runner
PING = b"ping"  # followed by the heartbeat interval of an idle pool, in seconds; 0: there may be work
DRAIN = b"drain"
EVENT_KEY = "event"  # the key of a line that is an event for the user of the pool, not an answer


def serve_manager(
    runner: Runner, received: Sequence[int], *, grace_s: float, reading: int = 0, writing: int = 1
) -> None:
    """Serve the manager until the runner has ended. The first signal makes the runner drain, the second makes it end
    within seconds. When its current run changes, the state is sent at once: the next ping may be seconds away."""
    handled, rest, listening, current = 0, b"", [reading], runner.state().queue_id
    while not runner.done.is_set():
        readable, _, _ = select.select(listening, [], [], CHECK_PERIOD_S)
        if readable:
            data = os.read(reading, 4096)
            if not data:
                listening = []
                runner.drain(grace_s, "its pool has ended")
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _carry_out(runner, line, writing)
        runner.guard()
        _write_events(runner, writing)
        if (now := runner.state()).queue_id != current:
            current = now.queue_id
            _write(writing, dataclasses.asdict(now))
        while handled < len(received):
            handled += 1
            reason = f"{ASKED_TO_END} ({_signal_name(received[0])})"
            if handled == 1:
                runner.drain(grace_s, reason)
            else:
                runner.interrupt(reason)
    _write_events(runner, writing)


def _carry_out(runner: Runner, line: bytes, writing: int) -> None:
    word, _, beat_s = line.partition(b" ")
    if word == DRAIN:
        runner.drain(None)
    elif word == PING:
        runner.set_idle(float(beat_s) or None)
        _write(writing, dataclasses.asdict(runner.state()))


def _write_events(runner: Runner, writing: int) -> None:
    for line in runner.take_events():
        _write(writing, {EVENT_KEY: line})


def _write(writing: int, answer: Mapping[str, object]) -> None:
    with suppress(OSError):  # the manager has ended: the end of input shows that
        os.write(writing, json.dumps(answer, separators=(",", ":")).encode() + b"\n")


_JOIN_S = 5.0


class RunnerProcess:
    """The process of a runner, as its manager handles it. Belongs to the main thread of the manager."""

    def __init__(self, name: str, words: Sequence[str], environment: Mapping[str, str], clock: Clock) -> None:
        self.name = name
        self.state: RunnerState | None = None  # None: it has never answered
        self.idle_beat_s: float | None = None  # sent with the next ping; None: there may be work
        self._clock, self._started_ns = clock, clock.monotonic_ns()
        self._pinged_ns: int | None = None  # time of a ping without an answer
        self._next_ping_ns = self._started_ns
        self._misses = 0
        self._drain_requested = False
        self._killed_for: str | None = None  # why its manager has killed it
        self._rest = b""
        self._events: list[str] = []
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environment), process_group=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._writing, self._reading = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._writing, False)
        os.set_blocking(self._reading, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def step(self) -> None:
        """Read its answers, and send the next ping when it is due."""
        self._read()
        now_ns = self._clock.monotonic_ns()
        if self._pinged_ns is not None and now_ns - self._pinged_ns >= PING_TIMEOUT_S * NS_PER_S:
            self._misses += 1
            self._pinged_ns = None
            self._next_ping_ns = now_ns
        if self._pinged_ns is None and now_ns >= self._next_ping_ns:
            self._pinged_ns, self._next_ping_ns = now_ns, now_ns + round(PING_S * NS_PER_S)
            self._send(b"%s %g" % (PING, self.idle_beat_s or 0.0))

    def take_events(self) -> list[str]:
        """The events of the runner since the last call, one line each."""
        events, self._events = self._events, []
        return events

    def view(self) -> RunnerView:
        state = self.state
        return RunnerView(
            name=self.name,
            age_s=(self._clock.monotonic_ns() - self._started_ns) / NS_PER_S,
            runs=0 if state is None else state.runs,
            idle_s=None if state is None else state.idle_s,
            busy=state is not None and state.queue_id is not None,
            draining=self._drain_requested or (state is not None and state.draining),
            misses=self._misses,
            has_answered=state is not None,
        )

    def drain(self) -> None:
        """Make it end after its current run, without a time limit."""
        self._drain_requested = True
        self._send(DRAIN)

    def terminate(self) -> None:
        """Make it end within its grace time; the second call makes it end within seconds."""
        self._drain_requested = True
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it. The guard of its run notices the end of the pipe, and ends the run."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def kill_silent(self) -> str:
        """Kill it because it does not answer. Returns the reason."""
        why = "it does not answer" if self.state is not None else f"it did not start within {START_MAX_S:.0f} s"
        self._killed_for = why
        self.kill()
        return why

    @property
    def end_text(self) -> str:
        """How its process ended: the reason of its interrupted attempt."""
        code = self.exit_code
        if self._killed_for is not None:
            return f"its pool killed its runner: {self._killed_for}"
        if code is not None and code < 0:
            return f"its runner was killed by {_signal_name(-code)}"
        return f"its runner ended with exit code {code}"

    def close(self) -> None:
        """Kill it if it has not ended, and wait for its end."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):  # blocked in the kernel: it ends as soon as it can
            self._process.wait(_JOIN_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._reading, 65536):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        with suppress(ValueError, TypeError):  # a line that is not of the protocol
            answer = json.loads(line)
            if EVENT_KEY in answer:
                self._events.append(str(answer[EVENT_KEY]))
                return
            self.state = RunnerState(**answer)
            self._misses, self._pinged_ns = 0, None

    def _send(self, word: bytes) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # it is stopped, or has ended
            os.write(self._writing, word + b"\n")


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


# --- The manager -----------------------------------------------------------------------------------------------------

TICK_S = 0.2
AT_ONCE = 3  # number of signals after which the pool ends at once
DRAIN_MARGIN_S = 30.0  # for the last messages, beyond the grace time and the end of a run


class PoolFailed(LoadgenError):
    """No runner of the pool could register."""

    exit_code = 4
    remedy = "The lines above show the error of each runner; `loadgen doctor` checks machine and control plane."


FAILURES_MAX = 8  # consecutive runners that ended before they were registered, if none was ever registered


class PoolManager:
    """Keeps the number of runners. Belongs to one thread. `start_runner` starts the process of a runner with this
    name."""

    def __init__(
        self,
        rules: PoolRules,
        start_runner: Callable[[str], RunnerProcess],
        take_depth: Callable[[], QueueDepth | None],
        *,
        clock: Clock,
        idle_beat_s: Callable[[], float | None] = lambda: None,
        release: Callable[[str, str], None] = lambda worker_id, why: None,
        tell: Callable[[str], None] = lambda _: None,
        threads: Sequence[Service] = (),
    ) -> None:
        self._tell = tell  # shows one line per event to the user of the pool
        self._threads = threads  # without one of them the pool must not continue
        self._size: int | None = None  # the wanted number of serving runners
        self._unstarted = 0  # consecutive failed starts
        self._rules, self._start_runner, self._take_depth, self._clock = rules, start_runner, take_depth, clock
        self._idle_beat_s = idle_beat_s  # None: there may be work
        self._release = release  # gives back the run of a runner whose process has ended, with the reason
        self._children: dict[str, RunnerProcess] = {}
        self._numbers = itertools.count(1)
        self._failures = 0  # consecutive runners that ended before they were registered
        self._any_worked = False
        self._start_after_ns = clock.monotonic_ns()

    def run(self, received: Sequence[int], *, grace_s: float) -> None:
        """Keep the pool until a signal is received or one of its threads has failed. Then every runner finishes its run
        within `grace_s`. The next signal queues the current runs again, the one after that ends the pool at once."""
        never = threading.Event()
        try:
            while not received:
                for thread in self._threads:
                    thread.check()
                self.step()
                self._clock.wait(never, TICK_S)
            self._drain(received, grace_s)
        except ThreadDied as error:
            self._tell(str(error))
            self._drain(received, grace_s, requests=1)
            raise
        finally:
            for child in self._children.values():
                child.close()

    def step(self) -> None:
        """Observe every runner, and carry out the next decision."""
        self._collect()
        idle_beat_s = self._idle_beat_s()
        for child in self._children.values():
            child.idle_beat_s = idle_beat_s
            self._step(child)
            if child.state is not None and child.state.registered:
                self._failures, self._any_worked = 0, True
        views = [child.view() for child in self._children.values()]
        decision = decide_pool_size(self._rules, self._take_depth(), views, self._size)
        self._size = decision.size
        for name in decision.kill:
            why = self._children[name].kill_silent()
            event(log, logging.WARNING, "runner_killed", runner=name, why=why)
            self._tell(f"{name} killed: {why}")
        for name in (*decision.recycle, *decision.drain):
            event(log, logging.INFO, "runner_drained", runner=name)
            self._tell(f"{name} {'recycled' if name in decision.recycle else 'drained: it is idle'}")
            self._children[name].drain()
        if self._clock.monotonic_ns() >= self._start_after_ns:
            for _ in range(decision.start):
                self._start()
                if self._unstarted:
                    break

    def _start(self) -> None:
        name = f"runner-{next(self._numbers)}"
        try:
            child = self._start_runner(name)
        except OSError as error:  # no memory, process ids or descriptors: ending runners may free some
            self._unstarted += 1
            pause_s = start_pause_s(self._unstarted)
            self._start_after_ns = self._clock.monotonic_ns() + round(pause_s * NS_PER_S)
            event(log, logging.WARNING, "runner_not_started", runner=name, why=str(error))
            self._tell(f"{name} could not be started: {error.strerror or error}; next attempt in {pause_s:.0f} s")
            return
        self._unstarted = 0
        self._children[name] = child
        event(log, logging.INFO, "runner_started", runner=name, pid=child.pid)
        self._tell(f"{name} started, pid {child.pid}")

    def _step(self, child: RunnerProcess) -> None:
        child.step()
        for line in child.take_events():
            self._tell(f"{child.name} {line}")

    def _collect(self) -> None:
        """Remove runners whose process has ended."""
        for child in [child for child in self._children.values() if child.exit_code is not None]:
            del self._children[child.name]
            self._step(child)  # read its last messages
            child.close()
            worked = child.state is not None and child.state.registered
            if child.state is not None and child.exit_code != 0:  # otherwise it has given back its run
                self._release(child.state.worker_id, child.end_text)
            level = logging.INFO if child.exit_code == 0 else logging.WARNING
            event(log, level, "runner_ended", runner=child.name, code=child.exit_code)
            self._tell(f"{child.name} ended, exit code {child.exit_code}")
            if not worked and child.exit_code != 0:
                self._failures += 1
                pause_ns = round(start_pause_s(self._failures) * NS_PER_S)
                self._start_after_ns = self._clock.monotonic_ns() + pause_ns
                if not self._any_worked and self._failures >= FAILURES_MAX:
                    raise PoolFailed(f"{self._failures} runners in a row ended before they could begin")

    def _drain(self, received: Sequence[int], grace_s: float, requests: int = 0) -> None:
        """End every runner. `requests` to end were made by other means than a signal."""
        handled, shown, never = 0, "", threading.Event()
        until_ns = self._clock.monotonic_ns() + round((grace_s + STOP_S + DRAIN_MARGIN_S) * NS_PER_S)
        while self._children and self._clock.monotonic_ns() < until_ns and requests + len(received) < AT_ONCE:
            while handled < min(requests + len(received), 2):
                handled += 1
                for child in self._children.values():
                    child.terminate()
            for child in self._children.values():
                self._step(child)
            if (now := drain_text(handled, self._runs_under_way(), grace_s)) != shown:
                shown = now
                self._tell(shown)
            self._collect()
            self._clock.wait(never, TICK_S)
        if self._children:
            left = counted(self._runs_under_way(), "run")
            self._tell(f"ended at once: {left} under way; the next pool on this machine claims them")

    def _runs_under_way(self) -> int:
        return sum(child.state is not None and child.state.queue_id is not None for child in self._children.values())
