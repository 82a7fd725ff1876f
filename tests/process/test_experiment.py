"""`loadgen experiment` as a user types it: real runs against the embedded server, whose service times are the truth.

Statements are long beside what a busy machine adds to them, so that runs are valid and differences are plain.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import TIMING, Program, RunHarness, run_harness, scenario
from tests.processes import wait_until

LONG_S = 900.0  # an experiment is several runs, and a busy machine takes half a minute for each
ARMS = {
    "slow": {"set": {"embedded.service_time": "600ms"}},
    "fast": {"set": {"embedded.service_time": "150ms"}},
}
MODEL = {"speed": {"X-Small": 1, "Small": 4}}
KILLED_AT = ("block 1 of at most", "STARTING PREPARING", "RUNNING MEASUREMENT", "PASSED, exit code 0", "block 2, arm")


class Experiment:
    """A file with its scenario, on a warehouse for each test."""

    def __init__(
        self, harness: RunHarness, name: str, *, scenario_parts: dict[str, Any] | None = None, **sections: Any
    ) -> None:
        """`scenario_parts`: further sections of the scenario."""
        self.harness, self.name = harness, name
        load = {"connections": 8, "workers": 1, "warmup": "500ms", "duration": "2500ms"}
        target = {"warehouse": f"{name.upper()}_WH", "database": "BENCH", "schema": "PUBLIC"}
        timing = {**TIMING, "warehouse_poll": "500ms"}
        made = scenario(0, name=name, load=load, target=target, timing=timing, **(scenario_parts or {}))
        (harness.home / "s.yaml").write_text(json.dumps(made))
        usual: dict[str, Any] = {
            "version": 1,
            "name": name,
            "scenario": "s.yaml",
            "arms": ARMS,
            "reference": "slow",
            "metrics": {"p50": "5%", "price": "5%"},
            "limits": ["p95 < 20s"],
            "blocks": {"minimum": 2, "maximum": 3},
        }
        self.file = harness.home / f"{name}.yaml"
        self.file.write_text(json.dumps(usual | sections))

    def start(self, *words: object) -> Program:
        return self.harness.start("experiment", self.file, "--format", "json", *words)

    def ended(self, program: Program) -> int:
        return program.process.wait(LONG_S)

    @property
    def id(self) -> str:
        ((found,),) = self.harness.rows("SELECT EXPERIMENT_ID FROM EXPERIMENTS WHERE NAME = ?", self.name)
        return str(found)

    def rows(self, columns: str, table: str, experiment_id: str) -> list[tuple[Any, ...]]:
        return self.harness.rows(f"SELECT {columns} FROM {table} WHERE EXPERIMENT_ID = ? ORDER BY 1, 2", experiment_id)


def check_counted_once(experiment: Experiment, result: dict[str, Any]) -> None:
    """Every measurement is one run, and a block has each arm once."""
    usable = [one for one in result["measurements"] if one["outcome"] == "OK"]
    runs = [one["run_id"] for one in result["measurements"] if one["run_id"] is not None]
    assert len(set(runs)) == len(runs)
    complete = Counter(one["block"] for one in usable if one["block"] in result["blocks"]["complete"])
    assert set(complete.values()) <= {len(result["arms"])}
    assert len(result["comparisons"][0]["by_block"]) == len(complete)
    stored = experiment.rows("BLOCK, ARM, ATTEMPT, RUN_ID", "EXPERIMENT_MEASUREMENTS", result["experiment_id"])
    told = sorted((one["block"], one["arm"], one["attempt"], one["run_id"]) for one in result["measurements"])
    assert sorted(stored) == told


@pytest.fixture
def modelled(tmp_path: Path) -> Iterator[RunHarness]:
    """On a server whose warehouses have a known speed by size."""
    file = tmp_path / "model.json"
    file.write_text(json.dumps(MODEL))
    with EmbeddedServer("--strict-hybrid", "--model", str(file)) as server, run_harness(server, tmp_path) as made:
        yield made


def test_the_faster_and_cheaper_arm_is_found(
    modelled: RunHarness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice the credits for four times the speed: half the price."""
    harness, arms = modelled, {"slow": {"warehouse": {"size": "X-Small"}}, "fast": {"warehouse": {"size": "Small"}}}
    experiment = Experiment(harness, "which", arms=arms, scenario_parts={"embedded": {"service_time": "600ms"}})
    run = experiment.start()
    assert experiment.ended(run) == 0, run.said
    result = run.printed
    assert (result["verdict"], result["exit_code"]) == ("decided", 0)
    p50, price = result["comparisons"]
    assert (p50["b"], p50["decision"], price["decision"]) == ("fast", "better", "better")
    assert p50["change"] < -0.5
    assert price["change"] == pytest.approx(-0.5, abs=0.2)
    assert settings_of(harness, "WHICH_WH") == ("X-Small", "2")
    slow, fast = result["arms"]
    assert (slow["dominated_by"], fast["on_frontier"]) == (["fast"], True)
    assert result["answer"].startswith("fast is the best choice")
    check_counted_once(experiment, result)
    experiment_id = result["experiment_id"]
    files = run.folder / "runs" / experiment_id
    assert json.loads((files / "experiment.json").read_text()) == result
    assert result["answer"] in (files / "report.html").read_text("utf-8")
    assert result["answer"] in (files / "report.md").read_text("utf-8")
    assert 'failures="0" errors="0"' in (files / "junit.xml").read_text("utf-8")
    labels = [
        json.loads(harness.rows("SELECT SCENARIO_CONFIG FROM RUN_STATUS WHERE RUN_ID = ?", one["run_id"])[0][0])[
            "labels"
        ]
        for one in result["measurements"]
    ]
    assert [(label["experiment"], label["block"], label["arm"]) for label in labels] == [
        (experiment_id, str(one["block"]), one["arm"]) for one in result["measurements"]
    ]
    order = [one["arm"] for one in result["measurements"] if one["block"] == 1 and one["outcome"] == "OK"]
    assert order == result["blocks"]["order"]["1"]
    monkeypatch.setenv(EMBEDDED_ADDRESS, harness.server.address)
    assert main(["experiment", str(experiment.file), "--resume", experiment_id]) == 2
    assert f"experiment {experiment_id} is decided" in capsys.readouterr().err
    assert main(["experiments", "show", experiment_id, "-c", "embedded", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == result
    assert main(["experiments", "list", "-c", "embedded"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == [experiment_id, "which"] and line.endswith("decided") for line in lines)


@pytest.mark.slow
def test_an_experiment_is_resumed_after_a_kill_and_after_a_signal(harness: RunHarness) -> None:
    experiment = Experiment(harness, "resumed", blocks={"minimum": 2, "maximum": 2})
    first = experiment.start()
    first.wait_for("RUNNING MEASUREMENT")
    first.kill()
    experiment_id = experiment.id
    second = experiment.start("--resume", "latest", "--wait")
    second.wait_for("block 2 of at most 2")
    second.wait_for("PASSED, exit code 0")
    second.send(signal.SIGINT)
    assert experiment.ended(second) == 130, second.said
    stopped = second.printed
    assert (stopped["verdict"], stopped["exit_code"], stopped["experiment_id"]) == ("cancelled", 130, experiment_id)
    assert [one["block"] for one in stopped["measurements"] if one["outcome"] == "OK"] == [2]
    (left,) = [one for one in stopped["measurements"] if one["block"] == 1]  # its process was killed
    assert (left["outcome"], left["attempt"]) == ("FAILED", 1)
    check_counted_once(experiment, stopped)
    third = experiment.start("--resume", experiment_id)
    assert experiment.ended(third) == 12, third.said  # both blocks were begun, none is complete
    result = third.printed
    assert (result["verdict"], result["blocks"]["begun"], result["blocks"]["complete"]) == ("undecided", 2, [])
    assert result["measurements"] == stopped["measurements"]
    ends = experiment.rows("EPOCH, VERDICT", "EXPERIMENT_ENDS", experiment_id)
    assert [verdict for _, verdict in ends] == ["cancelled", "undecided"]
    refused = Experiment(harness, "resumed", blocks={"minimum": 2, "maximum": 4}).start("--resume", experiment_id)
    assert refused.ended() == 2
    assert "was begun with other arms, metrics, limits, blocks or seed" in refused.said


def settings_of(harness: RunHarness, warehouse: str) -> tuple[str, str]:
    with harness.server.connect() as connection:
        cursor = connection.cursor().execute(f"SHOW WAREHOUSES LIKE '{warehouse}'")
        names = [column[0].lower() for column in cursor.description]
        (row,) = cursor.fetchall()
    shown = dict(zip(names, row, strict=True))
    return shown["size"], shown["generation"]


def two_sizes(harness: RunHarness, name: str) -> Experiment:
    """On a warehouse that is Large, of generation 2."""
    with harness.server.connect() as connection:
        connection.cursor().execute(f"CREATE WAREHOUSE {name}_WH WAREHOUSE_SIZE = LARGE GENERATION = '2'")
    arms = {
        "xs": {"warehouse": {"size": "X-Small"}, "set": {"embedded.service_time": "150ms"}},
        "m": {"warehouse": {"size": "Medium", "generation": 1}, "set": {"embedded.service_time": "150ms"}},
    }
    return Experiment(harness, name, arms=arms, reference="xs", blocks={"minimum": 2, "maximum": 2})


def check_recovered(harness: RunHarness, warehouse: str) -> None:
    recovery = harness.recover()
    assert recovery.ended() == 0, recovery.said
    assert [one["restored"] for one in recovery.printed["settings"]] in ([True], [])
    assert settings_of(harness, warehouse) == ("Large", "2")
    unrestored = (
        "SELECT COUNT(*) FROM EXPERIMENT_WAREHOUSES W WHERE NOT EXISTS (SELECT 1 FROM EXPERIMENT_WAREHOUSE_RESTORES R"
    )
    same = "R.EXPERIMENT_ID = W.EXPERIMENT_ID AND R.EPOCH = W.EPOCH AND R.WAREHOUSE_KEY = W.WAREHOUSE_KEY"
    assert harness.rows(f"{unrestored} WHERE {same})") == [(0,)]


@pytest.mark.slow
def test_settings_of_a_warehouse_are_restored_after_a_kill_and_after_a_signal(harness: RunHarness) -> None:
    experiment = two_sizes(harness, "sizes")
    killed = experiment.start()
    changed = [("X-Small", "2"), ("Medium", "1")]
    wait_until(lambda: settings_of(harness, "SIZES_WH") in changed, "the warehouse has the settings of an arm")
    killed.kill()
    assert settings_of(harness, "SIZES_WH") in changed
    check_recovered(harness, "SIZES_WH")
    again = experiment.start("--resume", experiment.id, "--wait")
    wait_until(lambda: settings_of(harness, "SIZES_WH") in changed, "the warehouse has the settings of an arm again")
    again.wait_for("connecting")
    again.send(signal.SIGINT)
    assert experiment.ended(again) == 130, again.said
    assert settings_of(harness, "SIZES_WH") == ("Large", "2")
    assert "are restored" in again.said


@pytest.mark.slow
@pytest.mark.parametrize("moment", KILLED_AT)
def test_whenever_it_is_killed_settings_are_restored_and_nothing_counts_twice(harness: RunHarness, moment: str) -> None:
    name = f"killed{KILLED_AT.index(moment)}"
    experiment = two_sizes(harness, name)
    killed = experiment.start()
    killed.wait_for(moment)
    killed.kill()
    check_recovered(harness, f"{name.upper()}_WH")
    resumed = experiment.start("--resume", experiment.id, "--wait")
    assert experiment.ended(resumed) in (0, 12), resumed.said
    assert settings_of(harness, f"{name.upper()}_WH") == ("Large", "2")
    result = resumed.printed
    check_counted_once(experiment, result)
    for one in result["comparisons"]:
        if one["metric"] == "price" and one["change"] is not None:  # Medium of generation 1, X-Small of generation 2
            assert one["change"] == pytest.approx(4 / 1.35 - 1, rel=0.4)


def executed(harness: RunHarness, *parts: str) -> bool:
    """Whether the server has executed a statement with all of these texts."""
    return any(all(part in one["sql_text"] for part in parts) for one in harness.server.ask("/__loadgen/history"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["settling", "restoring"])
def test_a_kill_while_settings_change_leaves_them_to_recover(harness: RunHarness, moment: str) -> None:
    """SHOW WAREHOUSES is answered late, so the process is still waiting for it after its ALTER."""
    name, slow_show = f"late{moment}", {"match": "^SHOW WAREHOUSES", "kind": "latency", "ms": 3_000}
    experiment = two_sizes(harness, name)
    warehouse = f"{name.upper()}_WH"
    killed = experiment.start()
    if moment == "restoring":
        killed.wait_for("RUNNING MEASUREMENT")
        harness.server.fault(**slow_show)
        killed.send(signal.SIGINT)
        wait_until(lambda: executed(harness, f'ALTER WAREHOUSE "{warehouse}"', "'Large'"), "it is being restored")
    else:
        harness.server.fault(**slow_show)
        wait_until(lambda: executed(harness, f'ALTER WAREHOUSE "{warehouse}"'), "it is being altered")
    killed.kill()
    harness.server.clear_faults()
    assert "are restored" not in killed.said
    rows = harness.rows("SELECT COUNT(*) FROM EXPERIMENT_WAREHOUSES WHERE EXPERIMENT_ID = ?", experiment.id)
    assert rows == [(1,)]
    check_recovered(harness, warehouse)


@pytest.mark.slow
def test_a_kill_after_a_warehouse_was_made_leaves_it_to_recover_and_it_is_made_again(harness: RunHarness) -> None:
    arms = {
        "usual": {"set": {"embedded.service_time": "150ms"}},
        "new": {
            "warehouse": {"name": "ARM_WH", "create": True, "size": "Medium"},
            "set": {"embedded.service_time": "150ms"},
        },
    }
    experiment = Experiment(harness, "made", arms=arms, reference="usual", blocks={"minimum": 2, "maximum": 2})
    killed = experiment.start()
    killed.wait_for('warehouse "ARM_WH" is created')
    killed.kill()
    recovery = harness.recover()
    assert recovery.ended() == 0, recovery.said
    assert [one["restored"] for one in recovery.printed["settings"]] == [True]
    assert not is_there(harness, "ARM_WH")

    resumed = experiment.start("--resume", experiment.id, "--wait")
    assert experiment.ended(resumed) in (0, 12), resumed.said
    assert not is_there(harness, "ARM_WH")
    assert 'warehouse "ARM_WH" is created' in resumed.said
    check_counted_once(experiment, resumed.printed)


def is_there(harness: RunHarness, warehouse: str) -> bool:
    with harness.server.connect() as connection:
        return bool(connection.cursor().execute(f"SHOW WAREHOUSES LIKE '{warehouse}'").fetchall())
