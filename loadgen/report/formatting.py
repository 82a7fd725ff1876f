"""How numbers are written, the same in every file of a run. None, an unknown value, is a dash, and never 0."""

from __future__ import annotations

import html as standard_html
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from loadgen.log import printable
from loadgen.metrics.connections import PLANNED, ReconnectReason
from loadgen.model.threshold import InvalidThreshold, ThresholdMetric, parse_threshold, threshold_words
from loadgen.rules.comparability import Measure
from loadgen.rules.thresholds import compare
from loadgen.units import counted

NONE = "–"
TOO_FEW = "too few samples"
NOT_MEASURED = "not measured"
NO_SAMPLES = "no samples"
NONE_SUCCEEDED = "no statement succeeded"
OUTCOME_SIGNS = {"met": "✓", "missed": "✗", "undecided": "○"}  # of the outcomes of thresholds
PERCENTILES = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9"}
TIMES = {**PERCENTILES, "max": "max", "avg": "avg"}  # columns of every table of times: key of summary.json, heading


# The words for verdicts where they differ from summary.json: FAILED is the status of a run that did not end as planned.
_VERDICT_WORDS = {"failed": "missed"}


def verdict_word(verdict: str) -> str:
    """The verdict of a run as people read it: passed, missed, invalid, cancelled, error."""
    return _VERDICT_WORDS.get(verdict, verdict)


def verdict_of_word(word: str) -> str:
    """The verdict of summary.json that has this word."""
    return next((verdict for verdict, shown in _VERDICT_WORDS.items() if shown == word), word)


_FACT_NAMES = {"driver_lightened": "telemetry of the driver off", "driver_major": "major version of the driver"}
_ENVIRONMENT = "environment."


def fact_name(key: str) -> str:
    """The name of a fact about the environment, for displays; its key is for JSON."""
    return _FACT_NAMES.get(key, key.replace("_", " "))


def setting_name(key: str) -> str:
    """The name of a setting, as in a scenario file, or of a fact about the environment."""
    return fact_name(key.removeprefix(_ENVIRONMENT)) if key.startswith(_ENVIRONMENT) else key


def fact_value(value: object) -> object:
    """The value of a fact: yes and no, other values unchanged."""
    return ("yes" if value else "no") if isinstance(value, bool) else value


CUT_OFF = "cut off"
CUT_OFF_NOTE = "Cut off: timed out, gave up a lock, cancelled or skipped; in the times as lower bounds (≥)."


