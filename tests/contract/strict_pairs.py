"""Statements of the control plane that do harm after waiting for a row: test_strict_hybrid expects none.

    python -m tests.contract.strict_pairs

Two statements of `schemas/queries` change one row: `first` holds its lock in a transaction, `second` waits for it on a
server with --strict-hybrid. Pairs of which HARMLESS says why they do no harm are left out. Another pair is printed when
the row count of `second`, or the row afterwards, is not what it is when both run one after the other:

    condition       the row count, or a column that `second` assigns: its condition or its values were out of date
    other columns   only columns that `second` does not name: it has put them back

Every statement that changes or deletes rows of a hybrid table is in HARMLESS: see tests/unit/test_sql_hygiene.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from loadgen.control.session import load_queries
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
    return (
        status,
        phase,
        "why",
        None,
        1,
        0,
        None,
        0,
        None,
        0,
        end,
        "r",
        "RUNNING",
        "RUNNING",
        "MEASUREMENT",
        "r",
        1,
        "o",
    )


def beat(count: int) -> tuple[Any, ...]:
    return ("RUNNING", None, count, 0, 0, 0, None, 0, str(count), 0, None, None, "r", "w", "h", 1, count)


ONE_LEADER = (
    "the leader writes to the row from one thread; its successor begins 10 s after its lease, when its last statement"
    " has ended. A statement whose answer was lost may put back an older state: the leader reads the row at each tick"
    " and goes on from there; a run that has ended looks unfinished then, and recovery ends it with its stored result"
)
ONE_USER = "users alone write to the row: of two wishes at once either may come last, and no row count is used"
REGISTRY = "it says who lives: the next beat has the whole state, or must register again. Wishes are other rows"
OVER = "the lease is over either way"
LEASES, RUNS, RUNNERS = (
    "renew|release|expire|release_of_dead",
    "move|publish|set_enrichment",
    "beat|beat_draining|offline|silent_offline|retire",
)
# statement: (what it may have waited for, why it does no harm that it acts on the version it saw)
HARMLESS = {
    "run_leases.renew": (
        LEASES,
        "its holder has stopped or is gone: a successor has the next epoch, or waits",
    ),
    "run_leases.release": (LEASES, OVER),
    "run_leases.expire": (LEASES, OVER),
    "run_leases.release_of_dead": (LEASES, OVER),
    "run_status.move": (RUNS, ONE_LEADER),
    "run_status.publish": (RUNS, ONE_LEADER),
    "run_status.set_enrichment": (
        RUNS,
        "the leader sends it in its turn, others after the end",
    ),
    "worker_heartbeats.beat": (
        "beat|replace",
        "it holds the whole state, and the next one follows. Of a worker and the one that replaces it, the row belongs"
        " to one: the other finds that at its next beat, and ends",
    ),
    "worker_heartbeats.replace": ("beat|replace", "two are kept apart by a lease; for a beat before it, see beat"),
    "run_queue.settle": ("settle|note|refuse", "it is looked at afterwards; what is decided is in other tables"),
    "run_queue.note": ("settle|note|refuse", "it is settled afterwards; two notes of one reason are two notifications"),
    "run_queue.refuse": ("settle|note|refuse", "of a row that loadgen did not write"),
    "run_queue.refuse_long": ("", "not tried: of a row that loadgen did not write"),
    "run_attempts.extend": ("extend|set_run", "its owner alone writes to the row, and each beat has lease and run"),
    "run_attempts.set_run": ("extend|set_run", "its owner alone writes to the row, and each beat has lease and run"),
    "pool_workers.beat": (f"{RUNNERS}|come_back", REGISTRY),
    "pool_workers.beat_draining": (f"{RUNNERS}|come_back", REGISTRY),
    "pool_workers.come_back": (f"{RUNNERS}|come_back", REGISTRY),
    "pool_workers.offline": (f"{RUNNERS}|come_back", REGISTRY),
    "pool_workers.silent_offline": (f"{RUNNERS}|come_back", REGISTRY),
    "pool_workers.retire": (f"{RUNNERS}|come_back", REGISTRY),
    "pool_workers.prune": ("", "not tried: of runners that were silent for a week"),
    "schedules.enable": ("enable|enable_with_past|remove", ONE_USER),
    "schedules.enable_with_past": ("enable|enable_with_past|remove", ONE_USER),
    "schedules.disable": ("disable|remove", ONE_USER),
    "schedules.remove": ("remove", ONE_USER),
    "schedules.settle": (
        "settle|remove_progress",
        "fires that are found again are recorded: their key says so",
    ),
    "schedules.store_failure": ("settle|store_failure|remove_progress", "as settle; a reason may be said twice"),
    "schedules.remove_progress": ("remove_progress", "what is written later belongs to no schedule"),
    "schedule_fires.queued": ("queued|remove", "the run of a fire has one id: the queue's idempotency key makes it so"),
    "schedule_fires.delete_old": ("", "not tried: of fires of long ago"),
    "schedule_fires.remove": ("remove", "their schedule is gone"),
}


ROWS = [
    Row("RUN_LEASES", "live", LEASE[1], [
        ("renew", "renew", (60_000, "r", 1, "o")), ("release", "release", (-11_000, "r", 1, "o")),
        ("expire", "expire", ("r", 1, "o")), ("release_of_dead", "release_of_dead", (-11_000, "r", 1, "o")),
    ]),
    Row("RUN_STATUS", "RUNNING", RUN, [
        ("move → STOPPING", "move", moved("STOPPING", "COOLDOWN", 0)),
        ("move → FAILED", "move", moved("FAILED", "PROCESSING", 1)),
        ("publish", "publish", (1, 1, 0, 9, 0, 1.0, None, "{}", 2, 1, "r", "r", 1, "o")),
        ("set_enrichment", "set_enrichment", ("DONE", "r")),
    ], [LEASE]),
    Row("WORKER_HEARTBEATS", "silent", BEAT, [
        ("beat 6", "beat", beat(6)), ("beat 7", "beat", beat(7)),
        ("replace", "replace", ("b", 2, "1", "{}", "r", "w", 0, 5, -60_000, "r", 1, "o")),
    ], [LEASE]),
    Row("RUN_QUEUE", "QUEUED", QUEUED, [
        ("settle RUNNING", "settle", ("RUNNING", 1, "A", 1, None, None, None, "2026-01-01", None, "q")),
        ("settle CANCELLED", "settle", ("CANCELLED", 1, None, 0, None, None, "why", "2026-01-01", "2026-01-01", "q")),
        ("note", "note", ("w", "q", "w")), ("refuse", "refuse", ("bad", "q", 0)),
    ]),
    Row("RUN_ATTEMPTS", "RUNNING", {
        "QUEUE_ID": "'q'", "EPOCH": "1", "OWNER": "'A'", "STATUS": "'RUNNING'", "STARTED_AT": PAST, "ATTEMPTS": "1",
        "EXPIRES_AT": FUTURE}, [
        ("extend", "extend", (60_000, None, "q", 1, "A", "q", 1)), ("set_run", "set_run", ("run", "q", 1, "A", "q", 1)),
        ("extend, with its run", "extend", (60_000, "run", "q", 1, "A", "q", 1)),
    ]),
    Row("POOL_WORKERS", "ONLINE, silent", RUNNER | {"WORKER_ID": "'A'", "LAST_BEAT_AT": PAST}, [
        ("beat", "beat", (30, "run", 1, 0, "A", "A")), ("beat_draining", "beat_draining", (30, "run", 1, 0, "A")),
        ("offline", "offline", ("A",)), ("silent_offline", "silent_offline", ()),
        ("come_back", "come_back", ("ONLINE", "A")), ("retire", "retire", ("A", "other")),
    ]),
    Row("SCHEDULES", "enabled", SCHEDULE, [("disable", "disable", ("s",)), ("remove", "remove", ("s",))]),
    Row("SCHEDULES", "disabled", SCHEDULE | {"ENABLED": "FALSE"}, [
        ("enable", "enable", ("s",)), ("enable_with_past", "enable_with_past", ("s",)), ("remove", "remove", ("s",)),
    ]),
    Row("SCHEDULE_PROGRESS", "settled", {
        "SCHEDULE_ID": "'s'", "LAST_FIRE_AT": "TO_TIMESTAMP_NTZ('2020-01-01')", "UPDATED_AT": PAST}, [
        ("settle Jan", "settle", ("2026-01-01", "s", "2026-01-01")),
        ("settle Feb", "settle", ("2026-02-01", "s", "2026-02-01")),
        ("store_failure", "store_failure", ("w", "s", "w")),
        ("remove_progress", "remove_progress", ("s",)),
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

    def close(self) -> None:
        for sql in (self._first, self._second, self._watcher):
            sql.connection.close()

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


FILES = {"SCHEDULE_PROGRESS": "schedules"}  # of statements, where it is not the table's
UTC = {"TIMEZONE": "UTC"}
EXACT = {"LAST_FIRE_AT"}  # times that are compared as they are


def sql(row: Row, name: str) -> str:
    return load_queries(FILES.get(row.table, row.table.lower()))[name].sql


def harmless(row: Row, first: str, second: str) -> bool:
    firsts, _ = HARMLESS.get(f"{FILES.get(row.table, row.table.lower())}.{second}", ("", ""))
    return re.fullmatch(firsts, first) is not None


def harmful(pairs: Pairs) -> Iterator[str]:
    for row in ROWS:
        matching = [one for one in row.statements if pairs.alone(row, one)]
        for left in [one[0] for one in row.statements if one not in matching]:
            yield f"{row.table} ({row.state}): {left} changes nothing here"
        for one, two in itertools.product(matching, matching):
            if harmless(row, one[1], two[1]):
                continue
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
        pairs = Pairs(server, plane.place.database, threads)
        count = 0
        for line in harmful(pairs):
            count += 1
            print(line, flush=True)
        print(f"{count} lines")
        pairs.close()
        plane.close()


if __name__ == "__main__":
    main()
