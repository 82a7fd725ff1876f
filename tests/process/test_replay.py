"""Captured and replayed: executed statements are sent again, and the history of the server contains what arrived."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import TIMING, RunHarness
from tests.processes import ROOT

SESSIONS, STATEMENTS = 3, 12
TOTAL = SESSIONS * STATEMENTS + 1  # with the one that fills the table, which is due at once
SERVICE_TIME = "150ms"  # in the recording and in the replay: long beside what a busy machine adds
SPEED = 0.5  # leaves each session time before its next statement
EXAMPLE = ROOT / "examples" / "replay"
SCENARIO = {
    "version": 1,
    "name": "again",
    "connection": "embedded",
    "embedded": {"service_time": SERVICE_TIME},
    "thresholds": ["error_rate <= 0%"],
    "timing": TIMING,
}


def execute_sessions(server: EmbeddedServer, database: str, warehouse: str) -> None:
    """A few sessions at the same time, each with reads by number, so that order can be seen, and some writes."""
    with server.connect(database=database, schema="PUBLIC") as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE WAREHOUSE {warehouse}")
        server.model(warehouse, service_time=SERVICE_TIME)
        cursor.execute("CREATE OR REPLACE TABLE numbers (id INT, name VARCHAR)")
        cursor.execute("INSERT INTO numbers VALUES (1, 'one'), (2, 'two')")

    def session(number: int) -> None:
        with server.connect(database=database, schema="PUBLIC", warehouse=warehouse) as connection:
            cursor = connection.cursor()
            cursor.execute("ALTER SESSION SET TIMEZONE = 'Europe/Berlin'")
            for step in range(STATEMENTS):
                if step % 4 == 3:
                    cursor.execute("INSERT INTO numbers VALUES (?, 'new')", (step,))
                elif step % 2:
                    cursor.execute(f"SELECT 'session {number}', id FROM numbers WHERE id < {1000 + step}")
                else:
                    cursor.execute("SELECT name FROM numbers WHERE id = ? LIMIT 5", (step,))
                server.wait_server_ms(40)

    threads = [threading.Thread(target=session, args=(number,), name=f"s{number}") for number in range(SESSIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def capture(harness: RunHarness, warehouse: str, *words: str) -> dict[str, Any]:
    place = ("-c", "embedded", "--warehouse", warehouse, "--from", "1h", "--out", harness.home / "captured")
    program = harness.start("capture", *place, "--format", "json", *words)
    assert program.ended() == 0, program.said
    found: dict[str, Any] = program.printed
    return found


def replay(harness: RunHarness, warehouse: str, **load: Any) -> dict[str, Any]:
    document = SCENARIO | {
        "target": {"warehouse": f"{warehouse}_AGAIN"},
        "load": {"mode": "replay", "capture": "captured", "workers": 2} | load,
    }
    path = harness.home / "again.yaml"
    path.write_text(json.dumps(document), "utf-8")
    program = harness.start("run", path, "--format", "json")
    program.ended()
    return program.summary


def arrived(server: EmbeddedServer, run_id: str) -> list[dict[str, Any]]:
    lines = server.ask(f"/__loadgen/history?tag={run_id}")
    measured = [line for line in lines if json.loads(line["query_tag"])["phase"] == "MEASUREMENT"]
    return sorted(measured, key=lambda line: float(line["start_ms"]))


def test_a_captured_workload_is_replayed_in_order(harness: RunHarness, server, database):
    warehouse = f"{database}_WH"
    execute_sessions(server, database, warehouse)
    manifest = capture(harness, warehouse, "--keep-values")

    summary = replay(harness, warehouse, speed=SPEED, writes="replay", workers=1)

    sent = arrived(server, summary["run_id"])
    sent_roles = ("read", "write")
    by_template = {one["name"]: one["count"] for one in manifest["templates"] if one["role"] in sent_roles}
    assert summary["totals"]["failed"] == 0, summary["errors"]
    assert summary["totals"]["scheduled"] == summary["totals"]["succeeded"] == TOTAL == len(sent)
    assert {name: one["succeeded"] for name, one in summary["statements"].items()} == by_template
    assert summary["connections"] == SESSIONS + 1
    assert summary["lag_ms"]
    compared = {one["statement"]: one for one in summary["replay"]["compared"]}
    assert {name: one["recorded"]["count"] for name, one in compared.items()} == by_template
    assert all(one["recorded"]["avg"] >= 150.0 <= one["replayed"]["avg"] for one in compared.values())
    inserted = next(one for name, one in compared.items() if "insert" in name and one["recorded"]["count"] > 1)
    assert inserted["recorded"]["rows_avg"] == inserted["replayed"]["rows_avg"] == 1.0
    assert all(one["replayed"]["rows_avg"] is not None for one in compared.values())
    page = next(harness.home.glob("*/runs/*/report.html")).read_text("utf-8")
    assert "Recorded and replayed" in page
    assert 'id="arrivals"' in page
    sessions = defaultdict(list)
    for line in sent:
        sessions[line["session_id"]].append(line["sql_text"])
    assert len(sessions) == SESSIONS + 1
    for texts in [found for found in sessions.values() if len(found) > 1]:  # each with its literals, in order
        numbers = [int(text.split()[-1]) for text in texts if "session" in text]
        assert numbers == [1000 + step for step in range(STATEMENTS) if step % 4 == 1]
        assert len({text.split(",")[0] for text in texts if "session" in text}) == 1


@pytest.mark.slow
def test_a_stopped_client_makes_a_replay_invalid(harness: RunHarness, server, database):
    warehouse = f"{database}_WH"
    execute_sessions(server, database, warehouse)
    capture(harness, warehouse)
    document = SCENARIO | {
        "target": {"warehouse": f"{warehouse}_AGAIN"},
        "load": {"mode": "replay", "capture": "captured", "workers": 1, "speed": 0.2},
    }
    path = harness.home / "again.yaml"
    path.write_text(json.dumps(document), "utf-8")
    program = harness.start("run", path, "--format", "json")
    program.wait_for("RUNNING MEASUREMENT")

    worker = program.worker("worker-0")
    os.kill(worker.pid, signal.SIGSTOP)
    server.wait_server_ms(4_000)
    os.kill(worker.pid, signal.SIGCONT)

    assert program.ended() == 5
    assert any("the client was the limit" in reason for reason in program.summary["validity"]["reasons"])


@pytest.mark.slow
def test_users_repeat_every_session_with_other_values(harness: RunHarness, server):
    users = ("--set", "load.users=3", "--set", "load.workers=2", "--set", "embedded.service_time=10ms")
    program = harness.start("run", EXAMPLE / "replay.yaml", "--format", "json", *users)

    program.ended()

    summary, manifest = program.summary, json.loads((EXAMPLE / "captured" / "capture.json").read_text("utf-8"))
    assert summary["totals"]["failed"] == 0, summary["errors"]
    counts = {one["name"]: 3 * one["count"] for one in manifest["templates"] if one["role"] == "read"}
    assert {name: one["succeeded"] for name, one in summary["statements"].items()} == counts
    assert summary["replay"]["users"] == 3
    assert summary["connections"] == 3 * manifest["sessions"]
    sessions = defaultdict(list)
    for line in arrived(server, summary["run_id"]):
        sessions[line["session_id"]].append(line["sql_text"])
    assert len(sessions) == 3 * manifest["sessions"]
    shapes = Counter(tuple(re.sub(r"'[^']*'|\d+", "?", text) for text in texts) for texts in sessions.values())
    assert all(count % 3 == 0 for count in shapes.values())  # the same templates in the same order
    assert len({tuple(texts) for texts in sessions.values()}) > len(shapes)  # and other values


@pytest.mark.slow
def test_a_slow_server_makes_statements_late_and_is_no_fault_of_the_client(harness: RunHarness):
    """At speed 4 sessions are busy all the time: what is late or never sent is the server's, and judged as its time."""
    slow = ("load.speed=4", "load.users=3", "embedded.service_time=300ms", "thresholds=[p95 < 100ms]")
    words = [word for pair in slow for word in ("--set", pair)]
    program = harness.start("run", EXAMPLE / "replay.yaml", "--format", "json", *words)

    program.ended()

    summary = program.summary
    totals, late = summary["totals"], summary["replay"]["late"]
    assert totals["failed"] == 0, summary["errors"]
    assert totals["scheduled"] == 3 * 37 == totals["succeeded"] + totals["skipped"] + totals["cancelled"]
    assert late["sent_late"] > late["by_client"]
    assert late["skipped"] == totals["skipped"] > 0
    assert summary["delivered"]["overload_arrivals"] > 0
    assert not any("sent statements" in reason or "not sent" in reason for reason in summary["validity"]["reasons"])
    assert summary["thresholds"][0]["passed"] is False  # so the run has failed, and is not INVALID


