"""Other load generators and drivers as processes: each is installed into a folder by its package manager.

A peer is a program with the arguments ADDRESS DATABASE CONNECTIONS WARM_S SECONDS. It reads one row by its key in a
closed loop on as many connections, prints `ready` after WARM_S seconds, and goes on until its standard input ends. With
SECONDS above 0 it goes on for as long, and prints a JSON object: the statements that began in that time, and their
p50_ms and p99_ms as the tool itself computes them. Its sessions have the tag `peer`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loadgen.snowflake import driver
from tests.perf._cleanup import kill, with_children

SOURCES = Path(__file__).parent / "peer_sources"
DRIVERS = Path(__file__).parents[1] / "drivers"
LOCUST = "locust==2.47.0"
INSTALL_S = 900.0
END_S = 60.0
TAG = "peer"
DIRECT = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "SNOWFLAKE_DISABLE_PLATFORM_DETECTION": "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a peer is installed: programs that must be there, files to copy, commands to run, and what starts it."""

    what: str
    needs: tuple[str, ...]
    files: Mapping[str, Path]
    commands: tuple[tuple[str, ...], ...]
    start: Callable[[Path], list[str]]


def _java(main: str) -> Callable[[Path], list[str]]:
    def start(place: Path) -> list[str]:
        settings = f"-Djava.util.prefs.userRoot={place}"
        return ["java", "-Dfile.encoding=UTF-8", settings, "-cp", f"{place}/lib/*:{place}", main]

    return start


MAVEN = ("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib")
JAVAC = ("javac", "-encoding", "UTF-8", "-cp", "lib/*")
RECIPES = {
    "locust": Recipe(
        what=f"Locust 2.47 with connector {driver.version()}",
        needs=(),
        files={"locust_users.py": SOURCES / "locust_users.py"},
        commands=(
            (sys.executable, "-m", "venv", "venv"),
            ("venv/bin/python", "-m", "pip", "install", "-qq", LOCUST, f"{driver.DISTRIBUTION}=={driver.version()}"),
        ),
        start=lambda place: [f"{place}/venv/bin/python", f"{place}/locust_users.py"],
    ),
    "jmeter": Recipe(
        what="JMeter 5.5 with snowflake-jdbc 3.24.2",
        needs=("mvn", "javac", "java"),
        files={"pom.xml": SOURCES / "jmeter.pom.xml", "JMeterPlan.java": SOURCES / "JMeterPlan.java"},
        commands=(MAVEN, (*JAVAC, "JMeterPlan.java")),
        start=_java("JMeterPlan"),
    ),
    "jdbc": Recipe(
        what="a loop over snowflake-jdbc 3.24.2",
        needs=("mvn", "javac", "java"),
        files={"pom.xml": DRIVERS / "jdbc" / "pom.xml", "Loop.java": SOURCES / "Loop.java"},
        commands=(MAVEN, (*JAVAC, "Loop.java")),
        start=_java("Loop"),
    ),
    "go": Recipe(
        what="a loop over gosnowflake 1.19.1",
        needs=("go",),
        files={
            "go.mod": DRIVERS / "go" / "go.mod",
            "go.sum": DRIVERS / "go" / "go.sum",
            "main.go": SOURCES / "main.go",
        },
        commands=(("go", "build", "-mod=readonly", "-o", "loop", "."),),
        start=lambda place: [f"{place}/loop"],
    ),
}


@dataclass(frozen=True, slots=True)
class Missing:
    """A peer that could not be installed, and why."""

    reason: str


def install(name: str, folder: Path) -> list[str] | Missing:
    """The command that starts a peer. What an earlier call has installed from the same files is used again."""
    recipe, place = RECIPES[name], folder / name
    absent = [program for program in recipe.needs if shutil.which(program) is None]
    if absent:
        return Missing(f"needs {', '.join(absent)}")
    stamp, mark = place / ".installed", _stamp(recipe)
    if not stamp.exists() or stamp.read_text("ascii") != mark:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for file, source in recipe.files.items():
            shutil.copy(source, place / file)
        for command in recipe.commands:
            problem = _problem_of(command, place)
            if problem is not None:
                return Missing(problem)
        stamp.write_text(mark, "ascii")
    return recipe.start(place)


def _stamp(recipe: Recipe) -> str:
    read = [source.read_bytes() for source in recipe.files.values()]
    return hashlib.sha256(b"\0".join([repr(recipe.commands).encode(), *read])).hexdigest()


def _problem_of(command: Sequence[str], place: Path) -> str | None:
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    said = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else f"{command[0]} ended with {done.returncode}: {said[-1] if said else ''}"


class PeerProcess:
    """One peer, running. Leaving the block ends it."""

    def __init__(self, command: Sequence[str], address: str, database: str, *numbers: float) -> None:
        """`numbers`: connections, seconds to warm up, seconds to measure or 0."""
        self._process = subprocess.Popen(
            [*command, address, database, *(f"{number:g}" for number in numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | DIRECT,
            start_new_session=True,  # as workers have: sessions share a core fairly
        )
        self.pids = (self._process.pid,)
        self._line(lambda line: line == "ready\n")

    def _line(self, wanted: Callable[[str], bool]) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # JMeter prints further lines between ours
            if wanted(line):
                return line
        raise AssertionError(f"{self._process.args!r} ended with {self._process.wait()}")

    def told(self) -> dict[str, Any]:
        """What it measured, once it has."""
        return dict(json.loads(self._line(lambda line: line.startswith("{"))))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S if kind is None else 0.0)
        except subprocess.TimeoutExpired:
            kill(with_children(self._process.pid))
            self._process.wait()
