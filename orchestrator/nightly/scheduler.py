"""Fires schedules: each due time (fire) becomes one queued run, with any number of schedulers, even if one is killed.

A tick does this for each enabled schedule:

    1. compute the fires in (settled, now], by the server's clock    loadgen.model.nightly, pure
    2. for each fire, newest first: store its row, queue its run     loadgen.control.tables.schedules
    3. set `settled` to the newest of them

Before that a tick queues the runs of fires that another scheduler has recorded but not queued. Any number of schedulers
may tick at the same time, from crontabs, timers and pools. A schedule that cannot be fired stores the reason, and does
not prevent the others.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import shlex
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from loadgen.clock import Clock, SystemClock, utc_iso
from loadgen.control.location import ControlPlaneLocation, state_folder
from loadgen.control.session import ControlFailed, ControlSession, ParsedRows, RowUnreadable
from loadgen.control.setup.installer import ensure_tables
from loadgen.control.tables import run_queue, schedules
from loadgen.control.tables.run_status import server_time
from loadgen.control.tables.schedules import NewSchedule, ScheduleRow
from loadgen.errors import ConnectFailed, LoadgenError
from loadgen.files import replace_file
from loadgen.log import event, printable
from loadgen.model.nightly import (
    BATCH,
    FIRES_PER_TICK_MAX,
    MAX_CATCHUP,
    TICK_S,
    UNCLAIMED_AFTER_S,
    FireOutcome,
    Overlap,
    Schedule,
    ScheduleFire,
    ScheduleInvalid,
    due_fires,
    fire_key,
    parse_cron,
)
from loadgen.model.warehouse import IDLE_POLL_S, look_credits_per_day
from loadgen.snowflake.profile_lookup import leads_to_embedded
from loadgen.snowflake.session import RetryInterrupted, RetryPolicy
from loadgen.units import NS_PER_S, format_duration_s
from loadgen.values import dataclass
from orchestrator.nightly.queue import HostPermissions, UnclaimedRun, notify_unclaimed_runs

log = logging.getLogger(__name__)

FINISH_IDLE_S = 3600.0  # between queries for recorded fires that were not queued, while a pool is idle


@dataclass(frozen=True, slots=True, kw_only=True)
class FireResult:
    """A fire that this tick has decided, or has queued for another scheduler."""

    schedule: str  # name of the schedule
    at: datetime  # aware, UTC
    outcome: FireOutcome  # never DUE
    queue_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFailure:
    """A schedule that could not be fired."""

    schedule: str
    reason: str
    is_new: bool  # the reason was not stored before


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPass:
    """The result of one tick."""

    schedules: int = 0
    fired: tuple[FireResult, ...] = ()
    failures: tuple[ScheduleFailure, ...] = ()
    more: bool = False  # the tick has reached its maximum of fires
    next_s: float | None = None  # from the tick to the next fire; None: no schedule is enabled


def fire_due_schedules(
    session: ControlSession, retries: RetryPolicy, *, fires_max: int = FIRES_PER_TICK_MAX, finish: bool = True
) -> SchedulerPass:
    """Fire every due schedule once. With `finish` also queue fires that another scheduler has recorded only."""
    return _Tick(session, retries, fires_max, finish=finish).done()


def tick_once(
    session: ControlSession, retries: RetryPolicy, allowed: HostPermissions, warn: Callable[[str], None]
) -> tuple[SchedulerPass, tuple[UnclaimedRun, ...]]:
    """Fire every due schedule, and report queued runs that no runner takes."""
    return fire_due_schedules(session, retries), notify_unclaimed_runs(session, retries, allowed, warn)


def add_schedule(session: ControlSession, retries: RetryPolicy, new: NewSchedule) -> ScheduleRow:
    """Add a schedule, and read its row."""
    ensure_tables(session.place, retries)
    schedules.add(session, retries, new)
    return schedules.find(session, retries, new.name)


def read_schedules(
    session: ControlSession, retries: RetryPolicy, name: str | None
) -> tuple[ParsedRows[ScheduleRow], datetime]:
    """The schedule of that name, or all schedules; and the time of the server, which decides when they are due."""
    if name is None:
        rows = retries.call(lambda: schedules.by_name(session))
    else:
        rows = ParsedRows([schedules.find(session, retries, name)])
    return rows, server_now(session, retries)


def enable_schedule(
    session: ControlSession, retries: RetryPolicy, name: str, *, catch_up: bool
) -> tuple[bool, ScheduleRow, datetime]:
    """Enable a schedule. Returns whether it was enabled before, its row, and the time of the server."""
    before = schedules.find(session, retries, name)
    schedules.enable(session, retries, before.schedule_id, catch_up=catch_up)
    return before.enabled, schedules.find(session, retries, name), server_now(session, retries)


def disable_schedule(session: ControlSession, retries: RetryPolicy, name: str) -> tuple[ScheduleRow, datetime]:
    """Disable a schedule. Returns its row, and the time of the server."""
    schedules.disable(session, retries, schedules.find(session, retries, name).schedule_id)
    return schedules.find(session, retries, name), server_now(session, retries)


def remove_schedule(session: ControlSession, retries: RetryPolicy, name: str) -> None:
    """Delete a schedule and its fires. Its runs and queued runs are kept."""
    schedule_id = schedules.find(session, retries, name).schedule_id
    schedules.remove(session, retries, schedule_id)
    schedules.remove_fires(session, retries, schedule_id)


def server_now(session: ControlSession, retries: RetryPolicy) -> datetime:
    return schedules.as_utc(retries.call(lambda: server_time(session)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerHooks:
    """Callbacks from the scheduler of a pool to its pool."""

    idle_s: Callable[[], float | None] = lambda: None  # the idle interval; None: there may be work
    then: Callable[[], None] = lambda: None  # called after each tick
    fired: Callable[[], None] = lambda: None  # called when a run was queued


def run_scheduler(
    session: ControlSession,
    stop: threading.Event,
    *,
    every_s: float = TICK_S,
    clock: Clock | None = None,
    hooks: SchedulerHooks | None = None,
) -> None:
    """Tick until stopped, also through outages of the control plane. For a thread that owns the session.

    While the pool is idle, the next tick is at the next fire or after the idle interval, whichever comes first. A
    schedule that is added meanwhile waits until then.
    """
    clock, hooks = clock or SystemClock(), hooks or SchedulerHooks()
    retries = RetryPolicy(stop=stop, attempts=1, clock=clock)
    finish_ns = clock.monotonic_ns()
    while not stop.is_set():
        done = None
        try:
            idle = hooks.idle_s() is not None
            finish = not idle or clock.monotonic_ns() >= finish_ns
            done = fire_due_schedules(session, retries, finish=finish)
            if finish:
                finish_ns = clock.monotonic_ns() + round(FINISH_IDLE_S * NS_PER_S)
            if done.fired:
                hooks.fired()
            hooks.then()
        except (
            Exception
        ) as error:  # the top of a thread: an error must be visible in the log, or schedules would stop unnoticed
            event(log, logging.WARNING, "schedule_tick_failed", why=str(error) or type(error).__name__)
        if done is None or not done.more:
            _pause(stop, clock, every_s, hooks, done)


def _pause(
    stop: threading.Event, clock: Clock, every_s: float, hooks: SchedulerHooks, done: SchedulerPass | None
) -> None:
    """Wait until the next tick. The wait ends earlier if the pool gets work."""
    began_ns, wait_s = clock.monotonic_ns(), every_s
    while wait_s > 0 and not clock.wait(stop, min(wait_s, every_s)):
        idle_s, waited_s = hooks.idle_s(), (clock.monotonic_ns() - began_ns) / NS_PER_S
        if done is None or idle_s is None:
            return
        wait_s = min(idle_s, idle_s if done.next_s is None else done.next_s) - waited_s


def _overlap(row: ScheduleRow) -> Overlap:
    try:
        return Overlap(row.overlap)
    except ValueError:
        raise RowUnreadable("SCHEDULES", row.schedule_id, f"overlap is {printable(repr(row.overlap), 60)}") from None


class _Tick:
    """One tick."""

    def __init__(self, session: ControlSession, retries: RetryPolicy, fires_max: int, *, finish: bool) -> None:
        self._session, self._retries, self._fires_max, self._finish = session, retries, fires_max, finish
        self._next_s: float | None = None
        self._fired: list[FireResult] = []
        self._failures: list[ScheduleFailure] = []
        self._in_doubt: tuple[str, Exception] | None = None  # a failure of one schedule, or of the control plane

    def done(self) -> SchedulerPass:
        if self._finish:
            self._finish_others()
        seen, more = self._fire_all()
        if self._in_doubt is not None:  # and no schedule has succeeded since
            raise self._in_doubt[1]
        return SchedulerPass(
            schedules=seen,
            fired=tuple(self._fired),
            failures=tuple(self._failures),
            more=more,
            next_s=self._next_s,
        )

    def _finish_others(self) -> None:
        """Queue fires that were recorded and not queued: their scheduler has died, or is queueing them now."""
        failing: set[str] = set()
        for left in self._retries.call(lambda: schedules.due_fires(self._session, self._fires_max)):
            if left.name is None:
                schedules.remove_fires(self._session, self._retries, left.schedule_id)
                continue
            queue = partial(self._queue, left.schedule_id, left.name, left.at)
            if left.schedule_id not in failing and not self._attempt(left.schedule_id, left.name, queue):
                failing.add(left.schedule_id)

    def _fire_all(self) -> tuple[int, bool]:
        """Returns the number of schedules, and whether the tick has reached its maximum of fires."""
        seen, last = 0, ""
        while True:
            batch = self._retries.call(partial(schedules.enabled, self._session, last, BATCH))
            for error in batch.rows.unreadable:
                self._note_failure(str(error.key), str(error.key), str(error))
            for row in batch.rows:
                assert batch.now is not None
                full: list[bool] = []
                self._attempt(row.schedule_id, row.name, partial(self._fire_due, row, batch.now, full))
                if full:
                    return seen, True
                seen += 1
            if batch.last_id is None:
                return seen, False
            last = batch.last_id

    def _fire_due(self, row: ScheduleRow, now: datetime, full: list[bool]) -> None:
        """Fire a schedule. If the tick has reached its maximum of fires, append to `full` instead."""
        pending = self._due(row, now)
        self._note_next(row, now)
        if self._fired and len(self._fired) + len(pending) > self._fires_max:
            full.append(True)
        else:
            self._fire(row, pending)

    def _note_next(self, row: ScheduleRow, now: datetime) -> None:
        upcoming = next(parse_cron(row.cron, row.timezone).after(now), None)
        if upcoming is not None:
            wait_s = (upcoming - now).total_seconds()
            self._next_s = wait_s if self._next_s is None else min(self._next_s, wait_s)

    def _due(self, row: ScheduleRow, now: datetime) -> tuple[ScheduleFire, ...]:
        schedule = Schedule(
            cron=parse_cron(row.cron, row.timezone),
            max_catchup=min(row.max_catchup, MAX_CATCHUP),
            overlap=_overlap(row),
            settled=row.last_fire_at,
        )
        found = due_fires(schedule, now, busy=False)
        if found and schedule.overlap is Overlap.SKIP:
            busy = self._retries.call(lambda: schedules.has_open_run(self._session, row.schedule_id))
            return due_fires(schedule, now, busy=busy)
        return found

    def _fire(self, row: ScheduleRow, pending: tuple[ScheduleFire, ...]) -> None:
        """Record each fire, then settle the schedule. Fires that another scheduler has recorded are not reported."""
        for fire in pending:
            if schedules.record_fire(self._session, self._retries, row.schedule_id, fire):
                if fire.outcome is FireOutcome.DUE:
                    self._queue(row.schedule_id, row.name, fire.at)
                else:
                    self._report(FireResult(schedule=row.name, at=fire.at, outcome=fire.outcome))
        if pending:
            schedules.settle(self._session, self._retries, row.schedule_id, pending[0].at)
            schedules.delete_old_fires(self._session, self._retries, row.schedule_id)

    def _queue(self, schedule_id: str, name: str, at: datetime) -> None:
        """Queue the run of a fire, unless the schedule was removed meanwhile."""
        wanted = self._retries.call(lambda: schedules.wanted(self._session, schedule_id))
        if wanted is None:
            return
        new = replace(wanted, idempotency_key=fire_key(schedule_id, at))
        queue_id = run_queue.add(self._session, self._retries, new).queue_id
        schedules.fire_queued(self._session, self._retries, schedule_id, at, queue_id)
        self._report(FireResult(schedule=name, at=at, outcome=FireOutcome.QUEUED, queue_id=queue_id))

    def _report(self, fired: FireResult) -> None:
        event(log, logging.INFO, "schedule_fired", name=fired.schedule, at=fired.at, outcome=fired.outcome)
        self._fired.append(fired)

    def _attempt(self, schedule_id: str, name: str, action: Callable[[], None]) -> bool:
        """Do an action for a schedule. Returns False if it failed; the other schedules are fired nevertheless."""
        try:
            action()
        except (RetryInterrupted, ConnectFailed):  # the next schedule would fail as well
            raise
        except Exception as error:
            if isinstance(error, ControlFailed) and error.failure.retryable:
                if self._in_doubt is not None:  # two failures in a row: the control plane is unreachable
                    raise
                self._in_doubt = name, error
                return False
            reason = str(error) if isinstance(error, LoadgenError) else f"unexpected {type(error).__name__}: {error}"
            self._note_failure(schedule_id, name, reason)
            return False
        if self._in_doubt is not None:  # the control plane is reachable: the failure was that of the schedule
            doubted, failed = self._in_doubt
            self._in_doubt = None
            self._failures.append(ScheduleFailure(schedule=doubted, reason=str(failed), is_new=True))
        return True

    def _note_failure(self, schedule_id: str, name: str, reason: str) -> None:
        event(log, logging.WARNING, "schedule_failed", name=name, why=reason)
        is_new = schedules.store_failure(self._session, self._retries, schedule_id, reason)
        self._failures.append(ScheduleFailure(schedule=name, reason=reason, is_new=is_new))


# --- When `loadgen schedule tick` must read the tables again ---------------------------------------------------------
# That time is stored in a file. Earlier ticks do not connect, so that the control plane's warehouse can suspend itself.
#
# The file is only a hint. A tick reads the tables if the file is missing, invalid or of another control plane, and at
# the latest after --idle-poll. So a schedule that is added on another machine is noticed within that time.

FOLDER = "schedules"
SIZE_MAX = 1_000  # bytes; loadgen writes fewer than 300


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLook:
    """When the tables were read, and when they must be read again: seconds since 1970 by this machine's clock."""

    place: str  # the control plane: see place_key()
    looked_at: float
    look_at: float

    @classmethod
    def parse(cls, text: bytes) -> Self | None:
        """Parse the text of the file. None: the text is invalid."""
        try:
            match json.loads(text):
                case {"place": str(place), "looked_at": float(looked_at), "look_at": float(look_at), **others}:
                    sound = not others and math.isfinite(looked_at) and math.isfinite(look_at)
                    return cls(place=place, looked_at=looked_at, look_at=look_at) if sound else None
        except (ValueError, RecursionError):
            pass
        return None

    def is_before(self, now: datetime, idle_poll_s: float) -> bool:
        """Whether nothing is due yet. False if the clock was set back or the interval was made shorter."""
        return self.looked_at <= now.timestamp() < self.look_at <= self.looked_at + idle_poll_s


