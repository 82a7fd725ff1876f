"""Replay: the statements of a capture, distributed to workers by session, with their due times.

    leader    replay_pools(): one value pool for each worker, so that workers need no file. A value is the JSON of
              [slot, due, statement, text, binds, context]; a repeated text is replaced by its number
    worker    RecordedStream: draw(i) is statement i, in the order of due times; context_of(i) contains the statements
              that its session needs before it. SessionArrivals: each slot takes the statements of its session, in order

Session n of user u is connection n x users + u. It belongs to worker (connection modulo workers), where it has slot
(connection divided by workers), so that the users of a busy session are distributed to all workers.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import count
from typing import Any

import numpy as np

from loadgen.errors import RunFailed, ScenarioInvalid
from loadgen.model.capture import (
    OTHERS,
    BindValue,
    CaptureManifest,
    RecordedStatement,
    RecordedTimes,
    Replay,
    SessionReplay,
    StatementRole,
    replayed_roles,
    statement_numbers,
)
from loadgen.model.workload import Statement
from loadgen.scenario.model import Load
from loadgen.values import dataclass
from loadgen.workload.draw import Row
from loadgen.workload.generators import Value
from loadgen.workload.pools import POOL_BYTES_MAX, POOL_VALUES_MAX, Pool

POOL_NAME = "~replay "  # and the number of the worker; no pool of a scenario can have this name
PLAN_PARTS = 100  # of the measurement; the plan of an aborted run ends with the last whole one
_MS_DIGITS, _NS_DIGITS = 12, 16  # least digits of an epoch in milliseconds, in nanoseconds


UserStatement = Callable[[int, RecordedStatement], RecordedStatement]  # of the user's number, from 0


class CaptureUnusable(ScenarioInvalid):
    remedy = "Capture again, or copy the complete folder again."


_OTHER_NUMBERS = "the capture has other numbers of statements than its description"
_LESS = "Use more workers or fewer users, or capture a shorter span."


def as_recorded(user: int, one: RecordedStatement) -> RecordedStatement:
    """Every user sends the recorded values."""
    return one


# --- the leader's part -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtReplay:
    """The statements of each worker: its pool, and the number of statements due until each part of the measurement;
    and the recorded times of each statement of the results."""

    pools: tuple[Pool, ...]
    planned: tuple[tuple[int, ...], ...]
    recorded: tuple[RecordedTimes, ...]


def replay_pools(
    recorded: Iterable[RecordedStatement],
    manifest: CaptureManifest,
    statements: tuple[Statement, ...],
    load: Load,
    *,
    own_database: bool,
    of_user: UserStatement = as_recorded,
) -> DealtReplay:
    """`own_database`: the scenario names a database, so those of the capture are not used. `of_user`: the statement
    that a user sends for a recorded one."""
    replay, workers = load.replay, load.workers
    assert replay is not None
    assert workers is not None
    assert load.duration_s is not None
    _require_room(sum(one.weight for one in statements) * replay.users, workers)
    numbers = statement_numbers(manifest, statements)
    dealers = [_Dealer(replay, numbers, own_database=own_database) for _ in range(workers)]
    found: dict[int, list[tuple[float, int | None]]] = {}  # milliseconds and rows
    for number, one in enumerate(_sent(_described(recorded, manifest), replay)):
        first = (one.session if replay.sessions is SessionReplay.KEEP else number) * replay.users
        for user in range(replay.users):
            worker, slot = (first + user) % workers, (first + user) // workers
            dealers[worker].deal(of_user(user, one), slot)
        if one.role is not StatementRole.CONTEXT:
            rows = None if one.role is StatementRole.TRANSACTION else one.rows
            found.setdefault(number_of(one, numbers), []).append((one.ms, rows))
    if any(len(found.get(number, ())) != one.weight for number, one in enumerate(statements)):
        raise CaptureUnusable(_OTHER_NUMBERS)
    failed = _failures(manifest, numbers)
    ends = [load.duration_s * 1e6 * part / PLAN_PARTS for part in range(1, PLAN_PARTS)]
    return DealtReplay(
        pools=tuple(
            Pool(f"{POOL_NAME}{worker}", tuple(dealer.values) or ("[]",)) for worker, dealer in enumerate(dealers)
        ),
        planned=tuple(
            (*(bisect_right(dealer.dues_us, end_us) for end_us in ends), len(dealer.dues_us)) for dealer in dealers
        ),
        recorded=tuple(_recorded_times(found.get(number, []), failed[number]) for number in range(len(statements))),
    )


def _require_room(statements: int, workers: int) -> None:
    """Reject a capture with too many statements before it is read."""
    if statements > POOL_VALUES_MAX * workers:
        most = f"{POOL_VALUES_MAX:,} for each of {workers:,} workers are the most"
        raise CaptureUnusable(f"the replay has {statements:,} statements, and {most}", remedy=_LESS)


def number_of(one: RecordedStatement, numbers: Mapping[str, int]) -> int:
    """The number of the statement of the results that it is measured as."""
    number = numbers.get(one.template, numbers.get(OTHERS[one.role]))
    if number is None:
        raise CaptureUnusable(f"the capture has a {one.role} that is not in its description")
    return number


def _failures(manifest: CaptureManifest, numbers: Mapping[str, int]) -> Counter[int]:
    """Failed statements of the history, by the statement of the results that their template is measured as."""
    found: Counter[int] = Counter()
    for one in manifest.templates:
        number = numbers.get(one.id, numbers.get(OTHERS.get(one.role, "")))
        if number is not None:
            found[number] += one.failed
    return found


def _recorded_times(found: Sequence[tuple[float, int | None]], failed: int) -> RecordedTimes:
    ranked = np.sort(np.array([ms for ms, _ in found] or [0.0]))
    known = [rows for _, rows in found if rows is not None]
    p50_ms, p95_ms = (float(ranked[math.ceil(len(ranked) * part) - 1]) for part in (0.5, 0.95))
    return RecordedTimes(
        count=len(found),
        avg_ms=round(float(ranked.mean()), 3),
        p50_ms=round(p50_ms, 3),
        p95_ms=round(p95_ms, 3),
        rows=sum(known),
        rows_known=len(known),
        failed=failed,
    )


def _described(recorded: Iterable[RecordedStatement], manifest: CaptureManifest) -> Iterator[RecordedStatement]:
    """The statements. Raises CaptureUnusable for one that contradicts the description of the capture."""
    before_ms, listed = 0.0, {one.id: one.role for one in manifest.templates}
    for number, one in enumerate(recorded, 1):
        if listed.get(one.template, one.role) is not one.role:
            raise CaptureUnusable(f"the capture has a {one.role} that its description calls a {listed[one.template]}")
        if one.session >= manifest.sessions or not before_ms <= one.at_ms <= manifest.span_ms:
            place = f"session {one.session} at {one.at_ms:g} ms"
            raise CaptureUnusable(f"the capture has a statement that is not in order, or not in its span: {place}")
        if number > manifest.statements:
            raise CaptureUnusable(_OTHER_NUMBERS)
        before_ms = one.at_ms
        yield one


def _sent(recorded: Iterable[RecordedStatement], replay: Replay) -> Iterator[RecordedStatement]:
    """Statements that are measured, and context statements that sessions need before them."""
    roles = replayed_roles(replay.writes)
    keeps = replay.sessions is SessionReplay.KEEP
    for one in recorded:
        if one.role in roles or (keeps and one.role is StatementRole.CONTEXT and not _is_use(one.sql)):
            yield one


def _is_use(sql: str) -> bool:
    """USE is left out: the scenario sets warehouse and role, and each statement has its database and schema."""
    return sql.lstrip()[:4].upper().rstrip() == "USE"


class _Dealer:
    """Collects the statements of one worker."""

    def __init__(self, replay: Replay, numbers: Mapping[str, int], *, own_database: bool) -> None:
        self.values: list[str] = []
        self.dues_us: list[int] = []
        self._replay, self._numbers, self._own_database = replay, numbers, own_database
        self._texts: dict[str, int] = {}
        self._waiting: dict[int, list[str]] = {}  # by slot: context statements before the next measured statement
        self._places: dict[int, tuple[str | None, str | None]] = {}
        self._bytes = 0

    def deal(self, one: RecordedStatement, slot: int) -> None:
        if one.role is StatementRole.CONTEXT:
            self._waiting.setdefault(slot, []).append(one.sql)
            return
        due_us = round(one.at_ms * 1000 / self._replay.speed)
        number = number_of(one, self._numbers)
        context = self._waiting.pop(slot, [])
        place = (one.database, one.schema)
        if not self._own_database and one.database is not None and self._places.get(slot) != place:
            context.append(_use(*place))
            self._places[slot] = place
        self._add([slot, due_us, number, self._text(one.sql), one.binds, context], due_us)

    def _text(self, sql: str) -> str | int:
        known = self._texts.get(sql)
        if known is not None:
            return known
        self._texts[sql] = len(self._texts)
        return sql

    def _add(self, value: list[Any], due_us: int) -> None:
        text = json.dumps(value, separators=(",", ":"))
        self._bytes += len(text) + text.count('"') + 3  # as JSON inside of JSON
        if len(self.values) >= POOL_VALUES_MAX or self._bytes > POOL_BYTES_MAX:
            most = f"{POOL_VALUES_MAX:,} statements or {POOL_BYTES_MAX >> 20} MB"
            raise CaptureUnusable(f"the replay has more than {most} for one worker", remedy=_LESS)
        self.values.append(text)
        self.dues_us.append(due_us)


def _use(database: str | None, schema: str | None) -> str:
    quoted = ['"' + name.replace('"', '""') + '"' for name in (database, schema) if name is not None]
    return f"USE {'SCHEMA' if len(quoted) == 2 else 'DATABASE'} {'.'.join(quoted)}"


def planned_until(replay: Replay, worker: int, part: float) -> int:
    """The number of statements of a worker that are certainly due in this part (0 to 1) of the measurement: statements
    may come in bursts, so those of the unfinished hundredth are not known."""
    counts = replay.planned[worker]
    whole = min(int(part * PLAN_PARTS), PLAN_PARTS)
    return counts[whole - 1] if whole else 0


# --- the worker's part -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Recorded:
    slot: int
    due_us: int
    number: int
    row: Row  # ((text,), binds)
    context: tuple[str, ...]


class RecordedStream:
    """All statements of a worker. Any thread; the context of a slot belongs to its client."""

    first = 0

    def __init__(self, pool: Pool, duration_s: float) -> None:
        texts: list[str] = []
        self.duration_s = duration_s
        self._statements: list[_Recorded] = []
        for value in pool.values:
            found = json.loads(str(value))
            if found:
                self._statements.append(_recorded(found, texts))
        self.end = len(self._statements)
        self._set: dict[int, list[str]] = {}  # by slot: context statements that its session has executed

    def draw(self, k: int) -> tuple[int, Row]:
        one = self._statements[k]
        return one.number, one.row

    def ahead(self, k: int) -> list[tuple[int, Row]]:
        """Not available: only closed loops draw ahead."""
        raise RunFailed("a replay has no closed loop")

    def due_us(self, k: int) -> int:
        return self._statements[k].due_us

    def due_s(self, k: int) -> float:
        return self._statements[k].due_us / 1e6

    def slot_of(self, k: int) -> int:
        return self._statements[k].slot

    def context_of(self, k: int, slot: int) -> tuple[str, ...]:
        """Statements that the session of this slot needs before `k`. They are kept for the next connection."""
        context = self._statements[k].context
        if context:
            self._set.setdefault(slot, []).extend(context)
        return context

    def context_so_far(self, slot: int) -> tuple[str, ...]:
        """Statements that a new connection of this slot needs."""
        return tuple(self._set.get(slot, ()))


def _recorded(found: list[Any], texts: list[str]) -> _Recorded:
    slot, due_us, number, text, binds, context = found
    if isinstance(text, str):
        texts.append(text)
    sql = text if isinstance(text, str) else texts[text]
    row: Row = ((sql,), tuple(bound_value((kind, value)) for kind, value in binds))
    return _Recorded(slot, due_us, number, row, tuple(context))


def bound_value(bind: BindValue) -> Value:
    """The value to bind for a recorded value of a Snowflake type."""
    kind, value = bind[0].upper(), bind[1]
    if not isinstance(value, str):
        return value
    try:
        if kind in ("FIXED", "NUMBER", "DECIMAL"):
            return int(value) if value.lstrip("+-").isdigit() else Decimal(value)
        if kind in ("REAL", "FLOAT", "DOUBLE"):
            return float(value)
        if kind == "BOOLEAN":
            return value.lower() in ("true", "1")
        if kind == "BINARY":
            return bytes.fromhex(value)
        if kind.startswith(("DATE", "TIME")) and value.lstrip("-").replace(".", "", 1).isdigit():
            return _moment(kind, value)
    except (ValueError, InvalidOperation, OverflowError):
        return value
    return value


def _moment(kind: str, value: str) -> Value:
    """The value of an epoch in seconds, milliseconds or nanoseconds; a time of day is in nanoseconds."""
    digits = len(value.lstrip("-").partition(".")[0])
    unit = 10**9 if digits >= _NS_DIGITS or kind == "TIME" else 10**3 if digits >= _MS_DIGITS else 1
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=float(Decimal(value) * 10**6 / unit))
    if kind == "DATE":
        return moment.date()
    return moment.time() if kind == "TIME" else moment.replace(tzinfo=None)


class SessionArrivals:
    """The statements of the only window of a replay, each for the slot of its session.

    take(): any client, without a lock. close(): the ramp controller. A number is returned once.
    """

    def __init__(self, window_id: int, stream: RecordedStream, opened_ns: int, since_ns: int | None = None) -> None:
        """Due times are relative to `opened_ns`. Statements that are due before `since_ns` are left out."""
        self.window_id = window_id
        self._stream, self._opened_ns = stream, opened_ns
        self._numbers: dict[int, list[int]] = {}
        first_us = 0 if since_ns is None else (since_ns - opened_ns) // 1000
        for number in range(stream.end):
            if stream.due_us(number) >= first_us:
                self._numbers.setdefault(stream.slot_of(number), []).append(number)
        self._next = {slot: count().__next__ for slot in self._numbers}  # atomic
        self._closed_ns: int | None = None

    def take(self, slot: int = 0) -> int | None:
        """The number of the next statement of this slot, for the caller to send; None: its session is over."""
        numbers = self._numbers.get(slot)
        if numbers is None:
            return None
        at = self._next[slot]()
        if at >= len(numbers) or (self._closed_ns is not None and self.due_ns(numbers[at]) > self._closed_ns):
            return None
        return numbers[at]

    def due_ns(self, number: int) -> int:
        return self._opened_ns + self._stream.due_us(number) * 1000

    def close(self, closed_ns: int) -> Iterator[int]:
        """Close the window. Returns the statements that were due in it and that no client took."""
        self._closed_ns = closed_ns
        return self._left()

    def _left(self) -> Iterator[int]:
        for slot in self._numbers:
            while (number := self.take(slot)) is not None:
                yield number
