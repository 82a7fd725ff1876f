"""The faults of a world and their times, drawn before the run begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loadgen.errors import LoadgenError
from loadgen.snowflake.session import RetryPolicy
from orchestrator.leadership import request_stop
from tests.unit.simulation.processes import OrchestratorProcess, Process, WorkerProcess
from tests.unit.simulation.target import Span
from tests.unit.simulation.wires import RequestOutcome

if TYPE_CHECKING:
    from tests.unit.simulation.world import World

BEGINS_S = 3.0  # workers are ready by then, mostly
SEARCH_S = 50.0  # most of a search
BUSY_S = 30.0  # several steps
SLOW_S = 25.0  # until after START
LOG_FACTOR = 30.0
HANGING_S = (1.5, 4.0, 20.0)  # rejected logins hang for this long; the longest time is more than a drain has

WEIGHTS = {
    "term": 1,
    "kill": 1,
    "restart": 1,
    "pause": 4,
    "suspend": 2,
    "slow reads": 3,
    "drop": 2,
    "refuse": 3,
    "unanswered": 2,
    "stall": 1,
    "mute": 1,
    "cut off": 1,
    "away": 1,
    "trouble": 1,
    "blind": 2,
    "log refused": 2,
    "leader killed": 2,
    "leader paused": 1,
    "leader cut off": 1,
    "lease": 1,
    "cancel": 1,
    "interrupt": 1,
}
HARMLESS = ("blind", "log refused")  # these change no verdict: no measurement depends on them
SERVER = ("drop", "refuse", "unanswered", "stall")  # with these a search may correctly fail below the limit
KINDS = tuple(kind for kind, weight in WEIGHTS.items() for _ in range(weight))
SEARCHED = (*KINDS, *("busy",) * 12, *("cut off",) * 6)
LEADERS = (
    "leader killed",
    "leader paused",
    "leader paused",
    "leader cut off",
    "lease",
    "away",
    "mute",
    "cut off",
    "cancel",
)


def plan_faults(world: World) -> None:
    rng, load = world.rng, world.scenario.load
    ends_s = BEGINS_S + 3.0 + load.warmup_s + (load.duration_s or SEARCH_S)
    kinds, lasting_s = KINDS, [0.1, 0.3, 0.6, 1.5, 4.0, 9.0, 20.0]
    times = rng.choice((0, 1, 1, 1, 2, 2, 3))
    if world.is_search:
        kinds = SEARCHED
    if world.contested:
        kinds, lasting_s, times = LEADERS, [4.0, 7.0, 9.0, 12.0, 17.0, 30.0], rng.randint(2, 5)
        world.trouble, world.trouble_until_s = rng.choice((0.0, 0.05, 0.2)), ends_s
        world.calm_s = ends_s
    for _ in range(times):
        at_s, lasts_s, kind = rng.uniform(0.0, ends_s), rng.choice(lasting_s), rng.choice(kinds)
        at_s /= 4 if kind == "slow reads" else 1  # later, workers know the server's time
        world.calm_s = max(world.calm_s, at_s + lasts_s)
        world.scheduler.at(at_s, _happening(world, kind, lasts_s, rng.random()))


def _happening(world: World, kind: str, lasts_s: float, dice: float) -> Callable[[], None]:
    def happen() -> None:
        world.note(kind, f"{lasts_s:g} s")
        now_s = world.scheduler.now_s
        if kind not in HARMLESS:
            world.disturbances.append((now_s, now_s + {"busy": BUSY_S, "slow reads": SLOW_S}.get(kind, lasts_s)))
        workers = [process for process in world.workers if not process.gone]
        leaders = [process for process in world.orchestrators if not process.gone and process.is_leading]
        if kind in _OF_ALL:
            _OF_ALL[kind](world, lasts_s)
        elif kind in _OF_WORKERS and workers:
            _OF_WORKERS[kind](world, workers[int(dice * len(workers))], lasts_s)
        elif kind in _OF_LEADERS and leaders:
            _OF_LEADERS[kind](world, leaders[int(dice * len(leaders))], lasts_s)

    return happen


# --- all processes ---------------------------------------------------------------------------------------------------


def _away(world: World, lasts_s: float) -> None:
    now_s, until_s = world.scheduler.now_s, world.scheduler.now_s + lasts_s
    if until_s > world.away_until_s:
        world.outages.append((max(now_s, world.away_until_s), until_s))
        world.away_until_s = until_s


def _trouble(world: World, lasts_s: float) -> None:
    world.trouble, world.trouble_until_s = world.rng.choice((0.05, 0.3)), world.scheduler.now_s + lasts_s


def _stall(world: World, lasts_s: float) -> None:
    now_s, everybody = world.scheduler.now_s, frozenset(process.worker_id for process in world.workers)
    world.target.stalls.append(Span(now_s, now_s + min(lasts_s, 4.0), everybody))


def _blind(world: World, lasts_s: float) -> None:
    """The warehouse cannot be polled, though it executes."""
    now_s = world.scheduler.now_s
    world.watched.unseen.append((now_s, now_s + lasts_s))


def _log_refused(world: World, lasts_s: float) -> None:
    """Query logs cannot be stored, mostly for longer than the retries last."""
    world.log_refused_until_s = max(world.log_refused_until_s, world.scheduler.now_s + LOG_FACTOR * lasts_s)


def _cancel(world: World, _: float) -> None:
    User(world).begin()


class User(Process):
    """A user calls `loadgen stop`."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "user")

    def main(self) -> int:
        session, retries = self.open_session("stop"), RetryPolicy(stop=self.never, clock=self.clock, attempts=3)
        try:
            request_stop(session, retries, self.world.run_id, "a user", "enough")
        except LoadgenError as error:
            self.world.note("not cancelled", str(error))
        return 0


