"""One run at a time on a warehouse, unless another run shares it: real SQL, both majors of the connector."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import pytest

from loadgen.clock import SystemClock
from loadgen.control.lease import LeaseTimes
from loadgen.control.tables import run_leases
from loadgen.control.tables.run_leases import StoredLease
from loadgen.control.tables.run_status import server_time
from loadgen.errors import Busy
from orchestrator.warehouse import TargetWarehouse, WarehouseWait, exclusive_warehouse, held_by_run_only
from tests.control_plane import ControlPlane, retries

pytestmark = pytest.mark.any_driver


@pytest.fixture
def use(
    plane: ControlPlane, request: pytest.FixtureRequest
) -> Callable[..., AbstractContextManager[Callable[[], bool]]]:
    """A run on the warehouse of this test."""
    warehouse = TargetWarehouse(account="A", name=request.node.name)

    def begin(scenario: str, *, share: bool = False) -> AbstractContextManager[Callable[[], bool]]:
        queue = WarehouseWait(wait=False, share=share, stop=threading.Event())
        return exclusive_warehouse(
            warehouse, scenario, plane.place, LeaseTimes(), queue, clock=SystemClock(), environ=plane.environ
        )

    return begin


def test_two_that_want_to_be_alone_are_not_there_together(use):
    with use("first") as alone:
        with pytest.raises(Busy, match="in use by another run: scenario first"), use("second"):
            pass
        assert alone()
    with use("third") as alone:
        assert alone()


def test_a_sharing_run_does_not_wait_and_an_exclusive_one_is_told_of_it(use):
    with use("first") as alone, use("beside", share=True) as beside:
        assert not alone()
        assert beside()
    with use("after") as alone:
        assert alone()


def test_sharing_runs_keep_exclusive_ones_out_until_the_last_has_ended(use):
    with use("long", share=True):
        with use("short", share=True):
            pass
        with pytest.raises(Busy, match="in use by another run: scenario long"), use("alone"):
            pass
    with use("alone") as alone:
        assert alone()


@pytest.mark.parametrize("fault", [{"kind": "drop_reply"}, {"kind": "error", "errno": 200001}], ids=["lost", "taken"])
def test_a_lease_is_joined_once_when_its_response_is_lost_and_with_the_next_epoch_when_another_was_faster(
    plane, server, request, fault
):
    key = request.node.name[-20:]
    other = run_leases.claim_shared(plane.session, retries(), key, "other", 30.0)
    server.fault(match="INSERT INTO .*RUN_LEASES", count=1, **fault)

    mine = run_leases.claim_shared(plane.session, retries(), key, "mine", 30.0)

    assert (other.epoch, mine.epoch) == (1, 2)
    assert [(epoch, owner) for epoch, owner, _ in plane.leases(key)] == [(1, "other"), (2, "mine")]


def test_the_stored_leases_of_a_warehouse_tell_the_leader_of_a_takeover_whether_another_run_shared_it(
    plane, use, request
):
    key, began = TargetWarehouse(account="A", name=request.node.name).key, server_time(plane.session)
    with use("mine"):
        first = run_leases.every(plane.session, key)
        with use("beside", share=True):
            shared = run_leases.every(plane.session, key)

    def alone(held: Sequence[StoredLease]) -> bool:
        return held_by_run_only(held, first, "mine", began, began)

    assert [lease.owner.partition(" ")[2] for lease in shared] == ["mine", "beside"]
    assert alone(first)
    assert not alone(shared)
    assert not alone(run_leases.every(plane.session, key))  # both are released
