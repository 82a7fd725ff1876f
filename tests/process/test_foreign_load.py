"""A run beside statements of others on its warehouse that no lease knows of, such as runs of another control plane."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import MEASURES, run_harness

FOREIGN = "other statements ran on warehouse FOREIGN_WH: up to "
MEASURED = {"load": {"connections": 8, "warmup": "0s", "duration": "8s"}, "timing": {"warehouse_poll": "500ms"}}


@pytest.mark.slow  # the next one shows it without a second run
@pytest.mark.parametrize("alone", [True, False])
def test_two_control_planes_on_one_warehouse_make_a_run_invalid(
    server: EmbeddedServer, tmp_path: Path, alone: bool
) -> None:
    target = {"warehouse": "FOREIGN_WH", "database": "BENCH", "schema": "PUBLIC"}
    with run_harness(server, tmp_path, embedded={"service_time": "200ms"}, target=target) as harness:
        if not alone:
            other = harness.run(control={"database": "LOADGEN2"}, load={"connections": 8, "duration": "10m"})
            other.wait_for(MEASURES)
        run = harness.run(**MEASURED)
        code = run.ended()

    reasons = run.summary["validity"]["reasons"]
    found = [reason for reason in reasons if reason.startswith(FOREIGN)]
    assert not [reason for reason in reasons if "observed" in reason]
    if alone:
        assert found == [], run.said
    else:
        assert code == 5, run.said
        assert [reason.rpartition(",")[2] for reason in found] == [" this run has at most 8"]


def test_load_of_others_is_seen_below_the_number_of_connections(
    server: EmbeddedServer, connect: Callable[..., Any], tmp_path: Path
) -> None:
    """At a rate, a run has fewer statements at once than connections: no poll shows that some are not its own."""
    load = {"mode": "rate", "rate": "10/s", "connections": None, "max_connections": 8, "warmup": "0s", "duration": "8s"}
    target = {"warehouse": "FOREIGN_RATE", "database": "BENCH", "schema": "PUBLIC"}
    with run_harness(server, tmp_path, embedded={"service_time": "200ms"}, target=target) as harness:
        run = harness.run(load=load)
        run.wait_for(MEASURES)
        cursors = [connect(warehouse=target["warehouse"]).cursor() for _ in range(2)]
        while run.process.poll() is None and "STOPPING" not in run.said:
            for cursor in cursors:
                cursor.execute("SELECT 1")
        code = run.ended()

    assert code == 5, run.said
    (found,) = [reason for reason in run.summary["validity"]["reasons"] if reason.startswith("other statements ran")]
    assert re.search(r": \d+ of them executed for \d+\.\d s, those of this run for \d+\.\d s$", found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [{"kind": "error", "errno": 1003}, {"kind": "hang"}],
    ids=["fails", "hangs"],
)
def test_a_warehouse_that_cannot_be_observed_makes_a_run_invalid(
    server: EmbeddedServer, tmp_path: Path, fault: dict[str, Any]
) -> None:
    with run_harness(server, tmp_path, embedded={"service_time": "200ms"}) as harness:
        run = harness.run(**MEASURED)
        run.wait_for(MEASURES)
        server.fault(match="SHOW WAREHOUSES", **fault)
        code = run.ended()

    assert code == 5, run.said
    (found,) = [reason for reason in run.summary["validity"]["reasons"] if "observed" in reason]
    assert re.fullmatch(r"the warehouse could not be observed for [5-8] of 8 s: foreign load is not ruled out", found)
