"""Workers as processes: children of this one, started by spawn (a forked child would hang in the driver); separate
programs; those that a user starts, or that another orchestrator has started."""

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
from orchestrator.spawn.spawner import ProcessEnd, WorkerOrder, last_lines

_JOIN_S = 0.5

# (order, environment, log file): what the child runs. It is given by the command line, which knows every role.
Entry = Callable[[WorkerOrder, Mapping[str, str], str], None]


class LocalSpawner:
    """Children see our death through multiprocessing's own pipe, have a session each, and ignore Ctrl-C."""

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
        """End whatever is left: nothing of ours may outlive us."""
        self.terminate(hard=True)
        for child in self._children.values():
            child.join(_JOIN_S)


def _signal_group(pid: int, number: int) -> None:
    """The child leads a process group once it has called setsid; before that it is a single process."""
    try:
        group = os.getpgid(pid)
        if group == pid:
            os.killpg(group, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return


PARENT_FD_VARIABLE = "LOADGEN_PARENT_FD"  # a worker ends when the pipe behind this descriptor does
PROBE_S = 30.0
_PROGRAM = ("-P", "-c", "import sys; from loadgen.cli.main import main; sys.exit(main())")
_WHERE = ("-P", "-c", "import loadgen; print(loadgen.__file__)")


class SubprocessSpawner:
    """Children see our death through a pipe that only we hold open, and have a process group each."""

    def __init__(self, environment: Mapping[str, str], log_folder: Path) -> None:
        self._environment, self._log_folder = dict(environment), log_folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lifeline: int | None = None  # our end of the pipe

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
                child.terminate()  # uv passes it on; told as a group the worker would hear it twice, and hurry

    def close(self) -> None:
        """End whatever is left: nothing of ours may outlive us."""
        self.terminate(hard=True)
        for child in self._children.values():
            try:
                child.wait(_JOIN_S)
            except subprocess.TimeoutExpired:
                continue  # killed, and held up by the kernel: it goes as soon as it can
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _start(self, python: Sequence[str], order: WorkerOrder, reading: int) -> subprocess.Popen[bytes]:
        log = os.open(self._log(order.worker_id), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            return subprocess.Popen(
                [*python, *_PROGRAM, *worker_arguments(order)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment | {PARENT_FD_VARIABLE: str(reading)},
                pass_fds=(reading,),
                start_new_session=True,  # Ctrl-C at the terminal is our business
            )
        finally:
            os.close(log)

    def _log(self, worker_id: str) -> Path:
        return self._log_folder / f"{worker_id}.log"


def worker_arguments(order: WorkerOrder) -> list[str]:
    """The command line of a worker, without the program."""
    return [
        "worker",
        f"--run-id={order.run_id}",
        f"--worker-id={order.worker_id}",
        f"--worker-group-id={order.worker_group_id}",
        f"--worker-group-count={order.worker_group_count}",
    ]


def find_python(environment: Mapping[str, str]) -> list[str]:
    """`uv run python` where there is a uv that runs this very loadgen; else this interpreter.

    uv may choose another environment: then a worker would be of another version, or not start at all. So it is asked,
    and it is not let at the network or at the project that happens to lie in the current directory.
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


class ExternalSpawner:
    """They learn of the end from the tables only; without a leader of their run they end by themselves."""

    def __init__(
        self, environment: Mapping[str, str], wait_s: float, tell: Callable[[str], None], secrets: Sequence[str] = ()
    ) -> None:
        """`environment`: what each of them must be told; `secrets`: variables whose values are not. `tell` shows one
        line to the user who starts them."""
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

    def ended(self) -> tuple[ProcessEnd, ...]:
        return ()  # their last beats say it

    def running(self) -> int:
        return 0

    def terminate(self, *, hard: bool) -> None:
        """Out of reach: STOP, or the end of the lease, is all they hear."""

    def close(self) -> None:
        """Nothing is held."""


def worker_command(order: WorkerOrder, environment: Mapping[str, str]) -> str:
    """One line for a shell."""
    told = [f"{name}={value}" for name, value in sorted(environment.items())]
    return shlex.join(["env", *told, "loadgen", *worker_arguments(order)])


class AdoptedWorkers:
    """Processes, known by their beats alone."""

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        """They have been started."""

    def ended(self) -> tuple[ProcessEnd, ...]:
        return ()

    def running(self) -> int:
        return 0

    def terminate(self, *, hard: bool) -> None:
        """A worker that obeys neither STOP nor the status of the run is unreachable."""

    def close(self) -> None:
        """Nothing of them is ours."""
