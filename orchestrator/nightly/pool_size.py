"""How many runners a pool should have, and which of them should go. Pure: the manager looks, asks, and does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from loadgen.control.tables.run_queue_claims import QueueDepth
from loadgen.errors import UsageError
from loadgen.model.warehouse import look_credits_per_day
from loadgen.units import counted
from loadgen.values import dataclass

PING_S = 2.0
PING_TIMEOUT_S = 10.0
MISSES_MAX = 3
START_MAX_S = 300.0  # until the first answer: a busy machine takes long to import, and longer with every start anew
IDLE_LOOKS = 2  # in a row without work: one may fall between a fire of a schedule and its run
SOONER_MAX = 4  # looks that failed in a row, after which the next one comes sooner
START_PAUSE_MAX_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PollPace:
    """How often a pool looks at the tables. Each look keeps the control plane's warehouse running for a minute."""

    poll_s: float = 5.0
    idle_poll_s: float = 5.0  # while there is no work

    def is_idle(self, looks: int) -> bool:
        """After this number of looks in a row that found no work."""
        return self.idle_poll_s > self.poll_s and looks >= IDLE_LOOKS

    def pause_s(self, looks: int, failures: int = 0, due_in_s: float | None = None) -> float:
        """Before the next look: sooner when a queued run is due before that, and after some looks that failed in a
        row, but not for as long as an outage lasts."""
        pause_s = self.idle_poll_s if self.is_idle(looks) else self.poll_s
        if due_in_s is not None and due_in_s > 0:
            pause_s = min(pause_s, max(due_in_s, self.poll_s))
        return min(pause_s, self.poll_s * 2.0 ** (failures - 1)) if 0 < failures <= SOONER_MAX else pause_s

    def credits_per_day(self) -> float:
        """Of an X-Small warehouse that suspends itself after a minute, for a pool that has no work for a day."""
        return look_credits_per_day(self.idle_poll_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    min_runners: int = 1
    max_runners: int = 4
    scale_up_at: int = 5  # runs that wait
    idle_s: float = 300.0
    max_age_s: float = 3600.0
    max_runs: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.min_runners <= self.max_runners or self.max_runners < 1:
            raise UsageError(
                f"a pool of {self.min_runners} to {self.max_runners} runners cannot be",
                remedy="Make --max at least 1 and not less than --min.",
            )
        if self.scale_up_at < 1 or self.max_runs < 1 or self.max_age_s <= 0:
            raise UsageError(
                "--scale-up-at, --max-runs and --max-age must be more than nothing",
                remedy="Leave them out to get what `loadgen pool run --help` shows.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerView:
    """A runner whose process lives, as its manager sees it."""

    name: str
    age_s: float
    runs: int  # that it has done
    idle_s: float | None  # None: it does one, or has not begun to look for any
    busy: bool  # it does one
    draining: bool  # it takes nothing new
    misses: int  # pings in a row that it did not answer
    has_answered: bool  # False: it starts

    @property
    def is_silent(self) -> bool:
        """It has stopped answering, or has not begun to in the time it has for that."""
        return self.misses >= MISSES_MAX and (self.has_answered or self.age_s >= START_MAX_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDecision:
    start: int = 0
    drain: tuple[str, ...] = ()  # surplus
    recycle: tuple[str, ...] = ()  # drained too, and replaced
    kill: tuple[str, ...] = ()
    size: int = field(default=0, compare=False)  # how many runners should serve, until the next decision


def decide_pool_size(
    rules: PoolRules, depth: QueueDepth | None, runners: Sequence[RunnerView], size: int | None = None
) -> PoolDecision:
    """What to do now. `depth` is what waits; None: not looked at again since the last decision. `size` is that of the
    last decision; None: as many as serve.

    A runner that drains still needs the machine: together they are never more than the maximum.
    """
    kill = tuple(runner.name for runner in runners if runner.is_silent)
    living = [runner for runner in runners if runner.name not in kill]
    serving = [runner for runner in living if not runner.draining]
    size = min(max(rules.min_runners, len(serving) if size is None else size), rules.max_runners)
    if depth is not None and _is_short(rules, depth, serving):
        size = max(size, min(len(serving) + 1, rules.max_runners))
    recycle = _recycled(rules, living, serving)
    serving = [runner for runner in serving if runner.name not in recycle]
    drain = _surplus(rules, serving) if depth is not None and not depth.startable and not recycle else ()
    if drain:
        size = len(serving) - len(drain)
    start = min(size - len(serving), rules.max_runners - len(living))
    return PoolDecision(start=max(start, 0), drain=drain, recycle=recycle, kill=kill, size=size)


def _is_short(rules: PoolRules, depth: QueueDepth, serving: Sequence[RunnerView]) -> bool:
    """Enough runs wait, and one more runner would find one that can begin: free runners take the others."""
    if not serving:
        return depth.startable > 0
    free = sum(not runner.busy for runner in serving)
    return depth.waiting >= rules.scale_up_at and depth.startable > free


def start_pause_s(failures: int) -> float:
    """The pause before the next start, after this number of runners in a row that never became ready."""
    return 0.0 if failures == 0 else min(START_PAUSE_MAX_S, 2.0 ** min(failures - 1, 30))


def _recycled(rules: PoolRules, living: Sequence[RunnerView], serving: Sequence[RunnerView]) -> tuple[str, ...]:
    """The oldest that is over its age or its runs; one at a time, so that the others go on.

    One that has done no run is as good as new, and replacing it would start the control plane's warehouse.
    """
    if len(living) > len(serving):
        return ()
    used = [runner for runner in serving if runner.runs > 0]
    over = [runner for runner in used if runner.age_s >= rules.max_age_s or runner.runs >= rules.max_runs]
    return (max(over, key=lambda runner: runner.age_s).name,) if over else ()


def _surplus(rules: PoolRules, serving: Sequence[RunnerView]) -> tuple[str, ...]:
    """The one that has been idle the longest, when there are more than needed."""
    idle = [(runner.idle_s, runner.name) for runner in serving if runner.idle_s is not None]
    if len(serving) <= rules.min_runners or not idle:
        return ()
    longest_s, name = max(idle)
    return (name,) if longest_s >= rules.idle_s else ()


def leaving_text(signals: int, runs: int, grace_s: float) -> str:
    """What a pool that was told to end waits for, and what the next signal does."""
    if runs == 0:
        return "stopping: no run is under way"
    them, under_way = "it" if runs == 1 else "them", f"stopping: {counted(runs, 'run')} under way"
    if signals == 1:
        finish = "finishes" if runs == 1 else "finish"
        return f"{under_way} {finish} first, within {grace_s:.0f} s; press Ctrl-C again to queue {them} again"
    return f"{under_way} {'is' if runs == 1 else 'are'} ended and queued again; press Ctrl-C again to end at once"
