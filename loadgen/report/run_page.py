"""report.html: a run as one page that needs nothing but itself. Pure.

It is readable without its script, which only shows what is under the cursor. Its Content-Security-Policy lets nothing
be loaded or sent, and no other script or style be obeyed. Every point of a chart is true: seconds are joined by merging
their samples, so the page stays small however long the run was.
"""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.report import run_tables as tables
from loadgen.report.formatting import html, html_json
from loadgen.report.page import SCRIPT, html_page, note, section
from loadgen.report.records import RunRecord
from loadgen.report.run_charts import HoverData, Timeline, warehouse_chart
from loadgen.report.run_distribution import histogram_chart, percentile_curve, ranges
from loadgen.report.run_replay import arrivals_chart, replayed
from loadgen.report.run_statements import find_max, sessions, stages, statements

REASONS_MAX = 20
SIGNS = {"passed": "✓", "failed": "✗", "invalid": "!", "cancelled": "■", "error": "✗"}


def report_html(record: RunRecord) -> str:
    """The page."""
    hover = HoverData()
    sections = list(_sections(record, hover))
    summary = record.summary
    title = f"{html(summary['scenario'], 80)}: {html(summary['verdict'])}, run {html(summary['run_id'], 40)}"
    return html_page(
        title,
        f"{_header(record, [(name, heading) for name, heading, _ in sections])}\n<main>{tables.tiles(record)}\n",
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
        why = f'<p class="why">{html(summary["exit_reason"])}</p>'
        why += "".join(f'<p class="why">not valid: {html(reason)}</p>' for reason in reasons[:REASONS_MAX])
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading in headings)
    sign = SIGNS.get(verdict, "")
    return (
        f'<header class="{html(verdict)}"><div class="banner">'
        f'<span class="verdict">{sign} {html(verdict.upper())}</span>'
        f"<h1>{html(summary['scenario'])}</h1></div>{why}"
        f'<p class="sub">run {html(summary["run_id"])} · {html(summary["started_at"] or "never started")}</p>'
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
    yield "run", "What was run", tables.what_was_run(record)
    yield "thresholds", "Thresholds", tables.thresholds(summary)
    if summary["find_max"]:
        yield "find-max", "Search for the maximum", find_max(record)
    yield "totals", "Totals", tables.totals(summary)
    if summary.get("stages"):
        yield "stages", "Stages", stages(record)
    yield "timeline", "Over time", _over_time(timeline)
    yield "times", "Response times", tables.times(record) + _spread(record)
    yield "statements", "Statements", statements(record, timeline)
    if summary.get("replay"):
        yield "replay", "Recorded and replayed", arrivals_chart(record, hover) + replayed(summary["replay"])
    yield "errors", "Errors", tables.errors(summary)
    if "sessions" in summary:
        yield "sessions", "User sessions", sessions(record)
    yield "workers", "Load generator", tables.workers(record) + (timeline.client() if timeline else "")
    yield "warehouse", "Warehouse", _warehouse(record, hover)
    yield "server", "Server times", tables.enrichment(record)
    yield "log", "Warnings", tables.logs(record)
    yield "repeat", "Repeat it", tables.repeat(record)


def _over_time(timeline: Timeline | None) -> str:
    if timeline is None:
        return note("No second of this run was recorded.")
    joined = "" if timeline.joined_s == 1 else f" Each point joins up to {timeline.joined_s} seconds."
    return (
        timeline.throughput()
        + (timeline.latency() or note("Response times are not drawn: too few samples in most of the run."))
        + timeline.connections()
        + (timeline.failures() or note("Nothing failed, was skipped or cancelled."))
        + tables.events(timeline.events)
        + note(
            "Seconds in which the phase changed have no rate: only a part of them was measured. Where a point has too"
            f" few samples for a percentile, its neighbours are taken with it.{joined}"
        )
    )


def _spread(record: RunRecord) -> str:
    if record.merged is None:
        return note(
            f"The curve and the spread cannot be drawn: {html(record.merged_missing or 'no window was stored')}."
        )
    return f'<div class="pair">{percentile_curve(record)}{histogram_chart(record)}</div>{ranges(record)}'


def _warehouse(record: RunRecord, hover: HoverData) -> str:
    if not any(poll.at_s >= 0 for poll in record.polls):
        return note("The warehouse was not looked at: none is named, or the run was too short.")
    sizes = dict.fromkeys(poll.size for poll in record.polls if poll.size)
    clusters = [poll.started_clusters for poll in record.polls if poll.started_clusters is not None]
    said = [f"size {html(', '.join(sizes), 100)}" if sizes else ""]
    if clusters:
        span = f"{min(clusters)} to {max(clusters)}" if min(clusters) != max(clusters) else f"{clusters[0]}"
        said.append(f"started clusters {span}")
    return warehouse_chart(record, hover) + note("; ".join(part for part in said if part))
