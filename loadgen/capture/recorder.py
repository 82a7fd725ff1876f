"""From rows of the history to the files of a capture, in bounded memory, and resumable.

    DIR/unfinished/state.json      options, key, counts and parts: an interrupted capture is continued from it
    DIR/unfinished/part-N.jsonl.gz statements, sorted by start; merged at the end, a few files at a time

The key of the pseudonyms lies in state.json until the capture is complete, and is deleted then.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, cast

from loadgen.capture.history import HistoryRow
from loadgen.capture.manifest import CaptureTotals, epoch_ms, moment_text, readme_text
from loadgen.capture.pseudonyms import KEY_BYTES, Pseudonyms
from loadgen.capture.statement_text import StatementCleaner, StatementLeftOut
from loadgen.errors import ConfigurationError, UsageError, cannot_write
from loadgen.log import printable
from loadgen.model.capture import (
    MANIFEST_FILE,
    STATEMENTS_FILE,
    BindValue,
    CaptureManifest,
    LeftOutReason,
    RecordedStatement,
    StatementRole,
    header_line,
)

PART_ROWS, PART_CHARACTERS = 20_000, 64_000_000  # held in memory before a part is written
MERGED_AT_ONCE = 50  # files
TEMPLATES_MAX, TEMPLATE_CHARACTERS = 10_000, 2_000  # whose texts are kept; further templates are only counted
ACCOUNT_USAGE_TEXT_MAX = 100_000  # characters; longer texts are cut off there
UNFINISHED, TEMPLATES_FILE = "unfinished", "templates.jsonl"
COMPRESSION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFilter:
    """Which statements are wanted; None: all."""

    user: str | None = None
    role: str | None = None
    database: str | None = None
    tag: str | None = None  # a part of QUERY_TAG
    kinds: frozenset[StatementRole] = frozenset()  # of reads and writes; empty: both
    min_ms: float | None = None
    max_ms: float | None = None

    def wants(self, row: HistoryRow) -> bool:
        named = ((self.user, row.user), (self.role, row.role), (self.database, row.database))
        return (
            all(wanted is None or (found or "").upper() == wanted.upper() for wanted, found in named)
            and (self.tag is None or self.tag in (row.tag or ""))
            and (self.min_ms is None or row.elapsed_ms >= self.min_ms)
            and (self.max_ms is None or row.elapsed_ms <= self.max_ms)
        )

    def document(self) -> dict[str, str]:
        """As capture.json has it: what was asked for, without a user's name or a tag."""
        found = {
            **({"user": "one"} if self.user else {}),
            **({"role": self.role} if self.role else {}),
            **({"database": self.database} if self.database else {}),
            **({"tag": "a part of it"} if self.tag else {}),
            **({"kinds": ", ".join(sorted(self.kinds))} if self.kinds else {}),
            **({"min_ms": f"{self.min_ms:g}"} if self.min_ms is not None else {}),
            **({"max_ms": f"{self.max_ms:g}"} if self.max_ms is not None else {}),
        }
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    source: str
    filters: CaptureFilter = CaptureFilter()
    keep_values: bool = False
    hide_names: bool = False
    start: datetime | None = None  # of the span; None: the first statement
    end: datetime | None = None


class CaptureExists(UsageError):
    remedy = "Name another folder with --out."


