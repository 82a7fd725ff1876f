"""The summary of a run as text: verdict, reasons, numbers. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadgen.log import printable
from loadgen.report import formatting
from loadgen.report.formatting import connection_failures, failure_words, login_words
from loadgen.report.run_replay import (
    NEW_ERROR_HEADS,
    NEW_ERRORS_NOTE,
    coverage_text,
    has_rows,
    late_text,
    new_error_cells,
    rows_text,
)
from loadgen.rules.validity import percent
from loadgen.units import counted
from loadgen.values import dataclass

STATEMENTS_MAX = 50
STAGES_MAX = 50
REPLAYED_MAX = 10
FAILURES_MAX = 10  # of connections
STAGE_TIMES = ("p50", "p95", "p99")
ERRORS_MAX = 10
NAME_MAX = 200  # characters of a name; where the terminal has no room, tables cut it shorter
UNLIMITED_WIDTH = 10**9  # columns where stdout is not a terminal
NAME_FULL = 30  # columns of a name that columns of times give way to
NAME_MIN = 10  # minimum columns of a name on a narrow terminal
REASON_MAX = 500


# Columns of a table of times that are left out, in this order, if the terminal is too narrow.
_GIVE_WAY = ("p999", "p90", "avg", "max")
VERDICT_COLOURS = {
    **dict.fromkeys(("passed", "better", "equivalent", "steady", "improved", "decided"), "green"),
    **dict.fromkeys(("failed", "missed", "error", "worse", "regression"), "red"),
    **dict.fromkeys(
        ("invalid", "cancelled", "inconclusive", "undecided", "suspected", "learning", "running", "unfinished"),
        "yellow",
    ),
}


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line for a terminal. `mark` is the coloured part; `indent` is the indentation of further lines if the line is
    wrapped."""

    text: str
    mark: str = ""
    colour: str | None = None
    indent: int = 2


def summary_text(summary: Mapping[str, Any], where: str | None = None) -> str:
    """Plain text without wrapping. Tables have at most 100 columns if names are short."""
    return "\n".join(line.text for line in summary_lines(summary, where))


def summary_lines(
    summary: Mapping[str, Any], where: str | None = None, *, report: str | None = None, width: int | None = None
) -> list[TextLine]:
    """Parts with a blank line between them. With `width`, only paths may be wider."""
    width = width or UNLIMITED_WIDTH
    files = [f"{name}: {path}" for name, path in (("report", report), ("files", where)) if path]
    parts: list[list[TextLine | str]] = [
        [*_verdict(summary), *_thresholds(summary)],
        [*_totals(summary), *_delivered(summary), *_connections(summary), *_sessions(summary)],
        [*_latencies(summary, width)],
        [*_stages(summary.get("stages") or (), width)],
        [*_replay(summary.get("replay"), width)],
        [*_replayed_rows(summary.get("replay"), width)],
        [*_find_max(summary)],
        [*_errors(summary["errors"])],
        [*_client(summary["client"]), *files],
    ]
    lines: list[TextLine] = []
    for part in parts:
        if part and lines:
            lines.append(TextLine(""))
        lines += (line if isinstance(line, TextLine) else TextLine(line) for line in part)
    return [piece for line in lines for piece in wrapped(line, width)]


def verdict_lines(text: str, verdict: str, width: int | None) -> list[TextLine]:
    """The lines of a text that begins with its verdict, wrapped to `width`."""
    first, *others = text.splitlines()
    lines = [TextLine(first, verdict.upper(), VERDICT_COLOURS.get(verdict))]
    lines += (TextLine(line, indent=len(line) - len(line.lstrip()) + 2) for line in others)
    return [piece for line in lines for piece in wrapped(line, width)]


def wrapped(line: TextLine, width: int | None) -> Iterator[TextLine]:
    """The line, wrapped to at most `width` columns. Words are not broken."""
    width = width or UNLIMITED_WIDTH
    pieces, rest = [], printable(line.text, UNLIMITED_WIDTH)
    while columns(rest) > width and (place := _last_gap(rest, width)):
        pieces.append(rest[:place].rstrip())
        rest = " " * line.indent + rest[place:].lstrip()
    pieces.append(rest)
    coloured = next((number for number, piece in enumerate(pieces) if line.mark in piece), None)
    for number, piece in enumerate(pieces):
        yield replace(line, text=piece, mark=line.mark if number == coloured else "")


_GAP = re.compile(r"(?<![ ≥≤]) (?!(?<=\d )(?:%|[mµn]?s|min|h|qps|pp)(?!\w))")


