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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

NIGHTS_MIN = 5  # of a segment that a night can be tested against
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
class Baseline:
    """What a night is tested against."""

    centre: float
    spread: float  # from night to night: a standard deviation
    freedom: float  # degrees of it
    nights: int

    def reach(self, together: int, z: float) -> float:
        """How far from the centre the mean of so many nights may lie by chance."""
        apart = self.spread * math.sqrt(1 / together + _CENTRE / self.nights)
        return apart * _student(z, self.freedom)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """From one level to another."""

    start: int  # the first value of the new level
    confirmed: int  # the value that made it certain
    before: Baseline
    after: float  # the mean of the values between the two, both included

    @property
    def size(self) -> float:
        return self.after - self.before.centre


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What became of a series. Numbers are positions in it."""

    shifts: tuple[Shift, ...]
    suspected: tuple[int, ...]
    baselines: tuple[Baseline | None, ...]  # before each value; None: too few to say anything
    limit: float
    z_suspected: float

    def range_at(self, position: int) -> tuple[float, float] | None:
        """Between which values nothing is suspected."""
        baseline = self.baselines[position]
        if baseline is None:
            return None
        reach = max(self.limit, baseline.reach(1, self.z_suspected))
        return baseline.centre - reach, baseline.centre + reach


def course_of(values: Sequence[float] | FloatArray, *, limit: float, usual: float, alike: int = 1) -> Course:
    """Night after night, as it would have been judged then. `usual` is a deviation that no spread is known without;
    `alike` is how many series are looked at in the same way, and share the chance of a false alarm."""
    series = np.asarray(values, np.float64)
    z_suspected, z_confirmed = _shared(_SUSPECTED_Z, alike), _shared(_CONFIRMED_Z, alike)
    shifts: list[Shift] = []
    suspected: list[int] = []
    baselines: list[Baseline | None] = []
    start = 0
    for night in range(len(series)):
        baseline = _baseline(series[start:night], usual)
        baselines.append(baseline)
        apart = 0.0 if baseline is None else abs(float(series[night]) - baseline.centre)
        if baseline is None or apart < limit / 4:  # far from showing anything
            continue
        shift = _confirmed(series, start, night, limit, usual, z_confirmed)
        if shift is not None:
            shifts.append(shift)
            start = shift.start
        elif apart > max(limit, baseline.reach(1, z_suspected)):
            suspected.append(night)
    return Course(
        shifts=tuple(shifts),
        suspected=tuple(suspected),
        baselines=tuple(baselines),
        limit=limit,
        z_suspected=z_suspected,
    )


def _confirmed(
    series: FloatArray, start: int, night: int, limit: float, usual: float, z_confirmed: float
) -> Shift | None:
    for together in range(2, TOGETHER_MAX + 1):
        first = night + 1 - together
        baseline = _baseline(series[start : max(first, start)], usual)
        if baseline is None:
            return None
        apart = series[first : night + 1] - baseline.centre
        mean = float(apart.mean())
        weakest = float((apart * math.copysign(1.0, mean)).min())
        if weakest <= limit / 2:  # nor do more nights all show it
            return None
        all_show_it = weakest > abs(mean) / 2  # else one of them may have made the mean what it is
        if all_show_it and abs(mean) > max(limit, baseline.reach(together, z_confirmed)):
            return Shift(start=first, confirmed=night, before=baseline, after=baseline.centre + mean)
    return None


def _baseline(segment: FloatArray, usual: float) -> Baseline | None:
    if len(segment) < NIGHTS_MIN:
        return None
    nights = segment[-NIGHTS_MAX:]
    middle = float(np.median(nights))
    deviation = max(_MAD * float(np.median(np.abs(nights - middle))), usual / 2)
    pulled = np.clip(nights, middle - _PULLED_IN * deviation, middle + _PULLED_IN * deviation)
    own = _EFFICIENCY * (len(nights) - 1)
    freedom = own + _USUAL_NIGHTS
    variance = (own * float(pulled.var(ddof=1)) + _USUAL_NIGHTS * usual**2) / freedom
    return Baseline(centre=float(pulled.mean()), spread=math.sqrt(variance), freedom=freedom, nights=len(nights))


def _student(z: float, freedom: float) -> float:
    """Student's quantile that is as rare as z standard deviations are (Wallace's approximation)."""
    return math.sqrt(freedom * math.expm1((z * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom))


def _shared(z: float, alike: int) -> float:
    """As rare as z is, for so many looks together (Bonferroni)."""
    normal = NormalDist()
    return -normal.inv_cdf(normal.cdf(-z) / alike)
