"""The results of a benchmark: figures, each with its aim, as text or JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing that was measured; without an aim it is there to explain another one."""

    name: str
    value: float
    unit: str
    aim: str = ""
    met: bool = True
    note: str = ""


def report(figures: Sequence[Figure], output: str) -> int:
    """Print them all; the exit code: 1 when an aim was missed."""
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    if output == "json":
        print(json.dumps({"machine": load, "figures": [asdict(figure) for figure in figures]}, indent=2))
    else:
        print(text_of(figures, load))
    return 0 if all(figure.met for figure in figures) else 1


def text_of(figures: Sequence[Figure], load: str) -> str:
    lines = [f"{'':44} {'value':>9} {'':12} aim"]
    for figure in figures:
        verdict = f"{figure.aim} {'ok' if figure.met else 'MISSED'}" if figure.aim else "–"
        lines.append(f"{figure.name:44} {figure.value:>9.3f} {figure.unit:12} {verdict:16} {figure.note}".rstrip())
    return "\n".join([*lines, "", load])
