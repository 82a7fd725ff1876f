"""`loadgen report`: the report of a run, made again from its tables."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from loadgen.cli.common import echo, print_lines, terminal_width
from loadgen.cli.options import control_options, with_control_session
from loadgen.control.session import ControlSession
from loadgen.control.tables import test_results
from loadgen.errors import UsageError, cannot_write
from loadgen.log import printable
from loadgen.report.records import RunRecord
from loadgen.report.run_exports import intervals_csv, junit_xml, report_markdown
from loadgen.report.run_page import left_out, report_html
from loadgen.report.run_text import summary_text
from loadgen.results.run_record import read_record
from loadgen.results.stored_summary import read_summary
from loadgen.snowflake.session import RetryPolicy
from orchestrator.run_folder import open_private

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
    **place: str | None,
) -> None:
    """Make a report of RUN from the tables of its control plane, on any machine, as often as you like.

    It is the same, byte for byte, that the run itself has left. RUN as for `loadgen runs show`.
    """
    kind = output or _by_ending(out)
    from loadgen.results.run_record import read_record

    record = with_control_session(
        lambda session, patience: read_record(session, patience, run),
        name="report",
        **place,
    )

    for problem in left_out(record.unreadable):
        echo(f"warning: {printable(problem, 500)}", err=True)
    width = terminal_width()
    if kind == "text" and out is None and width is not None:
        from loadgen.report.run_text import summary_lines

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


STEP_SUMMARY = "GITHUB_STEP_SUMMARY"  # a file that GitHub Actions shows as Markdown

RENDERERS: Mapping[str, Callable[[RunRecord], str]] = {
    "text": lambda record: f"{summary_text(record.summary)}\n",
    "json": lambda record: f"{json.dumps(record.summary, indent=2)}\n",
    "html": report_html,
    "md": report_markdown,
    "junit": junit_xml,
    "csv": intervals_csv,
}
FILES = {"html": "report.html", "md": "report.md", "junit": "junit.xml", "csv": "intervals.csv"}


def write_reports(folder: Path, record: RunRecord, environ: Mapping[str, str] = os.environ) -> None:
    """All of FILES into the folder of a run; where GitHub Actions asks for it, the Markdown to its summary as well."""
    for write in report_writers(folder, record, environ).values():
        write()


def report_writers(
    folder: Path, record: RunRecord, environ: Mapping[str, str] = os.environ
) -> dict[str, Callable[[], None]]:
    """The same, one by one, by the name of the file: one that fails does not cost the others."""
    writers: dict[str, Callable[[], None]] = {
        name: partial(_write_report, folder, kind, record) for kind, name in FILES.items()
    }
    if page := environ.get(STEP_SUMMARY):
        writers[f"${STEP_SUMMARY}"] = partial(_append, Path(page), record)
    return writers


def _write_report(folder: Path, kind: str, record: RunRecord) -> None:
    write_file(folder / FILES[kind], RENDERERS[kind](record))


def _append(path: Path, record: RunRecord) -> None:
    with _telling(path), path.open("a", encoding="utf-8") as page:
        page.write(report_markdown(record))


def write_file(path: Path, content: str) -> None:
    """Beside it first, then in its place: a reader sees the old file or the new one, and a full disk leaves no part of
    it. A new file is for its owner alone; one that was there keeps its mode."""
    with _telling(path):
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: nothing to put in its place
            path.write_text(content, "utf-8", newline="")
            return
        mode = stat.S_IMODE(path.stat().st_mode) if path.is_file() else 0o600
        draft = path.with_name(f".{path.name}.tmp")
        with _removed_on_failure(draft):
            with open_private(draft, mode) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)


@contextmanager
def _removed_on_failure(draft: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, "Choose another file or folder that you may write to.") from error


SUMMARY = "summary.json"

# From a summary to the same with what has become known.
SummaryUpdate = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def update_stored_summary(
    session: ControlSession, patience: RetryPolicy, run_id: str, change: SummaryUpdate
) -> RunRecord | None:
    """Amend the stored summary. The record for reports; None: the run has no result."""
    stored = read_summary(session, patience, run_id)
    if stored is None:
        return None
    test_results.amend(session, patience, run_id, json.dumps(change(stored)))
    return read_record(session, patience, run_id)


def rewrite_reports(folder: Path, record: RunRecord, change: SummaryUpdate) -> bool:
    """What the run has left in its folder; False: it is not here. A baseline's verdict stands only in these files."""
    path = folder / SUMMARY
    if not path.exists():
        return False
    summary = change(_read(path, record.summary))
    write_file(path, f"{json.dumps(summary, indent=2)}\n")
    write_reports(folder, replace(record, summary=summary), environ={})  # the summary page of a CI job has it already
    return True


def _read(path: Path, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """The summary in the folder; if that is damaged, the one that is stored."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return stored
    return found if isinstance(found, dict) and _is_whole(found, stored) else stored


def _is_whole(found: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Has it every part that the stored one has?"""
    parts = (key for key, value in stored.items() if isinstance(value, (dict, list)))
    return stored.keys() <= found.keys() and all(type(found[part]) is type(stored[part]) for part in parts)
