"""What a statement costs on the embedded server, compared with what it costs the driver in the same run.

    ./bin/bench embedded                    the two ratios, and growth from 1 to 200 connections
    ./bin/bench embedded --seconds 10       longer windows

The client is a bare connector loop pinned to one core. The server's CPU includes its database. A ratio is the median
of several windows that alternate between the servers, so that a noisy neighbour hits both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
from dataclasses import dataclass
from typing import Any

import psutil

from tests.embedded_server import EmbeddedServer
from tests.perf._cleanup import cleaned_up

TARGETS = {"postgres": 0.8, "null": 0.3}
CONNECTIONS = 8
GROWTH = (1, 8, 25, 50, 100, 200)
ROWS = 10_000
POINT_SELECT = "SELECT V FROM KV WHERE ID = ?"


@dataclass(frozen=True, slots=True)
class Window:
    """One measured span."""

    statements: int
    seconds: float
    client_cpu_s: float
    server_cpu_s: float

    @property
    def ratio(self) -> float:
        return self.server_cpu_s / self.client_cpu_s

    @property
    def client_ms(self) -> float:
        return 1000 * self.client_cpu_s / self.statements

    @property
    def server_ms(self) -> float:
        return 1000 * self.server_cpu_s / self.statements


class Load:
    """Threads that run a statement in a closed loop, one connection each."""

    def __init__(self, server: EmbeddedServer, connections: int) -> None:
        self._stopping = threading.Event()
        self._counts = [0] * connections
        self._connections = [server.connect(database="BENCH", schema="PUBLIC") for _ in range(connections)]
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"bench-{number}") for number in range(connections)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        cursor = self._connections[number].cursor()
        key = number
        while not self._stopping.is_set():
            key = (key * 7919 + 13) % ROWS
            cursor.execute(POINT_SELECT, (key,))
            cursor.fetchall()
            self._counts[number] += 1

    def count(self) -> int:
        return sum(self._counts)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for connection in self._connections:
            connection.close()


def measure(server: EmbeddedServer, connections: int, seconds: float) -> Window:
    load = Load(server, connections)
    try:
        pause = threading.Event()
        pause.wait(min(1.0, seconds / 2))  # plans are made, backends are open
        before = (load.count(), client_cpu_s(), server_cpu_s(server), now_s())
        pause.wait(seconds)
        after = (load.count(), client_cpu_s(), server_cpu_s(server), now_s())
    finally:
        load.stop()
    statements, client_s, server_s, span_s = (b - a for a, b in zip(before, after, strict=True))
    return Window(int(statements), span_s, client_s, server_s)


def client_cpu_s() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def server_cpu_s(server: EmbeddedServer) -> float:
    """CPU of the server and everything below it; processes that ended meanwhile are counted by their parent."""
    parent = psutil.Process(server.process.pid)
    total = 0.0
    for process in (parent, *parent.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def now_s() -> float:
    from loadgen.clock import SystemClock

    return SystemClock().monotonic_ns() / 1e9


def fill(server: EmbeddedServer) -> None:
    with server.connect(database="BENCH", schema="PUBLIC") as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE OR REPLACE HYBRID TABLE KV (ID NUMBER(38,0) PRIMARY KEY, V VARCHAR)")
        cursor.executemany("INSERT INTO KV VALUES (?, ?)", [(key, f"value {key}") for key in range(ROWS)])


def ratios(servers: dict[str, EmbeddedServer], rounds: int, seconds: float) -> dict[str, list[Window]]:
    windows: dict[str, list[Window]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, server in servers.items():
            windows[name].append(measure(server, CONNECTIONS, seconds))
    return windows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench embedded")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one window")
    parser.add_argument("--rounds", type=int, default=3, help="windows per server")
    parser.add_argument("--no-growth", action="store_true", help="leave the series from 1 to 200 connections out")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    with cleaned_up(), EmbeddedServer() as postgres, EmbeddedServer("--engine", "null") as null:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # after the servers: they may use every core
        fill(postgres)
        found = ratios({"postgres": postgres, "null": null}, options.rounds, options.seconds)
        growth = [] if options.no_growth else [(n, measure(postgres, n, options.seconds)) for n in GROWTH]
    summary = report(found, growth)
    print(json.dumps(summary, indent=2) if options.format == "json" else text_of(summary))
    return 0 if all(row["met"] for row in summary["ratios"]) else 1


def report(found: dict[str, list[Window]], growth: list[tuple[int, Window]]) -> dict[str, Any]:
    rows = []
    for name, windows in found.items():
        ratio = statistics.median(window.ratio for window in windows)
        rows.append(
            {
                "engine": name,
                "connections": CONNECTIONS,
                "client_ms": round(statistics.median(window.client_ms for window in windows), 3),
                "server_ms": round(statistics.median(window.server_ms for window in windows), 3),
                "ratio": round(ratio, 3),
                "target": TARGETS[name],
                "met": ratio <= TARGETS[name],
            }
        )
    series = [
        {
            "connections": connections,
            "statements_per_s": round(window.statements / window.seconds),
            "client_ms": round(window.client_ms, 3),
            "server_ms": round(window.server_ms, 3),
            "ratio": round(window.ratio, 3),
        }
        for connections, window in growth
    ]
    return {"statement": POINT_SELECT, "ratios": rows, "growth": series}


def text_of(summary: dict[str, Any]) -> str:
    lines = [f"{summary['statement']}   (CPU per statement; server with its database)", ""]
    lines.append("engine     conns  client ms  server ms  server/client  target")
    for row in summary["ratios"]:
        lines.append(
            f"{row['engine']:<10} {row['connections']:>5}  {row['client_ms']:>9}  {row['server_ms']:>9}"
            f"  {row['ratio']:>13}  ≤ {row['target']} {'ok' if row['met'] else 'MISSED'}"
        )
    if summary["growth"]:
        lines += ["", "postgres   conns  statements/s  client ms  server ms  server/client"]
    for row in summary["growth"]:
        lines.append(
            f"{'':<10} {row['connections']:>5}  {row['statements_per_s']:>12}  {row['client_ms']:>9}"
            f"  {row['server_ms']:>9}  {row['ratio']:>13}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
