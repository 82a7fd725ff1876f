"""Leases: claimed, renewed and released by real SQL through both majors of the connector."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from loadgen.control.session import load_queries
from loadgen.control.tables import run_leases
from loadgen.control.tables.run_control_events import emit
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S, Lease, claim, new_owner, release, renew
from loadgen.control.tables.run_status import Fenced, RunRollup, StatusChange, move, publish
from loadgen.model.run import Phase, RunStatus
from tests.contract.lease_builders import FAULT_IDS, NOT_ANSWERED, TTL_S, start_event
from tests.control_plane import ControlPlane, retries
from tests.processes import wait_until

pytestmark = pytest.mark.any_driver

MARGIN_MS = TAKEOVER_MARGIN_S * 1000
STARTING = StatusChange(
    status=RunStatus.PREPARED, phase=Phase.PREPARING, to=RunStatus.STARTING, to_phase=Phase.PREPARING, reason="go"
)


def assert_powerless(plane: ControlPlane, term: Lease) -> None:
    """No statement with this lease has any effect."""
    tables = [f"SELECT * FROM {table} WHERE RUN_ID = ?" for table in ("RUN_LEASES", "RUN_CONTROL_EVENTS", "RUN_STATUS")]
    before = [sorted(plane.rows(table, term.key)) for table in tables]

    assert not renew(plane.session, term, TTL_S)
    with pytest.raises(Fenced):
        emit(plane.session, retries(), term, start_event())
    with pytest.raises(Fenced):
        move(plane.session, retries(), term, STARTING)
    assert not publish(plane.session, term, RunRollup(targets={}, total_ops=666))
    release(plane.session, term)

    assert [sorted(plane.rows(table, term.key)) for table in tables] == before


def test_the_first_claim_gets_epoch_one(plane, run_id):
    term = plane.claim(run_id, ttl_s=TTL_S)

    ((epoch, owner, remaining_ms),) = plane.leases(run_id)
    assert (term.epoch, epoch, owner) == (1, 1, term.owner)
    assert 0 < remaining_ms <= TTL_S * 1000


def test_a_valid_lease_belongs_to_its_owner_only(plane, run_id):
    plane.claim(run_id)

    assert claim(plane.session, retries(), run_id, new_owner(), TTL_S) is None
    assert len(plane.leases(run_id)) == 1


@pytest.mark.parametrize("since_s", [-1, 1, TAKEOVER_MARGIN_S - 2], ids=["it lasts", "just over", "almost long enough"])
def test_a_lease_must_be_expired_for_the_margin_before_there_is_a_successor(plane, since_s):
    def tried_within_the_margin() -> bool:
        """The server's clock continues. Once it has passed the margin, an attempt proves nothing."""
        run_id = plane.new_run()
        plane.claim(run_id)
        plane.expire(run_id, since_s=since_s)
        term = claim(plane.session, retries(), run_id, new_owner(), TTL_S)
        # The guard of the SQL holds as well, also for a claimant with an old view.
        rows = plane.session.execute(load_queries("run_leases")["claim_next"], "x", 30_000, run_id, 1, -MARGIN_MS)
        (_, _, remaining_ms), *successors = plane.leases(run_id)
        if remaining_ms <= -MARGIN_MS:
            return False
        assert (term, rows, successors) == (None, 0, [])
        return True

    wait_until(tried_within_the_margin, "the attempts are made within the margin")


def test_after_the_margin_the_next_epoch_begins_and_the_last_holder_is_powerless(plane, run_id):
    old = plane.claim(run_id)
    plane.expire(run_id, since_s=TAKEOVER_MARGIN_S + 1)

    new = plane.claim(run_id)

    assert (old.epoch, new.epoch) == (1, 2)
    assert_powerless(plane, old)
    assert renew(plane.session, new, TTL_S)
    assert emit(plane.session, retries(), new, start_event()) == 1


def test_a_holder_that_was_paused_beyond_its_lease_is_rejected_before_there_is_a_successor(plane, run_id):
    """The time between the expiry of a lease and the insert of the next: it must not become valid again."""
    term = plane.claim(run_id)
    plane.expire(run_id, since_s=0.2)

    assert_powerless(plane, term)

    plane.age(run_id, TAKEOVER_MARGIN_S + 1)
    assert plane.claim(run_id).epoch == 2
    assert_powerless(plane, term)


@pytest.mark.parametrize("field", ["key", "epoch", "owner"])
def test_a_lease_that_differs_in_any_value_is_not_the_holders(plane, run_id, field):
    term = plane.claim(run_id)
    forged = replace(term, **{field: {"key": plane.new_run(), "epoch": 2, "owner": new_owner()}[field]})

    assert not renew(plane.session, forged, TTL_S)
    release(plane.session, forged)
    with pytest.raises(Fenced):
        emit(plane.session, retries(), forged, start_event())
    with pytest.raises(Fenced):
        move(plane.session, retries(), forged, STARTING)
    assert not publish(plane.session, forged, RunRollup(targets={}))

    assert renew(plane.session, term, TTL_S)
    assert plane.events(run_id) == []


def test_a_renewal_counts_from_now_and_never_adds_up(plane, run_id):
    term = plane.claim(run_id)

    for _ in range(5):
        assert renew(plane.session, term, TTL_S)

    assert plane.leases(run_id)[0][2] <= TTL_S * 1000


def test_a_release_lets_a_successor_in_at_once_and_ends_the_holder(plane, run_id):
    term = plane.claim(run_id)

    release(plane.session, term)

    assert_powerless(plane, term)
    assert plane.claim(run_id).epoch == 2


@pytest.mark.parametrize("fault", NOT_ANSWERED, ids=FAULT_IDS)
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_claim_whose_answer_is_lost_is_known_and_there_once(plane, run_id, fault, epoch):
    if epoch == 2:
        plane.claim(run_id)
        plane.expire(run_id, since_s=TAKEOVER_MARGIN_S + 1)
    owner = new_owner()
    plane.server.fault(match="^INSERT INTO RUN_LEASES", count=1, **fault)

    term = claim(plane.session, retries(), run_id, owner, TTL_S)

    assert term == Lease(key=run_id, epoch=epoch, owner=owner)
    assert [lease[:2] for lease in plane.leases(run_id)][-1] == (epoch, owner)
    assert len(plane.leases(run_id)) == epoch
    assert renew(plane.session, term, TTL_S)


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_claim_that_was_lost_on_its_way_does_not_take_what_another_got_meanwhile(plane, run_id, epoch):
    if epoch == 2:
        plane.claim(run_id)
        plane.expire(run_id, since_s=TAKEOVER_MARGIN_S + 1)
    plane.server.fault(match="^INSERT INTO RUN_LEASES", count=1, kind="reset")
    winners: list[Lease] = []

    won = claim(plane.session, retries(note=lambda _: winners.append(plane.claim(run_id))), run_id, new_owner(), TTL_S)

    assert won is None
    assert [lease[:2] for lease in plane.leases(run_id)][-1] == (epoch, winners[0].owner)


def test_the_name_of_an_owner_fits_its_column_and_is_unique(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 300)

    names = {new_owner() for _ in range(100)}

    assert len(names) == 100
    assert max(map(len, names)) <= run_leases.OWNER_MAX