class CaptureRecorder:
    """add() rows, save() when all rows that ended after a moment were added, finish() once."""

    def __init__(self, folder: Path, options: CaptureOptions, arguments: Mapping[str, str]) -> None:
        """Continues an unfinished capture with the same arguments. Raises ConfigurationError."""
        self._folder, self._unfinished = folder, folder / UNFINISHED
        if (folder / MANIFEST_FILE).exists():
            raise CaptureExists(f"{printable(str(folder), 200)} holds a capture already")
        self._state = self._begun(options, arguments)
        self.options = replace(options, start=_moment(self._state["start"]), end=_moment(self._state["end"]))
        self.left_until = _moment(self._state["left_until"])  # rows that ended later are stored; None: none are
        self._cleaner = StatementCleaner(
            Pseudonyms(bytes.fromhex(self._state["key"])),
            keep_values=options.keep_values,
            hide_names=options.hide_names,
        )
        self._left_out: Counter[str] = Counter(self._state["left_out"])
        self._held: list[tuple[float, float, str]] = []
        self._held_characters = 0
        self._parts: list[str] = list(self._state["parts"])
        self._users = Pseudonyms(bytes.fromhex(self._state["key"]))
        self.taken = int(self._state["taken"])
        self._templates = self._known_templates()
        self._new_templates: list[str] = []

    @property
    def is_resumed(self) -> bool:
        return bool(self._state["parts"])

    def _begun(self, options: CaptureOptions, arguments: Mapping[str, str]) -> dict[str, Any]:
        path = self._unfinished / "state.json"
        try:
            self._unfinished.mkdir(parents=True, exist_ok=True)
            if path.exists():
                state: dict[str, Any] = json.loads(path.read_text("utf-8"))
                if state["arguments"] != dict(arguments):
                    raise ConfigurationError(
                        f"{printable(str(self._folder), 200)} holds an unfinished capture with other options",
                        remedy="Use the same options to continue it, or name another folder with --out.",
                    )
                for part in self._unfinished.glob("part-*"):
                    if part.name not in state["parts"]:  # written after the last save(): its rows are read again
                        part.unlink()
                return state
        except (OSError, ValueError, KeyError) as error:
            if isinstance(error, OSError):
                raise _unwritable(self._folder, error) from error
            raise ConfigurationError(
                f"{printable(str(path), 200)} is damaged", remedy="Delete the folder, and capture again."
            ) from error
        state = {
            "arguments": dict(arguments),
            "key": secrets.token_hex(KEY_BYTES),
            "start": _text(options.start),
            "end": _text(options.end),
            "left_until": None,
            "parts": [],
            "taken": 0,
            "left_out": {},
        }
        self._write_state(state)
        return state

    # --- rows --------------------------------------------------------------------------------------------------------

    def add(self, rows: Iterable[HistoryRow]) -> None:
        for row in rows:
            found = self._recorded(row)
            if isinstance(found, LeftOutReason):
                self._left_out[found.name] += 1
                continue
            line = found.line()
            self._held.append((found.at_ms, found.at_ms + found.ms, line))
            self._held_characters += len(line)
            self.taken += 1
            if len(self._held) >= PART_ROWS or self._held_characters >= PART_CHARACTERS:
                self._write_part()

    def save(self, left_until: datetime | None) -> None:
        """All rows that ended after this moment have been added."""
        self._write_part()
        self.left_until = left_until
        self._state |= {
            "left_until": _text(left_until),
            "parts": self._parts,
            "taken": self.taken,
            "left_out": dict(self._left_out),
        }
        self._write_state(self._state)

    def _recorded(self, row: HistoryRow) -> RecordedStatement | LeftOutReason:
        """With session id and time as in the history: finish() numbers sessions, and makes times relative."""
        filters = self.options.filters
        if not filters.wants(row):
            return LeftOutReason.FILTERED
        if self.options.start is not None and row.start < self.options.start:
            return LeftOutReason.EARLIER
        if not row.succeeded:
            return LeftOutReason.FAILED
        if len(row.text) >= ACCOUNT_USAGE_TEXT_MAX and len(row.text) % ACCOUNT_USAGE_TEXT_MAX == 0:
            return LeftOutReason.TRUNCATED
        try:
            clean = self._cleaner.clean(row.text)
        except StatementLeftOut as left:
            return left.reason
        if (
            filters.kinds
            and clean.role in (StatementRole.READ, StatementRole.WRITE)
            and clean.role not in filters.kinds
        ):
            return LeftOutReason.FILTERED
        if clean.template_id not in self._templates and len(self._templates) < TEMPLATES_MAX:
            text = self._templates[clean.template_id] = clean.template[:TEMPLATE_CHARACTERS]
            self._new_templates.append(json.dumps([clean.template_id, text]))
        binds = row.binds if clean.binds else ()
        if binds is None or len(binds) != clean.binds:
            return LeftOutReason.NO_BINDS
        return RecordedStatement(
            session=row.session_id,
            at_ms=epoch_ms(row.start),
            role=clean.role,
            template=clean.template_id,
            sql=clean.text,
            binds=tuple(self._bound(bind) for bind in binds),
            ms=round(max(0.0, row.elapsed_ms), 3),
            rows=None if row.rows is None or row.rows < 0 else row.rows,
            database=self._cleaner.name(row.database),
            schema=self._cleaner.name(row.schema),
            user=None if row.user is None else self._users.name(row.user, "user_"),
        )

    def _bound(self, bind: BindValue) -> BindValue:
        kind, value = bind
        return kind, self._cleaner.bound(value, kind)

    def _known_templates(self) -> dict[str, str]:
        """The templates that an interrupted capture has stored; the last line may be incomplete."""
        path = self._unfinished / TEMPLATES_FILE
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return dict(json.loads(line) for line in lines if line.endswith("]"))

    # --- files -------------------------------------------------------------------------------------------------------

    def _write_part(self) -> None:
        if not self._held:
            return
        self._held.sort()
        name = f"part-{len(self._parts):06}.jsonl.gz"
        try:
            with _compressed(self._unfinished / name) as file:
                file.writelines(f"{line}\n" for _, _, line in self._held)
            with (self._unfinished / TEMPLATES_FILE).open("a", encoding="utf-8") as templates:
                templates.writelines(f"{line}\n" for line in self._new_templates)
        except OSError as error:
            raise _unwritable(self._folder, error) from error
        self._parts.append(name)
        self._held, self._held_characters, self._new_templates = [], 0, []

    def _write_state(self, state: Mapping[str, Any]) -> None:
        path = self._unfinished / "state.json"
        new = path.with_suffix(".new")
        try:
            new.touch(mode=0o600)
            new.write_text(json.dumps(state), "utf-8")
            os.replace(new, path)
        except OSError as error:
            raise _unwritable(self._folder, error) from error

    def finish(self) -> CaptureManifest:
        """Write the files of the capture, and delete what was needed to make them."""
        self._write_part()
        try:
            totals = CaptureTotals()
            path = self._unfinished / STATEMENTS_FILE
            with _compressed(path) as file:
                file.write(f"{header_line()}\n")
                file.writelines(f"{totals.counted(one).line()}\n" for one in self._merged())
            manifest = self._manifest(totals, _sha256(path))
            (self._unfinished / "README.md").write_text(readme_text(manifest), "utf-8")
            (self._unfinished / MANIFEST_FILE).write_text(manifest.text(), "utf-8")
            for name in (STATEMENTS_FILE, "README.md", MANIFEST_FILE):  # with the last file the capture is complete
                os.replace(self._unfinished / name, self._folder / name)
            shutil.rmtree(self._unfinished)
        except OSError as error:
            raise _unwritable(self._folder, error) from error
        return manifest

    def _merged(self) -> Iterator[RecordedStatement]:
        parts = [self._unfinished / name for name in self._parts]
        while len(parts) > MERGED_AT_ONCE:
            group, parts = parts[:MERGED_AT_ONCE], parts[MERGED_AT_ONCE:]
            merged = self._unfinished / f"merged-{group[0].name}"
            with ExitStack() as stack, _compressed(merged) as file:
                file.writelines(one.line() + "\n" for one in _merge(stack, group))
            for path in group:
                path.unlink()
            parts.append(merged)
        with ExitStack() as stack:
            yield from _merge(stack, parts)

    def _manifest(self, totals: CaptureTotals, sha256: str) -> CaptureManifest:
        options = self.options
        start_ms = totals.start_ms or 0.0
        asked = {"from": _text(options.start), "to": _text(options.end)}
        return CaptureManifest(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            source=options.source,
            span_from=moment_text(start_ms),
            span_to=moment_text(totals.end_ms),
            span_ms=round(totals.end_ms - start_ms, 3),
            filters={name: text for name, text in asked.items() if text is not None} | options.filters.document(),
            pseudonyms=not options.keep_values,
            names_hidden=options.hide_names,
            statements=totals.statements,
            sessions=len(totals.sessions),
            session_overlap=totals.overlap(),
            roles=dict(totals.roles),
            left_out={reason.name.lower(): self._left_out[reason.name] for reason in LeftOutReason},
            templates=totals.listed(self._templates),
            templates_total=len(totals.templates),
            statements_sha256=sha256,
        )


def _merge(stack: ExitStack, paths: Sequence[Path]) -> Iterator[RecordedStatement]:
    files = [stack.enter_context(gzip.open(path, "rt", encoding="utf-8")) for path in paths]  # noqa: SIM115
    sources = [map(RecordedStatement.of_line, file) for file in files]
    return heapq.merge(*sources, key=lambda one: (one.at_ms, one.at_ms + one.ms))


def _compressed(path: Path) -> TextIO:
    return cast("TextIO", gzip.open(path, "wt", COMPRESSION, encoding="utf-8"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _unwritable(folder: Path, error: OSError) -> ConfigurationError:
    return cannot_write(printable(str(folder), 200), error, "Name another folder with --out.")
