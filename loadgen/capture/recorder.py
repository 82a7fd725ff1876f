"""Writes the files of a capture from rows of the history, in bounded memory and resumable.

    DIR/unfinished/state.json      options, key, counts and parts: an interrupted capture continues with them
    DIR/unfinished/part-N.jsonl.gz statements, sorted by start; merged at the end, a limited number at a time

state.json contains the key of the pseudonyms, which is deleted when the capture is complete.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import heapq
import io
import json
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from loadgen.capture.history import HistoryRow
from loadgen.capture.pseudonyms import KEY_BYTES, Pseudonyms
from loadgen.capture.statement_text import StatementCleaner, StatementLeftOut
from loadgen.clock import utc_iso
from loadgen.errors import ConfigurationError, UsageError, cannot_write
from loadgen.files import replace_file
from loadgen.log import printable
from loadgen.model.capture import (
    MANIFEST_FILE,
    STATEMENTS_FILE,
    CapturedTemplate,
    CaptureManifest,
    LeftOutReason,
    RecordedStatement,
    StatementRole,
    header_line,
)
from loadgen.values import dataclass

TEMPLATES_COUNTED, TEMPLATES_LISTED = 200_000, 500


# --- The totals of a capture: counts, templates, and its README.md ---------------------------------------------------

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  naive UTC, as the history's rows are read
_MICROSECOND = timedelta(microseconds=1)
_OBJECT = re.compile(r"(?i:\b(?:from|into|update|merge\s+into)\s+)([\w.$\"]+)")


def epoch_ms(moment: datetime) -> float:
    return (moment - _EPOCH) // _MICROSECOND / 1000


def moment_text(milliseconds: float) -> str:
    return utc_iso(_EPOCH + timedelta(milliseconds=milliseconds))


def template_name(sql: str, template_id: str) -> str:
    """The name of a template in reports and thresholds: select_orders_1a2b3c."""
    found = _OBJECT.search(sql)
    words = [
        sql.split(None, 1)[0] if sql.split() else "",
        found[1].rsplit(".", 1)[-1] if found else "",
        template_id[:6],
    ]
    return "_".join(word for part in words if (word := re.sub(r"\W+", "", part).lower()))[:60]


@dataclass(slots=True)
class _TemplateTotals:
    role: StatementRole
    count: int
    total_ms: float


class CaptureTotals:
    """Numbers sessions in the order of their first statements, and counts statements. They must arrive by start
    time."""

    def __init__(self) -> None:
        self.start_ms: float | None = None  # of the first statement; later times are relative to it
        self.end_ms = 0.0
        self.statements = 0
        self.sessions: list[tuple[float, float]] = []  # start of the first and end of the last statement of each
        self.roles: Counter[str] = Counter()
        self.templates: dict[str, _TemplateTotals] = {}
        self._numbers: dict[int, int] = {}  # by session id of the history

    def number_of(self, at_ms: float, ms: float, session_id: int, role: str, template: str) -> int:
        """Count a statement, and return the number of its session."""
        if self.start_ms is None:
            self.start_ms = at_ms
        ends_ms = at_ms + ms
        self.end_ms = max(self.end_ms, ends_ms)
        number = self._numbers.setdefault(session_id, len(self._numbers))
        if number == len(self.sessions):
            self.sessions.append((at_ms, ends_ms))
        elif ends_ms > self.sessions[number][1]:
            self.sessions[number] = (self.sessions[number][0], ends_ms)
        self.statements += 1
        self.roles[role] += 1
        known = self.templates.get(template)
        if known is not None:
            known.count += 1
            known.total_ms += ms
        elif len(self.templates) < TEMPLATES_COUNTED:
            self.templates[template] = _TemplateTotals(StatementRole(role), 1, ms)
        return number

    def overlap(self) -> int:
        """The maximum number of simultaneous sessions."""
        moves = sorted(move for first, last in self.sessions for move in ((first, 1), (last, -1)))
        most = now = 0
        for _, change in moves:
            now += change
            most = max(most, now)
        return most

    def listed(self, texts: Mapping[str, str], failed: Mapping[str, int]) -> tuple[CapturedTemplate, ...]:
        """The most frequent templates."""
        ranked = sorted(self.templates.items(), key=lambda item: (-item[1].count, item[0]))
        known = [(key, totals, texts[key]) for key, totals in ranked if key in texts][:TEMPLATES_LISTED]
        return tuple(
            CapturedTemplate(
                id=key,
                name=template_name(text, key),
                role=totals.role,
                count=totals.count,
                total_ms=round(totals.total_ms, 3),
                sql=text,
                failed=failed.get(key, 0),
            )
            for key, totals, text in known
        )


def unrecorded_text(manifest: CaptureManifest) -> str:
    """The sentence about statements that are missing in the history."""
    note = f" ({manifest.unrecorded_note})" if manifest.unrecorded_note else ""
    if manifest.unrecorded is None:
        return f"short statements on hybrid tables that the history lacks: not counted{note}"
    return f"not in the history, most of them short statements on hybrid tables: {manifest.unrecorded:,}{note}"


def readme_text(manifest: CaptureManifest) -> str:
    """The README.md of a capture."""
    left = {LeftOutReason[name.upper()]: count for name, count in manifest.left_out.items() if count}
    total = manifest.statements + sum(left.values())
    values = (
        "Values are pseudonyms: literals and binds were replaced consistently. The key is deleted."
        if manifest.pseudonyms
        else "Values are the real ones (`--keep-values`), except for those that look like an e-mail, password or token."
    )
    lines = [
        "# A capture of loadgen",
        "",
        f"Statements from {manifest.span_from} to {manifest.span_to}, from {manifest.source}.",
        "",
        f"- {manifest.statements:,} statements of {manifest.sessions:,} sessions",
        f"- {manifest.templates_total:,} templates: statements that differ in values only",
        f"- coverage: {manifest.statements:,} of {total:,} statements of the history",
        f"- {values}",
        f"- names of objects: {'replaced; this capture cannot be executed' if manifest.names_hidden else 'kept'}",
        "- comments are removed and user names replaced, always; failed statements, DDL and calls are never captured",
        f"- {unrecorded_text(manifest)}",
        "",
        "| left out because | statements |",
        "|---|---|",
        *(f"| {reason.value} | {count:,} |" for reason, count in left.items()),
        "",
        "| most frequent | role | count | mean ms |",
        "|---|---|---|---|",
        *(
            f"| {one.name} | {one.role} | {one.count:,} | {one.total_ms / one.count:,.1f} |"
            for one in manifest.templates[:20]
        ),
        "",
        "Replay it with `load: {mode: replay, capture: DIR}` in a scenario; see docs/capture.md of loadgen.",
        "",
    ]
    return "\n".join(lines)


PART_ROWS, PART_CHARACTERS = 50_000, 64_000_000  # kept in memory before a part is written
MERGED_AT_ONCE = 100  # files
TEMPLATES_MAX, TEMPLATE_CHARACTERS = 10_000, 2_000  # stored texts; further templates are only counted
USERS_REMEMBERED = 10_000  # cached pseudonyms of user names
ACCOUNT_USAGE_TEXT_MAX = 100_000  # characters; ACCOUNT_USAGE truncates longer texts
UNFINISHED, TEMPLATES_FILE = "unfinished", "templates.jsonl"
COMPRESSION, PART_COMPRESSION = 6, 1  # a part is read once, and deleted
BUFFER_BYTES = 65_536
STATE_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFilter:
    """The filter for statements; None: all."""

    user: str | None = None
    role: str | None = None
    database: str | None = None
    tag: str | None = None  # a part of QUERY_TAG
    kinds: frozenset[StatementRole] = frozenset()  # of reads and writes; empty: both
    min_ms: float | None = None
    max_ms: float | None = None

    def excludes(self, row: HistoryRow) -> LeftOutReason | None:
        """The reason why a row is filtered out; None: it is not."""
        wanted = (
            _is(self.user, row.user)
            and _is(self.role, row.role)
            and (self.tag is None or self.tag in (row.tag or ""))
            and (self.min_ms is None or row.elapsed_ms >= self.min_ms)
            and (self.max_ms is None or row.elapsed_ms <= self.max_ms)
        )
        if not wanted:
            return LeftOutReason.FILTERED
        return None if _is(self.database, row.database) else LeftOutReason.OTHER_DATABASE

    def document(self, *, hide_names: bool = False) -> dict[str, str]:
        """The filters in capture.json, without the names of users and tags."""
        found = {
            **({"user": "one"} if self.user else {}),
            **({"role": "one" if hide_names else self.role} if self.role else {}),
            **({"database": "one" if hide_names else self.database} if self.database else {}),
            **({"tag": "a part of it"} if self.tag else {}),
            **({"kinds": ", ".join(sorted(self.kinds))} if self.kinds else {}),
            **({"min_ms": f"{self.min_ms:g}"} if self.min_ms is not None else {}),
            **({"max_ms": f"{self.max_ms:g}"} if self.max_ms is not None else {}),
        }
        return found


def _is(wanted: str | None, found: str | None) -> bool:
    return wanted is None or (found or "").upper() == wanted.upper()


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


class NothingCaptured(UsageError):
    """The history contains no statement that can be captured."""


class CaptureRecorder:
    """Call add() for rows, save() when all rows that ended after a time were added, and finish() once."""

    def __init__(self, folder: Path, options: CaptureOptions, arguments: Mapping[str, str]) -> None:
        """Continue an unfinished capture with the same arguments, or begin one. Raises ConfigurationError."""
        self._folder, self._unfinished = folder, folder / UNFINISHED
        if (folder / MANIFEST_FILE).exists():
            raise CaptureExists(f"{printable(str(folder), 200)} contains a capture already")
        if folder.is_dir() and not self._unfinished.exists() and any(folder.iterdir()):
            raise CaptureExists(f"{printable(str(folder), 200)} is not empty, and contains no unfinished capture")
        self._state = self._begun(options, arguments)
        self.options = replace(options, start=_moment(self._state["start"]), end=_moment(self._state["end"]))
        self.left_until = _moment(self._state["left_until"])  # rows that ended later are stored; None: no rows are
        self._cleaner = StatementCleaner(
            Pseudonyms(bytes.fromhex(self._state["key"])),
            keep_values=options.keep_values,
            hide_names=options.hide_names,
        )
        self._left_out: Counter[str] = Counter(self._state["left_out"])
        self._failed: Counter[str] = Counter(self._state.get("failed", {}))  # by the id of the template
        self._held: list[tuple[float, float, str]] = []  # start, end, and the line of a statement in a part
        self._held_characters = 0
        self._parts: list[str] = list(self._state["parts"])
        self._user_name = lru_cache(USERS_REMEMBERED)(Pseudonyms(bytes.fromhex(self._state["key"])).name)
        self.taken = int(self._state["taken"])
        self._templates = self._known_templates()
        self._new_templates: list[str] = []

    def _begun(self, options: CaptureOptions, arguments: Mapping[str, str]) -> dict[str, Any]:
        path = self._unfinished / "state.json"
        try:
            self._unfinished.mkdir(parents=True, exist_ok=True)
            if path.exists():
                state: dict[str, Any] = json.loads(path.read_text("utf-8"))
                if state["left_until"] is not None:  # otherwise nothing was saved, and the capture begins again
                    self._require_same(state, arguments)
                    for part in self._unfinished.glob("part-*"):
                        if part.name not in state["parts"]:  # written after the last save(), so its rows are read again
                            part.unlink()
                    return state
                shutil.rmtree(self._unfinished)
                self._unfinished.mkdir()
        except (OSError, ValueError, KeyError) as error:
            if isinstance(error, OSError):
                raise _unwritable(self._folder, error) from error
            raise ConfigurationError(
                f"{printable(str(path), 200)} is damaged", remedy="Delete the folder and repeat the capture."
            ) from error
        state = {
            "version": STATE_VERSION,
            "arguments": dict(arguments),
            "key": secrets.token_hex(KEY_BYTES),
            "start": _text(options.start),
            "end": _text(options.end),
            "left_until": None,
            "parts": [],
            "taken": 0,
            "left_out": {},
            "failed": {},
        }
        self._write_state(state)
        return state

    def _require_same(self, state: Mapping[str, Any], arguments: Mapping[str, str]) -> None:
        """Raise unless the options are those of the unfinished capture."""
        shown = printable(str(self._folder), 200)
        if state.get("version") != STATE_VERSION:
            raise ConfigurationError(
                f"{shown} holds an unfinished capture of another version of loadgen",
                remedy="Delete the folder, or choose another with --out.",
            )
        if state["arguments"] != dict(arguments):
            raise ConfigurationError(
                f"{shown} holds an unfinished capture with other options",
                remedy="Use the same options to continue it, or choose another folder with --out.",
            )

    # --- Rows --------------------------------------------------------------------------------------------------------

    def add(self, rows: Iterable[HistoryRow]) -> None:
        for row in rows:
            found = self._recorded(row)
            if isinstance(found, LeftOutReason):
                self._left_out[found.name] += 1
                continue
            totals = f"{found.session}\t{found.role}\t{found.template}\t{found.ms!r}"
            line = f"{totals}\t{found.rest_of_line()}"  # JSON has no tabs
            self._held.append((found.at_ms, found.at_ms + found.ms, line))
            self._held_characters += len(line)
            self.taken += 1
            if len(self._held) >= PART_ROWS or self._held_characters >= PART_CHARACTERS:
                self._write_part()

    def save(self, left_until: datetime | None) -> None:
        """Save the state: all rows that ended after this time have been added."""
        self._write_part()
        self.left_until = left_until
        self._state |= {
            "left_until": _text(left_until),
            "parts": self._parts,
            "taken": self.taken,
            "left_out": dict(self._left_out),
            "failed": dict(self._failed),
        }
        self._write_state(self._state)

    def _recorded(self, row: HistoryRow) -> RecordedStatement | LeftOutReason:
        """A statement with the session id and times of the history: finish() numbers sessions, and makes times
        relative."""
        filters = self.options.filters
        excluded = filters.excludes(row)
        if excluded is not None:
            return excluded
        if self.options.start is not None and row.start < self.options.start:
            return LeftOutReason.EARLIER
        if not row.succeeded:
            self._count_failed(row.text)
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
            binds=tuple(
                (kind, self._cleaner.bound(value, kind, names_secret=clean.names_secret)) for kind, value in binds
            ),
            ms=round(max(0.0, row.elapsed_ms), 3),
            rows=None if row.rows is None or row.rows < 0 else row.rows,
            database=self._cleaner.name(row.database),
            schema=self._cleaner.name(row.schema),
            user=None if row.user is None else self._user_name(row.user, "user_"),
        )

    def _count_failed(self, text: str) -> None:
        """Count a failed statement by template, so that a report shows which errors the original had as well."""
        try:
            template = self._cleaner.clean(text).template_id
        except StatementLeftOut:
            return
        if template in self._failed or len(self._failed) < TEMPLATES_MAX:
            self._failed[template] += 1

    def _known_templates(self) -> dict[str, str]:
        """The templates that an interrupted capture has stored; the last line may be incomplete."""
        path = self._unfinished / TEMPLATES_FILE
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return dict(json.loads(line) for line in lines if line.endswith("]"))

    # --- Files -------------------------------------------------------------------------------------------------------

    def _write_part(self) -> None:
        if not self._held:
            return
        self._held.sort()
        name = f"part-{len(self._parts):06}.jsonl.gz"
        try:
            with _compressed(self._unfinished / name, PART_COMPRESSION) as file:
                file.writelines(f"{at_ms!r}\t{ends_ms!r}\t{line}\n".encode() for at_ms, ends_ms, line in self._held)
            with (self._unfinished / TEMPLATES_FILE).open("a", encoding="utf-8") as templates:
                templates.writelines(f"{line}\n" for line in self._new_templates)
        except OSError as error:
            raise _unwritable(self._folder, error) from error
        self._parts.append(name)
        self._held, self._held_characters, self._new_templates = [], 0, []

    def _write_state(self, state: Mapping[str, Any]) -> None:
        try:
            replace_file(self._unfinished / "state.json", json.dumps(state).encode())
        except OSError as error:
            raise _unwritable(self._folder, error) from error

    def finish(self, unrecorded: int | None = None, unrecorded_note: str = "") -> CaptureManifest:
        """Write the files of the capture, and delete the temporary ones. Raises NothingCaptured."""
        self._write_part()
        if not self.taken:
            raise self._nothing_captured()
        try:
            totals = CaptureTotals()
            path = self._unfinished / STATEMENTS_FILE
            with _compressed(path, COMPRESSION) as file:
                file.write(f"{header_line()}\n".encode())
                file.writelines(_final_line(totals, at_ms, rest) for at_ms, _, rest in self._merged())
            manifest = replace(
                self._manifest(totals, _sha256(path)), unrecorded=unrecorded, unrecorded_note=unrecorded_note
            )
            (self._unfinished / "README.md").write_text(readme_text(manifest), "utf-8")
            (self._unfinished / MANIFEST_FILE).write_text(manifest.text(), "utf-8")
            for name in (STATEMENTS_FILE, "README.md", MANIFEST_FILE):  # with the last file the capture is complete
                os.replace(self._unfinished / name, self._folder / name)
            shutil.rmtree(self._unfinished)
        except OSError as error:
            raise _unwritable(self._folder, error) from error
        return manifest

    def _nothing_captured(self) -> NothingCaptured:
        """Delete the capture, so that the command can be repeated with another span."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        with contextlib.suppress(OSError):  # the folder contains other files
            self._folder.rmdir()
        span = ""
        if self.options.start is not None and self.options.end is not None:
            span = f" that ended from {_shown(self.options.start)} to {_shown(self.options.end)} UTC"
        if not self._left_out:
            return NothingCaptured(
                f"{self.options.source} has no statement{span}",
                remedy="Check the name of the warehouse and the span; the role needs MONITOR on the warehouse.",
            )
        reasons = "; ".join(f"{count:,} because {LeftOutReason[name].value}" for name, count in self._left_out.items())
        return NothingCaptured(
            f"nothing can be captured of {self.options.source}{span}. Left out: {reasons}",
            remedy="Choose another span, or other filters; docs/capture.md explains the reasons.",
        )

    def _merged(self) -> Iterator[PartEntry]:
        parts = [self._unfinished / name for name in self._parts]
        while len(parts) > MERGED_AT_ONCE:
            group, parts = parts[:MERGED_AT_ONCE], parts[MERGED_AT_ONCE:]
            merged = self._unfinished / f"merged-{group[0].name}"
            with ExitStack() as stack, _compressed(merged, PART_COMPRESSION) as file:
                file.writelines(b"%r\t%r\t%b" % entry for entry in _merge(stack, group))
            for path in group:
                path.unlink()
            parts.append(merged)
        with ExitStack() as stack:
            yield from _merge(stack, parts)

    def _manifest(self, totals: CaptureTotals, sha256: str) -> CaptureManifest:
        options = self.options
        start_ms = totals.start_ms or 0.0
        asked = {"from": _text(options.start), "to": _text(options.end)}
        filters = options.filters.document(hide_names=options.hide_names)
        return CaptureManifest(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            source="a source whose name is hidden" if options.hide_names else options.source,
            span_from=moment_text(start_ms),
            span_to=moment_text(totals.end_ms),
            span_ms=round(totals.end_ms - start_ms, 3),
            filters={name: text for name, text in asked.items() if text is not None} | filters,
            pseudonyms=not options.keep_values,
            names_hidden=options.hide_names,
            statements=totals.statements,
            sessions=len(totals.sessions),
            session_overlap=totals.overlap(),
            roles=dict(totals.roles),
            left_out={reason.name.lower(): self._left_out[reason.name] for reason in LeftOutReason},
            templates=totals.listed(self._templates, self._failed),
            templates_total=len(totals.templates),
            statements_sha256=sha256,
        )


