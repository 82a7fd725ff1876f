"""Mode replay with several users: how often each statement is sent, over which connection, and with which values."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter

import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.capture.statement_text import FreshValues
from loadgen.model.capture import RecordedStatement, StatementRole
from loadgen.prepare.prepare import deal_replay, read_statements
from loadgen.prepare.session import PreparationStopped
from loadgen.rules.plan import plan_run, planned_arrivals
from loadgen.rules.scenario_plan import plan, plan_text
from loadgen.scenario.document import ScenarioProblems
from loadgen.scenario.frozen import freeze, thaw
from loadgen.scenario.model import with_workers
from loadgen.scenario.read import read_scenario
from loadgen.workload import replay as replay_module
from loadgen.workload.replay import CaptureUnusable, RecordedStream, SessionArrivals
from tests.unit.test_capture import row
from tests.unit.test_pseudonyms import TEMPLATES, cleaner, planted
from tests.unit.test_replay import dealt, loaded, recorded, texts

CAPTURE = "5e" * 32
WORDS = ("Catherine Johnson", "4711471147", "b7e23ec2-9a4f-4b0e-8d53-7f6a4c1d2e3f", "DE-90210 x")


def statement(sql: str, *binds: tuple[str, str]) -> RecordedStatement:
    return RecordedStatement(session=0, at_ms=0.0, role=StatementRole.READ, template="t", sql=sql, binds=binds)


def literal(one: RecordedStatement) -> str:
    return one.sql.split("'")[1]


# --- how often, and over which connection ----------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 500)), min_size=1, max_size=25),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["keep", "spread"]),
)
def test_every_session_is_sent_once_for_each_user(tmp_path_factory, moments, users, workers, sessions):
    folder = tmp_path_factory.mktemp("users")
    rows = [row(f"SELECT {n} FROM t{n % 3}", ms / 1000, session=session) for n, (session, ms) in enumerate(moments)]
    manifest = recorded(folder, rows, keep_values=True)

    scenario, streams = dealt(folder, f"users: {users}, sessions: {sessions}", workers=workers)

    keeps = sessions == "keep"
    assert scenario.load.connections == (manifest.sessions * users if keeps else 64)
    sent: Counter[str] = Counter()
    connections: list[list[tuple[int, str]]] = []  # of kept sessions: what each sends, and when it is due
    for worker, stream in enumerate(streams):
        sent.update(texts(stream))
        planned = planned_arrivals(scenario.load, plan_run(scenario.load), worker, workers, seed=1)
        assert planned == {None: stream.end}
        arrivals = SessionArrivals(7, stream, 0)
        for slot in {stream.slot_of(number) for number in range(stream.end)} if keeps else ():
            connections.append([])
            while (number := arrivals.take(slot)) is not None:
                connections[-1].append((stream.due_us(number), texts(stream)[number]))
    assert sent == {one.text: users for one in rows}
    if keeps:
        found = read_statements(folder / "captured")
        by_session: dict[int, list[tuple[int, str]]] = {}
        for one in found:
            by_session.setdefault(one.session, []).append((round(one.at_ms * 1000), one.sql))
        assert sorted(connections) == sorted(own for own in by_session.values() for _ in range(users))


def test_the_connections_of_a_worker_are_its_share_of_all(tmp_path):
    recorded(tmp_path, [row(f"SELECT {n}", n / 10, session=n % 3) for n in range(9)])

    scenario, streams = dealt(tmp_path, "users: 5", workers=4)

    slots = [{stream.slot_of(number) for number in range(stream.end)} for stream in streams]
    assert scenario.load.connections == 15
    assert slots == [{0, 1, 2, 3}] * 3 + [{0, 1, 2}]


def test_recorded_times_count_each_statement_once(tmp_path):
    recorded(tmp_path)

    alone, _ = dealt(tmp_path)
    scenario, _ = dealt(tmp_path, "users: 3")

    assert scenario.load.replay is not None
    assert alone.load.replay is not None
    assert scenario.load.replay.recorded == alone.load.replay.recorded
    assert sum(times.count for times in scenario.load.replay.recorded) == 40


def test_the_plan_and_the_stored_scenario_know_the_users(tmp_path):
    recorded(tmp_path)

    scenario, _ = dealt(tmp_path, "users: 3")
    text = plan_text(plan(loaded(tmp_path, "users: 3"), cores=2))

    again = thaw(freeze(scenario), {})
    assert again.load.replay is not None
    assert again.load.replay.users == 3
    assert (
        "Sends 40 recorded statements for each of 3 users at speed 1 over 12 connections, one for each session" in text
    )
    assert "42 expected" in text  # 14 of the most frequent template
    assert "load.users" in text


def test_one_user_is_stored_as_before(tmp_path):
    recorded(tmp_path)
    scenario, _ = dealt(tmp_path)

    assert "users" not in json.loads(freeze(scenario))["replay"]


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "problem", "hint"),
    [
        ("users: 0", "load.users", "1"),
        ("users: -1", "load.users", "1"),
        ("users: 1000000000", "load.users", "10,000"),
        ("users: 1.5", "load.users", "whole"),
        ("users: many", "load.users", "number"),
        (
            "users: 2501",
            "needs 10,004 connections (4 recorded sessions × 2,501 users), and a run has at most 10,000",
            "write at most 2,500, or sessions: spread",
        ),
    ],
)
def test_a_number_of_users_that_cannot_be_is_refused(tmp_path, more, problem, hint):
    recorded(tmp_path)

    with pytest.raises(ScenarioProblems) as caught:
        loaded(tmp_path, more)

    assert problem in str(caught.value)
    assert hint in str(caught.value)


def test_users_belong_to_a_replay(tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text(
        "version: 1\nname: x\nload: {users: 2}\nworkload: {statements: [{name: a, sql: SELECT 1}]}", "utf-8"
    )

    with pytest.raises(ScenarioProblems) as caught:
        read_scenario(path, environ={})

    assert "load.users: belongs to mode replay" in str(caught.value)


def test_more_statements_than_fit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(replay_module, "POOL_VALUES_MAX", 50)
    recorded(tmp_path)
    scenario = with_workers(loaded(tmp_path, "users: 3").scenario, cores=2)

    with pytest.raises(CaptureUnusable, match="has 120 statements, and 50 for each of 2 workers") as caught:
        deal_replay(scenario, tmp_path)

    assert "fewer users" in caught.value.remedy


def test_an_interrupt_ends_the_reading_of_a_capture(tmp_path):
    recorded(tmp_path)
    scenario, stop = with_workers(loaded(tmp_path, "users: 3").scenario, cores=2), threading.Event()
    stop.set()

    with pytest.raises(PreparationStopped, match="while the capture was read"):
        deal_replay(scenario, tmp_path, stop)


def test_a_missing_parser_is_reported(tmp_path, monkeypatch):
    recorded(tmp_path)
    scenario = with_workers(loaded(tmp_path).scenario, cores=2)
    monkeypatch.delitem(sys.modules, "loadgen.capture.statement_text")
    monkeypatch.setitem(sys.modules, "sqlglot", None)

    with pytest.raises(CaptureUnusable, match="needs a package that is not installed: sqlglot") as caught:
        deal_replay(scenario, tmp_path)

    assert "loadgen[capture]" in caught.value.remedy


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", WORDS)
def test_each_user_has_values_of_the_same_shape(value):
    fresh = FreshValues(CAPTURE, 20)
    one = statement(f"SELECT a FROM t WHERE b = '{value}'", ("TEXT", value))

    made = [fresh.of_user(user, one) for user in range(20)]

    assert made[0] == one
    assert len({literal(copy) for copy in made}) == 20
    assert all(copy.binds == (("TEXT", literal(copy)),) for copy in made)  # one value stays one value
    assert {len(literal(copy)) for copy in made} == {len(value)}


@pytest.mark.parametrize("template", TEMPLATES)
def test_fresh_values_keep_the_statement_and_its_template(template):
    random_, fresh, work = random.Random(22), FreshValues(CAPTURE, 5), cleaner()
    for user in (1, 2, 3, 4) * 5:
        values = [planted(random_, "card" in template and place > 0) for place in range(template.count("{}"))]
        clean = work.clean(template.format(*values))

        made = fresh.of_user(user, statement(clean.text)).sql

        assert made != clean.text
        assert work.clean(made).template == clean.template
        assert sqlglot.parse_one(made, dialect="snowflake").sql("snowflake")


def test_the_values_of_a_user_are_the_same_in_every_run():
    one = statement("SELECT 'Catherine', 12345 FROM t", ("FIXED", "98765"))

    first, again = (FreshValues(CAPTURE, users).of_user(2, one) for users in (3, 9))
    other = FreshValues("5f" * 32, 3).of_user(2, one)

    assert first == again
    assert first.sql != other.sql


def test_moments_and_what_is_no_data_stay():
    sql = (
        "SELECT 1 FROM t WHERE d BETWEEN '2026-11-01' AND '2026-11-15 08:00:00' AND c = '09:30'"
        " AND e = '11/05/2026' AND ok = TRUE LIMIT 10"
    )
    binds = (("DATE", "1700006400000"), ("TIMESTAMP_NTZ", "1700000000000000000"), ("TIME", "3600000000000"))

    made = FreshValues(CAPTURE, 3).of_user(2, statement(sql, *binds, ("BOOLEAN", "true")))

    assert made.sql == sql
    assert made.binds == (*binds, ("BOOLEAN", "true"))


def test_real_values_are_sent_by_every_user_as_they_are(tmp_path):
    recorded(tmp_path, [row("SELECT a FROM t WHERE b = 'Catherine'")], keep_values=True)

    _, streams = dealt(tmp_path, "users: 4")

    assert {text for stream in streams for text in texts(stream)} == {"SELECT a FROM t WHERE b = 'Catherine'"}


def test_pseudonyms_differ_between_users_and_not_inside_of_one(tmp_path):
    rows = [
        row("SET name = 'Catherine'", 0, session=1),
        row("SELECT a FROM t WHERE b = 'Catherine'", 1, session=1),
        row("SELECT a FROM t WHERE b = 'Catherine'", 2, session=2),
        row("SELECT a FROM u WHERE b = ?", 3, session=2, binds=(("TEXT", "Catherine"),)),
    ]
    recorded(tmp_path, rows)

    _, streams = dealt(tmp_path, "users: 3", workers=1)

    words = users_words(streams[0])
    assert len(set(words)) == 3
    assert all(len(own) == 1 for own in words)


def users_words(stream: RecordedStream) -> list[frozenset[str]]:
    """Every value that each user sends: user u has the slots u, users + u …"""
    found: list[set[str]] = [set(), set(), set()]
    for number in range(stream.end):
        (sql,), binds = stream.draw(number)[1]
        sent = [str(sql), *stream.context_of(number, stream.slot_of(number))]
        own = found[stream.slot_of(number) % 3]
        own.update(text.split("'")[1] for text in sent if "'" in text)
        own.update(map(str, binds))
    return [frozenset(own) for own in found]
