"""A program that runs a command, and ends it when its starter is gone: `python process_guard.py GRACE_S WORD…`

    "t" or end of input   SIGTERM to it, and after the grace time SIGKILL to its whole process group
    "h"                   SIGTERM and SIGINT: the second signal makes a run cancel its statements; SIGKILL after HURRY_S
    "k"                   SIGKILL at once
    it ends               so do we, with its code; 128 + n after signal n

It needs the standard library only and starts fast. Without it the run of a killed runner would continue.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

LOOK_S = 0.1
HURRY_S = 10.0


def main(words: list[str]) -> int:
    grace_s, command = float(words[0]), words[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)  # our starter decides; a handler, unlike SIG_IGN, is not inherited
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    code = _watch(child, grace_s)
    return code if code >= 0 else 128 - code


def _ignore(number: int, frame: FrameType | None) -> None:
    """The run gets its signals itself, or by our starter."""


def _watch(child: subprocess.Popen[bytes], grace_s: float) -> int:
    listening, kill_at_s, hurried = [0], None, False
    while (code := child.poll()) is None:
        readable, _, _ = select.select(listening, [], [], LOOK_S)
        told = os.read(0, 1) if readable else None
        if told == b"":
            listening = []
        if told == b"k" or (kill_at_s is not None and time.monotonic() >= kill_at_s):
            os.killpg(child.pid, signal.SIGKILL)
            return child.wait()
        if told is not None and kill_at_s is None:
            child.send_signal(signal.SIGTERM)
            kill_at_s = time.monotonic() + grace_s
        if told == b"h" and not hurried and kill_at_s is not None:
            child.send_signal(signal.SIGINT)
            hurried, kill_at_s = True, min(kill_at_s, time.monotonic() + HURRY_S)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
