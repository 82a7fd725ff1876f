"""CPU of one statement in the driver: by part, and with each step of what loadgen changes in driver 5.

    ./bin/bench statement                   the parts in driver 5, some seconds
    ./bin/bench statement --connector 4     the parts in driver 4
    ./bin/bench statement --steps           bare loops that differ in what was changed, a minute
    ./bin/bench statement --only 4          executes with the first 4 steps only, for a profiler

Parts: one thread executes a point read as a client of a worker does: one cursor, a QUERY_TAG for each statement, all
rows fetched. The total comes from rounds without timers; those with timers say how the time of the thread is divided.
What a timer adds is measured and taken off. The driver's own threads are the difference between the process and this
thread.

Steps: threads of one process execute the same read, each with its connection. In each round all variants follow each
other in another order. A ratio is that of the process time to that of the bare loop in the same round.

On a busy machine instructions say more than times: `valgrind --tool=cachegrind --cache-sim=no .venv/bin/python -m
tests.perf.statement --only 4 --connections 1 --rounds 1 --statements 2020`, less those of 20, divided by 2000.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from time import process_time_ns, thread_time_ns
from types import SimpleNamespace
from typing import Any

from loadgen.snowflake import driver, driver_patches
from loadgen.worker.sessions import FETCH_ROWS, with_tag
from tests.embedded_server import EmbeddedServer
from tests.perf._bare_loop import KEYS, POINT_SELECT, connect
from tests.perf._cleanup import cleaned_up
from tests.perf._cores import Cores, on
from tests.perf._figures import Figure, report
from tests.run import CONNECTOR_4, ROOT, ensure_connector_4

CORE = "core: "
PARTS = {
    5: {
        "Python: values of ?": ("_internal.cursor.base", "CursorBaseMixin", "_build_query_bindings"),
        "Python: description and counts": ("_internal.cursor.query_result", "QueryResult", "from_result_set_response"),
        "Python: row iterator": ("cursor._base", "SnowflakeCursorBase", "_create_row_iterator"),
        "Python: release of the last result": ("cursor._base", "SnowflakeCursorBase", "reset"),
    },
    4: {
        "values of ?": ("connection", "SnowflakeConnection", "_process_params_qmarks"),
        "message with the text and the values": ("connection", "SnowflakeConnection", "cmd_query"),
        "tokens, retries": ("network", "SnowflakeRestful", "request"),
        "compression of the message": ("network", "SnowflakeRestful", "_request_exec"),
        "HTTP: requests": ("vendored.requests.sessions", "Session", "request"),
        "HTTP: urllib3 and the socket": ("vendored.urllib3.connectionpool", "HTTPConnectionPool", "urlopen"),
        "JSON of the answer": ("vendored.requests.models", "Response", "json"),
        "description and counts": ("cursor", "SnowflakeCursorBase", "_init_result_and_meta"),
        "rows": ("cursor", "SnowflakeCursorBase", "fetchmany"),
    },
}
ELSE = {5: "Python: wrappers, messages for the core, everything else", 4: "everything else"}
ROUNDS = 5
WARM = 500
AIM = 0.75


class Timers:
    """Thread time in nanoseconds of each part, without that of parts within it and without that of the timers."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self._inner_ns = [0]

    def timed(self, name: str, call: Callable[..., Any], *, by_method: bool = False) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self._inner_ns.append(0)
            begun_ns = thread_time_ns()
            try:
                return call(*arguments, **options)
            finally:
                took_ns = thread_time_ns() - begun_ns
                inner_ns = self._inner_ns.pop()
                self._inner_ns[-1] += took_ns
                key = name + arguments[1] if by_method else name
                self.spent_ns[key] = self.spent_ns.get(key, 0) + took_ns - inner_ns
                self.calls[key] = self.calls.get(key, 0) + 1

        return run

    def install(self, major: int) -> None:
        if major == 5:
            bridge: Any = importlib.import_module("snowflake.connector._internal.api_client.bridge")
            timed = self.timed(CORE, bridge.sf_core_python.call_proto, by_method=True)
            bridge.sf_core_python = SimpleNamespace(call_proto=timed)
        for name, (module, owner, method) in PARTS[major].items():
            found = getattr(importlib.import_module(f"snowflake.connector.{module}"), owner)
            part: Any = self.timed(name, getattr(found, method))
            static = isinstance(vars(found)[method], staticmethod)
            setattr(found, method, staticmethod(part) if static else part)

    def parts_us(self, statements: int) -> dict[str, float]:
        own_us = self.own_us()
        return {
            name: (ns / 1000 - own_us * self.calls[name]) / statements
            for name, ns in sorted(self.spent_ns.items(), key=lambda one: -one[1])
        }

    @staticmethod
    def own_us(calls: int = 10_000) -> float:
        """What a timer adds to the part that it measures."""
        other = Timers()
        nothing = other.timed("nothing", lambda: None)
        for _ in range(calls):
            nothing()
        return other.spent_ns["nothing"] / 1000 / calls


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench statement", description="CPU of one statement in the driver.")
    parser.add_argument("--connector", choices=("4", "5"), default="5", help="major version of the driver; 5")
    parser.add_argument("--steps", action="store_true", help="bare loops with each step of what loadgen changes")
    parser.add_argument("--only", type=int, metavar="STEPS", help="execute with this number of steps, for a profiler")
    parser.add_argument("--tag", action="store_true", help="with --only: a QUERY_TAG for each statement")
    parser.add_argument("--statements", type=int, default=2_000, help="of each variant in each round; 2000")
    parser.add_argument("--rounds", type=int, default=15, help="with --steps; 15")
    parser.add_argument("--connections", type=int, default=8, help="with --steps; 8")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    if options.connector != str(driver.major()):
        return in_connector_4(arguments)
    stepwise = options.steps or options.only is not None
    if stepwise and driver.major() != 5:
        parser.error("nothing is changed in driver 4, so there are no steps")
    if stepwise:
        os.environ[driver.LIGHTEN_VARIABLE] = "0"
    cores = Cores.of_machine()
    with cleaned_up():
        with on(cores.others):
            server = EmbeddedServer("--engine", "null")
        with server:
            os.sched_setaffinity(0, cores.clients)
            driver.load()
            figures = list(steps_of(server, options) if stepwise else parts_of(server, options.statements))
    return report(figures, options.format)


