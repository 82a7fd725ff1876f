"""Starts a program as an unprivileged user; the program ends with its parent process.

`launch` runs this file as a script, which then executes the program in the same process:

    python -I -S launch.py UID GID PARENT_PID PROGRAM [ARGUMENT ...]

The order of the steps matters: a change of user clears the parent-death signal. So the signal is requested after the
change, and the parent's pid is checked last, in case the parent has ended in between. The script runs without
site-packages and has to start fast, so this file imports only a few modules of the standard library.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

PR_SET_PDEATHSIG = 1
SIGQUIT = 3
MEMORY_BYTES_MAX = 1 << 30  # of private memory per process: a statement that needs more fails
CANNOT_EXECUTE = 126  # exit code, as of a shell


def launch(
    program: Path, arguments: list[str], *, uid: int, gid: int, output: int, directory: Path
) -> subprocess.Popen[bytes]:
    """Start `program` in a new process session, so that Ctrl-C does not reach it. It ends with the calling thread."""
    import subprocess

    identity = [str(uid), str(gid), str(os.getpid())]
    command = [sys.executable, "-I", "-S", __file__, *identity, str(program), *arguments]
    # Variables of the user such as PGDATA, PGPORT and LD_PRELOAD are not passed on. LD_LIBRARY_PATH may be necessary.
    environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=directory,
        env=environment | {"LC_ALL": "C", "TZ": "UTC"},
        start_new_session=True,
    )


def main(arguments: list[str]) -> None:
    uid, gid, parent_pid = (int(text) for text in arguments[:3])
    program = arguments[3]
    try:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        if sys.platform == "linux":
            _request_end_with_parent()
        if os.getppid() == parent_pid:
            os.execv(program, arguments[3:])
        problem = "its parent process has ended"
    except OSError as error:
        problem = f"{error} (as user id {uid})"
    sys.stderr.write(f"cannot start {program}: {problem}\n")
    sys.exit(CANNOT_EXECUTE)


def _request_end_with_parent() -> None:
    """Request SIGQUIT, PostgreSQL's immediate shutdown. The next start recovers from the write-ahead log."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, SIGQUIT, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")


if __name__ == "__main__":
    main(sys.argv[1:])
