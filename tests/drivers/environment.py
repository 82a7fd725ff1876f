"""Environments for programs whose packages are not ours."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.embedded_server import reachable_directory

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


@contextmanager
def environment_of(lock: Path) -> Iterator[Path]:
    """The directory with the programs of a hashed lock, made with `uv` where there is one, and removed afterwards."""
    place = reachable_directory()
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
