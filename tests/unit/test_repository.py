"""Files outside the packages: lock files and scripts."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))


@pytest.mark.parametrize("name", LOCKS)
def test_locks_hold_pinned_hashed_packages_and_nothing_else(name):
    entry = re.compile(r"[a-z0-9-]+==[\w.]+(?: ; .+)? \\|    --hash=sha256:[0-9a-f]{64}(?: \\)?| *#.*")

    lines = (ROOT / name).read_text("utf-8").splitlines()

    assert [line for line in lines if not entry.fullmatch(line)] == []


def test_the_development_lock_adds_tools_to_the_run_time_lock():
    """Else an environment for development would not do for ./bin/loadgen, which takes it as it is."""
    runs, develops = (
        set(re.findall(r"^[a-z0-9-]+==[\w.]+", (ROOT / name).read_text("utf-8"), re.MULTILINE))
        for name in ("requirements.lock", "requirements-dev.lock")
    )

    assert runs < develops
    assert {entry.split("==")[0] for entry in develops - runs} >= {"mypy", "pytest", "ruff", "hypothesis"}


def test_scripts_can_be_started():
    scripts = [path for folder in ("bin", ".ci") for path in (ROOT / folder).glob("[!.]*") if path.is_file()]

    assert scripts
    assert [path for path in scripts if not os.access(path, os.X_OK)] == []
    assert [path for path in scripts if not path.read_text("utf-8").startswith("#!/")] == []
