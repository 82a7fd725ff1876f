"""report.html: a run as one self-contained page. Pure.

The page is complete without its script, which only shows the values under the cursor. Its Content-Security-Policy
forbids to load or send anything, and to use other scripts or styles. In charts of long runs, several seconds are one
point: their samples are merged, so the values stay exact and the page stays small.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from loadgen.clock import utc_iso
from loadgen.metrics.percentile import PERCENTILES
from loadgen.model.threshold import threshold_words
from loadgen.report import formatting
from loadgen.report.distribution import histogram_chart, percentile_curve, ranges
from loadgen.report.formatting import connection_failures, html, html_json, login_words
from loadgen.report.html_page import (
    SCRIPT,
    code,
    data,
    details,
    facts,
    figure,
    html_page,
    named,
    note,
    number,
    section,
    short,
    table,
    text,
)
from loadgen.report.records import POINTS_MAX, RunEvent, RunRecord
from loadgen.report.run_charts import ChartSeries, HoverData, Timeline, described, value_axis
from loadgen.report.run_replay import arrivals_chart, replayed
from loadgen.report.run_statements import find_max, max_concurrency, sessions, stages, statements
from loadgen.report.svg import Chart, ChartLine, clock, time_axis
from loadgen.rules.enrichment import SERVER_TIME_KINDS
from loadgen.rules.validity import percent
from loadgen.scenario.model import Load, LoadMode
from loadgen.units import NS_PER_MS, counted, format_duration_s, format_rate_per_second

# --- The tables and lists of the HTML report: everything in it that is not a chart -----------------------------------

ROWS_MAX = 200
ERRORS_MAX = 50
LOGS_MAX = 40
UNREADABLE_MAX = 20
EVENTS_OPEN = 12  # longer lists are folded
CONFIG_MAX = 16_000
WARNINGS = "warnings"  # key of the environment: warnings about the run
CREDITS = "credits"  # key of the environment: credits of the warehouse
LEDGER = {"mean": "avg", "p50": "p50", "p95": "p95"}  # columns of server times: key of summary.json, heading
SENT_ONCE = (
    "The driver sends each measured statement once, because its retries are off. If a session token has expired, it"
    " renews the token and sends the rejected statement again. Some of its error texts speak of retries all the same."
)


def tiles(record: RunRecord) -> str:
    """The main figures."""
    summary = record.summary
    totals, latency, found = summary["totals"], summary["latency_ms"], summary["find_max"]
    shown = []
    if found:
        shown.append(("Max concurrency", max_concurrency(found)))
    shown.append(("qps", f"{data(totals['qps'], formatting.rate(totals['qps']))} <small>/s</small>"))
    for name in ("p50", "p95", "p99"):
        shown.append((name, f"{data(latency[name], formatting.time_of(latency, name))} <small>ms</small>"))
    shown.append(("Error rate", data(totals["error_rate"], formatting.percent(totals["error_rate"]))))
    shown.append(("Measured", data(summary["measured_seconds"], formatting.seconds(summary["measured_seconds"]))))
    return f'<dl class="tiles">{"".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown)}</dl>'


def thresholds(summary: Mapping[str, Any]) -> str:
    if not summary["thresholds"]:
        return note("The scenario has no thresholds.")
    rows = (
        (
            _outcome(formatting.outcome(one, summary)),
            f"<td><code>{_words(one)}</code>{' (default)' if one.get('default') else ''}</td>",
            number(one["value"], _judged(one, summary)),
        )
        for one in summary["thresholds"][:ROWS_MAX]
    )
    return table("Thresholds of the scenario", ("", "threshold", "measured"), rows, words=2)


def _words(threshold: Mapping[str, Any]) -> str:
    return threshold_words(html(threshold["check"]), threshold.get("window_seconds"))


def _judged(threshold: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    value, why = formatting.judged(threshold, summary), formatting.undecided(threshold, summary)
    return value if why in ("", value) else f"{value}, {why}"


def _outcome(word: str) -> str:
    css = {"met": "ok", "missed": "miss", "undecided": "limited"}[word]
    return f'<td class="{css}">{formatting.OUTCOME_SIGNS[word]} {word}</td>'


def what_was_run(record: RunRecord) -> str:
    summary, scenario = record.summary, record.scenario
    pairs = [
        ("scenario", html(summary["scenario"])),
        ("run", html(summary["run_id"])),
        ("started", _moment(record.started)),
        ("ended", _moment(record.ended)),
        ("connections", data(summary["connections"], formatting.count(summary["connections"]))),
        ("workers", data(summary["workers"], formatting.count(summary["workers"]))),
    ]
    if scenario is not None:
        target = scenario.target
        pairs[1:1] = [("description", html(scenario.description or ""))]
        pairs += [
            ("load", html(_load(scenario.load))),
            ("connection", html(scenario.connection or "the default one")),
            ("warehouse", html(str(target.warehouse or ""))),
            ("place", html(".".join(str(part) for part in (target.database, target.schema) if part))),
            ("result cache", "used" if target.use_cached_result else "off"),
            ("labels", html(", ".join(f"{key}={value}" for key, value in sorted(scenario.labels.items())), 1_000)),
            ("seed", str(scenario.workload.seed)),
        ]
    pairs += [
        ("credits", _fact(summary["environment"].get(CREDITS))),
        ("template", f"<code>{html(record.template_id)}</code>"),
    ]
    return facts(pairs)


def _surroundings(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Facts about the machine of the load generator."""
    for key, value in sorted(environment.items()):
        if key not in (WARNINGS, CREDITS):
            yield html(formatting.fact_name(str(key)), 40), _fact(value)


