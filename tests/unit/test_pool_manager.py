"""The manager of a pool and its runners' processes; runs behind a process guard. Real processes, moved clocks."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.cli.pool import runner as pool_runner
from loadgen.cli.pool import runner_command
from loadgen.control.tables.run_queue import ClaimedRun, QueueClaim
from loadgen.model.nightly import BaselineCheck
from orchestrator.nightly import process_guard
from orchestrator.nightly.attempt import LOADGEN_COMMAND, RunProcess, start_attempt
from orchestrator.nightly.pool import (
    FAILURES_MAX,
    MISSES_MAX,
    PING_S,
    PING_TIMEOUT_S,
    PoolFailed,
    PoolManager,
    PoolRules,
    RunnerProcess,
    serve_manager,
)
from orchestrator.nightly.queue import HostPermissions
from orchestrator.nightly.runner import RunnerState
from tests.fake_clock import FakeClock
from tests.processes import PATIENCE_S, alive, wait_until

PYTHON = [sys.executable, "-I", "-S", "-c"]
SILENT = [*PYTHON, "import sys; sys.stdin.read()"]
STATE = '{"worker_id": "w-1", "registered": true, "draining": false, "queue_id": null, "runs": 3, "idle_s": 1.5}'
ANSWERS = [
    *PYTHON,
    f"import sys\nfor line in sys.stdin: print({STATE!r} if line == 'ping 0\\n' else 'what?', flush=True)",
]
CLAIM = QueueClaim(queue_id="q", epoch=1, owner="o")


@pytest.fixture
def children(clock: FakeClock) -> Iterator[list[RunnerProcess]]:
    made: list[RunnerProcess] = []
    yield made
    for child in made:
        child.close()


# --- pings -----------------------------------------------------------------------------------------------------------


def test_a_runner_that_responds_reports_its_state(clock, children):
    child = RunnerProcess("a", ANSWERS, os.environ, clock)
    children.append(child)

    def answered() -> bool:
        child.step()
        return child.state is not None

    wait_until(answered, "it answers")

    assert child.state == RunnerState(**json.loads(STATE))
    assert (child.view().misses, child.view().runs, child.view().idle_s) == (0, 3, 1.5)


def test_pings_that_are_not_answered_are_missed_one_by_one(clock, children):
    child = RunnerProcess("a", SILENT, os.environ, clock)
    children.append(child)
    misses = []

    for _ in range(MISSES_MAX):
        child.step()
        clock.advance(PING_TIMEOUT_S - PING_S)
        child.step()
        clock.advance(PING_S)
        child.step()
        misses.append(child.view().misses)

    assert misses == [1, 2, 3]


def test_a_runner_with_a_drain_request_counts_as_draining_before_it_reports_it(clock, children):
    child = RunnerProcess("a", SILENT, os.environ, clock)
    children.append(child)

    child.drain()

    assert child.view().draining


# --- the manager -----------------------------------------------------------------------------------------------------


def test_runners_that_end_before_they_begin_are_started_less_often_and_then_no_more(clock, children):
    def start(name: str) -> RunnerProcess:
        child = RunnerProcess(name, [*PYTHON, "import sys; sys.exit(3)"], os.environ, clock)
        children.append(child)
        return child

    manager = PoolManager(PoolRules(min_runners=1, max_runners=1), start, lambda: None, clock=clock)

    for number in range(1, FAILURES_MAX + 1):
        clock.advance(60.0)
        manager.step()
        assert len(children) == number
        wait_until(lambda: children[-1].exit_code is not None, "it has ended")
        if number < FAILURES_MAX:
            manager.step()  # it is seen to have ended, and its successor has to wait
            assert len(children) == number

    with pytest.raises(PoolFailed):
        manager.step()


@pytest.mark.parametrize("share", [True, False])
def test_a_runner_understands_what_its_pool_passes_on(share):
    given = {
        "labels": ("zone=eu",),
        "lease": "9s",
        "poll": "1s",
        "grace": "8s",
        "output_dir": Path("r"),
        "program": None,
    }

    allowed = HostPermissions(variables=frozenset({"HOOK"}), connections=frozenset({"prod", "embedded"}))
    words = runner_command({**given, "share_warehouse": share}, allowed)
    context = pool_runner.make_context("runner", words[len(LOADGEN_COMMAND) + 2 :])

    assert {name: context.params[name] for name in given} == given
    assert context.params["share_warehouse"] is share
    assert HostPermissions.of_options(context.params) == allowed


# --- runs behind a process guard ------------------------------------------------------------------------------------


def started(folder: Path, code: str, *, stop_s: float = PATIENCE_S) -> RunProcess:
    wanted = ClaimedRun(name="n", scenario="text", files={"a/b.csv": "k\r\n"}, connection="prod", attempts=1, number=1)
    return start_attempt(CLAIM, wanted, folder, ["--share-warehouse"], program=[*PYTHON, code], stop_s=stop_s)


def ended(process: RunProcess) -> None:
    wait_until(lambda: process.exit_code is not None, "it has ended")


def test_a_run_finds_its_files_and_leaves_its_own(tmp_path):
    code = (
        "import os, sys; o = [w for w in sys.argv if w.startswith('--output-dir=')][0].split('=', 1)[1]\n"
        "os.mkdir(o + '/run-1'); open(o + '/run-1/words', 'w').write(' '.join(sys.argv))\n"
        "f = os.path.dirname(sys.argv[2])\n"
        "open(o + '/run-1/read', 'wb').write(open(f + '/a/b.csv', 'rb').read() + open(sys.argv[2], 'rb').read())\n"
        'print(\'{"exit_reason": "p95 is over"}\'); sys.exit(10)'
    )
    process = started(tmp_path, code)
    ended(process)
    result = process.result()
    process.close()

    assert (result.exit_code, result.run_id, result.reason) == (10, "run-1", "p95 is over")
    assert (tmp_path / "run-1" / "read").read_bytes() == b"k\r\ntext"
    words = (tmp_path / "run-1" / "words").read_text()
    assert "--connection=prod" in words
    assert "--share-warehouse" in words
    assert "--label=queue_id=q" in words
    assert list((tmp_path / ".queue").iterdir()) == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('error: boom')", "error: boom"),
        ('import sys; print(\'{"error": {"message": "no table"}}\'); sys.exit(1)', "no table"),
        ("import sys; sys.exit(1)", "it ended with 1 and printed nothing"),
        ("print('[1]'); import sys; sys.exit(1)", "it ended with 1 and printed nothing"),
        ("print('{\"error\": 1}'); import sys; sys.exit(1)", "it ended with 1 and printed nothing"),
    ],
    ids=["last words", "an error", "nothing", "something else", "a strange error"],
)
def test_the_reason_of_a_failed_run_is_its_error_message(tmp_path, code, reason):
    process = started(tmp_path, code)
    ended(process)
    result = process.result()
    process.close()

    assert (result.exit_code, result.run_id, result.reason) == (1, None, reason)


@pytest.mark.parametrize("name", ["scenario.yaml", "./scenario.yaml", "stdout", "out/x.csv", "in/x.csv"])
def test_the_names_of_value_files_never_overwrite_another_file(tmp_path, name):
    wanted = ClaimedRun(name="n", scenario="text", files={name: "values"}, connection=None, attempts=1, number=1)
    code = (
        f"import json, os, sys; f = sys.argv[2]; v = os.path.join(os.path.dirname(f), {name!r})\n"
        "print(json.dumps({'exit_reason': open(f).read() + ' ' + open(v).read()})); sys.exit(10)"
    )
    process = start_attempt(CLAIM, wanted, tmp_path, program=[*PYTHON, code])
    ended(process)
    result = process.result()
    process.close()

    assert (result.exit_code, result.reason) == (10, "text values")


def test_after_a_confirmation_run_the_files_of_both_are_kept_and_the_decisive_one_is_named(tmp_path):
    code = (
        "import os, sys; o = [w for w in sys.argv if w.startswith('--output-dir=')][0].split('=', 1)[1]\n"
        "assert {'--baseline=trend', '--confirm'} <= set(sys.argv), sys.argv\n"
        "for n in ('run-2', 'run-1'): os.mkdir(o + '/' + n)\n"
        'print(\'{"run_id": "run-2", "exit_reason": "worse"}\'); sys.exit(11)'
    )
    judging = BaselineCheck(baseline="trend", confirm=True)
    wanted = ClaimedRun(name="n", scenario="text", files={}, connection=None, attempts=1, number=1, judging=judging)
    process = start_attempt(CLAIM, wanted, tmp_path, program=[*PYTHON, code])
    ended(process)
    result = process.result()
    process.close()

    assert (result.exit_code, result.run_id, result.reason) == (11, "run-2", "worse")
    assert sorted(path.name for path in tmp_path.glob("run-*")) == ["run-1", "run-2"]
    assert list((tmp_path / ".queue").iterdir()) == []


@pytest.mark.parametrize(("code", "left"), [(75, []), (4, ["q.1"])], ids=["busy", "failed"])
def test_output_is_kept_only_of_failed_attempts(tmp_path, code, left):
    process = started(tmp_path, f"import sys; sys.exit({code})")
    ended(process)
    process.result()
    process.close()

    assert [path.name for path in (tmp_path / ".queue").iterdir()] == left


WAITS = "import signal, time, os, sys\n{}\nopen(os.path.dirname(sys.argv[2]) + '/ready', 'w').close()\nsignal.pause()"


@pytest.mark.parametrize(
    ("handler", "stop_s", "code"),
    [
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))", PATIENCE_S, 143),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))", PATIENCE_S, 0),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 0.2, 128 + signal.SIGKILL),
    ],
    ids=["obeys", "has a result", "does not obey"],
)
def test_a_run_is_asked_to_end_and_then_ended(tmp_path, handler, stop_s, code):
    process = started(tmp_path, WAITS.format(handler), stop_s=stop_s)
    wait_until(lambda: list(tmp_path.rglob("ready")), "it is ready")

    process.stop()
    ended(process)

    assert process.result().exit_code == code
    process.close()


def test_a_run_that_is_interrupted_gets_a_second_signal(tmp_path):
    """The first makes a run drain, which may take a while; the second cancels its statements."""
    waits_for_both = (
        "signal.signal(signal.SIGTERM, lambda *_: None); signal.signal(signal.SIGINT, lambda *_: sys.exit(130))"
    )
    process = started(tmp_path, WAITS.format(waits_for_both).replace("signal.pause()", "while True: signal.pause()"))
    wait_until(lambda: list(tmp_path.rglob("ready")), "it is ready")

    process.stop()
    process.interrupt()
    process.interrupt()
    ended(process)

    assert process.result().exit_code == 130
    process.close()


def test_the_grace_of_a_run_passes_however_often_it_is_asked_to_end(tmp_path):
    ignores = WAITS.format("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    process = started(tmp_path, ignores, stop_s=0.2)
    wait_until(lambda: list(tmp_path.rglob("ready")), "it is ready")

    def ended_meanwhile() -> bool:
        process.stop()
        return process.exit_code is not None

    wait_until(ended_meanwhile, "it is killed")

    assert process.result().exit_code == 128 + signal.SIGKILL
    process.close()


def test_a_run_ends_when_its_runner_is_killed(tmp_path):
    """The process guard sees the end of the pipe that only the runner held open."""
    marks = tmp_path / "marks"
    run = f"import os, signal\nopen({str(marks)!r}, 'w').write(str(os.getpid()) + chr(10))\nsignal.pause()"
    runner = (
        "import subprocess, sys, signal\n"
        f"p = subprocess.Popen([sys.executable, '-I', '-S', {process_guard.__file__!r}, '5', sys.executable,"
        f" '-c', {run!r}],"
        " stdin=subprocess.PIPE, process_group=0)\nsignal.pause()"
    )
    killed = subprocess.Popen([*PYTHON, runner])
    wait_until(lambda: marks.exists() and marks.read_text().endswith("\n"), "the run has begun")
    pid = int(marks.read_text())

    killed.kill()
    killed.wait()

    wait_until(lambda: not alive({pid}), "the run has ended")


# --- a runner and its manager ----------------------------------------------------------------------------------------


class Heard:
    """Replaces a runner, and ends when it has received enough."""

    def __init__(self, enough: int) -> None:
        self.done, self.guards, self._enough = threading.Event(), 0, enough
        self.graces: list[float | None] = []
        self.reasons: list[str] = []
        self.idle_beats_s: list[float | None] = []

    def set_idle(self, beat_s: float | None) -> None:
        self.idle_beats_s.append(beat_s)

    def drain(self, grace_s: float | None, why: str = "") -> None:
        self.reasons += [why] if why else []
        self.graces.append(grace_s)
        if len(self.graces) == self._enough:
            self.done.set()

    def interrupt(self, why: str) -> None:
        self.drain(0.0, why)

    def guard(self) -> None:
        self.guards += 1

    def take_events(self) -> list[str]:
        return []

    def state(self) -> RunnerState:
        return RunnerState(worker_id="w", registered=True, draining=False, queue_id="q", runs=1, idle_s=None)


@pytest.mark.parametrize(
    ("said", "received", "graces", "why"),
    [
        (b"drain\n", [], [None], set()),
        (b"", [], [9.0], {"its pool has ended"}),
        (b"drain\n", [15, 15], [None, 9.0, 0.0], {"its runner was asked to end (SIGTERM)"}),
    ],
    ids=["drain", "the manager is gone", "signals"],
)
def test_a_runner_leaves_when_it_is_asked_to(said, received, graces, why):
    reading, writing = os.pipe()
    heard = Heard(len(graces))
    os.write(writing, said)
    if not said:
        os.close(writing)

    serve_manager(heard, received, grace_s=9.0, reading=reading)  # type: ignore[arg-type]

    assert heard.graces == graces
    assert set(heard.reasons) == why
    os.close(reading)
    if said:
        os.close(writing)


def test_a_ping_is_answered_with_the_state_and_pieces_of_lines_are_put_together():
    (reading, to_runner), (from_runner, writing) = os.pipe(), os.pipe()
    heard = Heard(1)
    thread = threading.Thread(
        target=serve_manager,
        args=(heard, []),
        kwargs={"grace_s": 1.0, "reading": reading, "writing": writing},
        name="attend",
    )
    thread.start()
    os.write(to_runner, b"pi")
    os.write(to_runner, b"ng 600\nping 0")
    answer = os.read(from_runner, 4096)
    os.close(to_runner)
    thread.join()

    assert json.loads(answer) == dataclasses.asdict(heard.state())
    assert heard.guards > 0
    assert heard.idle_beats_s == [600.0]
    for descriptor in (reading, from_runner, writing):
        os.close(descriptor)
