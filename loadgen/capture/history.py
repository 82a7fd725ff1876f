"""Reads the query history of one warehouse, newest rows first: INFORMATION_SCHEMA for seven days, then ACCOUNT_USAGE.

The table function returns at most 10,000 rows, those that ended last. A full page is complete down to its oldest end,
so the next page ends there. ACCOUNT_USAGE is an ordinary view, and is read day by day, in the same order.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

from loadgen.errors import ConfigurationError
from loadgen.log import printable
from loadgen.model.capture import BindValue
from loadgen.snowflake.account_history import AccountHistorySession
from loadgen.snowflake.ident import Identifier, text_literal, timestamp_literal
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.session import NOT_RETRYABLE, RetryPolicy, StatementFailed
from loadgen.values import dataclass

PAGE_ROWS = 10_000  # maximum of the table function
RETENTION = timedelta(days=7)  # of the table function
RETENTION_MARGIN = timedelta(minutes=10)  # rows near the end of the retention may expire before they are read
OLDEST = timedelta(days=365)  # retention of ACCOUNT_USAGE
DAY = timedelta(days=1)
AGGREGATE_LATE = timedelta(hours=3)  # AGGREGATE_QUERY_HISTORY, at most
STATEMENT_S = 600
ELAPSED_MS_MAX = OLDEST / timedelta(milliseconds=1)
FIELD_CHARACTERS_MAX = 16 * 1024 * 1024  # of a CSV file

_COLUMNS = (
    *("QUERY_TEXT", "DATABASE_NAME", "SCHEMA_NAME", "SESSION_ID", "USER_NAME", "ROLE_NAME", "QUERY_TAG"),
    *("EXECUTION_STATUS", "START_TIME", "END_TIME", "TOTAL_ELAPSED_TIME", "ROWS_PRODUCED", "BIND_VALUES"),
)
_PAGE = """
SELECT {columns}
FROM TABLE({database}INFORMATION_SCHEMA.QUERY_HISTORY_BY_WAREHOUSE(
    WAREHOUSE_NAME => {warehouse}, END_TIME_RANGE_START => {start}, END_TIME_RANGE_END => {end},
    RESULT_LIMIT => {limit}))
"""
_DAY = """
SELECT {columns}
FROM SNOWFLAKE.ACCOUNT_USAGE.QUERY_HISTORY
WHERE WAREHOUSE_NAME = {warehouse} AND END_TIME >= {start} AND END_TIME < {end}
    AND NOT COALESCE(IS_CLIENT_GENERATED_STATEMENT, FALSE)
ORDER BY END_TIME DESC
"""
_COUNTS = """
SELECT (
    SELECT COALESCE(SUM(CALLS), 0) FROM SNOWFLAKE.ACCOUNT_USAGE.AGGREGATE_QUERY_HISTORY
    WHERE WAREHOUSE_NAME = {warehouse} AND INTERVAL_START_TIME >= {start}
        AND INTERVAL_START_TIME < {end} AND NOT COALESCE(IS_CLIENT_GENERATED_STATEMENT, FALSE)
) AS CALLS, (
    SELECT COUNT(*) FROM SNOWFLAKE.ACCOUNT_USAGE.QUERY_HISTORY
    WHERE WAREHOUSE_NAME = {warehouse} AND START_TIME >= {start}
        AND START_TIME < {end} AND NOT COALESCE(IS_CLIENT_GENERATED_STATEMENT, FALSE)
) AS RECORDED
"""


class HistoryUnreadable(StatementFailed):
    """The query history cannot be read."""

    remedy = "The role needs MONITOR on the warehouse; see docs/capture.md."


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One statement in the history. Times are naive UTC."""

    text: str
    session_id: int
    start: datetime
    end: datetime
    elapsed_ms: float
    succeeded: bool = True
    database: str | None = None
    schema: str | None = None
    user: str | None = None
    role: str | None = None
    tag: str | None = None
    rows: int | None = None
    binds: tuple[BindValue, ...] | None = None  # None: not in the history


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPart:
    """Rows that ended in one part of the span. Rows that ended before `left_until` are not read yet; None: all are."""

    rows: Sequence[HistoryRow]
    left_until: datetime | None


