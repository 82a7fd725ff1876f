"""Processes of tests.control_child: starting them, letting them all go at once, and what must be true afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from loadgen.control.tables.run_leases import Lease
from loadgen.snowflake.session import RetryPolicy
from tests.control_child import emit_events, read_events
from tests.control_plane import ControlPlane
from tests.processes import PATIENCE_S, ROOT

Emitted = tuple[int, str, int]
Seen = tuple[int, str, int, str]


class Child:
    """One process of tests.control_child."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def sent(self, plane: ControlPlane) -> int:
        """How many of its events are there."""
        mine = f'%"reason":"{self.process.pid}"%'
        return int(plane.rows("SELECT COUNT(*) FROM RUN_CONTROL_EVENTS WHERE EVENT_DATA LIKE ?", mine)[0][0])

    def result(self) -> list[Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert self.process.wait(PATIENCE_S) == 0
        return [tuple(row) for row in json.loads(line)]


@contextmanager
def child(plane: ControlPlane, *words: object) -> Iterator[Child]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LOADGEN_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.control_child", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environ | plane.environ | plane.place.to_environment() | {"PYTHONPATH": str(ROOT)},
    )
    try:
        yield Child(process)
    finally:
        process.kill()
        process.communicate()


def run_children(
    plane: ControlPlane, term: Lease, *, emitters: int, each: int, readers: int
) -> tuple[list[list[Emitted]], list[list[Seen]]]:
    """Compares the numbers that emitters received with the events that readers saw, from before the first to the last
    event."""
    with ExitStack() as stack:
        reading = [stack.enter_context(child(plane, "read", term.key, emitters * each)) for _ in range(readers)]
        emitting = [
            stack.enter_context(child(plane, "emit", term.key, term.epoch, term.owner, each)) for _ in range(emitters)
        ]
        for group in (reading, emitting):
            for one in group:
                one.wait_ready()
            for one in group:
                one.go()
        return [one.result() for one in emitting], [one.result() for one in reading]


def run_threads(
    plane: ControlPlane, term: Lease, *, emitters: int, each: int, readers: int
) -> tuple[list[list[Emitted]], list[list[Seen]]]:
    """The same from threads of this process, with a session each: for what processes make no difference to."""
    with ThreadPoolExecutor(emitters + readers, thread_name_prefix="events") as threads:
        reading = [
            threads.submit(read_events, plane.open(f"reader {n}"), _retries(), term.key, emitters * each)
            for n in range(readers)
        ]
        emitting = [
            threads.submit(emit_events, plane.open(f"emitter {n}"), _retries(), term, each) for n in range(emitters)
        ]
        return [one.result() for one in emitting], [one.result() for one in reading]


def _retries() -> RetryPolicy:
    return RetryPolicy(stop=threading.Event(), attempts=15, first_pause_s=0.01)


def check(plane: ControlPlane, run_id: str, emitted: list[list[Emitted]], seen: list[list[Seen]]) -> None:
    """Numbers from 1 without gap or duplicate; every reader saw every event once, in order, as it was emitted."""
    told = {number: (event_id, target) for one in emitted for number, event_id, target in one}
    total = sum(map(len, emitted))
    assert sorted(told) == list(range(1, total + 1))
    assert len({event_id for event_id, _ in told.values()}) == total
    for one in emitted:
        assert [number for number, _, _ in one] == sorted(number for number, _, _ in one)
    stored = [(number, event_id) for number, event_id, _ in plane.events(run_id)]
    assert stored == [(number, told[number][0]) for number in range(1, total + 1)]
    for events in seen:
        assert [number for number, *_ in events] == list(range(1, total + 1))
        assert {number: (event_id, target) for number, event_id, target, _ in events} == told
