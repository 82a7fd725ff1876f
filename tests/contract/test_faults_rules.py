"""Rules of faults: what they match, how often they fire, and which are rejected."""

from __future__ import annotations

import json
import urllib.error

import pytest

from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.failure import classify
from tests.contract.connection_builders import load_of, profile_of
from tests.contract.fault_builders import failure_of

pytestmark = pytest.mark.any_driver


def test_count_limits_how_often_a_rule_strikes(server, load, statement):
    statement.fault(kind="error", errno=100183, count=2)
    outcomes = []

    for _ in range(4):
        try:
            outcomes.append(load.cursor().execute(statement.sql).fetchall())
        except Exception as error:
            outcomes.append(classify(error).code)

    (rule,) = server.ask("/__loadgen/faults")
    assert outcomes == [100183, 100183, [(7,)], [(7,)]]
    assert (rule["fired"], rule["count"]) == (2, 2)


def test_probability_is_the_rate_at_which_a_rule_fires(fresh, database):
    profile = profile_of(fresh.address, database=database)
    fresh.fault(match="SELECT 7", kind="error", errno=100183, probability=0.25)
    connection = connect(profile, load_of(profile))
    codes = []

    for _ in range(200):
        try:
            connection.cursor().execute("SELECT 7")
        except Exception as error:
            codes.append(classify(error).code)
    close(connection)

    assert set(codes) == {100183}
    assert fresh.ask("/__loadgen/faults")[0]["fired"] == len(codes)
    assert 25 <= len(codes) <= 80  # more than four standard deviations to both sides


def test_a_rule_fires_only_on_matching_statements_ignoring_case(server, load, database):
    server.fault(match=rf"from\s+struck_{database.lower()}\b", kind="error", errno=100183)
    cursor = load.cursor()
    cursor.execute(f"CREATE TABLE STRUCK_{database} (A INTEGER)")
    cursor.execute(f"CREATE TABLE STRUCK_{database}_NOT (A INTEGER)")

    error = failure_of(load, f"SELECT A FROM  Struck_{database} WHERE A > 0")

    assert classify(error).code == 100183
    assert cursor.execute(f"SELECT A FROM STRUCK_{database}_NOT").fetchall() == []


def test_the_first_rule_that_strikes_wins(load, statement):
    statement.fault(kind="error", errno=111, sqlstate="22000", count=1)
    statement.fault(kind="error", errno=222, sqlstate="22000")

    codes = [classify(failure_of(load, statement.sql)).code for _ in range(2)]

    assert codes == [111, 222]


def test_deleting_the_rules_ends_all_faults(server, load, statement):
    statement.fault(kind="error", errno=100183)
    failure_of(load, statement.sql)

    answer = server.ask("/__loadgen/faults", method="DELETE")

    assert answer == {"cleared": 1}
    assert server.ask("/__loadgen/faults") == []
    assert load.cursor().execute(statement.sql).fetchall() == [(7,)]


def test_rules_can_be_given_as_a_list_all_or_none(server, load, statement):
    good = {"match": statement.mark, "kind": "reset"}

    answer = server.ask("/__loadgen/faults", method="POST", body=[good, good])
    with pytest.raises(urllib.error.HTTPError):
        server.ask("/__loadgen/faults", method="POST", body=[good, {"match": "x", "kind": "earthquake"}])

    assert len(answer["ids"]) == len(server.ask("/__loadgen/faults")) == 2


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"match": "x", "kind": "earthquake"}, ["kind must be one of latency, error", "'earthquake'"]),
        ({"match": "x"}, ["kind must be one of"]),
        ({"kind": "reset"}, ["match must be a regular expression"]),
        ({"match": "(", "kind": "reset"}, ["match is not a regular expression"]),
        ({"match": "x", "kind": "latency"}, ["kind latency needs ms"]),
        ({"match": "x", "kind": "http_status", "status": 99}, ["status must be a whole number from 100 to 599"]),
        ({"match": "x", "kind": "error", "errno": "625"}, ["errno must be a whole number", "'625'"]),
        ({"match": "x", "kind": "reset", "probability": 1.5}, ["probability must be a number from 0 to 1, got 1.5"]),
        ({"match": "x", "kind": "reset", "count": 0}, ["count must be a whole number from 1"]),
        ({"match": "x", "kind": "reset", "typo": 1}, ["typo is not a field of a fault rule"]),
        ({"kind": "latency", "probability": 2}, ["match", "ms", "probability"]),
        ("not an object", ["object"]),
        ([1], ["a fault rule is an object"]),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_every_problem_named(server, rule, words):
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.ask("/__loadgen/faults", method="POST", body=rule)

    text = json.loads(caught.value.read())["error"]
    assert caught.value.code == 400
    for word in words:
        assert word in text
    assert server.ask("/__loadgen/faults") == []