ReadPage = Callable[[datetime, datetime], Sequence[HistoryRow]]


def backwards(read: ReadPage, start: datetime, end: datetime, limit: int) -> Iterator[HistoryPart]:
    """The pages of a span, newest first. `read` returns at most `limit` rows, those that ended last."""
    while True:
        # It is not documented whether a range includes its end, so a millisecond more is read and filtered here.
        page = read(start, end + timedelta(milliseconds=1))
        inside = [row for row in page if start <= row.end <= end]
        if len(page) < limit:
            yield HistoryPart(rows=inside, left_until=None)
            return
        oldest = min(row.end for row in page)
        if not start < oldest < end:
            what = f"more than {limit:,} statements ended within a millisecond of {oldest.isoformat()}"
            raise HistoryUnreadable(what, NOT_RETRYABLE, remedy="Choose a span without this moment.")
        yield HistoryPart(rows=[row for row in inside if row.end > oldest], left_until=oldest)
        end = oldest


class WarehouseHistory(AccountHistorySession):
    """The history of one warehouse, read in one session."""

    what, failed, role, statement_limit_s = "the query history", HistoryUnreadable, "capture", STATEMENT_S

    def __init__(
        self, profile: ConnectionProfile, warehouse: str, retries: RetryPolicy, environ: Mapping[str, str] = os.environ
    ) -> None:
        super().__init__(profile, environ)
        self._retries, self._warehouse = retries, warehouse
        self._database: str | None = None  # qualifies the table function; None: not looked up yet

    def now(self) -> datetime:
        return self._retries.call(super().now)

    def parts(self, start: datetime, end: datetime) -> Iterator[HistoryPart]:
        """All statements that ended in a span, newest first."""
        recent = max(start, self.now() - RETENTION + RETENTION_MARGIN)
        if end > recent:
            for part in backwards(self._page, recent, end, PAGE_ROWS):
                done = part.left_until is None and start < recent
                yield HistoryPart(rows=part.rows, left_until=recent) if done else part
        end = min(end, recent)
        while end > start:
            first = max(start, end - DAY)
            yield from self._day(first, end, last=first == start)
            end = first

    def _qualifier(self) -> str:
        """The name of any database: its INFORMATION_SCHEMA contains the history of the account."""
        if self._profile.text("database"):
            return ""
        databases = self._retries.call(self._databases)
        if not databases:
            what = f"the role of connection {self._profile.name} has USAGE on no database"
            raise HistoryUnreadable(what, NOT_RETRYABLE, remedy="Grant USAGE on any database, and set it.")
        return f"{Identifier(str(databases[0]['name']))}."

    def _databases(self) -> list[dict[str, Any]]:
        with self.reading():
            return self.named_rows("SHOW DATABASES")

    def _page(self, start: datetime, end: datetime) -> list[HistoryRow]:
        return self._retries.call(lambda: [_row(row) for row in self.fetch(self._sql(_PAGE, start, end))])

    def unrecorded(self, start: datetime, end: datetime) -> int:
        """The number of statements missing in the history, in the whole minutes around a span: AGGREGATE_QUERY_HISTORY
        counts all, including short ones on hybrid tables."""
        first, last = start.replace(second=0, microsecond=0), end.replace(second=0, microsecond=0)
        sql = self._sql(_COUNTS, first, last if last == end else last + timedelta(minutes=1))
        calls, recorded = self._retries.call(lambda: self.fetch(sql))[0]
        return max(0, int(calls) - int(recorded))

    def _day(self, start: datetime, end: datetime, *, last: bool) -> Iterator[HistoryPart]:
        """A day of ACCOUNT_USAGE in batches, newest first. After a lost connection reading continues at the last
        row."""
        found: list[HistoryRow] = []  # incomplete: more rows may have ended at the same time as the oldest
        batches: Iterator[list[HistoryRow]] | None = None

        def next_batch() -> list[HistoryRow]:
            nonlocal batches, found
            if batches is None:
                batches, found = self._batches(self._sql(_DAY, start, end)), []
            try:
                return next(batches, [])
            except BaseException:
                batches = None
                raise

        while batch := self._retries.call(next_batch):
            found += batch
            oldest = found[-1].end
            complete = [row for row in found if row.end > oldest]
            if complete:
                end = oldest + timedelta(microseconds=1)  # the range does not include its end
                found = [row for row in found if row.end <= oldest]
                yield HistoryPart(rows=complete, left_until=end)
        yield HistoryPart(rows=found, left_until=None if last else start)

    def _batches(self, sql: str) -> Iterator[list[HistoryRow]]:
        with self.reading(), self.cursor() as cursor:
            cursor.execute(sql)
            while rows := cursor.fetchmany(PAGE_ROWS):
                yield [_row(row) for row in rows]

    def _sql(self, template: str, start: datetime, end: datetime) -> str:
        self._database = self._qualifier() if self._database is None else self._database
        return template.format(
            columns=", ".join(_COLUMNS),
            database=self._database,
            warehouse=text_literal(self._warehouse),
            limit=PAGE_ROWS,
            start=timestamp_literal(start),
            end=timestamp_literal(end),
        )


