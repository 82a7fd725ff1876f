"""CPU of one statement in driver 5, by part: calls into its core, and what Python does between them.

    ./bin/bench statement                   some seconds
    ./bin/bench statement --statements 20000

One thread executes a point read as a client of a worker does: one cursor, a QUERY_TAG for each statement, all rows
fetched. The totals come from rounds without timers; those with timers say how the time of the thread is divided. The
driver's own threads are the difference between the process and this thread.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from statistics import median
from time import process_time_ns, thread_time_ns
from types import SimpleNamespace
from typing import Any

from loadgen.snowflake import driver
from loadgen.worker.statements import FETCH_ROWS, with_tag
from tests.embedded_server import EmbeddedServer
from tests.perf._bare_loop import KEYS, POINT_SELECT, connect
from tests.perf._cores import Cores, on
from tests.perf._ending import leaving_nothing
from tests.perf._figures import Figure, report

PARTS = {
    "values of ?": ("_internal.cursor.base", "CursorBaseMixin", "_build_query_bindings"),
    "QUERY_TAG": ("_internal.cursor.base", "CursorBaseMixin", "_apply_statement_parameters"),
    "description and counts": ("_internal.cursor.query_result", "QueryResult", "from_result_set_response"),
    "row iterator": ("cursor._base", "SnowflakeCursorBase", "_create_row_iterator"),
    "release of the last result": ("cursor._base", "SnowflakeCursorBase", "reset"),
}
ROUNDS = 5
WARM = 1_000


class Timers:
    """Thread time in nanoseconds: of each call into the core, and of Python in each part without those calls."""

    def __init__(self) -> None:
        self.native_ns: dict[str, int] = {}
        self.python_ns: dict[str, int] = {}

    def core(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(api: str, method: str, message: bytes) -> Any:
            begun_ns = thread_time_ns()
            answer = call(api, method, message)
            self.native_ns[method] = self.native_ns.get(method, 0) + thread_time_ns() - begun_ns
            return answer

        return timed

    def part(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            native_ns, begun_ns = sum(self.native_ns.values()), thread_time_ns()
            try:
                return call(*arguments, **options)
            finally:
                took_ns = thread_time_ns() - begun_ns - (sum(self.native_ns.values()) - native_ns)
                self.python_ns[name] = self.python_ns.get(name, 0) + took_ns

        return timed

    def install(self) -> None:
        bridge = importlib.import_module("snowflake.connector._internal.api_client.bridge")
        bridge.sf_core_python = SimpleNamespace(call_proto=self.core(bridge.sf_core_python.call_proto))  # type: ignore[attr-defined]
        for name, (module, owner, method) in PARTS.items():
            found = getattr(importlib.import_module(f"snowflake.connector.{module}"), owner)
            timed: Any = self.part(name, getattr(found, method))
            static = isinstance(vars(found)[method], staticmethod)
            setattr(found, method, staticmethod(timed) if static else timed)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench statement", description="CPU of one statement in driver 5, by part.")
    parser.add_argument("--statements", type=int, default=4_000, help="in each of five rounds; 4000")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    if driver.major() != 5:
        parser.error(f"it knows the parts of driver 5; {driver.version()} is installed")
    cores = Cores.of_machine()
    with leaving_nothing():
        with on(cores.others):
            server = EmbeddedServer("--engine", "null")
        with server:
            os.sched_setaffinity(0, cores.clients)
            figures = list(measured(server, options.statements))
    return report(figures, options.format)


def measured(server: EmbeddedServer, statements: int) -> Iterator[Figure]:
    driver.load()
    connection = connect(server.address, "BENCH")
    cursor = with_tag(connection.cursor(), "bench")

    def execute(count: int) -> tuple[float, float]:
        """µs of CPU for each: of the process, and of this thread."""
        process_ns, thread_ns = process_time_ns(), thread_time_ns()
        for number in range(count):
            cursor.execute(POINT_SELECT, (number % KEYS + 1,))
            cursor.fetchmany(FETCH_ROWS)
        return (process_time_ns() - process_ns) / 1000 / count, (thread_time_ns() - thread_ns) / 1000 / count

    execute(WARM)
    totals = [execute(statements) for _ in range(ROUNDS)]
    process_us, thread_us = (median(one[place] for one in totals) for place in (0, 1))
    timers = Timers()
    timers.install()
    timed_us = sum(execute(statements)[1] for _ in range(ROUNDS)) / ROUNDS
    connection.close()
    yield Figure(name="a statement", value=process_us, unit="µs CPU")
    yield Figure(name="threads of the driver", value=process_us - thread_us, unit="µs CPU")
    yield Figure(name="the thread that executes", value=thread_us, unit="µs CPU", note=f"{timed_us:.0f} with timers")
    known_us = 0.0
    for kind, found in (("core", timers.native_ns), ("Python", timers.python_ns)):
        for name, ns in sorted(found.items(), key=lambda one: -one[1]):
            us = ns / 1000 / statements / ROUNDS
            known_us += us
            if us >= 0.5:  # not those of the end
                yield Figure(name=f"  {kind}: {name}", value=us, unit="µs CPU")
    yield Figure(name="  Python: wrappers and everything else", value=timed_us - known_us, unit="µs CPU")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
