"""The environments that the scripts of bin/ make: one .venv, which only grows. A stand-in for uv notes its calls."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S, ROOT

UV = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$CALLS"
if [[ $1 == venv ]]; then
    mkdir -p "${@: -1}/bin"
    ln -s "$PYTHON" "${@: -1}/bin/python"
fi
"""
RUN = ("requirements.lock", "requirements-dev.lock")  # what bin/loadgen asks for
DEVELOP = ("requirements-dev.lock",)  # bin/check and bin/test


class Checkout:
    """A folder with two locks, and a uv that installs nothing."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, root / "calls"
        for name in ("requirements.lock", "requirements-dev.lock"):
            (root / name).write_text(f"{name}\n")
        (root / "programs").mkdir()
        (root / "programs" / "uv").write_text(UV)
        (root / "programs" / "uv").chmod(0o755)
        # No site-packages of this environment: the script writes a .pth file into those of the new one.
        (root / "programs" / "fake-python").write_text(f'#!/bin/sh\ncase "$2" in *purelib*) echo {root};; esac\n')
        (root / "programs" / "fake-python").chmod(0o755)

    def ensure(self, *locks: str) -> list[str]:
        """The arguments of uv: [] when the environment was current."""
        self.calls.write_text("")
        script = f"root={self.root}; source {ROOT}/bin/.bootstrap; ensure_environment .venv {' '.join(locks)}"
        environ = {
            "PATH": f"{self.root}/programs:{os.environ['PATH']}",
            "CALLS": str(self.calls),
            "PYTHON": str(self.root / "programs" / "fake-python"),
        }
        subprocess.run(["bash", "-euo", "pipefail", "-c", script], env=environ, timeout=PATIENCE_S, check=True)
        return self.calls.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_run_needs_no_tools_for_development_and_takes_wheels_only(checkout: Checkout) -> None:
    made, installed = checkout.ensure(*RUN)

    assert made.startswith("venv ")
    assert "--require-hashes --only-binary :all:" in installed
    assert installed.endswith("/requirements.lock")
    assert checkout.ensure(*RUN) == []


def test_tools_are_added_to_what_is_there_and_nothing_takes_them_out(checkout: Checkout) -> None:
    checkout.ensure(*RUN)

    (installed,) = checkout.ensure(*DEVELOP)

    assert installed.endswith("/requirements-dev.lock")
    assert checkout.ensure(*DEVELOP) == checkout.ensure(*RUN) == []


def test_an_environment_for_development_serves_a_run(checkout: Checkout) -> None:
    assert len(checkout.ensure(*DEVELOP)) == 2

    assert checkout.ensure(*RUN) == []


@pytest.mark.parametrize("changed", [pytest.param(RUN[0], marks=pytest.mark.slow), RUN[1]])
def test_after_a_change_of_the_lock_it_is_made_anew(checkout: Checkout, changed: str) -> None:
    checkout.ensure(*(RUN if changed == "requirements.lock" else DEVELOP))

    (checkout.root / changed).write_text("another\n")

    assert len(checkout.ensure(changed)) == 2


def test_an_interrupted_addition_begins_anew(checkout: Checkout) -> None:
    checkout.ensure(*RUN)
    (checkout.root / ".venv" / ".stamp").unlink()

    assert len(checkout.ensure(*DEVELOP)) == 2


def test_the_image_of_a_worker_has_only_the_run_time_lock(checkout: Checkout) -> None:
    (checkout.root / "requirements-dev.lock").unlink()

    assert len(checkout.ensure(*RUN)) == 2
    assert checkout.ensure(*RUN) == []
