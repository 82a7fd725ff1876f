"""Did the windows of a run lie where its plan has them? Pure.

moments   by the server's clock. A worker knows them as exactly as the control plane answers quickly. A window that
          may be off by more than 1 % of its length: a warning; by more than 200 ms as well: INVALID, as load may
          have been missing at one end of it while other workers had theirs
warm-up   a worker that hears of START late begins late. With less than 95 % of the planned warm-up, and more than
          200 ms of it missing: INVALID
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from loadgen.metrics.window import WindowResult
from loadgen.values import dataclass

UNCERTAIN_PERCENT = 1  # of a window
UNCERTAIN_MS = 200
WARMUP_MIN_PERCENT = 95  # of the plan
WARMUP_LATE_S = 0.2
NAMED_MAX = 5  # workers


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingVerdict:
    invalid: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def judge_timing(
    windows: Mapping[str, Sequence[WindowResult]],
    warmups: Mapping[str, Sequence[WindowResult]],
    *,
    warmup_s: float,
    steps: Collection[int] | None = None,
) -> TimingVerdict:
    """`windows` and `warmups` of every worker. Of a search, the windows of these `steps`."""
    part = "stage" if steps is None else "step"
    judged = {
        worker_id: [one for one in known if steps is None or one.step_id in steps]
        for worker_id, known in windows.items()
    }
    worst = {worker_id: max(known, key=_uncertain_fraction) for worker_id, known in judged.items() if known}
    wide = {worker_id: one for worker_id, one in worst.items() if _uncertain_fraction(one) > UNCERTAIN_PERCENT / 100}
    invalid = [_uncertain(worker_id, one, part) for worker_id, one in wide.items() if one.uncertain_ms > UNCERTAIN_MS]
    warnings = [_uncertain(worker_id, one, part) for worker_id, one in wide.items() if one.uncertain_ms <= UNCERTAIN_MS]
    invalid += _short_warmups({worker_id: warmups.get(worker_id, ()) for worker_id in worst}, warmup_s)
    return TimingVerdict(invalid=_few(invalid), warnings=_few(warnings))


def warmed_up_s(windows: Sequence[WindowResult]) -> float:
    """How long a worker warmed up; what settles before a step of a search is no warm-up of the run."""
    return sum(one.seconds for one in windows if one.step_id is None)


def _short_warmups(warmups: Mapping[str, Sequence[WindowResult]], planned_s: float) -> Iterator[str]:
    for worker_id, known in warmups.items():
        own_s = warmed_up_s(known)
        if 100 * own_s < WARMUP_MIN_PERCENT * planned_s and planned_s - own_s > WARMUP_LATE_S:
            share = f"{100 * own_s / planned_s:.0f} %, at least {WARMUP_MIN_PERCENT} %"
            yield f"{worker_id} warmed up for {own_s:.1f} of {planned_s:.1f} s ({share}): it began late"


def _uncertain_fraction(window: WindowResult) -> float:
    return window.uncertain_ms / max(1.0, 1_000 * window.seconds)


def _uncertain(worker_id: str, window: WindowResult, part: str) -> str:
    where = "" if window.step_id is None else f" in {part} {window.step_id}"
    limit = f"{UNCERTAIN_PERCENT} % of {window.seconds:.1f} s"
    return (
        f"{worker_id} may have been {window.uncertain_ms:,} ms away from the moments of the plan{where}, more than"
        f" {limit}: the control plane answered slowly"
    )


def _few(texts: Sequence[str]) -> tuple[str, ...]:
    more = len(texts) - NAMED_MAX
    return (*texts[:NAMED_MAX], *([f"{more} more workers were like that"] if more > 0 else []))
