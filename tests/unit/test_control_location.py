"""The location of the control plane, which is the same for every process of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.control.location import ControlPlaneLocation
from loadgen.errors import ConfigurationError
from loadgen.scenario.read import parse_scenario
from loadgen.snowflake.ident import InvalidIdentifier
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, find_profile
from loadgen.worker.sessions import LoadSessions
from orchestrator.spawn.spawner import worker_environment

MINIMAL = "version: 1\nname: x\nworkload: {statements: [{name: a, sql: SELECT 1}]}\n"
HERE = {EMBEDDED_ADDRESS: "127.0.0.1:1"}
PLACES = [
    ControlPlaneLocation(),
    ControlPlaneLocation(connection="embedded"),
    ControlPlaneLocation(connection="my-conn", database='"My ""odd"" db"', schema='"a.b"', warehouse='"W 1"'),
]


@pytest.mark.parametrize("place", PLACES)
def test_a_worker_finds_the_location_that_its_spawner_passed(place):
    assert ControlPlaneLocation.from_environment(place.to_environment()) == place


NAMES = st.sampled_from([None, "default", "staging", "prod"])
CONNECTIONS = {
    f"SNOWFLAKE_CONNECTIONS_{name}_{key}": f"{name}-{key}".lower()
    for name in ("DEFAULT", "STAGING", "PROD")
    for key in ("ACCOUNT", "USER", "PASSWORD")
}


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_a_worker_uses_the_location_of_its_orchestrator_whatever_the_shell_has_set(scenarios, shells):
    loaded = parse_scenario(MINIMAL, source="x", environ={}).scenario
    scenario = replace(loaded, connection=scenarios[0], control=replace(loaded.control, connection=scenarios[1]))
    names = ("LOADGEN_CONNECTION", "LOADGEN_CONTROL_CONNECTION")
    shell = {name: value for name, value in zip(names, shells, strict=True) if value} | CONNECTIONS
    place = ControlPlaneLocation.of_scenario(scenario)

    told = shell | worker_environment(scenario, place, shell)

    assert ControlPlaneLocation.from_environment(told) == place
    target = LoadSessions(scenario, run_id="r", worker_id="w", environ=told).profile
    assert target == find_profile(scenario.connection, environ=shell)


def test_without_variables_it_is_the_default_place():
    place = ControlPlaneLocation.from_environment({})

    assert place == ControlPlaneLocation(
        connection=None, database="LOADGEN", schema="CONTROL", warehouse="LOADGEN_CONTROL_WH"
    )


def test_an_empty_variable_is_none():
    names = ("CONNECTION", "DATABASE", "SCHEMA", "WAREHOUSE")

    place = ControlPlaneLocation.from_environment(
        {f"LOADGEN_CONTROL_{name}": "" for name in names} | {"LOADGEN_CONNECTION": ""}
    )

    assert place == ControlPlaneLocation()


@pytest.mark.parametrize(
    ("variables", "connection"),
    [
        ({"LOADGEN_CONNECTION": "target"}, "target"),
        ({"LOADGEN_CONNECTION": "target", "LOADGEN_CONTROL_CONNECTION": "embedded"}, "embedded"),
        ({"LOADGEN_CONTROL_CONNECTION": "embedded"}, "embedded"),
    ],
)
def test_the_connection_of_the_control_plane_goes_before_that_of_the_target(variables, connection):
    assert ControlPlaneLocation.from_environment(variables).connection == connection


def test_other_variables_are_none_of_its_business():
    noise = {
        "SNOWFLAKE_DATABASE": "X",
        "LOADGEN_CONTROL": "X",
        "LOADGEN_CONTROL_ROLE": "X",
        "loadgen_control_schema": "X",
    }

    assert ControlPlaneLocation.from_environment(noise) == ControlPlaneLocation()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", ControlPlaneLocation()),
        ("connection: target", ControlPlaneLocation(connection="target")),
        ("connection: target\ncontrol: {connection: embedded}", ControlPlaneLocation(connection="embedded")),
        (
            "control: {database: db, schema: s, warehouse: wh}",
            ControlPlaneLocation(database="db", schema="s", warehouse="wh"),
        ),
    ],
    ids=["nothing", "the target's", "its own", "names"],
)
def test_a_scenario_can_give_the_location(written, expected):
    scenario = parse_scenario(f"{MINIMAL}{written}\n", source="s.yaml", environ={}).scenario

    assert ControlPlaneLocation.of_scenario(scenario) == expected


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (ControlPlaneLocation(), '"LOADGEN"."CONTROL"'),
        (ControlPlaneLocation(database="db", schema='"Mixed Case"'), '"DB"."Mixed Case"'),
    ],
)
def test_names_are_read_as_in_sql_and_always_quoted(place, name):
    assert place.schema_name.sql == name


HOSTILE = ['x"; DROP TABLE RUN_STATUS; --', "a.b", "$$", "x y", "", '"', "IDENTIFIER('x')", "a\0b", '"a\nb"', "x" * 256]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("part", ["database", "schema"])
def test_a_name_is_one_name_or_refused(part, text):
    place = replace(ControlPlaneLocation(), **{part: text})

    with pytest.raises(InvalidIdentifier) as refused:
        _ = place.schema_name

    assert refused.value.exit_code == 2
    assert refused.value.remedy


def test_a_quoted_name_may_hold_anything_but_stays_one_name():
    place = ControlPlaneLocation(database='"x""; DROP TABLE T; --"')

    assert place.schema_name.sql == '"x""; DROP TABLE T; --"."CONTROL"'


def test_its_connection_enters_the_place():
    profile = ControlPlaneLocation(connection="embedded", database="D", schema="S", warehouse="W").profile(HERE)

    assert (profile.text("database"), profile.text("schema"), profile.text("warehouse")) == ("D", "S", "W")


def test_a_connection_that_is_not_there_is_an_error_of_the_user():
    with pytest.raises(ConfigurationError) as refused:
        ControlPlaneLocation(connection="embedded").profile({})

    assert "embedded serve" in refused.value.remedy
