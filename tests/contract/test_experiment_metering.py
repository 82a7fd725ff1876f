"""`loadgen experiments enrich`: what the server metered for the warehouses of an experiment."""

from __future__ import annotations

import dataclasses
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadgen.cli.experiment import experiments as command
from loadgen.control.tables import experiments
from loadgen.errors import Busy
from loadgen.results.comparisons import read_experiment_result
from loadgen.scenario.experiment import read_experiment
from loadgen.scenario.frozen import freeze
from orchestrator.experiment.metering import MeteringFailed, NothingMetered, meter_experiment
from tests.contract.test_experiments import CONFIG, measurement
from tests.control_plane import ControlPlane, retries
from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import scenario

pytestmark = pytest.mark.any_driver


class Metered:
    """An experiment that has ended, with one recorded run for each arm."""

    def __init__(self, plane: ControlPlane, folder: Path, warehouses: dict[str, str]) -> None:
        self.plane, self.id = plane, uuid.uuid4().hex
        load = {"connections": 1, "workers": 1, "duration": "1s"}
        target = {"warehouse": "USUAL_WH"}  # without a database, as INFORMATION_SCHEMA would need
        (folder / "s.yaml").write_text(json.dumps(scenario(0, name="metered", load=load, target=target)))
        arms = {name: {"warehouse": {"name": warehouse}} for name, warehouse in warehouses.items()}
        document = {"version": 1, "name": "metered", "scenario": "s.yaml", "arms": arms, "reference": "small"}
        (folder / "e.yaml").write_text(json.dumps(document | {"metrics": {"p95": "5%"}}))
        loaded = read_experiment(folder / "e.yaml", environ=plane.environ)
        session = plane.session
        experiments.create(session, retries(), self.id, "metered", json.dumps(CONFIG), "f" * 64)
        experiments.begin_block(session, retries(), self.id, 1, 1)
        for arm, one in loaded.arms.items():
            labels = {"experiment": self.id, "arm": arm, "block": "1", "attempt": "1"}
            run_id = plane.new_run(scenario_config=freeze(dataclasses.replace(one.scenario, labels=labels)))
            experiments.record(session, retries(), self.id, measurement(arm=arm, run_id=run_id))

    def enrich(self) -> dict[str, Any]:
        meter_experiment(self.plane.session, retries(), self.id, self.plane.environ)
        return read_experiment_result(self.plane.session, retries(), self.id)


@pytest.fixture
def names(plane: ControlPlane) -> dict[str, str]:
    """Two warehouses that have run for less than a minute, which is billed."""
    made = {}
    for arm, size in (("small", "SMALL"), ("large", "LARGE")):
        made[arm] = f'"{arm} of {uuid.uuid4().hex[:12]}"'
        plane.change(f"CREATE WAREHOUSE {made[arm]} WAREHOUSE_SIZE = {size} GENERATION = '1'")
        plane.change(f"ALTER WAREHOUSE {made[arm]} SUSPEND")
    plane.change(f"USE WAREHOUSE {plane.place.warehouse}")  # a session uses the warehouse that it creates
    return made


def test_each_arm_has_what_its_warehouse_was_metered(
    plane: ControlPlane, names: dict[str, str], tmp_path: Path
) -> None:
    experiment = Metered(plane, tmp_path, names)

    result = experiment.enrich()

    small, large = (arm["metered_credits"] for arm in result["arms"])
    assert small == pytest.approx(2 / 60, rel=0.2)  # a minute of Small, and of Large
    assert large == pytest.approx(8 / 60, rel=0.2)
    assert result["metering"]["credits"] == pytest.approx(small + large)
    assert (result["metering"]["source"], result["metering"]["note"]) == ("INFORMATION_SCHEMA", "")
    assert result["credits"] == 1.0  # estimated: not changed

    plane.change(f"ALTER WAREHOUSE {names['small']} RESUME")
    plane.change(f"ALTER WAREHOUSE {names['small']} SUSPEND")
    again = experiment.enrich()
    assert again["arms"][0]["metered_credits"] == pytest.approx(4 / 60, rel=0.2)


def test_arms_on_one_warehouse_have_the_sum(plane: ControlPlane, names: dict[str, str], tmp_path: Path) -> None:
    experiment = Metered(plane, tmp_path, dict.fromkeys(names, names["large"]))

    result = experiment.enrich()

    assert [arm["metered_credits"] for arm in result["arms"]] == [None, None]
    assert result["metering"]["credits"] == pytest.approx(8 / 60, rel=0.2)
    assert "share a warehouse" in result["metering"]["note"]


def test_what_cannot_be_metered_is_an_error(
    plane: ControlPlane, names: dict[str, str], tmp_path: Path, server: EmbeddedServer
) -> None:
    unused = {arm: f"UNUSED_{arm}" for arm in names}
    with pytest.raises(NothingMetered, match="nothing is metered for experiment"):
        Metered(plane, tmp_path, unused).enrich()

    experiment = Metered(plane, tmp_path, names)
    server.fault(match="WAREHOUSE_METERING_HISTORY", kind="error", errno=3001)
    with pytest.raises(MeteringFailed, match="metering could not be read") as caught:
        experiment.enrich()
    server.clear_faults()
    assert caught.value.exit_code == 3
    assert "metering" not in read_experiment_result(plane.session, retries(), experiment.id)

    plane.claim(f"{experiments.LEASE_PREFIX}{experiment.id}")
    with pytest.raises(Busy, match="has not ended"):
        experiment.enrich()


def test_the_command_writes_the_files_again(
    plane: ControlPlane, names: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in plane.environ.items():
        monkeypatch.setenv(name, value)
    experiment = Metered(plane, tmp_path, names)
    folder = tmp_path / "runs" / experiment.id
    folder.mkdir(parents=True)
    place = ["-c", "embedded", "--database", plane.place.database]

    told = CliRunner().invoke(
        command, ["enrich", experiment.id, "--output-dir", str(tmp_path / "runs"), *place], standalone_mode=False
    )

    assert told.exit_code == 0, told.output
    assert "Metered: " in told.stdout
    stored = json.loads((folder / "experiment.json").read_text("utf-8"))
    assert stored["metering"]["credits"] > 0
    assert "Metered: " in (folder / "report.md").read_text("utf-8")


def test_the_end_of_an_experiment_is_stored_although_its_answer_was_lost(
    plane: ControlPlane, server: EmbeddedServer
) -> None:
    experiment_id = uuid.uuid4().hex
    experiments.create(plane.session, retries(), experiment_id, "e", json.dumps(CONFIG), "f" * 64)
    server.fault(match="INSERT INTO EXPERIMENT_ENDS", kind="reset", count=1)

    experiments.finish(plane.session, retries(), experiment_id, 1, {"verdict": "decided", "exit_code": 0})

    end = experiments.last_end(plane.session, experiment_id)
    assert end is not None
    assert end.verdict == "decided"
