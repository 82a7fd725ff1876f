"""The query log: executed statements one by one, kept in a file until the end of the run, then uploaded.

Each client appends tuples to its deque. Once a second the main thread turns them into records of fixed size, and
appends these to `executions.bin`. Records refer to windows and error texts by number. These are in `executions.jsonl`,
one checksum and JSON object per line, written before the first record that refers to them. A killed process loses its
last second. Truncated or damaged records are recognised by length or checksum, and left out. If the upload fails, the
file is kept.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from loadgen.errors import RunFailed
from loadgen.metrics.recorder import FailedOutcome, Outcome, Window
from loadgen.model.workload import StatementKind
from loadgen.scenario.settings import QueryLogMode
from loadgen.scenario.settings import QueryLogSettings as Policy
from loadgen.snowflake.driver import Cursor
from loadgen.values import dataclass

VERSION = 1
RECORDS, METADATA = "executions.bin", "executions.jsonl"
ERROR_TEXTS_MAX = 1_000  # different texts; of further ones only the code is kept
_NO_ROWS = -1
_NO_CODE = -(2**31)
_CODE_MAX = 2**31 - 1
_NO_ERROR = 0xFFFF
_QUERY_ID_BYTES = 36
_GAP_MAX = 2.0**62
# query id, statement, window, due, sent, done, rows, outcome, code, error; then a checksum of these
_RECORD = struct.Struct("<36sHIqqqqBiH")
_SUM = struct.Struct("<I")
RECORD_BYTES = _RECORD.size + _SUM.size

# (query id, statement, window, due_ns, sent_ns, done_ns, rows, outcome)
QueryLogEntry = tuple[str | None, int, int, int, int, int, int | None, Outcome | FailedOutcome]


def query_id_of(cursor: Cursor, outcome: Outcome | FailedOutcome) -> str | None:
    """The query id of a statement. None without an answer: the cursor still has the id of the previous statement."""
    return None if isinstance(outcome, FailedOutcome) and not outcome.answered else cursor.sfqid


class ClientQueryLog:
    """Selects the statements of one client that are kept. Belongs to the client's thread, except `entries`."""

    __slots__ = ("_mode", "_random", "_rate", "entries", "until")

    def __init__(self, policy: Policy, seed: str) -> None:
        self._mode = policy.mode
        self._rate = 1.0 if policy.mode is QueryLogMode.ALL else policy.sample_rate
        self._random = random.Random(seed)
        self.until = self._gap()  # statements until the next kept one; while it is more than 1, wants() only decrements
        self.entries: deque[QueryLogEntry] = deque()  # append and popleft are atomic

    def wants(self, outcome: Outcome | FailedOutcome) -> bool:
        """Whether to keep this statement. Called once per statement."""
        if self._mode is QueryLogMode.ERRORS:
            return outcome is not Outcome.SUCCEEDED
        self.until -= 1
        if self.until > 0:
            return False
        self.until = self._gap()
        return True

    def _gap(self) -> int:
        """Number of statements until the next kept one, geometrically distributed: each has the same probability."""
        if self._rate >= 1.0:
            return 1
        return int(min(math.log(1.0 - self._random.random()) / math.log1p(-self._rate), _GAP_MAX)) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLogHeader:
    """The values that all rows of a file have in common."""

    run_id: str
    worker_id: str
    test_id: str
    statements: tuple[tuple[str, StatementKind], ...]
    utc_at_zero: datetime  # the time at which the monotonic clock of the process was 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLogRecord:
    """One kept statement, read back."""

    number: int  # in the file
    query_id: str | None
    statement: str
    kind: str
    phase: str
    step_id: int | None
    start_time: datetime  # naive UTC
    due_lag_ms: float
    duration_ms: float
    rows: int | None
    outcome: Outcome
    code: int | None
    error: str | None


