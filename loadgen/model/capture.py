"""A capture: statements that a warehouse executed, in the order of their start, and facts about all of them.

DIR/statements.jsonl.gz   a header, then one RecordedStatement per line
DIR/capture.json          CaptureManifest
DIR/README.md             the same for people
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import StrEnum
from functools import cache
from typing import Any, get_type_hints

from loadgen.model.workload import Query, Statement, StatementKind
from loadgen.values import dataclass

CAPTURE_FORMAT, CAPTURE_VERSION = "loadgen-capture", 1
STATEMENTS_FILE, MANIFEST_FILE = "statements.jsonl.gz", "capture.json"

BindValue = tuple[str, str | int | float | bool | None]  # Snowflake's type, and the value


class InvalidCapture(ValueError):
    """A file that is not a capture, or a capture of another version."""


class StatementRole(StrEnum):
    READ = "read"
    WRITE = "write"
    CONTEXT = "context"  # USE, SET, ALTER SESSION: later statements of the session depend on it
    TRANSACTION = "transaction"  # BEGIN, COMMIT, ROLLBACK


class LeftOutReason(StrEnum):
    """Why a statement of the history is not in the capture."""

    UNPARSED = "the text cannot be parsed"
    TRUNCATED = "the history truncated the text"
    NO_BINDS = "the history has no values for its binds"
    NOT_REPLAYABLE = "it is not a query, DML or session statement"
    TEMPORARY_TABLE = "it makes a temporary table, which a replay does not have"
    SYSTEM_FUNCTION = "it calls a SYSTEM$ function"
    SEVERAL = "the text has several statements"
    NAMES = "not all of its names can be hidden"
    FAILED = "it failed"
    EARLIER = "it began before the span"
    OTHER_DATABASE = "it ran in another database"
    FILTERED = "a filter excludes it"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStatement:
    """One executed statement. `session` is the number of its session, in the order of their first statements."""

    session: int
    at_ms: float  # its start, since that of the first statement
    role: StatementRole
    template: str
    sql: str
    binds: tuple[BindValue, ...] = ()
    ms: float = 0.0
    rows: int | None = None
    database: str | None = None
    schema: str | None = None
    user: str | None = None  # always a pseudonym

    def line(self) -> str:
        """One line of the file, without unknown values."""
        return f'{{"session": {self.session}, "at_ms": {self.at_ms!r}, {self.rest_of_line()}'

    def rest_of_line(self) -> str:
        """All except session and time, which are final only when all statements are known."""
        data: dict[str, Any] = {"role": self.role, "template": self.template, "sql": self.sql}
        if self.binds:
            data["binds"] = self.binds
        data["ms"] = self.ms
        for name in ("rows", "database", "schema", "user"):
            value = getattr(self, name)
            if value is not None:
                data[name] = value
        return json.dumps(data)[1:]

    @classmethod
    def of_line(cls, line: str) -> RecordedStatement:
        try:
            data = json.loads(line)
            binds = tuple((kind, value) for kind, value in data.pop("binds", ()))
            role = StatementRole(data.pop("role"))
            if all(isinstance(kind, str) and isinstance(value, _BOUND) for kind, value in binds):
                return cls(**_checked(cls, data), binds=binds, role=role)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidCapture(f"not a line of a capture: {line[:60]!r}") from error
        raise InvalidCapture(f"not a line of a capture: {line[:60]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedTemplate:
    """Statements that differ in their values only: `sql` has a ? for each value."""

    id: str
    name: str
    role: StatementRole
    count: int
    total_ms: float
    sql: str
    failed: int = 0  # statements of the history, which the capture does not contain


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureManifest:
    """The description of a capture, stored as capture.json."""

    created_at: str
    source: str
    span_from: str  # start of the first statement
    span_to: str  # end of the last
    span_ms: float
    filters: Mapping[str, str]
    pseudonyms: bool  # values are not the real ones
    names_hidden: bool
    statements: int
    sessions: int
    session_overlap: int  # maximum number of sessions at one time, each from its first to its last statement
    roles: Mapping[str, int]
    left_out: Mapping[str, int]
    templates: tuple[CapturedTemplate, ...]  # the most frequent
    templates_total: int
    statements_sha256: str
    unrecorded: int | None = None  # missing in the history, mostly short ones on hybrid tables; None: not counted
    unrecorded_note: str = ""  # why they were not counted, or why the number may be too low

    def text(self) -> str:
        return json.dumps({"format": CAPTURE_FORMAT, "version": CAPTURE_VERSION, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def of_text(cls, text: str) -> CaptureManifest:
        data = _checked_format(text)
        try:
            templates = tuple(_template(one) for one in data.pop("templates"))
            made = cls(**_checked(cls, data), templates=templates)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidCapture(f"not the description of a capture: {error}") from error
        counts_fit = made.statements == sum(made.roles.values()) and made.sessions <= made.statements
        ids = {one.id for one in templates}
        if not counts_fit or len(ids) < len(templates) or (made.statements and not made.sessions):
            raise InvalidCapture("not the description of a capture: its counts contradict one another")
        return made

    @property
    def coverage(self) -> CaptureCoverage:
        left_out = {name: count for name, count in self.left_out.items() if count}
        return CaptureCoverage(statements=self.statements, left_out=left_out, unrecorded=self.unrecorded)


def _template(data: dict[str, Any]) -> CapturedTemplate:
    role = StatementRole(data.pop("role"))
    made = CapturedTemplate(**_checked(CapturedTemplate, data), role=role)
    if not re.fullmatch(r"\w{1,60}", made.name):
        raise ValueError(f"{made.name[:60]!r} is not the name of a template")
    return made


_BOUND = (str, int, float, bool, type(None))
_COUNT_MAX, _NUMBER_MAX = 2**63, 1e15


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _COUNT_MAX


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _NUMBER_MAX


_FITS: dict[Any, Callable[[Any], bool]] = {
    int: _is_count,
    float: _is_number,
    bool: lambda value: isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    int | None: lambda value: value is None or _is_count(value),
    str | None: lambda value: value is None or isinstance(value, str),
    Mapping[str, int]: lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
    Mapping[str, str]: lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
}


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _checked(kind: type, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object, if each value has the type of its field."""
    types = _types(kind)
    for name, value in data.items():
        if not _FITS[types[name]](value):
            raise ValueError(f"{name} has an invalid value")
    return data


