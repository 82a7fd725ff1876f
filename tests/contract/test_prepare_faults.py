"""Preparing with faults, with another preparation at the same time, and with a stop in between."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from loadgen.errors import RunFailed
from loadgen.prepare.prepare import (
    PreparationProgress,
    PreparationResult,
    PreparationStep,
    TableOutcome,
)
from loadgen.prepare.session import PreparationStopped
from tests.contract.prepare_builders import KEY, NUMBER, SKEWED, table
from tests.processes import PATIENCE_S, wait_until

pytestmark = pytest.mark.any_driver
# --- faults ----------------------------------------------------------------------------------------------------------
FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("hybrid", {"kind": "drop_reply", "count": 3}),
    ("standard", {"kind": "drop_reply", "count": 3}),
    ("standard", {"kind": "truncate", "count": 2}),
    ("standard", {"kind": "reset", "count": 2}),
    ("hybrid", {"kind": "http_status", "status": 503, "count": 2}),
    ("hybrid", {"kind": "error", "errno": 625, "count": 2}),
    ("standard", {"kind": "expire_session", "count": 1}),
]


@pytest.mark.parametrize(("kind", "fault"), FAULTS, ids=[f"{fault['kind']}-{kind}" for kind, fault in FAULTS])
def test_a_statement_that_failed_is_never_executed_twice(harness, fault, kind):
    harness.server.fault(match=f'INSERT INTO "{harness.database}"', **fault)

    done = harness.prepare(harness.scenario(table(f"{KEY}, {NUMBER}", kind=kind)), one_attempt=True)

    assert harness.counts("T") == (3000, 3000)
    assert done.tables[0].rows_added == 3000
    assert harness.rows("SELECT MIN(ID), MAX(ID) FROM T") == [(1, 3000)]


def test_bound_rows_survive_a_lost_answer_too(harness):
    """Driver 5.x has the statement described before it sends its rows: the first request is not the one to lose."""
    harness.server.fault(match=f'INSERT INTO "{harness.database}"', kind="latency", ms=1, count=1)
    harness.server.fault(match=f'INSERT INTO "{harness.database}"', kind="drop_reply", count=1)

    harness.prepare(harness.scenario(table(f"{KEY}, {SKEWED}", kind="standard")), one_attempt=True)

    requests = harness.server.ask(f"/__loadgen/journal?match={harness.database}")
    assert [one["bind_count"] for one in requests if one["outcome"] == "fault drop_reply"] == [2]
    assert harness.counts("T") == (3000, 3000)


def test_faults_everywhere_are_survived(harness):
    """Also while counting and creating; a hundred thousand rows are many statements."""
    harness.server.fault(match=harness.database, kind="reset", probability=0.2, count=6)
    harness.server.fault(match=f'INSERT INTO "{harness.database}"', kind="drop_reply", probability=0.3, count=3)
    harness.server.fault(match=harness.database, kind="http_status", status=503, probability=0.2, count=6)

    harness.prepare(harness.scenario(table(f"{KEY}, {NUMBER}", rows=100_000)), one_attempt=True)
    harness.server.clear_faults()

    assert harness.counts("T") == (100_000, 100_000)
    assert harness.rows("SELECT MIN(ID), MAX(ID) FROM T") == [(1, 100_000)]


def test_a_permanent_error_is_reported_at_once(harness):
    harness.server.fault(match=f'INSERT INTO "{harness.database}"', kind="error", errno=100051, sqlstate="22012")

    with pytest.raises(RunFailed, match="INSERT INTO"):
        harness.prepare(harness.scenario(table(KEY)))

    assert harness.sent("INSERT") == 1


# --- two at once, and stopping ---------------------------------------------------------------------------------------


def test_two_preparations_of_a_hybrid_table_make_it_together(harness):
    scenario = harness.scenario(table(f"{KEY}, {NUMBER}", rows=20_000))
    results: list[PreparationResult | BaseException] = []
    meet = threading.Barrier(2)

    def prepare() -> None:
        def tell(progress: PreparationProgress) -> None:
            if progress.step is PreparationStep.FILLING and progress.rows_there == 0:
                meet.wait(PATIENCE_S)  # both have seen the empty table

        try:
            results.append(harness.prepare(scenario, progress=tell))
        except BaseException as error:
            results.append(error)

    harness.prepare(harness.scenario(table(KEY, name="FIRST", rows=1)))
    threads = [threading.Thread(target=prepare, name=f"prepare-{number}") for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert [type(result) for result in results] == [PreparationResult, PreparationResult], results
    assert harness.counts("T") == (20_000, 20_000)


def test_a_stop_ends_between_two_statements_and_the_next_preparation_goes_on(harness):
    scenario = harness.scenario(table(f"{KEY}, {NUMBER}", rows=10_000))

    def stop_at_the_first_rows(progress: PreparationProgress) -> None:
        if progress.rows_there:
            harness.stop.set()

    with pytest.raises(PreparationStopped, match=r"\.T has [1-9],000 of 10,000 rows") as error:
        harness.prepare(scenario, progress=stop_at_the_first_rows)
    assert error.value.exit_code == 130
    there = harness.counts("T")[0]
    assert 0 < there < 10_000

    harness.stop.clear()
    done = harness.prepare(scenario)

    assert [(one.outcome, one.rows_added) for one in done.tables] == [(TableOutcome.RESUMED, 10_000 - there)]
    assert harness.counts("T") == (10_000, 10_000)


def test_a_stop_ends_the_waiting_for_a_server_that_fails(harness):
    harness.server.fault(match=f'INSERT INTO "{harness.database}"', kind="error", errno=625)

    def stop_when_it_has_failed() -> None:
        wait_until(lambda: harness.sent("INSERT"), "it has failed")
        harness.stop.set()

    with ThreadPoolExecutor(1, thread_name_prefix="stop") as pool:
        stopping = pool.submit(stop_when_it_has_failed)
        with pytest.raises(PreparationStopped, match="at least 0 of 3,000"):
            harness.prepare(harness.scenario(table(KEY)))
        stopping.result(PATIENCE_S)
