"""Queued runs and schedules: states of a run, the meaning of exit codes, pauses before retries; cron expressions."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from loadgen.clock import utc_iso
from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.values import dataclass

ATTEMPTS_MAX = 5
FIRST_PAUSE_S = 1.0
PAUSE_MAX_S = 60.0
BUSY_PAUSE_S = 15.0  # while another run uses the warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineCheck:
    """Options of `loadgen run` that judge a queued run in addition to its thresholds."""

    baseline: str | None = None  # a run's id, or `trend`
    confirm: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        words = () if self.baseline is None else (f"--baseline={self.baseline}",)
        return (*words, "--confirm") if self.confirm else words


class QueueStatus(StrEnum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"  # its owner has not ended it yet
    COMPLETED = "COMPLETED"  # it has a result; the exit code is the verdict
    FAILED = "FAILED"  # a retry would fail again
    CANCELLED = "CANCELLED"
    EXHAUSTED = "EXHAUSTED"  # every attempt failed

    @property
    def is_terminal(self) -> bool:
        return self not in (QueueStatus.QUEUED, QueueStatus.RUNNING, QueueStatus.CANCEL_REQUESTED)


class AttemptStatus(StrEnum):
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"  # another run used the warehouse: the attempt does not count
    INTERRUPTED = "INTERRUPTED"  # its runner was stopped: the attempt does not count
    LOST = "LOST"  # its lease expired: later results were not accepted


class ExitCodeMeaning(StrEnum):
    """The meaning of an exit code of `loadgen run` for the queued run."""

    COMPLETED = "COMPLETED"
    HOPELESS = "HOPELESS"
    STOPPED = "STOPPED"
    BUSY = "BUSY"
    RETRY = "RETRY"


_JUDGED = {
    0: ExitCodeMeaning.COMPLETED,  # passed
    5: ExitCodeMeaning.COMPLETED,  # INVALID is a result; the user decides about a repetition
    10: ExitCodeMeaning.COMPLETED,  # a threshold failed
    11: ExitCodeMeaning.COMPLETED,  # a regression is confirmed
    2: ExitCodeMeaning.HOPELESS,  # the scenario or a setting is wrong: a retry would fail again
    75: ExitCodeMeaning.BUSY,
    130: ExitCodeMeaning.STOPPED,  # a user stopped it: no retry
    143: ExitCodeMeaning.STOPPED,
}


_SIGNALLED = (-15, -2, -1, 129, 130, 131, 143)  # negative: the process itself


def was_signalled(exit_code: int) -> bool:
    """Whether a termination signal ended the run, or the process that monitors it."""
    return exit_code in _SIGNALLED


def exit_code_meaning(exit_code: int) -> ExitCodeMeaning:
    """All other codes are retried: an internal error or crash (1, a signal), no connection (3), a failed run (4)."""
    return _JUDGED.get(exit_code, ExitCodeMeaning.RETRY)


def unmet_requirements(requires: Collection[str], offers: Sequence[Collection[str]]) -> str | None:
    """Why no runner can execute a run; None: one can. `offers`: the capabilities of each runner that is online."""
    if not offers:
        return "no runner is online"
    if any(set(requires) <= set(offered) for offered in offers):
        return None
    missing = set(requires).difference(*offers)
    return f"no runner that is online offers {' '.join(sorted(missing or requires))}"


def retry_pause_s(attempts: int, chance: float) -> float:
    """The pause after this number of attempts. It doubles, and `chance` (0 to 1) spreads it over its upper half."""
    longest_s = min(PAUSE_MAX_S, FIRST_PAUSE_S * 2.0 ** min(max(attempts - 1, 0), 30))
    return longest_s * (0.5 + 0.5 * chance)


class PoolWorkerStatus(StrEnum):
    ONLINE = "ONLINE"
    DRAINING = "DRAINING"  # completes its run, and claims no other
    OFFLINE = "OFFLINE"


EXPRESSION_MAX = 200  # characters
TIMEZONE_MAX = 100
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)  # clocks are set forward or back by less
_MACHINE_DEPENDENT = {"localtime", "Factory"}
_ANY = datetime(2026, 1, 1)  # noqa: DTZ001  a wall-clock time


class ScheduleInvalid(LoadgenError):
    """An invalid expression or time zone."""

    exit_code = 2
    remedy = 'Write minute, hour, day of month, month, day of week: "0 2 * * *" is every night at two.'


@dataclass(frozen=True, slots=True, kw_only=True)
class CronExpression:
    """A cron expression in a time zone. Times are aware, in UTC, in whole seconds."""

    expression: str
    timezone: str
    _zone: ZoneInfo = field(repr=False, compare=False)
    _real_time: bool = field(repr=False, compare=False)  # a wildcard job

    def after(self, moment: datetime) -> Iterator[datetime]:
        """All fires after `moment`, in order. The iterator may be infinite."""
        wall = self._wall(moment)
        back = self._wall(moment + _DAY) - _DAY - wall  # negative: the clock will be set back, so times repeat
        return (fire for fire in self._walk(wall + min(back, timedelta()) - _SECOND) if fire > moment)

    def before(self, moment: datetime) -> Iterator[datetime]:
        """All fires up to and including `moment`, the newest first. The iterator reaches back fifty years or more."""
        wall = self._wall(moment)
        ahead = self._wall(moment - _DAY) + _DAY - wall  # positive: the clock was set back, after later times
        start = wall + max(ahead, timedelta()) + _SECOND
        return (fire for fire in self._walk(start, backward=True) if fire <= moment)

    def _wall(self, moment: datetime) -> datetime:
        return moment.astimezone(self._zone).replace(tzinfo=None, fold=0, microsecond=0)

    def _walk(self, start: datetime, *, backward: bool = False) -> Iterator[datetime]:
        """Fires with a wall-clock time after `start`, in order of their moments, also if wall-clock times repeat."""
        held: deque[datetime] = deque()
        last = None
        for wall in CronSim(self.expression, start, reverse=backward):
            moments = self._moments(wall)[:: -1 if backward else 1]
            while held and moments and (held[0] > moments[0]) is backward:
                yield held.popleft()
            if moments and moments[0] != last:  # several fires in a skipped hour become one, at its end
                last = moments[0]
                yield last
            held.extend(moments[1:])
        yield from held

    def _moments(self, wall: datetime) -> tuple[datetime, ...]:
        """The moments with this local time: usually one."""
        first, second = (wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first == second:
            return (first,)
        if first < second:
            return (first, second) if self._real_time else (first,)
        return () if self._real_time else (self._moved(second, first),)

    def _moved(self, low: datetime, high: datetime) -> datetime:
        """The second, in (low, high], at which the clock was set forward."""
        new = high.astimezone(self._zone).utcoffset()
        while high - low > _SECOND:
            middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
            if middle.astimezone(self._zone).utcoffset() == new:
                high = middle
            else:
                low = middle
        return high


@lru_cache(maxsize=1_000)
def parse_cron(expression: str, timezone: str = "UTC") -> CronExpression:
    """Parse an expression. Raises ScheduleInvalid if it is invalid, or never fires."""
    fields = expression.split()
    if len(expression) > EXPRESSION_MAX or len(fields) not in (5, 6):
        given = f"{len(fields)} fields" if len(expression) <= EXPRESSION_MAX else f"{len(expression)} characters"
        raise ScheduleInvalid(f"the cron expression {printable(expression, 60)!r} has {given}, and should have 5 or 6")
    try:
        never = next(iter(CronSim(expression, _ANY)), None) is None
    except CronSimError as error:
        what = str(error).removeprefix("Bad ")
        remedy = f"Correct its {what}; {ScheduleInvalid.remedy[0].lower()}{ScheduleInvalid.remedy[1:]}"
        raise ScheduleInvalid(
            f"the cron expression {printable(expression)!r} has a bad {what}", remedy=remedy
        ) from error
    if never:
        raise ScheduleInvalid(
            f"the cron expression {printable(expression)!r} never fires", remedy="Check that this day exists."
        )
    minute, hour = fields[-5:-3]
    return CronExpression(
        expression=expression,
        timezone=timezone,
        _zone=_zone(timezone),
        _real_time=minute.startswith("*") or hour.startswith("*"),
    )


def _zone(name: str) -> ZoneInfo:
    try:
        if name not in _MACHINE_DEPENDENT and len(name) <= TIMEZONE_MAX:
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # also a path, or a folder such as America
        pass
    near = difflib.get_close_matches(name[:TIMEZONE_MAX], available_timezones() - _MACHINE_DEPENDENT, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise ScheduleInvalid(
        f"there is no time zone {printable(name, 60)!r}",
        remedy=f"{meant}Write a name of the IANA database, such as Europe/Berlin, or UTC.",
    )


GRACE = timedelta(seconds=120)  # two ticks of a crontab, because a tick may be early by the clock of the server
MAX_CATCHUP = 500
MISSED_RECORDED_MAX = 100  # per schedule and tick; earlier fires are settled without a record
FIRES_PER_TICK_MAX = 1_000
BATCH = 100  # schedules
TICK_S = 5.0
UNCLAIMED_AFTER_S = 120  # without a runner for a queued run; a pool without runners starts one sooner

# The fires of one schedule fit into one tick, even if it fires every second.
assert GRACE.total_seconds() + MAX_CATCHUP + MISSED_RECORDED_MAX < FIRES_PER_TICK_MAX


class Overlap(StrEnum):
    """What happens to a fire while the run of the last fire has not ended."""

    SKIP = "skip"
    QUEUE = "queue"


class FireOutcome(StrEnum):
    """The outcome of a fire."""

    DUE = "DUE"  # to be queued, by any scheduler
    QUEUED = "QUEUED"
    SKIPPED = "SKIPPED"  # the previous run had not ended
    MISSED = "MISSED"  # no scheduler ran in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The properties of a schedule that determine its fires. Fires up to `settled` are decided."""

    cron: CronExpression
    max_catchup: int
    overlap: Overlap
    settled: datetime  # aware, UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFire:
    at: datetime  # aware, UTC
    outcome: FireOutcome