class QueryLogWriter:
    """Writes the files. slot() is called while clients are made; the main thread calls keep() and close()."""

    def __init__(self, folder: Path, header: QueryLogHeader, policy: Policy) -> None:
        self._policy = policy
        self._header = header
        self._slots: list[ClientQueryLog] = []
        self._windows: dict[int, Window] = {}  # all windows so far: a client may append an entry late
        self._named: set[int] = set()
        self._errors: dict[str, int] = {}
        self.kept = 0  # records in the file
        self.dropped = 0  # beyond max_rows
        self._chosen = 0  # entries within max_rows
        self._failure: OSError | None = None  # why the file has ended
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self._records = _create(folder / RECORDS)  # created first: a reader that finds the facts expects the records
        self._facts = _create(folder / METADATA)
        self._fact(
            kind="header",
            version=VERSION,
            run_id=header.run_id,
            worker_id=header.worker_id,
            test_id=header.test_id,
            statements=[[name, kind.value] for name, kind in header.statements],
            utc_at_zero=header.utc_at_zero.isoformat(),
        )
        self._facts.flush()

    def slot(self, number: int) -> ClientQueryLog:
        """The query log of one client."""
        slot = ClientQueryLog(self._policy, f"{self._header.run_id}/{self._header.worker_id}/{number}")
        self._slots.append(slot)
        return slot

    @property
    def unwritten(self) -> int:
        """Number of entries that should be in the file, but are not."""
        return self._chosen - self.kept

    def keep(self, windows: Sequence[Window]) -> None:
        """Write the entries that clients have appended since the last call. `windows`: those that are not forgotten.

        Raises OSError when the file cannot be written: it ends there, and later entries are only counted.
        """
        try:
            self._keep(windows)
        except OSError as error:
            self._end(error)
            raise

    def _keep(self, windows: Sequence[Window]) -> None:
        self._windows.update((window.window_id, window) for window in windows)
        data = bytearray()
        for slot in tuple(self._slots):
            for _ in range(len(slot.entries)):
                entry = slot.entries.popleft()
                if self._chosen >= self._policy.max_rows:
                    self.dropped += 1
                    continue
                self._chosen += 1
                if self._failure is None:
                    self._name_window(entry[2])
                    data += self._packed(entry)
        if data:
            self._facts.flush()
            self._records.write(data)
            self._records.flush()
            self.kept += len(data) // RECORD_BYTES

    def close(self) -> None:
        """Close both files. Raises OSError if the disk is full; the files are closed nevertheless."""
        if self._failure is not None:
            raise self._failure
        try:
            with self._facts, self._records:
                for file in (self._facts, self._records):
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            self._end(error)
            raise

    def _end(self, error: OSError) -> None:
        """Write nothing more, and count what the file contains: a part of the last entries may be in it."""
        self._failure = error
        for file in (self._facts, self._records):
            with contextlib.suppress(OSError):
                file.close()
        self.kept = (self.folder / RECORDS).stat().st_size // RECORD_BYTES

    def _packed(self, entry: QueryLogEntry) -> bytes:
        query_id, statement, window, due_ns, sent_ns, done_ns, rows, outcome = entry
        code, error = _NO_CODE, _NO_ERROR
        if isinstance(outcome, FailedOutcome):
            code = outcome.code if outcome.code is not None and abs(outcome.code) <= _CODE_MAX else _NO_CODE
            error = self._error(outcome.text)
        packed = _RECORD.pack(
            *(_packed_id(query_id), statement, window, due_ns, sent_ns, done_ns),
            *(_NO_ROWS if rows is None else rows, outcome.__index__(), code, error),
        )
        return packed + _SUM.pack(zlib.crc32(packed))

    def _error(self, text: str) -> int:
        number = self._errors.get(text)
        if number is None:
            if len(self._errors) >= ERROR_TEXTS_MAX:
                return _NO_ERROR
            number = self._errors[text] = len(self._errors)
            self._fact(kind="error", number=number, text=text)
        return number

    def _name_window(self, window_id: int) -> None:
        if window_id not in self._named:
            self._named.add(window_id)
            window = self._windows[window_id]
            self._fact(kind="window", number=window_id, phase=window.phase.value, step_id=window.step_id)

    def _fact(self, **fact: Any) -> None:
        text = json.dumps(fact).encode("ascii")
        self._facts.write(b"%08x %s\n" % (zlib.crc32(text), text))