PartEntry = tuple[float, float, bytes]  # start, end, and the rest of a line of a part


def _merge(stack: ExitStack, paths: Sequence[Path]) -> Iterator[PartEntry]:
    files = [stack.enter_context(gzip.open(path, "rb")) for path in paths]  # noqa: SIM115
    return heapq.merge(*(_entries(io.BufferedReader(cast("Any", file), BUFFER_BYTES)) for file in files))


def _entries(file: io.BufferedReader) -> Iterator[PartEntry]:
    for line in file:
        at_ms, ends_ms, rest = line.split(b"\t", 2)
        yield float(at_ms), float(ends_ms), rest


def _final_line(totals: CaptureTotals, at_ms: float, rest: bytes) -> bytes:
    """A line with the number of the session, and the time since the first statement."""
    session_id, role, template, ms, tail = rest.split(b"\t", 4)
    number = totals.number_of(at_ms, float(ms), int(session_id), role.decode(), template.decode())
    return b'{"session": %d, "at_ms": %r, %b' % (number, round(at_ms - (totals.start_ms or 0.0), 3), tail)


def _compressed(path: Path, level: int) -> io.BufferedWriter:
    return io.BufferedWriter(cast("Any", gzip.open(path, "wb", level)), BUFFER_BYTES)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shown(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _unwritable(folder: Path, error: OSError) -> ConfigurationError:
    return cannot_write(printable(str(folder), 200), error, "Name another folder with --out.")