def _fact(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return html(", ".join(map(str, value)))
    return "" if value is None else html(str(formatting.fact_value(value)))


def _load(load: Load) -> str:
    warmup = f"warm-up {format_duration_s(load.warmup_s)}"
    if load.mode is LoadMode.FIND_MAX:
        return f"search for the maximum, up to {counted(load.connections or 0, 'connection')}, {warmup}"
    length = "" if load.duration_s is None else f", {format_duration_s(load.duration_s)} measured"
    stages = f", {counted(len(load.stages), 'stage')}" if load.stages else ""
    if load.replay is not None:
        values = ", pseudonyms for values" if load.replay.pseudonyms else ""
        users = f", {counted(load.replay.users, 'user')}" if load.replay.users > 1 else ""
        return f"replay at speed {load.replay.speed:g}{users}, sessions {load.replay.sessions.value}{values}{length}"
    if load.mode is LoadMode.RATE:
        rate = "" if load.rate_per_second is None else f" {format_rate_per_second(load.rate_per_second)}"
        return f"open loop{rate} ({load.arrival.value} arrivals){stages}, {warmup}{length}"
    return f"closed loop, {counted(load.connections or 0, 'connection')}{stages}, {warmup}{length}"


def totals(summary: Mapping[str, Any]) -> str:
    """Counts that add up: scheduled = succeeded + failed + skipped + cancelled + in flight."""
    found = summary["totals"]
    delivered = found["succeeded"] + found["failed"]
    in_flight = found["scheduled"] - delivered - found["skipped"] - found["cancelled"]
    cells = [
        ("offered", found["scheduled"]),
        ("delivered", delivered),
        ("succeeded", found["succeeded"]),
        ("failed", found["failed"]),
        ("skipped", found["skipped"]),
        ("cancelled", found["cancelled"]),
        ("never ended", in_flight),
        ("reads", found["reads"]),
        ("writes", found["writes"]),
    ]
    rows = [[number(value, formatting.count(value)) for _, value in cells]]
    return table("Statements of the measured window", [name for name, _ in cells], rows, words=0) + note(
        "Delivered: sent, and succeeded or failed. Skipped: due, but not sent in time. Cancelled: ended by loadgen."
    )


def times(record: RunRecord) -> str:
    summary = record.summary
    kinds = [("response", summary["latency_ms"])]
    if summary["lag_ms"]:
        kinds += [("service", summary["service_ms"]), ("lag", summary["lag_ms"])]
    columns = {**formatting.PERCENTILES, "max": "max", "avg": "avg", "min": "min"}
    rows = [
        [f"<td>{name}</td>", *(number(found.get(key), formatting.time_of(found, key)) for key in columns)]
        for name, found in kinds
    ]
    if record.merged is not None:
        rows.insert(1, ["<td>95 % bounds</td>", *(f'<td class="n">{_bounds(record, key)}</td>' for key in columns)])
    body = table("Milliseconds, of statements that succeeded or were cut off", ("", *columns.values()), rows)
    if summary["lag_ms"]:
        body += note(
            "Response time starts when a statement is due, service time when it is sent; lag is the difference."
        )
    return body + note(f"A dash: too few samples. {formatting.CUT_OFF_NOTE}")


def _bounds(record: RunRecord, name: str) -> str:
    """The 95 % confidence interval of a percentile, if samples are independent."""
    if record.merged is None or name not in PERCENTILES or record.summary["latency_ms"].get(name) is None:
        return ""
    bounds = record.merged.tally.whole.response_bounds(PERCENTILES[name])
    low, high = (None if end_ns is None else end_ns / NS_PER_MS for end_ns in (bounds.low_ns, bounds.high_ns))
    return f"{formatting.ms(low)} … {formatting.ms(high)}"


def errors(summary: Mapping[str, Any]) -> str:
    found = summary["errors"]
    if not found:
        return note("No statement failed.")
    rows = (
        (
            named(one.get("statement") or formatting.NONE),
            short(one["category"]),
            number(one["code"], formatting.NONE if one["code"] is None else str(one["code"])),
            number(one["count"], formatting.count(one["count"])),
            f'<td><div class="t"><code>{html(one["example"], 400)}</code></div></td>',
        )
        for one in found[:ERRORS_MAX]
    )
    head, more = ("statement", "category", "code", "count", "example"), len(found) - ERRORS_MAX
    body = table("By statement, category and code, with one example of each", head, rows, words=2, last_words=1)
    return body + (note(f"{more} more kinds are in summary.json.") if more > 0 else "")


def events(happened: Sequence[RunEvent]) -> str:
    """The events that are marked in the charts."""
    if not happened:
        return ""
    rows = [
        (f'<td class="n">{formatting.seconds(event.at_s)}</td>', text(event.text, 300)) for event in happened[:ROWS_MAX]
    ]
    listed = table(
        "Events, in seconds since the start of the run", ("at", "event"), rows, words=0, last_words=1, fit=True
    )
    if len(happened) > ROWS_MAX:
        listed += note(f"{len(happened) - ROWS_MAX} later events are not shown.")
    return listed if len(rows) <= EVENTS_OPEN else details(f"All {len(happened)} events", listed)


def workers(record: RunRecord) -> str:
    summary = record.summary
    client = summary["client"]
    verdict = (
        "The load generator itself was the limit." if client["saturated"] else "The load generator was not the limit."
    )
    health = facts(
        [
            (
                "busiest worker",
                data(client["cpu_percent_of_core"], formatting.plain_percent(client["cpu_percent_of_core"])),
            ),
            ("wake-up delay, avg", _optional_ms(client.get("wakeup_mean_ms"))),  # unknown for older runs
            (
                "wake-up delay, p99",
                f"{data(client['wakeup_p99_ms'], formatting.ms(client['wakeup_p99_ms']))} ms:"
                " percentiles may be off by as much",
            ),
            ("paused", formatting.plain_percent(client.get("paused_percent", client.get("gap_percent")))),
            ("client overhead, median", _optional_ms(client["overhead_ms"])),
            ("delivered load", _delivered(summary.get("delivered") or {})),
            ("connections", html(login_words(client.get("connections") or {}))),
            *_surroundings(summary["environment"]),
        ]
    )

    labelled = any(machine.labels for machine in record.machines.values())

    def row(one: Mapping[str, Any]) -> list[str]:
        machine = record.machines.get(one["worker_id"])
        return [
            short(one["worker_id"]),
            text("–" if machine is None else machine.hostname, 80),
            *([text(", ".join(machine.labels) if machine else "", 200)] if labelled else []),
            short("–" if machine is None else machine.version),
            short(one["status"]),
            number(one["succeeded"], formatting.count(one["succeeded"])),
            number(one["failed"], formatting.count(one["failed"])),
            number(one["qps"], formatting.rate(one["qps"])),
            number(one["cpu_percent_of_core"], formatting.plain_percent(one["cpu_percent_of_core"])),
            number(one["wakeup_p99_ms"], formatting.ms(one["wakeup_p99_ms"])),
        ]

    measured = ("succeeded", "failed", "qps", "CPU of a core", "wake-up delay, ms")
    head = ("worker", "machine", *(("labels",) if labelled else ()), "version", "status", *measured)
    rows = map(row, summary["worker_results"][:ROWS_MAX])
    more = len(summary["worker_results"]) - ROWS_MAX
    listed = table("Workers", head, rows, words=5 if labelled else 4)
    listed += note(f"{more} more are in summary.json.") if more > 0 else ""
    return note(verdict) + health + listed + _connection_failures(client.get("connections") or {}) + note(SENT_ONCE)


def _delivered(delivered: Mapping[str, Any]) -> str:
    fraction = delivered.get("fraction")
    return "" if fraction is None else data(fraction, percent(fraction))


def _connection_failures(connections: Mapping[str, Any]) -> str:
    """Refused logins and lost connections with their errors. Charts and intervals.csv show when they occurred."""
    rows = [
        (
            short(one["worker_id"]),
            text(formatting.failure_kind(one), 80),
            f'<td class="n">{formatting.NONE if one["second"] is None else formatting.seconds(one["second"])}</td>',
            number(one["code"], formatting.NONE if one["code"] is None else str(one["code"])),
            text(one["text"], 300),
        )
        for one in connection_failures(connections)
    ]
    head = ("worker", "what", "at", "code", "error")
    caption = "The newest refused logins and lost connections; those of one second with one cause are one row"
    return table(caption, head, rows, words=2, last_words=1) if rows else ""


def enrichment(record: RunRecord) -> str:
    """Server-side times from the query history, or why there are none."""
    found = record.summary["enrichment"]
    if not found:
        status = f" (status {html(record.enrichment_status)})" if record.enrichment_status else ""
        return note(f"Server-side times are not known: the query history has not been read for this run{status}.")
    covered, total, coverage = found.get("enriched"), found.get("total"), found.get("coverage_percent")
    body = facts(
        [
            ("coverage", f"{data(coverage, formatting.plain_percent(coverage))} of the logged statements"),
            ("statements", f"{data(covered, formatting.count(covered))} of {data(total, formatting.count(total))}"),
            ("status", html(str(found.get("status") or ""))),
        ]
    )
    body += note(f"Incomplete: {html(str(found['reason']), 1_000)}.") if found.get("reason") else ""
    ledger = found.get("ledger_ms") or {}
    rows = (
        (text(name.replace("_", " "), 60), *(number(part.get(key), formatting.ms(part.get(key))) for key in LEDGER))
        for name, part in sorted(ledger.items(), key=lambda item: _order(item[0]))
    )
    samples = formatting.count(found.get("ledger_samples"))
    caption = f"Server-side times in ms, of {samples} statements"
    return body + (table(caption, ("part", *LEDGER.values()), rows) if ledger else "")


def _order(part: str) -> tuple[int, str]:
    """The sort key of a part, in the order of the tables; VARIANT columns keep no order."""
    return (SERVER_TIME_KINDS.index(part) if part in SERVER_TIME_KINDS else len(SERVER_TIME_KINDS), part)


def left_out(unreadable: Sequence[str]) -> list[str]:
    """Texts about the rows that a report leaves out; the first ones are named."""
    texts = [f"left out: {row}" for row in unreadable[:UNREADABLE_MAX]]
    more = len(unreadable) - len(texts)
    return [*texts, f"{more:,} more rows are left out"] if more > 0 else texts


def logs(record: RunRecord) -> str:
    """Warnings of the run and of its workers. Equal log lines are one row."""
    warnings = (*(record.summary["environment"].get(WARNINGS) or ()), *left_out(record.unreadable))
    noticed = "".join(note(html(str(warning))) for warning in warnings)
    if not record.logs:
        return noticed or note("No worker logged a warning.")
    groups: dict[tuple[str, str, str], list[datetime]] = {}
    for line in record.logs:
        groups.setdefault((line.worker_id or "orchestrator", line.level, line.message), []).append(line.moment)
    newest = sorted(groups.items(), key=lambda group: max(group[1]))[-LOGS_MAX:]
    rows = (
        (
            short(_moment(min(moments))),
            short(_moment(max(moments)) if len(moments) > 1 else ""),
            number(len(moments), formatting.count(len(moments))),
            short(who),
            short(level),
            text(message, 300),
        )
        for (who, level, message), moments in newest
    )
    head = ("first", "last", "times", "who", "level", "what")
    return noticed + table("The newest warnings and errors of workers", head, rows, words=2, last_words=3)


def repeat(record: RunRecord) -> str:
    run_id = str(record.summary["run_id"])
    lines = [*_run_command(record), f"loadgen report {run_id} --format html --out report.html"]
    introduction = note("scenario.yaml is in the folder of the run; the options set the values of this run.")
    try:
        config = json.dumps(json.loads(record.config), indent=2, ensure_ascii=False)
    except ValueError:
        config = record.config
    return introduction + code("\n".join(lines), 4_000) + details("The scenario of this run", code(config, CONFIG_MAX))


def _run_command(record: RunRecord) -> Iterator[str]:
    scenario = record.scenario
    if scenario is None:
        return
    load, words = scenario.load, ["loadgen run scenario.yaml"]
    if scenario.connection is not None:
        words.append(f"-c {shlex.quote(scenario.connection)}")
    settings = {"load.warmup": format_duration_s(load.warmup_s), "load.workers": str(load.workers)}
    if load.replay is not None:
        settings = {
            "load.speed": f"{load.replay.speed:g}",
            "load.users": str(load.replay.users),
            "load.workers": str(load.workers),
        }
    elif load.duration_s is not None and not load.stages:
        settings["load.duration"] = format_duration_s(load.duration_s)
    if load.mode is LoadMode.CONCURRENCY and not load.stages:
        settings["load.connections"] = str(load.connections)
    if load.mode is LoadMode.RATE and load.rate_per_second is not None:
        settings["load.rate"] = format_rate_per_second(load.rate_per_second)
    yield " \\\n    ".join([" ".join(words), *(f"--set {key}={value}" for key, value in settings.items())])


def _optional_ms(value: float | None) -> str:
    return "" if value is None else f"{data(value, formatting.ms(value))} ms"


def _moment(moment: datetime | None) -> str:
    return utc_iso(moment) or ""


REASONS_MAX = 20
SIGNS = {"passed": "✓", "failed": "✗", "invalid": "!", "cancelled": "■", "error": "✗"}


def report_html(record: RunRecord) -> str:
    """The page."""
    hover = HoverData()
    sections = list(_sections(record, hover))
    summary = record.summary
    verdict = html(formatting.verdict_word(str(summary["verdict"])))
    title = f"{html(summary['scenario'], 80)}: {verdict}, run {html(summary['run_id'], 40)}"
    return html_page(
        title,
        f"{_header(record, [(name, heading) for name, heading, _ in sections])}\n<main>{tiles(record)}\n",
        "\n".join(section(name, heading, body) for name, heading, body in sections),
        f"</main>\n{_footer(record)}",
        f'<script type="application/json" id="data">{html_json({"axes": hover.axes, "charts": hover.charts})}</script>',
        f"<script>{SCRIPT}</script>",
    )


def _header(record: RunRecord, headings: list[tuple[str, str]]) -> str:
    summary = record.summary
    verdict = str(summary["verdict"])
    reasons = summary["validity"]["reasons"]
    if verdict == "invalid":
        listed = "".join(f"<li>{html(reason)}</li>" for reason in reasons[:REASONS_MAX])
        why = f'<ul class="why">{listed}</ul>'
    else:
        why = f'<p class="why">{html(formatting.verdict_reason(summary), 1_000)}</p>'
        why += "".join(f'<p class="why">not valid: {html(reason)}</p>' for reason in reasons[:REASONS_MAX])
    warnings = summary["environment"].get(WARNINGS) or ()
    why += "".join(f'<p class="why warning">warning: {html(str(one))}</p>' for one in warnings[:REASONS_MAX])
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading in headings)
    sign = SIGNS.get(verdict, "")
    return (
        f'<header class="{html(verdict)}"><div class="banner">'
        f'<span class="verdict">{sign} {html(formatting.verdict_word(verdict).upper())}</span>'
        f"<h1>{html(summary['scenario'])}</h1></div>{why}"
        f'<p class="sub"><span>run {html(summary["run_id"])}</span>'
        f" · <span>{html(summary['started_at'] or 'never started')}</span></p>"
        f'<nav aria-label="Sections">{links}</nav></header>'
    )


