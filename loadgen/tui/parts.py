"""The parts of the screen: each draws its lines of a view, in a given width and at most so many lines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from loadgen.model.run import Phase
from loadgen.report.client_health import CPU_INVALID_PERCENT, CPU_WARN_PERCENT
from loadgen.report.verdict import Checked
from loadgen.tui.draw import LABEL, bar, cell, chart, flow, label, spread
from loadgen.tui.history import Second
from loadgen.tui.view import RunView, StatementLine, Window
from loadgen.tui.words import NOTHING, clock, count, measured, ms, one_line, percent, rate

FIGURES = 22  # columns of the numbers beside a chart
CHART_MAX = 120  # columns: two minutes
GAP_S = 3.0  # a longer silence is a gap in the chart; what came after it stands for its own second only

_NUMBERS = 8
_STATEMENT_COLUMNS = (("qps", 9), ("p50", _NUMBERS), ("p95", _NUMBERS), ("p99", _NUMBERS), ("errors", 8), ("done", 9))


def header(view: RunView, width: int, now_s: float) -> list[Text]:
    """What runs where, and how far it is. Never pretends that old news are new."""
    name = Text.assemble((" loadgen ", "bold reverse"), " ", (one_line(view.scenario, 40), "bold"))
    if view.run_id:
        name.append(f"  {one_line(view.run_id, 40)}")
    return [spread(name, Text(f"{one_line(view.place, 60)} ", style="dim"), width), _phase(view, width, now_s)]


def _phase(view: RunView, width: int, now_s: float) -> Text:
    old_s = view.old_s(now_s)
    right = Text("") if old_s is None else Text(f" no news for {old_s:.0f} s ", style="bold black on yellow")
    title = view.phase.value if view.phase is not None and view.status else ""
    if view.status and view.status != "RUNNING":
        title = one_line(view.status, 20)
    left = Text.assemble(" ", (f"{title} " if title else "", "bold"))
    span = _countdown(view, now_s)
    doing = Text(f" {one_line(view.doing)}" if view.doing else "")
    fraction = _fraction(view, now_s)
    if fraction is None:
        return spread(Text.assemble(left, span, doing), right, width)
    room = width - left.cell_len - span.cell_len - doing.cell_len - right.cell_len - 3
    return spread(Text.assemble(left, bar(fraction, min(max(room, 5), 50)), "  ", span, doing), right, width)


def _fraction(view: RunView, now_s: float) -> float | None:
    if view.filling is not None and view.filling.rows:
        return view.filling.rows_there / view.filling.rows
    if view.since_s is None or view.until_s is None:
        return None
    return (now_s - view.since_s) / max(view.until_s - view.since_s, 1e-3)


def _countdown(view: RunView, now_s: float) -> Text:
    """From the local clock: it never jumps, and when time is up it says for how long."""
    if view.filling is not None:
        filling = view.filling
        return Text(f"{one_line(filling.table, 40)} {filling.rows_there:,} of {filling.rows:,} rows")
    if view.since_s is None:
        return Text("")
    passed_s = max(0.0, now_s - view.since_s)
    if view.until_s is None:
        return Text(f"{clock(passed_s)}")
    text = Text(f"{clock(min(passed_s, view.until_s - view.since_s))} of {clock(view.until_s - view.since_s)}")
    over_s = now_s - view.until_s
    text.append(f", over by {over_s:.0f} s: workers finish" if over_s >= 1.0 else f", {clock(-over_s + 0.999)} left")
    return text


def load(view: RunView, width: int, limit: int) -> list[Text]:
    """What is wanted and what is delivered."""
    offered = view.offered
    text = label("load")
    full = offered.open >= offered.target
    text.append(f"{offered.open}", style="bold" if full else "bold yellow")
    text.append(f" of {offered.target} connections, {offered.busy} busy")
    if offered.rate_per_s is not None:
        delivered = view.recent.qps if view.recent is not None else 0.0
        text.append(f", {rate(delivered)} of {rate(offered.rate_per_s)}/s")
    cpu_percent = view.client_cpu_percent
    return [text if cpu_percent is None else spread(text, _client(cpu_percent), width)]


def _client(cpu_percent: float) -> Text:
    """The generator's own health decides whether the numbers may be trusted."""
    if cpu_percent >= CPU_INVALID_PERCENT:
        return Text(f"client CPU {cpu_percent:.0f} % ✗ too busy ", style="bold red")
    if cpu_percent >= CPU_WARN_PERCENT:
        return Text(f"client CPU {cpu_percent:.0f} % ! busy ", style="yellow")
    return Text(f"client CPU {cpu_percent:.0f} % ", style="dim")


