"""Orchestrators as real threads and processes: they claim at the same instant, are paused, and are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest

from loadgen.clock import SystemClock
from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.tables.run_control_events import NewEvent, emit
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S, Lease, claim, new_owner, read, renew
from loadgen.control.tables.run_status import Fenced, RunRollup, StatusChange, move, publish
from loadgen.model.event import Start
from loadgen.model.run import Phase, RunStatus
from loadgen.snowflake.session import RetryPolicy
from tests.control_plane import ControlPlane, retries
from tests.processes import PATIENCE_S, wait_until

TTL_S = 30.0
SHORT = LeaseTimes(ttl_s=4, renew_s=0.3, margin_s=1)
ROUNDS = 60


# --- at the same instant ---------------------------------------------------------------------------------------------


class Racers:
    """Two threads, each with its own session, that claim one key after the other, always together."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._barrier = threading.Barrier(3, timeout=PATIENCE_S)
        self._key: str | None = None
        self._results: list[Lease | None] = [None, None]

    def run(self, rounds: int, prepare: Callable[[], str]) -> Iterator[tuple[str, list[Lease]]]:
        """(key, who won) of each round."""
        with ThreadPoolExecutor(2, thread_name_prefix="racer") as pool:
            racing = [pool.submit(self._race, number) for number in range(2)]
            try:
                for _ in range(rounds):
                    self._key = prepare()
                    self._barrier.wait()
                    self._barrier.wait()
                    yield self._key, [term for term in self._results if term is not None]
                self._key = None
                self._barrier.wait()
            except BaseException:  # also when the test has seen enough: let the threads go
                self._barrier.abort()
                raise
            for race in racing:
                race.result(PATIENCE_S)

    def _race(self, number: int) -> None:
        session = self._plane.open(f"racer {number}")
        read(session, "")  # logged in before the start
        while True:
            self._barrier.wait()
            if self._key is None:
                return
            self._results[number] = claim(session, retries(), self._key, new_owner(), TTL_S)
            self._barrier.wait()


def key_with_a_term(plane: ControlPlane, *, over_since_s: float) -> str:
    key = str(uuid.uuid4())
    plane.change(
        "INSERT INTO RUN_LEASES (RUN_ID, EPOCH, OWNER, EXPIRES_AT) SELECT ?, 4, 'before', DATEADD(ms, ?, SYSDATE())",
        *(key, -round(over_since_s * 1000)),
    )
    return key


def test_of_two_simultaneous_claims_of_a_run_one_wins(plane):
    for key, winners in Racers(plane).run(ROUNDS, lambda: str(uuid.uuid4())):
        assert len(winners) == 1
        assert [lease[:2] for lease in plane.leases(key)] == [(1, winners[0].owner)]

    history = plane.server.ask("/__loadgen/history")
    collisions = [line for line in history if line["error_code"] == 200001]
    assert collisions, "they never met: nothing was shown"


@pytest.mark.slow
def test_of_two_simultaneous_takeovers_one_wins(plane):
    old_enough_s = TAKEOVER_MARGIN_S + 0.5
    for key, winners in Racers(plane).run(ROUNDS // 2, lambda: key_with_a_term(plane, over_since_s=old_enough_s)):
        assert len(winners) == 1
        assert [lease[:2] for lease in plane.leases(key)] == [(4, "before"), (5, winners[0].owner)]


@pytest.mark.parametrize("over_since_s", [-5, 0, TAKEOVER_MARGIN_S - 6], ids=["lasts", "just over", "not long enough"])
def test_no_takeover_before_the_margin(plane, over_since_s):
    for key, winners in Racers(plane).run(10, lambda: key_with_a_term(plane, over_since_s=over_since_s)):
        assert winners == []
        assert [lease[:2] for lease in plane.leases(key)] == [(4, "before")]


# --- processes -------------------------------------------------------------------------------------------------------


def hold(place: ControlPlaneLocation, environ: dict[str, str], run_id: str, pipe: Connection) -> None:
    """A process that leads a run: it claims and keeps its lease, and executes requests with it."""
    clock, retries = SystemClock(), RetryPolicy(stop=threading.Event(), attempts=1)
    session = ControlSession(place, role="holder", environ=environ)
    begun_ns = clock.monotonic_ns()
    term = claim(session, retries, run_id, new_owner(), SHORT.ttl_s)
    assert term is not None
    keeper = LeaseKeeper(
        ControlSession(place, role="lease", environ=environ), term, SHORT, claimed_ns=begun_ns, clock=clock
    )
    keeper.start()
    pipe.send(term)
    while (status := pipe.recv()) is not None:
        pipe.send({"trusted": keeper.trusted, **act(session, retries, term, status)})
    keeper.stop()
    session.close()


def act(session: ControlSession, retries: RetryPolicy, term: Lease, status: RunStatus) -> dict[str, Any]:
    """Everything a leader can do to a run that is in `status`, whether trusted or not, and what came of it."""
    step = StatusChange(status=status, phase=Phase.PREPARING, to=RunStatus.STARTING, to_phase=Phase.PREPARING)

    def tried(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Fenced:
            return "fenced"

    return {
        "renewed": renew(session, term, SHORT.ttl_s),
        "emitted": tried(lambda: emit(session, retries, term, NewEvent(command=Start(expected_workers=1)))),
        "moved": tried(lambda: move(session, retries, term, step)),
        "published": publish(session, term, RunRollup(targets={}, total_ops=1)),
    }


IN_CHARGE = {"trusted": True, "renewed": True, "emitted": 1, "moved": True, "published": True}
POWERLESS = {"trusted": False, "renewed": False, "emitted": "fenced", "moved": "fenced", "published": False}


class Holder:
    """The process, and what it is asked."""

    def __init__(self, plane: ControlPlane) -> None:
        context = multiprocessing.get_context("spawn")
        self.plane, self.run_id = plane, plane.new_run()
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=hold, args=(plane.place, plane.environ, self.run_id, theirs))
        self.process.start()
        theirs.close()
        self.term: Lease = self._answer()

    def ask(self, status: RunStatus) -> dict[str, Any]:
        self._pipe.send(status)
        answer: dict[str, Any] = self._answer()
        return answer

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)
        found = psutil.Process(self.process.pid)
        wait_until(lambda: found.status() == psutil.STATUS_STOPPED, "the holder is paused")

    def end(self) -> int | None:
        self._pipe.send(None)
        self.process.join(PATIENCE_S)
        return self.process.exitcode

    @property
    def remaining_ms(self) -> int:
        return self.plane.leases(self.run_id)[self.term.epoch - 1][2]

    @property
    def written(self) -> tuple[Any, ...]:
        """All that a leader can change, to the microsecond."""
        tables = ("RUN_LEASES", "RUN_CONTROL_EVENTS", "RUN_STATUS")
        return tuple(
            sorted(map(repr, self.plane.rows(f"SELECT * FROM {table} WHERE RUN_ID = ?", self.run_id)))
            for table in tables
        )

    def _answer(self) -> Any:
        assert self._pipe.poll(PATIENCE_S), "the holder does not answer"
        return self._pipe.recv()


