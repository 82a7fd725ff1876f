"""No text of a table can move the cursor, turn the reading direction, or pass for a line of loadgen.

Every text column of every table of the control plane is planted with such a text, and every reading command is read.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.control.tables import experiments, query_executions, schedules, value_pools
from loadgen.control.tables.experiments import ChangedWarehouse
from loadgen.control.tables.run_queue import QueueRequest
from loadgen.control.tables.schedules import NewSchedule
from loadgen.model.nightly import FireOutcome, Overlap, ScheduleFire
from loadgen.report.exports import RENDERERS
from loadgen.results.comparisons import read_experiment_result
from loadgen.workload.pools import Pool
from tests.command_line import Ask
from tests.contract.queue_builders import Queue
from tests.contract.test_experiments import CONFIG, measurement
from tests.contract.test_report import finished_run
from tests.control_plane import ControlPlane, retries
from tests.process.appended_tables import execution
from tests.unit.report_builders import hostile, record
from tests.unit.test_experiment_metering import METERING

pytestmark = pytest.mark.any_driver

# ESC, a mark that turns the reading direction, a newline; then what Markdown and HTML would read. Fits every column.
PLANTED = "\x1b\u202e\nq9|<a"
UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")

RUN = (
    "runs list",
    "runs list --format json",
    "runs show latest~1",
    "runs show latest~1 --format json",
    "runs logs latest~1",
    "runs logs latest~1 --format json",
    "status latest",
    "report latest~1 --format text",
    "report latest~1 --format md",
    "report latest~1 --format json",
)
SERIES = ("trend orders-mix", "compare latest~1 latest", "compare latest~1 latest --format json")
QUEUE = ("queue list", "queue list --format json", "queue show {queue_id}", "queue show {queue_id} --format json")
POOL = ("workers list", "workers list --format json", "workers show host-1", "pool stats")
SCHEDULE = ("schedule list", "schedule list --format json", "schedule show {schedule}", "schedule next")
EXPERIMENT = (
    "experiments list",
    "experiments list --format json",
    "experiments show latest",
    "experiments show latest --format json",
    "experiments show {experiment}",
)
COMMANDS = {
    "RUN_STATUS": (*RUN, *SERIES),
    "RUN_LEASES": ("status latest", "runs show latest"),
    "RUN_CONTROL_EVENTS": RUN[-3:],
    "WORKER_HEARTBEATS": RUN[2:4] + RUN[6:],
    "WINDOW_RESULTS": RUN[-3:],
    "VALUE_POOLS": RUN[-3:],
    "WORKER_METRICS_SNAPSHOTS": RUN[-3:],
    "QUERY_EXECUTIONS": RUN[-3:],
    "TEST_RESULTS": (*RUN[:4], *RUN[-3:], *SERIES),
    "TEST_LOGS": RUN[4:6] + RUN[-3:],
    "FIND_MAX_STEP_HISTORY": RUN[-3:],
    "WAREHOUSE_POLL_SNAPSHOTS": RUN[-3:],
    "RUN_QUEUE": QUEUE + SCHEDULE[2:3] + POOL[3:],
    "RUN_ATTEMPTS": QUEUE[2:],
    "RUN_ATTEMPT_ENDS": QUEUE[2:],
    "STOP_REQUESTS": RUN[2:4],
    "SCHEDULE_PROGRESS": SCHEDULE,
    "POOL_WORKERS": POOL,
    "SCHEDULES": SCHEDULE,
    "SCHEDULE_FIRES": SCHEDULE[2:3],
    "SCHEMA_VERSION": ("runs list",),
    "EXPERIMENTS": EXPERIMENT,
    "EXPERIMENT_BLOCKS": EXPERIMENT[2:],
    "EXPERIMENT_MEASUREMENTS": EXPERIMENT[2:],
    "EXPERIMENT_ENDS": EXPERIMENT,
    "EXPERIMENT_METERINGS": EXPERIMENT[2:],
    "EXPERIMENT_WAREHOUSES": EXPERIMENT[:1],  # read by `runs recover` alone, which acts
    "EXPERIMENT_WAREHOUSE_RESTORES": EXPERIMENT[:1],
}


class Tables:
    """A control plane with rows in its tables, and the values that are names of commands' arguments."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._run()
        plane.claim(plane.new_run(test_name="second"))
        queue = Queue(plane)
        self.queue_id = queue.add(requires=("zone=eu",))
        queue.runner("zone=eu", worker_id="host-1")
        first = queue.claim("host-1", "zone=eu")
        assert first is not None
        assert queue.release(first)
        assert queue.claim("host-1", "zone=eu") is not None
        wanted = QueueRequest(name="orders", scenario="version: 1", files={}, target="embedded/WH")
        self.schedule = "nightly"
        made = NewSchedule(
            name=self.schedule, cron="0 2 * * *", timezone="UTC", max_catchup=1, overlap=Overlap.QUEUE, wanted=wanted
        )
        schedule_id = schedules.add(plane.session, retries(), made)
        fire = ScheduleFire(at=datetime(2026, 11, 20, 2, tzinfo=UTC), outcome=FireOutcome.MISSED)
        schedules.record_fire(plane.session, retries(), schedule_id, fire)
        schedules.store_failure(plane.session, retries(), schedule_id, "the queue is full")
        self.experiment = self._experiment()
        result = read_experiment_result(plane.session, retries(), self.experiment)
        experiments.finish(plane.session, retries(), self.experiment, 1, result | {"verdict": "decided"})
        self._experiment()
        sql = "INSERT INTO STOP_REQUESTS (KIND, ID, REASON, REQUESTED_AT) SELECT 'RUN', RUN_ID, 'no', SYSDATE()"
        plane.change(f"{sql} FROM RUN_STATUS WHERE STATUS = 'COMPLETED'")
        for table in self.names():
            plane.change(f"CREATE TABLE KEPT_{table} AS SELECT * FROM {table}")

    def _run(self) -> None:
        """A finished run with a query log and a pool of values."""
        run_id = finished_run(self.plane)
        query_executions.append(self.plane.session, retries(), [execution(run_id, 1)])
        value_pools.store(self.plane.session, retries(), run_id, Pool("keys", ("a",)))
        self.plane.change("UPDATE RUN_STATUS SET STATUS = 'COMPLETED', VERDICT = 'passed', REASON = 'done'")

    def _experiment(self) -> str:
        """An experiment with a complete block and without a leader."""
        session, made = self.plane.session, uuid.uuid4().hex
        experiments.create(session, retries(), made, "which", json.dumps(CONFIG), "f" * 64)
        experiments.begin_block(session, retries(), made, 1, 1)
        for arm in ("small", "large"):
            experiments.record(session, retries(), made, measurement(arm=arm, run_id=f"run-{arm}"))
        experiments.meter(session, retries(), made, METERING)
        warehouse = ChangedWarehouse(
            experiment_id=made, epoch=1, warehouse_key="k", warehouse="WH", connection="c", settings={"size": "Small"}
        )
        experiments.record_warehouse(session, retries(), warehouse)
        experiments.record_restore(session, retries(), warehouse)
        return made

    def names(self) -> list[str]:
        return [table for (table,) in self._described("TABLE_NAME", "TABLES", "TABLE_NAME") if "KEPT" not in table]

    def planted(self, table: str) -> Iterator[str]:
        """Each text column in turn, as the server describes them, planted in every row."""
        what = "TABLE_NAME, COLUMN_NAME, DATA_TYPE, CHARACTER_MAXIMUM_LENGTH"
        for name, column, kind, length in self._described(what, "COLUMNS", "ORDINAL_POSITION"):
            if name != table or kind not in ("TEXT", "VARIANT"):
                continue
            if kind == "VARIANT":
                rows = self.plane.change(f'UPDATE {table} SET "{column}" = PARSE_JSON(?)', json.dumps(PLANTED))
            else:
                sql = f"""UPDATE {table} SET "{column}" = ? || RIGHT(COALESCE("{column}", ''), ?)"""
                rows = self.plane.change(sql, PLANTED, int(length) - len(PLANTED))  # keys stay different
            assert rows, f"{table} has no row for {column}"
            yield column
            self.plane.change(f"DELETE FROM {table}")
            self.plane.change(f"INSERT INTO {table} SELECT * FROM KEPT_{table}")

    def _described(self, what: str, view: str, order: str) -> list[tuple[Any, ...]]:
        sql = f"SELECT {what} FROM INFORMATION_SCHEMA.{view} WHERE TABLE_SCHEMA = ? ORDER BY {order}"
        return self.plane.rows(sql, self.plane.place.schema)


