"""Clients: threads with one connection each that execute statements and measure them; the pool that starts and ends
them.

A client only reads shared state. Its samples go into its own deques, which the main thread empties. The statement under
way is in `flight`, a deque of at most one entry: the thread that pops the entry records the statement. So the worker
can record a statement as cancelled if its driver call never returns, and no statement is recorded twice.
"""

from __future__ import annotations

import logging
import math
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from loadgen.clock import monotonic, monotonic_ns
from loadgen.errors import LoadgenError
from loadgen.metrics.connections import ConnectionFailure, ReconnectReason
from loadgen.metrics.recorder import FailedOutcome, Outcome
from loadgen.metrics.stalls import InFlightStatement
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.connect import close
from loadgen.snowflake.driver import Connection, Cursor
from loadgen.snowflake.failure import classify, describe
from loadgen.units import NS_PER_S
from loadgen.worker.client_context import CLIENTS_MAX, ClientContext, ClientSlot, ClientSlots
from loadgen.worker.query_log import query_id_of
from loadgen.worker.sessions import RollbackFailed, judged, login_pause_s, with_tag
from loadgen.workload.draw import Row
from loadgen.workload.replay import SessionArrivals

log = logging.getLogger(__name__)

IDLE_S = 0.25  # a client without a window checks after this time whether it has to end
EXHAUSTED_S = 0.02  # a client whose window has no more arrivals checks after this time
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 15.0  # between statements that get no answer
# Of max_lag: an arrival that waited that long for a busy connection is overload of the server. The client needs some
# time for each arrival, so under an overload many are just below max_lag when a connection becomes free.
OVERLOAD_FRACTION = 0.9
NO_WINDOW = -1  # the number of no window and no draw
SUCCEEDED = Outcome.SUCCEEDED
INTERNAL_ERRORS_MAX = 10  # consecutive failures inside loadgen, after which the client ends


