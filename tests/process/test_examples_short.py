"""Every example runs for a second: its tables are made, its statements succeed, and the server confirms their number.

Real leaders and real workers, several at once in threads of this process: starting processes takes longer than these
runs. Whether a run is valid, and how fast it is, depends on this machine here, so that is not checked.
`test_examples.py` runs the examples with the command, long enough for a verdict.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from loadgen.cli.run import job_roles
from loadgen.clock import SystemClock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.setup.installer import ensure_tables
from loadgen.model.run import ProcessEnd
from loadgen.scenario.document import scalar_text
from loadgen.scenario.experiment import read_experiment
from loadgen.scenario.model import LoadMode, Scenario, with_workers
from loadgen.scenario.read import read_scenario
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from loadgen.snowflake.session import RetryPolicy
from loadgen.worker import startup
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.flush import SPOOL_VARIABLE
from loadgen.worker.worker import Worker
from orchestrator.job import RunJob
from orchestrator.run_folder import SPOOL
from orchestrator.spawn.spawner import WorkerOrder, worker_environment
from tests import EXPERIMENT_EXAMPLES, REPLAY_EXAMPLE, SCENARIO_EXAMPLES
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, ROOT

AT_ONCE = 5
SHORT = [
    "timing={tick: 400ms, heartbeat: 400ms, status_poll: 400ms, flush: 1s, events_poll: 1s, announce: 1s,"
    " warehouse_poll: 1s}",
    "load.workers=1",
]
CLOSED = ["load.connections=2", "load.warmup=0s", "load.duration=1s"]
LOADS = {
    "find_max": [  # two levels, which pass
        *("load.warmup=0s", "load.find_max.start=2", "load.find_max.increment=1", "load.find_max.maximum=3"),
        *("load.find_max.step=1s", "load.find_max.settle=200ms", "load.find_max.latency_stability_pct=900"),
        *("load.find_max.qps_stability_pct=90", "load.find_max.stop_on_queue=false"),
    ],
    "nightly": [*CLOSED, "thresholds.2.window=1s", "thresholds.2.after=0s"],
    "open_loop_rate": ["load.rate=20/s", "load.max_connections=4", "load.warmup=0s", "load.duration=1s"],
    "replay": ["load.speed=4"],
    "sharded_insert": [*CLOSED, "load.workers=2"],
    "stages": [
        *("load.ramp=0s", "load.warmup=0s", "load.stages.1.ramp=0s"),
        *(f"load.stages.{number}.duration=600ms" for number in range(3)),
        *(f"load.stages.{number}.connections={level}" for number, level in enumerate((1, 3, 2))),
    ],
}


class ThreadSpawner:
    """Workers as threads of this process."""

    def __init__(self, place: ControlPlaneLocation, environ: Mapping[str, str]) -> None:
        self._place, self._environ = place, environ
        self._threads = ThreadPoolExecutor(thread_name_prefix="worker")
        self._workers: dict[str, tuple[Worker, Future[int]]] = {}

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        for order in orders:
            arguments = WorkerArguments(
                run_id=order.run_id,
                worker_id=order.worker_id,
                worker_group_id=order.worker_group_id,
                worker_group_count=order.worker_group_count,
            )
            worker = Worker(arguments, self._place, environ=self._environ)
            self._workers[order.worker_id] = worker, self._threads.submit(worker.run)

    def ended(self) -> tuple[ProcessEnd, ...]:
        return tuple(
            ProcessEnd(worker_id=worker_id, code=code.result())
            for worker_id, (_, code) in self._workers.items()
            if code.done()
        )

    def running(self) -> int:
        return sum(not code.done() for _, code in self._workers.values())

    def terminate(self, *, hard: bool) -> None:
        for worker, code in self._workers.values():
            if not code.done():
                worker.stop("SIGKILL" if hard else "SIGTERM")

    def close(self) -> None:
        self._threads.shutdown()


class ThreadJob(RunJob):
    """A run whose workers are threads."""

    def _spawner(self, place: ControlPlaneLocation, run_id: str) -> ThreadSpawner:
        assert self.output is not None
        environ = {**os.environ, **worker_environment(self.scenario, place)}
        return ThreadSpawner(place, environ | {SPOOL_VARIABLE: str((self.output / SPOOL).resolve())})


def examples() -> dict[str, tuple[Path, list[str]]]:
    """By name: the file of the scenario, and overrides. An experiment is its scenario with the changes of each arm; an
    arm that sets nothing is its scenario on another warehouse."""
    found: dict[str, tuple[Path, list[str]]] = {}
    for path in (*SCENARIO_EXAMPLES, REPLAY_EXAMPLE):
        found[path.relative_to(ROOT / "examples").with_suffix("").as_posix()] = path, []
    for path in EXPERIMENT_EXAMPLES:
        file = read_experiment(path, environ={}).file
        for name, arm in file.arms.items():
            if arm.set:
                changes = [f"{key}={scalar_text(value)}" for key, value in arm.set.items()]
                found[f"experiments/{path.stem}/{name}"] = (path.parent / file.scenario).resolve(), changes
    return found


EXAMPLES = examples()


def brief(name: str, folder: Path) -> Scenario:
    """With a few records, a separate database and warehouse, and each statement as often as the others."""
    path, changes = EXAMPLES[name]
    file = path
    if "0k" in path.read_text("utf-8"):
        file = folder / f"{name.replace('/', '-')}.yaml"
        file.write_text(re.sub(r"\b\d\dk\b", "200", path.read_text("utf-8")), "utf-8")
    number = list(EXAMPLES).index(name)
    separate = [f"target.database=EXAMPLE_{number}", f"target.warehouse=EXAMPLE_{number}_WH"]
    overrides = [*changes, *SHORT, *LOADS.get(path.stem, CLOSED), *separate]
    scenario = read_scenario(file, overrides=overrides, environ={}).scenario
    equal = [f"workload.statements.{index}.weight=1" for index, _ in enumerate(scenario.workload.statements)]
    if len(equal) > 1 and scenario.load.mode is not LoadMode.REPLAY:
        scenario = read_scenario(file, overrides=[*overrides, *equal], environ={}).scenario
    return with_workers(scenario, 1)


@pytest.fixture(scope="module")
def summaries(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """The summary of each run, or its error."""
    folder, roles = tmp_path_factory.mktemp("examples"), job_roles()

    def run(name: str) -> dict[str, Any]:
        scenario = brief(name, folder)
        job = ThreadJob(
            scenario=scenario,
            folder=EXAMPLES[name][0].parent,
            runs_folder=folder,
            clock=SystemClock(),
            roles=roles,
        )
        job.start()
        assert job.done.wait(PATIENCE_S), f"{name} does not end"
        return dict(job.result().summary)

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(AT_ONCE) as several:
        patched.setenv(EMBEDDED_ADDRESS, server.address)
        patched.setattr(startup, "gc", Mock())  # workers set the collector for a process of their own
        place = ControlPlaneLocation.of_scenario(brief("quickstart", folder))
        ensure_tables(place, RetryPolicy(stop=threading.Event(), clock=SystemClock()))  # once, not by several at once
        yield {name: several.submit(run, name) for name in EXAMPLES}


def executed(server: EmbeddedServer, summary: dict[str, Any]) -> Counter[str]:
    """What the server executed for the measurement, by text; of a search only its decisive step."""
    step = (summary.get("find_max") or {}).get("decisive_step")
    found: Counter[str] = Counter()
    for line in server.history(summary["run_id"]):
        tag = json.loads(line["query_tag"])
        if tag.get("phase") == "MEASUREMENT" and (step is None or tag.get("step") == step):
            found[line["sql_text"]] += 1
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_succeeds_and_the_server_confirms_its_statements(
    name: str, summaries: dict[str, Future[dict[str, Any]]], server: EmbeddedServer, tmp_path: Path
) -> None:
    summary, scenario = summaries[name].result(), brief(name, tmp_path)

    totals, counts = summary["totals"], {key: one["succeeded"] for key, one in summary["statements"].items()}
    assert (summary["status"], totals["failed"], summary["errors"]) == ("COMPLETED", 0, []), summary["exit_reason"]
    assert counts
    assert all(counts.values()), "each statement was executed"
    served = executed(server, summary)
    if scenario.load.mode is LoadMode.REPLAY:
        recorded = json.loads((REPLAY_EXAMPLE.parent / "captured" / "capture.json").read_text("utf-8"))["templates"]
        assert counts.keys() == {one["name"] for one in recorded if one["role"] == "read"}
        assert sum(counts.values()) == sum(served.values()) == totals["scheduled"] - totals["skipped"]
        return
    expected: Counter[str] = Counter()
    for statement in scenario.workload.statements:
        for query in statement.queries:
            expected[query.sql] += counts[statement.name]
    assert {text: served[text] for text in expected} == expected
