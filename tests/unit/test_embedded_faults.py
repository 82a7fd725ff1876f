"""Fault rules: what may be posted, which rule strikes, and that no pattern can hang the server."""

import pytest

from loadgen.embedded.fault_injection import KINDS, RULES_MAX, FaultRules, InvalidFaultRule


def rules_with(*posted: object, seed: int = 1) -> FaultRules:
    rules = FaultRules(seed)
    for one in posted:
        rules.add(one)
    return rules


def test_without_rules_nothing_strikes():
    rules = FaultRules(1)

    assert not rules.armed
    assert rules.pick("SELECT 1") is None
    assert rules.pick_path("/session") is None


def test_a_rule_strikes_the_statements_its_pattern_is_found_in():
    rules = rules_with(
        {"match": r"update\s+orders", "kind": "error", "errno": 625, "message": "too many", "sqlstate": "57014"}
    )

    fault = rules.pick("UPDATE  ORDERS SET A = 1")
    assert fault is not None
    assert (fault.kind, fault.errno, fault.message, fault.sqlstate) == ("error", 625, "too many", "57014")
    assert rules.pick("SELECT * FROM ORDERS") is None


def test_the_first_rule_that_strikes_wins():
    rules = rules_with(
        [
            {"match": "ORDERS", "kind": "reset", "count": 1},
            {"match": "ORDERS", "kind": "hang"},
        ]
    )

    assert [fault.kind for fault in (rules.pick("ORDERS"), rules.pick("ORDERS")) if fault] == ["reset", "hang"]


def test_a_pattern_that_starts_with_a_slash_is_for_paths_and_others_are_for_sql():
    rules = rules_with(
        {"match": "/session/v1/login", "kind": "http_status", "status": 503},
        {"match": "heartbeat", "kind": "reset"},
    )

    fault = rules.pick_path("/session/v1/login-request")
    assert fault is not None
    assert fault.status == 503
    assert rules.pick("/session/v1/login-request") is None
    assert rules.pick_path("/session/heartbeat") is None
    assert rules.pick("SELECT heartbeat") is not None


def test_a_counted_rule_strikes_so_often_and_no_more():
    rules = rules_with({"match": "X", "kind": "reset", "count": 2})

    assert [rules.pick(text) is not None for text in ("X", "Y", "X", "X", "X")] == [True, False, True, False, False]
    assert rules.listing()[0]["fired"] == 2


def test_a_probability_is_kept_and_the_seed_decides():
    def struck(seed: int, *before: object) -> list[bool]:
        rules = rules_with({"match": "X", "kind": "reset", "probability": 0.3}, *before, seed=seed)
        return [rules.pick("X") is not None for _ in range(2_000)]

    assert struck(5) == struck(5)
    assert struck(5) == struck(5, {"match": "Y", "kind": "hang", "probability": 0.5}), "rules draw apart"
    assert struck(5) != struck(6)
    assert 500 < sum(struck(5)) < 700


def test_rules_posted_together_have_separate_ids_and_draws():
    rules = FaultRules(1)
    ids = rules.add([{"match": name, "kind": "reset", "probability": 0.5} for name in "XY"])

    assert ids == [1, 2]
    assert rules.add({"match": "Z", "kind": "reset"}) == [3]
    struck = [[rules.pick(name) is not None for _ in range(100)] for name in "XY"]
    assert struck[0] != struck[1]


@pytest.mark.parametrize(("probability", "strikes"), [(0, False), (1, True)])
def test_the_ends_of_a_probability_are_certain(probability, strikes):
    rules = rules_with({"match": "X", "kind": "reset", "probability": probability})

    assert {rules.pick("X") is not None for _ in range(100)} == {strikes}


def test_the_listing_shows_every_rule_as_posted():
    rules = rules_with(
        {"match": "A", "kind": "latency", "ms": 5}, {"match": "B", "kind": "error", "errno": 604, "count": 3}
    )
    rules.pick("A")

    assert rules.listing() == [
        {
            "id": 1, "match": "A", "kind": "latency", "probability": 1.0, "count": None, "ms": 5.0,
            "fired": 1, "switched_off": None,
        },
        {
            "id": 2, "match": "B", "kind": "error", "probability": 1.0, "count": 3, "errno": 604,
            "fired": 0, "switched_off": None,
        },
    ]  # fmt: skip