def place_key(place: ControlPlaneLocation) -> str:
    """A key of the control plane that does not depend on the name of the connection."""
    profile = place.profile()
    parts = (profile.address, profile.text("account") or "", place.schema_name.sql)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def after_tick(place: str, began: datetime, done: SchedulerPass, idle_poll_s: float) -> NextLook | None:
    """When the tables must be read after a tick. None: by the next tick, because there is more to do or something has
    failed.

    `began` is the time before the tick, so that its statements do not delay the next read. After a fire the tables are
    read again to check whether a runner has taken its run.
    """
    if done.more or any(failure.is_new for failure in done.failures):
        return None
    waits = [idle_poll_s]
    waits += [] if done.next_s is None else [done.next_s]
    waits += [float(UNCLAIMED_AFTER_S)] if done.fired else []
    began_s = began.timestamp()
    return NextLook(place=place, looked_at=began_s, look_at=began_s + max(0.0, min(waits)))


class NextLookFile:
    """The file of one control plane. If it cannot be written or read, the next tick reads the tables."""

    def __init__(self, place: str, folder: Path | None = None) -> None:
        self._place = place
        self._path = (folder or state_folder() / FOLDER) / f"{place[:32]}.json"

    @classmethod
    def of(cls, place: ControlPlaneLocation) -> Self | None:
        """None on an embedded control plane, where reads cost nothing: every tick reads."""
        return None if leads_to_embedded(place.connection) else cls(place_key(place))

    def pending(self, now: datetime, idle_poll_s: float) -> datetime | None:
        """When the tables must be read again. None: now."""
        found = self._read()
        if found is None or found.place != self._place or not found.is_before(now, idle_poll_s):
            return None
        return datetime.fromtimestamp(found.look_at, UTC)

    def note(self, began: datetime, done: SchedulerPass, idle_poll_s: float) -> None:
        """Store the result of a tick that began at this time."""
        next_look = after_tick(self._place, began, done, idle_poll_s)
        if next_look is None:
            self.forget()
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(self._path, json.dumps(asdict(next_look)).encode())
        except OSError as error:
            event(log, logging.INFO, "next_read_not_written", path=self._path, why=str(error))
            self.forget()

    def forget(self) -> None:
        """Remove the file: schedules have changed, so the next tick must read the tables."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _read(self) -> NextLook | None:
        """Read the file. It must be small, regular, owned by this user, and not writable by other users."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            about = os.fstat(descriptor)
            private = about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not stat.S_ISREG(about.st_mode) or not private or about.st_size > SIZE_MAX:
                return None
            return NextLook.parse(os.read(descriptor, SIZE_MAX))
        except OSError:
            return None
        finally:
            os.close(descriptor)


