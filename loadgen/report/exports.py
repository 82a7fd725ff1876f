"""The files of a run and of an experiment: JUnit XML and Markdown of both, and intervals.csv of a run. Pure.

`RENDERERS` makes every format of a run's report. `FILES` and `EXPERIMENT_FILES` name the files in its folder.
"""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from loadgen.clock import utc_iso
from loadgen.log import printable
from loadgen.model.counts import Counts
from loadgen.model.threshold import threshold_words
from loadgen.report import formatting
from loadgen.report.experiment import (
    ANSWER_MAX,
    change_text,
    comparison_sentence,
    confidence_text,
    credits_text,
    interval_text,
    metered_cell,
    metering_text,
)
from loadgen.report.experiment_page import experiment_html
from loadgen.report.formatting import login_words, markdown
from loadgen.report.records import RunRecord, RunSecond
from loadgen.report.run_page import report_html
from loadgen.report.run_replay import NEW_ERROR_HEADS, NEW_ERRORS_NOTE, coverage_text, late_text, new_error_cells
from loadgen.report.run_text import summary_text
from loadgen.rules.validity import percent
from loadgen.units import NS_PER_MS, counted

# --- junit.xml: for a run, its validity and each threshold; for an experiment and each comparison --------------------


UNFINISHED = ("error", "cancelled")  # verdicts


def junit_xml(record: RunRecord) -> str:
    """A run that failed or was stopped is an error, and a threshold that it leaves undecided is skipped. A run that is
    INVALID, or did not meet a threshold, is a failure."""
    summary = record.summary
    suite = ElementTree.Element("testsuite", name=f"loadgen.{formatting.xml(str(summary['scenario']), 200)}")
    _properties(suite, record)
    suite.extend([_run_case(summary), _validity_case(summary)])
    suite.extend(_threshold_case(one, summary) for one in summary["thresholds"])
    return _junit_text(suite, summary["measured_seconds"], summary["started_at"])


def _properties(suite: ElementTree.Element, record: RunRecord) -> None:
    summary = record.summary
    values = {
        "run_id": summary["run_id"],
        "verdict": summary["verdict"],
        "template_id": record.template_id,
        "qps": formatting.exact(summary["totals"]["qps"]),
        **{f"latency_{name}_ms": formatting.exact(summary["latency_ms"].get(name)) for name in formatting.PERCENTILES},
    }
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=formatting.xml(str(value)))


def _run_case(summary: Mapping[str, Any]) -> ElementTree.Element:
    case = ElementTree.Element("testcase", name="the run was carried through")
    case.set("time", formatting.exact(summary["measured_seconds"]))
    if summary["verdict"] in UNFINISHED:
        _add_finding(case, "error", summary["status"], summary["exit_reason"])
    return case


def _validity_case(summary: Mapping[str, Any]) -> ElementTree.Element:
    case = ElementTree.Element("testcase", name="its numbers are valid", time="0")
    if not summary["validity"]["valid"]:
        _add_finding(case, "failure", "INVALID", "\n".join(summary["validity"]["reasons"]))
    return case


def _threshold_case(threshold: Mapping[str, Any], summary: Mapping[str, Any]) -> ElementTree.Element:
    name = threshold_words(formatting.xml(threshold["check"]), threshold.get("window_seconds"))
    case = ElementTree.Element("testcase", name=name, time="0")
    found = formatting.outcome(threshold, summary)
    if found == "undecided" and summary["verdict"] in UNFINISHED:
        _add_finding(case, "skipped", "threshold", formatting.finding(threshold, summary))
    elif found != "met":
        _add_finding(case, "failure", "threshold", formatting.finding(threshold, summary))
    return case


def experiment_junit(document: Mapping[str, Any]) -> str:
    """A test case for the experiment, and one for each comparison, which fails when it is undecided."""
    name = f"loadgen.experiment.{formatting.xml(str(document['name']), 200)}"
    suite = ElementTree.Element("testsuite", name=name)
    case = ElementTree.SubElement(suite, "testcase", name="the experiment was carried through")
    if document["verdict"] not in ("decided", "undecided"):
        _add_finding(case, "error", str(document["verdict"]), str(document["exit_reason"]))
    for one in document["comparisons"]:
        title = formatting.xml(f"{one['metric']}: {one['b']} compared with {one['a']}")
        case = ElementTree.SubElement(suite, "testcase", name=title)
        if one["decision"] == "undecided":
            _add_finding(case, "failure", "undecided", comparison_sentence(one))
    return _junit_text(suite, sum(one["seconds"] for one in document["measurements"]))


