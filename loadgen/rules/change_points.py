"""Has a series of nightly values shifted, and since when? Pure.

A search for change points over the whole series (E-divisive, as in Hunter) is sure of a change once several values lie
behind it, while an alarm has to come on the first and second night: so each night is tested against the last stable
segment by a t-test made robust, and nothing is confirmed that two nights in a row do not show. Centre and spread are
those of the segment with every value pulled in to three deviations (of the median) around its median, which one bad
night cannot move and which loses little on clean ones; the spread is moderated by `usual`, as if ten nights had shown
it before, so that a young or by chance quiet series raises no alarm.

    suspected   one night deviates by more than the limit, and by more than chance (3.5 standard deviations)
    confirmed   the last 2 to 8 nights together do (4.2), and each of them by half the limit and half their mean;
                a new segment begins with the first of them

A suspected night that the next does not confirm stays in the segment. With nights that differ by 5 %, one series of 200
in thirteen has a night suspected, and one in 140 a shift confirmed, where there is none; a step of 25 % is
confirmed on its second night 19 times of 20, else on the third or fourth. More than four nights are for steps that are
small, or come before much is known: what is not confirmed becomes part of the segment, and hides itself.

The first nights after a shift are tested as well, from the second night of the new segment on: their centre is that of
the new segment, their spread and its certainty are those of the segment before, until the new one has nights enough of
its own. These are few nights, so 3.5 standard deviations confirm a shift here; one shift in 500 is followed by another
where there is none. A second step of 30 % that begins within three nights after a confirmed one is confirmed on its
second night 9 times of 10, and missed once in 50 times.

A value that is only known as a lower bound can show that a night is worse, never that it is as usual: above the range
it is suspected, and confirms, like any value; below it says nothing. It is never part of a baseline.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import NormalDist, fmean, median

from loadgen.values import dataclass

NIGHTS_MIN = 5  # of a segment that a night can be tested against
NIGHTS_NEW_MIN = 2  # of one that follows another, whose spread is known
NIGHTS_MAX = 60  # the newest ones of it that are
TOGETHER_MAX = 8

_SUSPECTED_Z = 3.5
_CONFIRMED_Z = 4.2
_MAD = 1.4826  # makes the median of deviations a standard deviation
_PULLED_IN = 3.0  # such deviations around the median
_EFFICIENCY = 0.9  # of the spread that is left, in degrees of freedom
_CENTRE = 1.1  # variance of that centre, in units of that of a mean
_USUAL_NIGHTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineLevel:
    """What a night is tested against."""

    centre: float
    spread: float  # from night to night: a standard deviation
    freedom: float  # degrees of it
    nights: int

    def reach(self, together: int, z: float) -> float:
        """How far the mean of several nights may lie from the centre by chance."""
        apart = self.spread * math.sqrt(1 / together + _CENTRE / self.nights)
        return apart * _student(z, self.freedom)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """From one level to another."""

    start: int  # the first value of the new level
    confirmed: int  # the value that made it certain
    before: BaselineLevel
    after: float  # the mean of the values between the two, both included
    at_least: bool = False  # some of them are lower bounds, and so is the mean

    @property
    def size(self) -> float:
        return self.after - self.before.centre


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePointAnalysis:
    """What became of a series. Numbers are positions in it."""

    shifts: tuple[ChangePoint, ...]
    suspected: tuple[int, ...]
    baselines: tuple[BaselineLevel | None, ...]  # before each value; None: too few to say anything
    limit: float
    z_suspected: float

    def range_at(self, position: int) -> tuple[float, float] | None:
        """Between which values nothing is suspected."""
        baseline = self.baselines[position]
        if baseline is None:
            return None
        reach = max(self.limit, baseline.reach(1, self.z_suspected))
        return baseline.centre - reach, baseline.centre + reach


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """When a series has shifted."""

    limit: float
    usual: float
    z_suspected: float
    z_confirmed: float

    def is_suspected(self, value: float, baseline: BaselineLevel) -> bool:
        return abs(value - baseline.centre) > max(self.limit, baseline.reach(1, self.z_suspected))


def detect_change_points(
    values: Iterable[float],
    *,
    limit: float,
    usual: float,
    alike: int = 1,
    at_least: Collection[int] = (),
) -> ChangePointAnalysis:
    """Night after night, as it would have been judged then. `usual` is a deviation that no spread is known without;
    `alike` is how many series are looked at in the same way, and share the chance of a false alarm. `at_least` are the
    positions of lower bounds: the value of that night is not known, but is not below."""
    rule = _Rule(
        limit=limit,
        usual=usual,
        z_suspected=_shared(_SUSPECTED_Z, alike),
        z_confirmed=_shared(_CONFIRMED_Z, alike),
    )
    shifts: list[ChangePoint] = []
    suspected: list[int] = []
    baselines: list[BaselineLevel | None] = []
    segment = _Segment()
    for night, value in enumerate(map(float, values)):
        baseline = segment.baseline(rule.usual)
        baselines.append(baseline)
        bound = night in at_least
        if bound and (baseline is None or value < baseline.centre or not rule.is_suspected(value, baseline)):
            continue  # it may be any value above: no part of a segment, and no sign of a shift
        segment = segment.with_night(_Night(position=night, value=value, bound=bound))
        if baseline is None:
            continue
        shift = _confirmed(segment, rule)
        if shift is not None:
            shifts.append(shift)
            segment = segment.since(shift)
        elif rule.is_suspected(value, baseline):
            suspected.append(night)
    return ChangePointAnalysis(
        shifts=tuple(shifts),
        suspected=tuple(suspected),
        baselines=tuple(baselines),
        limit=limit,
        z_suspected=rule.z_suspected,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Night:
    position: int
    value: float
    bound: bool  # the value is not below


@dataclass(frozen=True, slots=True)
class _Segment:
    """Nights of one level, and what was known of the level before."""

    nights: tuple[_Night, ...] = ()
    before: BaselineLevel | None = None

    def with_night(self, night: _Night) -> _Segment:
        return _Segment((*self.nights, night), self.before)

    def since(self, shift: ChangePoint) -> _Segment:
        return _Segment(tuple(night for night in self.nights if night.position >= shift.start), shift.before)

    def baseline(self, usual: float, without_last: int = 0) -> BaselineLevel | None:
        """Of all nights but the newest ones. Lower bounds are left out: they would lower the centre."""
        known = self.nights[: len(self.nights) - without_last][-NIGHTS_MAX:]
        values = [night.value for night in known if not night.bound]
        if len(values) >= NIGHTS_MIN:
            return _baseline(values, usual, _USUAL_NIGHTS)
        if self.before is not None and len(values) >= NIGHTS_NEW_MIN:
            return _baseline(values, self.before.spread, self.before.freedom)
        return None


def _confirmed(segment: _Segment, rule: _Rule) -> ChangePoint | None:
    for together in range(2, min(TOGETHER_MAX, len(segment.nights)) + 1):
        baseline = segment.baseline(rule.usual, without_last=together)
        if baseline is None:
            return None
        nights = segment.nights[-together:]
        apart = [night.value - baseline.centre for night in nights]
        mean = fmean(apart)
        weakest = min(math.copysign(1.0, mean) * one for one in apart)
        if weakest <= rule.limit / 2:  # nor do more nights all show it
            return None
        all_show_it = weakest > abs(mean) / 2  # else one of them may have made the mean what it is
        z = rule.z_confirmed if baseline.nights >= NIGHTS_MIN else rule.z_suspected  # few nights are tested like this
        if all_show_it and abs(mean) > max(rule.limit, baseline.reach(together, z)):
            return ChangePoint(
                start=nights[0].position,
                confirmed=nights[-1].position,
                before=baseline,
                after=baseline.centre + mean,
                at_least=any(night.bound for night in nights),
            )
    return None


def _baseline(values: Sequence[float], usual: float, usual_nights: float) -> BaselineLevel:
    middle = median(values)
    deviation = max(_MAD * median([abs(value - middle) for value in values]), usual / 2)
    low, high = middle - _PULLED_IN * deviation, middle + _PULLED_IN * deviation
    pulled = [min(max(value, low), high) for value in values]
    centre = fmean(pulled)
    own = _EFFICIENCY * (len(values) - 1)
    own_variance = sum((value - centre) ** 2 for value in pulled) / (len(values) - 1)
    freedom = own + usual_nights
    variance = (own * own_variance + usual_nights * usual**2) / freedom
    return BaselineLevel(centre=centre, spread=math.sqrt(variance), freedom=freedom, nights=len(values))


def _student(z: float, freedom: float) -> float:
    """Student's quantile that is as rare as z standard deviations are (Wallace's approximation)."""
    return math.sqrt(freedom * math.expm1((z * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom))


def _shared(z: float, alike: int) -> float:
    """The threshold with the same probability as z over several tests together (Bonferroni)."""
    normal = NormalDist()
    return -normal.inv_cdf(normal.cdf(-z) / alike)