def throughput(view: RunView, width: int, limit: int, now_s: float) -> list[Text]:
    recent, window, tail = view.recent, view.window, _tail(view, width)
    peak = max((second.qps for second in tail if second is not None), default=None)
    figures = [
        f"{NOTHING if recent is None else rate(recent.qps)}/s",
        f"mean {rate(window.qps) if window is not None and window.seconds else NOTHING}/s",
        f"peak {NOTHING if peak is None else rate(peak)}/s",
    ]
    figures = [figures[0], " ".join(figures[1:])] if limit == 2 else _padded(figures, limit)
    values = [None if second is None else second.qps for second in tail]
    return _charted("QPS", "cyan", figures, values, view, width, now_s)


def latency(view: RunView, width: int, limit: int, now_s: float) -> list[Text]:
    """Percentiles of the last seconds; the chart is p95."""
    recent = view.recent
    times = [None] * 4 if recent is None else [recent.p50_ms, recent.p95_ms, recent.p99_ms, recent.max_ms]
    p50, p95, p99, most = (f"{name} {ms(time)}" for name, time in zip(("p50", "p95", "p99", "max"), times, strict=True))
    if limit == 1:
        figures = [f"{p50} {p95} {p99}"]
    elif limit == 2:
        figures = [f"{p50} {p95}", f"{p99} {most}"]
    else:
        figures = _padded([p50, p95, p99, most], limit)
    values = [None if second is None else second.p95_ms for second in _tail(view, width)]
    return _charted("latency ms", "magenta", figures, values, view, width, now_s)


def _padded(figures: list[str], height: int) -> list[str]:
    return [*figures, *[""] * height][:height]


def _charted(
    title: str,
    colour: str,
    figures: Sequence[str],
    values: Sequence[float | None],
    view: RunView,
    width: int,
    now_s: float,
) -> list[Text]:
    """Numbers on the left, a chart of as many lines on the right; dim where it is warm-up, and when it is old."""
    old = view.old_s(now_s) is not None
    figures_width = max(FIGURES, max(map(len, figures)) + 1)
    shown = list(zip(values, _tail(view, width), strict=True))[figures_width - FIGURES :]  # costs the oldest seconds

    def style(place: int) -> str:
        second = shown[place][1]
        return "dim" if old or (second is not None and second.phase is Phase.WARMUP) else colour

    drawn = chart([value for value, _ in shown], len(figures), style=style)
    lines = []
    for number, figure in enumerate(figures):
        line = label(title if number == 0 else "")
        line.append(cell(figure, figures_width), style="dim" if old else "bold" if number == 0 else "")
        lines.append(Text.assemble(line, drawn[number]))
    return lines


def _tail(view: RunView, width: int) -> tuple[Second | None, ...]:
    """As many seconds as fit, the newest news at the right edge; None: nothing was heard in that one."""
    room = max(0, min(CHART_MAX, width - LABEL - FIGURES - 1))
    slots: list[Second | None] = [None] * room
    for second in view.history:
        back = round(view.seen_s - second.at_s)
        covered = round(view.seen_s - second.at_s + second.span_s) - back if second.span_s <= GAP_S else 1
        for place in range(back, back + max(covered, 1)):
            if 0 <= place < room:
                slots[room - 1 - place] = second
    return tuple(slots)


def errors(view: RunView, width: int, limit: int) -> list[Text]:
    """How many of the measurement's statements failed, and the most frequent ways to fail."""
    text = label("errors")
    if view.window is None:
        return [text.append(NOTHING)]
    failed, tried = (view.failed, view.tried) if view.tried else _of_window(view.window)
    text.append(f"{failed:,} of {tried:,}", style="bold red" if failed else "")
    if tried:
        text.append(f" ({percent(failed / tried)})")
    if view.window.skipped:
        text.append(f", {view.window.skipped:,} never sent", style="yellow")
    lines = [text]
    if view.errors and limit == 1:
        text.append(f"  {_error_name(view)}", style="red")
    for group in view.errors[: limit - 1]:
        code = "" if group.code is None else f" {group.code}"
        kind = f"{group.count:,} × {one_line(group.category, 30)}{code} "
        example = Text.assemble(" " * LABEL, (kind, "red"))
        example.append(one_line(group.example))
        lines.append(example)
    return lines


