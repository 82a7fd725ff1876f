"""Mode replay: when the statements of a window were sent, and how many rows they had. Tallies add."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.metrics.json_fields import COUNT_MAX, JsonFields, is_whole
from loadgen.units import NS_PER_S
from loadgen.workload.replay import PLAN_PARTS

# (window, statement, nanoseconds since the window opened, None) when it was sent; (…, None, rows) when it succeeded
ReplayedEntry = tuple[int, int, int | None, int | None]


@dataclass(frozen=True, slots=True)
class RowCount:
    """Rows of the statements whose number of rows is known."""

    statements: int = 0
    rows: int = 0

    def __add__(self, other: RowCount) -> RowCount:
        return RowCount(self.statements + other.statements, self.rows + other.rows)

    @property
    def avg(self) -> float | None:
        return round(self.rows / self.statements, 3) if self.statements else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTally:
    sent: tuple[int, ...] = (0,) * PLAN_PARTS  # statements in each of equal parts of the measurement
    rows: Mapping[str, RowCount] = field(default_factory=dict)  # by the name of the statement

    def __add__(self, other: ReplayTally) -> ReplayTally:
        rows = dict(self.rows)
        for name, more in other.rows.items():
            rows[name] = rows.get(name, RowCount()) + more
        return ReplayTally(sent=tuple(map(sum, zip(self.sent, other.sent, strict=True))), rows=rows)


def all_replayed(tallies: Iterable[ReplayTally | None]) -> ReplayTally | None:
    """Of all workers; None when one is missing, because a part would look like the whole."""
    whole: ReplayTally | None = None
    for tally in tallies:
        if tally is None:
            return None
        whole = tally if whole is None else whole + tally
    return whole


class ReplayMeter:
    """What the clients of a worker say. One thread."""

    def __init__(self, names: Iterable[str], duration_s: float) -> None:
        self._names, self._part_ns = tuple(names), max(1, round(duration_s * NS_PER_S / PLAN_PARTS))
        self._sent: dict[int, list[int]] = {}
        self._rows: dict[int, dict[str, RowCount]] = {}

    def add(self, entries: deque[ReplayedEntry]) -> None:
        """What came since the last time, which is taken out."""
        for _ in range(len(entries)):
            window, number, offset_ns, rows = entries.popleft()
            if offset_ns is not None:
                sent = self._sent.setdefault(window, [0] * PLAN_PARTS)
                sent[max(0, min(offset_ns // self._part_ns, PLAN_PARTS - 1))] += 1
            elif rows is not None and rows >= 0:  # the driver has -1 where there is no number of rows
                own, name = self._rows.setdefault(window, {}), self._names[number]
                own[name] = own.get(name, RowCount()) + RowCount(1, rows)

    def tally(self, window: int) -> ReplayTally:
        return ReplayTally(
            sent=tuple(self._sent.get(window, ())) or (0,) * PLAN_PARTS, rows=dict(self._rows.get(window, {}))
        )


def replayed_data(tally: ReplayTally) -> dict[str, Any]:
    return {"sent": list(tally.sent), "rows": {name: [one.statements, one.rows] for name, one in tally.rows.items()}}


def read_replayed(fields: JsonFields) -> ReplayTally:
    sent, counted = fields.items("sent"), fields.part("rows")
    if len(sent) != PLAN_PARTS or not all(is_whole(count) and 0 <= count <= COUNT_MAX for count in sent):
        fields.refuse(f"has a sent that is not {PLAN_PARTS} counts")
    rows = {}
    for name in counted.names():
        pair = counted.items(name)
        if len(pair) != 2 or not all(is_whole(count) and 0 <= count <= COUNT_MAX for count in pair):
            counted.refuse(f"has no two counts for {name}")
        rows[name] = RowCount(*pair)
    return ReplayTally(sent=tuple(sent), rows=rows)
