"""A runner as its manager has it: a process, pings, and what it answered last."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from loadgen.clock import Clock
from loadgen.units import NS_PER_S
from orchestrator.nightly.pool_size import PING_S, PING_TIMEOUT_S, RunnerView
from orchestrator.nightly.runner import Runner, RunnerState

LOOK_S = 0.1
PING = b"ping"  # and how often to beat while there is no work, in seconds; 0: there may be work
DRAIN = b"drain"
EVENT_KEY = "told"  # the key of a line that is no answer: an event, for the pool's user


def serve_manager(
    runner: Runner, received: Sequence[int], *, grace_s: float, reading: int = 0, writing: int = 1
) -> None:
    """Until the runner is done. The first signal asks it to drain, the second to end within seconds. What is under
    way is told when it changes: the next ping may be seconds away."""
    obeyed, rest, listening, doing = 0, b"", [reading], runner.state().queue_id
    while not runner.done.is_set():
        readable, _, _ = select.select(listening, [], [], LOOK_S)
        if readable:
            said = os.read(reading, 4096)
            if not said:
                listening = []
                runner.leave(grace_s)
            *lines, rest = (rest + said).split(b"\n")
            for line in lines:
                _heed(runner, line, writing)
        runner.guard()
        _tell(runner, writing)
        if (now := runner.state()).queue_id != doing:
            doing = now.queue_id
            _write(writing, dataclasses.asdict(now))
        while obeyed < len(received):
            obeyed += 1
            if obeyed == 1:
                runner.leave(grace_s)
            else:
                runner.hurry()
    _tell(runner, writing)


def _heed(runner: Runner, line: bytes, writing: int) -> None:
    word, _, beat_s = line.partition(b" ")
    if word == DRAIN:
        runner.leave(None)
    elif word == PING:
        runner.set_idle(float(beat_s) or None)
        _write(writing, dataclasses.asdict(runner.state()))


def _tell(runner: Runner, writing: int) -> None:
    for line in runner.take_told():
        _write(writing, {EVENT_KEY: line})


def _write(writing: int, answer: Mapping[str, object]) -> None:
    with suppress(OSError):  # the manager has ended: the end of input will tell
        os.write(writing, json.dumps(answer, separators=(",", ":")).encode() + b"\n")


_JOIN_S = 5.0


class RunnerProcess:
    """Owned by the manager's main thread."""

    def __init__(self, name: str, words: Sequence[str], environment: Mapping[str, str], clock: Clock) -> None:
        self.name = name
        self.state: RunnerState | None = None  # None: it has never answered
        self.idle_beat_s: float | None = None  # told with the next ping; None: there may be work
        self._clock, self._started_ns = clock, clock.monotonic_ns()
        self._pinged_ns: int | None = None  # and not answered
        self._next_ping_ns = self._started_ns
        self._misses = 0
        self._told_to_drain = False
        self._rest = b""
        self._told: list[str] = []
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
        """Hear what it has said, and ping when it is time."""
        self._listen()
        now_ns = self._clock.monotonic_ns()
        if self._pinged_ns is not None and now_ns - self._pinged_ns >= PING_TIMEOUT_S * NS_PER_S:
            self._misses += 1
            self._pinged_ns = None
            self._next_ping_ns = now_ns
        if self._pinged_ns is None and now_ns >= self._next_ping_ns:
            self._pinged_ns, self._next_ping_ns = now_ns, now_ns + round(PING_S * NS_PER_S)
            self._say(b"%s %g" % (PING, self.idle_beat_s or 0.0))

    def take_told(self) -> list[str]:
        """What happened in it since this was asked last, one line each."""
        told, self._told = self._told, []
        return told

    def view(self) -> RunnerView:
        state = self.state
        return RunnerView(
            name=self.name,
            age_s=(self._clock.monotonic_ns() - self._started_ns) / NS_PER_S,
            runs=0 if state is None else state.runs,
            idle_s=None if state is None else state.idle_s,
            busy=state is not None and state.queue_id is not None,
            draining=self._told_to_drain or (state is not None and state.draining),
            misses=self._misses,
        )

    def drain(self) -> None:
        """Let it end what it does, however long that takes."""
        self._told_to_drain = True
        self._say(DRAIN)

    def leave(self) -> None:
        """Let it end within its grace time; said twice, within seconds."""
        self._told_to_drain = True
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Its run ends too: the guard of that process sees the end of its pipe."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """End it, if it has not ended, and wait for that."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):  # held up by the kernel: it goes as soon as it can
            self._process.wait(_JOIN_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def _listen(self) -> None:
        with suppress(BlockingIOError):
            while said := os.read(self._reading, 65536):
                *lines, self._rest = (self._rest + said).split(b"\n")
                for line in lines:
                    self._answered(line)

    def _answered(self, line: bytes) -> None:
        with suppress(ValueError, TypeError):  # something else printed a line
            answer = json.loads(line)
            if EVENT_KEY in answer:
                self._told.append(str(answer[EVENT_KEY]))
                return
            self.state = RunnerState(**answer)
            self._misses, self._pinged_ns = 0, None

    def _say(self, word: bytes) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # stopped for long, or gone
            os.write(self._writing, word + b"\n")
