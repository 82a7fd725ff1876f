"""Locust with the connector: ADDRESS DATABASE CONNECTIONS WARM_S SECONDS, as tests/perf/_peers.py describes.

It is started by the Python of Locust's environment, and imports nothing of loadgen. A call of connector 5 waits outside
of Python, where gevent cannot switch: called directly, one user would hold up all others. It is called in gevent's
threads, one for each user.
"""

from gevent import monkey

monkey.patch_all(sys=False)

import json  # noqa: E402  gevent must be first
import sys  # noqa: E402
from time import perf_counter  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
import snowflake.connector  # noqa: E402
from gevent.fileobject import FileObjectThread  # noqa: E402
from gevent.threadpool import ThreadPool  # noqa: E402
from locust import User, constant, task  # noqa: E402
from locust.env import Environment  # noqa: E402

POINT_SELECT = "SELECT V FROM KV WHERE ID = ?"
KEYS = 50


def main(address: str, database: str, connections: str, warm_s: str, seconds: str) -> None:
    users = int(connections)
    threads = ThreadPool(users)
    host, port = address.split(":")

    class Reader(User):  # type: ignore[misc]
        wait_time = constant(0)
        key = 0

        def on_start(self) -> None:
            self.cursor: Any = threads.apply(connect, (host, int(port), database)).cursor()

        @task  # type: ignore[untyped-decorator]
        def read(self) -> None:
            self.key = (self.key * 7919 + 13) % KEYS + 1
            begun_s, error = perf_counter(), None
            try:
                threads.apply(execute, (self.cursor, self.key))
            except Exception as raised:
                error = raised
            taken_ms = 1000 * (perf_counter() - begun_s)
            fire(request_type="sql", name="get", response_time=taken_ms, response_length=0, exception=error)

    environment = Environment(user_classes=[Reader])
    fire = environment.events.request.fire
    runner = environment.create_local_runner()
    runner.start(users, spawn_rate=users)
    gevent.sleep(float(warm_s))
    environment.stats.reset_all()
    print("ready", flush=True)
    if float(seconds):
        gevent.sleep(float(seconds))
        total = environment.stats.total
        at = {name: total.get_response_time_percentile(part) for name, part in (("p50_ms", 0.5), ("p99_ms", 0.99))}
        print(json.dumps({"statements": total.num_requests, "errors": total.num_failures, **at}), flush=True)
    else:
        FileObjectThread(sys.stdin).read()
    runner.quit()


def connect(host: str, port: int, database: str) -> Any:
    return snowflake.connector.connect(
        host=host,
        port=port,
        protocol="http",
        account="embedded",
        user="peer",
        password="any",
        database=database,
        schema="PUBLIC",
        paramstyle="qmark",
        enable_server_session_keep_alive_auto_detection=False,
        session_parameters={"CLIENT_TELEMETRY_ENABLED": False, "QUERY_TAG": "peer"},
    )


def execute(cursor: Any, key: int) -> None:
    cursor.execute(POINT_SELECT, (key,))
    cursor.fetchall()


if __name__ == "__main__":
    main(*sys.argv[1:])
