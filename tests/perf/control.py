"""Control statements of a run: how many a second, of the leader and of each worker, with one worker and with eight.

    ./bin/bench control                      about three minutes
    ./bin/bench control --checkout FOLDER    the same runs by `bin/loadgen` of another checkout

A `loadgen run` of three stages and one of a search, on one embedded server, whose history is counted: statements of
control sessions that began while the run had its load. Clients pause between statements, so the machine is idle.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.embedded_server import EmbeddedServer
from tests.perf._cleanup import cleaned_up
from tests.perf._figures import Figure, report
from tests.processes import ROOT

WORKERS = (1, 8)
LOADS: dict[str, dict[str, Any]] = {
    "stages": {"stages": [{"duration": "10s", "connections": connections} for connections in (8, 16, 8)]},
    "search": {"mode": "find_max", "find_max": {"start": 8, "increment": 8, "maximum": 24, "step": "10s"}},
}


def document(name: str, workers: int) -> dict[str, Any]:
    return {
        "version": 1,
        "name": f"{name}-{workers}",
        "connection": "embedded",
        "target": {"warehouse": "BENCH_WH", "database": "BENCH", "schema": "PUBLIC"},
        "workload": {"think_time": "200ms", "statements": [{"name": "one", "sql": "SELECT 1"}]},
        "load": LOADS[name] | {"workers": workers, "warmup": "2s"},
        "query_log": {"mode": "none"},
        "enrichment": {"enabled": False},
    }


def counted(history: list[dict[str, Any]]) -> tuple[Counter[str], float]:
    """Control statements while there was load, by who sent them, and how many seconds that were."""
    tags: list[tuple[float, Mapping[str, Any]]] = [
        (line["start_ms"], json.loads(line["query_tag"])) for line in history if line["query_tag"].startswith("{")
    ]
    loaded = [at_ms for at_ms, tag in tags if tag.get("phase")]
    begun_ms, ended_ms = min(loaded), max(loaded)
    roles = [tag["control"] for at_ms, tag in tags if "control" in tag and begun_ms <= at_ms <= ended_ms]
    return Counter("workers" if "/" in role else "leader" for role in roles), (ended_ms - begun_ms) / 1000


def figures_of(checkout: Path, server: EmbeddedServer, name: str, workers: int) -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp())
    (folder / "scenario.yaml").write_text(json.dumps(document(name, workers)), "utf-8")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), EMBEDDED_ADDRESS: server.address}
    since_ms = server.now_ms()
    command = [str(checkout / "bin" / "loadgen"), "run", str(folder / "scenario.yaml")]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 5):  # INVALID on a busy machine: what was sent counts all the same
        raise RuntimeError(f"the run of {workers} workers ended with {done.returncode}: {done.stderr[-2000:]}")
    found, seconds = counted(server.history(since_ms=since_ms))
    of = f"{name}, {workers} worker{'s' if workers > 1 else ''}: "
    note = f"{sum(found.values())} statements in {seconds:.0f} s"
    yield Figure(name=of + "all", value=sum(found.values()) / seconds, unit="/s", note=note)
    yield Figure(name=of + "of each worker", value=found["workers"] / seconds / workers, unit="/s")
    yield Figure(name=of + "of the leader", value=found["leader"] / seconds, unit="/s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench control", description="Control statements of a run.")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose bin/loadgen runs; this one")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    given = parser.parse_args()
    figures: list[Figure] = []
    with cleaned_up(), EmbeddedServer() as server:
        for name in LOADS:
            for workers in WORKERS:
                figures += figures_of(given.checkout, server, name, workers)
    return report(figures, given.format)


if __name__ == "__main__":
    sys.exit(main())