@pytest.mark.slow
def test_a_derived_scenario_runs(harness: RunHarness, server, database):
    with server.connect(database=database, schema="PUBLIC") as connection:
        connection.cursor().execute("CREATE TABLE desk_orders (id INT, customer VARCHAR, status VARCHAR, placed DATE)")
    derived = harness.start("capture", "--scenario", EXAMPLE / "captured", "--out", harness.home / "derived")
    assert derived.ended() == 0, derived.said
    target = ("connection=embedded", f"target.database={database}", "target.schema=PUBLIC", "load.workers=1")
    words = [word for pair in target for word in ("--set", pair)]

    program = harness.start("run", harness.home / "derived" / "scenario.yaml", "--format", "json", *words)
    program.ended()

    summary = program.summary
    manifest = json.loads((EXAMPLE / "captured" / "capture.json").read_text("utf-8"))
    names = {one["name"] for one in manifest["templates"] if one["role"] == "read"}
    assert summary["totals"]["failed"] == 0, summary["errors"]
    assert {name for name, one in summary["statements"].items() if one["succeeded"]} == names
    assert summary["totals"]["scheduled"] == pytest.approx(manifest["roles"]["read"], abs=2)


@pytest.mark.slow
def test_the_example_runs_as_it_is(harness: RunHarness):
    program = harness.start("run", EXAMPLE / "replay.yaml", "--format", "json")

    program.ended()

    summary = program.summary
    counts = Counter({name: one["succeeded"] for name, one in summary["statements"].items()})
    manifest = json.loads((EXAMPLE / "captured" / "capture.json").read_text("utf-8"))
    assert summary["totals"]["failed"] == 0, summary["errors"]
    assert counts.total() == manifest["roles"]["read"]
