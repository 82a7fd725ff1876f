"""A runner and its manager, who talk by lines: `ping` is answered with the runner's state, `drain` is obeyed.

The end of input is the end of the manager: then the runner leaves, as after a signal.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
from collections.abc import Mapping, Sequence
from contextlib import suppress

from orchestrator.nightly.runner import Runner

LOOK_S = 0.1
PING = b"ping"
DRAIN = b"drain"
EVENT_KEY = "told"  # the key of a line that is no answer: an event, for the pool's user


def serve_manager(
    runner: Runner, received: Sequence[int], *, grace_s: float, reading: int = 0, writing: int = 1
) -> None:
    """Until the runner is done. The first signal is a wish to leave, the second to leave within seconds. What is under
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
    if line == DRAIN:
        runner.leave(None)
    elif line == PING:
        _write(writing, dataclasses.asdict(runner.state()))


def _tell(runner: Runner, writing: int) -> None:
    for line in runner.take_told():
        _write(writing, {EVENT_KEY: line})


def _write(writing: int, answer: Mapping[str, object]) -> None:
    with suppress(OSError):  # the manager has ended: the end of input will tell
        os.write(writing, json.dumps(answer, separators=(",", ":")).encode() + b"\n")