def _of_window(window: Window) -> tuple[int, int]:
    return window.failed, window.failed + window.succeeded


def _error_name(view: RunView) -> str:
    group = view.errors[0]
    return f"{group.count:,} × {one_line(group.category, 30)}{'' if group.code is None else f' {group.code}'}"


def statements(view: RunView, width: int, limit: int) -> list[Text]:
    """One line per statement, of the window the load is in."""
    window = view.window
    if window is None:
        return [label("statement").append(NOTHING)]
    columns = sum(size for _, size in _STATEMENT_COLUMNS)
    name_width = max(10, min(width - columns - 2, 60))
    head = Text(" " + cell(f"statement, {one_line(window.name, 40)}", name_width), style="dim")
    for title, size in _STATEMENT_COLUMNS:
        head.append(cell(title, size, right=True))
    rows = list(window.statements)
    room = limit - 1
    shown = rows if len(rows) <= room else rows[: max(room - 1, 0)]
    lines = [head, *(_statement(row, name_width) for row in shown)]
    if len(shown) < len(rows) and room > 0:
        lines.append(Text(f" … and {len(rows) - len(shown)} more", style="dim"))
    return lines


def _statement(row: StatementLine, name_width: int) -> Text:
    line = Text(" " + cell("all statements" if row.name == "*" else one_line(row.name), name_width))
    times = [ms(value, at_least=row.at_least) for value in (row.p50_ms, row.p95_ms, row.p99_ms)]
    values = [rate(row.qps), *times, count(row.failed), count(row.succeeded)]
    for value, (title, size) in zip(values, _STATEMENT_COLUMNS, strict=True):
        line.append(cell(value, size, right=True), style="red" if title == "errors" and row.failed else "")
    return line


def thresholds(view: RunView, width: int, limit: int) -> list[Text]:
    """A lamp for each: mark, word and number, so that colour alone says nothing."""
    lines = flow([_lamp(checked) for checked in view.checked], width, indent=LABEL)
    if not lines:
        return []
    lines[0] = Text.assemble(label("thresholds"), lines[0][LABEL:])
    return lines[:limit]


def _lamp(checked: Checked) -> Text:
    check = one_line(checked.check, 60)
    if checked.value is None:
        return Text(f"○ {check} not yet", style="dim")
    value = measured(checked.check, checked.value)
    if checked.passed:
        return Text.assemble(("✓ ", "green"), check, (f" {value}", "dim"))
    return Text.assemble(("✗ ", "bold red"), (check, "red"), (f" MISSED: {value}", "bold red"))


def warehouse(view: RunView, width: int, limit: int) -> list[Text]:
    seen = view.warehouse
    if seen is None:
        return []
    text = label("warehouse")
    text.append(f"{one_line(seen.name, 30)}{f' {one_line(seen.size, 20)}' if seen.size else ''}: ")
    text.append(f"{_known(seen.running)} running, ")
    text.append(f"{_known(seen.queue)} queued", style="bold yellow" if seen.queue else "")
    text.append(f", {_known(seen.clusters)} {'cluster' if seen.clusters == 1 else 'clusters'}")
    text.append(f"  at {seen.polled_at:%H:%M:%S}", style="dim")
    room = min(len(seen.queued), width - text.cell_len - 12)
    if any(seen.queued) and room > 4:
        text.append("  queue ", style="dim")
        text = Text.assemble(text, chart(seen.queued[-room:], 1, style=lambda _: "yellow")[0])
    return [text]


def _known(number: int | None) -> str:
    return "?" if number is None else f"{number}"


def warnings(view: RunView, width: int, limit: int) -> list[Text]:
    lines = [Text(f" ! {one_line(warning)}", style="yellow") for warning in view.warnings]
    return lines if len(lines) <= limit else [*lines[: limit - 1], Text(f" ! and {len(lines) - limit + 1} more")]


def log(view: RunView, width: int, limit: int) -> list[Text]:
    """The last lines."""
    return [
        Text.assemble((f" {line.moment:%H:%M:%S} ", "dim"), (one_line(line.text, 300), "yellow" if line.bad else ""))
        for line in view.log[-limit:]
    ]


def keys(view: RunView, width: int) -> Text:
    if view.quits:
        return Text(" q leave, the run goes on   e errors   ? help", style="dim")
    return Text(" q stop the run   e errors   ? help   Ctrl-C twice: cancel what is under way", style="dim")
