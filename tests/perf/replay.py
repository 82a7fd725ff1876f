"""Whether a replay sends recorded statements when they are due, at three speeds.

    ./bin/bench replay                      about a minute
    ./bin/bench replay --quick              less, to see that it works

A capture of 200 statements per second over 40 sessions is replayed at speed 0.5, 1 and 4 against a target without
service time (engine null). The arrival error is sent - due, as the run itself reports it; every statement must arrive.
An error that is not the client's is the time that a session waited for its own earlier statement. Where other processes
take the cores, the run is INVALID and the figure says so: repeat it on a quiet machine.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from loadgen.capture.history import HistoryRow
from loadgen.capture.recorder import CaptureOptions, CaptureRecorder
from tests.perf._cores import Cores
from tests.perf._ending import leaving_nothing
from tests.perf._figures import Figure, report
from tests.perf._processes import staged
from tests.perf._runs import WORKERS, document, ran
from tests.process.worker_driver import Stage

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
    with leaving_nothing(), tempfile.TemporaryDirectory() as folder:
        recorded_s = 4 if options.quick else 15
        capture = recorded(Path(folder) / "captured", recorded_s)
        cores = Cores.of_machine(WORKERS)
        with staged(cores, "--engine", "null") as stage:
            figures = [figure for speed in SPEEDS for figure in replayed(stage, cores, capture, speed, recorded_s)]
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
                    text="SELECT V FROM KV WHERE ID = ?",
                    session_id=number % SESSIONS,
                    start=start,
                    end=start + timedelta(milliseconds=1),
                    elapsed_ms=1.0,
                    binds=(("FIXED", str(draw.randint(1, 50))),),
                )
            ]
        )
    recorder.finish()
    return folder


def replayed(stage: Stage, cores: Cores, capture: Path, speed: float, recorded_s: int) -> Iterator[Figure]:
    scenario = document(stage, {"mode": "replay", "capture": capture.name, "speed": speed})
    del scenario["workload"]
    summary = ran(stage, scenario, cores, recorded_s / speed + RUN_S, capture)
    lag, totals = summary["lag_ms"], summary["totals"]
    due = PER_S * recorded_s + 1
    yield Figure(
        name=f"speed {speed:g}: arrival error p99",
        value=lag["p99"],
        unit="ms",
        aim=f"≤ {ERROR_MS_MAX:g}",
        met=lag["p99"] <= ERROR_MS_MAX,
        note=f"p50 {lag['p50']:.2f}, {PER_S * speed:g}/s: {summary['verdict'].upper()}",
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
