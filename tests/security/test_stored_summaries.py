"""Stored summaries are untrusted: every part of a real one is removed or replaced, and given to every reader."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest

from loadgen.clock import utc_iso
from loadgen.control.session import ParsedRows, RowUnreadable
from loadgen.control.tables.test_results import ScenarioResult
from loadgen.errors import RunFailed
from loadgen.report.exports import RENDERERS
from loadgen.report.summary import in_order, with_unstored
from loadgen.report.trend import trend_data, trend_text
from loadgen.results.comparisons import _series_run
from loadgen.results.run_details import RunDetails, run_details_as_json, run_details_lines
from loadgen.results.run_record import find_max_steps, measured_windows
from loadgen.results.stored_summary import parse_summary
from loadgen.rules.comparability import why_not_comparable
from loadgen.rules.trend import trend_of
from loadgen.scenario.frozen import freeze
from tests.contract.test_control_tables_results import step
from tests.unit.report_builders import START, full, record, scenario
from tests.unit.run_builders import RUN

Path = tuple[str | int, ...]

REMOVED = object()
VALUES: tuple[Any, ...] = (REMOVED, None, -1, 1e308, "x", [], {}, [[[]]], True)
CHARTED = ("latency_ms", "lag_ms", "stalls", "thresholds", "find_max")
RUN_ID = "20261115-0200-orders-7f3a9c"


def whole(*, searched: bool) -> dict[str, Any]:
    """A summary with every part that loadgen writes."""
    found: dict[str, Any] = json.loads(json.dumps(full().summary))
    times, found["thresholds"] = found["latency_ms"], found["thresholds"][:2]
    del found["statements"]["orders_of_customer"], found["stages"][1:], found["worker_results"][1:]
    found["latency_ms"] = times | {"at_least": ["p99"], "cut_off": 3}
    found["thresholds"][0] |= dict.fromkeys(("at_least", "at_most", "too_few_samples", "not_measured", "default"), True)
    found["thresholds"][0]["window_seconds"] = 10.0
    portion = {"planned_arrivals": 9, "sent_arrivals": 8, "overload_arrivals": 1, "fraction": 0.9}
    found["delivered"] = {**portion, "by_worker": {"worker-0": portion}, "by_window": [{"step_id": None, **portion}]}
    found["stalls"] = {"count": 1, "longest_ms": 1_000.0, "total_ms": 1_000.0, "spans_s": [[3.0, 4.0]]}
    found["sessions"] = {"created": 5, "expired": 2, "current": 3}
    found["unstored"] = {"worker-0": {"query_log_row": 7}}
    found["environment"] |= {"warnings": ["it was noticed"], "cores": 2, "driver": "5.2.0", "driver_lightened": True}
    refused = {"worker_id": "worker-0", "at": "2026-11-15T02:00:01.000Z", "second": 1.0, "code": 390100, "text": "no"}
    refused |= {"slot": 3, "count": 2}
    logins = {"opened": 8, "reopened": {"lost": 1}, "refused": 1, "last_refused": [refused]}
    found["client"]["connections"] = logins | {"last_lost": [refused | {"reason": "session_lost"}]}
    ledger = {"total": {"mean": 1.0, "p50": 1.0, "p95": None}}
    found["enrichment"] = {"status": "DONE", "coverage_percent": 50.0, "total": 4, "enriched": 2, "reason": "late"}
    found["enrichment"] |= {"ledger_ms": ledger, "ledger_samples": 2}
    judged = {"step": 1, "target": 4, "outcome": "STABLE", "reason": "it held", "seconds": 10.0, "succeeded": 9,
              "failed": 0, "qps": 5.0, "error_rate": 0.0, "p95_ms": 9.0, "latency_ms": times}  # fmt: skip
    search = found["find_max"] | {"limited_at": 12, "decisive_step": 1, "steps": [judged]}
    return found | {"find_max": search if searched else None}


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every inner node and every leaf; of like items the first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    alike = isinstance(value, list) or path in (("statements",), ("service_ms",))
    for key, one in islice(inner, 1 if alike else None):
        yield (*path, key)
        yield from places(one, (*path, key))


def damaged(value: Any, path: Path, to: Any) -> Any:
    """A copy with another value at this place."""
    (key, *rest), changed = path, copy.copy(value)
    if not rest and to is REMOVED:
        del changed[key]
    else:
        changed[key] = damaged(value[key], tuple(rest), to) if rest else to
    return changed


class Readers:
    """All that is made of a stored summary, without the tables."""

    def __init__(self) -> None:
        short = record(length=3)
        self._record = replace(full(), seconds=short.seconds, point_times=short.point_times, polls=())
        self._plain = replace(self._record, seconds=(), merged=None, scenario=None)
        self._config = freeze(scenario())
        self.rendered = 0

    def read(self, stored: str, *, charted: bool = True) -> None:
        """`charted`: with the charts, which take the most time."""
        summary = parse_summary(RUN_ID, stored)
        assert summary is not None
        in_turn = in_order(summary, ("pay",))
        record = self._record if charted else self._plain
        shown = replace(record, summary=in_turn, steps=find_max_steps([step(RUN_ID)], summary))
        for kind, render in RENDERERS.items():
            assert render(shown), kind
        seen = RunDetails(run=RUN, holder=None, workers=ParsedRows(()), now=START, summary=in_turn)
        assert run_details_lines(seen, None, result=False)
        json.dumps([run_details_as_json(seen), with_unstored(summary, {})], allow_nan=False)
        measured_windows(summary, [], [])
        self._trend(summary)
        self.rendered += 1

    def _trend(self, summary: dict[str, Any]) -> None:
        fields: dict[str, Any] = {
            "run_id": RUN_ID,
            "template_id": "t",
            "status": "COMPLETED",
            "created_at": START - timedelta(seconds=5),
            "summary": None,
        }
        if why_not_comparable("A", RUN_ID, "COMPLETED", summary) is None:
            known = _series_run(ScenarioResult(**fields, scenario_config=self._config), summary, "X-Small", "{}")
            assert known.run.started == START or summary.get("started_at") != utc_iso(START)
            trend = trend_of("orders", [known.run], {})
            assert trend_text(trend, 5, 80)
            json.dumps(trend_data(trend, 5), allow_nan=False)


@pytest.mark.parametrize("searched", [False, True])
def test_a_damaged_summary_is_rendered_by_every_reader_or_unreadable(searched: bool) -> None:
    written, readers, refused = whole(searched=searched), Readers(), set()
    readers.read(json.dumps(written))
    for path in places(written):
        for value in VALUES if not searched or path[0] == "find_max" else ():
            try:
                readers.read(json.dumps(damaged(written, path, value)), charted=path[0] in CHARTED)
            except (RowUnreadable, RunFailed) as error:
                refused.add(str(error))
            except Exception as error:
                raise AssertionError(f"{'.'.join(map(str, path))} is {value!r}") from error
    assert all(re.search("of TEST_RESULTS is unreadable: summary: |has version", why) for why in refused)
    assert max(map(len, refused)) < 300
    assert len(refused) > 50
    assert readers.rendered > 50
