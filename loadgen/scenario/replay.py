"""Mode replay: what a capture makes of a scenario."""

from __future__ import annotations

from loadgen.model.capture import CapturedTemplate, CaptureManifest, StatementRole, WriteReplay
from loadgen.model.workload import Query, Statement, StatementKind

TEMPLATES_MAX = 40  # that are measured separately; the others are measured together
OTHERS = {
    StatementRole.READ: "other_reads",
    StatementRole.WRITE: "other_writes",
    StatementRole.TRANSACTION: "transaction_control",
}
LASTING_MIN_S = 0.1
_OTHER_SQL = "several"  # shown where one statement would be


def replayed_roles(writes: WriteReplay) -> tuple[StatementRole, ...]:
    """What is sent and measured. Session statements are sent too, and never measured."""
    return tuple(OTHERS) if writes is WriteReplay.REPLAY else (StatementRole.READ,)


def replay_s(capture: CaptureManifest, speed: float) -> float:
    """How long a replay takes."""
    return max(LASTING_MIN_S, capture.span_ms / 1000 / speed)


def replay_statements(capture: CaptureManifest, writes: WriteReplay) -> tuple[Statement, ...]:
    """The statements that results are made for: frequent templates, and the rest of each role together."""
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
    """By name, the most frequent first; of two with one name, the second is measured with the others."""
    found: dict[str, CapturedTemplate] = {}
    for one in capture.templates:
        found.setdefault(one.name, one)
    return found


_KINDS = {StatementRole.READ: StatementKind.READ, StatementRole.WRITE: StatementKind.WRITE}


def statement_numbers(capture: CaptureManifest, statements: tuple[Statement, ...]) -> dict[str, int]:
    """The number of a statement by the id of its template, and by the name of the rest of a role."""
    names = {statement.name: number for number, statement in enumerate(statements)}
    found = {one.id: names[one.name] for one in _named(capture).values() if one.name in names}
    return found | {name: names[name] for name in OTHERS.values() if name in names}
