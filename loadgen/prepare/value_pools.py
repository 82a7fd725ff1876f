"""The value pools of a scenario: each read once, from a query in the target's session or from a CSV file."""

from __future__ import annotations

from pathlib import Path

from loadgen.errors import ScenarioInvalid
from loadgen.prepare.session import PrepareSession
from loadgen.scenario.check_data import require_inside
from loadgen.scenario.model import FilePool, QueryPool, Scenario
from loadgen.workload.pools import Pool, pool_from_rows, read_csv_column


def read_pools(session: PrepareSession, scenario: Scenario, folder: Path) -> dict[str, Pool]:
    """Every pool by its name. `folder` is the scenario's own, where its files lie."""
    return {
        pool.name: _from_query(session, pool) if isinstance(pool, QueryPool) else _from_file(pool, folder)
        for pool in scenario.pools
    }


def _from_query(session: PrepareSession, pool: QueryPool) -> Pool:
    """Rows are fetched while they are taken over, so a query that gives too many is left early."""
    return session.retried(
        lambda: pool_from_rows(pool.name, session.rows(pool.query)), f"value pool {pool.name}: {pool.query}"
    )


def _from_file(pool: FilePool, folder: Path) -> Pool:
    try:
        require_inside(folder, pool.file)
        with (folder / pool.file).open("rb") as file:
            return read_csv_column(file, pool.column, name=pool.name, source=pool.file)
    except OSError as error:
        raise ScenarioInvalid(
            f"value pool {pool.name}: {pool.file} cannot be read: {error.strerror}",
            remedy="It is looked for beside the scenario.",
        ) from error
