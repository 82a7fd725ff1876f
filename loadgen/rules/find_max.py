"""The search for the largest number of connections without a failed step.

`validate --plan` prints its limits (the cap), and the leader runs it.

    climb     start, then `increment` more, until a level fails or the maximum is reached
    confirm   the best level once more, then the failed level once more
    refine    bisect between the two, until they are neighbours or closer than 5 %

A step gives its level one vote: held or failed. A level with votes of both kinds is measured again until one kind has
two votes more. A step in which the client was the limit, or whose load was not delivered, has no vote and is measured
once more. If that happens again, the search does not go above that level: the answer is then a lower bound.

What comes next depends on the judged steps and on nothing else, so a search can be continued from the stored steps.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from enum import StrEnum
from functools import cached_property, lru_cache

from loadgen.rules.find_max_step import EXTEND_MAX, JudgedStep, StepObservation, StepOutcome, baseline_p95, judge
from loadgen.scenario.model import FindMaxSettings
from loadgen.units import counted
from loadgen.values import dataclass

GAP_MIN = 0.05  # of the best level: refining ends below it
VOTE_MARGIN = 2  # votes that the levels at both ends of the gap need; the majority if a level has votes of both kinds
REPEATS_MIN = 6  # minimum number of steps for repeating others


class SearchStage(StrEnum):
    CLIMB = "climb"
    CONFIRM = "confirm"  # the best level
    VERIFY = "verify"  # the failed level
    REFINE = "refine"
    REPEAT = "repeat"  # a level with votes of both kinds, or a step without a vote
    DONE = "done"


class SearchConfidence(StrEnum):
    HIGH = "high"
    LOW = "low"


# --- the cap ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FindMaxCap:
    """Limits that a search never exceeds."""

    levels: tuple[int, ...]  # the climb, if every level holds
    steps: int
    steps_s: float  # without repeated and extended steps
    longest_s: float  # every step allowed, each extended as far as possible


@lru_cache(maxsize=16)
def find_max_cap(config: FindMaxSettings) -> FindMaxCap:
    """Steps to climb, to confirm both ends and to bisect; and for repeats as many as for the climb, at least six."""
    levels = (*range(config.start, config.maximum, config.increment), config.maximum)
    clear = len(levels) + 2
    if config.refine:
        clear += max((_bisections(low, high) for low, high in itertools.pairwise(levels)), default=0)
    steps = clear + max(len(levels), REPEATS_MIN)
    return FindMaxCap(
        levels=levels,
        steps=steps,
        steps_s=clear * (config.settle_s + config.step_s),
        longest_s=steps * (config.settle_s + EXTEND_MAX * config.step_s),
    )


def _bisections(low: int, high: int) -> int:
    """Steps of a bisection between two levels, in the worst case."""
    if not _is_gap(low, high):
        return 0
    middle = (low + high) // 2
    return 1 + max(_bisections(low, middle), _bisections(middle, high))


def _is_gap(low: int, high: int) -> bool:
    """Whether there is a level between the one that held and the one that failed."""
    return high - low > 1 and high - low >= GAP_MIN * low


# --- a level ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)  # no slots: the search reads the cached properties many times
class _Level:
    """All steps with the same number of connections, in order."""

    connections: int
    steps: tuple[JudgedStep, ...]

    @cached_property
    def votes(self) -> int:
        return sum(step.held for step in self.steps)

    @cached_property
    def against(self) -> int:
        return sum(step.failed for step in self.steps)

    @cached_property
    def is_limited(self) -> bool:
        """Whether the client was the limit twice in a row."""
        last = [step.outcome for step in self.steps[-2:]]
        return last == [StepOutcome.CLIENT_LIMIT] * 2

    @cached_property
    def is_contradictory(self) -> bool:
        """Whether the level has steps that held and steps that failed."""
        return self.votes > 0 and self.against > 0

    @cached_property
    def is_undecided(self) -> bool:
        """Whether the level has votes of both kinds, and neither kind leads by two votes."""
        return self.is_contradictory and abs(self.votes - self.against) < VOTE_MARGIN

    @cached_property
    def held(self) -> bool:
        return self.votes > self.against and not self.is_undecided

    @cached_property
    def failed(self) -> bool:
        return self.against > self.votes and not self.is_undecided

    @cached_property
    def last_held(self) -> JudgedStep:
        return [step for step in self.steps if step.held][-1]

    @cached_property
    def last_failed(self) -> JudgedStep:
        return [step for step in self.steps if step.failed][-1]


# --- the search ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search has found so far. `best` None: no level held."""

    best: JudgedStep | None  # the last that held at the best level
    failed: JudgedStep | None  # the last that failed at the lowest level above it
    limited: JudgedStep | None  # at the lowest level where the client was the limit
    is_true_max: bool  # the level above the best one is known to fail
    confidence: SearchConfidence
    reason: str


