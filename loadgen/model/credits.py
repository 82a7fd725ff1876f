"""What a warehouse costs: credits per hour of one cluster of a standard warehouse, generation 1. Each size doubles."""

from __future__ import annotations

SIZES = ("X-Small", "Small", "Medium", "Large", "X-Large", *(f"{number}X-Large" for number in range(2, 7)))


def credits_per_hour(size: str) -> float | None:
    """None for a size that is not known."""
    return float(2 ** SIZES.index(size)) if size in SIZES else None
