"""Every example runs by the command that the README shows for it, and passes: shorter here, the rest as it is.

All of them are slow: `test_examples_short.py` runs every example for a second.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.scenario.read import read_scenario
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests import SCENARIO_EXAMPLES
from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import history
from tests.processes import PROGRAM, ROOT, reachable_directory

pytestmark = pytest.mark.slow
EXAMPLES = [path.relative_to(ROOT) for path in SCENARIO_EXAMPLES]
FIND_MAX, QUICKSTART = Path("examples/find_max.yaml"), Path("examples/quickstart.yaml")
TIMING = (
    "{tick: 200ms, heartbeat: 200ms, status_poll: 200ms, flush: 500ms, events_poll: 500ms, announce: 1s,"
    " warehouse_poll: 400ms}"
)
# Longer statements than as they are shipped: fewer, and what other tests do on this machine matters less.
SHORT = ["load.warmup=500ms", f"timing={TIMING}", "embedded.service_time=250ms"]
DURATION = ["load.duration=8s"]  # for a p99 of the slowest; half a second without a core is within the limits
LENGTHS = {
    FIND_MAX: ["load.find_max.start=14", "load.find_max.step=2s", "load.find_max.settle=500ms"],
    Path("examples/nightly.yaml"): [*DURATION, "thresholds.2.window=1s", "thresholds.2.after=1s"],
    # The eight slots of its warehouse serve fewer of the longer statements; enough for the percentiles that are judged.
    Path("examples/open_loop_rate.yaml"): [*DURATION, "load.rate=20/s"],
    Path("examples/oltp_mix.yaml"): [*DURATION, "embedded.service_time=100ms"],
    Path("examples/stages.yaml"): [
        *(f"load.stages.{number}.duration=6s" for number in range(3)),
        *("load.ramp=0s", "load.stages.1.ramp=1s"),
    ],
}
END_S = 250  # only a hang takes longer


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home, with the data directory of an embedded server."""
    with reachable_directory() as path:
        yield path


def smaller(example: Path, home: Path) -> Path:
    """A copy with 1,000 records: ten columns of text for 10,000 take longer to make than the run."""
    file = home / example.name
    file.write_text((ROOT / example).read_text("utf-8").replace("10k", "1k").replace("1000", "100"), "utf-8")
    return file


def run(example: Path, home: Path, **variables: str) -> dict[str, Any]:
    """The result of `loadgen run EXAMPLE` with lengths of our own. It must have passed."""
    output = home / example.with_suffix("").as_posix().replace("/", "-")
    file = smaller(example, home) if example.name.startswith("ycsb") else ROOT / example
    settings = [word for text in (*SHORT, *LENGTHS.get(example, DURATION)) for word in ("--set", text)]
    environ = {name: value for name, value in os.environ.items() if name != EMBEDDED_ADDRESS}
    environ |= {"PYTHONPATH": str(ROOT), "HOME": str(home), "LOADGEN_EMBEDDED_DATA_DIR": str(home / "data")} | variables
    done = subprocess.run(
        [*PROGRAM, "run", str(file), "--quiet", "--output-dir", str(output), *settings],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
        start_new_session=True,  # else it shares the processor's time with the tests of this session
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = output.glob("*/report.html")
    assert f"report: {report}" in done.stdout.splitlines()
    found: dict[str, Any] = json.loads((report.parent / "summary.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize("example", [path for path in EXAMPLES if path != FIND_MAX], ids=str)
def test_every_example_passes(example: Path, home: Path, request: pytest.FixtureRequest) -> None:
    """The first one starts its own server; for each that would take longer than the run."""
    shared = {} if example == QUICKSTART else {EMBEDDED_ADDRESS: request.getfixturevalue("server").address}

    summary = run(example, home, **shared)

    assert summary["verdict"] == "passed"
    assert summary["totals"]["failed"] == 0
    assert all(statement["succeeded"] for statement in summary["statements"].values())


def test_the_search_finds_the_result_in_its_comment(home: Path, server: EmbeddedServer) -> None:
    scenario = read_scenario(ROOT / FIND_MAX, environ={}).scenario
    slots = scenario.embedded.slots
    assert scenario.load.find_max is not None

    summary = run(FIND_MAX, home, **{EMBEDDED_ADDRESS: server.address})
    found = summary["find_max"]

    # Steps of two seconds may take one level for the next.
    assert abs(found["max_concurrency"] - slots) <= scenario.load.find_max.increment
    told = [(step["step"], step["target"], step["outcome"], step["reason"]) for step in found["steps"]]
    columns = "STEP_NUMBER, TARGET_CONNECTIONS, OUTCOME, REASON"
    assert stored(server, f"SELECT {columns} FROM FIND_MAX_STEP_HISTORY WHERE RUN_ID = ? ORDER BY 1", summary) == told
    sql = "SELECT FIND_MAX_RESULT FROM TEST_RESULTS WHERE RUN_ID = ? AND WORKER_ID IS NULL"
    assert json.loads(stored(server, sql, summary)[0][0]) == found
    assert summary["connections"] == found["max_concurrency"]
    assert summary["totals"]["succeeded"] == history(server, summary["run_id"])[found["decisive_step"]]
    assert (found["qps"], found["p95_ms"]) == (summary["totals"]["qps"], summary["latency_ms"]["p95"])


def stored(server: EmbeddedServer, sql: str, summary: dict[str, Any]) -> list[tuple[Any, ...]]:
    with server.connect(database="LOADGEN", schema="CONTROL") as connection:
        rows: list[tuple[Any, ...]] = connection.cursor().execute(sql, (summary["run_id"],)).fetchall()
    return rows