class Client:
    """run() is a task of the executor; the other methods and attributes are for other threads."""

    def __init__(self, slot: ClientSlot, context: ClientContext, *, waits: bool = False) -> None:
        """`waits`: the client connects ahead of time, and begins to work after work()."""
        self.slot = slot
        self.flight: deque[InFlightStatement] = deque(maxlen=1)
        self._leaving = threading.Event()  # ends waits
        self._told_to_leave = False  # whether it has to end, as a plain attribute
        self._halted = waits  # it rests or leaves; a plain attribute, which is cheap to read in the hot loop
        self._turn = threading.Event()  # set: it may work
        if not waits:
            self._turn.set()
        self.cancelling = False  # set when its statement is cancelled on the server
        self.connected = threading.Event()
        self.ended = threading.Event()
        self.session_id: int | None = None
        self.error: LoadgenError | None = None  # why it could not draw values, if that has ended it
        self.refused: LoadgenError | None = None  # why its last login failed, if a retry is unlikely to succeed
        self._context = context
        self._connection: Connection | None = None
        self._most = 0  # maximum of statements per connection
        self._first_k = 0  # the first draw of the current connection
        self._expires_ns = 0
        self._failures = self._fatal = 0  # consecutive failures: of the connection, and inside loadgen
        self._failed_k = NO_WINDOW  # the draw that failed last
        self._reopened: ReconnectReason | None = None  # why it connects again; None: this is the first connection
        self._lost: ReconnectReason | None = None  # why the session must not be used any more

    def leave(self) -> None:
        """Finish the statement under way, then end. Any thread."""
        self._told_to_leave = self._halted = True
        self._leaving.set()
        self._turn.set()

    def work(self) -> None:
        """Begin or continue to work. For the thread of the ramp controller, as rest()."""
        if not self._told_to_leave:
            self._halted = False
            self._turn.set()

    def rest(self) -> None:
        """Finish the statement under way, then wait for work() with an open connection."""
        if not self._told_to_leave:
            self._halted = True
            self._turn.clear()

    def run(self) -> None:
        """Connect, execute statements, reconnect, until leave()."""
        recorded = self._context.recorded
        try:
            while not self._told_to_leave and self._connect():
                self._turn.wait()
                if recorded is not None:
                    self._restore(self._cursor(), recorded.context_so_far(self.slot.number))
                self._open_loop() if self._context.open_loop else self._work_by_turns()
                self._reopened = self._why_over()
                self._disconnect()
        except LoadgenError as error:  # no value is left to draw, for the next client of this slot as well
            self.error = error
            self._context.failed("", ErrorCategory.CONFIGURATION, None, str(error))
        except BaseException as error:  # a bug, or a panic of the driver: reported; the other clients continue
            log.exception("client_died client=%s", self.slot.number)
            self._context.failed("", ErrorCategory.FATAL, None, describe(error))
        finally:
            self._record_abandoned()
            self._told_to_leave = True
            self._disconnect()
            self.ended.set()

    # --- the two loops -----------------------------------------------------------------------------------------------
    #
    # The driver evicts this code from the processor's caches with every statement: each function call and each object
    # access costs ten times as much as in a tight loop. The closed loop runs as fast as the driver, so its path after a
    # success is a single function; failures are handled elsewhere.

    def _work_by_turns(self) -> None:
        """A closed loop whose level may fall and rise again: meanwhile the connection stays open."""
        while self._closed_loop() and not self._told_to_leave:
            self._turn.wait()

    def _closed_loop(self) -> bool:
        """Execute statements until rest() or leave(). Returns False if the connection must not be used any more."""
        context, slot, flight = self._context, self.slot, self.flight
        windows, runs, append = context.windows, context.runs, slot.recorder.append
        think_s = context.scenario.workload.think_time_s
        last_k, expires_ns, follows = self._first_k + self._most, self._expires_ns, slot.follows
        cursor, window, begun = self._cursor(), NO_WINDOW, [0]
        ahead, first, end = [], 0, 0
        while not self._halted:
            if (opened := windows.current) != window:
                if opened is None:
                    self._idle()
                    continue
                window, cursor = opened, self._tag(cursor, opened)
                begun = slot.recorder.sheet(window)
            k = slot.k
            if k >= end:
                ahead = slot.drawer.ahead(k)
                first, end = k, k + len(ahead)
            number, row = ahead[k - first]
            begun[0] += 1
            if windows.current != window:  # as in Recorder.begin(): closed before this statement was counted
                begun[0] -= 1
                continue
            slot.k = k + 1
            if follows is not None:
                row = follows.current(number, row)
            sent_ns = monotonic_ns()
            flight.append((number, window, sent_ns, sent_ns))
            try:
                rows = runs[number](cursor, row)
                done_ns = monotonic_ns()
            except Exception as error:
                if not self._after_failure(cursor, k, number, error):
                    return False
                done_ns = monotonic_ns()
            else:
                if follows is not None:
                    follows.succeeded(number, row)
                try:
                    flight.pop()
                except IndexError:  # the worker has recorded it as cancelled, because it took too long
                    return False
                append((number, window, sent_ns, sent_ns, done_ns, SUCCEEDED))
                kept = slot.log  # the main thread may set it to None
                if kept is not None:
                    if kept.until > 1:
                        kept.until -= 1
                    elif kept.wants(SUCCEEDED):
                        kept.entries.append((cursor.sfqid, number, window, sent_ns, sent_ns, done_ns, rows, SUCCEEDED))
            if k + 1 >= last_k or done_ns >= expires_ns:
                return False
            if think_s:
                self._wait_until(monotonic() + think_s)
        return True

    def _open_loop(self) -> None:
        context, slot = self._context, self.slot
        begin, draw, follows = slot.recorder.begin, slot.drawer.draw, slot.follows
        max_lag_s = context.scenario.load.max_lag_s
        max_lag_ns = sys.maxsize if max_lag_s is None else round(max_lag_s * NS_PER_S)
        cursor, left, tagged, free_ns = self._cursor(), self._most, NO_WINDOW, monotonic_ns()
        while not self._told_to_leave and not self._lost:
            arrivals = context.arrivals
            if arrivals is None:
                self._idle()
                continue
            window = begin()  # first, so that no window is final from which an arrival may still be taken
            if window is None or window != arrivals.window_id:
                self._unbegin(window)
                continue
            if window != tagged:
                tagged, cursor = window, self._tag(cursor, window)
            index = arrivals.take(slot.number)
            if index is None:
                self._unbegin(window)
                self._idle(session_over=isinstance(arrivals, SessionArrivals))
                continue
            if context.recorded is not None and (texts := context.recorded.context_of(index, slot.number)):
                self._restore(self._cursor(), texts)  # without the tag of the window: not part of the measurement
                free_ns = monotonic_ns()
            try:
                number, row = draw(index)
            except Exception:
                self._unbegin(window)
                raise
            due_ns = arrivals.due_ns(index)
            self._wait_until(due_ns / NS_PER_S)
            if follows is not None:
                row = follows.current(number, row)
            sent_ns = monotonic_ns()
            late_ns, complete_ns = sent_ns - due_ns, context.connections.complete_since_ns
            # If no connection has been missing since the arrival was due, all were executing or logging in again
            # until this one was free: a connection that logs in is not free, so that wait is no client lag.
            waited_ns = max(0, free_ns - due_ns) if complete_ns is not None and complete_ns <= due_ns else 0
            if late_ns < 0 and context.windows.current != window:  # the window closed before the arrival was due
                self._unbegin(window)
                continue
            if late_ns < 0 or late_ns > max_lag_ns:
                self._skip(number, window, sent_ns, late_ns, waited_ns, max_lag_ns)
                continue
            context.client_lags.append((window, late_ns - waited_ns))
            slot.k += 1
            left -= 1
            self.flight.append((number, window, due_ns, sent_ns))
            if context.recorded is not None:
                context.replayed.append((window, number, context.recorded.due_us(index) * 1000 + late_ns, None))
            if not self._execute(cursor, number, row) or not left or (free_ns := monotonic_ns()) >= self._expires_ns:
                return

    def _skip(self, number: int, window: int, now_ns: int, late_ns: int, waited_ns: int, max_lag_ns: int) -> None:
        """Record an arrival that is not sent: too late, or not due any more. It shows an overload of the server, and has
        an age, if it was late before the client was slow; otherwise its client lag counts."""
        is_overload = waited_ns > 0 and waited_ns >= OVERLOAD_FRACTION * max_lag_ns
        if late_ns >= 0 and not is_overload:
            self._context.client_lags.append((window, late_ns - waited_ns))
        due_ns = now_ns - late_ns if is_overload else now_ns
        self.slot.recorder.append((number, window, due_ns, now_ns, now_ns, Outcome.SKIPPED))

    def _execute(self, cursor: Cursor, number: int, row: Row) -> bool:
        """Execute and record the statement in `flight`. Returns False if the connection must not be used any more."""
        try:
            rows = self._context.runs[number](cursor, row)
            done_ns = monotonic_ns()
        except Exception as error:
            return self._after_failure(cursor, self.slot.k - 1, number, error)
        if (follows := self.slot.follows) is not None:
            follows.succeeded(number, row)
        return self._record(cursor, done_ns, rows, SUCCEEDED)

    def _record(self, cursor: Cursor, done_ns: int, rows: int | None, outcome: Outcome | FailedOutcome) -> bool:
        """Record the statement in `flight`. Returns False if the worker has recorded it as cancelled before."""
        try:
            number, window, due_ns, sent_ns = self.flight.pop()
        except IndexError:
            return False
        if rows is not None and self._context.recorded is not None:
            self._context.replayed.append((window, number, None, rows))
        self.slot.recorder.append((number, window, due_ns, sent_ns, done_ns, outcome))
        kept = self.slot.log
        if kept is not None and kept.wants(outcome):
            kept.entries.append((query_id_of(cursor, outcome), number, window, due_ns, sent_ns, done_ns, rows, outcome))
        return True

    def _unbegin(self, window: int | None) -> None:
        if window is not None:
            self.slot.recorder.unbegin(window)

    def _record_abandoned(self) -> None:
        """Record a statement that a BaseException, such as a panic of the driver, has interrupted."""
        try:
            number, window, due_ns, sent_ns = self.flight.pop()
        except IndexError:
            return
        failed = FailedOutcome(ErrorCategory.FATAL, None, "the client died while it executed this statement")
        self.slot.recorder.append((number, window, due_ns, sent_ns, monotonic_ns(), failed))

    # --- failures ----------------------------------------------------------------------------------------------------

    def _after_failure(self, cursor: Cursor, k: int, number: int, error: Exception) -> bool:
        """Record a failed statement. Returns False if the connection must not be used any more. After repeated
        connection failures it pauses."""
        done_ns = monotonic_ns()
        if k != self._failed_k + 1:  # the one before it succeeded
            self._failures = self._fatal = 0
        self._failed_k = k
        if not self._record(cursor, done_ns, None, self._failed(number, error, done_ns)):
            return False
        if self._fatal >= INTERNAL_ERRORS_MAX:
            raise RuntimeError(f"{INTERNAL_ERRORS_MAX} statements in a row failed inside of loadgen")
        if self._failures > 1:
            self._pause(self._failures - 1)
        return not self._lost

    def _failed(self, number: int, error: Exception, done_ns: int) -> Outcome | FailedOutcome:
        failure, text = judged(error)
        workload, limit_s = self._context.scenario.workload, self._context.scenario.target.statement_timeout_s
        if failure.cancelled and self.cancelling:
            self._lose(ReconnectReason.ERROR, failure.code, text)
            return Outcome.CANCELLED
        if failure.session_lost:
            self._lose(ReconnectReason.SESSION_LOST, failure.code, text)
        elif isinstance(error, RollbackFailed):  # the transaction may be open; the logout ends it
            self._lose(ReconnectReason.ERROR, failure.code, text)
        self._failures = self._failures + 1 if failure.category is ErrorCategory.CONNECTION else 0
        self._fatal = self._fatal + 1 if failure.category is ErrorCategory.FATAL else 0
        waited_s = (done_ns - max((one[3] for one in tuple(self.flight)), default=done_ns)) / NS_PER_S
        failed = FailedOutcome.after(
            waited_s, failure.category, failure.code, text, limit_s=limit_s, cut_off=failure.cut_off
        )
        self._context.failed(workload.statements[number].name, failed.category, failed.code, text)
        return failed

    def _lose(self, reason: ReconnectReason, code: int | None, text: str) -> None:
        self._lost, context = reason, self._context
        if not self._told_to_leave:  # otherwise it does not reconnect
            lost = ConnectionFailure.of(context.clock.utc_now(), self.slot.number, code, text, reason)
            context.connections.lost(lost)

    def _pause(self, failures: int) -> None:
        """Pause after failures: longer with each failure, and random, so that clients do not all return at once. The
        paused time counts as missing load."""
        meter, now_ns = self._context.connections, self._context.clock.monotonic_ns
        longest_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** min(failures, 20))
        meter.paused(self.slot.number, now_ns())
        self._wait_until(monotonic() + random.uniform(longest_s / 2, longest_s))
        if not self._lost:
            meter.resumed(self.slot.number, now_ns())

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _idle(self, *, session_over: bool = False) -> None:
        """Wait, because no window is open or the window has no more arrivals. `session_over`: no further arrivals will
        come for this client."""
        if session_over:
            self._leaving.wait()
        elif self._context.windows.current is None:
            self._context.go.wait(IDLE_S)
        else:
            self._leaving.wait(EXHAUSTED_S)

    def _wait_until(self, deadline_s: float) -> None:
        """Wait until this time of the monotonic clock. Ends early if the client has to leave."""
        left_s = deadline_s - monotonic()
        while left_s > 0 and not self._leaving.wait(left_s):
            left_s = deadline_s - monotonic()

    def _restore(self, cursor: Cursor, texts: Sequence[str]) -> None:
        """Mode replay: execute what the recorded session had set before its next statement. It is not measured."""
        for text in texts:
            try:
                cursor.execute(text)
            except Exception as error:  # statements that depend on it will fail, and are counted then
                failure, why = judged(error)
                self._context.failed("session context", failure.category, failure.code, why)

    # --- the connection ----------------------------------------------------------------------------------------------

    def _connect(self) -> bool:
        """Open a session, with retries. Returns False if the client has to leave."""
        context, number, attempts = self._context, self.slot.number, 0
        meter, now_ns = context.connections, context.clock.monotonic_ns
        while not self._told_to_leave:
            tag = context.tag(context.windows.current)
            try:
                with context.login_turn(lambda: meter.login_waits(number, now_ns())):
                    if self._leaving.is_set():
                        return False
                    meter.login_began(number, now_ns(), again=self._reopened is not None or attempts > 0)
                    connection = context.sessions.open(tag)
            except LoadgenError as error:
                attempts += 1
                self._note_refused(error)
                context.clock.wait(self._leaving, login_pause_s(attempts, random.random()))
                continue
            self._connection, self.session_id = connection, connection.session_id
            self.slot.tagged(tag)
            self._set_limits()
            meter.login_succeeded(number, now_ns(), self._reopened)
            self.connected.set()
            self.refused = self._lost = None
            return True
        return False

    def _note_refused(self, error: LoadgenError) -> None:
        """Count and log a refused login. Every refusal is retried: a token may be renewed, a user unlocked."""
        context, text = self._context, str(error)
        failure = classify(error.__cause__) if error.__cause__ is not None else None
        code, hopeless = None if failure is None else failure.code, failure is None or not failure.retryable
        self.refused = error if hopeless else None
        refusal = ConnectionFailure.of(context.clock.utc_now(), self.slot.number, code, text)
        context.connections.login_refused(self.slot.number, context.clock.monotonic_ns(), refusal)
        context.failed("", ErrorCategory.CONFIGURATION if hopeless else ErrorCategory.CONNECTION, code, text)

    def _why_over(self) -> ReconnectReason:
        """Why the connection is replaced."""
        if self._lost is not None:
            return self._lost
        if self.slot.k - self._first_k >= self._most:
            return ReconnectReason.MAX_STATEMENTS
        if monotonic_ns() >= self._expires_ns:
            return ReconnectReason.MAX_AGE
        self._lose(ReconnectReason.ERROR, None, "a statement returned after it had been recorded as cancelled")
        return ReconnectReason.ERROR

    def _disconnect(self) -> None:
        """Log out. If the client continues, the logout counts as the beginning of the next login."""
        context, number = self._context, self.slot.number
        self.connected.clear()
        connection, self._connection, self.session_id = self._connection, None, None
        if self._told_to_leave:
            context.connections.gone(number, context.clock.monotonic_ns())
        else:
            context.connections.login_began(number, context.clock.monotonic_ns(), again=True)
        if connection is not None:
            self.slot.disconnected()
            close(connection)

    def _cursor(self) -> Cursor:
        assert self._connection is not None
        return self._connection.cursor()

    def _tag(self, cursor: Cursor, window: int) -> Cursor:
        """The cursor for statements with the QUERY_TAG of this window. ALTER SESSION would cost a round trip."""
        tag = self._context.tag(window)
        self.slot.tagged(tag)
        return with_tag(cursor, tag)

    def _set_limits(self) -> None:
        """Set the limits of a new connection. Ages are spread over a tenth, so that not all are replaced at once."""
        limits = self._context.scenario.connections
        age_s = math.inf if limits.max_age_s is None else limits.max_age_s * random.uniform(0.9, 1.0)
        self._most = sys.maxsize if limits.max_statements is None else limits.max_statements
        self._first_k = self.slot.k
        self._expires_ns = sys.maxsize if math.isinf(age_s) else monotonic_ns() + round(age_s * NS_PER_S)