def _footer(record: RunRecord) -> str:
    version = html(str(record.summary["environment"].get("loadgen", "")), 40)
    return (
        f"<footer><p>Made by loadgen {version} from the tables of the run. The same numbers, exactly: summary.json;"
        " second by second: intervals.csv.</p></footer>"
    )


def _sections(record: RunRecord, hover: HoverData) -> Iterator[tuple[str, str, str]]:
    summary = record.summary
    timeline = Timeline(record, hover) if record.seconds else None
    yield "run", "What was run", what_was_run(record)
    yield "thresholds", "Thresholds", thresholds(summary)
    if summary["find_max"]:
        yield "find-max", "Search for the maximum", find_max(record)
    yield "totals", "Totals", totals(summary)
    if summary.get("stages"):
        yield "stages", "Stages", stages(record)
    yield "timeline", "Over time", _over_time(timeline)
    yield "times", "Response times", times(record) + _spread(record)
    yield "statements", "Statements", statements(record, timeline)
    if summary.get("replay"):
        yield "replay", "Recorded and replayed", arrivals_chart(record, hover) + replayed(summary["replay"])
    yield "errors", "Errors", errors(summary)
    if "sessions" in summary:
        yield "sessions", "User sessions", sessions(record)
    yield "workers", "Load generator", workers(record) + (timeline.client() if timeline else "")
    yield "warehouse", "Warehouse", _warehouse(record, hover, timeline)
    yield "server", "Server times", enrichment(record)
    yield "log", "Warnings", logs(record)
    yield "repeat", "Repeat this run", repeat(record)