def in_connector_4(arguments: list[str]) -> int:
    """The same in the environment of connector 4; the embedded server stays in this one."""
    if CONNECTOR_4 in sys.executable:
        raise SystemExit("error: connector 5 is not here\nhint: ./bin/bench statement measures it")
    ensure_connector_4()
    python = ROOT / CONNECTOR_4 / "bin" / "python"
    os.environ["LOADGEN_SERVER_PYTHON"] = sys.executable
    os.execv(python, [str(python), "-P", "-m", "tests.perf.statement", *arguments])


def parts_of(server: EmbeddedServer, statements: int) -> Iterator[Figure]:
    connection = connect(server.address, "BENCH")
    cursor = with_tag(connection.cursor(), "bench")

    def execute(count: int) -> tuple[float, float]:
        """µs of CPU for each: of the process, and of this thread."""
        process_ns, thread_ns = process_time_ns(), thread_time_ns()
        read(cursor, count)
        return (process_time_ns() - process_ns) / 1000 / count, (thread_time_ns() - thread_ns) / 1000 / count

    execute(WARM)
    totals = [execute(statements) for _ in range(ROUNDS)]
    process_us, thread_us = (median(one[place] for one in totals) for place in (0, 1))
    timers = Timers()
    timers.install(driver.major())
    timed_us = sum(execute(statements)[1] for _ in range(ROUNDS)) / ROUNDS
    parts_us = timers.parts_us(statements * ROUNDS)
    connection.close()
    yield Figure(name=f"a statement in driver {driver.version()}", value=process_us, unit="µs CPU")
    yield Figure(name="threads of the driver", value=process_us - thread_us, unit="µs CPU")
    yield Figure(name="the thread that executes", value=thread_us, unit="µs CPU", note=f"{timed_us:.0f} with timers")
    for name, us in parts_us.items():
        if us >= 0.5:  # not those of the end
            yield Figure(name=f"  {name}", value=us, unit="µs CPU")
    yield Figure(name=f"  {ELSE[driver.major()]}", value=thread_us - sum(parts_us.values()), unit="µs CPU")


def read(cursor: Any, count: int) -> None:
    for number in range(count):
        cursor.execute(POINT_SELECT, (number % KEYS + 1,))
        cursor.fetchmany(FETCH_ROWS)


def steps_of(server: EmbeddedServer, options: argparse.Namespace) -> Iterator[Figure]:
    steps = driver_patches.known_patches(sys.modules)
    if not steps:
        error = f"error: what loadgen changes has other names in driver {driver.version()}"
        raise SystemExit(f"{error}\nhint: loadgen.snowflake.driver_patches lists the names")
    before = [
        driver_patches.DriverPatch(one.owner, one.name, vars(one.owner)[one.name])
        for step in steps
        for one in step.patches
    ]
    connections = [connect(server.address, "BENCH") for _ in range(options.connections)]
    plain = [connection.cursor() for connection in connections]
    tagged = [with_tag(cursor, "bench") for cursor in plain]
    each: int = max(options.statements // options.connections, 1)
    with ThreadPoolExecutor(options.connections) as threads:

        def cost_us(number: int, cursors: Sequence[Any]) -> float:
            """With the first steps only."""
            driver_patches.apply([driver_patches.PatchGroup("as it comes", tuple(before)), *steps[:number]])
            begun_ns = process_time_ns()
            list(threads.map(partial(read, count=each), cursors))
            return (process_time_ns() - begun_ns) / 1000 / each / len(cursors)

        if options.only is not None:
            cursors = tagged if options.tag else plain
            spent_us = [cost_us(options.only, cursors) for _ in range(options.rounds)]
            yield Figure(name=f"with {options.only} steps", value=median(spent_us), unit="µs CPU")
        else:
            variants = {"a bare loop": partial(cost_us, 0, plain)}
            variants |= {f"- {step.title}": partial(cost_us, place + 1, plain) for place, step in enumerate(steps)}
            variants["+ a QUERY_TAG for each statement"] = partial(cost_us, len(steps), tagged)
            yield from ratios(variants, options.rounds)
        driver_patches.apply(steps)
    for connection in connections:
        connection.close()


def ratios(variants: Mapping[str, Callable[[], float]], rounds: int) -> Iterator[Figure]:
    names = list(variants)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, rounds):  # the first one warms up
        place = number % len(names)
        order = names[place:] + names[:place]
        spent_us = {name: variants[name]() for name in (order if number % 2 else order[::-1])}
        if number >= 0:
            for name in names:
                found[name].append(spent_us[name])
    base = found[names[0]]
    for name in names:
        each = sorted(one / bare for one, bare in zip(found[name], base, strict=True))
        middle = median(each)
        note = f"{median(found[name]):.0f} µs; middle half {each[len(each) // 4]:.2f}–{each[-1 - len(each) // 4]:.2f}"
        aimed = name == names[-1]
        aim = f"≤ {AIM}" if aimed else ""
        yield Figure(name=name, value=middle, unit="× bare CPU", aim=aim, met=not aimed or middle <= AIM, note=note)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
