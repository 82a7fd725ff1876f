"""The command line in a separate process, with an empty home folder and environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.processes import PATIENCE_S, PROGRAM, ROOT, start_program

Ask = Callable[..., tuple[int, str, str]]  # a command in this process: its exit code, what it printed, and its errors


class Shell:
    """Starts `loadgen` with the connections that were written here, and no others."""

    def __init__(self, home: Path) -> None:
        self.folder = home / ".snowflake"
        self.folder.mkdir()
        self.environ = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}

    def write(self, text: str, mode: int = 0o600) -> Path:
        """connections.toml"""
        path = self.folder / "connections.toml"
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return path

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.python(*PROGRAM[1:], *words, **variables)

    def python(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env={**self.environ, **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return start_program(words, self.environ, self.folder)
