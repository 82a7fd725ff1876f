"""The fixed edges between buckets of time: each 2 % above the one before, from 1 µs to a little over an hour.

Bucket 0 holds what is shorter, the last one what is longer, and bucket b the whole nanoseconds from EDGES_NS[b - 1] up
to, not including, EDGES_NS[b]. They are computed with whole numbers, so they are the same on every machine, and they
are part of the stored format: changing them means a new version of every document with buckets.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

FIRST_NS = 1_000
INNER_BUCKETS = 1_113  # reaches an hour, and can be divided by every coarseness
BUCKETS = INNER_BUCKETS + 2
OVERFLOW = BUCKETS - 1
COARSENESSES = (1, 3, 7)  # how many inner buckets may be joined into one; odd, so that one of them is in the middle

_FIXED_POINT = 10**30


def _edges_ns() -> IntArray:
    edges, edge = [], FIRST_NS * _FIXED_POINT
    for _ in range(INNER_BUCKETS + 1):
        edges.append(edge // _FIXED_POINT)
        edge = edge * 102 // 100
    return np.array(edges, np.int64)


EDGES_NS = _edges_ns()
LOWEST_NS = np.concatenate(([0], EDGES_NS))  # of each bucket, the shortest time in it
HIGHEST_NS = np.concatenate((EDGES_NS - 1, [np.iinfo(np.int64).max]))  # and the longest
for _array in (EDGES_NS, LOWEST_NS, HIGHEST_NS):
    _array.flags.writeable = False


def buckets_of(times_ns: IntArray | int) -> IntArray:
    """The bucket of each time."""
    return np.asarray(np.searchsorted(EDGES_NS, times_ns, side="right"))


def group_of(bucket: int, coarseness: int) -> int:
    """The number of a bucket once `coarseness` inner ones are joined; the first and the last bucket stay alone."""
    return (bucket - 1) // coarseness + 1


def join(counts: IntArray, coarseness: int) -> IntArray:
    """Counts by group."""
    inner = counts[1:-1].reshape(-1, coarseness).sum(axis=1)
    return np.concatenate((counts[:1], inner, counts[-1:]))


def spread(groups: IntArray, coarseness: int) -> IntArray:
    """Counts by bucket: the one in the middle of a group stands for all of them."""
    counts = np.zeros(BUCKETS, np.int64)
    counts[0], counts[-1] = groups[0], groups[-1]
    counts[1 + coarseness // 2 : -1 : coarseness] = groups[1:-1]
    return counts
