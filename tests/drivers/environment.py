"""Environments for programs whose packages are not ours."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.model.capture import RecordedStatement, check_header
from loadgen.workload.replay import bound_value
from tests.embedded_server import EmbeddedServer
from tests.processes import make_reachable_directory

INSTALL_S = 500.0
DIRECT = os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "TZ": "UTC"}


def output_of(place: Path, limit_s: float, *words: str) -> str:
    """What a program printed that must succeed."""
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=limit_s, env=DIRECT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def checks_in(printed: str) -> dict[str, str]:
    """Lines of a name, a tab and a value."""
    return dict(line.split("\t", 1) for line in printed.splitlines() if "\t" in line)


@dataclass(frozen=True)
class Captured:
    """What a driver executed, as `loadgen capture` has recorded it."""

    driver: str
    server: EmbeddedServer
    manifest: dict[str, Any]
    statements: list[RecordedStatement]

    @property
    def left_out(self) -> dict[str, int]:
        return {reason: count for reason, count in self.manifest["left_out"].items() if count}

    def execute(self, one: RecordedStatement) -> list[Any]:
        """Its rows, when it is sent again as a replay sends it."""
        with self.server.connect(database=one.database, schema=one.schema, warehouse="BENCH_WH") as connection:
            return list(connection.cursor().execute(one.sql, values_of(one) or None).fetchall())


def values_of(one: RecordedStatement) -> tuple[Any, ...]:
    """What a replay binds."""
    return tuple(bound_value(bind) for bind in one.binds)


def captured_from(driver: str, server: EmbeddedServer, warehouse: str, out: Path) -> Captured:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOADGEN_EMBEDDED_ADDRESS", server.address)
        words = ["-c", "embedded", "--warehouse", warehouse, "--from", "1h", "--keep-values", "--out", str(out)]
        assert main(["capture", *words]) == 0
    with gzip.open(out / "statements.jsonl.gz", "rt", encoding="utf-8") as file:
        check_header(file.readline())
        statements = [RecordedStatement.of_line(line) for line in file]
    return Captured(driver, server, json.loads((out / "capture.json").read_text("utf-8")), statements)


@contextmanager
def environment_of(lock: Path) -> Iterator[Path]:
    """The directory with the programs of a hashed lock, made with `uv` where there is one, and removed afterwards."""
    place = make_reachable_directory()
    venv = place / "venv"
    python = venv / "bin" / "python"
    commands: list[list[str | Path]]
    if shutil.which("uv") is not None:
        commands = [
            ["uv", "venv", "--quiet", "--no-project", "--python", sys.executable, venv],
            ["uv", "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", lock],
        ]
    else:
        commands = [
            [sys.executable, "-m", "venv", venv],
            [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--require-hashes", "-r", lock],
        ]
    try:
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
            assert done.returncode == 0, f"could not install {lock.name}: {done.stderr[-3000:]}"
        yield venv / "bin"
    finally:
        shutil.rmtree(place)
