"""`loadgen report`, `loadgen compare` and `loadgen trend`: finished runs, from the tables of the control plane."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.common import echo, print_lines, print_verdict, terminal_width, warn
from loadgen.cli.options import control_options, count_option, format_option, html_option, with_control_session
from loadgen.errors import LoadgenError, UsageError
from loadgen.log import printable
from orchestrator.run_folder import write_file

if TYPE_CHECKING:
    from loadgen.results.comparisons import ComparisonRefusal

FORMATS = ("text", "json", "html", "md", "junit", "csv")
ENDINGS = {
    ".html": "html",
    ".htm": "html",
    ".md": "md",
    ".xml": "junit",
    ".csv": "csv",
    ".json": "json",
    ".txt": "text",
}


@click.command(
    epilog="\b\nExample:\n  loadgen report latest -c prod --out report.html\n"
    "  loadgen report 20261115-0200-orders-7f3a --format md"
)
@click.argument("run", metavar="RUN")
@click.option(
    "--format",
    "output",
    type=click.Choice(FORMATS),
    help="Format of the report; csv has one row per second.  [default: by the suffix of --out, or text]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write to this file instead of stdout.",
)
@control_options
def report(
    run: str,
    output: str | None,
    out: Path | None,
    **place: str | None,
) -> None:
    """Make a report of RUN from the tables of the control plane, on any machine.

    The report is identical to the file that the run itself wrote. RUN as in `loadgen runs show`.
    """
    kind = output or _by_ending(out)
    from loadgen.report.exports import RENDERERS
    from loadgen.report.run_page import left_out
    from loadgen.report.run_text import summary_lines
    from loadgen.results.run_record import read_record

    record = with_control_session(
        lambda session, retries: read_record(session, retries, run),
        name="report",
        **place,
    )

    for problem in left_out(record.unreadable):
        warn(problem)
    width = terminal_width()
    if kind == "text" and out is None and width is not None:
        print_lines(summary_lines(record.summary, width=width))
        return
    content = RENDERERS[kind](record)
    if out is None:
        echo(content, nl=False)
        return
    write_file(out, content)
    echo(f"wrote {printable(str(out))}", err=True)


def _by_ending(out: Path | None) -> str:
    if out is None:
        return "text"
    kind = ENDINGS.get(out.suffix.lower())
    if kind is None:
        raise UsageError(
            f"the suffix of {printable(str(out), 200)} does not name a format",
            remedy=f"Add --format {'|'.join(FORMATS)}, or use one of {' '.join(ENDINGS)}.",
        )
    return kind


# --- `loadgen compare`: is run B worse than run A, and how certain is that? ------------------------------------------


class NotComparable(LoadgenError):
    """The two runs cannot be compared."""

    exit_code = 2


@click.command(
    epilog="\b\nExample:\n  loadgen compare latest~1 latest\n"
    "  loadgen compare latest~1 latest --limit p95=5% --limit pay.p99=20%\n"
    "  loadgen compare latest~1 latest --vary target.warehouse --html compare.html"
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="[STATEMENT.]METRIC=PERCENT",
    help="Limit of a metric; the metric then counts toward the verdict.  [default: qps=5% p50=10% p90=10% p95=10%"
    " p99=15% avg=10% error_rate=0.5% (points) max_concurrency=10%]",
)
@click.option(
    "--vary",
    "varied",
    multiple=True,
    metavar="KEY",
    help="Compare runs although they differ in this setting of the scenario, or in settings below it: target.warehouse,"
    " load. Without this option such runs are not comparable.",
)
@html_option("Write a self-contained HTML page with both runs in each chart.")
@control_options
@format_option
def compare(
    a: str,
    b: str,
    limits: tuple[str, ...],
    varied: tuple[str, ...],
    html_file: Path | None,
    output: str,
    **place: str | None,
) -> int:
    """Compare run B with run A, the baseline: each change with its confidence interval, and a verdict.

    The change of each metric has a 95 % interval, from resampling blocks of seconds of both runs. A metric is
    equivalent if the whole interval lies within the limit; worse or better if the interval excludes zero and the change
    itself is beyond the limit; else inconclusive. The verdict is decided by qps, p50, p95 and error_rate, by p50 and
    p95 of each statement, and by metrics with a --limit; their intervals are widened for their number.

    Exit code 0 if B is better, equivalent or inconclusive, 11 if it is worse, 2 if the runs are not comparable: one is
    not COMPLETED or is INVALID, or their scenario, warehouse size, driver or workers differ. A and B are run ids,
    unique prefixes of run ids, `latest`, or `latest~1` for the run before.
    """
    from loadgen.report.compare import comparison_data, comparison_text
    from loadgen.report.run_text import verdict_lines
    from loadgen.results.comparisons import ComparisonRefusal, read_pair
    from loadgen.rules.comparability import parse_limits
    from loadgen.rules.comparison import compare as compare_runs

    wanted = parse_limits(limits)
    pair = with_control_session(
        lambda session, retries: read_pair(session, retries, (a, b), varied),
        name="compare",
        **place,
    )
    if isinstance(pair, ComparisonRefusal):
        return _refuse(pair, output)
    comparison = compare_runs(pair.a, pair.b, wanted, pair.configuration)
    if html_file is not None:
        from loadgen.report.compare import comparison_html

        write_file(html_file, comparison_html(comparison))

    def tell() -> None:
        if output == "json":
            echo(json.dumps(comparison_data(comparison), indent=2))
        else:
            width = terminal_width()
            print_lines(verdict_lines(comparison_text(comparison, width), comparison.verdict.value, width))

    return print_verdict(comparison.exit_code, tell)


def _refuse(refusal: ComparisonRefusal, output: str) -> int:
    """Print the refusal as JSON, or raise it as an error."""
    from loadgen.report.compare import differences_text, refusal_data

    if output == "json":
        data = refusal_data(refusal.a, refusal.b, refusal.reasons, refusal.hint, refusal.configuration)
        echo(json.dumps(data, indent=2))
        return NotComparable.exit_code
    forbidding = [one for one in refusal.configuration if one.forbids]
    text = "\n".join([f"not comparable: {'; '.join(refusal.reasons)}", *filter(None, [differences_text(forbidding)])])
    raise NotComparable(text, remedy=refusal.hint)


# --- `loadgen trend`: is the newest run of a scenario worse than the runs before? ------------------------------------

LAST_MAX = 300


@click.command(
    epilog="\b\nExample:\n  loadgen trend orders-mix\n  loadgen trend orders-mix --last 90 --html trend.html\n"
    "  loadgen run nightly.yaml --baseline trend"
)
@click.argument("scenario", metavar="SCENARIO")
@count_option("--last", default=30, maximum=LAST_MAX, help_text="Number of runs to show; all are judged.")
@html_option("Write a self-contained HTML page.")
@control_options
@format_option
def trend(
    scenario: str,
    last: int,
    html_file: Path | None,
    output: str,
    **place: str | None,
) -> int:
    """Show the runs of SCENARIO over time: is the newest worse than before, since when, and what else changed?

    SCENARIO is the `name:` in its file. Only comparable runs are judged: COMPLETED and VALID, with the same settings,
    driver version, workers, cores and warehouse size; at least six are needed. A regression is suspected if the newest
    run is worse by more than the limit and by more than random variation; the next run confirms or refutes it. If
    statements were cancelled, so that only a lower bound of a percentile is known, the verdict is suspected or
    undecided.

    Exit code 11 if the newest run confirms a regression that was not known before, else 0.
    """
    from loadgen.report.run_text import verdict_lines
    from loadgen.report.trend import trend_data, trend_html, trend_text
    from loadgen.results.comparisons import read_trend

    found = with_control_session(
        lambda session, retries: read_trend(session, retries, scenario),
        name="trend",
        **place,
    )
    if html_file is not None:
        write_file(html_file, trend_html(found, last))

    def tell() -> None:
        if output == "json":
            echo(json.dumps(trend_data(found, last), indent=2))
        else:
            width = terminal_width()
            print_lines(verdict_lines(trend_text(found, last, width), found.verdict.value, width))

    return print_verdict(found.exit_code, tell)
