"""What is wrong with a scenario, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.errors import ScenarioInvalid
from loadgen.log import printable
from loadgen.units import counted

SHOWN_MAX = 100  # problems told at once; a file with more is hopeless, not unlucky
PART_SHOWN = 60  # characters of one key in a path

KeyPath = tuple[str | int, ...]  # ("workload", "statements", 0, "sql")


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A place in a text, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to put right."""

    source: str  # the file, or the option: `--set load.rate=5`
    mark: SourcePosition | None  # None for an option
    path: KeyPath
    what: str
    hint: str | None = None

    @property
    def where(self) -> str:
        return self.source if self.mark is None else f"{self.source}:{self.mark.line}:{self.mark.column}"

    @property
    def message(self) -> str:
        """What and hint in one line."""
        return self.what if self.hint is None else f"{self.what}; {self.hint}"

    def __str__(self) -> str:
        path = dotted(self.path)
        return f"{self.where} {path}: {self.message}" if path else f"{self.where}: {self.message}"


class ScenarioProblems(ScenarioInvalid):
    """Everything that is wrong with one scenario."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        first = self.problems[0]
        if len(self.problems) == 1 and first.mark is None and not first.path:  # the file as a whole cannot be used
            hint = first.hint
            super().__init__(f"{source} {first.what}", remedy=hint and f"{hint[0].upper()}{hint[1:]}.")
            return
        shown = [f"  {problem}" for problem in self.problems[:SHOWN_MAX]]
        if left_out := len(self.problems) - len(shown):
            shown.append(f"  … and {left_out} more")
        super().__init__("\n".join([f"{source} has {counted(len(self.problems), 'problem')}:", *shown]))


def dotted(path: KeyPath) -> str:
    """("load", "stages", 0) → 'load.stages.0', as --set takes it; safe to print."""
    return ".".join(printable(str(part), PART_SHOWN) for part in path)