# --- output of the commands ------------------------------------------------------------------------------------------


def next_fires(row: ScheduleRow, now: datetime, number: int) -> tuple[list[datetime], str | None]:
    """The next fires. If there are none, also the reason."""
    if not row.enabled:
        return [], "it is disabled"
    try:
        cron = parse_cron(row.cron, row.timezone)
    except ScheduleInvalid as error:
        return [], str(error)
    try:
        return list(itertools.islice(cron.after(max(now, row.last_fire_at)), number)), None
    except OverflowError:
        settled = row.last_fire_at.replace(tzinfo=None).isoformat(sep=" ", timespec="seconds")
        return [], f"its fires are recorded up to {settled}"


def tick_document(done: SchedulerPass) -> dict[str, Any]:
    return {
        "looked": True,
        "schedules": done.schedules,
        "fired": [
            {
                "schedule": fired.schedule,
                "fire_at": utc_iso(fired.at, "seconds"),
                "outcome": fired.outcome.value,
                "queue_id": fired.queue_id,
            }
            for fired in done.fired
        ],
        "complaints": [{"schedule": one.schedule, "reason": one.reason} for one in done.failures],
        "more": done.more,
    }


def skipped_tick_document(until: datetime) -> dict[str, Any]:
    """The document of a tick that did not read the tables."""
    nothing: dict[str, Any] = {"schedules": None, "fired": [], "complaints": [], "more": False}
    return {"looked": False, **nothing, "next_look_at": utc_iso(until, "seconds")}


