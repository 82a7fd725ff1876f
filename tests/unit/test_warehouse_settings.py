"""Settings of warehouses: their SQL, their values in SHOW, and when they are settled."""

from __future__ import annotations

import pytest

from loadgen.model.warehouse import alter_sql, create_sql, settings_from, unsettled
from tests.unit.test_experiment_file import MINIMAL, problems, read

SHOWN = {
    "name": "BENCH_WH",
    "state": "STARTED",
    "size": "X-Small",
    "generation": "1",
    "min_cluster_count": 1,
    "max_cluster_count": 2,
    "scaling_policy": "STANDARD",
    "enable_query_acceleration": "false",
    "available": "100",
    "quiescing": "",
}
PARAMETERS = {"MAX_CONCURRENCY_LEVEL": "8"}
ALL = frozenset(
    (
        "size",
        "generation",
        "min_clusters",
        "max_clusters",
        "scaling_policy",
        "max_concurrency_level",
        "query_acceleration",
    )
)
FOUND = {
    "size": "X-Small",
    "generation": "1",
    "min_clusters": 1,
    "max_clusters": 2,
    "scaling_policy": "STANDARD",
    "max_concurrency_level": 8,
    "query_acceleration": False,
}


def test_settings_from_show_can_be_set_again():
    found = settings_from(SHOWN, PARAMETERS, ALL)

    assert found == FOUND
    assert alter_sql('"BENCH_WH"', found) == (
        "ALTER WAREHOUSE \"BENCH_WH\" SET GENERATION = '1' MAX_CLUSTER_COUNT = 2 MAX_CONCURRENCY_LEVEL = 8"
        " MIN_CLUSTER_COUNT = 1 ENABLE_QUERY_ACCELERATION = FALSE SCALING_POLICY = 'STANDARD'"
        " WAREHOUSE_SIZE = 'X-Small'"
    )


@pytest.mark.parametrize("key", ["size", "generation", "scaling_policy"])
@pytest.mark.parametrize("text", ["Small' COMMENT = 'x", "\\' COMMENT = \\'x", "2\\", ""])
def test_a_text_that_snowflake_does_not_know_is_never_in_a_statement(key: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a warehouse size|is not one of"):
        alter_sql('"W"', {key: text})


def test_a_setting_that_is_not_shown_is_unknown():
    with pytest.raises(ValueError, match="generation is not shown"):
        settings_from({**SHOWN, "generation": None}, {}, frozenset({"generation"}))


@pytest.mark.parametrize(
    ("shown", "wanted", "told"),
    [
        ({}, FOUND, None),
        ({}, {"size": "XSMALL"}, None),
        ({}, {"size": "Small"}, "WAREHOUSE_SIZE is X-Small instead of Small"),
        ({"available": "50"}, {"size": "X-Small"}, "50 % of it is available, 0 % is being released"),
        ({"quiescing": "25"}, {"size": "X-Small"}, "100 % of it is available, 25 % is being released"),
        ({"state": "RESIZING"}, {"size": "X-Small"}, "it is RESIZING"),
        ({"state": "SUSPENDED", "available": ""}, {"size": "X-Small"}, None),
        ({}, {"max_concurrency_level": 4}, "MAX_CONCURRENCY_LEVEL is 8 instead of 4"),
    ],
)
def test_a_warehouse_is_settled_when_it_is_as_wanted_and_complete(shown, wanted, told):
    assert unsettled({**SHOWN, **shown}, PARAMETERS, wanted) == told


# --- in the file -----------------------------------------------------------------------------------------------------


def with_warehouse(text):
    return MINIMAL.replace("few: {}", f"few: {{warehouse: {text}}}")


def test_an_arm_may_change_settings_of_its_warehouse(tmp_path):
    written = "{name: W, size: s, generation: 2, min_clusters: 1, max_clusters: 3, scaling_policy: economy,"
    written += " max_concurrency_level: 4, query_acceleration: true}"

    arm = read(tmp_path, with_warehouse(written)).file.arms["few"]

    assert arm.settings == {
        "size": "Small",
        "generation": "2",
        "min_clusters": 1,
        "max_clusters": 3,
        "scaling_policy": "ECONOMY",
        "max_concurrency_level": 4,
        "query_acceleration": True,
    }


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{size: huge, name: W}", "arms.few.warehouse.size: is not a warehouse size, got 'huge'"),
        ("{size: small}", "arms.few.warehouse: changes settings of a warehouse that is not named"),
        ("{name: W, min_clusters: 3, max_clusters: 2}", "arms.few.warehouse.min_clusters: is above max_clusters, 2"),
        ("{name: W, generation: 3}", "arms.few.warehouse.generation: must be from 1 to 2"),
        ("{name: W, scaling_policy: fast}", "arms.few.warehouse.scaling_policy: must be standard or economy"),
    ],
)
def test_impossible_settings_are_reported(tmp_path, written, told):
    assert any(told in one for one in problems(tmp_path, with_warehouse(written)))


@pytest.mark.parametrize(
    ("settings", "told"), [({}, "FALSE"), ({"generation": "2"}, "FALSE"), ({"query_acceleration": True}, "TRUE")]
)
def test_a_new_warehouse_has_query_acceleration_only_if_the_file_sets_it(settings, told):
    made = create_sql('"W"', settings, "e-1")

    assert made.startswith('CREATE WAREHOUSE "W" WITH ')
    assert f"ENABLE_QUERY_ACCELERATION = {told} " in made
    assert made.count("ENABLE_QUERY_ACCELERATION") == 1