def _row(row: Sequence[Any]) -> HistoryRow:
    text, database, schema, session_id, user, role, tag, status, start, end, elapsed_ms, rows, binds = row
    return HistoryRow(
        text=text or "",
        session_id=int(session_id),
        start=_utc(start),
        end=_utc(end),
        elapsed_ms=float(elapsed_ms or 0.0),
        succeeded=str(status).upper() == "SUCCESS",
        database=database,
        schema=schema,
        user=user,
        role=role,
        tag=tag or None,
        rows=None if rows is None else int(rows),
        binds=bind_values(binds),
    )


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def bind_values(stored: Any) -> tuple[BindValue, ...] | None:
    """BIND_VALUES in order, from an object by position or an array; None: missing, or not by position."""
    try:
        found = json.loads(stored) if isinstance(stored, str) else stored
        if isinstance(found, dict):
            found = [found[str(position)] for position in range(1, len(found) + 1)]
        return None if found is None else tuple(_bind_value(one) for one in found)
    except (ValueError, KeyError, TypeError):
        return None


def _bind_value(one: Any) -> BindValue:
    if isinstance(one, dict):
        kind, value = str(one["type"]), one["value"]
    else:
        kind, value = "TEXT" if isinstance(one, str) else "FIXED", one
    if not isinstance(value, (str, int, float, bool, type(None))):
        raise TypeError("a bind value is not one value")
    return kind, value


# --- A CSV file of QUERY_HISTORY -------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  naive UTC, as the rows are
_NUMBER, _WHOLE_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?"), re.compile(r"-?\d{1,18}")
_NEEDED = ("QUERY_TEXT", "SESSION_ID", "START_TIME")
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?\s*(?:Z|([+-]\d\d):?(\d\d))?", re.IGNORECASE
)


class InvalidHistoryFile(ConfigurationError):
    remedy = "Export the rows of QUERY_HISTORY as CSV with a header; see docs/capture.md."


