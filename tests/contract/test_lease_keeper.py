"""The keeper of a lease: real SQL through both majors of the connector."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from loadgen.clock import SystemClock
from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.session import ControlSession, NamedQuery
from loadgen.control.tables.run_leases import Lease, claim, new_owner
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.contract.lease_builders import FAULT_IDS, NOT_ANSWERED, TTL_S
from tests.control_plane import ControlPlane, retries
from tests.fake_clock import FakeClock
from tests.processes import wait_until

pytestmark = pytest.mark.any_driver


def keeper_of(plane: ControlPlane, term: Lease, times: LeaseTimes, clock: Any = None) -> LeaseKeeper:
    clock = clock or SystemClock()
    return LeaseKeeper(plane.open("lease"), term, times, claimed_ns=clock.monotonic_ns(), clock=clock)


QUICK = LeaseTimes(ttl_s=2 * TTL_S, renew_s=0.05, margin_s=5)


def was_renewed(plane: ControlPlane, run_id: str) -> bool:
    """Its lease expires later than the one that was claimed."""
    return plane.leases(run_id)[-1][2] > TTL_S * 1000


def assert_untrusted(keeper: LeaseKeeper) -> None:
    assert not keeper.trusted


RENEWALS = "/__loadgen/journal?match=UPDATE+RUN_LEASES+SET+EXPIRES_AT"


def test_a_keeper_renews_until_it_is_stopped_and_then_makes_room(plane, run_id):
    keeper = keeper_of(plane, plane.claim(run_id), QUICK)
    keeper.start()
    wait_until(lambda: was_renewed(plane, run_id), "renewed")
    assert keeper.trusted

    keeper.stop()
    keeper.stop()

    assert_untrusted(keeper)
    assert not any(thread.name == "lease" for thread in threading.enumerate())
    assert plane.claim(run_id).epoch == 2


def test_a_keeper_that_does_not_release_leaves_its_lease_to_expire(plane, run_id):
    keeper = keeper_of(plane, plane.claim(run_id), QUICK)
    keeper.start()

    keeper.stop(releasing=False)

    assert plane.leases(run_id)[0][2] > 0
    assert claim(plane.session, retries(), run_id, new_owner(), TTL_S) is None


def test_a_keeper_can_be_stopped_before_it_was_started(plane, run_id):
    keeper = keeper_of(plane, plane.claim(run_id), QUICK)

    keeper.stop()
    keeper.stop()


def test_the_keeper_closes_its_session_when_it_ends(plane, run_id):
    since_ms = plane.server.now_ms()
    keeper = keeper_of(plane, plane.claim(run_id), QUICK)
    keeper.start()
    wait_until(lambda: was_renewed(plane, run_id), "renewed")
    (session_id,) = {line["session_id"] for line in plane.server.ask(f"{RENEWALS}&since={since_ms}")}

    keeper.stop()

    ended = plane.server.ask(f"/__loadgen/journal?path=/session&since={since_ms}")
    assert session_id in {line["session_id"] for line in ended if line["path"] == "/session"}


def test_a_keeper_that_is_refused_ends_by_itself(plane, run_id):
    term = plane.claim(run_id)
    keeper = keeper_of(plane, term, QUICK)
    plane.expire(run_id, since_s=1)
    keeper.start()

    wait_until(lambda: not keeper.trusted, "noticed")
    wait_until(lambda: not any(thread.name == "lease" for thread in threading.enumerate()), "ended")

    assert plane.leases(run_id)[0][2] < 0
    keeper.stop()


def test_slow_renewals_keep_a_lease_whose_times_allow_it(plane, run_id):
    """Half a second there and back, more than the pause between renewals."""
    plane.server.fault(match="^UPDATE RUN_LEASES", kind="latency", ms=500)
    keeper = keeper_of(plane, plane.claim(run_id), QUICK)
    keeper.start()

    wait_until(lambda: was_renewed(plane, run_id), "renewed")

    assert keeper.trusted
    keeper.stop()


class SlowSession(ControlSession):
    """Time passes while a statement is on its way."""

    clock: FakeClock
    passes_s: float

    def execute(self, query: NamedQuery, *binds: Any) -> int:
        self.clock.advance(self.passes_s)
        return super().execute(query, *binds)


def test_a_renewal_that_was_slow_and_succeeded_does_not_extend_trust_beyond_its_begin(plane, run_id):
    clock, times = FakeClock(), LeaseTimes()
    session = SlowSession(plane.place, role="lease", environ=plane.environ)
    session.clock, session.passes_s = clock, 5.0
    keeper = LeaseKeeper(session, plane.claim(run_id), times, claimed_ns=0, clock=clock)

    assert keeper.step()
    clock.advance(times.ttl_s - times.margin_s - 5.0)

    assert not keeper.trusted
    session.close()


@pytest.mark.parametrize("fault", NOT_ANSWERED, ids=FAULT_IDS)
def test_a_renewal_that_fails_once_and_then_succeeds_keeps_the_lease(plane, run_id, fault):
    clock = FakeClock()
    term = plane.claim(run_id)
    keeper = LeaseKeeper(plane.open("lease"), term, LeaseTimes(), claimed_ns=0, clock=clock)
    plane.server.fault(match="^UPDATE RUN_LEASES", count=1, **fault)

    clock.advance(20)
    assert keeper.step()
    assert keeper.trusted
    assert keeper.step()

    clock.advance(24)
    assert keeper.trusted


def test_a_keeper_whose_new_session_is_refused_for_good_lives_on_until_trust_ends(plane, run_id, caplog):
    """The session is lost, and opening another one raises no ControlFailed: the thread must survive it."""
    environ = dict(plane.environ)
    session = ControlSession(plane.place, role="lease", environ=environ)
    clock = SystemClock()
    keeper = LeaseKeeper(session, plane.claim(run_id), QUICK, claimed_ns=clock.monotonic_ns(), clock=clock)
    environ[EMBEDDED_ADDRESS] = "nonsense"

    with caplog.at_level(logging.WARNING, "loadgen.control.lease"):
        keeper.start()
        wait_until(lambda: caplog.text.count("lease_renewal_failed") > 1, "two attempts")
    assert keeper.trusted
    environ.update(plane.environ)
    wait_until(lambda: was_renewed(plane, run_id), "renewed after all")
    keeper.stop()
    assert plane.claim(run_id).epoch == 2
