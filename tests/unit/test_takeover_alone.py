"""Whether a run that was taken over had its warehouse to itself, by the leases that are stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from loadgen.control.tables.run_leases import RELEASED_S, TAKEOVER_MARGIN_S, StoredLease
from orchestrator.warehouse import held_by_run_only

CLAIMED = datetime(2026, 7, 1, 12, tzinfo=UTC).replace(tzinfo=None)
CREATED, STARTED = CLAIMED + timedelta(seconds=3), CLAIMED + timedelta(seconds=6)
END_S = 70.0
Held = tuple[float, str, float, bool]  # since when, by which process, until when, released


def owner(process: str, token: int, scenario: str = "") -> str:
    return f"host:{process}:mark{token:012x} {scenario}".rstrip()


def stored(holds: list[Held], scenario: str = "mine") -> list[StoredLease]:
    """The leases in the order of their claims."""
    return [
        StoredLease(
            epoch=epoch,
            owner=owner(process, epoch, scenario),
            expires_at=CLAIMED + timedelta(seconds=until_s - (RELEASED_S if released else 0)),
        )
        for epoch, (_, process, until_s, released) in enumerate(sorted(holds), 1)
    ]


def led_by(*processes: str) -> list[StoredLease]:
    return [
        StoredLease(epoch=epoch, owner=owner(process, 100 + epoch), expires_at=CLAIMED)
        for epoch, process in enumerate(processes, 1)
    ]


def alone(holds: list[Held], *leaders: str, scenario: str = "mine") -> bool:
    return held_by_run_only(stored(holds, scenario), led_by(*leaders), "mine", CREATED, STARTED)


LOST: Held = (0.0, "1", 20.0, False)
TAKEN: Held = (30.0, "2", END_S, False)


@given(
    since_s=st.floats(-100.0, 60.0),
    held_s=st.floats(0.1, 60.0),
    released=st.booleans(),
    process=st.sampled_from(["1", "3"]),  # the process of the first leader may lead other runs before and after
    leaders=st.sampled_from([["1", "2"], ["1", "1", "2"], ["1", "4", "2"]]),
)
def test_a_run_that_was_taken_over_was_alone_only_if_no_other_run_held_the_warehouse_after_its_claim(
    since_s, held_s, released, process, leaders
):
    if since_s <= 0.0:  # it has ended when the run claims the warehouse
        since_s -= 0.0 if released else TAKEOVER_MARGIN_S + 0.001
        held_s = min(held_s, -since_s if released else -since_s - TAKEOVER_MARGIN_S - 0.001)
    other: Held = (since_s, process, since_s + held_s, released)

    assert alone([LOST, TAKEN], *leaders)
    assert alone([other, LOST, TAKEN], *leaders) == (since_s <= 0.0)


@given(since_s=st.floats(-100.0, -0.1), until_s=st.floats(0.0, 60.0), released=st.booleans())
def test_a_run_that_shares_the_warehouse_was_alone_only_if_the_other_had_ended_before_it_started(
    since_s, until_s, released
):
    found = alone([(since_s, "3", until_s, released), LOST, TAKEN], "1", "2")

    assert not found or until_s <= (STARTED - CLAIMED).total_seconds()


def test_a_run_whose_leases_on_the_warehouse_are_not_found_was_not_alone():
    assert not alone([TAKEN], "1", "2")
    assert not alone([], "1", "2")
    assert not alone([LOST, TAKEN])
    assert not alone([LOST, TAKEN], "1", "2", scenario="another run of the process")
