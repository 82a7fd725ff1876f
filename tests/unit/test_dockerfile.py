"""The image of a worker is not built here; what its Dockerfile names must be there."""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files
from pathlib import Path

from tests.processes import ROOT

LINES = [
    line for line in (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines() if line[:1] not in "#"
]
HOME = "/opt/loadgen"


def words(instruction: str) -> list[list[str]]:
    return [line.split()[1:] for line in LINES if line.split()[:1] == [instruction]]


def copied() -> dict[str, str]:
    """What is copied, by where it is then."""
    return {f"{HOME}/{source.rstrip('/')}": source for source, _ in words("COPY")}


def here(path: str) -> Path:
    """Where a file of the image comes from."""
    inside = Path(path)
    assert any(str(inside).startswith(f"{place}/") or str(inside) == place for place in copied()), path
    return ROOT / inside.relative_to(HOME)


def test_everything_that_is_copied_is_there_and_keeps_its_name() -> None:
    assert words("WORKDIR") == [[HOME]]
    for source, target in words("COPY"):
        assert (ROOT / source).exists(), source
        assert target in (source, "./")
    needed = {"loadgen/", "orchestrator/", "schemas/", "bin/", "requirements.lock"}
    assert set(copied().values()) == needed


def test_what_is_copied_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == {one.rstrip("/") for one in copied().values()}


def test_what_is_started_can_be_started_by_a_user_without_rights() -> None:
    (entry,) = (line.removeprefix("ENTRYPOINT ") for line in LINES if line.startswith("ENTRYPOINT "))
    (program,) = json.loads(entry)
    assert program == f"{HOME}/bin/run_worker"
    assert os.access(here(program), os.X_OK)
    (user,) = words("USER")
    assert user not in (["root"], ["0"])
    assert f"useradd --create-home --uid 10001 {user[0]}" in "\n".join(LINES)


def test_the_command_of_the_job_is_found_in_the_image() -> None:
    specification = (files("schemas") / "spcs" / "worker.yaml").read_text("utf-8")
    found = re.search(r'command: \["(\w+)"', specification)
    assert found is not None
    assert f'PATH="{HOME}/bin:$PATH"' in "\n".join(LINES)
    assert os.access(here(f"{HOME}/bin/{found[1]}"), os.X_OK)


def test_its_base_is_pinned_and_has_a_python_that_loadgen_supports() -> None:
    assert words("FROM") == [["${BASE}"]]
    ((base,),) = words("ARG")
    assert re.fullmatch(r"BASE=python:3\.1[1-9]-slim-\w+@sha256:[0-9a-f]{64}", base)
    assert "python_requires = >=3.11" in (ROOT / "setup.cfg").read_text("utf-8")
