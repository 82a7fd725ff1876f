"""What changed from one snapshot of a run to the next, in words: the lines of the event log. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.tui.draw import one_line
from loadgen.tui.screen_state import LogEntry
from loadgen.tui.snapshot import DisplaySnapshot, WorkerDisplayState
from loadgen.units import counted

TEXT_MAX = 300
_TOLD = (WorkerDisplayState.STALE, WorkerDisplayState.DEAD, WorkerDisplayState.DONE)


def new_log_entries(before: DisplaySnapshot | None, now: DisplaySnapshot) -> Iterator[LogEntry]:
    """Every change is listed once; the first snapshot gives the state of the run."""
    yield from _run(before, now)
    yield from _workers(before, now)
    yield from _logins(before, now)
    known_steps = {step.step_number for step in before.steps} if before is not None else set()
    for step in now.steps:
        if step.step_number not in known_steps and before is not None:
            level = counted(step.target_connections, "connection")
            yield _line(now, f"step {step.step_number}: {level} {step.outcome}: {step.reason}")
    for warning in now.warnings:
        if before is None or warning not in before.warnings:
            yield _line(now, warning, bad=True)


def _run(before: DisplaySnapshot | None, now: DisplaySnapshot) -> Iterator[LogEntry]:
    run = now.run
    if before is None or (before.run.status, before.run.phase) != (run.status, run.phase):
        yield _line(now, f"{run.status} {run.phase}")
    if now.ending is not None and (before is None or before.ending != now.ending):
        yield _line(now, f"ending: {now.ending}")


def _workers(before: DisplaySnapshot | None, now: DisplaySnapshot) -> Iterator[LogEntry]:
    """One line for all that changed in the same way, so that a hundred workers do not fill the log."""
    old = {worker.worker_id: worker.state for worker in before.workers} if before is not None else {}
    for state in WorkerDisplayState:
        changed = [worker for worker in now.workers if worker.state is state and old.get(worker.worker_id) is not state]
        if state in _TOLD and changed:
            bad = state is not WorkerDisplayState.DONE
            first = changed[0].why if bad and changed[0].why else f"{changed[0].worker_id} is {state}"
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            yield _line(now, f"{first}{more}", bad=bad)
        elif state is WorkerDisplayState.RUNNING:
            back = [worker.worker_id for worker in changed if old.get(worker.worker_id) is WorkerDisplayState.STALE]
            if back:
                yield _line(now, f"{back[0]} is back{f' (and {len(back) - 1} more)' if len(back) > 1 else ''}")


def _logins(before: DisplaySnapshot | None, now: DisplaySnapshot) -> Iterator[LogEntry]:
    """Refused logins: the first, and whenever there are twice as many, with the newest of them."""
    refused = _refused(now)
    if refused.bit_length() <= (0 if before is None else _refused(before).bit_length()):
        return
    known = [
        (refusal, worker.worker_id)
        for worker in now.workers
        if worker.live is not None
        for refusal in worker.live.logins.last_refused
    ]
    text = f"{refused} login{'s' if refused > 1 else ''} refused"
    if known:
        last, worker_id = max(known, key=lambda entry: entry[0].at)
        text += f", the last of {worker_id}: {'' if last.code is None else f'{last.code}: '}{last.text}"
    yield _line(now, text, bad=True)


def _refused(look: DisplaySnapshot) -> int:
    return sum(worker.live.logins.refused for worker in look.workers if worker.live is not None)


def _line(look: DisplaySnapshot, text: str, *, bad: bool = False) -> LogEntry:
    return LogEntry(moment=look.moment, text=one_line(text, TEXT_MAX), bad=bad)
