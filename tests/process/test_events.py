"""Many processes emit events to one run at once, others read them: no gap in the numbers, and everyone sees all."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.process.event_processes import check, child, run_children, run_threads
from tests.processes import wait_until

EMITTERS, EVENTS_EACH, READERS = 4, 60, 2


@pytest.mark.slow
def test_events_of_many_processes_are_numbered_without_gaps_and_read_by_all(plane):
    term = plane.claim(plane.new_run(), ttl_s=600)

    emitted, seen = run_children(plane, term, emitters=EMITTERS, each=EVENTS_EACH, readers=READERS)

    check(plane, term.key, emitted, seen)
    turns = [who for *_, who in seen[0]]
    assert len(set(turns)) == EMITTERS
    assert sum(one != other for one, other in pairwise(turns)) > 5 * EMITTERS  # they did get in each other's way


@pytest.mark.slow  # tests/contract/test_control_events.py loses answers one by one
def test_lost_answers_make_no_gap_and_no_second_event(plane):
    """Of the writes, one in ten is executed and not answered; others, and reads, meet resets, 503 and delays."""
    term = plane.claim(plane.new_run(), ttl_s=600)
    plane.server.fault(match="INSERT INTO RUN_CONTROL_EVENTS", kind="latency", ms=5_000, count=3)
    plane.server.fault(match="INSERT INTO RUN_CONTROL_EVENTS", kind="drop_reply", probability=0.1)
    plane.server.fault(match="INSERT INTO RUN_CONTROL_EVENTS", kind="truncate", probability=0.03)
    plane.server.fault(match="RUN_CONTROL_EVENTS", kind="reset", probability=0.05)
    plane.server.fault(match="RUN_CONTROL_EVENTS", kind="http_status", status=503, probability=0.05)
    plane.server.fault(match="RUN_CONTROL_EVENTS", kind="error", errno=625, sqlstate="57014", probability=0.02)
    plane.server.fault(match="RUN_CONTROL_EVENTS", kind="expire_session", probability=0.01)
    try:
        emitted, seen = run_threads(plane, term, emitters=4, each=60, readers=2)
        struck = {rule["kind"]: rule["fired"] for rule in plane.server.ask("/__loadgen/faults")}
    finally:
        plane.server.clear_faults()

    check(plane, term.key, emitted, seen)
    assert struck["latency"] == 3
    assert min(struck.values()) > 0
    assert struck["drop_reply"] >= 10


def test_an_emitter_that_is_killed_leaves_no_gap(plane):
    """Its last event is there or not; the others go on with the next number."""
    term = plane.claim(plane.new_run(), ttl_s=600)
    emit = ("emit", term.key, term.epoch, term.owner)
    with child(plane, *emit, 1_000_000) as victim, child(plane, *emit, 60) as survivor:
        for one in (victim, survivor):
            one.wait_ready()
        victim.go()
        wait_until(lambda: len(plane.events(term.key)) > 20, "the first emitter emits")
        survivor.go()
        wait_until(lambda: survivor.sent(plane) > 5, "both emit")
        victim.process.kill()
        victim.process.wait()
        emitted = survivor.result()

    numbers = [number for number, _, _ in plane.events(term.key)]
    assert numbers == list(range(1, len(numbers) + 1))
    stored = {number: event_id for number, event_id, _ in plane.events(term.key)}
    assert len(emitted) == 60
    assert all(stored[number] == event_id for number, event_id, _ in emitted)
