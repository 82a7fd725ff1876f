"""What ./bin/test runs: pytest in a few processes, with connector 5 and then, for the contract tests, with connector 4.

This process owns everything that the tests start. It is the subreaper (Linux): a process whose parent has died becomes
its child, so nothing that a test starts can escape. A process that is left when pytest has ended is killed here, and
is an error.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil

from tests.browser.chromium import find_browser

ROOT = Path(__file__).resolve().parent.parent
CONNECTOR_4 = ".venv-connector4"
PR_SET_CHILD_SUBREAPER = 36
# pytest ends its workers within 10 s of an interrupt, and they end what they started.
INTERRUPT_S = 30.0
LEFT_BEHIND_S = 10.0
# Of four processes, two make runs and mostly wait for them, and two compute at a low priority (tests/conftest.py). More
# processes would need more processor time than there is, and runs whose client waits for it are INVALID.
JOBS = 2 + len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4
NARROWING = ("-k", "-m")
TAKES_A_VALUE = (
    "-c",
    "-o",
    "-p",
    "-W",
    "--junit-xml",
    "--junitxml",
    "--log-file",
    "--rootdir",
    "--basetemp",
    "--ignore",
)
NOT_CAPTURED = re.compile(r"-[xvql]*s[xvqls]*|--capture=no")  # -s, also combined with other flags: -xs
USAGE = """./bin/test [--slow] [--connector 4|5] [--jobs N] [PYTEST ARGUMENTS]

  ./bin/test                        everything that is not slow; the contract tests with both connector majors
                                    (where the driver makes no difference, only with the newer one)
  ./bin/test -x --durations=20      the same, with these options of pytest
  ./bin/test --slow                 the slow ones as well, and every contract test with both
  ./bin/test tests/unit -k lease    a part, named by paths, -k or -m, in .venv; paths are relative to the project
  ./bin/test -s                     in one process, as with --pdb, --trace, --capture=no and -p no:xdist
  ./bin/test --connector 4 [...]    in .venv-connector4 only; tests/contract unless a path is given
  ./bin/test -m live                tests that need a Snowflake account"""


def main(words: Sequence[str]) -> int:
    options, arguments = parse(words)
    become_subreaper()
    runs = commands(options, arguments)
    with compiled_tests() if any("-n" in command for _, command in runs) else nullcontext():
        if any(CONNECTOR_4 in command[0] for _, command in runs):
            ensure_connector_4()
        if any(needs_browser(command) for _, command in runs):
            ensure_browser()
    codes = []
    for environ, command in runs:
        code, interrupted = run(environ, command)
        codes.append(code)
        if interrupted:
            end_descendants(0.0)
            return 128 + interrupted
    left = end_descendants(LEFT_BEHIND_S)
    if left:
        print("error: the tests left processes behind:", *left, sep="\n  ", file=sys.stderr)
        codes.append(1)
    return next(filter(None, codes), 0)


@contextmanager
def compiled_tests() -> Iterator[None]:
    """In a new checkout pytest compiles every test module, which takes longer than many tests. It is done once here,
    while packages are installed; otherwise each pytest process would do it."""
    if sys.pycache_prefix is None or Path(sys.pycache_prefix, *(ROOT / "tests" / "unit").parts[1:]).exists():
        yield
        return
    words = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL):
        yield


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of this program, and those of pytest."""
    parser = argparse.ArgumentParser(usage=USAGE, add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--connector", choices=("4", "5"))
    parser.add_argument("--jobs", type=int, default=JOBS)
    options, arguments = parser.parse_known_args(words)
    if options.help:
        print(f"usage: {USAGE}")
        raise SystemExit(0)
    return options, arguments


def commands(options: argparse.Namespace, arguments: list[str]) -> list[tuple[dict[str, str], list[str]]]:
    """The requested runs of pytest, one after the other: an environment and a command each."""
    paths = paths_in(arguments)
    narrowed = bool(paths) or any(word.startswith(NARROWING) for word in arguments)
    spread = not in_one_process(arguments)
    runs = []
    if options.connector != "4":
        runs.append(pytest_run("5", options, arguments, parallel=spread and (not narrowed or bool(options.connector))))
    if options.connector == "4" or (options.connector is None and not narrowed):
        words = arguments if paths else [*arguments, "tests/contract"]
        runs.append(pytest_run("4", options, words, parallel=spread and not paths))
    return runs


def paths_in(arguments: Sequence[str]) -> list[str]:
    """The paths to test; the value of an option may be the name of a file, too."""
    words = [word for before, word in itertools.pairwise(["", *arguments]) if before not in TAKES_A_VALUE]
    return [word for word in words if not word.startswith("-") and (ROOT / word.split("::")[0]).exists()]


def in_one_process(arguments: Sequence[str]) -> bool:
    """Whether the options exclude several processes: a debugger, and unbuffered output."""
    return is_interactive(arguments) or "no:xdist" in " ".join(arguments) or any(map(NOT_CAPTURED.fullmatch, arguments))


def is_interactive(arguments: Sequence[str]) -> bool:
    return "--pdb" in arguments or "--trace" in arguments


def pytest_run(
    connector: str, options: argparse.Namespace, arguments: list[str], *, parallel: bool
) -> tuple[dict[str, str], list[str]]:
    marks = ["not live"] if options.slow else ["not slow", "not live"]
    environ = dict(os.environ)
    interpreter = sys.executable
    if connector == "4":
        # The packages of the embedded server are in the main environment only: tests start it with that interpreter.
        environ["LOADGEN_SERVER_PYTHON"] = sys.executable
        interpreter = str(ROOT / CONNECTOR_4 / "bin" / "python")
        marks += [] if options.slow or paths_in(arguments) != ["tests/contract"] else ["not any_driver"]
    # Scheduled by tests/conftest.py in its groups and in its order, not by number of tests.
    spread = ["-n", str(options.jobs), "--dist", "loadfile", "--no-loadscope-reorder"] if parallel else []
    return environ, [interpreter, "-m", "pytest", "-m", " and ".join(marks), *spread, *arguments]  # a later -m wins


def ensure_connector_4() -> None:
    script = f"set -euo pipefail; source bin/.bootstrap; ensure_environment {CONNECTOR_4} requirements-connector4.lock"
    made = subprocess.run(["bash", "-c", script], cwd=ROOT, env=os.environ | {"root": str(ROOT)})
    if made.returncode:
        raise SystemExit(made.returncode)


def needs_browser(command: list[str]) -> bool:
    paths = [word for word in command if word.startswith("tests")]
    return CONNECTOR_4 not in command[0] and (not paths or any(word.startswith("tests/browser") for word in paths))


def ensure_browser() -> None:
    """Chromium is installed where possible; elsewhere tests/browser is skipped with a reason, and fails in CI."""
    if find_browser() or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print("loadgen: installing Chromium with apt-get, for tests/browser; this happens once", file=sys.stderr)
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        done = subprocess.run(["apt-get", "-qq", *words], env=environ, stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode:
            print(f"loadgen: `apt-get {' '.join(words)}` failed", file=sys.stderr)
            return


def run(environ: dict[str, str], command: list[str]) -> tuple[int, int]:
    """The exit code, and the signal that ended pytest, or 0. A typed Ctrl-C reaches pytest once, forwarded from
    here."""
    received: list[int] = []
    # Handlers are set before the start: pytest would inherit an ignored SIGINT (a job in the background).
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda number, _frame: received.append(number))
    debugged = is_interactive(command)  # started on a terminal, whose Ctrl-C reaches pytest directly
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdin=None if debugged else subprocess.DEVNULL,
        process_group=None if debugged else 0,
    )
    while not received:
        try:
            return child.wait(0.5), 0
        except subprocess.TimeoutExpired:
            continue
    if not debugged:
        child.send_signal(signal.SIGINT)
    try:
        return child.wait(INTERRUPT_S), received[0]
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait(), received[0]


def become_subreaper() -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(timeout_s: float) -> list[str]:
    """Ends the processes that still run after this time; returns the command lines of those that had to be ended."""
    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout_s)
    told = []
    for process in alive:
        try:
            told.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, LEFT_BEHIND_S)
    return told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
