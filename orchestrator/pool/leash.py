"""A program that does another one, and ends it when whoever started us is gone: `python leash.py GRACE_S WORD…`

    end of input     SIGTERM, and after the grace time SIGKILL to the whole process group
    any input        SIGKILL at once
    the child ends   so do we, with its code; 128 + n after signal n

It needs the standard library only and starts fast. Nothing else stands between a runner that was killed and its run.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

LOOK_S = 0.1


def main(words: list[str]) -> int:
    grace_s, command = float(words[0]), words[1:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # our starter decides
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_restore_signals  # noqa: PLW1509 one thread
    )
    code = _watch(child, grace_s)
    return code if code >= 0 else 128 - code


def _watch(child: subprocess.Popen[bytes], grace_s: float) -> int:
    looks_left: int | None = None  # until the child is killed; None: nobody wants its end
    while (code := child.poll()) is None:
        readable, _, _ = select.select([0] if looks_left is None else [], [], [], LOOK_S)
        if readable:
            told = os.read(0, 1)
            looks_left = 0 if told else round(grace_s / LOOK_S)
            if not told:
                child.send_signal(signal.SIGTERM)
        elif looks_left is not None:
            looks_left -= 1
        if looks_left is not None and looks_left <= 0:
            os.killpg(child.pid, signal.SIGKILL)
            return child.wait()
    return code


def _restore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
