"""A bare connector loop as a process: what the driver itself can do, on the same core and with as many threads.

    python -m tests.perf._bare_loop HOST:PORT DATABASE CONNECTIONS [FILE|light]

Prints `ready` once its threads run, and goes on until its standard input ends. FILE then has the time of each
statement, from execute to the last row fetched, in nanoseconds. Its sessions have the tag `bare`. `light`: the driver
leaves out for it what it leaves out for loadgen.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from loadgen.snowflake import driver

LIGHT = "light"
POINT_SELECT = "SELECT V FROM KV WHERE ID = ?"
KEYS = 50


def main(address: str, database: str, connections: str, file: str = "") -> int:
    if file == LIGHT:
        driver.load()
        file = ""
    opened = [connect(address, database) for _ in range(int(connections))]
    stopping = threading.Event()
    times: list[list[int]] = [[] for _ in opened]
    work = timed_loop if file else loop
    threads = [
        threading.Thread(
            name=f"bare-{number}", target=work, args=(connection.cursor(), number, times[number], stopping)
        )
        for number, connection in enumerate(opened)
    ]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    stopping.set()
    for thread in threads:
        thread.join()
    for connection in opened:
        connection.close()
    if file:
        Path(file).write_text(json.dumps([time_ns for one in times for time_ns in one]), "ascii")
    return 0


def connect(address: str, database: str) -> Any:
    import snowflake.connector

    host, port = address.split(":")
    return snowflake.connector.connect(
        host=host,
        port=int(port),
        protocol="http",
        account="embedded",
        user="bare",
        password="any",
        database=database,
        schema="PUBLIC",
        paramstyle="qmark",
        enable_server_session_keep_alive_auto_detection=False,
        session_parameters={"CLIENT_TELEMETRY_ENABLED": False, "QUERY_TAG": "bare"},
    )


def loop(cursor: Any, key: int, _: list[int], stopping: threading.Event) -> None:
    while not stopping.is_set():
        key = (key * 7919 + 13) % KEYS + 1
        cursor.execute(POINT_SELECT, (key,))
        cursor.fetchall()


def timed_loop(cursor: Any, key: int, times: list[int], stopping: threading.Event) -> None:
    while not stopping.is_set():
        key = (key * 7919 + 13) % KEYS + 1
        begun_ns = perf_counter_ns()
        cursor.execute(POINT_SELECT, (key,))
        cursor.fetchall()
        times.append(perf_counter_ns() - begun_ns)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
