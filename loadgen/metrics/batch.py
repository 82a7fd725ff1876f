"""Samples as columns of numbers, and what they add to each window: the step from tuples to tallies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from loadgen.metrics.buckets import IntArray
from loadgen.metrics.errors import ErrorKey, ErrorTally
from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.outcome import Outcome
from loadgen.metrics.recorder import Sample
from loadgen.metrics.tally import StatementTally, Tally, Times

_FIELDS = 6
_OUTCOMES = len(Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """One entry per sample in each column. In a closed loop response and service are the same column."""

    statement: IntArray
    window: IntArray
    outcome: IntArray
    response_ns: IntArray
    service_ns: IntArray
    lag_ns: IntArray
    open_loop: bool

    @classmethod
    def of(cls, samples: Sequence[Sample], *, open_loop: bool) -> SampleBatch:
        numbers: Iterable[int] = chain.from_iterable(samples)  # type: ignore[arg-type]  # Failed has __index__
        table = np.fromiter(numbers, np.int64, _FIELDS * len(samples)).reshape(-1, _FIELDS)
        statement, window, due_ns, sent_ns, done_ns, outcome = np.ascontiguousarray(table.T)
        if open_loop:
            due_ns = np.minimum(due_ns, sent_ns)  # a wait may end a moment early, and nobody is late then
        elif (due_ns != sent_ns).any():
            raise ValueError("in a closed loop a statement is due when it is sent")
        service_ns = done_ns - sent_ns
        return cls(
            statement=statement,
            window=window,
            outcome=outcome,
            response_ns=done_ns - due_ns if open_loop else service_ns,
            service_ns=service_ns,
            lag_ns=sent_ns - due_ns,
            open_loop=open_loop,
        )

    def tallies(self, names: Sequence[str], errors: Mapping[int, Mapping[ErrorKey, ErrorTally]]) -> dict[int, Tally]:
        """What it adds to each window. `names` are those of the statements, `errors` what is known of the failures."""
        windows: dict[int, dict[str, StatementTally]] = {}
        for window, statement, rows in self._groups(len(names)):
            statements, name = windows.setdefault(window, {}), names[statement]
            piece = self._tally(rows)
            statements[name] = statements[name] + piece if name in statements else piece
        return {
            window: Tally(statements=statements, errors=errors.get(window, {}))
            for window, statements in windows.items()
        }

    def _groups(self, statements: int) -> Iterator[tuple[int, int, IntArray]]:
        """(window, statement, rows) for each combination of these and an outcome that occurs."""
        if not len(self.window):
            return
        for column, size in ((self.statement, statements), (self.outcome, _OUTCOMES)):
            if column.min() < 0 or column.max() >= size:
                raise ValueError("a sample has a statement that is not in the workload, or no known outcome")
        places = np.unique(self.window, return_inverse=True)[1]
        keys = (places * statements + self.statement) * _OUTCOMES + self.outcome
        keys = keys.astype(np.min_scalar_type(int(keys.max())))  # small numbers are sorted by radix, in linear time
        order = np.argsort(keys, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            yield int(self.window[rows[0]]), int(self.statement[rows[0]]), rows

    def _tally(self, rows: IntArray) -> StatementTally:
        outcome = Outcome(int(self.outcome[rows[0]]))
        if outcome is Outcome.SKIPPED:
            ages_ns = self.response_ns[rows]
            return StatementTally(skipped=len(rows), unsent=Histogram.of(ages_ns[ages_ns > 0]))
        service = response = Histogram.of(self.service_ns[rows])
        lag = EMPTY
        if self.open_loop:
            response, lag = Histogram.of(self.response_ns[rows]), Histogram.of(self.lag_ns[rows])
        return StatementTally(times={outcome: Times(response, service)}, lag=lag)
