"""`loadgen setup`: create and update the tables of the control plane. `loadgen grants`: privileges for its roles."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.common import echo, warn
from loadgen.cli.options import (
    experiment_remedy,
    format_option,
    location_options,
    print_scenario_warnings,
    scenario_options,
    with_interactive_retries,
)
from loadgen.control.location import resolve_target
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.control.setup.grants import ArmGrants
    from loadgen.control.setup.installer import SetupState
    from loadgen.snowflake.session import RetryPolicy


@click.command()
@scenario_options
@location_options
@click.option("--dry-run", is_flag=True, help="Connect, print the missing SQL statements, and change nothing.")
@format_option
def setup(
    file: Path | None,
    connection: str | None,
    dry_run: bool,
    output: str,
    **location: str | None,
) -> None:
    """Create or update the tables of the control plane, which store runs.

    They are in LOADGEN.CONTROL, or in the place that the scenario FILE names under control. A missing database, schema
    or separate X-Small warehouse is created if the role has the privilege; otherwise the statements for an
    administrator are printed. The command may be repeated at any time, by several users at once: existing objects are
    not changed. Tables of a newer version of loadgen are not changed (exit code 2).
    """
    aim = resolve_target(file, connection, **location)
    print_scenario_warnings(aim.loaded)
    found, steps = with_interactive_retries(
        aim.place.connection,
        lambda retries: _run(aim.place, retries, dry_run=dry_run, loud=output == "text"),
        name="setup",
    )
    if output == "json":
        echo(json.dumps(_as_json(found, steps, dry_run), indent=2))
    elif dry_run:
        echo(_script(found))
    elif not steps:
        echo(f"nothing to do: the control plane in {found.place.schema_name} is current")
    else:
        echo(f"the control plane in {found.place.schema_name} is ready")


def _run(
    place: ControlPlaneLocation, retries: RetryPolicy, *, dry_run: bool, loud: bool
) -> tuple[SetupState, list[str]]:
    from loadgen.control.setup.installer import apply_setup, inspect_setup

    found = inspect_setup(place, retries)
    steps: list[str] = []

    def print_step(step: str) -> None:
        steps.append(step)
        if loud:
            echo(printable(step))

    if not dry_run and not found.is_current:
        apply_setup(found, retries, print_step)
    return found, steps


def _script(found: SetupState) -> str:
    if found.is_current:
        return f"-- Nothing to do: the control plane in {found.place.schema_name} is current."
    title = f"-- Statements that `loadgen setup` would execute in {found.place.schema_name}. Nothing has been changed."
    return "\n".join([title, *(f"{statement};" for statement in found.statements)])


def _as_json(found: SetupState, steps: list[str], dry_run: bool) -> dict[str, object]:
    place = found.place
    result: dict[str, object] = {
        "connection": place.connection,
        "database": place.database,
        "schema": place.schema,
        "warehouse": place.warehouse,
        "changed": bool(steps),
    }
    return {**result, "statements": found.statements} if dry_run else {**result, "steps": steps}


# --- `loadgen grants`: the privileges that loadgen needs, as a script for an administrator. Connects to nothing -------


@click.command()
@scenario_options
@location_options
@click.option("--user", "users", metavar="NAME", multiple=True, help="User who runs scenarios. May be repeated.")
@click.option(
    "--admin", "admins", metavar="NAME", multiple=True, help="User who runs setup and prepare. May be repeated."
)
@click.option("--queue-user", "queue_users", metavar="NAME", multiple=True, help="User of the queue. May be repeated.")
@click.option(
    "--experiment",
    "experiment_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Include the privileges that the arms of this experiment need.",
)
@click.option(
    "--kubernetes", is_flag=True, help="Print the Kubernetes Role for spawner kind kubernetes instead, as YAML."
)
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
    """Print the minimal GRANT statements that loadgen needs. Review them, and execute them as SECURITYADMIN.

    There are three roles: LOADGEN_ADMIN creates tables (setup, prepare), LOADGEN_RUN executes runs, and LOADGEN_QUEUE
    also uses the queue, for pools and for users who may queue runs. With a scenario FILE, its target is included: the
    warehouse, and each table with the privileges that the statements need. With --experiment, its arms are included,
    with MODIFY on warehouses whose settings they change, and CREATE WAREHOUSE for arms that create one. The command
    connects to nothing; -c only supplies names that the scenario leaves out.

    --kubernetes prints the Role that `loadgen run` needs in the namespace of its workers, and binds it to each --user
    (a service account is system:serviceaccount:NAMESPACE:NAME). Workers need no privileges there.
    """
    from loadgen.control.setup import grants as rights

    with experiment_remedy("Add the option: `loadgen grants --experiment FILE`."):
        aim = resolve_target(file, connection, **location)
    print_scenario_warnings(aim.loaded)
    scenario = aim.loaded.scenario if aim.loaded is not None else None
    if kubernetes:
        _print_role(None if scenario is None else scenario.spawner.namespace, users, output)
        return
    target = None if scenario is None else rights.GrantTarget.of_scenario(scenario, aim.connection, warn)
    arms = _arms(experiment_file, connection)
    parts = rights.grants(aim.place, scenario, target, arms=arms, users=users, admins=admins, queue_users=queue_users)
    if output == "json":
        listed = [{"notes": part.notes, "statements": part.statements} for part in parts]
        echo(json.dumps({"parts": listed}, indent=2))
    else:
        echo(rights.script(parts))


def _arms(file: Path | None, connection: str | None) -> list[ArmGrants]:
    from loadgen.control.setup.grants import arm_grants
    from loadgen.scenario.experiment import read_experiment

    return [] if file is None else arm_grants(read_experiment(file, environ=os.environ), connection, warn)


def _print_role(namespace: str | None, users: Sequence[str], output: str) -> None:
    from orchestrator.spawn.kubernetes_job import manifest_text, role_manifests

    manifests = role_manifests(namespace, users)
    if output == "json":
        echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2))
    else:
        echo(manifest_text(manifests))