def sample_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The columns of a table of times that count samples: succeeded, and failed and cut off if there are any. Rows have
    the shape of statements in summary.json; a row without counts gets dashes."""
    columns = {
        "ok": [row.get("succeeded") for row in rows],
        "failed": [row.get("failed") for row in rows],
        CUT_OFF: [row["latency_ms"].get("cut_off", 0) if "failed" in row else None for row in rows],
    }
    return {name: [count(value) for value in values] for name, values in columns.items() if name == "ok" or any(values)}


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """A rate per second."""
    return NONE if value is None else f"{value:,.1f}"


def ms(value: float | None) -> str:
    """A time in milliseconds with at least three significant digits, and no fraction from 1,000 on."""
    if value is None or value == 0:
        return NONE if value is None else "0"
    size = abs(value)
    return f"{value:,.{0 if size >= 1_000 else 1 if size >= 100 else 2 if size >= 1 else 3}f}"


def percent(fraction: float | None) -> str:
    """A fraction as percent. A value above 0 is never written as 0."""
    if fraction is None:
        return NONE
    value = 100.0 * fraction
    return "0 %" if value == 0 else f"{value:.2f} %" if abs(value) >= 0.01 else f"{value:.2g} %"


def plain_percent(value: float | None) -> str:
    """A value that is already in percent."""
    return NONE if value is None else f"{value:.1f} %"


def seconds(value: float | None) -> str:
    """12.3 s, 5 min 3 s, 1 h 2 min."""
    if value is None:
        return NONE
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3_600} h {whole % 3_600 // 60} min"


def level(stage: Mapping[str, Any]) -> str:
    """The load of a stage of summary.json: 8 connections, or 100.0/s."""
    if stage["rate"] is not None:
        return f"{rate(stage['rate'])}/s"
    connections = stage["connections"]
    return NONE if connections is None else f"{count(connections)} connection{'' if connections == 1 else 's'}"


def span(stage: Mapping[str, Any]) -> str:
    """The measured span of a stage, since the start of the run: 10.0 s to 40.0 s."""
    return f"{seconds(stage['starts_s'])} to {seconds(stage['starts_s'] + stage['measured_seconds'])}"


def time_of(times: Mapping[str, Any], name: str) -> str:
    """A percentile of summary.json."""
    value = times.get(name)
    return bounded(ms(value), at_least=value is not None and name in times.get("at_least", ()))


def found_p95(summary: Mapping[str, Any]) -> str:
    """The p95 of a search for the maximum: the times in its summary.json are those of the decisive step."""
    at_least = "p95" in summary["latency_ms"].get("at_least", ())
    return bounded(ms(summary["find_max"].get("p95_ms")), at_least=at_least)


def bounded(shown: str, *, at_least: bool, at_most: bool = False) -> str:
    """The value with "≥" if it is a lower bound, with "≤" if it is an upper bound."""
    return f"≥ {shown}" if at_least else f"≤ {shown}" if at_most else shown


def value_of(measure: Measure, value: float | None, *, at_least: bool = False) -> str:
    """A metric with its unit."""
    if value is None:
        return NONE
    match measure:
        case Measure.ERROR_RATE:
            shown = percent(value)
        case Measure.QPS:
            shown = f"{rate(value)}/s"
        case Measure.MAX_CONCURRENCY:
            shown = f"{count(value)} connections"
        case _:
            shown = f"{ms(value)} ms"
    return bounded(shown, at_least=at_least)


def rounded(value: float | None) -> float | None:
    """The number for JSON, with six decimals; None if it is unknown or infinite."""
    return None if value is None or not math.isfinite(value) else round(value, 6)


def aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """The rows of a text table: columns listed in `left` are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if number in left else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def exact(value: float | None) -> str:
    """The exact value of summary.json. 20.0 and 20 are written the same, because VARIANT columns may return either."""
    if value is None:
        return ""
    return f"{value:d}" if isinstance(value, int) else f"{int(value):d}" if value.is_integer() else repr(value)


def check(threshold: Mapping[str, Any], limit: int) -> str:
    """A threshold of summary.json on one line, with its window; a default threshold is marked. `limit`: characters of
    the check itself, so that a long name does not hide the window."""
    words = threshold_words(printable(threshold["check"], limit), threshold.get("window_seconds"))
    return f"{words} (default)" if threshold.get("default") else words


