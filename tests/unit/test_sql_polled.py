"""Statements that are sent every few seconds: an index of the hybrid table finds their rows."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlglot import exp

from loadgen.control.session import NamedQuery
from tests.unit.sql_texts import QUERIES, TABLES, parsed

# The predicates for which Snowflake uses an index: = < > <= >= IN BETWEEN STARTSWITH, with constants.
# Statements that are sent again and again while a run, a runner or a pool lives, each with the column it begins with.
POLLED = {
    "run_status.read": "RUN_ID",
    "run_status.poll": "RUN_ID",
    "run_status.publish": "RUN_ID",
    "run_leases.renew": "RUN_ID",
    "run_control_events.poll": "RUN_ID",
    "run_control_events.emit": "RUN_ID",
    "worker_heartbeats.read": "RUN_ID",
    "worker_heartbeats.beat": "RUN_ID",
    "run_queue.open_runs": "STATUS",
    "run_queue.refuse_long": "STATUS",
    "run_attempts.read_state": "QUEUE_ID",
    "run_attempts.claim": "WORKER_ID",
    "run_attempts.extend": "QUEUE_ID",
    "pool_workers.beat": "WORKER_ID",
    "run_queue.candidates": "STATUS",
    "run_queue.depth": "STATUS",
    "run_queue.waiting": "STATUS",
    "run_queue.owners": "STATUS",
    "run_queue.unsettled": "STATUS",
    "run_status.unfinished": "STATUS",
    "run_attempts.open_of": "OWNER",
    "pool_workers.offers": "STATUS",
    "pool_workers.silent_offline": "STATUS",
    "schedule_fires.due": "OUTCOME",
    "schedules.enabled": "SCHEDULE_ID",
}


# Conditions of them that no index answers, and why that is no matter.
NO_INDEX = {
    ("run_queue.candidates", "COALESCE(A.EXPIRES_AT, Q.AVAILABLE_AT)"): "of the runs under way, which STATUS has found",
    ("run_queue.depth", "COALESCE(A.EXPIRES_AT, Q.AVAILABLE_AT)"): "of the runs under way, which STATUS has found",
    ("pool_workers.offers", "COALESCE(W.STALE_SECONDS, 30)"): "of the runners ONLINE, which STATUS has found",
    ("pool_workers.silent_offline", "COALESCE(STALE_SECONDS, 30)"): "of the runners ONLINE, which STATUS has found",
}
# Columns that are long, and the polled statements that need one.
LONG = {"SCENARIO", "FILES", "SCENARIO_CONFIG", "LIVE_METRICS"}
NEEDED = {"worker_heartbeats.read": {"LIVE_METRICS"}, "worker_heartbeats.beat": {"LIVE_METRICS"}}


def source_of(query: NamedQuery) -> tuple[Any, str]:
    """The part of a statement that finds its rows, and their table."""
    statement = parsed(query)
    found = statement.expression if isinstance(statement, exp.Insert) else statement
    source = found.this if isinstance(found, exp.Update) else (found.args.get("from_") or found.args["from"]).this
    return found, source.name


def conditions_no_index_answers(query: NamedQuery) -> list[str]:
    """Inequalities, IS NULL and COALESCE in any WHERE or ON of a statement."""
    statement = parsed(query)
    places = [*statement.find_all(exp.Where), *(join.args.get("on") for join in statement.find_all(exp.Join))]
    kinds = (exp.NEQ, exp.Is, exp.Coalesce)
    return sorted({one.sql("snowflake") for place in places if place is not None for one in place.find_all(*kinds)})


@pytest.mark.parametrize("name", POLLED)
def test_what_is_polled_begins_with_an_index(name):
    """Statements of every few seconds have a condition that an index answers, and read no scenario."""
    (query,) = (query for query in QUERIES if query.name == name)
    found, table = source_of(query)
    where = found.args["where"].this
    conditions = list(where.flatten()) if isinstance(where, exp.And) else [where]
    answered = [one for one in conditions if isinstance(one, (exp.EQ, exp.In, exp.GT))]

    assert POLLED[name] in {one.this.name for one in answered if isinstance(one.this, exp.Column)}
    assert POLLED[name] in TABLES[table].indexed
    assert set(re.findall(r"\w+", query.sql)) & LONG == NEEDED.get(name, set())


def test_what_is_polled_has_conditions_that_an_index_answers():
    queries = [query for query in QUERIES if query.name in POLLED]

    assert {(query.name, one) for query in queries for one in conditions_no_index_answers(query)} == set(NO_INDEX)


@pytest.mark.parametrize(
    ("condition", "seen"),
    [
        ("A <> ?", ["A <> ?"]),
        ("B = ? AND (A IS NULL OR A > ?)", ["A IS NULL"]),
        ("NOT A IS NULL", ["A IS NULL"]),
        ("A = COALESCE(?, B)", ["COALESCE(?, B)"]),
        ("A IN (SELECT C FROM S WHERE C <> ?)", ["C <> ?"]),
        ("A = ? AND B > SYSDATE()", []),
    ],
)
def test_a_condition_that_no_index_answers_is_seen(condition, seen):
    query = NamedQuery(
        name="test", sql=f"SELECT COALESCE(A, 1), IFF(A IS NULL, 1, 0) FROM T WHERE {condition}", binds=0
    )

    assert conditions_no_index_answers(query) == seen
