"""`loadgen trend`: is the newest run of a scenario worse than it used to be?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from loadgen.cli.common import echo, print_lines, print_verdict, terminal_width
from loadgen.cli.options import control_options, count_option, format_option, html_option, with_control_session

LAST_MAX = 300


@click.command(
    epilog="\b\nExample:\n  loadgen trend orders-mix\n  loadgen trend orders-mix --last 90 --html trend.html\n"
    "  loadgen run nightly.yaml --baseline trend"
)
@click.argument("scenario", metavar="SCENARIO")
@count_option("--last", default=30, maximum=LAST_MAX, help_text="Number of runs to show; all are judged.")
@html_option("Write the trend into one file that needs no network.")
@control_options
@format_option
def trend(
    scenario: str,
    last: int,
    html_file: Path | None,
    output: str,
    **place: str | None,
) -> int:
    """Look at the runs of SCENARIO over time: is the newest worse than before, since when, and what else changed?

    SCENARIO is the `name:` of its file. Only comparable runs are judged: COMPLETED and VALID ones of the same settings,
    driver version, workers, cores and warehouse size; six are needed to judge the newest. A run that is worse by more
    than its limit and by more than chance is suspected; the next one confirms it, or does not. When statements were
    cancelled, so that a percentile is only known to be at least some value, the run is suspected or undecided.

    Exit code 11 when the newest run confirms a regression that was not known before, else 0.
    """
    from loadgen.cli.report import write_file
    from loadgen.report.run_text import verdict_lines
    from loadgen.report.trend import trend_data, trend_text
    from loadgen.report.trend_page import trend_html
    from loadgen.results.trend_runs import read_trend

    found = with_control_session(
        lambda session, patience: read_trend(session, patience, scenario),
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