def undecided(threshold: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Why the measurements could not decide a threshold of summary.json; empty: they did."""
    if threshold.get("too_few_samples"):
        return TOO_FEW
    if threshold.get("not_measured"):
        return NOT_MEASURED
    if threshold["value"] is None:
        return _empty(threshold, summary)
    return "" if threshold["passed"] else _open_bound(threshold)


_COUNTED = (ThresholdMetric.QPS, ThresholdMetric.ERROR_RATE, ThresholdMetric.ERRORS, ThresholdMetric.QUERIES)


def _empty(threshold: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Why a threshold without a value is undecided; empty: it counts statements, which may be missed with none."""
    if not summary["measured_seconds"]:
        return NO_SAMPLES
    try:
        check = parse_threshold(threshold["check"])
    except InvalidThreshold:
        return ""
    if check.metric in _COUNTED:
        return ""
    found = summary["totals"]
    if check.statement is not None:
        stages = {str(stage["name"]): stage for stage in summary.get("stages") or ()}
        found = stages.get(check.statement) or summary["statements"].get(check.statement, {})
    return NONE_SUCCEEDED if found.get("failed") and not found.get("succeeded") else NO_SAMPLES


def _open_bound(threshold: Mapping[str, Any]) -> str:
    """Why the bound in a threshold that did not pass leaves it undecided; empty: no value beyond it would pass."""
    if not (threshold.get("at_least") or threshold.get("at_most")):
        return ""
    try:
        check = parse_threshold(threshold["check"])
    except InvalidThreshold:
        return ""
    value, end = threshold["value"], math.inf if threshold.get("at_least") else -math.inf
    may_pass = compare(check, value) or compare(check, end) or min(value, end) < check.limit < max(value, end)
    side = "a lower" if threshold.get("at_least") else "an upper"
    return f"only {side} bound is known" if may_pass else ""


def outcome(threshold: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The outcome of a threshold of summary.json in one word: met, missed, undecided."""
    return "met" if threshold["passed"] else "undecided" if undecided(threshold, summary) else "missed"


def judged(threshold: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The value that a threshold of summary.json was compared with, or why there is none; with a window, it is that of
    the worst span."""
    if threshold["value"] is None:
        return undecided(threshold, summary) or NO_SAMPLES
    shown = measured(threshold["check"], threshold["value"])
    shown = bounded(shown, at_least=bool(threshold.get("at_least")), at_most=bool(threshold.get("at_most")))
    return worst(shown, threshold.get("window_seconds"))


def worst(shown: str, window_s: float | None) -> str:
    """The value of a threshold, marked as that of the worst span if the threshold has a window."""
    return shown if window_s is None else f"worst {shown}"


def finding(threshold: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The value of judged(), as words: measured 20.0 ms, worst 20.0 ms, no samples, undecided: too few samples."""
    value, why = judged(threshold, summary), undecided(threshold, summary)
    if why:
        return f"undecided: {why}{'' if value == why else f' ({value})'}"
    is_phrase = threshold["value"] is None or threshold.get("window_seconds") is not None
    return value if is_phrase else f"measured {value}"


def max_found(found: Mapping[str, Any]) -> str:
    """The answer of a search for the maximum: BOUNDED_MAX, at least 12 connections, confidence low. Empty: none."""
    level = found.get("max_concurrency")
    if level is None:
        return ""
    least = "at least " if is_bounded(found) else ""
    confidence = f", confidence {found['confidence']}" if found.get("confidence") else ""
    return f"{found.get('result')}, {least}{counted(level, 'connection')}{confidence}"


def verdict_reason(summary: Mapping[str, Any]) -> str:
    """The reason of the verdict, after the answer of a search for the maximum."""
    answer = max_found(summary["find_max"] or {})
    return "; ".join(part for part in (answer, str(summary["exit_reason"])) if part)


STEPS_NOTE = "A reason has the figures at the verdict; those of the step include the moment until all workers ended it."


def is_bounded(found: Mapping[str, Any]) -> bool:
    """Whether the answer of a search for the maximum is a lower bound."""
    return found.get("result") == "BOUNDED_MAX"


class MeasureFormats(NamedTuple):
    """How values of the metrics of thresholds are written, without their units."""

    percent: Callable[[float], str]
    rate: Callable[[float], str]
    whole: Callable[[float], str]
    ms: Callable[[float], str]
    other: Callable[[float], str]


def measured(check: str, value: float | None, formats: MeasureFormats | None = None) -> str:
    """The value for a threshold, in the unit of its limit."""
    form = formats or MeasureFormats(percent, rate, count, ms, exact)
    if value is None:
        return "nothing"
    try:
        metric = parse_threshold(check).metric
    except InvalidThreshold:
        return form.other(value)
    match metric:
        case ThresholdMetric.ERROR_RATE:
            return form.percent(value)
        case ThresholdMetric.QPS:
            return f"{form.rate(value)}/s"
        case ThresholdMetric.ERRORS | ThresholdMetric.QUERIES:
            return form.whole(value)
        case _:
            return f"{form.ms(value)} ms"


LINE_MAX = 500  # characters of a text on one line, such as a name or an error
NAME_LONG = 16  # characters; a longer name may be broken into lines
BLOCK_MAX = 20_000  # characters of a text with several lines: SQL, a configuration

_SIMPLE_CODE = re.compile(r"[^`|\\\n\r]+")
_MARKDOWN_SAFE = re.compile(r"[^A-Za-z0-9 \u00a0-\U0010ffff]")
_DATE_OR_ID = re.compile(r"\d{4}-\d\d-\d\d(?:T[\d:.]+Z)?|\d{8}-\d{4}-[\w-]+")
_PART_OF_NAME = re.compile(r"([_./:-])(?=\w)")  # none of these occurs in an escaped character
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def html(text: str, limit: int = LINE_MAX) -> str:
    """Text, escaped for HTML text and for quoted attributes."""
    return standard_html.escape(printable(text, limit, multiline=True), quote=True)


def html_name(text: str, limit: int = LINE_MAX) -> str:
    """A name, escaped for text. Lines may break after _ . - / and : in a long one, and at spaces."""
    if len(text) <= NAME_LONG:
        return html(text, limit)
    shown = _PART_OF_NAME.sub(r"\1<wbr>", html(text, limit))
    return f'<span class="long">{shown}</span>'


def html_whole_ids(text: str, limit: int = LINE_MAX) -> str:
    """A sentence, escaped for text. Lines do not break inside dates and run ids that fit into a line."""
    return _DATE_OR_ID.sub(r"<span>\g<0></span>", html(text, limit))


def html_json(data: Any) -> str:
    """JSON for a script element of type application/json: nothing in it can end the element."""
    text = json.dumps(
        data, separators=(",", ":"), allow_nan=False
    )  # ASCII, so U+2028 and similar characters are escaped
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def xml(text: str, limit: int = LINE_MAX) -> str:
    """Text that XML 1.0 allows; the writer of the file, ElementTree, escapes < and &."""
    return printable(text, limit, multiline=True)


def markdown(text: str, limit: int = LINE_MAX) -> str:
    """Text as code, which Markdown in the text cannot end, not even in a table; names in it are not mentions."""
    shown = printable(text, limit).strip()
    if not shown:
        return "–"
    if _SIMPLE_CODE.fullmatch(shown):
        return f"`{shown}`"
    return f"<code>{_MARKDOWN_SAFE.sub(lambda match: f'&#{ord(match[0])};', shown)}</code>"


def csv(text: str, limit: int = LINE_MAX) -> str:
    """A cell that spreadsheets do not evaluate as a formula; the CSV writer quotes it."""
    shown = printable(text, limit)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def login_words(logins: Mapping[str, Any]) -> str:
    """client.connections of summary.json as text; empty if every connection was opened once and never lost."""
    counts = logins.get("reopened") or {}
    parts = []
    for words, reasons in (("replaced as planned", PLANNED), ("lost", set(ReconnectReason) - set(PLANNED))):
        own = {reason: counts[reason] for reason in ReconnectReason if reason in reasons and counts.get(reason)}
        why = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in own.items())
        parts += [f"{sum(own.values()):,} {words} ({why})"] if own else []
    refused = logins.get("refused") or 0
    parts += [f"{counted(refused, 'login')} refused"] if refused else []
    return ", ".join(parts)


def connection_failures(logins: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The refused logins and lost connections in client.connections of summary.json, in order of time."""
    return sorted((*(logins.get("last_refused") or ()), *(logins.get("last_lost") or ())), key=lambda one: one["at"])


def failure_kind(failure: Mapping[str, Any]) -> str:
    """The kind of a failure, and how many failures of the same second it represents."""
    count, reason = failure.get("count") or 1, failure.get("reason")
    if reason is None:
        return f"{counted(count, 'login')} refused"
    return f"{counted(count, 'connection')} lost ({reason.replace('_', ' ')})"


def failure_words(failure: Mapping[str, Any]) -> str:
    code = "" if failure["code"] is None else f"{failure['code']}: "
    return f"{failure['worker_id']}: {failure_kind(failure)}: {code}{failure['text']}"