# --- `loadgen schedule tick` every minute, by cron or systemd --------------------------------------------------------

LIMIT_S = 300  # for a tick; the next one, or one of another host, does the rest
UNIT = "loadgen-schedule"

CRONTAB = """\
# loadgen: fire the schedules that are due. Add these lines with `crontab -e`.
# cron mails what is printed: nothing, unless something is wrong. One tick at a time; one that hangs is ended.
{cost}
SHELL=/bin/sh
* * * * * flock -n -E 75 "$HOME/.{unit}.lock" timeout -k 10 {limit_s} {command}
"""
SERVICE = """\
# ~/.config/systemd/user/{unit}.service: fire the schedules of loadgen that are due.
[Unit]
Description=Fire the schedules of loadgen that are due

[Service]
# One at a time: systemd does not start it again while it runs. One that hangs is ended.
Type=oneshot
TimeoutStartSec={limit_s}
ExecStart={command}
SyslogIdentifier={unit}
"""
TIMER = """\
# ~/.config/systemd/user/{unit}.timer: `systemctl --user enable --now {unit}.timer`,
# and `loginctl enable-linger` so that it continues while you are not logged in.
{cost}
[Unit]
Description=Check the schedules of loadgen every minute

[Timer]
OnCalendar=minutely
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


def tick_cost(idle_poll_s: float) -> str:
    """What a tick every minute costs, as a comment."""
    every, per_day = format_duration_s(idle_poll_s), look_credits_per_day(idle_poll_s)
    return (
        f"# In Snowflake ticks start the control plane's warehouse once per {every}, and when a schedule fires, for a\n"
        f"# minute each: about {per_day:.1f} credits a day (X-Small). The other ticks connect to nothing."
    )


def crontab(words: list[str], idle_poll_s: float = IDLE_POLL_S) -> str:
    command = shlex.join(words).replace("%", "\\%")  # cron takes a bare one for the end of the line
    return CRONTAB.format(unit=UNIT, limit_s=LIMIT_S, command=command, cost=tick_cost(idle_poll_s))


def systemd_units(words: list[str], idle_poll_s: float = IDLE_POLL_S) -> dict[str, str]:
    """The texts of the systemd units, by file name."""
    command = " ".join(map(_for_systemd, words))
    return {
        f"{UNIT}.service": SERVICE.format(unit=UNIT, limit_s=LIMIT_S, command=command),
        f"{UNIT}.timer": TIMER.format(unit=UNIT, cost=tick_cost(idle_poll_s)),
    }


def program() -> str:
    """The path of this loadgen: cron and systemd do not have the PATH of this process."""
    beside, checkout = Path(sys.executable).parent / "loadgen", Path(__file__).parents[2] / "bin" / "loadgen"
    for path in (beside, checkout):
        if path.is_file():
            return str(path)
    return shutil.which("loadgen") or "loadgen"


def tick_command(options: Sequence[str], idle_poll_s: float) -> list[str]:
    """The command of a tick; `options` name the control plane."""
    idle_poll = [] if idle_poll_s == IDLE_POLL_S else [f"--idle-poll={format_duration_s(idle_poll_s)}"]
    return [program(), "schedule", "tick", "--quiet", *options, *idle_poll]


def _for_systemd(word: str) -> str:
    """The word, quoted for systemd, with specifiers and variables escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if escaped == word and word and not set(word) & set(" ';\t") else f'"{escaped}"'
