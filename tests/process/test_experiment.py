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

from tests.embedded_server import EmbeddedServer
from tests.process.run_bench import TIMING, Bench, Program, benched, scenario

ARMS = {
    "slow": {"set": {"embedded.service_time": "400ms"}},
    "fast": {"set": {"embedded.service_time": "200ms"}},
}


@pytest.fixture
def bench(server: EmbeddedServer, tmp_path: Path) -> Iterator[Bench]:
    with benched(server, tmp_path) as made:
        yield made


class Experiment:
    """A file with its scenario, on a warehouse for each test."""

    def __init__(self, bench: Bench, name: str, **sections: Any) -> None:
        self.bench, self.name = bench, name
        load = {"connections": 4, "workers": 1, "warmup": "500ms", "duration": "3s"}
        target = {"warehouse": f"{name.upper()}_WH", "database": "BENCH", "schema": "PUBLIC"}
        made = scenario(0, name=name, load=load, target=target, timing={**TIMING, "warehouse_poll": "500ms"})
        (bench.home / "s.yaml").write_text(json.dumps(made))
        usual: dict[str, Any] = {
            "version": 1,
            "name": name,
            "scenario": "s.yaml",
            "arms": ARMS,
            "reference": "slow",
            "metrics": {"p50": "5%", "price": "5%"},
            "limits": ["p95 < 20s"],
            "blocks": {"minimum": 2, "maximum": 8},
        }
        self.file = bench.home / f"{name}.yaml"
        self.file.write_text(json.dumps(usual | sections))

    def start(self, *words: object) -> Program:
        return self.bench.start("experiment", self.file, "--format", "json", *words)

    def rows(self, columns: str, table: str, experiment_id: str) -> list[tuple[Any, ...]]:
        return self.bench.rows(f"SELECT {columns} FROM {table} WHERE EXPERIMENT_ID = ? ORDER BY 1, 2", experiment_id)


def check_counted_once(experiment: Experiment, result: dict[str, Any]) -> None:
    """Every measurement is one run, and a block has each arm once."""
    usable = [one for one in result["measurements"] if one["outcome"] == "OK"]
    assert len({one["run_id"] for one in result["measurements"]}) == len(result["measurements"])
    complete = Counter(one["block"] for one in usable if one["block"] in result["blocks"]["complete"])
    assert set(complete.values()) <= {len(result["arms"])}
    assert len(result["comparisons"][0]["by_block"]) == len(complete)
    stored = experiment.rows("BLOCK, ARM, ATTEMPT, RUN_ID", "EXPERIMENT_MEASUREMENTS", result["experiment_id"])
    told = sorted((one["block"], one["arm"], one["attempt"], one["run_id"]) for one in result["measurements"])
    assert sorted(stored) == told


def test_the_faster_and_cheaper_arm_is_found(bench: Bench) -> None:
    experiment = Experiment(bench, "which")
    run = experiment.start()
    assert run.ended() == 0, run.said
    result = run.printed
    assert (result["verdict"], result["exit_code"]) == ("decided", 0)
    p50, price = result["comparisons"]
    assert (p50["b"], p50["decision"], price["decision"]) == ("fast", "better", "better")
    assert p50["low"] < -0.4 < p50["high"] < 0
    assert price["change"] == pytest.approx(-0.5, abs=0.1)
    slow, fast = result["arms"]
    assert (slow["dominated_by"], fast["on_frontier"]) == (["fast"], True)
    assert result["answer"].startswith("fast is the best choice")
    check_counted_once(experiment, result)
    experiment_id = result["experiment_id"]
    assert json.loads((run.folder / "runs" / experiment_id / "experiment.json").read_text()) == result
    labels = [
        json.loads(bench.rows("SELECT SCENARIO_CONFIG FROM RUN_STATUS WHERE RUN_ID = ?", one["run_id"])[0][0])["labels"]
        for one in result["measurements"]
    ]
    assert [(label["experiment"], label["block"], label["arm"]) for label in labels] == [
        (experiment_id, str(one["block"]), one["arm"]) for one in result["measurements"]
    ]
    order = [one["arm"] for one in result["measurements"] if one["block"] == 1 and one["outcome"] == "OK"]
    assert order == result["blocks"]["order"]["1"]
    again = experiment.start("--resume", experiment_id)
    assert again.ended() == 2
    assert f"experiment {experiment_id} is decided" in again.said


def test_a_killed_experiment_is_resumed_and_no_measurement_counts_twice(bench: Bench) -> None:
    experiment = Experiment(bench, "killed", blocks={"minimum": 2, "maximum": 3})
    first = experiment.start()
    first.wait_for("block 2, arm")
    first.wait_for("RUNNING MEASUREMENT")
    first.kill()
    (experiment_id,) = {one.split()[-1] for one in first.said.splitlines() if one.split()[1:2] == ["experiment"]} & {
        row[0] for row in bench.rows("SELECT EXPERIMENT_ID FROM EXPERIMENTS WHERE NAME = 'killed'")
    }
    second = experiment.start("--resume", "latest", "--wait")
    second.wait_for("block 3 of at most 3")
    second.wait_for("block 3, arm")
    second.send(signal.SIGINT)
    assert second.ended() == 130, second.said
    stopped = second.printed
    assert (stopped["verdict"], stopped["exit_code"], stopped["experiment_id"]) == ("cancelled", 130, experiment_id)
    check_counted_once(experiment, stopped)
    third = experiment.start("--resume", experiment_id)
    assert third.ended() == 12, third.said  # all blocks were begun, one is complete
    result = third.printed
    assert (result["verdict"], result["blocks"]["begun"], result["blocks"]["complete"]) == ("undecided", 3, [1])
    check_counted_once(experiment, result)
    ends = experiment.rows("EPOCH, VERDICT", "EXPERIMENT_ENDS", experiment_id)
    assert [verdict for _, verdict in ends] == ["cancelled", "undecided"]
    changed = Experiment(bench, "killed", blocks={"minimum": 2, "maximum": 4})
    refused = changed.start("--resume", experiment_id)
    assert refused.ended() == 2
    assert "was begun with other arms, metrics, limits, blocks or seed" in refused.said
