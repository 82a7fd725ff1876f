"""Warehouses that an experiment creates for its arms: they exist while it measures, and are dropped at every end."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from loadgen.clock import SystemClock
from loadgen.errors import ConfigurationError, LoadgenError
from loadgen.scenario.experiment import read_experiment
from loadgen.scenario.model import with_workers
from orchestrator.experiment.warehouse_settings import (
    ArmWarehouseSettings,
    WarehouseReplaced,
    restore_left_settings,
    worst_cases,
)
from tests.control_plane import ControlPlane, retries
from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import scenario

pytestmark = pytest.mark.any_driver


class Made:
    """An experiment whose arm `new` has a warehouse that is not there yet."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.said = plane, list[str]()
        self.name = f"MADE_{uuid.uuid4().hex[:12].upper()}"
        self.experiment_id = f"experiment-{self.name.lower().replace('_', '-')}"
        load = {"connections": 1, "workers": 1, "duration": "1s"}
        target = {"warehouse": "USUAL_WH", "database": "BENCH", "schema": "PUBLIC"}
        (folder / "s.yaml").write_text(json.dumps(scenario(0, name="made", load=load, target=target)))
        arms = {
            "usual": {},
            "new": {"warehouse": {"name": self.name, "create": True, "size": "Medium", "max_clusters": 2}},
        }
        document = {"version": 1, "name": "made", "scenario": "s.yaml", "arms": arms, "reference": "usual"}
        file = folder / "e.yaml"
        file.write_text(json.dumps(document | {"metrics": {"p50": "5%"}}))
        self.loaded = read_experiment(file, environ=plane.environ)
        self.scenarios = {name: with_workers(arm.scenario, 1) for name, arm in self.loaded.arms.items()}
        self.settings = ArmWarehouseSettings(
            self.loaded,
            self.scenarios,
            plane.place,
            clock=SystemClock(),
            tell=self.said.append,
            wait=True,
        )

    def apply(self) -> None:
        self.settings.apply("new", self.experiment_id, 1, threading.Event())

    def restore(self) -> None:
        self.settings.restore(threading.Event())

    def recover(self) -> list[tuple[bool, str]]:
        done = restore_left_settings(self.plane.session, retries(), clock=SystemClock())
        return [(one.restored, one.why) for one in done if one.experiment_id == self.experiment_id]

    def shown(self) -> list[tuple[Any, ...]]:
        return self.plane.rows(f"SHOW WAREHOUSES LIKE '{self.name}'")


@pytest.fixture
def made(plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    for name, value in plane.environ.items():
        monkeypatch.setenv(name, value)
    return Made(plane, tmp_path)


def test_a_warehouse_is_made_with_its_settings_and_dropped_at_the_end(made: Made) -> None:
    made.apply()
    (row,) = made.shown()
    assert {"SUSPENDED", "Medium", f"made by loadgen experiment {made.experiment_id}"} <= set(row)
    made.apply()  # before the next measurement
    made.settings.apply("usual", made.experiment_id, 1, threading.Event())

    made.restore()

    assert made.shown() == []
    assert made.said == [f'warehouse "{made.name}" is created', f'warehouse "{made.name}" is dropped']
    assert made.recover() == []


def test_the_worst_case_of_a_budget_makes_no_warehouse(made: Made) -> None:
    usual, new = (worst_cases(made.loaded, made.scenarios)[name] for name in ("usual", "new"))

    assert made.shown() == []
    assert usual is not None
    assert new is not None
    assert new > usual  # Medium, and two clusters


def test_a_warehouse_that_a_killed_experiment_has_made_is_dropped_by_recover(made: Made) -> None:
    made.apply()

    assert made.recover() == [(True, "")]

    assert made.shown() == []
    assert made.recover() == []


def test_an_experiment_that_goes_on_in_another_process_makes_its_warehouse_anew(made: Made) -> None:
    made.apply()
    made.settings._before.clear()  # what only the first process knew
    made.settings._made.clear()

    made.settings.apply("new", made.experiment_id, 2, threading.Event())

    assert len(made.shown()) == 1
    made.restore()
    assert made.shown() == []
    assert made.recover() == []


def test_a_warehouse_that_is_there_already_is_not_touched(made: Made) -> None:
    made.plane.change(f"CREATE WAREHOUSE {made.name}")

    with pytest.raises(ConfigurationError, match="already exists, and create: true makes a new one") as caught:
        made.apply()

    assert caught.value.exit_code == 2
    made.restore()
    assert len(made.shown()) == 1


def test_a_warehouse_that_others_have_replaced_is_neither_altered_nor_dropped(made: Made) -> None:
    made.apply()
    made.plane.change(f"CREATE OR REPLACE WAREHOUSE {made.name} COMMENT = 'mine'")

    before = made.shown()
    for action in (made.apply, made.restore):
        with pytest.raises(WarehouseReplaced, match=r"is not the one that experiment .* has created"):
            action()

    ((restored, why),) = made.recover()
    assert not restored
    assert "DROP" not in "".join([why, *made.said])
    assert made.shown() == before


@pytest.mark.parametrize("statement", ["CREATE WAREHOUSE", "DROP WAREHOUSE"])
def test_a_lost_answer_makes_and_drops_it_all_the_same(made: Made, server: EmbeddedServer, statement: str) -> None:
    server.fault(match=f"^{statement}", kind="drop_reply", count=1)
    made.apply()
    assert len(made.shown()) == 1

    made.restore()

    assert made.shown() == []


def test_a_warehouse_that_cannot_be_created_is_an_error_and_leaves_nothing(made: Made, server: EmbeddedServer) -> None:
    server.fault(match="^CREATE WAREHOUSE", kind="error", errno=3001)

    with pytest.raises(LoadgenError):
        made.apply()

    server.clear_faults()
    made.restore()
    assert (made.shown(), made.recover()) == ([], [])


def test_a_warehouse_that_could_not_be_created_is_created_by_the_next_attempt(
    made: Made, server: EmbeddedServer
) -> None:
    server.fault(match="^CREATE WAREHOUSE", kind="error", errno=3001, count=1)
    with pytest.raises(LoadgenError):
        made.apply()

    made.apply()

    assert len(made.shown()) == 1
    made.restore()
    assert (made.shown(), made.recover()) == ([], [])
