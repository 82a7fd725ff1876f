"""The file in which the models of warehouses survive a restart: private, and read as foreign input."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadgen.embedded.admin import MODELS_FILE, WarehouseModels
from loadgen.embedded.event_loop import WakeupTimer
from loadgen.embedded.warehouse import VirtualWarehouses, WarehouseModel
from loadgen.errors import EmbeddedServerError
from tests.process.served import copied_data, refused, serving
from tests.processes import reachable_directory

NAME = "KEPT_WH"
MODEL = {"slots": 2, "service_time": "20ms"}
ENTRY = {"id": "00" * 8, "model": MODEL, "processes": {}}


def restored(folder: Path) -> WarehouseModel:
    """The model that a server started on the folder has for the warehouse."""

    async def restore() -> WarehouseModel:
        alarm = WakeupTimer(time.monotonic)
        warehouses = VirtualWarehouses(
            monotonic_s=time.monotonic, now_ms=lambda: 0.0, sleeper=alarm, default=WarehouseModel()
        )
        try:
            WarehouseModels(warehouses, folder)
            return warehouses.model_of(NAME)
        finally:
            alarm.close()

    return asyncio.run(restore())


def write(folder: Path, content: Any, mode: int = 0o600) -> Path:
    path = folder / MODELS_FILE
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    path.chmod(mode)
    return path


def test_models_survive_a_restart_with_their_processes_in_a_file_for_the_owner_alone() -> None:
    with reachable_directory() as path:
        with serving(copied_data(path / "data")) as server:
            body = MODEL | {"name": NAME, "pid": os.getpid()}
            before = server.ask("/__loadgen/warehouses", method="POST", body=body)
            mode = stat.S_IMODE((path / "data" / MODELS_FILE).stat().st_mode)
            server.process.kill()
            server.process.wait()
        with serving(path / "data") as server:
            after = server.ask(f"/__loadgen/warehouses?name={NAME}")
            with pytest.raises(Exception, match="409"):
                server.ask("/__loadgen/warehouses", method="POST", body={"name": NAME, "slots": 3, "pid": 1})

    assert mode == 0o600
    assert before == after
    assert before["id"]


def test_a_model_goes_with_the_last_of_its_processes(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as ended:
        started_s = psutil.Process(ended.pid).create_time()
    own_s = psutil.Process().create_time()

    found = {}
    for case, processes in {
        "none": {},
        "ended": {ended.pid: started_s},
        "another with its number": {os.getpid(): own_s - 60},
        "one runs": {ended.pid: started_s, os.getpid(): own_s},
    }.items():
        write(tmp_path, {NAME: ENTRY | {"processes": processes}})
        found[case] = restored(tmp_path).slots

    assert found == {"none": 2, "ended": 0, "another with its number": 0, "one runs": 2}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '"text"',
        "[" * 100_000,
        '{"A": 1}',
        {NAME: ENTRY | {"id": 7}},
        {NAME: ENTRY | {"id": "../.."}},
        {NAME: ENTRY | {"model": MODEL | {"slots": -1}}},
        {NAME: ENTRY | {"model": MODEL | {"service_time": "fast"}}},
        {NAME: ENTRY | {"model": {"pid": "1"}}},
        {NAME: ENTRY | {"processes": {"-1": 0}}},
        {NAME: ENTRY | {"processes": {"1": "soon"}}},
        {"N" * 300: ENTRY},
        {"": ENTRY},
    ],
    ids=lambda content: str(content)[:40],
)
def test_what_is_no_file_of_models_is_refused(tmp_path: Path, content: Any) -> None:
    path = write(tmp_path, content)

    with pytest.raises(EmbeddedServerError, match="contains no warehouse models") as caught:
        restored(tmp_path)

    assert str(path) in caught.value.remedy


def test_a_file_of_models_that_others_could_read_or_plant_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {NAME: ENTRY}, mode=0o644)
    with pytest.raises(EmbeddedServerError, match="is accessible to other users"):
        restored(tmp_path)
    path.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o600)
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(EmbeddedServerError, match="cannot read the file of warehouse models"):
        restored(tmp_path)


def test_a_server_names_the_file_that_keeps_it_from_starting() -> None:
    with reachable_directory() as path:
        with serving(copied_data(path / "data")):
            pass
        file = write(path / "data", "nonsense")

        code, error, hint = refused(path / "data")

    assert code == 4
    assert str(file) in error
    assert hint.startswith(f"hint: Remove {file}")
