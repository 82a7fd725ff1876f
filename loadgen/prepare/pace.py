"""How many rows the next statement makes: so many that it takes about a second and a half.

Short enough that progress moves and a stop is obeyed soon, long enough that the round trip does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

ROWS_FIRST = 1_000
ROWS_MIN = 100
ROWS_MAX = 200_000
TARGET_S = 1.5
GROWTH_MAX = 4.0  # from one statement to the next: the first ones say little


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    rows: int = ROWS_FIRST
    rows_max: int = ROWS_MAX

    @classmethod
    def up_to(cls, rows_max: int) -> Self:
        return cls(rows=min(ROWS_FIRST, rows_max), rows_max=min(ROWS_MAX, rows_max))

    def after(self, rows: int, seconds: float) -> Self:
        """The pace after a statement that made so many rows in so many seconds."""
        wanted = rows * TARGET_S / max(seconds, 0.001)
        bounded = min(max(wanted, self.rows / GROWTH_MAX), self.rows * GROWTH_MAX)
        return replace(self, rows=self._within(bounded))

    def slower(self) -> Self:
        """After a failure: a smaller statement is likelier to get through."""
        return replace(self, rows=self._within(self.rows / GROWTH_MAX))

    def _within(self, rows: float) -> int:
        return int(min(max(rows, min(ROWS_MIN, self.rows_max)), self.rows_max))