@dataclass(frozen=True, kw_only=True)
class FindMaxSearch:
    """The steps judged so far, and what follows from them."""

    config: FindMaxSettings
    steps: tuple[JudgedStep, ...] = ()
    stopped: str | None = None  # why nothing more can be measured

    def judge(self, shown: StepObservation) -> JudgedStep | None:
        """The verdict of the step under way; None: it needs more time."""
        return judge(self.config, self.steps, shown)

    def after(self, step: JudgedStep) -> FindMaxSearch:
        return replace(self, steps=(*self.steps, step))

    @property
    def baseline_p95_ms(self) -> float | None:
        found = baseline_p95(self.config, self.steps)
        return None if found is None else found.value_ms

    @property
    def best(self) -> JudgedStep | None:
        """The last step that held at the highest level so far, confirmed or not."""
        found = _best(self._levels)
        return None if found is None else found.last_held

    @property
    def stage(self) -> SearchStage:
        return self._next()[0]

    @property
    def target(self) -> int | None:
        """The level of the step under way, or of the next one; None: the search is over."""
        return self._next()[1]

    # --- what comes next ---------------------------------------------------------------------------------------------

    def _next(self) -> tuple[SearchStage, int | None]:
        if self.stopped is not None or len(self.steps) >= find_max_cap(self.config).steps:
            return _DONE
        return self._wanted

    @cached_property
    def _wanted(self) -> tuple[SearchStage, int | None]:
        """The next level if the number of steps were not limited."""
        levels = self._levels
        if not levels:
            return SearchStage.CLIMB, self.config.start
        again = self._to_repeat(levels)
        if again is not None:
            return SearchStage.REPEAT, again
        failed, limited = _lowest_failed(levels), _lowest_limited(levels)
        best = _best([level for level in levels if self.config.is_climbed(level.connections)])
        if best is None:
            unsure = failed is not None and limited is None and failed.against < VOTE_MARGIN
            return (SearchStage.VERIFY, self.config.start) if unsure else _DONE
        if failed is None and limited is None and best.connections < self.config.maximum:
            return SearchStage.CLIMB, min(best.connections + self.config.increment, self.config.maximum)
        if _support(levels, best) < VOTE_MARGIN and not best.is_limited:
            return SearchStage.CONFIRM, best.connections
        if failed is None or (limited is not None and limited.connections < failed.connections):
            return _DONE
        return self._narrowed(levels, failed)

    def _narrowed(self, levels: list[_Level], failed: _Level) -> tuple[SearchStage, int | None]:
        """The best level of the climb is confirmed. A failed level between two of the climb needs no second vote: the
        one above it has two."""
        if self.config.is_climbed(failed.connections) and failed.against < VOTE_MARGIN:
            return SearchStage.VERIFY, failed.connections
        best = _best(levels)
        assert best is not None
        if not self.config.refine or not _is_gap(best.connections, failed.connections):
            return _DONE
        return SearchStage.REFINE, (best.connections + failed.connections) // 2

    def _to_repeat(self, levels: list[_Level]) -> int | None:
        last = self.steps[-1]
        for level in levels:
            says_nothing = level.connections == last.target and last.outcome is StepOutcome.CLIENT_LIMIT
            if not level.is_limited and (level.is_undecided or says_nothing):
                return level.connections
        return None

    @cached_property
    def _levels(self) -> list[_Level]:
        steps: dict[int, list[JudgedStep]] = {}
        for step in self.steps:
            steps.setdefault(step.target, []).append(step)
        return [_Level(target, tuple(steps[target])) for target in sorted(steps)]

    # --- the answer --------------------------------------------------------------------------------------------------

    def answer(self) -> SearchResult:
        levels = self._levels
        failed, limited = _lowest_failed(levels), _lowest_limited(levels)
        best = _best(levels)
        is_complete = self._wanted == _DONE
        is_limited = limited is not None and (failed is None or limited.connections < failed.connections)
        is_true_max = is_complete and best is not None and failed is not None and not is_limited
        if not is_true_max:
            best = _supported(levels, best)
        sure = is_complete and not any(level.is_contradictory for level in levels)
        if best is not None:
            sure = sure and not best.last_held.low_confidence and (is_true_max or _support(levels, best) >= VOTE_MARGIN)
        if is_true_max:
            assert failed is not None
            sure = sure and not failed.last_failed.low_confidence
        return SearchResult(
            best=None if best is None else best.last_held,
            failed=None if failed is None else failed.last_failed,
            limited=limited.steps[-1] if limited is not None and is_limited else None,
            is_true_max=is_true_max,
            confidence=SearchConfidence.HIGH if sure else SearchConfidence.LOW,
            reason=self._reason(best, failed, limited if is_limited else None, is_complete=is_complete),
        )

    def _reason(self, best: _Level | None, failed: _Level | None, limited: _Level | None, *, is_complete: bool) -> str:
        """The reason of the result, one sentence."""
        why = self.stopped or f"the search has used all of its {len(self.steps)} steps"
        if is_complete and limited is not None:
            why = f"limited by the client at {limited.connections}: {limited.steps[-1].reason}"
        if best is None:
            if is_complete and failed is not None:
                return f"a step with {counted(self.config.start, 'connection')} failed: {failed.last_failed.reason}"
            return f"no step succeeded: {why}"
        if not is_complete or limited is not None:
            return f"at least {counted(best.connections, 'connection')} held: {why}"
        if failed is None:
            return f"{counted(best.connections, 'connection')} held, and more were not tried"
        held = counted(best.connections, "connection")
        return f"{held} held; a step with {failed.connections} failed: {failed.last_failed.reason}"


_DONE: tuple[SearchStage, int | None] = (SearchStage.DONE, None)


def _lowest_failed(levels: list[_Level]) -> _Level | None:
    return next((level for level in levels if level.failed and not level.is_limited), None)


def _lowest_limited(levels: list[_Level]) -> _Level | None:
    return next((level for level in levels if level.is_limited), None)


def _best(levels: list[_Level]) -> _Level | None:
    """The highest level that held, below all levels that failed, are undecided, or were limited by the client."""
    below = list(itertools.takewhile(lambda level: level.held and not level.is_limited, levels))
    if below:
        return below[-1]
    return levels[0] if levels and levels[0].held else None  # it held before the client became the limit


def _supported(levels: list[_Level], best: _Level | None) -> _Level | None:
    """The highest level up to `best` with two votes, from its steps or from higher levels that held."""
    if best is None:
        return None
    supported = [
        level for level in levels if level.connections <= best.connections and _support(levels, level) >= VOTE_MARGIN
    ]
    return supported[-1] if supported else levels[0]


def _support(levels: list[_Level], least: _Level) -> int:
    """Votes for a level: a vote that more connections hold is also a vote that fewer connections hold."""
    return sum(level.votes for level in levels if level.connections >= least.connections and level.held)
