"""Settings of pytest, and the fixtures that several folders share.

One embedded server serves all tests of a pytest process. Each test has a separate database, and a separate warehouse
where it needs slots or service times (`EmbeddedServer.model`, or `embedded:` of a scenario). A test that kills or stops
a server starts its own server.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import re
import shlex
import signal
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from loadgen.cli.main import main
from loadgen.snowflake.driver import spare_lsb_release
from tests.command_line import Ask, Shell
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer
from tests.fake_clock import FakeClock
from tests.processes import ROOT

# A deadline or a limit on the duration of examples would measure the machine. The same examples are tried every time,
# unless others are requested, so that a failure can be repeated.
DERANDOMIZED = os.environ.get("LOADGEN_HYPOTHESIS") != "random"
settings.register_profile(
    "loadgen",
    deadline=None,
    max_examples=40 if DERANDOMIZED else 200,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=DERANDOMIZED,
)
settings.load_profile("loadgen")
if DERANDOMIZED:
    # Hypothesis also draws constants of the modules that happen to be imported, which differ by pytest process.
    setattr(providers, "is_local_module_file", lambda _: False)  # noqa: B010  (private)

# Files that import one of these, and the test of the README, make runs. A run is INVALID if its client does not get a
# core. The other files use the remaining processor time, at a low priority.
MAKES_RUNS = re.compile(
    r"tests\.process\.(?:run_harness|run_commands|container_harness|pool_harness|worker_driver)\b|^README = ",
    re.MULTILINE,
)
NICENESS = 5  # a third of the weight: they still make progress on a busy machine
AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
ONE_BROWSER = "tests/browser/"  # its start costs as much as ten pages
# Files whose tests share nothing but a server: they are divided among several processes.
DIVIDED_FILES = {
    "tests/process/test_examples.py",
    *(f"tests/unit/test_simulation{part}.py" for part in ("", "_find_max", "_flat", "_rate", "_stages")),
}
# Started first: started last, they would keep one core busy while the other one is idle.
LONG_FILES = DIVIDED_FILES | {
    f"tests/process/test_{name}.py"
    for name in ("experiment", "examples_short", "readme", "run", "runs", "slow_control_plane", "worker_faults")
}
GC_THRESHOLD = 20_000  # ten thousand tests are collected once and kept
_numbers = itertools.count(1)


def pytest_configure() -> None:
    gc.set_threshold(GC_THRESHOLD)
    gc.disable()  # until all tests are collected
    if os.environ.get("PYTEST_XDIST_WORKER") and not _is_measuring(os.environ["PYTEST_XDIST_WORKER"]):
        yield_to_measurements()
    restore_signals()
    spare_lsb_release(os.environ)  # a test run has thousands of logins


def yield_to_measurements() -> None:
    """Leave the processor to the runs of other tests. A low priority is not enough: on Linux 6.18, threads of a run
    woke up 40 ms late (p99) beside simulations with niceness 5, and 10 ms late beside simulations scheduled as idle.

    An idle process has next to no weight, so it gets a separate session: Linux schedules sessions against each other
    first (autogroup), and busy programs of another session do not stop it.
    """
    os.nice(NICENESS)
    if AUTOGROUP.exists() and AUTOGROUP.read_text().strip() == "1":
        os.setsid()
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def restore_signals() -> None:
    """Programs that tests start get the default dispositions, also when this was started by nohup or in the background.

    An ignored signal stays ignored in children; a handler does not.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, lambda *_: None),
        (signal.SIGQUIT, lambda *_: None),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


class Groups(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types for it
    """One pytest process takes a whole file, so that its fixtures are made once; DIVIDED_FILES go to several."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        if file.startswith(ONE_BROWSER):
            return ONE_BROWSER
        return f"{file} {zlib.crc32(nodeid.encode()) % 4}" if file in DIVIDED_FILES else file

    def _assign_work_unit(self, node: Any) -> None:
        """Assign the next file to this process, long files first. A process for runs takes other files when it has no
        runs left."""
        measures = _is_measuring(node.gateway.id)
        own = [scope for scope in self.workqueue if _makes_runs(scope.split()[0]) is measures]
        found = next((scope for scope in own if scope.split()[0] in LONG_FILES), own[0] if own else None)
        if found is None and not measures:
            node.shutdown()
            return
        if found is not None:
            self.workqueue.move_to_end(found, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)  # the hook does not exist with -p no:xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)


def pytest_collection_finish() -> None:
    gc.freeze()  # what exists now is kept until the end
    gc.enable()


@cache
def _makes_runs(file: str) -> bool:
    return file != ONE_BROWSER and MAKES_RUNS.search((ROOT / file).read_text("utf-8")) is not None


def _is_measuring(worker: str) -> bool:
    """Every other pytest process of gw0, gw1, … runs the tests that make runs."""
    return int(worker.removeprefix("gw")) % 2 == 0


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """The shared embedded server of this pytest process. It is strict: no test may rely on undocumented behaviour.

    LOADGEN_TEST_SERVER_OPTIONS adds options to it: `--control-latency 50ms --control-schema *.CONTROL`.
    """
    with EmbeddedServer("--strict-hybrid", *shlex.split(os.environ.get("LOADGEN_TEST_SERVER_OPTIONS", ""))) as running:
        yield running


@pytest.fixture(scope="session")
def planes(server: EmbeddedServer) -> Iterator[list[ControlPlane]]:
    """The control plane of the previous file, if it can be reused: migrations take longer than emptying the tables."""
    kept: list[ControlPlane] = []
    yield kept
    for plane in kept:
        plane.close()


@pytest.fixture(scope="module")
def plane(server: EmbeddedServer, planes: list[ControlPlane]) -> Iterator[ControlPlane]:
    """The empty tables of a control plane, for the tests of one file."""
    used = planes.pop() if planes else ControlPlane(server)
    yield used
    if used.reset():
        planes.append(used)
    else:
        used.close()


@pytest.fixture
def ask(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Commands on the control plane of the file."""
    for name, value in plane.environ.items():
        monkeypatch.setenv(name, value)

    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, "-c", "embedded", "--database", plane.place.database])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture(autouse=True)
def no_faults_left(request: pytest.FixtureRequest) -> Iterator[None]:
    server = request.getfixturevalue("server") if "server" in request.fixturenames else None
    yield
    if isinstance(server, EmbeddedServer):
        server.clear_faults()


@pytest.fixture
def database() -> str:
    return f"TEST_{next(_numbers)}"


@pytest.fixture
def connect(server: EmbeddedServer, database: str) -> Iterator[Callable[..., Any]]:
    """Opens connections to the database of the test. They are closed at the end of the test."""
    opened: list[Any] = []

    def open_connection(**more: Any) -> Any:
        settings: dict[str, Any] = {"database": database, "schema": "PUBLIC"} | more
        connection = server.connect(**settings)
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        connection.close()


@pytest.fixture
def connection(connect: Callable[..., Any]) -> Any:
    return connect()


@pytest.fixture
def cursor(connection: Any) -> Any:
    return connection.cursor()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Restores what loadgen.log.configure() changes."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