def _over_time(timeline: Timeline | None) -> str:
    if timeline is None:
        return note("No seconds of this run are stored.")
    joined = "" if timeline.joined_s == 1 else f" Each point joins up to {timeline.joined_s} seconds."
    return (
        timeline.throughput()
        + (timeline.latency() or note("Response times are not drawn: too few samples in most of the run."))
        + timeline.connections()
        + (timeline.failures() or note("Nothing failed, was skipped or cancelled."))
        + timeline.logins()
        + events(timeline.events)
        + (
            note(f"{counted(timeline.unmarked, 'earlier event')} not marked in the charts.")
            if timeline.unmarked
            else ""
        )
        + note(
            "qps and response times are of the statements that ended in each second, of any phase. The first and the"
            " last second have no qps, because only a part of them is known. A point with too few samples for a"
            f" percentile is joined with its neighbours.{joined}"
        )
    )


def _spread(record: RunRecord) -> str:
    if record.merged is None:
        return note(
            f"The percentile curve and the histogram cannot be drawn:"
            f" {html(record.merged_missing or 'no window was stored')}."
        )
    return f'<div class="pair">{percentile_curve(record)}{histogram_chart(record)}</div>{ranges(record)}'


def _warehouse(record: RunRecord, hover: HoverData, timeline: Timeline | None) -> str:
    if not any(poll.at_s >= 0 for poll in record.polls):
        return note("The warehouse was not polled: the scenario names none, or the run was too short.")
    sizes = dict.fromkeys(poll.size for poll in record.polls if poll.size)
    clusters = [poll.started_clusters for poll in record.polls if poll.started_clusters is not None]
    parts = [f"size {html(', '.join(sizes), 100)}" if sizes else ""]
    if clusters:
        span = f"{min(clusters)} to {max(clusters)}" if min(clusters) != max(clusters) else f"{clusters[0]}"
        parts.append(f"started clusters {span}")
    return _warehouse_chart(record, hover, timeline) + note("; ".join(part for part in parts if part))