def _last_gap(text: str, width: int) -> int:
    """The index of the last gap within the width, else of the first gap; 0: there is none. A number and its unit stay
    together."""
    begin = len(text) - len(text.lstrip())
    gaps = [gap.start() for gap in _GAP.finditer(text, begin + 1)]
    return max((place for place in gaps if columns(text[:place]) <= width), default=gaps[0] if gaps else 0)


def _verdict(summary: Mapping[str, Any]) -> Iterator[TextLine]:
    """The verdict with its reason; for an invalid run, one line per reason."""
    verdict = str(summary["verdict"])
    word, colour = formatting.verdict_word(verdict).upper(), VERDICT_COLOURS.get(verdict)
    head = f"{word}  {printable(summary['scenario'], 80)}  run {summary['run_id']}"
    reason = "" if verdict == "invalid" else f": {printable(formatting.verdict_reason(summary), REASON_MAX)}"
    yield TextLine(head + reason, word, colour)
    for why in summary["validity"]["reasons"]:
        yield TextLine(f"  invalid: {printable(why, REASON_MAX)}", "invalid:", "yellow", indent=11)
    for warning in summary["environment"].get("warnings") or ():
        yield TextLine(f"  warning: {printable(str(warning), REASON_MAX)}", "warning:", "yellow", indent=11)


_MARKS = {
    "met": ("ok", "green"),
    "missed": ("MISS", "red"),
    "undecided": (formatting.OUTCOME_SIGNS["undecided"], "yellow"),
}


def _thresholds(summary: Mapping[str, Any]) -> Iterator[TextLine]:
    for threshold in summary["thresholds"]:
        mark, colour = _MARKS[formatting.outcome(threshold, summary)]
        text = f"{formatting.check(threshold, 80)}: {formatting.finding(threshold, summary)}"
        yield TextLine(f"  {mark:<4} {text}", mark, colour, indent=7)


def _totals(summary: Mapping[str, Any]) -> Iterator[str]:
    totals = summary["totals"]
    if not summary["measured_seconds"]:
        users = f"{counted(summary['connections'], 'connection')}, {counted(summary['workers'], 'worker')}"
        yield f"nothing was measured, {users}"
        return
    yield (
        f"{formatting.rate(totals['qps'])} qps over {formatting.seconds(summary['measured_seconds'])},"
        f" {counted(summary['connections'], 'connection')}, {counted(summary['workers'], 'worker')}"
    )
    share = f" ({formatting.percent(totals['error_rate'])})" if totals["failed"] else ""
    counts = [f"{totals['succeeded']:,} succeeded", f"{totals['failed']:,} failed{share}"]
    if not summary["lag_ms"]:  # a closed loop has no schedule, so the offered load is what was sent
        counts += [f"{totals[name]:,} {name}" for name in ("skipped", "cancelled") if totals[name]]
        yield ", ".join(counts)
        return
    offered, delivered = totals["scheduled"], totals["succeeded"] + totals["failed"]
    yield (
        f"{offered:,} offered{_per_s(offered, summary)}: {delivered:,} delivered{_per_s(delivered, summary)},"
        f" {totals['skipped']:,} skipped, {totals['cancelled']:,} cancelled"
    )
    yield ", ".join(counts)


def _delivered(summary: Mapping[str, Any]) -> Iterator[str]:
    delivered = summary.get("delivered") or {}
    if delivered.get("fraction") is None:
        return
    overload = delivered.get("overload_arrivals")
    waited = f"; {overload:,} arrivals found all connections busy" if overload else ""
    yield f"delivered load {percent(delivered['fraction'])}{waited}"


def _connections(summary: Mapping[str, Any]) -> Iterator[str]:
    """Repeated logins, refused logins and lost connections, if there were any."""
    logins = summary["client"].get("connections") or {}
    words = login_words(logins)
    if words:
        yield f"connections: {words}"
    for failure in connection_failures(logins)[-FAILURES_MAX:]:
        at = "" if failure["second"] is None else f"at {formatting.seconds(max(0.0, failure['second']))} "
        yield f"  {at}{printable(failure_words(failure), 200)}"


def _sessions(summary: Mapping[str, Any]) -> Iterator[str]:
    sessions = summary.get("sessions")
    if sessions is not None:
        yield "user sessions: " + ", ".join(f"{sessions[name]:,} {name}" for name in ("created", "expired", "current"))


def _per_s(count: int, summary: Mapping[str, Any]) -> str:
    seconds = summary["measured_seconds"]
    return f" ({formatting.rate(count / seconds)}/s)" if seconds else ""