def read_csv(path: Path) -> Iterator[HistoryRow]:
    """Rows of a CSV file with a header, in the order of the file."""
    before = csv.field_size_limit(FIELD_CHARACTERS_MAX)  # the limit is global in this process
    shown = printable(str(path), 200)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(_lines(file, shown), strict=True)
            names = [name.strip().upper() for name in next(rows, ())]
            absent = [name for name in _NEEDED if name not in names]
            if absent:
                raise InvalidHistoryFile(f"{shown}: there is no column {', '.join(absent)}")
            for row in rows:
                if row:
                    yield _row_of_csv(dict(zip(names, row, strict=False)), f"{shown}:{rows.line_num}")
    except OSError as error:
        raise InvalidHistoryFile(f"cannot read {shown}: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidHistoryFile(f"{shown} is not a CSV file in UTF-8: {error}") from error
    finally:
        csv.field_size_limit(before)


def _lines(file: TextIO, shown: str) -> Iterator[str]:
    """The lines of the file. Raises for a line that is too long: it would fill the memory."""
    while line := file.readline(FIELD_CHARACTERS_MAX):
        if len(line) >= FIELD_CHARACTERS_MAX and not line.endswith("\n"):
            raise InvalidHistoryFile(f"{shown} has a line of more than {FIELD_CHARACTERS_MAX:,} characters")
        yield line


def _row_of_csv(row: Mapping[str, str | None], where: str) -> HistoryRow:
    try:
        start = _moment(row.get("START_TIME") or "")
        elapsed = row.get("TOTAL_ELAPSED_TIME")
        end = row.get("END_TIME")
        if not elapsed and not end:
            raise ValueError("neither TOTAL_ELAPSED_TIME nor END_TIME has a value")
        if start < _EPOCH:
            raise ValueError(f"START_TIME is {start.isoformat(sep=' ')} UTC, and there is no history before 1970")
        elapsed_ms = _elapsed_ms(elapsed) if elapsed else (_moment(end or "") - start).total_seconds() * 1000
        if elapsed_ms < 0:
            raise ValueError("the statement ends before it starts")
        if elapsed_ms > ELAPSED_MS_MAX:
            raise ValueError(
                f"the statement took {elapsed_ms / 86_400_000:,.0f} days; the maximum is {OLDEST.days} days"
            )
        produced = row.get("ROWS_PRODUCED")
        return HistoryRow(
            text=row.get("QUERY_TEXT") or "",
            session_id=_whole_number(row.get("SESSION_ID") or "", "SESSION_ID"),
            start=start,
            end=start + timedelta(milliseconds=elapsed_ms),
            elapsed_ms=elapsed_ms,
            succeeded=(row.get("EXECUTION_STATUS") or "SUCCESS").upper() == "SUCCESS",
            database=row.get("DATABASE_NAME") or None,
            schema=row.get("SCHEMA_NAME") or None,
            user=row.get("USER_NAME") or None,
            role=row.get("ROLE_NAME") or None,
            tag=row.get("QUERY_TAG") or None,
            rows=_whole_number(produced, "ROWS_PRODUCED") if produced else None,
            binds=bind_values(row.get("BIND_VALUES") or None),
        )
    except OverflowError as error:
        raise InvalidHistoryFile(f"{where}: a time is not in the years 1970 to 9999") from error
    except (ValueError, TypeError) as error:
        raise InvalidHistoryFile(f"{where}: {error}") from error


def _moment(text: str) -> datetime:
    """2026-11-15 02:00:00.123 -0800, or ISO 8601; without an offset it is UTC."""
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{printable(text, 40)!r} is not a time such as 2026-11-15 02:00:00.123 +0000")
    day, clock, fraction, hours, minutes = found.groups()
    moment = datetime.fromisoformat(
        f"{day}T{clock}.{(fraction or '0')[:6]:0<6}" if clock.count(":") == 2 else f"{day}T{clock}"
    )
    if hours is None:
        return moment
    offset = timedelta(hours=int(hours), minutes=int(f"{hours[0]}{minutes}"))
    return moment - offset


def _elapsed_ms(text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"TOTAL_ELAPSED_TIME is {printable(text, 40)!r}, and must be milliseconds")
    return float(text)


def _whole_number(text: str, column: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{column} is {printable(text, 40)!r}, and must be a whole number")
    return int(text)
