"""The truth about a search for the maximum, by the record of the target: the load of the decisive steps, and
which answers the limit of the warehouse allows.

A step is measured from the first statement that carries its number until it is judged. The steps that decide are read
from the history of the search, by the words of its definition: the first that held at the first level, the last that
held at the level found, the last that failed at the level above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loadgen.metrics.window import GAP_NS
from loadgen.model.run import Phase, worker_share
from loadgen.rules.client_health import GAP_INVALID_PERCENT
from loadgen.rules.find_max_step import StepOutcome
from loadgen.rules.validity import SAMPLES_MIN
from orchestrator.run_result import WINDOW_OPENING_MS
from tests.unit.simulation.faults import SERVER
from tests.unit.simulation.standard_tables import ZERO
from tests.unit.simulation.truth import BAND, Truth, overlap_s, paused_s, polls_missing, slots, working

if TYPE_CHECKING:
    from tests.unit.simulation.target import Target
    from tests.unit.simulation.world import World

Span = tuple[float, float]
ENDS = 4  # the place of WINDOW_END_TIME in a row of FIND_MAX_STEP_HISTORY
BUSY_MAX = 0.3  # of a step: a busy client is late by far more than a tenth of the service time then
EDGE_S = 1.0  # around a step: statements in flight, and the way of beats


def truth_of_search(world: World, found: Mapping[str, Any]) -> Truth:
    """Of every worker in every decisive step."""
    workers = world.scenario.load.workers or 1
    planned, delivered = {}, {}
    for step in deciding(found):
        from_s, to_s = judged_span(world, step["step"])
        span = (min(from_s + WINDOW_OPENING_MS / 1_000, to_s), to_s)
        for number in range(workers):
            worker_id, wanted = f"worker-{number}", worker_share(step["target"], number, workers)
            part = (worker_id, step["step"])
            planned[part] = wanted * (span[1] - span[0])
            delivered[part] = sum(
                overlap_s(working(record), span) for record in slots(world.target, worker_id)[:wanted]
            )
    return Truth(planned, delivered)


def deciding(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Baseline, best and failed step; fewer if they do not exist."""
    steps: Sequence[Mapping[str, Any]] = found.get("steps") or []
    start = steps[0]["target"] if steps else None
    held = [step for step in steps if step["outcome"] == StepOutcome.STABLE]
    failed = [step for step in steps if step["outcome"] not in (StepOutcome.STABLE, StepOutcome.CLIENT_LIMIT)]
    chosen = [
        *[step for step in held if step["target"] == start][:1],
        *[step for step in held if step["target"] == found.get("max_concurrency")][-1:],
        *[step for step in failed if step["target"] == found.get("failed_at")][-1:],
    ]
    return list({step["step"]: step for step in chosen}.values())


def judged_span(world: World, number: int) -> Span:
    """The time span that a step was judged by."""
    from_s, last_s = step_span(world.target, number)
    ends = [row[ENDS] for row in world.tables.steps if row[1] == number]
    return from_s, min(last_s, (ends[0] - ZERO).total_seconds()) if ends else last_s


def step_span(target: Target, number: int) -> Span:
    """From the first statement of a step to the last: it continues until workers read the next one."""
    window = (Phase.MEASUREMENT.value, number)
    spans = [record.sent_s[window] for record in target.records.values() if window in record.sent_s]
    return min((span[0] for span in spans), default=0.0), max((span[1] for span in spans), default=0.0)


def other_search_reasons(world: World, found: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Reasons other than load that forbid VALID, and reasons that allow either verdict."""
    forbids, leaves_open = [], []
    best = found.get("decisive_step")
    window = (Phase.MEASUREMENT.value, best)
    if sum(record.succeeded[window] for record in world.target.records.values()) < SAMPLES_MIN:
        leaves_open.append("few samples")
    if found.get("max_concurrency") is None:
        leaves_open.append("nothing was found")
    stopping_s = world.tables.stopping_s
    for worker in world.workers:
        if stopping_s is None or (worker.ended_s is not None and worker.ended_s < stopping_s):
            leaves_open.append(f"{worker.name} left before the end of the search")
    spans = [judged_span(world, step["step"]) for step in found.get("steps", ())]
    if spans:
        leaves_open += polls_missing(world, (min(span[0] for span in spans), max(span[1] for span in spans)))
    for step in deciding(found):
        span = judged_span(world, step["step"])
        for worker in world.workers:
            paused = paused_s(worker.pauses, span, shortest_ns=GAP_NS * 11 // 10)
            if paused > (GAP_INVALID_PERCENT / 100 + BAND) * (span[1] - span[0]):
                forbids.append(f"{worker.name} was paused for {paused:.2f} s in step {step['step']}")
        busy_s = [overlap_s([(one.from_s, one.to_s)], span) for one in world.target.busy]
        if any(each_s > BUSY_MAX * (span[1] - span[0]) for each_s in busy_s):
            forbids.append(f"a client was busy in step {step['step']}")
        from_s, to_s = step_span(world.target, step["step"])
        around = (from_s - EDGE_S, to_s + EDGE_S)
        if any(overlap_s([span], around) for span in world.disturbances):
            leaves_open.append(f"something failed in step {step['step']}")
    return forbids, leaves_open


def wrong_answer(world: World, found: Mapping[str, Any], *, valid: bool) -> str | None:
    """A wrong claim of a search; None if there is none."""
    warehouse, config = world.target.warehouse, world.scenario.load.find_max
    assert warehouse is not None
    assert config is not None
    result, most, limit = found.get("result"), found.get("max_concurrency") or 0, warehouse.slots
    if result == "BOUNDED_MAX" and most > limit:
        return f"BOUNDED_MAX {most}, and the limit is {limit}"
    if result != "TRUE_MAX" or not valid:
        return None
    lowest = 0 if any(world.seen[kind] for kind in SERVER) else limit - config.increment
    return None if lowest <= most <= limit + config.increment else f"TRUE_MAX {most}, and the limit is {limit}"