def due_fires(schedule: Schedule, now: datetime, *, busy: bool) -> tuple[ScheduleFire, ...]:
    """The fires in (settled, now], the newest first. `busy`: the run of the last fire has not ended."""
    fires: list[ScheduleFire] = []
    for at, wanted in _chosen(schedule, now):
        if not wanted:
            outcome = FireOutcome.MISSED
        elif busy and schedule.overlap is Overlap.SKIP:
            outcome = FireOutcome.SKIPPED
        else:
            outcome, busy = FireOutcome.DUE, True
        fires.append(ScheduleFire(at=at, outcome=outcome))
    return tuple(fires)


def _chosen(schedule: Schedule, now: datetime) -> Iterator[tuple[datetime, bool]]:
    """Each fire, the newest first, and whether it is to be queued."""
    catchup, missed = schedule.max_catchup, 0
    for at in schedule.cron.before(now):
        if at <= schedule.settled or missed == MISSED_RECORDED_MAX:
            return
        on_time = at > now - GRACE
        yield at, on_time or catchup > 0
        if not on_time:
            catchup, missed = catchup - 1, missed + (catchup <= 0)


def fire_key(schedule_id: str, at: datetime) -> str:
    """The idempotency key of a fire's run."""
    return f"schedule:{schedule_id}:{utc_iso(at, 'seconds')}"