@contextmanager
def holding(plane: ControlPlane) -> Iterator[Holder]:
    holder = Holder(plane)
    try:
        yield holder
    finally:
        holder.process.kill()
        holder.process.join(PATIENCE_S)


def test_a_holder_that_was_paused_beyond_its_lease_writes_nothing(plane):
    with holding(plane) as succeeded, holding(plane) as alone:
        assert succeeded.ask(RunStatus.PREPARED) == alone.ask(RunStatus.PREPARED) == IN_CHARGE
        for holder in (succeeded, alone):
            holder.pause()
        wait_until(lambda: succeeded.remaining_ms < 0 and alone.remaining_ms < 0, "both terms have ended")
        plane.age(succeeded.run_id, TAKEOVER_MARGIN_S + 1)
        successor = plane.claim(succeeded.run_id)
        assert emit(plane.session, retries(), successor, NewEvent(command=Start(expected_workers=1))) == 2
        before = (succeeded.written, alone.written)

        for holder in (succeeded, alone):
            holder.signal(signal.SIGCONT)
        # The second one between the expiry of the first lease and the first claim of another holder.
        assert succeeded.ask(RunStatus.STARTING) == alone.ask(RunStatus.STARTING) == POWERLESS

        assert (succeeded.written, alone.written) == before
        assert renew(plane.session, successor, TTL_S)
        assert emit(plane.session, retries(), successor, NewEvent(command=Start(expected_workers=1))) == 3
        assert (succeeded.end(), alone.end()) == (0, 0)
        assert renew(plane.session, successor, TTL_S), "the old holder released what was not its own"


def test_a_short_pause_costs_nothing(plane):
    with holding(plane) as holder:
        holder.pause()
        holder.signal(signal.SIGCONT)

        wait_until(lambda: holder.ask(RunStatus.PREPARED) == IN_CHARGE, "the holder trusts its term")
        assert holder.end() == 0


def test_after_a_holder_was_killed_there_is_a_successor_once_the_margin_has_passed(plane):
    with holding(plane) as holder:
        wait_until(lambda: holder.ask(RunStatus.PREPARED) == IN_CHARGE, "the holder trusts its term")
        holder.signal(signal.SIGKILL)
        holder.process.join(PATIENCE_S)
        run_id = holder.run_id

        assert claim(plane.session, retries(), run_id, new_owner(), TTL_S) is None
        plane.expire(run_id, since_s=1)
        assert claim(plane.session, retries(), run_id, new_owner(), TTL_S) is None
        plane.age(run_id, TAKEOVER_MARGIN_S)
        successor = plane.claim(run_id)

        assert successor.epoch == holder.term.epoch + 1
        assert emit(plane.session, retries(), successor, NewEvent(command=Start(expected_workers=1))) == 2


def test_a_holder_that_ends_in_peace_has_a_successor_at_once(plane):
    with holding(plane) as holder:
        assert holder.end() == 0

        assert plane.claim(holder.run_id).epoch == 2
