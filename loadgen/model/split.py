"""The one way a whole number is divided among workers; both sides of a run must come to the same parts."""

from __future__ import annotations


def worker_share(total: int, index: int, count: int) -> int:
    """Part `index` of `total`. Parts add up exactly and differ by at most one; the remainder goes to the low ids."""
    if count < 1 or not 0 <= index < count:
        raise ValueError(f"there is no part {index} of {count}")
    if total < 0:
        raise ValueError(f"cannot split {total}: it is negative")
    base, extra = divmod(total, count)
    return base + (index < extra)
