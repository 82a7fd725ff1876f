"""A plan in plain words, and as JSON data."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from loadgen.log import printable
from loadgen.scenario.plan import CostEstimate, ScenarioPlan, format_span
from loadgen.units import counted

VALUE_WIDTH = 24  # longer values push their origin to the right


def plan_text(plan: ScenarioPlan) -> str:
    """For people."""
    return "\n".join(line.rstrip() for line in _lines(plan))


def plan_data(plan: ScenarioPlan) -> dict[str, Any]:
    """For machines."""
    return dataclasses.asdict(plan)


def _lines(plan: ScenarioPlan) -> Iterator[str]:
    yield f"{plan.source}: {printable(plan.name)}"
    yield ""
    yield from (f"  {printable(sentence)}" for sentence in plan.summary)
    yield from _titled("Timeline", _phases(plan))
    yield from _titled("Statements", _shares(plan))
    yield from _titled("Workers", [_workers(plan)])
    yield from _titled("To prepare", _preparation(plan))
    yield from _titled("Find max", _find_max(plan))
    yield from _titled("Cost", _cost(plan.cost))
    yield from _titled("Every value and where it comes from", _settings(plan))


def _titled(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


def _phases(plan: ScenarioPlan) -> list[str]:
    rows = [
        (
            f"at {format_span(phase.start_s)}",
            phase.name,
            f"for {format_span(phase.duration_s)}",
            phase.level,
        )
        for phase in plan.phases
    ]
    return _table(rows)


def _shares(plan: ScenarioPlan) -> list[str]:
    rows = []
    for share in plan.shares:
        queries = "" if share.queries == 1 else f"transaction of {share.queries}"
        expected = "" if share.expected is None else f"{share.expected:,} expected"
        rows.append((f"{share.fraction:7.2%}", share.kind, printable(share.name, 60), expected, queries))
    return _table(rows)


def _workers(plan: ScenarioPlan) -> str:
    sizes = Counter(plan.connections_per_worker)
    parts = " and ".join(
        f"{count} × {counted(size, 'connection')}" for size, count in sorted(sizes.items(), reverse=True)
    )
    return f"{plan.workers} ({plan.workers_reason}): {parts}"


def _preparation(plan: ScenarioPlan) -> list[str]:
    rows = [
        (
            printable(table.table, 80),
            table.type,
            "must be there" if table.type == "existing" else counted(table.rows, "row"),
        )
        for table in plan.preparation
    ]
    lines = _table(rows)
    total = sum(table.rows for table in plan.preparation)
    if len(rows) > 1 and total:
        lines.append(f"{total:,} rows in all, unless they are there already")
    lines += [f"value pool {printable(name, 60)} from a {printable(origin, 80)}" for name, origin in plan.pools]
    return lines


def _find_max(plan: ScenarioPlan) -> list[str]:
    cap = plan.find_max
    if cap is None:
        return []
    return [
        f"At most {counted(cap.steps, 'step')}: {len(cap.levels)} of the climb, then confirming and bisecting;"
        " some are left for repeating steps that contradict each other, or that the client limited.",
        f"{format_span(cap.steps_s)} when no step is repeated or extended,"
        f" never more than {format_span(cap.longest_s)}.",
    ]


def _cost(cost: CostEstimate | None) -> list[str]:
    if cost is None:
        return ["None: the embedded server runs on this machine."]
    sizes = ", ".join(f"{size} {credits:.2f}" for size, credits in cost.by_size)
    return [
        f"At most, in credits by the size of the warehouse: {sizes}.",
        f"Plus {cost.control:.2f} for the control warehouse, if it is X-Small.",
        f"Assumed: one cluster of a standard warehouse at 1 credit per hour for X-Small, twice that for each size up, "
        f"running for {format_span(cost.longest_s)}; preparing and idling until it suspends come on top.",
    ]


def _settings(plan: ScenarioPlan) -> list[str]:
    width = max(len(setting.path) for setting in plan.settings)
    return [f"{each.path.ljust(width)}  {each.value.ljust(VALUE_WIDTH)}  {each.origin}" for each in plan.settings]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side; nothing is cut off."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