class QueryLogReader:
    """Reads the undamaged records of the files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._windows: dict[int, tuple[str, int | None]] = {}
        self._errors: dict[int, str] = {}
        self.damaged = 0  # number of damaged records in the last read
        header: dict[str, Any] | None = None
        for fact in _facts(folder / METADATA):
            if fact["kind"] == "header":
                header = fact
            elif fact["kind"] == "window":
                self._windows[fact["number"]] = (fact["phase"], fact["step_id"])
            elif fact["kind"] == "error":
                self._errors[fact["number"]] = fact["text"]
        if header is None or header["version"] != VERSION:
            raise RunFailed(f"{folder} holds no query log that this loadgen can read", remedy="Remove the folder.")
        self.header = QueryLogHeader(
            run_id=header["run_id"],
            worker_id=header["worker_id"],
            test_id=header["test_id"],
            statements=tuple((name, StatementKind(kind)) for name, kind in header["statements"]),
            utc_at_zero=datetime.fromisoformat(header["utc_at_zero"]),
        )

    def records(self) -> Iterator[QueryLogRecord]:
        """The records in the order of writing. Damaged records are left out, but have a number."""
        self.damaged = 0
        with open(self._folder / RECORDS, "rb") as file:
            number = 0
            while len(data := file.read(RECORD_BYTES)) == RECORD_BYTES:
                record = self._unpacked(number, data)
                if record is None:
                    self.damaged += 1
                else:
                    yield record
                number += 1
            self.damaged += bool(data)

    def _unpacked(self, number: int, data: bytes) -> QueryLogRecord | None:
        """The record of these bytes. None: it is damaged, or its window is unknown."""
        packed, (checksum,) = data[: _RECORD.size], _SUM.unpack(data[_RECORD.size :])
        if zlib.crc32(packed) != checksum:
            return None
        query_id, statement, window, due_ns, sent_ns, done_ns, rows, outcome, code, error = _RECORD.unpack(packed)
        if window not in self._windows:
            return None
        name, kind = self.header.statements[statement]
        phase, step_id = self._windows[window]
        start = self.header.utc_at_zero + timedelta(microseconds=sent_ns // 1_000)
        return QueryLogRecord(
            number=number,
            query_id=query_id.rstrip(b"\0").decode("ascii") or None,
            statement=name,
            kind=kind.value,
            phase=phase,
            step_id=step_id,
            start_time=start.astimezone(UTC).replace(tzinfo=None),
            due_lag_ms=(sent_ns - due_ns) / 1e6,
            duration_ms=(done_ns - sent_ns) / 1e6,
            rows=None if rows == _NO_ROWS else rows,
            outcome=Outcome(outcome),
            code=None if code == _NO_CODE else code,
            error=self._errors.get(error),
        )


def _create(path: Path) -> BinaryIO:
    """Create a file. It must not exist: an existing one belongs to a worker whose log was not uploaded."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb")


def _packed_id(query_id: str | None) -> bytes:
    """The id as bytes; empty if it has not the form of Snowflake's ids, which must not be truncated."""
    if query_id is None or not query_id.isascii() or len(query_id) > _QUERY_ID_BYTES:
        return b""
    return query_id.encode("ascii")


def _facts(path: Path) -> Iterator[dict[str, Any]]:
    """The undamaged facts."""
    with open(path, "rb") as file:
        for line in file:
            checksum, _, text = line.removesuffix(b"\n").partition(b" ")
            if checksum == b"%08x" % zlib.crc32(text):
                yield json.loads(text)
