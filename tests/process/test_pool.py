"""Pools as processes: runners that are killed and stopped, capabilities, wishes, the end of a pool, one real run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.cli.main import main
from loadgen.control import pool_workers, run_attempts, run_queue, run_status
from loadgen.model.pool_worker import PoolWorkerStatus
from loadgen.model.queue import QueueStatus
from loadgen.model.run import RunStatus
from tests.control_plane import ControlPlane, patience
from tests.embedded_server import EmbeddedServer
from tests.process import wait_until
from tests.process.pool_bench import Disturbance, PoolBench, assert_all_is_well, assert_taken_in_order

RUNNERS, RUNS = 4, 24
LONG_S = 120.0  # to wait for a state, a busy machine considered
COMPLETED = (0, 5)  # 5: on a busy machine the client may have been the bottleneck, which is not the matter here
SCENARIO = """
version: 1
name: pooled
connection: embedded
control: {database: %s}
target: {warehouse: POOL_WH, database: BENCH, schema: PUBLIC}
values: {keys: {file: keys.csv, column: K}}
workload: {statements: [{name: nap, sql: "SELECT SYSTEM$WAIT(20, 'MILLISECONDS') WHERE ? > 0", params: [{pool: keys}]}]}
load: {connections: 2, workers: 1, warmup: 0s, duration: 2s}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def bench(server: EmbeddedServer, tmp_path: Path) -> Iterator[PoolBench]:
    plane = ControlPlane(server)
    made = PoolBench(plane, tmp_path)
    try:
        yield made
    finally:
        made.close()
        plane.close()


def row(bench: PoolBench, queue_id: str) -> run_queue.Queued:
    found = run_queue.read(bench.plane.session, queue_id)
    assert found is not None
    return found


def test_runs_survive_runners_that_are_killed_and_stopped(bench):
    chance = random.Random(4711)
    queued = [
        bench.add(str(number), {"ms": chance.randint(50, 400), "fails": chance.choice((0, 0, 0, 1))}, priority=number % 3)
        for number in range(RUNS)
    ]
    hopeless = bench.add("hopeless", {"ms": 10, "exit": 4}, max_attempts=2)
    bench.start(f"--min={RUNNERS}", f"--max={RUNNERS}", "--grace=10s")
    wait_until(lambda: len(bench.runner_pids()) >= 2, LONG_S)

    bench.disturb(Disturbance(kills=3, stops=2, every_s=0.7), chance)
    wait_until(lambda: not bench.unfinished(), LONG_S)
    wait_until(lambda: all(one.ended_at for each in bench.attempts().values() for one in each), LONG_S)

    how = assert_all_is_well(bench, [*queued, hopeless])
    assert_taken_in_order(bench)
    assert row(bench, hopeless).status is QueueStatus.EXHAUSTED
    assert how[QueueStatus.COMPLETED] >= RUNS - 2  # a run may meet five disturbances, but hardly many of them
    assert "runner_ended" in bench.log()
