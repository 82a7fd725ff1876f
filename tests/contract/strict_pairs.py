"""Which statements of the control plane do harm when they have waited for a row: not a test, but a list to read.

    python -m tests.contract.strict_pairs

Two statements of `schemas/queries` change one row: `first` holds its lock in a transaction, `second` waits for it on a
server with --strict-hybrid. A pair is printed when the row count of `second`, or the row afterwards, is not what it is
when both run one after the other:

    condition       the row count, or a column that `second` assigns: its condition or its values were out of date
    other columns   only columns that `second` does not name: it has put them back
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from loadgen.control.sql import load_queries
from tests.contract.sql import Sql
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, wait_until

FUTURE, PAST = "DATEADD(second, 600, SYSDATE())", "DATEADD(second, -600, SYSDATE())"
BLOCKED = (
    "SELECT COUNT(*) FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY(RESULT_LIMIT => 1000))"
    " WHERE EXECUTION_STATUS = 'blocked' AND QUERY_TAG = 'second'"
)


@dataclass(frozen=True)
class Row:
    """A row in some state, and the statements that may meet on it: (label, statement, binds)."""

    table: str
    state: str
    values: dict[str, str]  # column → SQL
    statements: list[tuple[str, str, tuple[Any, ...]]]
    others: list[tuple[str, dict[str, str]]] = field(default_factory=list)  # rows that conditions need


LEASE = ("RUN_LEASES", {"RUN_ID": "'r'", "EPOCH": "1", "OWNER": "'o'", "EXPIRES_AT": FUTURE})
RUNNER = {
    "HOSTNAME": "'h'", "PID": "1", "VERSION": "'1'", "TASK_QUEUE": "'q'", "LABELS": "'[]'", "CAPABILITIES": "'[]'",
    "CAPACITY": "1", "STATUS": "'ONLINE'", "TOTAL_COMPLETED": "0", "TOTAL_FAILED": "0", "REGISTERED_AT": PAST,
    "LAST_BEAT_AT": "SYSDATE()",
}  # fmt: skip
QUEUED = {
    "QUEUE_ID": "'q'", "IDEMPOTENCY_KEY": "'k'", "NAME": "'n'", "SCENARIO": "'s'", "FILES": "'{}'", "TARGET": "''",
    "REQUIRES": "'[]'", "PRIORITY": "0", "STATUS": "'QUEUED'", "AVAILABLE_AT": PAST, "EPOCH": "0", "ATTEMPTS": "0",
    "MAX_ATTEMPTS": "3", "CREATED_AT": PAST, "UPDATED_AT": PAST,
}  # fmt: skip
CLAIMED = QUEUED | {
    "STATUS": "'RUNNING'", "OWNER": "'A'", "EPOCH": "1", "ATTEMPTS": "1", "AVAILABLE_AT": FUTURE
}  # fmt: skip
SCHEDULE = {
    "SCHEDULE_ID": "'s'", "NAME": "'n'", "CRON": "'* * * * *'", "TIMEZONE": "'UTC'", "SCENARIO_NAME": "'n'",
    "SCENARIO": "'s'", "FILES": "'{}'", "TARGET": "''", "REQUIRES": "'[]'", "PRIORITY": "0", "ENABLED": "TRUE",
    "MAX_CATCHUP": "1", "OVERLAP": "'skip'", "LAST_FIRE_AT": "TO_TIMESTAMP_NTZ('2020-01-01')", "CREATED_AT": PAST,
    "UPDATED_AT": PAST,
}  # fmt: skip
RUN = {
    "RUN_ID": "'r'", "TEST_ID": "'r'", "TEMPLATE_ID": "'t'", "TEST_NAME": "'n'", "SCENARIO_CONFIG": "'{}'",
    "STATUS": "'RUNNING'", "PHASE": "'MEASUREMENT'", "TOTAL_WORKERS_EXPECTED": "1", "WORKERS_REGISTERED": "0",
    "WORKERS_ACTIVE": "0", "WORKERS_COMPLETED": "0", "TOTAL_OPS": "0", "ERROR_COUNT": "0", "CURRENT_QPS": "0",
    "NEXT_SEQUENCE_ID": "1", "LEASE_EPOCH": "1", "CREATED_AT": PAST, "UPDATED_AT": PAST,
}  # fmt: skip
BEAT = {
    "RUN_ID": "'r'", "WORKER_ID": "'w'", "WORKER_GROUP_ID": "0", "STATUS": "'RUNNING'", "LAST_HEARTBEAT": PAST,
    "HEARTBEAT_COUNT": "5", "ACTIVE_CONNECTIONS": "0", "OPEN_CONNECTIONS": "0", "TARGET_CONNECTIONS": "0",
    "ERROR_COUNT": "0", "LAST_SEQUENCE_ID": "0", "HOSTNAME": "'h'", "PID": "1", "VERSION": "'1'", "LABELS": "'{}'",
    "CREATED_AT": PAST, "UPDATED_AT": PAST,
}  # fmt: skip


def moved(status: str, phase: str, end: int) -> tuple[Any, ...]:
    return (status, phase, "why", None, 1, 0, None, 0, None, 0, end, "r", "RUNNING", "MEASUREMENT", "r", 1, "o")


def beat(count: int) -> tuple[Any, ...]:
    return ("RUNNING", None, count, 0, 0, 0, None, 0, str(count), 0, None, None, "r", "w", "h", 1, count)


ROWS = [
    Row("RUN_LEASES", "live", LEASE[1], [
        ("renew", "renew", (60_000, "r", 1, "o")), ("release", "release", (-11_000, "r", 1, "o")),
        ("expire", "expire", ("r", 1, "o")), ("bury", "bury", (-11_000, "r", 1, "o")),
    ]),
    Row("RUN_STATUS", "RUNNING", RUN, [
        ("move → STOPPING", "move", moved("STOPPING", "COOLDOWN", 0)),
        ("move → FAILED", "move", moved("FAILED", "PROCESSING", 1)),
        ("publish", "publish", (1, 1, 0, 9, 0, 1.0, None, "{}", 2, 1, "r", "r", 1, "o")),
        ("cancel", "cancel", ("a user's stop", "r")), ("set_enrichment", "set_enrichment", ("DONE", "r")),
    ], [LEASE]),
    Row("WORKER_HEARTBEATS", "silent", BEAT, [
        ("beat 6", "beat", beat(6)), ("beat 7", "beat", beat(7)),
        ("replace by B", "replace", ("b", 2, "1", "{}", "r", "w", 0, 5, -60_000)),
        ("replace by C", "replace", ("c", 3, "1", "{}", "r", "w", 0, 5, -60_000)),
    ]),
    Row("RUN_QUEUE", "QUEUED", QUEUED, [
        ("claim by A", "claim", ("A", 60_000, "q", 0, "A", "")),
        ("claim by B", "claim", ("B", 60_000, "q", 0, "B", "")),
        ("cancel", "cancel", ("stop", "q")), ("refuse", "refuse", ("bad", "q", 0)), ("note", "note", ("w", "q", "w")),
    ], [("POOL_WORKERS", RUNNER | {"WORKER_ID": "'A'"}), ("POOL_WORKERS", RUNNER | {"WORKER_ID": "'B'"})]),
    Row("RUN_QUEUE", "RUNNING", CLAIMED, [
        ("extend", "extend", (60_000, "A")), ("expire", "expire", ("A",)), ("set_run", "set_run", ("run", "q", 1, "A")),
        ("finish", "finish", ("COMPLETED", "run", 0, None, "q", 1, "A")), ("cancel", "cancel", ("stop", "q")),
        ("give_back", "give_back", (0, 0, 0, 0, None, 1, None, "q", 1, "A")),
    ]),
    Row("RUN_QUEUE", "RUNNING, lease over", CLAIMED | {"AVAILABLE_AT": PAST}, [
        ("claim by B", "claim", ("B", 60_000, "q", 1, "B", "")),
        ("claim by C", "claim", ("C", 60_000, "q", 1, "C", "")),
        ("cancel", "cancel", ("stop", "q")), ("refuse", "refuse", ("bad", "q", 1)),
    ], [("POOL_WORKERS", RUNNER | {"WORKER_ID": "'B'"}), ("POOL_WORKERS", RUNNER | {"WORKER_ID": "'C'"})]),
    Row("RUN_QUEUE", "last attempt, lease over", CLAIMED | {"AVAILABLE_AT": PAST, "ATTEMPTS": "3"}, [
        ("end_abandoned", "end_abandoned", ("lost", "q", 1)), ("cancel", "cancel", ("stop", "q")),
    ]),
    Row("RUN_QUEUE", "FAILED", QUEUED | {"STATUS": "'FAILED'", "ENDED_AT": PAST}, [
        ("retry", "retry", ("again", "q")), ("retry too", "retry", ("again too", "q")),
    ]),
    Row("RUN_ATTEMPTS", "RUNNING", {
        "QUEUE_ID": "'q'", "EPOCH": "1", "OWNER": "'A'", "STATUS": "'RUNNING'", "STARTED_AT": PAST}, [
        ("set_run", "set_run", ("run", "q", 1)), ("end COMPLETED", "end", ("COMPLETED", "run", 0, None, "q", 1)),
        ("end LOST", "end", ("LOST", None, None, "lost", "q", 1)),
    ]),
    Row("POOL_WORKERS", "ONLINE, silent", RUNNER | {"WORKER_ID": "'A'", "LAST_BEAT_AT": PAST}, [
        ("beat", "beat", ("run", 1, 0, "A")), ("drain", "drain", ("A",)), ("offline", "offline", ("A",)),
        ("silent_offline", "silent_offline", ()), ("come_back", "come_back", ("ONLINE", "A")),
        ("retire", "retire", ("h", 1, "other")),
    ]),
    Row("SCHEDULES", "enabled", SCHEDULE, [
        ("settle Jan", "settle", ("2026-01-01", "s", "2026-01-01")),
        ("settle Feb", "settle", ("2026-02-01", "s", "2026-02-01")), ("complain", "complain", ("w", "s", "w")),
        ("disable", "disable", ("s",)), ("remove", "remove", ("s",)),
    ]),
    Row("SCHEDULES", "disabled", SCHEDULE | {"ENABLED": "FALSE"}, [
        ("enable", "enable", ("s",)), ("enable_with_past", "enable_with_past", ("s",)), ("remove", "remove", ("s",)),
    ]),
    Row("SCHEDULE_FIRES", "DUE", {
        "SCHEDULE_ID": "'s'", "FIRE_AT": "TO_TIMESTAMP_NTZ('2026-01-01')", "OUTCOME": "'DUE'", "CREATED_AT": PAST}, [
        ("queued A", "queued", ("A", "s", "2026-01-01")), ("queued B", "queued", ("B", "s", "2026-01-01")),
        ("remove", "remove", ("s",)),
    ]),
]  # fmt: skip


class Pairs:
    """Runs pairs on one server."""

    def __init__(self, server: EmbeddedServer, database: str, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._first, self._second, self._watcher = (
            Sql(server.connect(database=database, schema="CONTROL", session_parameters={"QUERY_TAG": tag} | UTC))
            for tag in ("first", "second", "watcher")
        )

    def reset(self, row: Row) -> None:
        for table, _ in [*row.others, (row.table, row.values)]:
            self._first(f"DELETE FROM {table}")
        for table, values in [*row.others, (row.table, row.values)]:
            columns, items = ", ".join(values), ", ".join(values.values())
            self._first(f"INSERT INTO {table} ({columns}) SELECT {items}")

    def state(self, row: Row) -> list[dict[str, Any]]:
        """The row; a time is as good as another on the same side of now."""
        now = self._watcher.value("SELECT SYSDATE()")
        found = self._watcher.dicts(f"SELECT * FROM {row.table}")
        return [
            {name: value if not hasattr(value, "year") or name in EXACT else ("future" if value > now else "past")
             for name, value in one.items()}
            for one in found
        ]  # fmt: skip

    def serial(self, row: Row, one: Any, two: Any) -> tuple[int, int, Any]:
        self.reset(row)
        counts = [self._first.count(sql(row, name), *binds) for _, name, binds in (one, two)]
        return counts[0], counts[1], self.state(row)

    def alone(self, row: Row, two: Any) -> int:
        self.reset(row)
        return self._first.count(sql(row, two[1]), *two[2])

    def waiting(self, row: Row, one: Any, two: Any) -> tuple[int, int, Any]:
        self.reset(row)
        self._first("BEGIN")
        first = self._first.count(sql(row, one[1]), *one[2])
        work = self._threads.submit(self._second.count, sql(row, two[1]), *two[2])
        wait_until(lambda: work.done() or self._watcher.value(BLOCKED) == 1, f"{two[0]} waits for {one[0]}")
        self._first("COMMIT")
        return first, work.result(PATIENCE_S), self.state(row)


UTC = {"TIMEZONE": "UTC"}
EXACT = {"LAST_FIRE_AT"}  # times that are compared as they are


def sql(row: Row, name: str) -> str:
    return load_queries(row.table.lower())[name].sql


def harmful(pairs: Pairs) -> Iterator[str]:
    for row in ROWS:
        matching = [one for one in row.statements if pairs.alone(row, one)]
        for left in [one[0] for one in row.statements if one not in matching]:
            yield f"{row.table} ({row.state}): {left} changes nothing here"
        for one, two in itertools.product(matching, matching):
            expected, got = pairs.serial(row, one, two), pairs.waiting(row, one, two)
            if expected != got:
                kind = _kind(sql(row, two[1]), expected, got)
                what = _difference(expected, got)
                yield f"{kind}: {row.table} ({row.state}): {two[0]} waited for {one[0]}: {what}"


def _kind(second: str, expected: tuple[int, int, Any], got: tuple[int, int, Any]) -> str:
    if expected[1] != got[1] or len(expected[2]) != len(got[2]):
        return "condition"
    differing = {name for one, two in zip(expected[2], got[2], strict=True) for name in one if one[name] != two[name]}
    assigned = set(re.findall(r"([A-Z_]+) = ", second.partition("WHERE")[0]))
    return "condition" if differing & assigned else "other columns"


def _difference(expected: tuple[int, int, Any], got: tuple[int, int, Any]) -> str:
    texts = [] if expected[1] == got[1] else [f"row count {got[1]}, not {expected[1]}"]
    if len(expected[2]) != len(got[2]):
        texts.append(f"{len(got[2])} rows, not {len(expected[2])}")
    for before, after in zip(expected[2], got[2], strict=False):
        texts += [f"{name} {after[name]!r}, not {before[name]!r}" for name in before if before[name] != after[name]]
    return "; ".join(texts)


def main() -> None:
    with EmbeddedServer("--strict-hybrid") as server, ThreadPoolExecutor(1, thread_name_prefix="second") as threads:
        plane = ControlPlane(server)
        count = 0
        for line in harmful(Pairs(server, plane.place.database, threads)):
            count += 1
            print(line, flush=True)
        print(f"{count} lines")
        plane.close()


if __name__ == "__main__":
    main()
