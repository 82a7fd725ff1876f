"""A program that runs a command, and ends it when its parent has ended: `python process_guard.py GRACE_S WORD…`

It reads requests from its standard input:

    "t" or end of input   send SIGTERM to the command; after the grace time send SIGKILL to its process group
    "h"                   send SIGTERM and SIGINT: the second signal makes a run cancel its statements; SIGKILL after
                          INTERRUPT_S
    "k"                   send SIGKILL at once

It exits with the exit code of the command; with 128 + n if signal n has ended the command. It imports the standard
library only, so it starts fast. Without it the run of a killed runner would continue.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

CHECK_PERIOD_S = 0.1  # between checks whether the command has ended
INTERRUPT_S = 10.0


def main(words: list[str]) -> int:
    grace_s, command = float(words[0]), words[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)  # the parent decides; unlike SIG_IGN a handler is not inherited by the command
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    code = _watch(child, grace_s)
    return code if code >= 0 else 128 - code


def _ignore(number: int, frame: FrameType | None) -> None:
    """The command gets signals of the terminal itself, and others through the parent."""


def _watch(child: subprocess.Popen[bytes], grace_s: float) -> int:
    listening, kill_at_s, interrupted = [0], None, False
    while (code := child.poll()) is None:
        readable, _, _ = select.select(listening, [], [], CHECK_PERIOD_S)
        request = os.read(0, 1) if readable else None
        if request == b"":
            listening = []
        if request == b"k" or (kill_at_s is not None and time.monotonic() >= kill_at_s):
            os.killpg(child.pid, signal.SIGKILL)
            return child.wait()
        if request is not None and kill_at_s is None:
            child.send_signal(signal.SIGTERM)
            kill_at_s = time.monotonic() + grace_s
        if request == b"h" and not interrupted and kill_at_s is not None:
            child.send_signal(signal.SIGINT)
            interrupted, kill_at_s = True, min(kill_at_s, time.monotonic() + INTERRUPT_S)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