def _add_finding(case: ElementTree.Element, kind: str, category: str, text: str) -> None:
    message = printable(text, formatting.LINE_MAX)
    finding = ElementTree.SubElement(case, kind, type=formatting.xml(category), message=message)
    finding.text = formatting.xml(text, formatting.BLOCK_MAX)


def _junit_text(suite: ElementTree.Element, seconds: float, started_at: str | None = None) -> str:
    """The file with this suite. Test cases are counted, and get the name of the suite as class name."""
    cases = suite.findall("testcase")
    for case in cases:
        case.set("classname", str(suite.get("name")))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    suite.set("time", formatting.exact(seconds))
    if started_at:
        suite.set("timestamp", formatting.xml(started_at.removesuffix("Z"), 40))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


# --- intervals.csv: one row for each second --------------------------------------------------------------------------

COLUMNS = (
    *("second", "time", "phase", "workers", "qps", "succeeded", "failed", "skipped", "cancelled"),
    *("p50_ms", "p90_ms", "p95_ms", "p99_ms", "mean_ms", "min_ms", "max_ms", "lag_p99_ms"),
    *("executing", "target_connections", "cpu_percent_of_core", "memory_percent"),
    *("logins", "reopened", "lost", "logins_refused", "earlier_succeeded"),
)


def intervals_csv(record: RunRecord) -> str:
    """One row per second. An empty cell is unknown, or has too few samples. Each statement adds two columns.

    Counts are of the phase of the row, and add up to those of the result. qps and times are of all statements that
    ended in the second; `earlier_succeeded` is the number of those that had begun in the phase before."""
    names = record.statement_names()
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(
        [*COLUMNS, *(formatting.csv(f"{name} {kind}") for name in names for kind in ("succeeded", "failed"))],
    )
    for second in record.seconds:
        writer.writerow([*_cells(record, second), *_statements(second, names)])
    return written.getvalue()


def _cells(record: RunRecord, second: RunSecond) -> Iterator[object]:
    assert record.started is not None, "there are no seconds before the start"
    counts, times = second.counts, second.every_response
    moment = record.started + timedelta(seconds=second.at_s)
    yield second.at_s
    yield utc_iso(moment)
    yield second.phase or ""
    yield second.workers
    yield _number(second.qps)
    yield from (counts.succeeded, counts.failed, counts.skipped, counts.cancelled)
    yield from (_number(second.response_ms(per_mille)) for per_mille in (500, 900, 950, 990))
    some = bool(times.count)
    yield _number(times.sum_ns / times.count / NS_PER_MS if some else None)
    yield _number(times.min_ns / NS_PER_MS if some else None)
    yield _number(times.max_ns / NS_PER_MS if some else None)
    yield _number(second.lag_ms(990))
    yield from (second.executing, second.target, _number(second.cpu_percent), _number(second.memory_percent))
    logins = second.logins
    known = () if logins is None else (logins.opened, sum(logins.reopened.values()), logins.lost, logins.refused)
    yield from known or ("",) * 4
    yield second.earlier.counts.succeeded


def _statements(second: RunSecond, names: list[str]) -> Iterator[int]:
    for name in names:
        counts = second.statements.get(name, Counts())
        yield from (counts.succeeded, counts.failed)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


# --- report.md: a run as a comment on a pull request. Pure -----------------------------------------------------------

STATEMENTS_MAX = 60  # rows; the limit of a comment is 65,536 characters
STAGES_MAX = 30
ERRORS_MAX = 10
NAME_MAX = 100
TEXT_MAX = 300

_OWN_WORD = re.compile(r"[A-Za-z0-9:. –-]+")
MARKS = {"passed": "✅", "failed": "❌", "invalid": "⚠️", "cancelled": "⏹️", "error": "❌"}


