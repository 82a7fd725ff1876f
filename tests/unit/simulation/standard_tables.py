"""The tables without an enforced key: rows are appended, and readers use one row of each key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

ZERO = datetime(2026, 11, 15)  # noqa: DTZ001  as Snowflake has it: naive UTC
STATUS, SUMMARY = 5, 17  # their places in a row of TEST_RESULTS, which has END_TIME before its figures
Commit = Callable[[], int]
Rows = list[tuple[Any, ...]]


class StandardTables:
    """WINDOW_RESULTS, TEST_RESULTS, TEST_LOGS, WORKER_METRICS_SNAPSHOTS, VALUE_POOLS, QUERY_EXECUTIONS,
    FIND_MAX_STEP_HISTORY, WAREHOUSE_POLL_SNAPSHOTS."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.windows: Rows = []
        self.results: list[list[Any]] = []
        self.logs: Rows = []
        self.snapshots: Rows = []
        self.steps: Rows = []
        self.polls: Rows = []
        self.executions: Rows = []

    @property
    def now_s(self) -> float:
        return self._clock()

    def _moment(self, second: float | None) -> datetime | None:
        return None if second is None else ZERO + timedelta(seconds=second)

    def _appends(self, table: Rows, row: tuple[Any, ...]) -> Commit:
        def commit() -> int:
            table.append(row)
            return 1

        return commit

    # --- WINDOW_RESULTS ----------------------------------------------------------------------------------------------

    def _window_results_append(self, *row: Any) -> Commit:
        return self._appends(self.windows, row)

    def _window_results_find(self, *key: Any) -> Rows:
        return [(sum(row[:3] == key for row in self.windows),)]

    def _window_results_read(self, _: str) -> Rows:
        first: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for row in self.windows:
            first.setdefault(row[1:3], row[1:])
        return [first[key] for key in sorted(first)]

    # --- FIND_MAX_STEP_HISTORY, WAREHOUSE_POLL_SNAPSHOTS -------------------------------------------------------------

    def _find_max_step_history_append(self, *row: Any) -> Commit:
        return self._appends(self.steps, row)

    def _find_max_step_history_find(self, *key: Any) -> Rows:
        return [(sum(row[:2] == key for row in self.steps),)]

    def _find_max_step_history_read(self, _: str) -> Rows:
        first: dict[int, tuple[Any, ...]] = {}
        for row in self.steps:
            first.setdefault(row[1], row)
        return [first[number] for number in sorted(first)]

    def _warehouse_poll_snapshots_append(self, *row: Any) -> Commit:
        return self._appends(self.polls, row)

    def _warehouse_poll_snapshots_find(self, *key: Any) -> Rows:
        return [(sum(row[:2] == key for row in self.polls),)]

    def _warehouse_poll_snapshots_read(self, _: str) -> Rows:
        first = {row[0]: row for row in reversed(self.polls)}
        return sorted(first.values(), key=lambda row: (row[2], row[0]))

    # --- TEST_RESULTS ------------------------------------------------------------------------------------------------

    def run_result(self) -> list[Any] | None:
        """The row of the run itself."""
        return next((row for row in self.results if row[2] is None), None)

    def completed_workers(self) -> set[str]:
        """The workers whose result says that they ended as ordered."""
        return {row[2] for row in self.results if row[2] is not None and row[STATUS] == "COMPLETED"}

    def _test_results_append(self, *row: Any) -> Commit:
        def commit() -> int:
            self.results.append([*row[:7], self._moment(self.now_s), *row[7:]])
            return 1

        return commit

    def _test_results_begin(self, *row: Any) -> Commit:
        *who, created_at = row
        return self._test_results_append(*who, "RUNNING", created_at, 0, 0, 0, 0, *[None] * 6)

    def _test_results_any(self, *key: Any) -> Rows:
        return [(len(self._keyed(key)),)]

    def _test_results_find(self, *key: Any) -> Rows:
        return [(sum(row[SUMMARY] is not None for row in self._keyed(key)),)]

    def _test_results_finish(self, status: str, *binds: Any) -> Commit:
        *figures, summary, test_id, run_id = binds

        def commit() -> int:
            rows = [row for row in self._keyed((test_id, run_id)) if row[SUMMARY] is None]
            for row in rows:
                row[STATUS], row[7], row[8:16], row[SUMMARY] = status, self._moment(self.now_s), figures, summary
            return len(rows)

        return commit

    def _test_results_abandon(self, _: str) -> Commit:
        def commit() -> int:
            rows = [row for row in self.results if row[2] is not None and row[SUMMARY] is None]
            for row in rows:
                row[STATUS] = "FAILED"
            return len(rows)

        return commit

    def _test_results_amend(self, summary: str, run_id: str, test_id: str) -> Commit:
        def commit() -> int:
            rows = self._keyed((test_id, run_id))
            for row in rows:
                row[SUMMARY] = summary
            return len(rows)

        return commit

    def _test_results_read(self, _: str) -> Rows:
        first: dict[str, list[Any]] = {}
        for row in sorted(self.results, key=lambda row: row[SUMMARY] is None):
            first.setdefault(row[0], row)
        found = sorted(first.values(), key=lambda row: (-1 if row[3] is None else row[3], row[0]))
        return [tuple(row) for row in found]

    def _keyed(self, key: tuple[Any, ...]) -> list[list[Any]]:
        return [row for row in self.results if tuple(row[:2]) == key]

    # --- results that the simulation does not check -------------------------------------------------------------------

    def _test_logs_append(self, *row: Any) -> Commit:
        return self._appends(self.logs, row)

    def _test_logs_find(self, *key: Any) -> Rows:
        return [(sum(row[:2] == key for row in self.logs),)]

    def _test_logs_ids(self, run_id: str) -> Rows:
        return [row[:1] for row in self.logs if row[1] == run_id]

    def _worker_metrics_snapshots_append(self, *row: Any) -> Commit:
        return self._appends(self.snapshots, row)

    def _worker_metrics_snapshots_find(self, *key: Any) -> Rows:
        return [(sum(row[:2] == key for row in self.snapshots),)]

    def _worker_metrics_snapshots_read(self, _: str) -> Rows:
        """In order of time, then of the worker's number."""
        first = {row[0]: row for row in reversed(self.snapshots)}
        rows = [(*row[:6], datetime.fromisoformat(str(row[6])), *row[7:]) for row in first.values()]
        return sorted(rows, key=lambda row: (row[6], row[4], row[0]))

    def _worker_metrics_snapshots_newest(self, run_id: str, after_s: int) -> Rows:
        since = ZERO + timedelta(seconds=self.now_s + after_s)
        return [row for row in self._worker_metrics_snapshots_read(run_id) if row[6] >= since]

    def _worker_metrics_snapshots_ids(self, run_id: str) -> Rows:
        return [row[:1] for row in self.snapshots if row[1] == run_id]

    def _value_pools_pools(self, _: str) -> Rows:
        return []

    def _query_executions_append(self, *row: Any) -> Commit:
        return self._appends(self.executions, row)

    def _query_executions_find(self, *key: Any) -> Rows:
        return [(sum(row[:2] == key for row in self.executions),)]

    def _query_executions_tally(self, _: str) -> Rows:
        return []
