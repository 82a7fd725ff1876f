"""Cron expressions: the moments at which a schedule comes due.

    minute hour day-of-month month day-of-week             0 2 * * *        every night at two
    second minute hour day-of-month month day-of-week      30 0 2 * * MON   half a minute later, on Mondays

Days of the week are 0–7 (0 and 7: Sunday) or SUN–SAT. `*`, lists, ranges and steps as everywhere; `L` is the last day
of a month, `MON#2` its second Monday, `5L` its last Friday. When both days are given either may match, as in cron.

An expression is about the clock on the wall of a time zone. Where that clock is moved, the rules are those of Debian's
cron(8), for both forms:

    jobs at a fixed time    in a skipped hour: once, right after it. In a repeated hour: the first time only
    wildcard jobs           (minute or hour begins with *) keep real time: whatever the clock on the wall shows

cronsim walks over wall times and knows no zone; what a wall time means in UTC is decided here.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from loadgen.errors import LoadgenError
from loadgen.log import printable

EXPRESSION_MAX = 200  # characters
TIMEZONE_MAX = 100
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)  # no clock is moved by more
_MACHINE_DEPENDENT = {"localtime", "Factory"}
_ANY = datetime(2026, 1, 1)  # noqa: DTZ001  a wall time


class ScheduleInvalid(LoadgenError):
    """An expression or a time zone that says nothing."""

    exit_code = 2
    remedy = 'Write minute, hour, day of month, month, day of week: "0 2 * * *" is every night at two.'


@dataclass(frozen=True, slots=True, kw_only=True)
class CronExpression:
    """An expression in a time zone. Moments are aware, in UTC, of whole seconds."""

    expression: str
    timezone: str
    _zone: ZoneInfo = field(repr=False, compare=False)
    _real_time: bool = field(repr=False, compare=False)  # a wildcard job

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Every fire later than `moment`, in order. Without end, where the expression has none."""
        wall = self._wall(moment)
        back = self._wall(moment + _DAY) - _DAY - wall  # negative: the clock is set back soon, and shows times again
        return (fire for fire in self._walk(wall + min(back, timedelta()) - _SECOND) if fire > moment)

    def before(self, moment: datetime) -> Iterator[datetime]:
        """Every fire up to and including `moment`, the newest first. Its end is half a century ago, or never."""
        wall = self._wall(moment)
        ahead = self._wall(moment - _DAY) + _DAY - wall  # positive: the clock was set back, and had shown later times
        start = wall + max(ahead, timedelta()) + _SECOND
        return (fire for fire in self._walk(start, backward=True) if fire <= moment)

    def fires(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Every fire in (after, until], in order."""
        for fire in self.after(after):
            if fire > until:
                return
            yield fire

    def _wall(self, moment: datetime) -> datetime:
        return moment.astimezone(self._zone).replace(tzinfo=None, fold=0, microsecond=0)

    def _walk(self, start: datetime, *, backward: bool = False) -> Iterator[datetime]:
        """Fires whose wall time is past `start`, in order. Repeated wall times are held back until it is their turn."""
        held: deque[datetime] = deque()
        last = None
        for wall in CronSim(self.expression, start, reverse=backward):
            moments = self._moments(wall)[:: -1 if backward else 1]
            while held and moments and (held[0] > moments[0]) is backward:
                yield held.popleft()
            if moments and moments[0] != last:  # several of a skipped hour are one, right after it
                last = moments[0]
                yield last
            held.extend(moments[1:])
        yield from held

    def _moments(self, wall: datetime) -> tuple[datetime, ...]:
        """When the clock on the wall shows this: mostly once."""
        first, second = (wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first == second:
            return (first,)
        if first < second:
            return (first, second) if self._real_time else (first,)
        return () if self._real_time else (self._moved(second, first),)

    def _moved(self, low: datetime, high: datetime) -> datetime:
        """The second, in (low, high], at which the clock was moved forward."""
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
    """What an expression says; ScheduleInvalid when it says nothing, or never comes due."""
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
            f"the cron expression {printable(expression)!r} never comes due", remedy="Is there such a day?"
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
