"""Whether a replay sends recorded statements when they are due, at three speeds.

    ./bin/bench replay                      about a minute
    ./bin/bench replay --quick              less, to see that it works

A capture of 200 statements per second over 40 sessions is replayed at speed 0.5, 1 and 4 against a target without
service time (engine null). The arrival error is the server's: its history says when each statement arrived, which is
compared with the recorded moment divided by the speed, counted from the statement with the least delay. The run's own
report of sent - due stands beside it; every statement must arrive. An error that is not the client's is the time that a
session waited for its own earlier statement. Where other processes take the cores, the run is INVALID and the figure
says so: repeat it on a quiet machine.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from loadgen.capture.history import HistoryRow
from loadgen.capture.recorder import CaptureOptions, CaptureRecorder
from loadgen.prepare.prepare import read_statements
from tests.perf._cleanup import cleaned_up
from tests.perf._cores import Cores
from tests.perf._figures import Figure, report
from tests.perf._processes import worker_harness
from tests.perf._runs import WORKERS, document, ran
from tests.process.worker_driver import WorkerHarness

PER_S, SESSIONS = 200, 40
SPEEDS = (0.5, 1.0, 4.0)
ERROR_MS_MAX = 5.0
RUN_S = 120.0  # beyond what it measures; only a hang reaches it
START = datetime(2026, 11, 15)  # noqa: DTZ001  naive UTC


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench replay", description="When a replay sends what is due.")
    parser.add_argument("--quick", action="store_true", help="shorter: to see that it works")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    with cleaned_up(), tempfile.TemporaryDirectory() as folder:
        recorded_s = 4 if options.quick else 15
        capture = recorded(Path(folder) / "captured", recorded_s)
        cores = Cores.of_machine(WORKERS)
        with worker_harness(cores, "--engine", "null") as harness:
            figures = [figure for speed in SPEEDS for figure in replayed(harness, cores, capture, speed, recorded_s)]
    return report(figures, options.format)


def recorded(folder: Path, seconds: int) -> Path:
    """A capture with arrivals at random moments."""
    draw = random.Random(1)
    recorder = CaptureRecorder(folder, CaptureOptions(source="a benchmark", keep_values=True), {})
    moments = sorted(draw.uniform(0, seconds) for _ in range(PER_S * seconds))
    for number, moment in enumerate([0.0, *moments]):
        start = START + timedelta(seconds=moment)
        recorder.add(
            [
                HistoryRow(
                    text=f"SELECT V FROM KV WHERE ID = {number}",
                    session_id=number % SESSIONS,
                    start=start,
                    end=start + timedelta(milliseconds=1),
                    elapsed_ms=1.0,
                    binds=(),
                )
            ]
        )
    recorder.finish()
    return folder


def replayed(harness: WorkerHarness, cores: Cores, capture: Path, speed: float, recorded_s: int) -> Iterator[Figure]:
    scenario = document(harness, {"mode": "replay", "capture": capture.name, "speed": speed})
    del scenario["workload"]
    summary = ran(harness, scenario, cores, recorded_s / speed + RUN_S, capture)
    lag, totals = summary["lag_ms"], summary["totals"]
    due = PER_S * recorded_s + 1
    errors_ms = arrival_errors_ms(harness, summary["run_id"], capture, speed)
    error_ms = float(np.percentile(errors_ms, 99))
    yield Figure(
        name=f"speed {speed:g}: arrival error p99",
        value=error_ms,
        unit="ms",
        aim=f"≤ {ERROR_MS_MAX:g}",
        met=error_ms <= ERROR_MS_MAX,
        note=f"of {len(errors_ms)} in the server's history, p50 {np.percentile(errors_ms, 50):.2f};"
        f" the run says {lag['p99']:.2f}; {PER_S * speed:g}/s: {summary['verdict'].upper()}",
    )
    late = summary["replay"]["late"]
    yield Figure(
        name=f"speed {speed:g}: client lag, mean",
        value=summary["replay"]["client_lag_avg_ms"] or 0.0,
        unit="ms",
        note=f"{late['sent_late']} sent more than {late['limit_ms']:g} ms late, {late['by_client']} by the client",
    )
    yield Figure(
        name=f"speed {speed:g}: arrived of recorded",
        value=totals["succeeded"] / due,
        unit="",
        aim="1",
        met=totals["succeeded"] == due,
        note=f"{totals['skipped']} skipped, {totals['failed']} failed",
    )
    for reason in summary["validity"]["reasons"][:1]:
        print(f"speed {speed:g} is INVALID: {reason}", file=sys.stderr)


def arrival_errors_ms(harness: WorkerHarness, run_id: str, capture: Path, speed: float) -> list[float]:
    """How much later than due the statements of a run arrived, by the server's clock."""
    due_ms = {one.sql: one.at_ms / speed for one in read_statements(capture)}
    arrived = ((line["sql_text"], float(line["start_ms"])) for line in harness.server.history(run_id))
    delays_ms = [start_ms - due_ms[text] for text, start_ms in arrived if text in due_ms]
    least_ms = min(delays_ms)
    return [delay_ms - least_ms for delay_ms in delays_ms]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
