"""The parts of the screen. Each function draws a part in a given width and with a maximum number of lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.text import Text

from loadgen.metrics.window import ALL_STATEMENTS
from loadgen.model.run import RunStatus
from loadgen.results.run_snapshot import WorkerDisplayState
from loadgen.rules.client_health import CPU_INVALID_PERCENT, CPU_WARN_PERCENT
from loadgen.tui.draw import (
    LABEL,
    NOTHING,
    REASON_MAX,
    Columns,
    bar,
    cell,
    chart,
    clock,
    count,
    flow,
    label,
    ms,
    narrowed,
    one_line,
    percent,
    rate,
    short_worker,
    spread,
    time_of,
    whole,
    wrapped,
)
from loadgen.tui.history import StatementSecond
from loadgen.tui.screen_state import (
    ErrorLine,
    FindMaxStatus,
    FindMaxStepLine,
    LogEntry,
    ScreenState,
    StatementLine,
    WindowFigures,
    WorkerLine,
)
from loadgen.units import counted
from loadgen.values import dataclass

SPARK_MIN, SPARK_MAX = 15, 60  # columns of a sparkline, one per second
SPARK_LABEL = 14  # columns of the number behind a sparkline

_NUMBERS = 9
_STATEMENT_COLUMNS = (("qps", 8), ("p50", _NUMBERS), ("p95", _NUMBERS), ("p99", _NUMBERS), ("ok", 8), ("failed", 8))
_CUT_OFF = ("cut off", 8)  # shown if there are any


def header(view: ScreenState, width: int, now_s: float) -> list[Text]:
    """Scenario, run, target, and progress. Old data are marked as old."""
    name, run_id, place = one_line(view.scenario, 40), one_line(view.run_id or "", 40), f"{one_line(view.place, 60)} "
    if run_id and cell_len(f" loadgen  {name}  {run_id}  {place}") > width:
        place = ""  # a part without room is left out as a whole
    if run_id and cell_len(f" loadgen  {name}  {run_id} ") > width:
        name = ""  # the run id contains the beginning of the name
    title = Text.assemble((" loadgen ", "bold reverse"), " ", (name, "bold"), "  " if name and run_id else "", run_id)
    return [spread(title, Text(place, style="dim"), width), _phase(view, width, now_s)]


def _phase(view: ScreenState, width: int, now_s: float) -> Text:
    old_s = view.old_s(now_s)
    right = Text("") if old_s is None else Text(f" no update for {old_s:.0f} s ", style="bold black on yellow")
    title = view.phase.value if view.phase is not None and view.status else ""
    if view.status and view.status != "RUNNING":
        title = one_line(view.status, 20)
    if view.stopping:
        title = RunStatus.STOPPING.value
    left = Text.assemble(" ", (f"{title} " if title else "", "bold"))
    span = _countdown(view, now_s)
    doing = Text(f"{', ' if span else ''}{one_line(view.doing)}" if view.doing else "")
    fraction = _fraction(view, now_s)
    if fraction is None:
        return spread(Text.assemble(left, span, doing), right, width)
    room = width - left.cell_len - span.cell_len - doing.cell_len - right.cell_len - 3
    return spread(Text.assemble(left, bar(fraction, min(max(room, 5), 50)), "  ", span, doing), right, width)


def _fraction(view: ScreenState, now_s: float) -> float | None:
    if view.filling is not None and view.filling.rows:
        return view.filling.rows_there / view.filling.rows
    if view.since_s is None or view.until_s is None:
        return None
    return (now_s - view.since_s) / max(view.until_s - view.since_s, 1e-3)


def _countdown(view: ScreenState, now_s: float) -> Text:
    """Elapsed and remaining time, from the local clock; after the planned end, the time since then."""
    if view.filling is not None:
        filling = view.filling
        return Text(f"{one_line(filling.table, 40)} {filling.rows_there:,} of {counted(filling.rows, 'row')}")
    if view.since_s is None:
        return Text("")
    passed_s = max(0.0, now_s - view.since_s)
    if view.until_s is None:
        return Text(f"{clock(passed_s)}")
    whole_s, over_s = view.until_s - view.since_s, now_s - view.until_s
    text = Text(f"{clock(min(passed_s, whole_s))} of {clock(whole_s)}")
    left = clock(min(-over_s, whole_s) + 0.999)
    text.append(f", over by {over_s:.0f} s: workers finish" if over_s >= 1.0 else f", {left} left")
    return text


def load(view: ScreenState, width: int, limit: int) -> list[Text]:
    """Planned and delivered load."""
    offered = view.offered
    text = label("load")
    full = offered.open >= offered.target
    text.append(f"{offered.open}", style="bold" if full else "bold yellow")
    text.append(f" of {counted(offered.target, 'connection')}")
    counts = ((offered.lost, "lost"), (offered.refused, "refused"))
    busy, paced = Text(f", {offered.busy} busy"), Text("")
    failures = Text("".join(f", {number:,} {word}" for number, word in counts if number), style="yellow")
    if offered.rate_per_s is not None:
        delivered = (view.recent.qps if view.recent is not None else None) or 0.0
        paced = Text(f", {rate(delivered)} of {rate(offered.rate_per_s)}/s")
    cpu_percent = view.client_cpu_percent
    client = Text("") if cpu_percent is None else _client(cpu_percent)
    room = width - text.cell_len - client.cell_len - 2
    shown: list[Text] = []
    for part in (failures, paced, busy):  # the most important first
        if part.cell_len <= room:
            room -= part.cell_len
            shown.append(part)
    return [spread(Text.assemble(text, *(part for part in (paced, busy, failures) if part in shown)), client, width)]


def _client(cpu_percent: float) -> Text:
    """The CPU load of the client, which decides whether the numbers are valid."""
    if cpu_percent >= CPU_INVALID_PERCENT:
        return Text(f"client CPU {cpu_percent:.0f} % ✗ too busy ", style="bold red")
    if cpu_percent >= CPU_WARN_PERCENT:
        return Text(f"client CPU {cpu_percent:.0f} % ! busy ", style="yellow")
    return Text(f"client CPU {cpu_percent:.0f} % ", style="dim")


def errors(view: ScreenState, width: int, limit: int) -> list[Text]:
    """The number of failed statements of the measurement, and the most frequent kinds of errors."""
    text = label("errors")
    if view.window is None:
        return [text.append(NOTHING)]
    failed, tried = (view.failed, view.tried) if view.tried else _of_window(view.window)
    text.append(f"{failed:,} of {tried:,}", style="bold red" if failed else "")
    if tried:
        text.append(f" ({percent(failed / tried)})")
    if view.window.skipped:
        text.append(f", {view.window.skipped:,} skipped", style="yellow")
    examples = [_error(group, width) for group in view.errors]
    shown = whole(examples, limit - 1)
    if view.errors and not shown:
        text.append(f"  {error_name(view.errors[0])}", style="red")
    hidden = len(examples) - max(len(shown), 1)
    if hidden > 0:
        text.append(f"; {counted(hidden, 'more kind')}: press e", style="dim")
    return [text, *(line for example in shown for line in example)]


def error_lines(view: ScreenState, width: int, kinds: int) -> int:
    """The number of lines that the errors need with this number of examples."""
    return 1 + sum(len(_error(group, width)) for group in view.errors[:kinds])


def _error(group: ErrorLine, width: int) -> list[Text]:
    example = Text.assemble(" " * LABEL, (f"{error_name(group)} ", "red"), one_line(group.example))
    return wrapped(example, width, indent=LABEL + 2)


def _of_window(window: WindowFigures) -> tuple[int, int]:
    return window.failed, window.failed + window.succeeded


def error_name(group: ErrorLine) -> str:
    statement = "" if group.statement is None else f"{one_line(group.statement, 60)}: "
    code = "" if group.code is None else f" {group.code}"
    return f"{group.count:,} × {statement}{one_line(group.category, 30)}{code}"


Spark = tuple[str, int, Callable[[StatementSecond], float | None], Callable[[float], str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StatementTable:
    title: str
    name_width: int
    columns: Columns
    sparks: list[Spark]

    def has_room(self, row: StatementLine) -> bool:
        """Whether the name of a statement fits before its numbers."""
        return cell_len(_statement_name(row)) <= self.name_width


def statements(view: ScreenState, width: int, limit: int) -> list[Text]:
    """One line per statement with the figures of the current window, and sparklines if there is room. A name that does
    not fit stands on the line above, if there is room for all names."""
    if view.window is None:
        return [label("statement").append(NOTHING)]
    rows, table = view.window.statements, _statement_table(view, view.window, width)
    head = Text(" " + cell(table.title, table.name_width), style="dim")
    for heading, size in table.columns:
        head.append(cell(heading, size, right=True))
    for heading, size, _, _ in table.sparks:
        head.append(f"   {cell(f'{heading}, last {size} s', size + SPARK_LABEL)}")
    room, all_named = limit - 1, statement_lines(view, width) <= limit
    shown = rows if len(rows) <= room else rows[: max(room - 1, 0)]
    lines = [head]
    for row in shown:
        name = _statement_name(row)
        if all_named and not table.has_room(row):
            lines.append(Text(f" {name}"))
            name = ""
        line = Text(" " + cell(name, table.name_width))
        for value, (title, size) in zip(_statement_values(row), table.columns, strict=False):
            line.append(cell(value, size, right=True), style="red" if title == "failed" and row.failed else "")
        for _, size, value_of, written in table.sparks:
            line = Text.assemble(line, "   ", _spark(view, row.name, size, value_of, written))
        lines.append(line)
    if len(shown) < len(rows) and room > 0:
        lines.append(Text(f" … and {len(rows) - len(shown)} more", style="dim"))
    return lines


def statement_lines(view: ScreenState, width: int) -> int:
    """The number of lines with all names whole."""
    if view.window is None:
        return 1
    table = _statement_table(view, view.window, width)
    return 1 + sum(1 if table.has_room(row) else 2 for row in view.window.statements)


def _statement_table(view: ScreenState, window: WindowFigures, width: int) -> _StatementTable:
    rows = window.statements
    columns: Columns = _STATEMENT_COLUMNS
    if any(row.cut_off for row in rows):
        columns = (*columns, _CUT_OFF)
    numbers = sum(size for _, size in columns)
    title = f"statement, {one_line(window.name, 40)}"
    widest = max(cell_len(text) for text in (title, *map(_statement_name, rows)))
    if widest + 1 > width - numbers - 2:  # a name would be cut, so the columns become as narrow as their content
        columns = narrowed(columns, [_statement_values(row) for row in rows])
        numbers = sum(size for _, size in columns)
    if cell_len(title) + 1 > width - numbers - 2:
        title = one_line(window.name, 40)
    name_width = max(10, min(widest + 1, width - numbers - 2, 60))
    has_statements = any(second.statements and second.statements[0].name != ALL_STATEMENTS for second in view.history)
    sparks = _sparks(width - numbers - name_width - 2) if has_statements else []
    if not sparks:
        name_width = max(10, min(width - numbers - 2, 60))
    return _StatementTable(title=title, name_width=name_width, columns=columns, sparks=sparks)


def _sparks(room: int) -> list[Spark]:
    """The sparklines of a statement: throughput, and p95 if there is room for both."""
    size = min(room // 2 - 3 - SPARK_LABEL, SPARK_MAX)
    both = size >= SPARK_MIN
    size = size if both else min(room - 3 - SPARK_LABEL, SPARK_MAX)
    if size < SPARK_MIN:
        return []
    throughput: Spark = ("qps", size, lambda second: second.qps, lambda value: f"{rate(value)}/s")
    p95: Spark = ("p95", size, lambda second: second.p95_ms, lambda value: f"{ms(value)} ms")
    return [throughput, p95] if both else [throughput]


def _spark(
    view: ScreenState,
    name: str,
    size: int,
    value_of: Callable[[StatementSecond], float | None],
    written: Callable[[float], str],
) -> Text:
    """A sparkline of the last seconds, from 0 to the number behind it."""
    newest_s = view.history[-1].at_s if view.history else 0
    values: list[float | None] = [None] * size
    for second in view.history:
        place = second.at_s - newest_s + size - 1
        own = next((one for one in second.statements if one.name == name), None)
        if place >= 0 and own is not None and second.qps is not None:
            values[place] = value_of(own)
    most = max((value for value in values if value is not None), default=None)
    bars = chart(values, 1, style=lambda _: "cyan")[0]
    return Text.assemble(bars, (cell("" if most is None else f" max {written(most)}", SPARK_LABEL), "dim"))


def _statement_name(row: StatementLine) -> str:
    return "all statements" if row.name == ALL_STATEMENTS else one_line(row.name)


def _statement_values(row: StatementLine) -> list[str]:
    counts = [count(number) for number in (row.succeeded, row.failed, row.cut_off)]
    return [rate(row.qps), *map(time_of, (row.p50, row.p95, row.p99)), *counts]


def warehouse(view: ScreenState, width: int, limit: int) -> list[Text]:
    seen = view.warehouse
    if seen is None:
        return []
    text = label("warehouse")
    text.append(f"{one_line(seen.name, 30)}{f' {one_line(seen.size, 20)}' if seen.size else ''}: ")
    text.append(f"{_known(seen.running)} running, ")
    text.append(f"{_known(seen.queue)} queued", style="bold yellow" if seen.queue else "")
    text.append(", ? clusters" if seen.clusters is None else f", {counted(seen.clusters, 'cluster')}")
    text.append(f"  at {seen.polled_at:%H:%M:%S}", style="dim")
    room = min(len(seen.queued), width - text.cell_len - 12)
    if any(seen.queued) and room > 4:
        text.append("  queue ", style="dim")
        text = Text.assemble(text, chart(seen.queued[-room:], 1, style=lambda _: "yellow")[0])
    return [text]


def _known(number: int | None) -> str:
    return "?" if number is None else f"{number}"


def warnings(view: ScreenState, width: int, limit: int) -> list[Text]:
    texts = [
        wrapped(Text.assemble((f" ! {one_line(warning)}", "yellow")), width, indent=3) for warning in view.warnings
    ]
    shown = whole(texts, limit)
    if len(shown) < len(texts):
        shown = whole(texts, limit - 1) or [text[: limit - 1] for text in texts[:1]]
    more = len(texts) - len(shown)
    return [*(line for text in shown for line in text), *([Text(f" ! and {more} more")] if more else [])][:limit]


def warning_lines(view: ScreenState, width: int) -> int:
    return len(warnings(view, width, 1_000))


def log(view: ScreenState, width: int, limit: int) -> list[Text]:
    """The last entries, each complete. Only the newest is cut if it does not fit alone."""
    texts = [_entry(line, width) for line in reversed(view.log[-limit:])]
    shown = whole(texts, limit) or [text[:limit] for text in texts[:1]]
    return [line for text in reversed(shown) for line in text]


def log_lines(view: ScreenState, width: int, entries: int) -> int:
    return sum(len(_entry(line, width)) for line in view.log[-entries:])


def _entry(line: LogEntry, width: int) -> list[Text]:
    moment, style = (f" {line.moment:%H:%M:%S} ", "dim"), "yellow" if line.bad else ""
    return wrapped(Text.assemble(moment, (one_line(line.text, REASON_MAX), style)), width, indent=10)


# --- A search for the maximum: its current state, and the steps it has judged ----------------------------------------

STEP_MAX = 12  # lines of one step
_FIND_MAX_STAGES = {
    "climb": "climbing",
    "confirm": "confirming the best",
    "verify": "confirming that it fails",
    "refine": "bisecting",
    "repeat": "measuring again",
}


def find_max(view: ScreenState, width: int, limit: int) -> list[Text]:
    search = view.find_max
    if search is None:
        return []
    lines = [_find_max_head(search, view)]
    room = limit - 1
    if room > 0 and (where := _find_max_position(search)) is not None:
        room -= 1
        lines.append(where)
    if room > 0 and search.steps:
        steps = [_step_lines(step, width) for step in reversed(search.steps)]
        shown = whole(steps, room) or [_step_lines(search.steps[-1], width, most=room)]
        lines += [line for step in reversed(shown) for line in step]
    return lines


def find_max_lines(view: ScreenState, width: int, steps: int) -> int:
    """The state of a search, with its last steps."""
    return (
        0 if view.find_max is None else 2 + sum(len(_step_lines(step, width)) for step in view.find_max.steps[-steps:])
    )


def _find_max_head(search: FindMaxStatus, view: ScreenState) -> Text:
    text = label("find max")
    if search.target is None:
        return text.append("over" if search.stage == "done" else f"step {search.step} is about to begin", style="bold")
    text.append(f"step {search.step}: {counted(search.target, 'connection')}", style="bold")
    window = view.window
    if window is not None and window.name == f"step {search.step}":
        text.append(f", measured {window.seconds:.0f} of {search.step_s:g} s")
        if window.seconds > search.step_s:
            text.append(", undecided", style="yellow")  # it continues
    else:
        text.append(", settling")
    return text


def _find_max_position(search: FindMaxStatus) -> Text:
    best = NOTHING if search.best is None else str(search.best)
    failed = NOTHING if search.failed is None else str(search.failed)
    stage = "" if search.target is None else f"{_FIND_MAX_STAGES.get(search.stage, one_line(search.stage, 20))}: "
    text = Text(" " * LABEL + f"{stage}best {best}, failed {failed}")
    if search.next_if_held is not None:
        text.append(f"; next {search.next_if_held} if it holds")
    return text


def _step_lines(step: FindMaxStepLine, width: int, *, most: int = STEP_MAX) -> list[Text]:
    """A step in at most `most` lines, with its reason, which is below it if it does not fit."""
    mark, style = ("✓", "green") if step.held else ("✗", "bold red")
    if step.outcome == "CLIENT_LIMIT":
        mark, style = "?", "yellow"
    text = Text.assemble(
        " " * LABEL,
        (mark, style),
        f"{step.target:>6}  ",
        (cell(one_line(step.outcome, 15), 15), "" if step.held else style.removeprefix("bold ")),
    )
    text.append(f"{NOTHING if step.qps is None else rate(step.qps):>8}/s  p95 {ms(step.p95_ms):>7} ms")
    reason = Text(one_line(step.reason, REASON_MAX), style="dim")
    if text.cell_len + 2 + reason.cell_len <= width:
        return [Text.assemble(text, "  ", reason)]
    below = wrapped(Text.assemble(" " * (LABEL + 2), reason), width, indent=LABEL + 2, most=most - 1)
    return [text, *below][:most]


# --- workers: a line each while there is room, else a count by state and a mark for each -----------------------------

LATE_HEARTBEAT_S = 3.0  # heartbeats come every second; an older one is coloured

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
        return [_worker_summary(cells, width, now_s), *(_worker_line(worker, now_s) for worker in cells)]
    lines = [_worker_summary(cells, width, now_s)]
    if limit > 1:
        lines += _worker_grid(cells, width, now_s)[: limit - 1]
    return lines


def worker_lines(view: ScreenState, width: int, now_s: float) -> int:
    """The number of lines: one per worker up to eight workers, then some lines of marks."""
    if len(view.workers) == 1:
        return 1
    return 1 + (len(view.workers) if len(view.workers) <= 8 else min(6, len(_worker_grid(view.workers, width, now_s))))


def _only_worker(worker: WorkerLine, now_s: float) -> Text:
    """The line of a single worker."""
    mark, style = _WORKER_MARKS[worker.state]
    trouble = style if worker.state in _TROUBLE else ""
    text = Text.assemble(label("workers"), (mark, style), f" {one_line(worker.worker_id, 20)} ")
    text.append(worker.state.value, style=trouble)
    cpu, over = worker.cpu_percent, "dim" if worker.state.is_over else ""
    text.append(f", {worker.open} of {worker.target} open, {worker.busy} busy", style=over)
    if cpu is not None:
        text.append(f", CPU {cpu:.0f} %", style="yellow" if cpu >= CPU_WARN_PERCENT and not over else over)
    return _with_heartbeat(text.append(","), worker, now_s)


def _worker_summary(cells: Sequence[WorkerLine], width: int, now_s: float) -> Text:
    """The number of workers in each state; lost and stale ones are named."""
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


def _worker_line(worker: WorkerLine, now_s: float) -> Text:
    mark, style = _WORKER_MARKS[worker.state]
    text = Text.assemble("   ", (mark, style), f" {cell(one_line(worker.worker_id, 40), 11)} ")
    text.append(cell(worker.state.value, 9), style=style if worker.state in _TROUBLE else "")
    cpu, over = (
        worker.cpu_percent,
        "dim" if worker.state.is_over else "",
    )  # for an ended worker, the last reported value
    busy = cpu is not None and cpu >= CPU_WARN_PERCENT
    text.append(f" {worker.open:>4}/{worker.target:<4} open {worker.busy:>4} busy  CPU ", style=over)
    text.append(f"{f'{cpu:.0f} %' if cpu is not None else NOTHING:>6}", style="yellow" if busy and not over else over)
    return _with_heartbeat(text.append(" "), worker, now_s)


def _with_heartbeat(text: Text, worker: WorkerLine, now_s: float) -> Text:
    """Append the age of the last heartbeat, and the last error of a worker in trouble."""
    quiet = worker.heard_s is not None and now_s - worker.heard_s > LATE_HEARTBEAT_S and not worker.state.is_over
    beat = " no heartbeat yet" if worker.heard_s is None else f" beat {_heartbeat_age(worker, now_s)} ago"
    text.append(beat, style="yellow" if quiet else "dim")
    if worker.said and worker.state in _TROUBLE:
        text.append(f"  {one_line(worker.said)}", style="red")
    return text


def _worker_grid(cells: Sequence[WorkerLine], width: int, now_s: float) -> list[Text]:
    """A mark for each worker."""
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