def _warehouse_chart(record: RunRecord, hover: HoverData, timeline: Timeline | None) -> str:
    """Running and queued statements, as the warehouse reported them, on the time axis of the other charts."""
    end_s = math.inf if timeline is None else timeline.axis.high
    polls = [poll for poll in record.polls if 0 <= poll.at_s <= end_s]
    step = max(math.ceil(len(polls) / POINTS_MAX), 1)
    polls = polls[::step]
    places = [poll.at_s for poll in polls]

    def track(name: str, css: str, counts: Sequence[int | None], *, filled: bool = False) -> ChartSeries:
        values = [None if value is None else float(value) for value in counts]
        drawn = tuple(zip(places, values, strict=True))
        return ChartSeries(name=name, css=css, values=values, drawn=drawn, shown=formatting.count, filled=filled)

    tracks = [
        track("running", "s1", [poll.running for poll in polls], filled=True),
        track("queued", "s2", [poll.queued for poll in polls]),
    ]
    chart = Chart(
        chart_id="polls",
        title="Statements in the warehouse",
        description=described(tracks),
        x=time_axis(max(places)) if timeline is None else timeline.axis,
        y=value_axis([value for one in tracks for value in one.values]),
        lines=tuple(ChartLine(name=one.name, css=one.css, points=one.drawn, filled=one.filled) for one in tracks),
        bands=() if timeline is None else timeline.bands,
        marks=() if timeline is None else timeline.marks(),
        height=150,
        both_sides=True,
    )
    shown = [[track.shown(value) for value in track.values] for track in tracks]
    hover.add(chart, "polls", ((at_s, f"at {clock(at_s)}") for at_s in places), shown)
    return figure(chart, [(track.css, track.name, track.unit) for track in tracks])