def test_clearing_disarms_and_ids_are_not_used_again():
    rules = rules_with({"match": "A", "kind": "reset"}, {"match": "B", "kind": "reset"})

    assert rules.clear() == 2
    assert not rules.armed
    assert rules.pick("A") is None
    assert rules.add({"match": "A", "kind": "reset"}) == [3]
    assert rules.armed


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_posted(kind):
    fault = rules_with({"match": "X", "kind": kind, "ms": 1, "errno": 604, "status": 500}).pick("X")

    assert fault is not None
    assert fault.kind == kind


@pytest.mark.parametrize(
    ("posted", "says"),
    [
        ("reset", "a fault rule is an object, got 'reset'"),
        (None, "a fault rule is an object, got nothing"),
        ({"kind": "reset"}, "match must be a regular expression, got nothing"),
        ({"match": "", "kind": "reset"}, "match must be a regular expression"),
        ({"match": "(", "kind": "reset"}, "match is not a regular expression: missing )"),
        ({"match": "x" * 1001, "kind": "reset"}, "match may have 1000 characters, got 1001"),
        ({"match": "x"}, "kind must be one of latency, error, http_status"),
        ({"match": "x", "kind": "explode"}, "got 'explode'"),
        ({"match": "x", "kind": []}, "kind must be one of"),
        ({"match": "x", "kind": "latency"}, "kind latency needs ms"),
        ({"match": "x", "kind": "http_status", "status": 99}, "status must be a whole number from 100 to 599, got 99"),
        ({"match": "x", "kind": "reset", "odds": 1}, "odds is not a field of a fault rule"),
        ({"match": "x", "kind": "reset", "probability": 1.5}, "probability must be a number from 0 to 1, got 1.5"),
        ({"match": "x", "kind": "reset", "probability": True}, "probability must be a number"),
        ({"match": "x", "kind": "reset", "count": 0}, "count must be a whole number from 1"),
        ({"match": "x", "kind": "reset", "count": 1.5}, "count must be a whole number from 1"),
        ({"match": "x", "kind": "latency", "ms": -1}, "ms must be a number from 0"),
        ({"match": "x", "kind": "latency", "ms": float("nan")}, "ms must be a number from 0"),
        ({"match": "x", "kind": "error", "errno": "625"}, "errno must be a whole number"),
        ({"match": "x", "kind": "error", "errno": 1, "sqlstate": "570144"}, "sqlstate must be a text of at most 5"),
        ({"match": "x", "kind": "error", "errno": 1, "message": 5}, "message must be a text"),
    ],
)
def test_an_invalid_rule_is_an_error_and_changes_nothing(posted, says):
    rules = FaultRules(1)

    with pytest.raises(InvalidFaultRule) as caught:
        rules.add([{"match": "x", "kind": "reset"}, posted])

    assert says in str(caught.value)
    assert rules.listing() == []
    assert not rules.armed


def test_all_problems_of_a_rule_are_named_at_once():
    with pytest.raises(InvalidFaultRule) as caught:
        FaultRules(1).add({"kind": "latency", "count": -1, "probability": 7})

    assert str(caught.value).count(";") == 3


def test_the_number_of_rules_is_limited():
    rules = FaultRules(1)
    rules.add([{"match": "x", "kind": "reset"}] * RULES_MAX)

    with pytest.raises(InvalidFaultRule, match="at most 1000"):
        rules.add({"match": "x", "kind": "reset"})


def test_only_the_beginning_of_a_long_statement_is_searched():
    rules = rules_with({"match": "needle", "kind": "reset"})

    assert rules.pick("x" * 9_000 + "needle") is not None
    assert rules.pick("x" * 10_000 + "needle") is None


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", r"(?:a?){40}a{40}x", ".*.*.*.*.*x", r"(.*)\1y"])
def test_a_pattern_that_would_search_for_ever_is_switched_off_and_the_others_work_on(pattern):
    rules = rules_with({"match": pattern, "kind": "reset"}, {"match": "a", "kind": "hang"})

    fault = rules.pick("a" * 9_999 + "!")

    assert fault is not None
    assert fault.kind == "hang"
    assert "processor time" in rules.listing()[0]["switched_off"]
    assert rules.listing()[1]["switched_off"] is None
