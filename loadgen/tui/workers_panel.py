"""Workers on the screen: a line each while there is room, else a count by state and a mark for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from loadgen.rules.client_health import CPU_WARN_PERCENT
from loadgen.tui.draw import LABEL, NOTHING, cell, flow, label, one_line, short_worker
from loadgen.tui.screen_state import ScreenState, WorkerLine
from loadgen.tui.snapshot import WorkerDisplayState

LATE_HEARTBEAT_S = 3.0  # a heartbeat comes every second; an older one is shown in colour

_WORKER_MARKS = {
    WorkerDisplayState.MISSING: ("·", "dim"),
    WorkerDisplayState.STARTING: ("○", ""),
    WorkerDisplayState.WAITING: ("◌", ""),
    WorkerDisplayState.RUNNING: ("●", "green"),
    WorkerDisplayState.DRAINING: ("◒", "cyan"),
    WorkerDisplayState.DONE: ("✓", "green"),
    WorkerDisplayState.STALE: ("◐", "bold yellow"),
    WorkerDisplayState.DEAD: ("✗", "bold red"),
}
_TROUBLE = (WorkerDisplayState.DEAD, WorkerDisplayState.STALE, WorkerDisplayState.MISSING)


def workers(view: ScreenState, width: int, limit: int, now_s: float) -> list[Text]:
    cells = view.workers
    if not cells:
        return [label("workers").append(NOTHING)]
    if len(cells) == 1:
        return [_only_worker(cells[0], now_s)]
    if len(cells) + 1 <= limit:
        return [_worker_summary(cells, width, now_s), *(_worker_line(worker, width, now_s) for worker in cells)]
    lines = [_worker_summary(cells, width, now_s)]
    if limit > 1:
        lines += _worker_grid(cells, width, now_s)[: limit - 1]
    return lines


def worker_lines(view: ScreenState, width: int, now_s: float) -> int:
    """A line each, up to eight workers; above, some lines of marks."""
    if len(view.workers) == 1:
        return 1
    return 1 + (len(view.workers) if len(view.workers) <= 8 else min(6, len(_worker_grid(view.workers, width, now_s))))


def _only_worker(worker: WorkerLine, now_s: float) -> Text:
    """The only worker needs no summary."""
    mark, style = _WORKER_MARKS[worker.state]
    trouble = style if worker.state in _TROUBLE else ""
    text = Text.assemble(label("workers"), (mark, style), f" {one_line(worker.worker_id, 20)} ")
    text.append(worker.state.value, style=trouble)
    cpu, over = worker.cpu_percent, "dim" if worker.state.is_over else ""
    text.append(f", {worker.open} of {worker.target} open, {worker.busy} busy", style=over)
    if cpu is not None:
        text.append(f", CPU {cpu:.0f} %", style="yellow" if cpu >= CPU_WARN_PERCENT and not over else over)
    return _said(text.append(","), worker, now_s)


def _worker_summary(cells: Sequence[WorkerLine], width: int, now_s: float) -> Text:
    """How many are in each state, those in trouble by name."""
    text = label("workers")
    states = Counter(worker.state for worker in cells)
    parts: list[Text] = []
    for state in WorkerDisplayState:
        if states[state]:
            mark, style = _WORKER_MARKS[state]
            part = Text(f"{mark} {states[state]} {state}", style=style if state in _TROUBLE else "")
            if state in (WorkerDisplayState.DEAD, WorkerDisplayState.STALE):
                part.append(f" ({_worker_names([worker for worker in cells if worker.state is state], now_s)})")
            parts.append(part)
    text.append_text(Text(", ").join(parts))
    working = [worker for worker in cells if not worker.state.is_over and worker.cpu_percent is not None]
    if len(working) > 1:
        busiest = max(working, key=lambda worker: worker.cpu_percent or 0.0)
        more = Text(f"; busiest {short_worker(busiest.worker_id)} {busiest.cpu_percent:.0f} % CPU", style="dim")
        if text.cell_len + more.cell_len <= width:
            text.append_text(more)
    return text


def _worker_names(cells: Sequence[WorkerLine], now_s: float) -> str:
    shown = ", ".join(f"{short_worker(worker.worker_id)} {_heartbeat_age(worker, now_s)}" for worker in cells[:3])
    return shown if len(cells) <= 3 else f"{shown}, …"


def _worker_line(worker: WorkerLine, width: int, now_s: float) -> Text:
    mark, style = _WORKER_MARKS[worker.state]
    text = Text.assemble("   ", (mark, style), f" {cell(one_line(worker.worker_id, 40), 11)} ")
    text.append(cell(worker.state.value, 9), style=style if worker.state in _TROUBLE else "")
    cpu, over = worker.cpu_percent, "dim" if worker.state.is_over else ""  # then it is the last reported value
    busy = cpu is not None and cpu >= CPU_WARN_PERCENT
    text.append(f" {worker.open:>4}/{worker.target:<4} open {worker.busy:>4} busy  CPU ", style=over)
    text.append(f"{f'{cpu:.0f} %' if cpu is not None else NOTHING:>6}", style="yellow" if busy and not over else over)
    return _said(text.append(" "), worker, now_s)


def _said(text: Text, worker: WorkerLine, now_s: float) -> Text:
    """The age of its last heartbeat, and the last error of a worker that is not alive."""
    quiet = worker.heard_s is not None and now_s - worker.heard_s > LATE_HEARTBEAT_S and not worker.state.is_over
    beat = " no heartbeat yet" if worker.heard_s is None else f" beat {_heartbeat_age(worker, now_s)} ago"
    text.append(beat, style="yellow" if quiet else "dim")
    if worker.said and worker.state in _TROUBLE:
        text.append(f"  {one_line(worker.said)}", style="red")
    return text


def _worker_grid(cells: Sequence[WorkerLine], width: int, now_s: float) -> list[Text]:
    """A mark for each worker, trouble with its name first."""
    if len(cells) <= 40:
        items = [_worker_mark(worker, now_s) for worker in cells]
        return flow(items, width, indent=LABEL)
    marks = Text()
    for worker in cells:
        marks.append(*_WORKER_MARKS[worker.state])
    row = max(10, width - LABEL - 1)
    return [Text.assemble(" " * LABEL, marks[start : start + row]) for start in range(0, len(cells), row)]


def _worker_mark(worker: WorkerLine, now_s: float) -> Text:
    mark, style = _WORKER_MARKS[worker.state]
    text = Text.assemble((mark, style), f" {short_worker(worker.worker_id)} {worker.open}c")
    if worker.cpu_percent is not None:
        text.append(f" {worker.cpu_percent:.0f}%", style="yellow" if worker.cpu_percent >= CPU_WARN_PERCENT else "dim")
    if worker.heard_s is not None and now_s - worker.heard_s > LATE_HEARTBEAT_S and not worker.state.is_over:
        text.append(f" {_heartbeat_age(worker, now_s)}", style="yellow")
    return text


def _heartbeat_age(worker: WorkerLine, now_s: float) -> str:
    return "never" if worker.heard_s is None else f"{max(0.0, now_s - worker.heard_s):.0f} s"
