"""A pool as a service: starts that fail, the lines it prints, the unit that starts and stops it."""

from __future__ import annotations

import configparser
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from loadgen.cli.common import duration_s
from loadgen.cli.pool import run as pool_run
from loadgen.clock import Clock, SystemClock
from loadgen.threads import Service, ThreadDied
from orchestrator.nightly.attempt import STOP_S
from orchestrator.nightly.pool import DRAIN_MARGIN_S, PING_TIMEOUT_S, START_MAX_S, PoolManager, PoolRules, RunnerProcess
from tests.processes import ROOT, wait_until

PYTHON = [sys.executable, "-I", "-S", "-c"]
SILENT = [*PYTHON, "import sys; sys.stdin.read()"]
ONE = PoolRules(min_runners=1, max_runners=1)
STATE = '{"worker_id": "w-1", "registered": true, "draining": false, "queue_id": "q", "runs": 3, "idle_s": null}'


@pytest.fixture
def children() -> Iterator[list[RunnerProcess]]:
    made: list[RunnerProcess] = []
    yield made
    for child in made:
        child.close()


def starter(children: list[RunnerProcess], clock: Clock, command: list[str]) -> Callable[[str], RunnerProcess]:
    def start(name: str) -> RunnerProcess:
        children.append(RunnerProcess(name, command, os.environ, clock))
        return children[-1]

    return start


def test_a_pool_that_lost_a_thread_finishes_its_runs_and_fails(children):
    code = (
        f"import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print({STATE!r}, flush=True); sys.stdin.read()"
    )
    answered = threading.Event()

    def fail_after_the_answer() -> None:
        answered.wait()
        raise RuntimeError("a bug")

    def take_depth() -> None:
        if children and children[0].state is not None:
            answered.set()

    thread, told, clock = Service("schedules", fail_after_the_answer), list[str](), SystemClock()
    start = starter(children, clock, [*PYTHON, code])
    manager = PoolManager(ONE, start, take_depth, clock=clock, tell=told.append, threads=[thread])
    thread.start()

    with pytest.raises(ThreadDied):
        manager.run([], grace_s=60.0)

    assert [child.exit_code for child in children] == [0]
    assert "thread schedules: RuntimeError: a bug" in told


def test_a_start_that_fails_ends_no_pool_and_is_tried_less_and_less_often(clock, children):
    left, told = [OSError(11, "Resource temporarily unavailable")] * 20, list[str]()

    def start(name: str) -> RunnerProcess:
        if left:
            raise left.pop()
        return starter(children, clock, SILENT)(name)

    manager = PoolManager(ONE, start, lambda: None, clock=clock, tell=told.append)
    manager.step()
    manager.step()
    tried_at_once = 20 - len(left)
    while not children:
        clock.advance(60.0)
        manager.step()

    assert tried_at_once == 1
    pause = "could not be started: Resource temporarily unavailable; next attempt in"
    assert told[:2] == [f"runner-1 {pause} 1 s", f"runner-2 {pause} 2 s"]
    assert told[-1] == f"runner-21 started, pid {children[0].pid}"


def test_events_of_a_runner_are_logged_with_its_name(clock, children):
    says = [*PYTHON, """print('{"event": "claimed orders-1"}', flush=True); import sys; sys.stdin.read()"""]
    told: list[str] = []

    manager = PoolManager(ONE, starter(children, clock, says), lambda: None, clock=clock, tell=told.append)

    def heard() -> bool:
        manager.step()
        return len(told) > 1

    wait_until(heard, "the runner has said something")

    assert told == [f"runner-1 started, pid {children[0].pid}", "runner-1 claimed orders-1"]


def test_a_runner_that_never_answers_is_killed_after_its_time_to_start_and_another_takes_its_place(clock, children):
    told: list[str] = []
    manager = PoolManager(ONE, starter(children, clock, SILENT), lambda: None, clock=clock, tell=told.append)
    for _ in range(round(START_MAX_S / PING_TIMEOUT_S)):
        manager.step()
        clock.advance(PING_TIMEOUT_S)
    before = [child.exit_code for child in children]
    manager.step()
    wait_until(lambda: children[0].exit_code is not None, "it is killed")
    clock.advance(60.0)
    manager.step()
    manager.step()

    assert before == [None]
    assert children[0].exit_code == -signal.SIGKILL
    assert "runner-1 killed: it did not start within 300 s" in told
    assert [child.name for child in children] == ["runner-1", "runner-2"]


CODES = [
    ("os.kill(os.getpid(), 9)", [("w-1", "its runner was killed by SIGKILL")]),
    ("sys.exit(9)", [("w-1", "its runner ended with exit code 9")]),
    ("sys.exit(0)", []),
]


@pytest.mark.parametrize(("end", "released"), CODES, ids=["killed", "ended", "left"])
def test_what_a_runner_held_that_ended_by_itself_is_released(clock, children, end, released):
    """A runner that leaves gracefully has reported the end of its run."""
    says = f"import os, sys\nsys.stdin.readline(); print({STATE!r}, flush=True); {end}"
    gone: list[tuple[str, str]] = []

    manager = PoolManager(
        ONE,
        starter(children, clock, [*PYTHON, says]),
        lambda: None,
        clock=clock,
        release=lambda worker_id, why: gone.append((worker_id, why)),
    )

    def replaced() -> bool:
        manager.step()
        return len(children) > 1

    wait_until(replaced, "another takes its place")

    assert gone[:1] == released


def test_the_service_gives_a_pool_the_time_it_needs_to_end():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(ROOT / "examples" / "nightly" / "loadgen-pool.service", "utf-8")
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])

    context = pool_run.make_context("run", words[words.index("run") + 1 :])

    grace_s = duration_s(context.params["grace"], "--grace")
    assert words[1:3] == ["pool", "run"]
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > grace_s + STOP_S + DRAIN_MARGIN_S
