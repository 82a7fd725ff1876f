"""A result that is amended after the end of its run, in its table and in its folder: all that speaks of it agrees."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.cli.report_files import write_file, write_reports
from loadgen.cli.run_record import read_record
from loadgen.control.retry import RetryPolicy
from loadgen.control.session import ControlSession
from loadgen.control.tables import test_results
from loadgen.results.records import RunRecord

SUMMARY = "summary.json"

# From a summary to the same with what has become known.
SummaryUpdate = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def update_stored_summary(
    session: ControlSession, patience: RetryPolicy, run_id: str, change: SummaryUpdate
) -> RunRecord | None:
    """Amend the stored summary. The record for reports; None: the run has no result."""
    rows = patience.call(lambda: test_results.read(session, run_id))
    stored = next((row.summary for row, _ in rows if row.test_id == run_id), None)
    if stored is None:
        return None
    test_results.amend(session, patience, run_id, json.dumps(change(json.loads(stored))))
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
