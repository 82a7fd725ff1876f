"""Bare connector loops, arranged like the workers of a run: one process per available core, all in one session.

python -m tests.perf._bare_loops HOST:PORT DATABASE CONNECTIONS

CONNECTIONS are those of each process. Prints the process ids in a line once all of them run, and ends them when its
standard input ends. The kernel divides a core between sessions first, so loops in two sessions would get more of it
than a run, which is one session.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.perf._cores import on


def main(*arguments: str) -> int:
    loops = []
    for core in sorted(os.sched_getaffinity(0)):
        with on(frozenset({core})):
            command = [sys.executable, "-P", "-m", "tests.perf._bare_loop", *arguments]
            loops.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for loop in loops:
        assert loop.stdout is not None
        assert loop.stdout.readline() == "ready\n"
    print(*(loop.pid for loop in loops), flush=True)
    sys.stdin.read()
    for loop in loops:
        assert loop.stdin is not None
        loop.stdin.close()
    return max(loop.wait() for loop in loops)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
