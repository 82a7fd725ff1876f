"""A job service for workers: the statement that starts it, what is refused before, what its containers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed
from loadgen.errors import ConfigurationError, PrivilegeMissing, RunFailed
from loadgen.model.counts import ErrorCategory
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import parse_scenario, read_scenario
from loadgen.snowflake.failure import Failure
from loadgen.snowflake.ident import Identifier
from orchestrator.spawn.spcs import SpcsJob, job_name, quoted, read_containers, refusal, require_spcs_settings

RUN_ID = "20261115-0200-orders-7f3a9c"
MINIMAL = """
version: 1
name: orders
connection: prod
target: {database: BENCH, schema: PUBLIC}
workload: {statements: [{name: one, sql: SELECT 1}]}
load: {connections: 2, workers: 2}
spawner: {kind: spcs, compute_pool: bench_pool, image: "/db/schema/images/loadgen:1.0"}
"""
CONNECTIONS = """
[prod]
account = "ORG-ACME"
user = "me"
password = "hunter22"
database = "MINE"
warehouse = "my_wh"

[other]
account = "org-other"
user = "me"
password = "hunter22"

[role]
account = "org-acme"
user = "loader"
password = "hunter22"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / ".snowflake" / "connections.toml"
    file.parent.mkdir()
    file.write_text(CONNECTIONS, "utf-8")
    file.chmod(0o600)
    return {"HOME": str(tmp_path), "LOADGEN_EMBEDDED_ADDRESS": "127.0.0.1:8080"}


def scenario(folder: Path, text: str = MINIMAL, *overrides: str) -> Scenario:
    file = folder / "scenario.yaml"
    file.write_text(text, "utf-8")
    return read_scenario(file, overrides=overrides, environ={}).scenario


def job(**more: Any) -> SpcsJob:
    fields: dict[str, Any] = {
        "name": "LOADGEN_R1",
        "compute_pool": "BENCH_POOL",
        "image": "/db/schema/images/loadgen:1.0",
        "warehouse": '"BENCH_WH"',
        "environment": {"LOADGEN_RUN_ID": "r1"},
    }
    return SpcsJob(**(fields | more))


def container_of(made: SpcsJob) -> Any:
    """The only container, as Snowflake reads it between the dollar signs."""
    before, specification, after = made.execute(1).split("$$")
    assert before.endswith("FROM SPECIFICATION ")
    assert after == ""
    (container,) = YAML(typ="safe").load(specification)["spec"]["containers"]
    return container


# --- the statement ---------------------------------------------------------------------------------------------------


def test_one_statement_starts_all_replicas():
    head = job().execute(8).split("$$")[0]

    assert head.splitlines() == [
        "EXECUTE JOB SERVICE",
        "IN COMPUTE POOL BENCH_POOL",
        "NAME = LOADGEN_R1",
        "ASYNC = TRUE",
        "REPLICAS = 8",
        'QUERY_WAREHOUSE = "BENCH_WH"',
        "FROM SPECIFICATION ",
    ]
    assert "QUERY_WAREHOUSE" not in job(warehouse=None).execute(8)
    container = container_of(job())
    assert (container["name"], container["command"]) == ("worker", ["loadgen", "worker"])
    assert container["image"] == "/db/schema/images/loadgen:1.0"
    assert container["env"] == {"LOADGEN_RUN_ID": "r1"}


@pytest.mark.parametrize("run_id", [RUN_ID, "r", "a.b_c-d", "9" * 36])
def test_a_job_is_named_after_its_run_without_quotes(run_id):
    name = job_name(run_id)

    assert Identifier.parse(name).name == name
    assert len(name) <= 44
    assert job_name(RUN_ID) == "LOADGEN_20261115_0200_ORDERS_7F3A9C"


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("$$; DROP DATABASE D; $$")
@example('yes\n"a": {b: #c}\t\\ \x00\x7f\x85\u2028\ufeff😀 ${image} {{x}} ? :name')
def test_any_text_stays_one_value(text):
    name = f"B{text[:100]}"  # a key of YAML has at most 1024 characters, and the name of a variable always fewer
    container = container_of(job(image=text, environment={"A": text, name: "1"}))

    assert (container["image"], container["env"]) == (text, {"A": text, name: "1"})
    assert quoted(text).isascii()


def test_workers_get_everything_but_secrets_and_names_that_only_this_machine_knows(tmp_path, environ):
    told = {"LOADGEN_CONNECTION": "prod", "LOADGEN_CONTROL_DATABASE": "LOADGEN", "LOADGEN_PIN": "none"}

    made = SpcsJob.of_scenario(scenario(tmp_path), RUN_ID, told, environ)

    assert made.environment == {
        "LOADGEN_RUN_ID": RUN_ID,
        "LOADGEN_CONNECTION": "environment",
        "LOADGEN_CONTROL_CONNECTION": "environment",
        "LOADGEN_CONTROL_DATABASE": "LOADGEN",
        "LOADGEN_PIN": "none",
    }
    assert (made.name, made.compute_pool) == ("LOADGEN_20261115_0200_ORDERS_7F3A9C", "BENCH_POOL")
    assert made.warehouse == '"MY_WH"'  # the connection's, which a container does not know
    assert "hunter22" not in made.execute(2)
    target = scenario(tmp_path, MINIMAL, "target.warehouse=BENCH_WH", "connection=embedded")
    local = SpcsJob.of_scenario(target, RUN_ID, {"LOADGEN_CONNECTION": "embedded"}, environ)
    assert local.environment["LOADGEN_CONNECTION"] == "embedded"
    assert local.warehouse == '"BENCH_WH"'


