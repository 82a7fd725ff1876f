"""What a warehouse costs: credits per hour of one cluster of a standard warehouse, generation 1. Each size doubles."""

from __future__ import annotations

SIZES = ("X-Small", "Small", "Medium", "Large", "X-Large", *(f"{number}X-Large" for number in range(2, 7)))
IDLE_POLL_S = 600.0  # between looks of a pool that has no work
LOOK_AWAKE_S = 60.0  # of the warehouse for one look: AUTO_SUSPEND of `loadgen setup`, and the least that is billed
DAY_S = 86_400.0


def credits_per_hour(size: str) -> float | None:
    """None for a size that is not known."""
    return float(2 ** SIZES.index(size)) if size in SIZES else None


def look_credits_per_day(every_s: float) -> float:
    """Of an X-Small that a look at its tables starts this often."""
    return DAY_S / max(every_s, LOOK_AWAKE_S) * LOOK_AWAKE_S / 3600