_OF_ALL = {
    "away": _away,
    "trouble": _trouble,
    "stall": _stall,
    "blind": _blind,
    "log refused": _log_refused,
    "cancel": _cancel,
}

# --- a worker --------------------------------------------------------------------------------------------------------


def _restart(world: World, process: WorkerProcess, lasts_s: float) -> None:
    """The process is killed, and started again by a supervisor."""
    process.kill()

    def again() -> None:
        if world.elsewhere and not world.tables.status.is_terminal:
            world.start_worker(process.order)

    world.scheduler.at(world.scheduler.now_s + lasts_s, again)


def _refuse(world: World, process: WorkerProcess, lasts_s: float) -> None:
    """Sessions end, and logins are rejected for a while, at once or at its end."""
    now_s = world.scheduler.now_s
    spans = world.target.hangs if lasts_s in HANGING_S else world.target.refusals
    spans.append(Span(now_s, now_s + lasts_s, frozenset([process.worker_id])))
    world.target.drop(process.worker_id, world.rng.choice((1, 2, None)))


def _unanswered(world: World, process: WorkerProcess, lasts_s: float) -> None:
    now_s = world.scheduler.now_s
    world.target.silences.append(Span(now_s, now_s + lasts_s, frozenset([process.worker_id])))


def _drop(world: World, process: WorkerProcess, _: float) -> None:
    world.target.drop(process.worker_id, world.rng.choice((1, None)))


def _busy(world: World, process: WorkerProcess, _: float) -> None:
    """The client is short of CPU, and reports it; in a search every statement takes longer."""
    now_s = world.scheduler.now_s
    world.target.busy.append(Span(now_s, now_s + BUSY_S, frozenset([process.worker_id])))


def _suspend(world: World, process: WorkerProcess, lasts_s: float) -> None:
    """The machine of a worker is suspended, and with it the orchestrator that is the parent of the worker."""
    parents = () if world.elsewhere else world.orchestrators[:1]
    for one in (process, *parents):
        if not one.gone:
            one.suspend(lasts_s)


def _slow_reads(world: World, process: WorkerProcess, _: float) -> None:
    process.slow_until_s = world.scheduler.now_s + SLOW_S
    process.slowness = world.rng.choice((RequestOutcome.HELD_UP, RequestOutcome.HELD_BACK))


def _mute(world: World, process: Process, lasts_s: float) -> None:
    process.mute_until_s = world.scheduler.now_s + lasts_s


def _cut_off(world: World, process: Process, lasts_s: float) -> None:
    process.cut_off_until_s = world.scheduler.now_s + lasts_s


_OF_WORKERS: dict[str, Callable[[World, WorkerProcess, float], None]] = {
    "term": lambda _, process, __: process.terminate(),
    "kill": lambda _, process, __: process.kill(),
    "restart": _restart,
    "pause": lambda _, process, lasts_s: process.pause(lasts_s),
    "suspend": _suspend,
    "slow reads": _slow_reads,
    "drop": _drop,
    "refuse": _refuse,
    "unanswered": _unanswered,
    "busy": _busy,
    "mute": _mute,
    "cut off": _cut_off,
}

# --- a leader --------------------------------------------------------------------------------------------------------


_OF_LEADERS: dict[str, Callable[[World, OrchestratorProcess, float], None]] = {
    "leader killed": lambda _, process, __: process.kill(),
    "leader paused": lambda _, process, lasts_s: process.pause(lasts_s),
    "leader cut off": _cut_off,
    "lease": _mute,
    "interrupt": lambda _, process, __: process.interrupt(),
}
