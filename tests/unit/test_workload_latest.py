"""`latest` with `follows`: reads hit what exists while inserts execute and fail."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.model.workload import ClientPosition
from loadgen.workload.draw import StatementStream
from tests.unit.scenario_builders import EMBEDDED, read

SCENARIO = """
workload:
  statements:
    - name: read
      weight: 2
      transaction:
        - {sql: SELECT ?, params: [{literal: 1000}]}
        - {sql: SELECT ?, params: [{latest: {min: 1, max: 100, follows: insert}}]}
    - name: again
      transaction: [{sql: "SELECT ?, ?", params: [{latest: {min: 1, max: 100, follows: insert}}, {previous: 0}]}]
    - {name: insert, kind: write, weight: 2, sql: "INSERT INTO T VALUES (?, ?)", params: [{literal: 0}, {sequence: {start: START}}]}
load: {connections: 1, workers: 1, duration: 60s}
"""  # noqa: E501
INSERT = 2
WORKLOADS = {start: read(EMBEDDED + SCENARIO.replace("START", str(start))).workload for start in (1, 90, 101)}


@pytest.mark.parametrize("open_loop", [False, True])
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60), st.sampled_from(sorted(WORKLOADS)))
def test_reads_of_the_latest_keys_hit_what_exists(open_loop, inserts, start):
    """An INSERT is answered after a number of draws, or fails; a read is sent when it is drawn."""
    stream = StatementStream(WORKLOADS[start], ClientPosition(worker=0, workers=1), {}, open_loop=open_loop)
    there: set[Any] = set(range(1, 101))
    executing: list[tuple[int, Any]] = []
    fates = iter(inserts)

    assert stream.follows
    for k in range(300):
        number, row = stream.draw(k)
        for ends, answered in [one for one in executing if one[0] <= k]:
            executing.remove((ends, answered))
            stream.succeeded(INSERT, answered)
            there.add(answered[0][1])
        if number == INSERT:
            lasts, succeeds = next(fates, (3, True))
            executing += [(k + lasts, row)] if succeeds else []
            continue
        sent = stream.current(number, row)
        assert set(sent[-1]) <= there
        assert len(set(sent[-1])) == 1, "`previous` repeats the key that is sent"
        assert sent == row or not set(row[-1]) <= there, "a key that exists is not replaced"
