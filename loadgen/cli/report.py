"""`loadgen report`: the report of a run, made again from its tables."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.cli.common import echo, print_lines, terminal_width
from loadgen.cli.control_session import control_options, with_control_session
from loadgen.errors import UsageError
from loadgen.log import printable

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
    help="What to make; csv has one row per second.  [default: by the ending of --out, or text]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write to this file; without it the report goes to stdout.",
)
@control_options
def report(
    run: str,
    output: str | None,
    out: Path | None,
    connection: str | None,
    database: str | None,
    schema: str | None,
    warehouse: str | None,
) -> None:
    """Make a report of RUN from the tables of its control plane, on any machine, as often as you like.

    It is the same, byte for byte, that the run itself has left. RUN as for `loadgen runs show`.
    """
    kind = output or _by_ending(out)
    from loadgen.cli.run_record import read_record

    record = with_control_session(
        lambda session, patience: read_record(session, patience, run),
        name="report",
        connection=connection,
        database=database,
        schema=schema,
        warehouse=warehouse,
    )
    from loadgen.cli.report_files import RENDERERS, write_file

    width = terminal_width()
    if kind == "text" and out is None and width is not None:
        from loadgen.report.text import summary_lines

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
            f"the ending of {printable(str(out), 200)} does not say what to write",
            remedy=f"Add --format {'|'.join(FORMATS)}, or use one of {' '.join(ENDINGS)}.",
        )
    return kind
