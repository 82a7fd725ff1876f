"""The README's queue example: any scenario runs on the embedded server of a pool, and on two warehouses at once."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.embedded_server import EmbeddedServer
from tests.process.pool_harness import PoolHarness
from tests.process.run_harness import TIMING
from tests.processes import ROOT

QUICKSTART = (ROOT / "examples" / "quickstart.yaml").read_text("utf-8")
OTHER: dict[str, Any] = {
    "version": 1,
    "name": "other",
    "connection": "embedded",
    "embedded": {"service_time": "400ms", "slots": 4},
    "target": {"warehouse": "OTHER_WH", "database": "BENCH", "schema": "PUBLIC"},
    "workload": {"statements": [{"name": "one", "sql": "SELECT 1"}]},
    "load": {"connections": 8, "warmup": "0s", "duration": "4s"},
}


@pytest.fixture(autouse=True)
def embedded_connection(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`embedded` is the server of the tests for the commands of this file too."""
    monkeypatch.setenv(EMBEDDED_ADDRESS, server.address)


def queued(pools: PoolHarness, name: str, text: str) -> None:
    """`queue add` of a scenario, with the tables of this test."""
    file = pools.folder / f"{name}.yaml"
    place = pools.plane.place.database
    file.write_text(f"{text}\ncontrol: {{database: {place}}}\ntiming: {json.dumps(TIMING)}\n", "utf-8")
    assert main(["queue", "add", str(file), "--database", place, "-c", "embedded", "--priority", "5"]) == 0


def executions_ms(server: EmbeddedServer, run_id: str) -> list[float]:
    """Of the statements that the run measured, by the server's history."""
    lines = [line for line in server.history(run_id) if line["sql_text"].startswith(("SELECT", "UPDATE"))]
    return [line["execution_ms"] for line in lines if json.loads(line["query_tag"])["phase"] == "MEASUREMENT"]


@pytest.mark.slow  # other tests cover pools; this is the recipe of the documents
def test_queued_runs_use_the_server_of_the_pool_whatever_they_request(pools, server):
    short = QUICKSTART.replace("warmup: 3s, duration: 20s", "warmup: 500ms, duration: 4s")
    assert short != QUICKSTART
    queued(pools, "quickstart", short)
    queued(pools, "other", "\n".join(f"{key}: {json.dumps(value)}" for key, value in OTHER.items()))

    pools.start("--min=2", "--max=2", fake_program=False, lease_s=60.0)
    pools.wait_until(lambda: all(row.status.is_terminal for row in pools.rows()), "both have ended")

    rows = {row.name: row for row in pools.rows()}
    assert {name: (row.status.value, row.attempts) for name, row in rows.items()} == {
        "quickstart": ("COMPLETED", 1),
        "other": ("COMPLETED", 1),
    }, pools.log()
    assert {name: row.exit_code for name, row in rows.items()} == {"quickstart": 0, "other": 0}, pools.log()
    quick, slow = (executions_ms(server, str(rows[name].run_id)) for name in ("quickstart", "other"))
    assert min(slow) >= 400 > statistics.median(quick) > 100
    found = server.ask("/__loadgen/stats")["warehouses"]
    assert [found[name]["service_time"] for name in ("BENCH_WH", "OTHER_WH")] == [None, None], "put back"