def report_markdown(record: RunRecord) -> str:
    """A short report for a pull request: verdict, thresholds, totals, times."""
    summary = record.summary
    parts = [_head(summary), *_invalid(summary), *_warnings(summary), *_thresholds(summary)]
    parts += [
        *_totals(summary),
        *_times(record),
        *_stages(summary),
        *_replay(summary),
        *_find_max(summary),
        *_errors(summary),
        *_sessions(summary),
        *_client(summary),
        _foot(record),
    ]
    return "\n\n".join(parts) + "\n"


def _head(summary: Mapping[str, Any]) -> str:
    verdict = str(summary["verdict"])
    word = formatting.verdict_word(verdict).upper()
    head = f"## {MARKS.get(verdict, '')} {markdown(summary['scenario'], NAME_MAX)}: {_word(word)}"
    return head if verdict == "invalid" else f"{head}\n\n{markdown(formatting.verdict_reason(summary), TEXT_MAX)}"


def _invalid(summary: Mapping[str, Any]) -> Iterator[str]:
    reasons = summary["validity"]["reasons"]
    if reasons:
        listed = "\n".join(f"- {markdown(reason, TEXT_MAX)}" for reason in reasons[:20])
        yield f"**The numbers are not valid:**\n\n{listed}"


def _warnings(summary: Mapping[str, Any]) -> Iterator[str]:
    warnings = summary["environment"].get("warnings") or ()
    if warnings:
        listed = "\n".join(f"- {markdown(str(warning), TEXT_MAX)}" for warning in warnings[:20])
        yield f"**Warnings:**\n\n{listed}"


_OUTCOMES = {"met": "✅ met", "missed": "❌ missed", "undecided": "❔ undecided"}


def _thresholds(summary: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (
            _OUTCOMES[formatting.outcome(one, summary)],
            markdown(formatting.check(one, NAME_MAX)),
            formatting.judged(one, summary),
        )
        for one in summary["thresholds"][:STATEMENTS_MAX]
    ]
    if rows:
        yield _table(("", "threshold", "measured"), rows, left=2)


def _totals(summary: Mapping[str, Any]) -> Iterator[str]:
    totals = summary["totals"]
    yield _table(
        ("qps", "offered", "succeeded", "failed", "skipped", "cancelled", "error rate"),
        [
            (
                f"**{formatting.rate(totals['qps'])}**",
                *(
                    formatting.count(totals[name])
                    for name in ("scheduled", "succeeded", "failed", "skipped", "cancelled")
                ),
                formatting.percent(totals["error_rate"]),
            )
        ],
    )
    yield (
        f"{formatting.seconds(summary['measured_seconds'])} measured, {counted(summary['connections'], 'connection')},"
        f" {counted(summary['workers'], 'worker')}.{_delivered(summary)}"
    )


def _delivered(summary: Mapping[str, Any]) -> str:
    fraction = (summary.get("delivered") or {}).get("fraction")
    return "" if fraction is None else f" Delivered load {percent(fraction)}."


def _times(record: RunRecord) -> Iterator[str]:
    summary = record.summary
    names = record.statement_names()
    rows = [("**all**", summary["totals"] | {"latency_ms": summary["latency_ms"]})]
    if summary["lag_ms"]:
        rows.append(("(lag)", {"latency_ms": summary["lag_ms"]}))
    rows += [(markdown(name, NAME_MAX), summary["statements"][name]) for name in names[:STATEMENTS_MAX]]
    samples = formatting.sample_columns([part for _, part in rows])
    yield _table(
        ("ms", *samples, "qps", *formatting.TIMES.values()),
        [
            (
                name,
                *counts,
                formatting.rate(part.get("qps")),
                *(formatting.time_of(part["latency_ms"], one) for one in formatting.TIMES),
            )
            for (name, part), counts in zip(rows, zip(*samples.values(), strict=True), strict=True)
        ],
    )
    if formatting.CUT_OFF in samples:
        yield formatting.CUT_OFF_NOTE
    if len(names) > STATEMENTS_MAX:
        yield f"{len(names) - STATEMENTS_MAX} more statements are in report.html."


