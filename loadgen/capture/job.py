"""One capture from its source, the history of a warehouse or a CSV file, to its folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

from loadgen.capture.history import (
    AGGREGATE_LATE,
    OLDEST,
    HistoryRow,
    HistoryUnreadable,
    WarehouseHistory,
    read_csv,
)
from loadgen.capture.recorder import CaptureFilter, CaptureOptions, CaptureRecorder
from loadgen.errors import UsageError
from loadgen.log import printable
from loadgen.model.capture import CaptureManifest
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import counted
from loadgen.values import dataclass

ATTEMPTS = 5  # to read one page
IMPORT_ROWS, PROGRESS_ROWS = 10_000, 100_000  # per batch, and between two lines of progress

Moment = datetime | timedelta  # naive UTC, or a time before now


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureJob:
    """Records statements into a folder. It is continued if an earlier job with the same arguments was interrupted."""

    folder: Path
    filters: CaptureFilter
    keep_values: bool
    hide_names: bool
    arguments: dict[str, str]  # of the command line
    tell: Callable[[str], None]  # progress
    warn: Callable[[str], None]

    def record_warehouse(self, connection: str | None, warehouse: str, since: Moment, until: Moment) -> CaptureManifest:
        """Record the statements that a warehouse executed. Calls the driver."""
        profile, stop = find_profile(connection), threading.Event()
        retries = RetryPolicy(stop=stop, attempts=ATTEMPTS, note=lambda error: self.warn(f"{error}; trying again"))
        history = WarehouseHistory(profile, warehouse, retries)
        try:
            now = history.now()
            start, end = span_of(since, until, now)
            source = f"the history of warehouse {printable(warehouse, 100)}"
            recorder = self._recorder(source, start, end)
            start, end = recorder.options.start or start, recorder.options.end or end
            if recorder.left_until is not None:
                end = recorder.left_until
                self.tell(f"continuing at {_shown(end)}, with {counted(recorder.taken, 'statement')}")
            for part in history.parts(start, end):
                recorder.add(part.rows)
                if part.left_until is None or part.left_until < end:
                    end = part.left_until or start
                    recorder.save(end)
                self.tell(f"{counted(recorder.taken, 'statement')}, back to {_shown(end)}")
            return recorder.finish(*self._unrecorded(history, start, recorder.options.end or now, now))
        finally:
            stop.set()
            history.close()

    def record_file(self, file: Path) -> CaptureManifest:
        """Record the rows of a CSV file."""
        batches = _batches(read_csv(file))
        batch = next(batches, [])  # before the recorder, so that an unreadable file leaves no folder
        recorder = self._recorder("a CSV file")
        number = 0
        while batch:
            recorder.add(batch)
            number += len(batch)
            if not number % PROGRESS_ROWS:
                self.tell(f"read {counted(number, 'statement')}")
            batch = next(batches, [])
        return recorder.finish(None, "a CSV file does not contain this")

    def _recorder(self, source: str, start: datetime | None = None, end: datetime | None = None) -> CaptureRecorder:
        options = CaptureOptions(
            source=source,
            filters=self.filters,
            keep_values=self.keep_values,
            hide_names=self.hide_names,
            start=start,
            end=end,
        )
        return CaptureRecorder(self.folder, options, self.arguments)

    def _unrecorded(
        self, history: WarehouseHistory, start: datetime, end: datetime, now: datetime
    ) -> tuple[int | None, str]:
        """The number of statements that the history lacks, and a remark on it."""
        try:
            found = history.unrecorded(start, end)
        except HistoryUnreadable as error:
            self.warn(f"statements that are missing in the history were not counted: {error}")
            return None, "SNOWFLAKE.ACCOUNT_USAGE.AGGREGATE_QUERY_HISTORY could not be read with this role"
        late = end > now - AGGREGATE_LATE
        return found, "AGGREGATE_QUERY_HISTORY is up to 3 hours late, so there may be more" if late else ""


def span_of(since: Moment, until: Moment, now: datetime) -> tuple[datetime, datetime]:
    """Start and end in naive UTC, between the reach of the history and now."""
    start, end = (now - one if isinstance(one, timedelta) else one for one in (since, until))
    end = min(now, end)
    if start >= end:
        what = f"--from ({_shown(start)}) is not before --to ({_shown(end)})"
        raise UsageError(what, remedy="Write times in UTC, or for example --from 4h --to 2h.")
    if start < now - OLDEST:
        raise UsageError(
            f"--from ({_shown(start)}) is more than {OLDEST.days} days ago",
            remedy="Choose a later --from: QUERY_HISTORY has no older statements.",
        )
    return start, end


def _batches(rows: Iterator[HistoryRow]) -> Iterator[list[HistoryRow]]:
    while batch := list(islice(rows, IMPORT_ROWS)):
        yield batch


def _shown(moment: datetime) -> str:
    return f"{moment.isoformat(sep=' ', timespec='seconds')} UTC"
