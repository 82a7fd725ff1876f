"""Start a program as the unprivileged user; it ends with its parent. Two halves: `launch`, and this file as

    python -I -S launch.py UID GID PARENT_PID PROGRAM [ARGUMENT ...]

which runs just before PostgreSQL in the same process. The order matters there: a change of user clears the
parent-death signal, so it is requested after the change, and the parent's pid is checked afterwards, in case it died
meanwhile. The script half runs without site-packages and must start fast, so this file imports nothing of the project
and little else.
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
MEMORY_BYTES_MAX = 1 << 30  # of private memory per process: beyond it a statement fails, not the machine
REFUSED = 126  # a shell's exit code for a program that cannot be executed


def launch(
    program: Path, arguments: list[str], *, uid: int, gid: int, output: int, directory: Path
) -> subprocess.Popen[bytes]:
    """Start `program` in a new process session, so that Ctrl-C does not reach it. It dies with this thread."""
    import subprocess

    identity = [str(uid), str(gid), str(os.getpid())]
    command = [sys.executable, "-I", "-S", __file__, *identity, str(program), *arguments]
    # PGDATA, PGPORT, LD_PRELOAD and the like of the user are ignored; a library path may be necessary.
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=directory,
        env=kept | {"LC_ALL": "C", "TZ": "UTC"},
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
            _die_with_parent()
        if os.getppid() == parent_pid:
            os.execv(program, arguments[3:])
        problem = "its parent process has ended"
    except OSError as error:
        problem = f"{error} (as user id {uid})"
    sys.stderr.write(f"cannot start {program}: {problem}\n")
    sys.exit(REFUSED)


def _die_with_parent() -> None:
    """SIGQUIT is PostgreSQL's immediate shutdown; the next start recovers from the write-ahead log."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, SIGQUIT, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")


if __name__ == "__main__":
    main(sys.argv[1:])