def _stages(summary: Mapping[str, Any]) -> Iterator[str]:
    stages = summary.get("stages") or ()
    rows = [
        (
            markdown(stage["name"], NAME_MAX),
            formatting.level(stage),
            formatting.span(stage),
            formatting.count(stage["succeeded"]),
            formatting.rate(stage["qps"]),
            formatting.percent(stage["error_rate"]),
            *(formatting.time_of(stage["latency_ms"], one) for one in formatting.TIMES),
        )
        for stage in stages[:STAGES_MAX]
    ]
    if rows:
        head = ("stage", "load", "measured", "succeeded", "qps", "error rate", *formatting.TIMES.values())
        yield _table(head, rows, left=3)
    if len(stages) > STAGES_MAX:
        yield f"{len(stages) - STAGES_MAX} more stages are in report.html."


def _replay(summary: Mapping[str, Any]) -> Iterator[str]:
    replay = summary.get("replay")
    if not replay:
        return
    rows = [
        (
            markdown(one["statement"], NAME_MAX),
            *(
                cell
                for part in (one["recorded"], one["replayed"])
                for cell in (formatting.count(part["count"]), formatting.ms(part["avg"]), formatting.ms(part["p95"]))
            ),
            formatting.ms(one["slower_ms"]),
        )
        for one in replay["compared"][:STATEMENTS_MAX]
    ]
    columns = [f"{when} {key}" for when in ("recorded", "replayed") for key in ("count", "avg", "p95")]
    yield _table(("recorded and replayed, ms", *columns, "slower by"), rows)
    yield from (text for text in (coverage_text(replay), late_text(replay)) if text)
    cells = [
        (markdown(name, NAME_MAX), *map(formatting.count, counts), markdown(example, TEXT_MAX))
        for name, *counts, example in new_error_cells(replay)
    ]
    if cells:
        yield _table(NEW_ERROR_HEADS, cells)
        yield NEW_ERRORS_NOTE


def _find_max(summary: Mapping[str, Any]) -> Iterator[str]:
    found = summary["find_max"]
    if not found:
        return
    level = found["max_concurrency"]
    if level is None:
        yield f"**No number of connections held:** {markdown(str(found['reason']), TEXT_MAX)}"
        return
    held = f"**{counted(level, 'connection')}** held, the maximum"
    if formatting.is_bounded(found):
        held = f"**At least {counted(level, 'connection')}** held, a lower bound of the maximum"
    yield (
        f"{held} ({markdown(str(found['result']))}):"
        f" {formatting.rate(found['qps'])} qps, p95 {formatting.found_p95(summary)} ms."
        f" {markdown(str(found['reason']), TEXT_MAX)}"
    )


def _errors(summary: Mapping[str, Any]) -> Iterator[str]:
    errors = summary["errors"]
    rows = [
        (
            formatting.count(one["count"]),
            markdown(one.get("statement") or "", NAME_MAX),
            _word(one["category"]),
            _word(str(one["code"] or "–")),
            markdown(one["example"], TEXT_MAX),
        )
        for one in errors[:ERRORS_MAX]
    ]
    if rows:
        yield _table(("failed", "statement", "category", "code", "example"), rows, left=5)
    if len(errors) > ERRORS_MAX:
        yield f"{len(errors) - ERRORS_MAX} more kinds of errors are in report.html."


def _sessions(summary: Mapping[str, Any]) -> Iterator[str]:
    sessions = summary.get("sessions")
    if sessions is not None:
        counts = ", ".join(f"{formatting.count(sessions[name])} {name}" for name in ("created", "expired", "current"))
        yield f"User sessions: {counts}."


def _client(summary: Mapping[str, Any]) -> Iterator[str]:
    client = summary["client"]
    yield (
        f"Load generator: busiest worker at {formatting.plain_percent(client['cpu_percent_of_core'])} of its core,"
        f" wake-up delay {formatting.ms(client['wakeup_p99_ms'])} ms (p99): percentiles may be off by as much."
    )
    logins = login_words(client.get("connections") or {})
    if logins:
        yield f"Connections: {logins}."


def _foot(record: RunRecord) -> str:
    summary = record.summary
    version = markdown(str(summary["environment"].get("loadgen", "?")), 40)
    return (
        f"Run {markdown(summary['run_id'], 40)}, {_word(summary['started_at'] or 'never started')}, loadgen {version}."
    )


