"""Helpers for tests of processes: waiting for a state, directories that every account can reach, other accounts.

No wait is for a fixed time. Its limit is reached only by a hang, also on a busy machine.
"""

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from loadgen.embedded.datadir import account_of, first_closed, may_access, server_account

ROOT = Path(__file__).resolve().parent.parent
# The command line as a user types it; -P: no module of the current directory may shadow one of loadgen's.
PROGRAM = [sys.executable, "-P", "-c", "import sys; from loadgen.cli.main import main; sys.exit(main())"]
PATIENCE_S = 120.0
FIRST_LOOK_S, LOOK_S = 0.01, 0.2  # each check uses processor time that the awaited process needs
Value = TypeVar("Value")
VARIANTS = ("root", "ordinary user")


def wait_until(
    happened: Callable[[], Value | None],
    what: str,
    *,
    unless: Callable[[], object] | None = None,
    details: Callable[[], str] = str,
    patience_s: float = PATIENCE_S,
) -> Value:
    """The first true value of `happened`. Fails with `details` when it does not come, and at once when `unless` returns
    a reason."""
    never = threading.Event()
    waited_s, pause_s = 0.0, FIRST_LOOK_S
    while waited_s < patience_s:
        if value := happened():
            return value
        if unless is not None and (told := unless()):
            pytest.fail(f"while waiting until {what}: {told}")
        never.wait(pause_s)
        waited_s, pause_s = waited_s + pause_s, min(2 * pause_s, LOOK_S)
    pytest.fail(f"did not happen in {patience_s:.0f} s: {what}\n{details()}".rstrip())


def alive(pids: set[int]) -> set[int]:
    """The processes that still run. A process may end during the check."""
    found = set()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found


def make_reachable_directory() -> Path:
    """A new directory that the account of PostgreSQL can reach; those of pytest are closed to other accounts."""
    account = server_account(Path("/nonexistent"))
    for parent in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        if parent.is_dir() and (os.geteuid() != 0 or first_closed(parent, account) is None):
            break
    else:
        pytest.skip(f"no temporary directory can be reached by user `{account.name}`")
    path = Path(tempfile.mkdtemp(prefix="loadgen-test-", dir=parent)).resolve()
    path.chmod(0o755)
    return path


@contextmanager
def reachable_directory() -> Iterator[Path]:
    """The same, removed at the end."""
    path = make_reachable_directory()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def run_as(variant: str, parent: Path) -> list[str]:
    """The prefix that runs a command as `variant`, with the right to write to `parent`; skips the test if it is
    impossible."""
    if variant == "root":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        return []
    if os.geteuid() != 0:
        return []
    try:
        account = account_of(pwd.getpwnam("nobody").pw_uid)
    except KeyError:
        pytest.skip("there is no user `nobody`")
    if shutil.which("setpriv") is None:
        pytest.skip("there is no `setpriv` to become user `nobody` with")
    os.chown(parent, account.uid, account.gid)
    prefix = ["setpriv", f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"]
    needed = [Path(sys.executable).resolve(), Path(sys.prefix), ROOT]
    if any(first_closed(path.parent, account) or not may_access(path, account, stat.S_IXOTH) for path in needed):
        # The account may search directories that are closed to it, so that it can run Python at all. It still cannot
        # write.
        prefix += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    if subprocess.run([*prefix, sys.executable, "-c", "pass"], capture_output=True).returncode != 0:
        pytest.skip("user `nobody` cannot run this Python")
    return prefix


def start_program(words: Sequence[str], environ: Mapping[str, str], folder: Path) -> subprocess.Popen[str]:
    """The command line in a separate session; what it prints is read through pipes."""
    return subprocess.Popen(
        [*PROGRAM, *words],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def server_process(script: str, data_dir: Path, prefix: list[str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `script` on a data directory, prints a line when it is ready, and ends when stdin is
    closed."""
    command = [*(prefix or []), sys.executable, "-c", script, str(data_dir)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@contextmanager
def process_of_owner(path: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the owner of `path` that does not depend on the life of its parent."""
    owner = path.stat()
    identity: dict[str, Any] = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
    process = subprocess.Popen(command, cwd="/", stderr=subprocess.DEVNULL, **(identity if os.geteuid() == 0 else {}))
    try:
        yield process
    finally:
        process.kill()
        process.wait()
