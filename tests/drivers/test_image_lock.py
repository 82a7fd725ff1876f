"""The image's build stage, played without Docker: the lock installs alone, and is all that a worker needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.environment import INSTALL_S
from tests.embedded_server import EmbeddedServer
from tests.kubernetes_cluster import SPAWNER, Cluster, login_secret
from tests.process.container_harness import ContainerHarness, result
from tests.processes import ROOT, make_reachable_directory

LOCK = "requirements-image.lock"
LIMIT_MB = 130  # of what the image adds to its base; docs/scaling.md has the figures
OF_VENV = ("setuptools", "pkg_resources", "_distutils_hack")  # Python 3.11 puts it there; that of the base does not
EXTRAS = {"sqlglot"}  # `loadgen capture`
MISSING = """
import importlib, pkgutil, loadgen, orchestrator
for package in (loadgen, orchestrator):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.startswith(("loadgen.embedded", "loadgen.__main__")):
            try:
                importlib.import_module(found.name)
                print("imported")
            except ModuleNotFoundError as error:
                print("missing", error.name)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def build_stage() -> list[list[str]]:
    """Its instructions, each with its text."""
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    stage = text.partition(" AS build\n")[2].partition("\nFROM ")[0].replace("${LOCK}", LOCK)
    return [line.split(maxsplit=1) for line in stage.splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """What the build stage makes of its folder, with the Python of this machine."""
    folder = make_reachable_directory()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LOADGEN_"))}
    try:
        for instruction, text in build_stage():
            if instruction == "COPY":
                source, target = text.split()
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / source, folder / target)
            elif instruction == "RUN":
                command = ["sh", "-ec", text]
                done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, timeout=INSTALL_S)
                assert done.returncode == 0, f"{text}: {done.stderr[-3000:]}"
        yield folder
    finally:
        shutil.rmtree(folder)


def test_workers_run_with_what_the_image_has_and_nothing_else(
    image: Path, server: EmbeddedServer, tmp_path: Path
) -> None:
    with Cluster(tmp_path, secrets={"snowflake": login_secret(server.host, server.port)}) as cluster:
        cluster.program, cluster.code = [str(image / "bin" / "loadgen")], image
        harness = ContainerHarness(server, tmp_path, SPAWNER, KUBECONFIG=str(cluster.kubeconfig))
        before = files_of(image)
        try:
            ended = result(harness.run("bench", warehouse="IMAGE_WH", duration="2s"))
        finally:
            harness.close()

    assert ended["status"] == "COMPLETED", ended  # INVALID where the machine is too busy
    assert ended["totals"]["succeeded"] > 0
    assert files_of(image) == before  # so its file system may be read-only


def test_every_module_finds_its_packages_but_those_of_extras(image: Path) -> None:
    command: list[str | Path] = [image / ".venv" / "bin" / "python", "-P", "-c", MISSING]

    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={"PATH": os.environ["PATH"]})

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("imported") > 150
    assert {line.split()[1] for line in done.stdout.splitlines() if line.startswith("missing")} == EXTRAS


def test_the_image_adds_little_to_its_base(image: Path) -> None:
    (packages,) = image.glob(".venv/lib/python3*/site-packages")
    sizes_mb = {one.name: size_mb(one) for one in packages.iterdir() if not one.name.startswith(OF_VENV)}
    program_mb = sum(size_mb(one) for one in image.iterdir() if one.name != ".venv")

    print(f"\n{sum(sizes_mb.values()):.1f} MB of packages, {program_mb:.1f} MB of the program")
    for name in sorted(sizes_mb, key=lambda one: -sizes_mb[one])[:8]:
        print(f"{sizes_mb[name]:6.1f} MB {name}")
    assert sum(sizes_mb.values()) + program_mb < LIMIT_MB
    assert not [one for one in files_of(image) if re.search(r"/(tests|pip|pygments)/|\.pyi$", one)]


def files_of(folder: Path) -> dict[str, int]:
    found = [Path(place) / name for place, _, names in os.walk(folder) for name in names]
    return {str(file): file.lstat().st_size for file in found}


def size_mb(path: Path) -> float:
    return sum(files_of(path).values()) / 1e6 if path.is_dir() else path.stat().st_size / 1e6
