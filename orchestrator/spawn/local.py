"""Workers as processes of this machine: child processes, or separate programs. Workers that a user starts anywhere, or
that another orchestrator has started.

Child processes are started by `spawn`: a forked child would hang in the driver.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import SpawnProcess
from pathlib import Path

import loadgen
from loadgen.files import open_private
from loadgen.model.run import ProcessEnd
from orchestrator.spawn.spawner import ObservedWorkers, WorkerOrder, last_lines

_JOIN_S = 0.5

# (order, environment, log file): the function that the child runs. The command line passes it in.
Entry = Callable[[WorkerOrder, Mapping[str, str], str], None]


class LocalSpawner:
    """Workers as child processes. Each has a session, ignores Ctrl-C, and notices the end of this process through the
    pipe of multiprocessing."""

    def __init__(self, entry: Entry, environment: Mapping[str, str], log_folder: Path) -> None:
        self._entry, self._environment, self._log_folder = entry, dict(environment), log_folder
        self._children: dict[str, SpawnProcess] = {}

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        for order in orders:
            log = str(self._log_folder / f"{order.worker_id}.log")
            child = context.Process(
                target=self._entry, args=(order, self._environment, log), name=order.worker_id, daemon=False
            )
            child.start()
            self._children[order.worker_id] = child

    def ended(self) -> tuple[ProcessEnd, ...]:
        return tuple(
            ProcessEnd(
                worker_id=worker_id, code=child.exitcode, last_lines=last_lines(self._log_folder / f"{worker_id}.log")
            )
            for worker_id, child in self._children.items()
            if child.exitcode is not None
        )

    def running(self) -> int:
        return sum(child.exitcode is None for child in self._children.values())

    def terminate(self, *, hard: bool) -> None:
        for child in self._children.values():
            if child.exitcode is None and child.pid is not None:
                _signal_group(child.pid, signal.SIGKILL if hard else signal.SIGTERM)

    def close(self) -> None:
        """Kill all children that still run."""
        self.terminate(hard=True)
        for child in self._children.values():
            child.join(_JOIN_S)


def _signal_group(pid: int, number: int) -> None:
    """Signal the process group of a child. Before the child has called setsid it has no group of that name, and only
    the process is signalled."""
    try:
        group = os.getpgid(pid)
        if group == pid:
            os.killpg(group, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return


PARENT_FD_VARIABLE = "LOADGEN_PARENT_FD"  # a worker ends when the pipe behind this descriptor is closed
PROBE_S = 30.0
_PROGRAM = ("-P", "-c", "import sys; from loadgen.cli.main import main; sys.exit(main())")
_WHERE = ("-P", "-c", "import loadgen; print(loadgen.__file__)")


class SubprocessSpawner:
    """Workers as separate programs. Each has a process group, and notices the end of this process through a pipe whose
    other end only this process holds open."""

    def __init__(self, environment: Mapping[str, str], log_folder: Path) -> None:
        self._environment, self._log_folder = dict(environment), log_folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lifeline: int | None = None  # this process's end of the pipe

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        python = find_python(self._environment)
        reading, self._lifeline = os.pipe()
        try:
            for order in orders:
                self._children[order.worker_id] = self._start(python, order, reading)
        finally:
            os.close(reading)

    def ended(self) -> tuple[ProcessEnd, ...]:
        codes = {worker_id: child.poll() for worker_id, child in self._children.items()}
        return tuple(
            ProcessEnd(worker_id=worker_id, code=code, last_lines=last_lines(self._log(worker_id)))
            for worker_id, code in codes.items()
            if code is not None
        )

    def running(self) -> int:
        return sum(child.poll() is None for child in self._children.values())

    def terminate(self, *, hard: bool) -> None:
        for child in self._children.values():
            if child.poll() is not None:
                continue
            if hard:
                with suppress(ProcessLookupError, PermissionError):  # it has just ended
                    os.killpg(child.pid, signal.SIGKILL)
            else:
                # uv forwards the signal. A signal to the group would reach the worker twice: a request to end at once.
                child.terminate()

    def close(self) -> None:
        """Kill all programs that still run."""
        self.terminate(hard=True)
        for child in self._children.values():
            try:
                child.wait(_JOIN_S)
            except subprocess.TimeoutExpired:
                continue  # killed, but blocked in the kernel: it ends as soon as it can
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _start(self, python: Sequence[str], order: WorkerOrder, reading: int) -> subprocess.Popen[bytes]:
        log = open_private(self._log(order.worker_id), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            return subprocess.Popen(
                [*python, *_PROGRAM, *worker_arguments(order)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment | {PARENT_FD_VARIABLE: str(reading)},
                pass_fds=(reading,),
                start_new_session=True,  # Ctrl-C at the terminal must reach this process only
            )
        finally:
            os.close(log)

    def _log(self, worker_id: str) -> Path:
        return self._log_folder / f"{worker_id}.log"


def worker_arguments(order: WorkerOrder) -> list[str]:
    """The arguments of `loadgen` for a worker."""
    return [
        "worker",
        f"--run-id={order.run_id}",
        f"--worker-id={order.worker_id}",
        f"--worker-group-id={order.worker_group_id}",
        f"--worker-group-count={order.worker_group_count}",
    ]


def find_python(environment: Mapping[str, str]) -> list[str]:
    """`uv run python` if uv is installed and runs the same loadgen; else this interpreter.

    uv may choose another environment, in which a worker would have another version or not start. So this is tried
    first, without network access and without the project in the current directory.
    """
    here = [sys.executable]
    uv = shutil.which("uv", path=environment.get("PATH", os.defpath))
    if uv is None:
        return here
    command = [uv, "run", "--offline", "--no-project", "--python", sys.executable, "python"]
    try:
        answer = subprocess.run(
            [*command, *_WHERE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=dict(environment),
            timeout=PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return here
    return command if answer.stdout.strip() == loadgen.__file__ else here


# --- Workers that a user starts on any machine, or that another orchestrator has started -----------------------------


class ExternalSpawner(ObservedWorkers):
    """Workers that a user starts. They read the end of the run from the tables. Without a leader they end by
    themselves."""

    def __init__(
        self, environment: Mapping[str, str], wait_s: float, tell: Callable[[str], None], secrets: Sequence[str] = ()
    ) -> None:
        """`environment`: variables of each worker; `secrets`: names of variables whose values are not shown. `tell`
        shows a line to the user who starts the workers."""
        self._environment, self._wait_s, self._tell = dict(environment), wait_s, tell
        self._secrets = tuple(secrets)

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        self._tell(
            f"start {'this worker' if len(orders) == 1 else 'these workers'} within {self._wait_s:g} s, anywhere:"
        )
        if self._secrets:
            self._tell(f"with these variables set there as they are here: {', '.join(self._secrets)}")
        for order in orders:
            self._tell(worker_command(order, self._environment))


def worker_command(order: WorkerOrder, environment: Mapping[str, str]) -> str:
    """The shell command that starts a worker."""
    variables = [f"{name}={value}" for name, value in sorted(environment.items())]
    return shlex.join(["env", *variables, "loadgen", *worker_arguments(order)])


class AdoptedWorkers(ObservedWorkers):
    """Processes that another orchestrator has started."""