def header_line() -> str:
    return json.dumps({"format": CAPTURE_FORMAT, "version": CAPTURE_VERSION})


def check_header(line: str) -> None:
    _checked_format(line)


def _checked_format(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidCapture(f"not JSON: {error}") from error
    if not isinstance(data, dict) or data.pop("format", None) != CAPTURE_FORMAT:
        raise InvalidCapture("not a capture of loadgen")
    version = data.pop("version", None)
    if version != CAPTURE_VERSION:
        raise InvalidCapture(f"it has version {version}, and this loadgen reads {CAPTURE_VERSION}")
    return data


class SessionReplay(StrEnum):
    """Which connection sends a recorded statement."""

    KEEP = "keep"  # that of its session, in order
    SPREAD = "spread"  # the next free one


class WriteReplay(StrEnum):
    SKIP = "skip"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTimes:
    """Recorded figures of the statements with one name: their times on the server, and their rows."""

    count: int
    avg_ms: float
    p50_ms: float
    p95_ms: float
    rows: int = 0  # of the statements whose number of rows is known
    rows_known: int = 0  # the number of these statements
    failed: int = 0  # statements of the history, which the capture does not contain


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureCoverage:
    """The part of the history that a capture contains."""

    statements: int
    left_out: Mapping[str, int]  # by the name of the reason, without zeros
    unrecorded: int | None = None  # statements missing in the history; None: not counted

    @property
    def total(self) -> int:
        return self.statements + sum(self.left_out.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The load of mode replay. Two fields are set before a run is created: `planned`, by worker, the number of
    statements that are due until the end of each of equal parts of the measurement; `recorded`, the duration of each
    statement."""

    capture: str  # the SHA-256 of its statements
    speed: float
    sessions: SessionReplay
    writes: WriteReplay
    pseudonyms: bool  # values are not the real ones
    users: int = 1  # each sends every recorded session
    folder: str = ""  # relative to the scenario's folder; not stored
    planned: tuple[tuple[int, ...], ...] = ()
    recorded: tuple[RecordedTimes, ...] = ()
    coverage: CaptureCoverage | None = None  # None: an earlier version started the run


# --- Statements of a replay -------------------------------------------------------------------------------------------

TEMPLATES_MAX = 40  # measured separately; the others are measured together
OTHERS = {
    StatementRole.READ: "other_reads",
    StatementRole.WRITE: "other_writes",
    StatementRole.TRANSACTION: "transaction_control",
}
LASTING_MIN_S = 0.1
_OTHER_SQL = "several"  # shown instead of the text of one statement


def replayed_roles(writes: WriteReplay) -> tuple[StatementRole, ...]:
    """Roles of the statements that are sent and measured; session statements are sent, never measured."""
    return tuple(OTHERS) if writes is WriteReplay.REPLAY else (StatementRole.READ,)


def replay_s(capture: CaptureManifest, speed: float) -> float:
    """The duration of a replay."""
    return max(LASTING_MIN_S, capture.span_ms / 1000 / speed)


def replay_statements(capture: CaptureManifest, writes: WriteReplay) -> tuple[Statement, ...]:
    """The statements that have separate results: frequent templates, and all others of each role together."""
    roles = replayed_roles(writes)
    own = [one for one in _named(capture).values() if one.role in roles and one.role in _KINDS][:TEMPLATES_MAX]
    statements = [
        Statement(name=one.name, kind=_KINDS[one.role], weight=one.count, queries=(Query(sql=one.sql),)) for one in own
    ]
    for role in roles:
        rest = capture.roles.get(role.value, 0) - sum(one.count for one in own if one.role is role)
        if rest > 0:
            kind = _KINDS.get(role, StatementKind.WRITE)
            statements.append(Statement(name=OTHERS[role], kind=kind, weight=rest, queries=(Query(sql=_OTHER_SQL),)))
    return tuple(statements)


def _named(capture: CaptureManifest) -> dict[str, CapturedTemplate]:
    """The templates by name, the most frequent first. A second one with the same name is measured with the others."""
    found: dict[str, CapturedTemplate] = {}
    for one in capture.templates:
        found.setdefault(one.name, one)
    return found


_KINDS = {StatementRole.READ: StatementKind.READ, StatementRole.WRITE: StatementKind.WRITE}


def statement_numbers(capture: CaptureManifest, statements: tuple[Statement, ...]) -> dict[str, int]:
    """Numbers of statements by the id of their template, or by a name in OTHERS."""
    names = {statement.name: number for number, statement in enumerate(statements)}
    found = {one.id: names[one.name] for one in _named(capture).values() if one.name in names}
    return found | {name: names[name] for name in OTHERS.values() if name in names}
