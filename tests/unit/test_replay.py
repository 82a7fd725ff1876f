"""Replay: what a capture makes of a scenario, how statements are dealt to workers and slots, and when they are due."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.window import ClientResourceUse
from loadgen.model.capture import CaptureManifest, RecordedStatement, StatementRole
from loadgen.prepare.prepare import deal_replay
from loadgen.rules.client_health import ClientHealth
from loadgen.rules.plan import plan_run, planned_arrivals
from loadgen.rules.scenario_plan import plan, plan_text
from loadgen.scenario.document import ScenarioProblems
from loadgen.scenario.frozen import freeze, template_id, thaw
from loadgen.scenario.model import LoadMode, Scenario, with_workers
from loadgen.scenario.read import LoadedScenario, read_scenario
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.worker.client_context import ArrivalQueue
from loadgen.workload.pools import Pool
from loadgen.workload.replay import PLAN_PARTS, CaptureUnusable, RecordedStream, SessionArrivals, bound_value
from tests.unit.test_capture import captured, row

SCENARIO = """
version: 1
name: again
connection: embedded
target: {warehouse: WH%s}
load: {mode: replay, capture: captured, workers: %s%s}
%s
"""


def recorded(folder: Path, rows: Sequence[object] | None = None, **options: object) -> CaptureManifest:
    made = (
        rows
        if rows is not None
        else [
            row(f"SELECT a FROM t{number % 3} WHERE b = {number + 10}", number / 10, session=number % 4)
            for number in range(40)
        ]
    )
    return captured(folder / "captured", made, **options)  # type: ignore[arg-type]


def loaded(folder: Path, more: str = "", *, workers: int = 2, target: str = "", rest: str = "") -> LoadedScenario:
    path = folder / "again.yaml"
    path.write_text(SCENARIO % (target, workers, more and f", {more}", rest), "utf-8")
    return read_scenario(path, environ={})


def dealt(folder: Path, more: str = "", **options: object) -> tuple[Scenario, list[RecordedStream]]:
    scenario = with_workers(loaded(folder, more, **options).scenario, cores=2)  # type: ignore[arg-type]
    scenario, pools = deal_replay(scenario, folder)
    return scenario, [RecordedStream(pool, scenario.load.duration_s or 0.0) for pool in pools.values()]


def texts(stream: RecordedStream) -> list[str]:
    return [str(stream.draw(number)[1][0][0]) for number in range(stream.end)]


# --- the scenario ----------------------------------------------------------------------------------------------------


def test_a_capture_makes_the_load_and_the_statements(tmp_path):
    manifest = recorded(tmp_path)

    scenario = loaded(tmp_path, "speed: 2").scenario

    load = scenario.load
    assert load.mode is LoadMode.REPLAY
    assert (load.connections, load.warmup_s) == (4, 0.0)
    assert load.duration_s == pytest.approx(manifest.span_ms / 2000)
    assert sum(one.weight for one in scenario.workload.statements) == 40
    assert {one.name.rsplit("_", 1)[0] for one in scenario.workload.statements} == {
        "select_t0",
        "select_t1",
        "select_t2",
    }


def test_the_stored_scenario_comes_back_and_does_not_name_a_folder(tmp_path):
    recorded(tmp_path)
    scenario, _ = dealt(tmp_path)

    again = thaw(freeze(scenario), {})

    assert scenario.load.replay is not None
    assert again.load.replay == replace(scenario.load.replay, folder="")
    assert template_id(again) == template_id(scenario)
    assert again.workload == scenario.workload


def test_rare_templates_are_measured_together(tmp_path):
    rows = [row(f"SELECT c{number} FROM t", number) for number in range(60)]

    recorded(tmp_path, rows)

    names = [one.name for one in loaded(tmp_path).scenario.workload.statements]
    assert len(names) == 41
    assert names[-1] == "other_reads"


def test_the_plan_shows_what_is_sent(tmp_path):
    recorded(tmp_path)

    text = plan_text(plan(loaded(tmp_path), cores=2))

    assert "Sends 40 recorded statements at speed 1 over 4 connections, one for each session" in text
    assert "14 expected" in text
    assert "as recorded" in text


@pytest.mark.parametrize(
    ("more", "rest", "problem"),
    [
        ("duration: 5s", "", "load.duration: belongs to mode concurrency and rate"),
        ("warmup: 5s", "", "load.warmup: belongs to mode"),
        ("max_connections: 5", "", "belongs to sessions: spread"),
        ("", "workload: {statements: [{name: a, sql: SELECT 1}]}", "a replay sends the statements of its capture"),
        ("", "thresholds: [nothing.p95 < 5ms]", "names a statement that does not exist"),
        ("", "thresholds: [{check: p95 < 5s, window: 10m}]", "is longer than the measurement"),
        ("speed: 0", "", "speed"),
    ],
)
def test_what_does_not_fit_a_replay_is_refused(tmp_path, more, rest, problem):
    recorded(tmp_path)

    with pytest.raises(ScenarioProblems) as caught:
        loaded(tmp_path, more, rest=rest)

    assert problem in str(caught.value)


def test_thresholds_may_be_about_lag_and_templates(tmp_path):
    manifest = recorded(tmp_path)

    made = loaded(tmp_path, rest=f"thresholds: [lag_p99 < 5ms, {manifest.templates[0].name}.p95 < 50ms]")

    assert len(made.scenario.thresholds) == 2


@pytest.mark.parametrize(
    ("capture", "problem"),
    [
        ("null", "is missing: mode replay needs it"),
        ("/tmp", "is outside of the scenario's folder"),
        ("../other", "is outside of the scenario's folder"),
        ("nothing", "cannot be read: No such file"),
        ("broken", "is not a capture: not JSON"),
        ("newer", "is not a capture: it has version 99"),
    ],
)
def test_a_folder_that_is_no_capture_is_refused(tmp_path, capture, problem):
    for name, text in (("broken", "{"), ("newer", json.dumps({"format": "loadgen-capture", "version": 99}))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "capture.json").write_text(text, "utf-8")
    path = tmp_path / "again.yaml"
    path.write_text((SCENARIO % ("", 1, "", "")).replace("captured", capture), "utf-8")

    with pytest.raises(ScenarioProblems) as caught:
        read_scenario(path, environ={})

    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "options", "problem"),
    [
        ([row("DELETE FROM t")], {}, "has no statement to send"),
        ([row()], {"hide_names": True}, "has hidden names"),
    ],
)
def test_a_capture_that_cannot_be_sent_is_refused(tmp_path, rows, options, problem):
    recorded(tmp_path, rows, **options)

    with pytest.raises(ScenarioProblems) as caught:
        loaded(tmp_path)

    assert problem in str(caught.value)


# --- what each worker gets -------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1_000)), min_size=1, max_size=40),
    st.integers(1, 4),
    st.sampled_from(["0.5", "1", "4"]),
)
def test_every_session_is_kept_in_order_by_one_slot(tmp_path_factory, moments, workers, speed):
    folder = tmp_path_factory.mktemp("replay")
    rows = [row(f"SELECT {n} FROM t", ms / 1000, session=session) for n, (session, ms) in enumerate(moments)]
    recorded(folder, rows)

    scenario, streams = dealt(folder, f"speed: {speed}", workers=workers)

    sent: Counter[str] = Counter()
    for worker, stream in enumerate(streams):
        arrivals = SessionArrivals(7, stream, 1_000)
        own = 0
        for slot in range(6):
            dues = []
            while (number := arrivals.take(slot)) is not None:
                dues.append(arrivals.due_ns(number))
                sent[texts(stream)[number]] += 1
                own += 1
            assert dues == sorted(dues)
        counts = planned_arrivals(scenario.load, plan_run(scenario.load), worker, workers, seed=1)
        assert counts == {None: own}
    assert sum(sent.values()) == len(moments)
    assert scenario.load.duration_s is not None
    last_us = max(stream.due_us(stream.end - 1) for stream in streams if stream.end)
    first_ms, last_ms = min(ms for _, ms in moments), max(ms for _, ms in moments)
    assert last_us == round((last_ms - first_ms) * 1000 / float(speed))


def test_recorded_times_are_kept_for_each_statement(tmp_path):
    recorded(tmp_path, [row(f"SELECT a FROM t WHERE b = {ms}", ms, ms=float(ms)) for ms in range(1, 101)])

    scenario, _ = dealt(tmp_path)

    assert scenario.load.replay is not None
    (times,) = scenario.load.replay.recorded
    assert (times.count, times.avg_ms, times.p50_ms, times.p95_ms) == (100, 50.5, 50.0, 95.0)


def test_the_plan_of_an_aborted_run_ends_with_it(tmp_path):
    """With the last whole hundredth: statements come in bursts, here of ten at the end of every second."""
    recorded(tmp_path, [row("SELECT a FROM t WHERE b = 1", n // 10) for n in range(101)])
    scenario, (stream,) = dealt(tmp_path, workers=1)
    load, plan = scenario.load, plan_run(scenario.load)
    dues_s = [stream.due_s(number) for number in range(stream.end)]
    part_s = (load.duration_s or 0.0) / PLAN_PARTS

    for tenth in range(120):
        until_s = plan.measures_s + tenth * 0.1 + 0.05
        planned = planned_arrivals(load, plan, 0, 1, seed=1, until_s=until_s)[None]
        due = [sum(one <= tenth * 0.1 + 0.05 - early_s for one in dues_s) for early_s in (part_s, 0.0)]
        assert due[0] <= planned <= due[1]
    assert planned == stream.end


def test_session_statements_go_before_the_next_statement_of_their_session(tmp_path):
    where: dict[str, Any] = {"database": "D", "schema": "S"}
    rows = [
        row("SET v = 'abc'", 1, session=1, **where),
        row("SELECT 1", 2, session=1, **where),
        row("USE SCHEMA e.f", 3, session=1, **where),
        row("SELECT 2", 4, session=1, database="E", schema="F"),
        row("ALTER SESSION SET TIMEZONE = 'UTC'", 5, session=1, database="E", schema="F"),
        row("SELECT 3", 6, session=2, database='quo"te', schema=None),
    ]
    recorded(tmp_path, rows)

    _, (stream,) = dealt(tmp_path, workers=1)

    context = [stream.context_of(number, stream.slot_of(number)) for number in range(3)]
    assert context[0][0].startswith("SET v = '")
    assert context[0][1:] == ('USE SCHEMA "D"."S"',)
    assert context[1:] == [('USE SCHEMA "E"."F"',), ('USE DATABASE "quo""te"',)]
    assert stream.context_so_far(0) == context[0] + context[1]


def test_a_database_of_the_scenario_replaces_the_recorded_ones(tmp_path):
    recorded(tmp_path, [row("SELECT 1", database="D", schema="S")])

    _, (stream,) = dealt(tmp_path, workers=1, target=", database: OTHER")

    assert stream.context_of(0, 0) == ()


def test_writes_are_sent_when_asked_for(tmp_path):
    rows = [row("BEGIN", 1), row("DELETE FROM t", 2), row("COMMIT", 3), row("SELECT a FROM t", 4)]
    recorded(tmp_path, rows)

    _, (reads,) = dealt(tmp_path, workers=1)
    scenario, (everything,) = dealt(tmp_path, "writes: replay", workers=1)

    names = [one.name.rsplit("_", 1)[0] for one in scenario.workload.statements]
    assert texts(reads) == ["SELECT a FROM t"]
    assert texts(everything) == ["BEGIN", "DELETE FROM t", "COMMIT", "SELECT a FROM t"]
    assert sorted(names) == ["delete_t", "select_t", "transaction"]


def test_spread_statements_go_to_the_next_free_connection(tmp_path):
    recorded(tmp_path)

    scenario, streams = dealt(tmp_path, "sessions: spread, max_connections: 3")

    queue = ArrivalQueue(1, streams[0], 5 * NS_PER_S)
    assert scenario.load.connections == 3
    assert [stream.end for stream in streams] == [20, 20]
    assert [queue.take(slot) for slot in (2, 0, 1)] == [0, 1, 2]
    assert queue.due_ns(1) == 5 * NS_PER_S + streams[0].due_us(1) * 1000


def test_a_closed_window_leaves_over_what_was_due_in_it(tmp_path):
    recorded(tmp_path)
    _, (stream,) = dealt(tmp_path, workers=1)
    arrivals = SessionArrivals(1, stream, 0)
    taken = [arrivals.take(slot) for slot in range(4)]

    left = list(arrivals.close(2 * NS_PER_S))

    assert taken == [0, 1, 2, 3]
    assert sorted(left) == list(range(4, 21))
    assert [arrivals.take(slot) for slot in range(4)] == [None] * 4


def test_a_worker_that_joins_late_leaves_out_what_was_due_before(tmp_path):
    recorded(tmp_path)
    _, (stream,) = dealt(tmp_path, workers=1)

    arrivals = SessionArrivals(1, stream, 0, since_ns=2 * NS_PER_S)

    assert sorted(arrivals.close(10 * NS_PER_S)) == list(range(20, 40))


@pytest.mark.parametrize(
    ("bind", "value"),
    [
        (("FIXED", "42"), 42),
        (("FIXED", "4.20"), Decimal("4.20")),
        (("REAL", "1.5"), 1.5),
        (("BOOLEAN", "true"), True),
        (("TEXT", "x"), "x"),
        (("TEXT", None), None),
        (("DATE", "1700006400000"), date(2023, 11, 15)),
        (("TIMESTAMP_NTZ", "1700000000000000000"), datetime(2023, 11, 14, 22, 13, 20)),  # noqa: DTZ001
        (("TIMESTAMP_NTZ", "2023-11-14 22:13:20"), "2023-11-14 22:13:20"),
        (("TIME", "3600000000000"), time(1, 0)),
        (("BINARY", "0aff"), b"\x0a\xff"),
        (("FIXED", "not a number"), "not a number"),
    ],
)
def test_bind_values_get_their_types_back(bind, value):
    assert bound_value(bind) == value


def test_a_damaged_capture_is_refused_before_the_run(tmp_path):
    recorded(tmp_path)
    scenario = with_workers(loaded(tmp_path).scenario, cores=2)
    path = tmp_path / "captured" / "statements.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(CaptureUnusable, match="is damaged or was changed"):
        deal_replay(scenario, tmp_path)


def test_a_replaced_capture_is_detected(tmp_path):
    recorded(tmp_path)
    scenario = with_workers(loaded(tmp_path).scenario, cores=2)
    for path in (tmp_path / "captured").iterdir():
        path.unlink()
    recorded(tmp_path)

    with pytest.raises(CaptureUnusable, match="has changed since"):
        deal_replay(scenario, tmp_path)


def test_an_empty_part_is_a_stream_without_statements():
    assert RecordedStream(Pool("~replay 3", ("[]",)), 1.0).end == 0


def test_lines_of_a_capture_come_back(tmp_path):
    one = RecordedStatement(
        session=3, at_ms=1.5, role=StatementRole.READ, template="t", sql="SELECT ?", binds=(("FIXED", 5),), rows=0
    )

    assert RecordedStatement.of_line(one.line()) == one


# --- client lag ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("late_ms", "invalid"), [(0.5, False), (2.0, False), (30.0, True)])
def test_a_client_that_sends_late_makes_the_replay_invalid(late_ms, invalid):
    late = Histogram.of([round(late_ms * NS_PER_MS)] * 10)  # type: ignore[arg-type]
    health = ClientHealth.of(ClientResourceUse(elapsed_ms=1000, sent_late=late))

    reason = health.saturation(100.0)

    assert (reason is not None) == invalid
    assert reason is None or "sent statements 30.0 ms late on average, 30 % of the mean service time" in reason
