"""Reports of a replay: rows and arrivals of the recording beside those of the replay."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.json_fields import InvalidMetrics
from loadgen.metrics.recorder import ReplayedEntry, ReplayMeter, ReplayTally, RowCount, all_replayed
from loadgen.metrics.window import ClientResourceUse, MergedWindows, WindowRow, merge
from loadgen.model.capture import CaptureCoverage, RecordedTimes, Replay, SessionReplay, WriteReplay
from loadgen.report.exports import report_markdown
from loadgen.report.records import RunRecord
from loadgen.report.run_page import report_html
from loadgen.report.run_replay import arrival_spans
from loadgen.report.run_text import summary_lines, summary_text
from loadgen.rules.plan import plan_run
from loadgen.rules.validity import shortfalls
from loadgen.scenario.model import Load, LoadMode
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.workload.replay import PLAN_PARTS
from orchestrator.run_result import MeasuredWindows, delivered_load
from tests.unit.orchestrator_builders import tally, window
from tests.unit.report_builders import MANY, record, scenario, summary
from tests.unit.test_capture import row
from tests.unit.test_replay import dealt, recorded

NAMES = ("look", "pay")
counts = st.integers(0, 1_000)
sent_parts = st.lists(counts, min_size=PLAN_PARTS, max_size=PLAN_PARTS).map(tuple)
rows_by_name = st.dictionaries(st.sampled_from(NAMES), st.builds(RowCount, counts, counts))
tallies = st.builds(ReplayTally, sent=sent_parts, rows=rows_by_name)


def replay(planned: tuple[tuple[int, ...], ...] = (), **more: Any) -> Replay:
    known: dict[str, Any] = {
        "capture": "5e" * 32,
        "speed": 1.0,
        "sessions": SessionReplay.KEEP,
        "writes": WriteReplay.SKIP,
        "pseudonyms": True,
        "planned": planned or (tuple(range(1, PLAN_PARTS + 1)),) * 2,
        "coverage": CaptureCoverage(statements=80, left_out={"unparsed": 3, "no_binds": 17}, unrecorded=1_200),
        "recorded": (
            RecordedTimes(count=50, avg_ms=9.0, p50_ms=8.0, p95_ms=12.0, rows=175, rows_known=50, failed=4),
            RecordedTimes(count=20, avg_ms=5.0, p50_ms=5.0, p95_ms=6.0),
        ),
    }
    return Replay(**(known | more))


def measured(replayed: ReplayTally | None) -> MergedWindows:
    return merge([[replace(window({name: tally(MANY) for name in NAMES}), replayed=replayed)]])


def replay_record(replayed: ReplayTally | None, **more: Any) -> RunRecord:
    made, merged = replay(**more), measured(replayed)
    load = Load(mode=LoadMode.REPLAY, connections=4, workers=2, warmup_s=0.0, duration_s=10.0, replay=made)
    told = summary(merged, NAMES, replay=made, open_loop=True)
    return record(NAMES, scenario=scenario(NAMES, load=load), summary=told, merged=merged)


# --- what workers count ----------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 20 * NS_PER_S), st.integers(0, 1), st.integers(-1, 500)), max_size=60),
    st.integers(1, 60),
)
def test_everything_sent_and_every_row_is_counted_once(sent, taken):
    meter, entries = ReplayMeter(NAMES, 10.0), deque[ReplayedEntry]()
    for number, (offset_ns, statement, rows) in enumerate(sent):
        entries.append((3, statement, offset_ns, None))
        entries.append((3, statement, None, rows))
        if number % taken == 0:
            meter.add(entries)
    meter.add(entries)

    found = meter.tally(3)

    assert sum(found.sent) == len(sent)
    for part in range(PLAN_PARTS - 1):
        inside = [one for one in sent if part * NS_PER_S // 10 <= one[0] < (part + 1) * NS_PER_S // 10]
        assert found.sent[part] == len(inside)
    for statement, name in enumerate(NAMES):
        known = [rows for _, own, rows in sent if own == statement and rows >= 0]
        assert found.rows.get(name, RowCount()) == RowCount(len(known), sum(known))
    assert sum(meter.tally(4).sent) == 0


@given(tallies)
def test_a_stored_window_keeps_what_was_replayed(one):
    result = replace(window({"look": tally((5.0,))}), replayed=one)

    again = WindowRow.of(result, worker_id="worker-0", epoch=1).result()

    assert again.replayed == one


@pytest.mark.parametrize(
    "damaged",
    [
        {"sent": [1], "rows": {}},
        {"sent": [0] * 99 + [-1], "rows": {}},
        {"sent": [0] * 99 + [True], "rows": {}},
        {"sent": [0] * 100, "rows": {"look": [1]}},
        {"sent": [0] * 100, "rows": {"look": [1, 2**60]}},
        {"sent": [0] * 100},
        [],
    ],
)
def test_a_damaged_part_of_a_window_is_refused(damaged):
    stored = WindowRow.of(window({"look": tally((5.0,))}), worker_id="worker-0", epoch=1)
    broken = replace(stored, counts=json.dumps(json.loads(stored.counts) | {"replayed": damaged}))

    with pytest.raises(InvalidMetrics):
        broken.result()


@given(tallies, tallies)
def test_workers_add_up_and_a_missing_one_is_not_hidden(one, other):
    whole = all_replayed([one, other])

    assert whole is not None
    assert sum(whole.sent) == sum(one.sent) + sum(other.sent)
    for name in NAMES:
        assert whole.rows.get(name, RowCount()) == one.rows.get(name, RowCount()) + other.rows.get(name, RowCount())
    assert all_replayed([one, None]) is all_replayed([]) is None


def test_the_capture_contains_the_number_of_rows_of_a_statement(tmp_path):
    rows = [row("SELECT a FROM t WHERE b = 5", n, rows=n) for n in range(4)] + [row("SELECT a FROM t WHERE b = 6", 5)]
    recorded(tmp_path, rows)

    scenario, _ = dealt(tmp_path, "users: 2")

    assert scenario.load.replay is not None
    (times,) = scenario.load.replay.recorded
    assert (times.count, times.rows, times.rows_known) == (5, 6, 4)


# --- reports ---------------------------------------------------------------------------------------------------------


def test_rows_are_compared_without_a_verdict():
    replayed = ReplayTally(rows={"look": RowCount(100, 250), "pay": RowCount(10, 0)})

    found = replay_record(replayed)

    compared = {one["statement"]: one for one in found.summary["replay"]["compared"]}
    assert compared["look"]["recorded"]["rows_avg"] == 3.5
    assert compared["look"]["replayed"]["rows_avg"] == 2.5
    assert compared["pay"]["recorded"]["rows_avg"] is None
    assert compared["pay"]["replayed"]["rows_avg"] == 0.0
    assert found.summary["verdict"] == "passed"
    lines = [line.text for line in summary_lines(found.summary)]
    assert any(line.split() == ["look", "3.5", "2.5"] for line in lines)
    assert any(line.split() == ["pay", "–", "0"] for line in lines)
    page = report_html(found)
    assert "recorded rows" in page
    assert "replayed rows" in page


def test_without_recorded_rows_none_are_shown():
    times = RecordedTimes(count=50, avg_ms=9.0, p50_ms=8.0, p95_ms=12.0)

    found = replay_record(ReplayTally(rows={"look": RowCount(5, 5)}), recorded=(times, times))

    assert not any("rows of each statement" in line.text for line in summary_lines(found.summary))
    assert "recorded rows" not in report_html(found)


def test_coverage_is_shown_by_reason_in_every_report():
    found = replay_record(None)

    assert found.summary["replay"]["coverage"] == {
        "history": 100,
        "captured": 80,
        "left_out": {"no_binds": 17, "unparsed": 3},
        "unrecorded": 1_200,
        "due": 70,
    }
    said = (
        "Coverage: the capture has 80 of 100 statements of the history, and 70 were due in the replay;",
        "3 left out because the text cannot be parsed",
        "17 left out because the history has no values for its binds",
        "1,200 more are not in the history",
    )
    for report in (summary_text(found.summary), report_markdown(found), report_html(found)):
        assert all(text in report for text in said)


def test_a_run_of_an_earlier_version_is_shown_without_coverage():
    found = replay_record(None, coverage=None)
    summary = dict(found.summary) | {
        "replay": {key: one for key, one in found.summary["replay"].items() if key not in ("late", "new_errors")}
    }

    for report in (summary_text(summary), report_html(replace(found, summary=summary))):
        assert "Coverage" not in report
        assert "Late:" not in report


def test_errors_that_the_original_did_not_have_are_shown_by_statement():
    made, merged = replay(), merge([[window({"look": tally(MANY, failed=7), "pay": tally(MANY)}, example="a|b <i>")]])
    found = record(NAMES, summary=summary(merged, NAMES, replay=made, open_loop=True), merged=merged)

    (error,) = found.summary["replay"]["new_errors"]
    assert (error["statement"], error["failed"], error["recorded_failed"]) == ("look", 7, 4)
    assert (error["category"], error["code"]) == ("SNOWFLAKE_ERROR", 100_051)
    assert any(line.split() == ["look", "7", "4"] for line in summary_text(found.summary).splitlines())
    assert "| 7 | 4 |" in report_markdown(found)
    page = report_html(found)
    assert "New errors by statement" in page
    assert "SNOWFLAKE_ERROR 100051 a|b &lt;i&gt;" in page
    assert "No statement failed that had succeeded in the recording." in report_html(replay_record(None))


def test_late_statements_are_counted_with_the_share_of_the_client():
    looked = tally(MANY[:10], lag_ms=(0.1,) * 4 + (400.0,) * 6, skipped=2, unsent_ms=(900.0, 900.0))
    lags = Histogram.of(np.array([100_000] * 9 + [7 * NS_PER_MS], np.int64))
    one = replace(window({"look": looked}), client=ClientResourceUse(elapsed_ms=1000, sent_late=lags))
    merged = merge([[one]])

    found = record(NAMES, summary=summary(merged, NAMES, replay=replay(), open_loop=True), merged=merged)

    late = found.summary["replay"]["late"]
    assert late == {"limit_ms": 5.0, "sent_late": 6, "by_client": 1, "skipped": 2}
    said = "Late: 6 statements sent more than 5 ms after the due time; the client delayed 1 of them"
    for report in (summary_text(found.summary), report_markdown(found), report_html(found)):
        assert said in report
        assert "Skipped: 2." in report


def test_what_a_slow_server_left_unsent_needs_a_threshold_on_times_or_less_speed(tmp_path):
    recorded(tmp_path)
    scenario, _ = dealt(tmp_path)
    unsent = tally((1.0,) * 5, skipped=15, unsent_ms=(50.0,) * 15)
    windows = {f"worker-{number}": (window({"look": unsent}),) for number in range(2)}
    gathered = MeasuredWindows(windows=windows, gaps=())

    reasons = shortfalls(delivered_load(scenario, plan_run(scenario.load), gathered, until_s=None))

    assert [reason for reason in reasons if reason.startswith("30 of 40 arrivals were not sent")]
    assert any(reason.endswith("add a threshold on response times, or lower load.speed") for reason in reasons)


@given(sent_parts, st.lists(st.lists(counts, min_size=PLAN_PARTS, max_size=PLAN_PARTS), min_size=1, max_size=3),
       st.floats(0.1, 5_000))  # fmt: skip
def test_spans_of_arrivals_cover_the_measurement_and_lose_nothing(sent, due, duration_s):
    planned = tuple(tuple(sum(own[: part + 1]) for part in range(PLAN_PARTS)) for own in due)

    spans = arrival_spans(replay(planned), duration_s, sent)

    assert spans[0].from_s == 0.0
    assert spans[-1].until_s == pytest.approx(duration_s)
    assert all(before.until_s == after.from_s for before, after in pairwise(spans))
    assert duration_s < 2 or min(span.until_s - span.from_s for span in spans) >= 0.5
    for name, total in (("recorded", sum(map(sum, due))), ("replayed", sum(sent))):
        found = sum(getattr(span, name) * (span.until_s - span.from_s) for span in spans)
        assert found == pytest.approx(total, abs=1e-3)


def test_arrivals_are_drawn_over_each_other():
    page = report_html(replay_record(ReplayTally(sent=(0,) * 50 + (4,) * 50)))

    assert 'id="arrivals"' in page
    chart = page.split('id="arrivals"')[1].split("</svg>")[0]
    assert "recorded: lowest 20" in chart  # 2 workers × 100 in 10 s
    assert "replayed: lowest 0" in chart
    assert "highest 40" in chart


def test_arrivals_that_are_not_known_are_not_drawn():
    page = report_html(replay_record(None))

    assert 'id="arrivals"' not in page
    assert "Recorded and replayed" in page
