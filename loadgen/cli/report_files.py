"""The files a run leaves for people, each whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from loadgen.errors import cannot_write
from loadgen.report.intervals import intervals_csv
from loadgen.report.junit import junit_xml
from loadgen.report.markdown import report_markdown
from loadgen.report.run_page import report_html
from loadgen.report.text import summary_text
from loadgen.results.records import RunRecord
from orchestrator.run_folder import open_private

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