@pytest.fixture(scope="module")
def tables(plane: ControlPlane) -> Tables:
    return Tables(plane)


Asked = Callable[[str], tuple[int, str, str]]  # the command with placeholders


@pytest.fixture
def asked(ask: Ask, tables: Tables) -> Asked:
    names = {"queue_id": tables.queue_id, "schedule": tables.schedule, "experiment": tables.experiment}
    return lambda words: ask(*words.format(**names).split())


def test_every_table_has_its_reading_commands_and_each_works(tables: Tables, asked: Asked) -> None:
    assert sorted(COMMANDS) == tables.names()
    for words in dict.fromkeys(words for group in COMMANDS.values() for words in group):
        refused = 2 if words.startswith("compare") else 0  # the newer run has no result
        assert asked(words)[0] == refused, words


def output_of(words: str) -> str:
    return words.rpartition(" --format ")[2] if " --format " in words else "text"


# Every table as text; as Markdown and JSON the table with most texts, and the others with the slow tests.
OUTPUTS = [
    pytest.param(table, output, marks=[] if output == "text" or table == "TEST_RESULTS" else pytest.mark.slow)
    for table, commands in COMMANDS.items()
    for output in dict.fromkeys(map(output_of, commands))
]


@pytest.mark.parametrize(("table", "output"), OUTPUTS)
def test_planted_text_of_a_table_is_shown_and_does_nothing(
    tables: Tables, asked: Asked, table: str, output: str
) -> None:
    for column in tables.planted(table):
        for words in (words for words in COMMANDS[table] if output_of(words) == output):
            code, out, err = asked(words)
            where = f"{words}, with {table}.{column} planted, {code}: {out}{err}"

            assert not UNSEEN.search(out + err), where
            assert not re.search(r"^q9", out + err, re.MULTILINE), where
            if output == "md":
                assert "q9|" not in out, where
                assert "<a" not in out, where
            if output == "json":
                json.loads(out)


