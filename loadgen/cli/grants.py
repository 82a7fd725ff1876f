"""`loadgen grants`: the rights that loadgen needs, as a script for an administrator. Connects to nothing."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.common import echo
from loadgen.cli.options import (
    CommandTarget,
    format_option,
    location_options,
    print_scenario_warnings,
    resolve_target,
    scenario_options,
)
from loadgen.errors import ConfigurationError

if TYPE_CHECKING:
    from loadgen.control.setup.grants import ArmGrants, GrantTarget
    from loadgen.scenario.model import Scenario


@click.command()
@scenario_options
@location_options
@click.option("--user", "users", metavar="NAME", multiple=True, help="Who runs scenarios. May be repeated.")
@click.option("--admin", "admins", metavar="NAME", multiple=True, help="Who sets up and prepares. May be repeated.")
@click.option("--queue-user", "queue_users", metavar="NAME", multiple=True, help="Who uses the queue. May be repeated.")
@click.option(
    "--experiment",
    "experiment_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Include what the arms of this experiment need.",
)
@click.option("--kubernetes", is_flag=True, help="Print the Role for spawner kind kubernetes instead, as YAML.")
@format_option
def grants(
    file: Path | None,
    connection: str | None,
    users: Sequence[str],
    admins: Sequence[str],
    queue_users: Sequence[str],
    experiment_file: Path | None,
    kubernetes: bool,
    output: str,
    **location: str | None,
) -> None:
    """Print the GRANT statements that loadgen needs, and no more.

    For three roles: LOADGEN_ADMIN makes tables (setup, prepare), LOADGEN_RUN runs, LOADGEN_QUEUE also uses the queue:
    for pools, and for those who may queue runs on their hosts. With a scenario FILE its target is included: its
    warehouse, and each of its tables with what the statements do to it. Review it, and have it run by SECURITYADMIN.
    With --experiment its arms are, too, with MODIFY on warehouses whose settings they change, and CREATE WAREHOUSE for
    those that they make.
    Connects to nothing; -c only supplies names that the scenario leaves out.

    --kubernetes prints the Role that `loadgen run` needs in the namespace of its workers, and binds it to each --user
    (a service account is system:serviceaccount:NAMESPACE:NAME). Workers need no rights there.
    """
    from loadgen.control.setup import grants as rights

    aim = resolve_target(file, connection, **location)
    print_scenario_warnings(aim.loaded)
    scenario = aim.loaded.scenario if aim.loaded is not None else None
    if kubernetes:
        _print_role(None if scenario is None else scenario.spawner.namespace, users, output)
        return
    target = _target(aim) if scenario is not None else None
    arms = _arms(experiment_file, connection)
    parts = rights.grants(aim.place, scenario, target, arms=arms, users=users, admins=admins, queue_users=queue_users)
    if output == "json":
        listed = [{"notes": part.notes, "statements": part.statements} for part in parts]
        echo(json.dumps({"parts": listed}, indent=2))
    else:
        echo(rights.script(parts))


def _arms(file: Path | None, connection: str | None) -> list[ArmGrants]:
    from loadgen.control.setup.grants import ArmGrants
    from loadgen.scenario.experiment import read_experiment

    if file is None:
        return []
    loaded = read_experiment(file, environ=os.environ)
    arms = []
    for name, arm in loaded.arms.items():
        target = _target_of(arm.scenario, connection or arm.scenario.connection)
        warehouse = loaded.file.arms[name].warehouse
        makes = warehouse is not None and warehouse.create
        arms.append(
            ArmGrants(
                scenario=arm.scenario,
                target=dataclasses.replace(target, warehouse=None) if makes else target,
                modifies=bool(loaded.file.arms[name].settings),
                makes=makes,
            )
        )
    return arms


def _print_role(namespace: str | None, users: Sequence[str], output: str) -> None:
    from orchestrator.spawn.kubernetes_job import manifest_text, role_manifests

    manifests = role_manifests(namespace, users)
    if output == "json":
        echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2))
    else:
        echo(manifest_text(manifests))


def _target(aim: CommandTarget) -> GrantTarget:
    """The scenario's target; what it leaves out is the connection's, if that can be found here."""
    assert aim.loaded is not None
    return _target_of(aim.loaded.scenario, aim.connection)


def _target_of(scenario: Scenario, connection: str | None) -> GrantTarget:
    from loadgen.control.setup.grants import GrantTarget
    from loadgen.snowflake.profile_lookup import find_profile

    wanted = scenario.target
    if wanted.warehouse and wanted.database and wanted.schema:
        return GrantTarget(warehouse=wanted.warehouse, database=wanted.database, schema=wanted.schema)
    try:
        profile = find_profile(connection)
    except ConfigurationError as error:
        echo(f"warning: {error}", err=True)
        return GrantTarget(warehouse=wanted.warehouse, database=wanted.database, schema=wanted.schema)
    return GrantTarget(
        warehouse=wanted.warehouse or profile.text("warehouse"),
        database=wanted.database or profile.text("database"),
        schema=wanted.schema or profile.text("schema"),
    )