def _word(text: str) -> str:
    """A known word or a time unchanged, other text escaped."""
    return text if _OWN_WORD.fullmatch(text) else markdown(text, NAME_MAX)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, last_left: int = 0) -> str:
    """The first `left` and the last `last_left` columns are aligned to the left, numbers to the right."""
    numbers = range(left, len(head) - last_left)
    rule = ["--:" if column in numbers else ":--" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


# --- report.md of an experiment --------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z0-9:.,%()+ -]+")
EXPERIMENT_MARKS = {"decided": "✅", "undecided": "❔", "invalid": "⚠️", "cancelled": "⏹️", "failed": "❌"}


def experiment_markdown(document: Mapping[str, Any]) -> str:
    """Verdict, answer, arms, pairs."""
    verdict, blocks = str(document["verdict"]), document["blocks"]
    mark, name = EXPERIMENT_MARKS.get(verdict, ""), markdown(document["name"], NAME_MAX)
    parts = [
        f"## {mark} {name}: {_plain(verdict.upper())}",
        _plain(document["answer"]),
        _experiment_arms(document),
        _experiment_pairs(document),
        f"{len(blocks['complete'])} complete blocks of {blocks['begun']} begun, at most {blocks['maximum']}. Intervals"
        f" hold simultaneously, after every block, with {confidence_text(document)} probability. Experiment"
        f" {markdown(document['experiment_id'])}.",
    ]
    if document["credits"] is not None:
        parts.append(
            f"Credits and prices are estimated, with the rates of {markdown(document['price']['rates_date'], 40)}."
        )
    if (metered := metering_text(document)) is not None:
        parts.append(_plain(metered))
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """Text of loadgen unchanged; text with other characters as code."""
    return text if _PLAIN.fullmatch(text) else markdown(text, ANSWER_MAX)


def _experiment_arms(document: Mapping[str, Any]) -> str:
    credits = ("estimated credits", "metered") if document.get("metering") else ()
    price_head = f"price of 1,000 ({markdown(document['price']['currency'], 10)})"
    head = ("arm", "qps", "p95 ms", "error rate", "inside the limits", *credits, price_head, "frontier")
    rows = []
    for arm in document["arms"]:
        price = arm["price_per_1000"]
        rows.append(
            (
                markdown(arm["arm"], NAME_MAX),
                formatting.rate(arm["qps"]),
                formatting.ms(arm["latency_ms"]["p95"]),
                formatting.percent(arm["error_rate"]),
                f"{arm['limits_held']} of {arm['measurements']}",
                *((credits_text(arm["credits"]), *metered_cell(arm)) if credits else ()),
                formatting.NONE if price is None else f"{price:.3g}",
                "" if arm["on_frontier"] is None else "yes" if arm["on_frontier"] else "no",
            )
        )
    return _table(head, rows, last_left=1)


def _experiment_pairs(document: Mapping[str, Any]) -> str:
    head = ("metric", "arm", "compared with", "change", "interval", "margin", "decision")
    rows = [
        (
            *(markdown(one[key], NAME_MAX) for key in ("metric", "b", "a")),
            formatting.NONE if one["change"] is None else change_text(one["change"]),
            interval_text(one["low"], one["high"]),
            f"{100 * one['margin']:.1f} %",
            _plain(one["decision"]),
        )
        for one in document["comparisons"]
    ]
    return _table(head, rows, left=3, last_left=1)


# --- which files there are -------------------------------------------------------------------------------------------

RENDERERS: Mapping[str, Callable[[RunRecord], str]] = {
    "text": lambda record: f"{summary_text(record.summary)}\n",
    "json": lambda record: f"{json.dumps(record.summary, indent=2)}\n",
    "html": report_html,
    "md": report_markdown,
    "junit": junit_xml,
    "csv": intervals_csv,
}
FILES = {"html": "report.html", "md": "report.md", "junit": "junit.xml", "csv": "intervals.csv"}
EXPERIMENT_FILES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "experiment.json": lambda document: f"{json.dumps(document, indent=2)}\n",
    "report.html": experiment_html,
    "report.md": experiment_markdown,
    "junit.xml": experiment_junit,
}
