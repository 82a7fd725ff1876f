"""Shells complete commands and options."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from loadgen.cli.main import main
from tests.processes import PATIENCE_S, PROGRAM, ROOT


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_names_the_program(shell, capfd):
    assert main(["completion", shell]) == 0

    assert "_LOADGEN_COMPLETE" in capfd.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("ru", ["run", "runs"]), ("runs re", ["recover"]), ("queue add --pri", ["--priority"]), ("completion z", ["zsh"])],
)
def test_bash_completes(typed, offered, tmp_path: Path):
    program = tmp_path / "loadgen"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n', "utf-8")
    program.chmod(0o755)
    words = ["loadgen", *typed.split()]
    script = (
        "source <(loadgen completion bash)\n"
        f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}\n"
        '_loadgen_completion loadgen; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}

    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environ, capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert done.stdout.split() == offered, done.stderr