def _latencies(summary: Mapping[str, Any], width: int) -> Iterator[TextLine | str]:
    if not summary["measured_seconds"]:
        return
    statements = summary["statements"]
    rows = {"all": summary["totals"] | {"latency_ms": summary["latency_ms"]}}
    if summary["lag_ms"]:
        rows["(lag)"] = {"latency_ms": summary["lag_ms"]}
    shown_names = list(statements)[:STATEMENTS_MAX]
    names = [*rows, *(printable(name, NAME_MAX) for name in shown_names)]
    parts = [*rows.values(), *(statements[name] for name in shown_names)]
    samples = formatting.sample_columns(parts)
    for shown in _ever_fewer_times():
        head = ("ms", *samples, "qps", *(formatting.TIMES[one] for one in shown))
        cells = [
            (
                name,
                *counts,
                formatting.rate(part.get("qps")),
                *(formatting.time_of(part["latency_ms"], one) for one in shown),
            )
            for name, part, counts in zip(names, parts, zip(*samples.values(), strict=True), strict=True)
        ]
        widths = _widths(head, cells)
        if _needed([min(widths[0], NAME_FULL), *widths[1:]], 0) <= width:
            break
    yield from _table(head, cells, width)
    if formatting.CUT_OFF in samples:
        yield formatting.CUT_OFF_NOTE
    if len(statements) > STATEMENTS_MAX:
        yield f"{counted(len(statements) - STATEMENTS_MAX, 'more statement')}: see the report"


def _replay(replay: Mapping[str, Any] | None, width: int) -> Iterator[TextLine | str]:
    """Recorded times compared with replayed times."""
    if not replay or not replay["compared"]:
        return
    head = ("recorded and replayed, ms", "recorded", "avg", "p95", "replayed", "avg", "p95", "slower by")
    cells = [
        (
            printable(one["statement"], NAME_MAX),
            *(
                cell
                for part in (one["recorded"], one["replayed"])
                for cell in (formatting.count(part["count"]), formatting.ms(part["avg"]), formatting.ms(part["p95"]))
            ),
            formatting.ms(one["slower_ms"]),
        )
        for one in replay["compared"][:REPLAYED_MAX]
    ]
    yield from _table(head, cells, width)
    if replay.get("users", 1) > 1:
        yield f"each recorded statement was due once for each of {formatting.count(replay['users'])} users"
    if replay["pseudonyms"]:
        yield "values were pseudonyms, so numbers of rows and times may differ from the recording"
    yield from (text for text in (coverage_text(replay), late_text(replay)) if text)
    cells = [
        (printable(name, NAME_MAX), *map(formatting.count, counts)) for name, *counts, _ in new_error_cells(replay)
    ]
    if cells:
        yield from _table(NEW_ERROR_HEADS[:-1], cells, width)
        yield NEW_ERRORS_NOTE


def _replayed_rows(replay: Mapping[str, Any] | None, width: int) -> Iterator[TextLine | str]:
    if not replay or not has_rows(replay):
        return
    cells = [
        (
            printable(one["statement"], NAME_MAX),
            *(rows_text(part.get("rows_avg")) for part in (one["recorded"], one["replayed"])),
        )
        for one in replay["compared"][:REPLAYED_MAX]
    ]
    yield from _table(("rows of each statement, on average", "recorded", "replayed"), cells, width)