@pytest.mark.parametrize("output", ["text", "json"])
def test_planted_text_of_a_connections_file_is_shown_and_does_nothing(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = json.dumps(PLANTED)  # a TOML string is written like one of JSON
    file = tmp_path / "connections.toml"
    file.write_text(f"[{planted}]\n" + "".join(f"{key} = {planted}\n" for key in ("account", "user", "role", planted)))
    file.chmod(0o600)
    monkeypatch.setenv("SNOWFLAKE_HOME", str(tmp_path))

    assert main(["connections", "list", "--format", output]) == 0

    out, err = capsys.readouterr()
    assert "q9" in out
    assert "q9" in err  # a key that is not known
    assert not UNSEEN.search(out + err)
    assert not re.search(r"^q9", out + err, re.MULTILINE)


def leaves(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the texts of a JSON document are."""
    if isinstance(found, str):
        yield path
    elif isinstance(found, dict | list):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from leaves(value, (*path, key))


@pytest.mark.parametrize("kind", ["text", "md"])
def test_planted_text_of_a_summary_is_shown_and_does_nothing(kind: str) -> None:
    written = hostile(events=()).summary
    paths = list(leaves(written))
    assert len(paths) > 20
    for path in paths:
        summary = json.loads(json.dumps(written))
        place = summary
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = PLANTED

        shown = RENDERERS[kind](record(summary=summary))

        assert not UNSEEN.search(shown), path
        assert not re.search(r"^q9", shown, re.MULTILINE), path
        if kind == "md":
            assert "q9|" not in shown, path
