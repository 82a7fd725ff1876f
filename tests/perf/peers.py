"""Throughput, CPU and accuracy of loadgen beside other load generators and drivers.

    ./bin/bench peers                       about six minutes, and those of the installation
    ./bin/bench peers --quick               to see that it works
    ./bin/bench peers --folder DIR          keeps what was installed there, and uses it again
    ./bin/bench peers --only go,jdbc        these beside loadgen and the bare loop

Peers are installed by pip, Maven and Go modules. One that cannot be installed is listed with the reason. All of them
read one row by its key with 8 connections from one embedded server (engine null), pinned to the same core; the server
has the other cores.

full speed   All are connected and have run for a while. One runs while the others are paused (SIGSTOP), in turn, in
             several rounds, each round in another order. The server counts statements; the kernel counts the processor
             time of all processes of a peer, user and system. Ratios are those of a round; the table has their medians.
             `server` is how much of one core the server used: near 100 % it is the server that limits the peer
accuracy     Statements of 20 ms (lognormal), one peer at a time. The p50 and p99 that the tool reports are compared
             with those of the server's history of the same statements: the difference is what the client adds
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import psutil

from loadgen.embedded.session import DEFAULT_WAREHOUSE
from loadgen.metrics.percentile import PERCENTILES
from loadgen.metrics.window import merge
from loadgen.model.run import Phase
from loadgen.snowflake import driver
from loadgen.units import NS_PER_MS
from tests.embedded_server import EmbeddedServer
from tests.perf._bare_loop import POINT_SELECT
from tests.perf._cleanup import cleaned_up
from tests.perf._cores import Cores, on
from tests.perf._paired import Side
from tests.perf._peers import RECIPES, TAG, Missing, PeerProcess, install
from tests.perf._processes import Bare, worker_harness
from tests.perf.embedded import server_cpu_s
from tests.perf.worker import FEW, SERVICE_TIME, exact, in_order, measuring, started
from tests.process.worker_driver import WorkerHarness
from tests.processes import wait_until

CONNECTIONS = FEW
SETTLE_S = 0.5
LOADGEN, BARE = "loadgen", "bare"
WHAT = {
    LOADGEN: f"a worker of loadgen, connector {driver.version()}",
    BARE: f"a bare loop over connector {driver.version()}",
    **{name: recipe.what for name, recipe in RECIPES.items()},
}
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One measured span of one peer."""

    per_s: float
    cpu_us: float  # of a statement
    server_share: float  # of one core


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What a tool reports beyond what the server says of the same statements."""

    p50_ms: float
    p99_ms: float
    statements: int


@dataclass(slots=True)
class Found:
    """Everything that was measured, by the peer's name; lists have an entry per round."""

    turns: dict[str, list[Turn]] = field(default_factory=dict)
    added: dict[str, list[Added]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long everything takes."""

    rounds: int
    span_s: float
    warm_statements: int
    warm_s: float  # before statements of 20 ms
    accuracy_rounds: int
    accuracy_s: float


QUICK = Length(rounds=2, span_s=1.0, warm_statements=200, warm_s=3.0, accuracy_rounds=1, accuracy_s=3.0)
FULL = Length(rounds=7, span_s=2.0, warm_statements=5_000, warm_s=8.0, accuracy_rounds=2, accuracy_s=8.0)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench peers", description="loadgen beside other load generators.")
    parser.add_argument("--quick", action="store_true", help="short spans: to see that it works")
    parser.add_argument("--only", metavar="NAMES", help=f"of {', '.join(RECIPES)}; with a comma between them")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where peers are installed, and stay")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    names = list(RECIPES) if options.only is None else options.only.split(",")
    if unknown := [name for name in names if name not in RECIPES]:
        parser.error(f"there is no peer '{unknown[0]}'; those of today: {', '.join(RECIPES)}")
    loads = [os.getloadavg()[0]]
    with cleaned_up():
        folder = options.folder or Path(tempfile.mkdtemp())
        found = measured(names, folder.absolute(), QUICK if options.quick else FULL, loads)
    loads.append(os.getloadavg()[0])
    machine = f"load average {', '.join(f'{load:.1f}' for load in loads)} on {os.cpu_count()} cores"
    rows = rows_of(found)
    print(json.dumps({"machine": machine, "peers": rows}, indent=2) if options.format == "json" else text_of(rows))
    if options.format == "text":
        print(f"\n{machine} before, between the two parts and at the end")
    return 0


def measured(names: Sequence[str], folder: Path, length: Length, loads: list[float]) -> Found:
    found, commands = Found(), {}
    for name in names:
        command = install(name, folder)
        if isinstance(command, Missing):
            found.missing[name] = command.reason
        else:
            commands[name] = command
    cores = Cores.of_machine()
    with worker_harness(cores, "--engine", "null") as harness:
        found.turns = at_full_speed(harness, cores, commands, length)
        loads.append(os.getloadavg()[0])
        harness.server.model(DEFAULT_WAREHOUSE, service_time=SERVICE_TIME)
        found.added = accuracy(harness, cores, commands, length)
    return found


def in_turn(items: Sequence[Item], number: int) -> list[Item]:
    """Another order in each round: none is always the first, or always follows the same one."""
    first = number % len(items)
    order = [*items[first:], *items[:first]]
    return order[::-1] if number // len(items) % 2 else order


# --- full speed ------------------------------------------------------------------------------------------------------


def at_full_speed(
    harness: WorkerHarness, cores: Cores, commands: Mapping[str, list[str]], length: Length
) -> dict[str, list[Turn]]:
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        for name in (LOADGEN, BARE, *commands):
            pids = stack.enter_context(running(name, harness, cores, commands.get(name)))
            sides[name] = Side(pids=pids, clients=CONNECTIONS)
            warm_up(harness.server, length.warm_statements, name)
            stack.callback(sides[name].resume)
            sides[name].pause()
        turns: dict[str, list[Turn]] = {name: [] for name in sides}
        for number in range(length.rounds):
            for name in in_turn(list(sides), number):
                turns[name].append(turn(sides[name], harness.server, length.span_s))
    return turns


@contextmanager
def running(name: str, harness: WorkerHarness, cores: Cores, command: list[str] | None) -> Iterator[tuple[int, ...]]:
    """A peer that has been started: the ids of its processes."""
    if name == LOADGEN:
        with measuring(harness, cores) as (_, worker):
            yield (worker.process.pid,)
        return
    process: AbstractContextManager[Bare | PeerProcess]
    with on(cores.clients):
        if command is None:
            process = Bare.loop(harness, CONNECTIONS)
        else:
            process = PeerProcess(command, harness.server.address, harness.database, CONNECTIONS, 0, 0)
    with process as peer:
        yield peer.pids


def warm_up(server: EmbeddedServer, statements: int, name: str) -> None:
    """Wait until the one peer that runs has executed this many: a Java program compiles its code meanwhile."""

    def executed() -> int:
        return int(server.ask("/__loadgen/stats")["statements"])

    before = executed()
    wait_until(lambda: executed() - before >= statements, f"{name} has executed {statements} statements")


def turn(side: Side, server: EmbeddedServer, seconds: float) -> Turn:
    wait = threading.Event()
    side.resume()
    try:
        wait.wait(SETTLE_S)
        before, cpu_before = server.ask("/__loadgen/stats"), (cpu_s(side.pids), server_cpu_s(server))
        wait.wait(seconds)
        after, cpu_after = server.ask("/__loadgen/stats"), (cpu_s(side.pids), server_cpu_s(server))
    finally:
        side.pause()
    statements, ms = after["statements"] - before["statements"], after["now_ms"] - before["now_ms"]
    client_s, server_s = (b - a for a, b in zip(cpu_before, cpu_after, strict=True))
    return Turn(per_s=1000 * statements / ms, cpu_us=1e6 * client_s / statements, server_share=1000 * server_s / ms)


def cpu_s(pids: Sequence[int]) -> float:
    """User and system time of the processes, with threads that have ended."""
    found = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(times.user + times.system for times in found))


# --- accuracy --------------------------------------------------------------------------------------------------------


def accuracy(
    harness: WorkerHarness, cores: Cores, commands: Mapping[str, list[str]], length: Length
) -> dict[str, list[Added]]:
    names = [LOADGEN, BARE, *commands]
    added: dict[str, list[Added]] = {name: [] for name in names}
    for number in range(length.accuracy_rounds):
        for name in in_turn(names, number):
            one: Added | None
            if name == LOADGEN:
                one = loadgen_added(harness, cores, length.accuracy_s)
            elif name == BARE:
                one = bare_added(harness, cores, length.accuracy_s)
            else:
                one = peer_added(harness, cores, commands[name], length)
            if one is not None:
                added[name].append(one)
    return added


def loadgen_added(harness: WorkerHarness, cores: Cores, seconds: float) -> Added:
    led, worker = started(harness, cores, seconds)
    led.wait_beat(lambda beat: beat.phase is Phase.COOLDOWN, "the window has closed", worker)
    led.stop()
    assert worker.exit_code() == 0, worker.said
    tally = merge([led.seen().windows]).tally.whole
    told = {name: tally.service_at(PERCENTILES[name]) for name in ("p50", "p99")}
    report = {f"{name}_ms": one.value_ns / NS_PER_MS for name, one in told.items() if one is not None}
    # The null engine has the tag of the session only: that of the run. It sends nothing before and after its window.
    return added_to(server_times_ms(harness.server, led.run_id, 0.0), report)


def bare_added(harness: WorkerHarness, cores: Cores, seconds: float) -> Added:
    since_ms = harness.server.now_ms()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.json"
        with on(cores.clients):
            bare = Bare.loop(harness, CONNECTIONS, file)
        with bare:
            threading.Event().wait(seconds)
        times_ns = in_order(json.loads(file.read_text("ascii")))
    report = {f"{name}_ms": exact(PERCENTILES[name], times_ns) for name in ("p50", "p99")}
    return added_to(server_times_ms(harness.server, "bare", since_ms), report)


def peer_added(harness: WorkerHarness, cores: Cores, command: list[str], length: Length) -> Added | None:
    """None: statements failed, which a pause of the whole machine can do; what they took is no time of a statement."""
    numbers = (CONNECTIONS, length.warm_s, length.accuracy_s)
    with on(cores.clients):
        process = PeerProcess(command, harness.server.address, harness.database, *numbers)
    since_ms = harness.server.now_ms()
    with process as peer:
        report = peer.told()
    if report.get("errors"):
        print(f"left out, with errors: {command}: {report}", file=sys.stderr)
        return None
    until_ms = since_ms + 1000 * length.accuracy_s
    return added_to(server_times_ms(harness.server, TAG, since_ms, until_ms), report)


def server_times_ms(server: EmbeddedServer, tag: str, since_ms: float, until_ms: float = float("inf")) -> list[float]:
    """How long the server says the statements took that began in this time."""
    lines = server.history(tag, since_ms)
    return [one["total_ms"] for one in lines if one["sql_text"] == POINT_SELECT and one["start_ms"] <= until_ms]


def added_to(server_ms: Sequence[float], report: Mapping[str, Any]) -> Added:
    times_ns = in_order([ms * NS_PER_MS for ms in server_ms])
    p50_ms, p99_ms = (float(report[f"{name}_ms"]) - exact(PERCENTILES[name], times_ns) for name in ("p50", "p99"))
    return Added(p50_ms=p50_ms, p99_ms=p99_ms, statements=len(server_ms))


# --- the table -------------------------------------------------------------------------------------------------------


def rows_of(found: Found) -> list[dict[str, Any]]:
    """A row per peer; ratios are medians of the rounds, each against the bare loop of the same round."""
    rows: list[dict[str, Any]] = []
    for name, turns in found.turns.items():
        pairs = list(zip(turns, found.turns[BARE], strict=True))
        cpu = sorted(one.cpu_us / bare.cpu_us for one, bare in pairs)
        added = found.added[name]
        rows.append(
            {
                "peer": name,
                "what": WHAT[name],
                "per_s": median(one.per_s for one in turns),
                "per_s_ratio": median(one.per_s / bare.per_s for one, bare in pairs),
                "cpu_us": median(one.cpu_us for one in turns),
                "cpu_ratio": median(cpu),
                "cpu_ratio_range": [cpu[0], cpu[-1]],
                "server_share": median(one.server_share for one in turns),
                "added_p50_ms": median(one.p50_ms for one in added) if added else nan,
                "added_p99_ms": median(one.p99_ms for one in added) if added else nan,
                "accuracy_statements": [one.statements for one in added],
            }
        )
    rows.sort(key=lambda row: row["cpu_us"])
    return [*rows, *({"peer": name, "what": WHAT[name], "missing": why} for name, why in found.missing.items())]


def text_of(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("", "per s", "× bare", "CPU µs", "× bare", "range", "server", "p50 + ms", "p99 + ms")
    lines = [f"{head[0]:42}" + "".join(f"{word:>11}" for word in head[1:])]
    for row in rows:
        if "missing" in row:
            lines.append(f"{row['what']:42}   not installed: {row['missing']}")
            continue
        low, high = row["cpu_ratio_range"]
        cells = (
            f"{row['per_s']:.0f}",
            f"{row['per_s_ratio']:.2f}",
            f"{row['cpu_us']:.0f}",
            f"{row['cpu_ratio']:.2f}",
            f"{low:.2f}–{high:.2f}",
            f"{100 * row['server_share']:.0f} %",
            f"{row['added_p50_ms']:.2f}",
            f"{row['added_p99_ms']:.2f}",
        )
        lines.append(f"{row['what']:42}" + "".join(f"{cell:>11}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
