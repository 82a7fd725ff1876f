"""A process that emits or reads events of a run: what a leader's or a worker's process does, and nothing else.

    python -m tests.control_child emit RUN_ID EPOCH OWNER COUNT
    python -m tests.control_child read RUN_ID COUNT

Says `ready` when it is connected, begins when it is told a line, and ends with a line of JSON: what it did or saw. It
finds the control plane through its environment, and ends with its parent.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_leases
from loadgen.control.tables.run_control_events import NewEvent, catch_up, emit, poll
from loadgen.control.tables.run_leases import Lease
from loadgen.model.event import SetWorkerTarget
from loadgen.snowflake.session import RetryPolicy

POLL_S = 0.1


def emit_events(session: ControlSession, retries: RetryPolicy, term: Lease, count: int) -> list[tuple[int, str, int]]:
    """(number, event id, target) of each event, as returned when it was emitted."""
    emitted = []
    for target in range(count):
        new = NewEvent(command=SetWorkerTarget(target_connections=target, reason=str(os.getpid())))
        emitted.append((emit(session, retries, term, new), new.event_id, target))
    return emitted


def read_events(
    session: ControlSession, retries: RetryPolicy, run_id: str, count: int
) -> list[tuple[int, str, int, str]]:
    """(number, event id, target, sender) of each event, in the order of arrival; one more poll at the end."""
    seen: list[tuple[int, str, int, str]] = []
    while len(seen) < count and not retries.clock.wait(retries.stop, POLL_S):
        last = seen[-1][0] if seen else 0
        for event in retries.call(lambda last=last: list(catch_up(session, run_id, last))):  # type: ignore[misc]
            assert isinstance(event.command, SetWorkerTarget), event
            seen.append((event.sequence_id, event.event_id, event.command.target_connections, event.command.reason))
    more = retries.call(lambda: poll(session, run_id, seen[-1][0] if seen else 0))
    return [*seen, *((event.sequence_id, event.event_id, -1, "too many") for event in more)]


def wait_for_parent(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def main() -> None:
    role, run_id, *words = sys.argv[1:]
    stop = threading.Event()
    retries = RetryPolicy(stop=stop, attempts=15, first_pause_s=0.01)
    session = ControlSession(ControlPlaneLocation.from_environment(), role=role)
    retries.call(lambda: run_leases.read(session, run_id))
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=wait_for_parent, args=(stop,), name="parent", daemon=True).start()
    if role == "emit":
        epoch, owner, count = words
        term = Lease(key=run_id, epoch=int(epoch), owner=owner)
        print(json.dumps(emit_events(session, retries, term, int(count))), flush=True)
    else:
        print(json.dumps(read_events(session, retries, run_id, int(words[0]))), flush=True)
    session.close()
    os._exit(0)  # the thread that waits for the parent would hold it


if __name__ == "__main__":
    main()
