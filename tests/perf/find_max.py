"""Whether a search for the most connections finds what is there: real runs against servers whose limit is known.

    ./bin/bench find-max                    ten runs of each of three limits: about forty minutes
    ./bin/bench find-max --runs 1           one run of each: about four minutes

16 slots    the warehouse serves 16 statements at once, of 20 ms each: the seventeenth connection queues
40 slots    40 at once, of 50 ms each
errors      a server that begins to fail at 30 connections: one statement in five, as long as so many load sessions are
            open. The truth is 29. The server has no such setting; this benchmark counts its sessions ten times a second
            and switches a fault on and off. Latency may double here, so that errors decide

An answer is right when it is within one increment of the truth, or within 10 %. Wanted: 95 % of them are, and none is
out by more than two increments. A machine that is too slow for 800 statements a second degrades before the server does,
and the search finds that limit instead; the reason says so.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from tests.embedded_server import EmbeddedServer
from tests.perf._cores import Cores
from tests.perf._ending import leaving_nothing
from tests.perf._figures import Figure, report
from tests.perf._processes import staged
from tests.perf._runs import WORKERS, document, ran
from tests.process.worker_driver import Stage

RIGHT_MIN = 0.95
NEAR = 0.10  # of the truth
OFF_MAX = 2  # increments
MAXIMUM = 80
FAILING_FROM, FAILING_PART, FAILING_CODE = 30, 0.2, 604
COUNT_S = 0.1
RUN_S = 1_200.0  # only a hang reaches it
STEP = {"step": "5s", "settle": "1s"}  # two thousand statements and more
POLL = "1s"  # the warehouse is looked at twice in a step, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A server with a limit that is known. Without a warehouse nobody asks for its queue, and no session does so."""

    name: str
    server: tuple[str, ...]
    truth: int
    increment: int
    warehouse: str | None = "BENCH_WH"
    latency_percent: int = 20  # that p95 may rise by: find-max's default
    fails: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one run found. 0: not even its first step held."""

    limit: Limit
    run: int
    found: int
    reason: str

    @property
    def off(self) -> int:
        return abs(self.found - self.limit.truth)

    @property
    def is_right(self) -> bool:
        return self.off <= max(self.limit.increment, NEAR * self.limit.truth)

    def figure(self) -> Figure:
        most = OFF_MAX * self.limit.increment
        return Figure(
            name=f"{self.limit.name}, run {self.run}",
            value=self.found,
            unit="connections",
            aim=f"{self.limit.truth} ± {most}",
            met=self.off <= most,
            note=f"{'right' if self.is_right else 'wrong'}: {self.reason}",
        )


LIMITS = (
    Limit(name="16 slots of 20 ms", server=("--slots", "16", "--service-time", "20ms"), truth=16, increment=4),
    Limit(name="40 slots of 50 ms", server=("--slots", "40", "--service-time", "50ms"), truth=40, increment=8),
    Limit(
        name=f"errors from {FAILING_FROM} connections",
        server=("--slots", "200", "--service-time", "50ms"),
        truth=FAILING_FROM - 1,
        increment=6,
        warehouse=None,
        latency_percent=100,
        fails=True,
    ),
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench find-max", description="Answers of find-max beside the truth.")
    parser.add_argument("--runs", type=int, default=10, help="of each limit; 10")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    with leaving_nothing():
        answers = list(answers_of(options.runs))
    return report([*map(Answer.figure, answers), right_figure(answers)], options.format)


def answers_of(runs: int) -> Iterator[Answer]:
    cores = Cores.of_machine(WORKERS)
    for limit in LIMITS:
        with staged(cores, *limit.server) as stage:
            for number in range(1, runs + 1):
                scenario = scenario_of(stage, limit)
                with failing(stage.server) if limit.fails else nullcontext():
                    found = ran(stage, scenario, cores, RUN_S)["find_max"]
                most = found["max_concurrency"]
                answer = Answer(limit=limit, run=number, found=most or 0, reason=found["reason"])
                print(f"{limit.name}, run {number}: {answer.found}", file=sys.stderr, flush=True)
                yield answer


def scenario_of(stage: Stage, limit: Limit) -> dict[str, Any]:
    search = {
        "start": limit.increment,
        "increment": limit.increment,
        "maximum": MAXIMUM,
        **STEP,
        "latency_stability_pct": limit.latency_percent,
    }
    return document(
        stage,
        {"mode": "find_max", "warmup": "2s", "find_max": search},
        target={"warehouse": limit.warehouse},
        timing={"warehouse_poll": POLL},
    )


@contextmanager
def failing(server: EmbeddedServer) -> Iterator[None]:
    """As long as so many more sessions are open than now, some statements fail."""
    before = server.ask("/__loadgen/stats")["open_sessions"]
    over = threading.Event()

    def switch() -> None:
        is_on = False
        while not over.wait(COUNT_S):
            wanted = server.ask("/__loadgen/stats")["open_sessions"] - before >= FAILING_FROM
            if wanted and not is_on:
                server.fault(match="FROM KV", kind="error", errno=FAILING_CODE, probability=FAILING_PART)
            elif is_on and not wanted:
                server.clear_faults()
            is_on = wanted

    thread = threading.Thread(target=switch, name="failing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        server.clear_faults()


def right_figure(answers: list[Answer]) -> Figure:
    right = sum(answer.is_right for answer in answers)
    return Figure(
        name="answers within one increment or 10 %",
        value=right / len(answers),
        unit="",
        aim=f"≥ {RIGHT_MIN}",
        met=right >= RIGHT_MIN * len(answers),
        note=f"{right} of {len(answers)}",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