# --- The pool --------------------------------------------------------------------------------------------------------
#

# Growing submits clients to the executor, ahead of time if the moment is known. Shrinking tells the last clients to
# leave after their statement under way. A slot belongs to one client at a time: the next client starts when the
# client before it has ended.


class ClientPool:
    """The clients of a worker. The ramp controller calls resize() and reap(); the main thread counts, cancels and
    abandons."""

    def __init__(self, context: ClientContext, slots: ClientSlots, warn: Callable[[str], None]) -> None:
        self._context, self._slots, self._warn = context, slots, warn
        self._executor = ThreadPoolExecutor(CLIENTS_MAX, thread_name_prefix="client")
        self._lock = threading.Lock()  # guards _clients, by number of the slot
        self._clients: dict[int, Client] = {}
        self._draining = False
        self._warned = 0  # the last target above the limit that was reported
        self.wanted = 0
        self.ahead = 0  # number of connected clients: those that work, and those that will be wanted soon

    def resize(self, wanted: int, ahead: int = 0) -> None:
        """Set the number of working clients, up to the limit; and connect up to `ahead` of them, which rest until they
        are wanted. Without effect once the pool drains."""
        with self._lock:
            if self._draining:
                return
            most = self._slots.most
            self.wanted, self.ahead = min(wanted, most), min(max(wanted, ahead), most)
            for number, client in self._clients.items():
                if number >= self.ahead:
                    client.leave()
                elif number < self.wanted:
                    client.work()
                else:
                    client.rest()
        if wanted > most and wanted != self._warned:
            self._warned = wanted
            self._warn(f"{wanted} clients are wanted, but sequences or users limit this worker to {most}")
        self.reap()

    def reap(self) -> None:
        """Start a client in each wanted slot without one, or whose client has ended. Called regularly."""
        with self._lock:
            for number in [number for number, client in self._clients.items() if client.ended.is_set()]:
                if self._clients[number].error is None or number >= self.ahead:  # else a new client would fail as well
                    del self._clients[number]
            for number in range(self.ahead):
                if number not in self._clients:
                    self._start(number)
            self._slots.sweep()

    @property
    def settled(self) -> bool:
        """Whether the number of open connections is the wanted one."""
        with self._lock:
            clients = dict(self._clients)
        return len(clients) == self.wanted and all(
            number < self.wanted and client.connected.is_set() for number, client in clients.items()
        )

    @property
    def open(self) -> int:
        return sum(client.connected.is_set() for client in self._all())

    @property
    def executing(self) -> int:
        return sum(len(client.flight) for client in self._all())

    @property
    def flights(self) -> list[InFlightStatement]:
        """The statements under way."""
        return [flight for client in self._all() for flight in tuple(client.flight)]

    def refused(self) -> LoadgenError | None:
        """The error of a refused login that a retry is unlikely to change; None: there is none."""
        return next((client.refused for client in self._all() if client.refused is not None), None)

    @property
    def given_up(self) -> LoadgenError | None:
        """The error of a client, if all clients have ended because they could not draw values; else None."""
        clients = self._all()
        hopeless = [client.error for client in clients if client.error is not None]
        return hopeless[0] if hopeless and len(hopeless) == len(clients) >= self.wanted else None

    def drain(self) -> None:
        """No client begins another statement. Safe to call twice."""
        with self._lock:
            self._draining, self.wanted, self.ahead = True, 0, 0
        self._slots.close()
        for client in self._all():
            client.leave()

    @property
    def drained(self) -> bool:
        return all(client.ended.is_set() for client in self._all())

    def cancel(self) -> list[int]:
        """Mark statements under way as cancelled. Returns the sessions in which the server has to cancel them."""
        sessions = []
        for client in self._all():
            session_id = client.session_id
            if client.flight and session_id is not None:
                client.cancelling = True
                sessions.append(session_id)
        return sessions

    def abandon(self) -> int:
        """Record statements that have not returned as cancelled, and logins as failed. Returns the number of the
        statements."""
        abandoned = 0
        for client in self._all():
            if not client.ended.is_set():
                self._context.connections.gone(client.slot.number, self._context.clock.monotonic_ns())
            try:
                number, window, due_ns, sent_ns = client.flight.pop()
            except IndexError:
                continue
            client.slot.recorder.append((number, window, due_ns, sent_ns, monotonic_ns(), Outcome.CANCELLED))
            abandoned += 1
        return abandoned

    def _start(self, number: int) -> None:
        client = Client(self._slots.get(number), self._context, waits=number >= self.wanted)
        self._clients[number] = client
        self._executor.submit(client.run)

    def _all(self) -> list[Client]:
        with self._lock:
            return list(self._clients.values())
