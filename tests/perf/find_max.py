"""Whether a search for the most connections finds what is there: real runs against servers whose limit is known.

    ./bin/bench find-max                    ten runs of each limit: about an hour
    ./bin/bench find-max --busy 4           the same beside four busy loops
    ./bin/bench find-max --busy 0 4         both: ten runs of each on the quiet machine, then ten beside four loops
    ./bin/bench find-max --runs 1           one run of each: about six minutes
    ./bin/bench find-max --limit 16         the first limit only

16          the warehouse serves 16 statements at once, of about 100 ms each: the seventeenth connection queues
40          40 at once, of about 200 ms each
errors      a server that begins to fail at 30 connections: one statement in five, while that many load sessions are
            open. The truth is 29. The server has no such setting; this benchmark counts its sessions ten times a second
            and switches a fault on and off. Latency may double here, so that errors decide
fast        16 statements at once, of 20 ms each: 800 statements a second. A slower machine is the
            limit itself, and the right answer is then a BOUNDED_MAX; not part of the default

Wanted: no TRUE_MAX is off by more than one increment, no BOUNDED_MAX is above the truth, and without busy loops nine
of ten answers are TRUE_MAX. Service times vary by a tenth: with constant ones the statements of all connections end at
the same moment, and each waits for the others' client time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from loadgen.units import counted
from tests.embedded_server import EmbeddedServer
from tests.perf._cleanup import cleaned_up
from tests.perf._cores import Cores
from tests.perf._figures import Figure, report
from tests.perf._processes import worker_harness
from tests.perf._runs import WORKERS, document, ran
from tests.process.worker_driver import WorkerHarness

TRUE_MIN = 0.9  # of the answers, on a machine that is not busy
BUSY_LOOP = [sys.executable, "-S", "-c", "while True: pass"]
MAXIMUM = 80
FAILING_FROM, FAILING_PART, FAILING_CODE = 30, 0.2, 604
COUNT_S = 0.1
RUN_S = 1_200.0  # only a hang reaches it
STEP = {"step": "8s", "settle": "1s"}  # three hundred statements and more
POLL = "1s"  # the warehouse is looked at twice in a step, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A server with a limit that is known. Without a warehouse its queue is not polled, and no polling session
    exists."""

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
    loops: int = 0  # busy loops beside it
    result: str | None = "TRUE_MAX"
    confidence: str | None = "high"
    valid: bool = True

    @property
    def is_true(self) -> bool:
        return self.result == "TRUE_MAX"

    @property
    def is_wrong(self) -> bool:
        """Does it claim what is not so?"""
        if self.is_true:
            return abs(self.found - self.limit.truth) > self.limit.increment
        return self.found > self.limit.truth

    def figure(self) -> Figure:
        truth = self.limit.truth
        said = f"{self.result or 'no maximum'}, confidence {self.confidence or '–'}{'' if self.valid else ', INVALID'}"
        return Figure(
            name=f"{self.limit.name}, run {self.run}{beside(self.loops)}",
            value=self.found,
            unit="connections",
            aim=f"{truth} ± {self.limit.increment}" if self.is_true else f"≤ {truth}",
            met=not self.is_wrong,
            note=f"{said}: {self.reason}",
        )


LIMITS = {
    "16": Limit(
        name="16 slots of 100 ms",
        server=("--slots", "16", "--service-time", "lognormal(100ms,0.1)"),
        truth=16,
        increment=4,
    ),
    "40": Limit(
        name="40 slots of 200 ms",
        server=("--slots", "40", "--service-time", "lognormal(200ms,0.1)"),
        truth=40,
        increment=8,
    ),
    "errors": Limit(
        name=f"errors from {FAILING_FROM} connections",
        server=("--slots", "200", "--service-time", "lognormal(100ms,0.1)"),
        truth=FAILING_FROM - 1,
        increment=6,
        warehouse=None,
        latency_percent=100,
        fails=True,
    ),
    "fast": Limit(name="16 slots of 20 ms", server=("--slots", "16", "--service-time", "20ms"), truth=16, increment=4),
}
DEFAULT = ("16", "40", "errors")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench find-max", description="Answers of find-max beside the truth.")
    parser.add_argument("--runs", type=int, default=10, help="of each limit; 10")
    parser.add_argument("--busy", type=int, nargs="+", default=[0], metavar="N", help="busy loops beside the runs; 0")
    parser.add_argument("--limit", choices=list(LIMITS), help="this one only")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    limits = [LIMITS[name] for name in ([options.limit] if options.limit else DEFAULT)]
    figures: list[Figure] = []
    for loops in options.busy:
        with cleaned_up(), busy(loops):
            answers = list(answers_of(limits, options.runs, loops))
        figures += [*map(Answer.figure, answers), *counts(answers, loops=loops)]
    return report(figures, options.format)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """A number of processes that use a core each, if they get one."""
    processes = [subprocess.Popen(BUSY_LOOP, start_new_session=True) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def answers_of(limits: Sequence[Limit], runs: int, loops: int) -> Iterator[Answer]:
    cores = Cores.of_machine(WORKERS)
    for limit in limits:
        with worker_harness(cores, *limit.server) as harness:
            for number in range(1, runs + 1):
                scenario = scenario_of(harness, limit)
                with failing(harness.server) if limit.fails else nullcontext():
                    summary = ran(harness, scenario, cores, RUN_S)
                found = summary["find_max"]
                answer = Answer(
                    limit=limit,
                    run=number,
                    loops=loops,
                    found=found["max_concurrency"] or 0,
                    reason=found["reason"],
                    result=found["result"],
                    confidence=found["confidence"],
                    valid=summary["validity"]["valid"],
                )
                said = f"{answer.found} (truth {limit.truth}), {answer.figure().note}"
                print(f"{answer.figure().name}: {said}", file=sys.stderr, flush=True)
                yield answer


def scenario_of(harness: WorkerHarness, limit: Limit) -> dict[str, Any]:
    search = {
        "start": limit.increment,
        "increment": limit.increment,
        "maximum": MAXIMUM,
        **STEP,
        "latency_stability_pct": limit.latency_percent,
    }
    return document(
        harness,
        {"mode": "find_max", "warmup": "2s", "find_max": search},
        target={"warehouse": limit.warehouse},
        timing={"warehouse_poll": POLL},
    )


@contextmanager
def failing(server: EmbeddedServer) -> Iterator[None]:
    """Some statements fail while this many more sessions are open than now."""
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


def beside(loops: int) -> str:
    return f" beside {counted(loops, 'busy loop')}" if loops else ""


def counts(answers: list[Answer], *, loops: int) -> list[Figure]:
    """How many of which kind, and how many are wrong: each rule is a line."""
    quiet = not loops
    true = [answer for answer in answers if answer.is_true]
    bounded = [answer for answer in answers if answer.result == "BOUNDED_MAX"]
    return [
        Figure(
            name=f"TRUE_MAX{beside(loops)}",
            value=len(true) / len(answers),
            unit="of answers",
            aim=f"≥ {TRUE_MIN}" if quiet else "",
            met=not quiet or len(true) >= TRUE_MIN * len(answers),
            note=f"{len(true)} of {len(answers)}, and {len(bounded)} BOUNDED_MAX",
        ),
        _wrong(f"TRUE_MAX off by more than one increment{beside(loops)}", true),
        _wrong(f"BOUNDED_MAX above the truth{beside(loops)}", bounded),
    ]


def _wrong(name: str, answers: list[Answer]) -> Figure:
    wrong = sum(answer.is_wrong for answer in answers)
    return Figure(name=name, value=wrong, unit="answers", aim="0", met=not wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
