"""Connection time: every millisecond of every slot, against the plan; and the counts of logins."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.connections import (
    FAILURES_KEPT,
    ConnectionFailure,
    ConnectionMeter,
    ConnectionTime,
    LoginCounts,
    ReconnectReason,
    logins_data,
    read_logins,
    read_time,
    time_data,
)
from loadgen.metrics.json_fields import InvalidMetrics, JsonFields
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.workload.ramp import Ramp

MOMENT = datetime(2026, 11, 15, 2, 0, 0)  # noqa: DTZ001 (naive UTC, as everywhere in results)
NO = ConnectionFailure(at=MOMENT, code=390_100, text="Incorrect username or password.")


class Slots:
    """A meter with a plan of this many connections, in an open window; time is in milliseconds."""

    def __init__(self, planned: int, *, closes_ms: int | None = None) -> None:
        self.meter = ConnectionMeter()
        self.meter.plan(Ramp(origin=planned, target=planned), 0)
        self.meter.open(1, 0, None if closes_ms is None else closes_ms * NS_PER_MS)

    def began(self, slot: int, at_ms: int, *, again: bool = False) -> None:
        self.meter.login_began(slot, at_ms * NS_PER_MS, again=again)

    def connected(self, slot: int, at_ms: int, why: ReconnectReason | None = None) -> None:
        self.meter.login_succeeded(slot, at_ms * NS_PER_MS, why)

    def refused(self, slot: int, at_ms: int) -> None:
        self.meter.login_refused(slot, at_ms * NS_PER_MS, NO)

    def waits(self, slot: int, at_ms: int) -> None:
        self.meter.login_waits(slot, at_ms * NS_PER_MS)

    def gone(self, slot: int, at_ms: int) -> None:
        self.meter.gone(slot, at_ms * NS_PER_MS)

    def complete_ms(self) -> int | None:
        since_ns = self.meter.complete_since_ns
        return None if since_ns is None else since_ns // NS_PER_MS

    def time(self, at_ms: int, window: int = 1) -> tuple[int, int, int]:
        """Planned, delivered, and logging in."""
        time = self.meter.time(window, at_ms * NS_PER_MS)
        return time.planned_ms, time.delivered_ms, time.logging_in_ms


def test_open_connections_are_delivered_and_a_first_login_is_not() -> None:
    slots = Slots(2)
    slots.connected(0, 0)
    slots.began(1, 100)
    slots.connected(1, 400)

    assert slots.time(1_000) == (2_000, 1_600, 0)


def test_recycling_is_delivered_when_it_works() -> None:
    slots = Slots(1)
    slots.connected(0, 0)
    slots.began(0, 500, again=True)
    assert slots.time(600) == (600, 600, 100)

    slots.connected(0, 700, ReconnectReason.MAX_AGE)

    assert slots.time(1_000) == (1_000, 1_000, 200)


def test_a_refused_login_and_the_pause_after_it_are_missing() -> None:
    slots = Slots(1)
    slots.connected(0, 0)
    slots.began(0, 500, again=True)
    slots.refused(0, 600)
    slots.waits(0, 800)
    slots.began(0, 850, again=True)
    slots.connected(0, 900, ReconnectReason.SESSION_LOST)

    assert slots.time(1_000) == (1_000, 650, 50)


def test_a_login_that_is_under_way_when_its_window_closes_counts_until_it_is_refused() -> None:
    slots = Slots(1, closes_ms=1_000)
    slots.connected(0, 0)
    slots.began(0, 900, again=True)

    assert slots.time(1_500) == (1_000, 1_000, 100)

    slots.refused(0, 1_600)
    assert slots.time(1_700) == (1_000, 900, 0)


def test_the_pause_after_statements_without_an_answer_is_missing() -> None:
    meter = ConnectionMeter()
    meter.plan(Ramp(origin=1, target=1), 0)
    meter.login_succeeded(0, 0, None)
    meter.open(0, 0, None)
    meter.paused(0, 2 * NS_PER_S)
    meter.resumed(0, 5 * NS_PER_S)

    assert meter.complete_since_ns == 5 * NS_PER_S
    assert meter.time(0, 6 * NS_PER_S) == ConnectionTime(planned_ms=6_000, delivered_ms=3_000)


def test_waiting_for_a_turn_to_log_in_is_missing() -> None:
    slots = Slots(1)
    slots.connected(0, 0)
    slots.began(0, 100, again=True)  # logging out
    slots.waits(0, 120)
    slots.began(0, 320, again=True)
    slots.connected(0, 400, ReconnectReason.MAX_AGE)

    assert slots.time(1_000) == (1_000, 800, 100)


def test_a_connection_beyond_the_plan_makes_up_for_nothing() -> None:
    slots = Slots(2)
    for slot in (0, 2, 3):
        slots.connected(slot, 0)

    assert slots.time(1_000) == (2_000, 1_000, 0)


def test_a_login_that_its_client_leaves_before_it_has_ended_is_missing() -> None:
    slots = Slots(1)
    slots.connected(0, 0)
    slots.began(0, 100, again=True)
    slots.gone(0, 300)

    assert slots.time(1_000) == (1_000, 100, 0)


def test_the_plan_follows_the_ramp() -> None:
    meter = ConnectionMeter()
    meter.plan(Ramp.toward(4, origin=0, began_ns=0, seconds=4.0), 0)
    for slot in range(2):
        meter.login_succeeded(slot, 0, None)
    meter.open(1, 0, None)

    time = meter.time(1, 5_000 * NS_PER_MS)

    assert time.planned_ms == 0 + 1_000 + 2_000 + 3_000 + 4_000
    assert time.delivered_ms == 0 + 1_000 + 2_000 + 2_000 + 2_000


def test_a_window_that_is_opened_late_has_its_time_from_the_moment_it_was_meant_for() -> None:
    slots = Slots(1, closes_ms=1_000)
    slots.connected(0, 0)
    assert slots.time(1_050) == (1_000, 1_000, 0)  # a look in between

    slots.meter.plan(Ramp(origin=2, target=2), 1_000 * NS_PER_MS)
    slots.meter.open(2, 1_000 * NS_PER_MS, 2_000 * NS_PER_MS)
    slots.meter.close(2_100 * NS_PER_MS)

    assert slots.time(2_200) == (1_000, 1_000, 0)
    assert slots.time(2_200, window=2) == (2_000, 1_000, 0)


def test_complete_means_that_no_planned_connection_is_missing() -> None:
    slots = Slots(2)
    slots.connected(0, 0)
    assert slots.complete_ms() is None

    slots.connected(1, 50)
    assert slots.complete_ms() == 50

    slots.began(0, 100, again=True)
    assert slots.complete_ms() == 50, "it is being opened again"

    slots.refused(0, 200)
    slots.connected(2, 200)
    assert slots.complete_ms() is None

    slots.connected(0, 300)
    assert slots.complete_ms() == 300

    slots.meter.plan(Ramp(origin=3, target=3), 400 * NS_PER_MS)
    assert slots.complete_ms() == 300
    slots.meter.plan(Ramp(origin=4, target=4), 500 * NS_PER_MS)
    assert slots.complete_ms() is None


def test_connections_that_were_refused_for_a_while_are_complete_only_since_they_were_reopened() -> None:
    slots = Slots(4)
    for slot in range(4):
        slots.connected(slot, 0)
    for slot in range(4):
        slots.refused(slot, 10_000)
    for slot in range(4):
        slots.connected(slot, 30_000, ReconnectReason.SESSION_LOST)

    assert slots.complete_ms() == 30_000
    assert slots.time(60_000) == (240_000, 160_000, 0)


moves = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 3), st.sampled_from(["login", "wait", "connect", "refuse", "leave"])),
    max_size=25,
)


@given(moves, st.integers(0, 4), st.integers(0, 4), st.integers(0, 300))
def test_every_millisecond_of_every_slot_is_accounted_for(moves, low, high, ramp_ms) -> None:
    """Against a count of every single millisecond."""
    meter, line = ConnectionMeter(), Ramp.toward(high, origin=low, began_ns=0, seconds=ramp_ms / 1_000)
    meter.plan(line, 0)
    meter.open(1, 0, None)
    state, provisional, total = ["absent"] * 4, [0] * 4, {"planned": 0, "delivered": 0, "logging_in": 0}
    was_open = [False] * 4
    now = 0
    for gap, slot, move in moves:
        for ms in range(now, now + gap):
            planned = line.at(ms * NS_PER_MS + NS_PER_MS // 2)  # the plan of a ramp in whole milliseconds
            exact = sum(level * length for level, length in line.levels(ms * NS_PER_MS, (ms + 1) * NS_PER_MS))
            if exact != planned * NS_PER_MS:
                return  # it changes within this millisecond: the other tests know better
            total["planned"] += planned
            for number in range(min(planned, 4)):
                total["delivered"] += state[number] == "open"
                provisional[number] += state[number] == "logging in"
        now += gap
        now_ns = now * NS_PER_MS
        if move == "login":
            meter.login_began(slot, now_ns, again=was_open[slot])
            state[slot] = "logging in" if was_open[slot] else "absent"
        elif move == "wait":
            meter.login_waits(slot, now_ns)
            state[slot] = "absent"
        elif move == "refuse":
            meter.login_refused(slot, now_ns, NO)
            state[slot], provisional[slot], was_open[slot] = "absent", 0, True
        elif move == "leave":
            meter.gone(slot, now_ns)
            state[slot], provisional[slot] = "absent", 0
        else:
            meter.login_succeeded(slot, now_ns, None)
            state[slot], was_open[slot] = "open", True
            total["delivered"] += provisional[slot]
            total["logging_in"] += provisional[slot]
            provisional[slot] = 0

    assert meter.time(1, now * NS_PER_MS) == ConnectionTime(
        planned_ms=total["planned"],
        delivered_ms=total["delivered"] + sum(provisional),
        logging_in_ms=total["logging_in"] + sum(provisional),
    )


# --- logins ----------------------------------------------------------------------------------------------------------


def test_logins_are_counted_with_why_and_the_newest_refusals_are_kept() -> None:
    slots = Slots(2)
    for at_ms in range(8):
        slots.meter.login_refused(
            0, at_ms, ConnectionFailure(at=MOMENT + timedelta(seconds=at_ms), code=at_ms, text="no")
        )
    slots.connected(0, 10)
    slots.connected(0, 20, ReconnectReason.MAX_AGE)
    slots.connected(1, 30, ReconnectReason.MAX_AGE)
    slots.connected(1, 40, ReconnectReason.SESSION_LOST)

    logins = slots.meter.logins

    assert (logins.opened, logins.refused) == (4, 8)
    assert logins.counts()["reopened"] == {"max_age": 2, "max_statements": 0, "session_lost": 1, "error": 0}
    assert [refusal.code for refusal in logins.last_refused] == [3, 4, 5, 6, 7]


def failure(second: float, code: int | None = 390_111, text: str = "gone", **more: Any) -> ConnectionFailure:
    return ConnectionFailure(at=MOMENT + timedelta(seconds=second), code=code, text=text, **more)


def test_connections_lost_with_one_cause_in_one_second_are_one_entry() -> None:
    lost, error = ReconnectReason.SESSION_LOST, ReconnectReason.ERROR
    slots = Slots(1)
    for one in (
        failure(0.0, text="session 1 is gone", slot=7, reason=lost),
        failure(0.4, code=None, text="reset", reason=error),
        failure(0.5, text="session 2 is gone", slot=8, reason=lost),
        failure(0.9, code=None, text="hung", reason=error),
        failure(1.0, text="session 3 is gone", slot=9, reason=lost),
    ):
        slots.meter.lost(one)

    kept = slots.meter.logins.last_lost

    assert [(one.text, one.slot, one.count) for one in kept] == [
        ("session 1 is gone", 7, 2),
        ("reset", None, 1),
        ("hung", None, 1),
        ("session 3 is gone", 9, 1),
    ]


def test_a_thousand_refused_logins_of_one_second_do_not_push_out_what_was_before() -> None:
    slots = Slots(1)
    for one in (failure(0.0, code=1), *[failure(5.0)] * 1_000):
        slots.meter.login_refused(0, 0, one)

    assert [(one.code, one.count) for one in slots.meter.logins.last_refused] == [(1, 1), (390_111, 1_000)]


def test_the_counts_of_a_second_are_what_was_added() -> None:
    before = LoginCounts(opened=8, reopened={ReconnectReason.MAX_AGE: 2}, refused=1)
    now = LoginCounts(
        opened=12,
        reopened={ReconnectReason.MAX_AGE: 3, ReconnectReason.SESSION_LOST: 2, ReconnectReason.ERROR: 1},
        refused=4,
    )

    added = now.since(before)

    assert (added.opened, added.refused, added.lost, sum(added.reopened.values())) == (4, 3, 3, 4)
    assert before.since(now) == before, "a new process began at 0"


failures = st.builds(
    ConnectionFailure,
    at=st.integers(0, 10**6).map(lambda ms: MOMENT + timedelta(milliseconds=ms)),
    slot=st.none() | st.integers(0, 10**4),
    reason=st.none() | st.sampled_from(ReconnectReason),
    code=st.none() | st.integers(0, 10**6),
    text=st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=50),
    count=st.integers(1, 10**6),
)
kept_failures = st.lists(failures, max_size=FAILURES_KEPT).map(tuple)
all_logins = st.builds(
    LoginCounts,
    opened=st.integers(0, 10**6),
    reopened=st.dictionaries(st.sampled_from(ReconnectReason), st.integers(1, 10**6)),
    refused=st.integers(0, 10**6),
    last_refused=kept_failures,
    last_lost=kept_failures,
)


@given(all_logins)
def test_logins_are_read_as_they_were_written(logins) -> None:
    assert read_logins(JsonFields(json.loads(json.dumps(logins_data(logins))), "x")) == logins


@given(all_logins, all_logins)
def test_logins_of_workers_add(left, right) -> None:
    both = left + right

    assert (both.opened, both.refused) == (left.opened + right.opened, left.refused + right.refused)
    assert len(both.last_refused) == min(FAILURES_KEPT, len(left.last_refused) + len(right.last_refused))
    assert list(both.last_refused) == sorted(both.last_refused, key=lambda refusal: refusal.at)


@pytest.mark.parametrize(
    "wrong",
    [
        {"planned_ms": 10, "delivered_ms": 11, "logging_in_ms": 0},
        {"planned_ms": 10, "delivered_ms": 5, "logging_in_ms": 6},
        {"planned_ms": -1, "delivered_ms": 0, "logging_in_ms": 0},
        {"planned_ms": 1.5, "delivered_ms": 0, "logging_in_ms": 0},
        {"planned_ms": 10, "delivered_ms": 5},
    ],
)
def test_connection_time_that_cannot_be_is_refused(wrong) -> None:
    with pytest.raises(InvalidMetrics):
        read_time(JsonFields(wrong, "x"))


def test_connection_time_adds_and_is_read_as_it_was_written() -> None:
    time = ConnectionTime(planned_ms=10, delivered_ms=8, logging_in_ms=1)

    assert read_time(JsonFields(time_data(time), "x")) == time
    assert time + time == ConnectionTime(planned_ms=20, delivered_ms=16, logging_in_ms=2)


def test_connection_time_of_a_process_that_was_stopped_is_missing() -> None:
    time = ConnectionTime(planned_ms=40_000, delivered_ms=39_000, logging_in_ms=400)

    assert time.while_running(0, 10_000) == time
    assert time.while_running(0, 0) == time
    stopped = time.while_running(2_500, 10_000)
    assert stopped == ConnectionTime(planned_ms=40_000, delivered_ms=29_250, logging_in_ms=300)
    assert time.while_running(10_001, 10_000).delivered_ms == 0