def _stages(stages: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    if not stages:
        return
    yield from _table(
        ("stage", "load", "measured", "qps", "error rate", *STAGE_TIMES),
        [
            (
                printable(stage["name"], NAME_MAX),
                formatting.level(stage).replace("connection", "conn"),
                formatting.seconds(stage["measured_seconds"]),
                formatting.rate(stage["qps"]),
                formatting.percent(stage["error_rate"]),
                *(formatting.time_of(stage["latency_ms"], name) for name in STAGE_TIMES),
            )
            for stage in stages[:STAGES_MAX]
        ],
        width,
    )
    if len(stages) > STAGES_MAX:
        yield f"{counted(len(stages) - STAGES_MAX, 'more stage')}: see the report"


def _ever_fewer_times() -> Iterator[list[str]]:
    shown = list(formatting.TIMES)
    yield shown
    for name in _GIVE_WAY:
        shown = [one for one in shown if one != name]
        yield shown


def _find_max(summary: Mapping[str, Any]) -> Iterator[TextLine | str]:
    found = summary["find_max"]
    if not found:
        return
    level = found["max_concurrency"]
    yield f"find-max: {printable(str(found['reason']), REASON_MAX)}"
    if level is not None:
        yield (
            f"at {counted(level, 'connection')}: {formatting.rate(found['qps'])} qps,"
            f" p95 {formatting.found_p95(summary)} ms, confidence {printable(str(found['confidence']), 30)}"
        )
    steps = found["steps"]
    if not steps:
        return
    numbers = _table(
        ("step", "conns", "qps", "p95 ms", "failed"),
        [
            (
                str(step["step"]),
                formatting.count(step["target"]),
                formatting.rate(step["qps"]),
                formatting.time_of(step.get("latency_ms") or {"p95": step.get("p95_ms")}, "p95"),
                formatting.count(step["failed"]),
            )
            for step in steps
        ],
    )
    outcomes = ["outcome", *(printable(f"{step['outcome']}: {step['reason']}", REASON_MAX) for step in steps)]
    for line, outcome in zip(numbers, outcomes, strict=True):
        yield TextLine(f"{line}  {outcome}", indent=columns(line) + 2)
    yield formatting.STEPS_NOTE


def _errors(errors: Sequence[Mapping[str, Any]]) -> Iterator[TextLine | str]:
    for error in errors[:ERRORS_MAX]:
        code = "" if error["code"] is None else f" {error['code']}"
        statement = f"{printable(error['statement'], NAME_MAX)}: " if error.get("statement") else ""
        kind = f"{error['count']:,} × {statement}{error['category']}{code}"
        yield TextLine(f"  {kind}: {printable(error['example'], 120)}", kind, "red", indent=4)
    if len(errors) > ERRORS_MAX:
        yield f"  {counted(len(errors) - ERRORS_MAX, 'more kind')} of errors: see the report"


def _client(client: Mapping[str, Any]) -> Iterator[TextLine]:
    """The load of the client; empty if no worker reported it."""
    parts = []
    if client["cpu_percent_of_core"] is not None:
        parts.append(f"busiest worker used {client['cpu_percent_of_core']:.0f} % of its core")
    if client["wakeup_p99_ms"] is not None:
        mean = client.get("wakeup_mean_ms")  # unknown for older runs
        average = "" if mean is None else f", {formatting.ms(mean)} ms on average"
        parts.append(f"wake-up delay {formatting.ms(client['wakeup_p99_ms'])} ms (p99{average})")
    if client["overhead_ms"] is not None:
        parts.append(f"client overhead {formatting.ms(client['overhead_ms'])} ms (median)")
    if parts:
        saturated = "SATURATED" if client["saturated"] else ""
        yield TextLine(f"client: {', '.join(parts)}{saturated and f'; {saturated}'}", saturated, "yellow", indent=8)
    if client["wakeup_p99_ms"] is not None:
        yield TextLine(
            f"  percentiles may be up to {formatting.ms(client['wakeup_p99_ms'])} ms too high because of it", indent=4
        )


# --- tables ----------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int = UNLIMITED_WIDTH) -> list[str]:
    """A table with names on the left and numbers on the right. Columns are eight wide, so that runs can be compared
    line by line, or narrower on a narrow terminal; if it is still too wide, names are cut."""
    widths = _widths(head, rows)
    least = next((size for size in (8, 7, 6) if _needed(widths, size) <= width), 0)
    room = max(NAME_MIN, widths[0] + width - _needed(widths, least))
    if room < widths[0]:
        return _table((_cut(head[0], room), *head[1:]), [(_cut(row[0], room), *row[1:]) for row in rows], width)
    lines = []
    for cells in (head, *rows):
        name = cells[0] + " " * (widths[0] - columns(cells[0]))
        numbers = (f"{cell:>{max(size, least)}}" for cell, size in zip(cells[1:], widths[1:], strict=True))
        lines.append(" ".join((name, *numbers)))
    return lines


def _widths(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(columns, column)) for column in zip(head, *rows, strict=True)]


def _cut(text: str, width: int) -> str:
    cut = text
    while columns(cut) > width:
        cut = f"{cut.rstrip('…')[:-1].rstrip()}…"
    return cut


def _needed(widths: Sequence[int], least: int) -> int:
    return widths[0] + sum(1 + max(size, least) for size in widths[1:])


def columns(text: str) -> int:
    """The width of a text on a terminal: some characters take two columns, combining marks none."""
    return sum(
        2 if unicodedata.east_asian_width(one) in "WF" else 0 if unicodedata.category(one) in ("Mn", "Me", "Cf") else 1
        for one in text
    )


NO_BREAK_SPACE = "\u00a0"


def wrapped_text(text: str, width: int) -> str:
    """A message, wrapped between words to lines of at most `width` columns; further lines are indented. Commands in
    backticks are not broken, so that they can be copied."""
    kept = re.sub(r"`[^`\n]*`", lambda command: command[0].replace(" ", NO_BREAK_SPACE), text)
    pieces: list[str] = []
    for line in kept.split("\n"):
        indent = len(line) - len(line.lstrip(" ")) + 2
        is_long = "\t" not in line and columns(line) > width
        pieces += [one.text for one in wrapped(TextLine(line, indent=indent), width)] if is_long else [line]
    return "\n".join(pieces).replace(NO_BREAK_SPACE, " ")