def test_statements_about_a_job():
    made = job()

    assert made.containers == "SHOW SERVICE CONTAINERS IN SERVICE LOADGEN_R1"
    assert made.cancel == "SELECT LOADGEN_R1!SPCS_CANCEL_JOB()"
    assert made.drop == "DROP SERVICE IF EXISTS LOADGEN_R1 FORCE"
    assert made.logs(3) == "SELECT SYSTEM$GET_SERVICE_LOGS('LOADGEN_R1', '3', 'worker', 1000)"


# --- refused before anything is made ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "said", "hint"),
    [
        (("control.connection=embedded",), "where the control plane is", "Use the account"),
        (("connection=embedded", "control.connection=prod"), "where the target is", "Use the account"),
        (("control.connection=other",), "account ORG-ACME, the control plane in ORG-OTHER", "Use one account for both"),
        (("target.database=null",), "target.database comes from connection 'prod'", "target: {database: MINE}"),
        (('spawner.compute_pool="my pool"',), "no compute pools with such names", "SHOW COMPUTE POOLS"),
    ],
)
def test_what_a_container_cannot_reach_is_refused(tmp_path, environ, overrides, said, hint):
    asked = scenario(tmp_path, MINIMAL, *overrides)

    with pytest.raises(ConfigurationError) as refused:
        require_spcs_settings(asked, ControlPlaneLocation.of_scenario(asked), environ)

    assert said in str(refused.value)
    assert hint in refused.value.remedy


def test_a_container_cannot_know_a_secret(tmp_path, environ):
    text = MINIMAL.replace("SELECT 1", "\"SELECT '${A_TOKEN}', '${PLAIN}'\"")
    asked = parse_scenario(text, source="x", environ={"A_TOKEN": "s3cret-s3cret", "PLAIN": "x"}).scenario

    with pytest.raises(ConfigurationError, match=r"the scenario uses \$\{A_TOKEN\}: secrets are not stored") as refused:
        require_spcs_settings(asked, ControlPlaneLocation.of_scenario(asked), environ)

    assert "spawner kind local" in refused.value.remedy
    plain = parse_scenario(text.replace("A_TOKEN", "PLAIN"), source="x", environ={"PLAIN": "x"}).scenario
    require_spcs_settings(plain, ControlPlaneLocation.of_scenario(plain), environ)


@pytest.mark.parametrize("overrides", [(), ("connection=embedded",), ("control.connection=role",)])
def test_what_it_can_reach_is_not(tmp_path, environ, overrides):
    asked = scenario(tmp_path, MINIMAL, *overrides)

    require_spcs_settings(asked, ControlPlaneLocation.of_scenario(asked), environ)


# --- refused by the server -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text", "kind", "said", "hint"),
    [
        (
            3001,
            "Insufficient privileges to operate on schema 'CONTROL'.",
            PrivilegeMissing,
            "refused",
            "CREATE SERVICE",
        ),
        (
            2003,
            "Compute pool 'BENCH_POOL' does not exist or not authorized.",
            ConfigurationError,
            "compute pool BENCH_POOL cannot be used",
            "SHOW COMPUTE POOLS",
        ),
        (
            395018,
            "Failed to retrieve image /db/schema/images/loadgen:1.0 from the repository.",
            ConfigurationError,
            "image /db/schema/images/loadgen:1.0 cannot be used",
            "Push it",
        ),
        (395000, "Bad value: /db/schema/images/loadgen:1.0", RunFailed, "could not be started: Bad value", "READ on"),
    ],
)
def test_a_rejected_job_has_a_hint(code, text, kind, said, hint):
    error = ControlFailed(text, Failure(category=ErrorCategory.CONFIGURATION, code=code))

    explained = refusal(error, job())

    assert type(explained) is kind
    assert said in str(explained)
    assert text in str(explained)
    assert hint in explained.remedy


# --- containers ------------------------------------------------------------------------------------------------------


def row(**more: Any) -> dict[str, Any]:
    return {"instance_id": "1", "container_name": "worker", "status": "READY", "message": "Running", **more}


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"status": "READY"}, None),
        ({"status": "PENDING", "message": "Waiting to start"}, None),
        ({"status": "UNKNOWN"}, None),
        ({"status": "DONE", "last_exit_code": 0}, "worker-1 exited with code 0"),
        ({"status": "DONE", "last_exit_code": None}, "worker-1 exited with code 0"),
        ({"status": "FAILED", "last_exit_code": "3"}, "worker-1 exited with code 3"),
        ({"status": "FAILED", "last_exit_code": 137}, "worker-1 was killed by signal 9"),
        ({"status": "FAILED", "message": "Out of memory"}, "worker-1 was lost with its container: Out of memory"),
        (
            {"status": "FAILED", "message": None, "last_exit_code": 0},
            "worker-1 was lost with its container: Snowflake gives no reason",
        ),
        (
            {"status": "PENDING", "message": "Failed to pull image"},
            "worker-1 cannot start: Failed to pull image; check spawner.image, and READ on its image repository",
        ),
    ],
)
def test_how_a_container_ended(columns, sentence):
    (container,) = read_containers([row(**columns)])

    end = container.end("worker-1", ("last words",))

    assert (None if end is None else end.sentence) == sentence
    assert end is None or end.last_lines == ("last words",)
    assert container.index == 1


def test_a_job_without_containers_yet_has_none():
    unknown = dict.fromkeys(("instance_id", "container_name", "status", "message", "last_exit_code"))

    assert read_containers([unknown]) == ()
    assert read_containers([row(container_name="another")]) == ()
