"""A report from the tables alone: what workers and orchestrator wrote comes back, the same from everywhere."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.control.tables import run_measurements, run_status, test_logs, test_results, worker_heartbeats
from loadgen.control.tables.run_control_events import NewEvent, emit
from loadgen.control.tables.run_measurements import MetricsSnapshot, WarehousePoll
from loadgen.control.tables.run_status import StatusChange
from loadgen.control.tables.test_logs import LogRow
from loadgen.control.tables.worker_heartbeats import WorkerHeartbeat, WorkerIdentity
from loadgen.metrics.interval import Interval, MeasuredCounts, write_custom_metrics
from loadgen.metrics.tally import Tally
from loadgen.metrics.window import WindowRow, merge
from loadgen.model.event import EventScope, Recipient, SetWorkerTarget, Start
from loadgen.model.run import Phase, RunStatus, WorkerStatus
from loadgen.report.exports import FILES, RENDERERS
from loadgen.report.summary import WorkerResult
from loadgen.results.run_record import read_record
from loadgen.scenario.frozen import freeze, template_id
from orchestrator.run_folder import write_reports
from tests.control_plane import ControlPlane, result_row, retries, step_row
from tests.unit.orchestrator_builders import live_text, tally, window
from tests.unit.report_builders import HOSTILE_NAME, MANY, scenario, summary

pytestmark = pytest.mark.any_driver

NAMES = ("look", HOSTILE_NAME)
SECONDS = 8
STEPS = ((RunStatus.PREPARED, RunStatus.STARTING), (RunStatus.STARTING, RunStatus.RUNNING))


@pytest.fixture(scope="module")
def run_id(plane: ControlPlane) -> str:
    return finished_run(plane)


def finished_run(plane: ControlPlane) -> str:
    """A run of two workers as its processes leave it; the second died before it could store its window."""
    session, some = plane.session, retries()
    config = scenario(NAMES)
    run_id = plane.new_run(scenario_config=freeze(config), template_id=template_id(config), test_name=config.name)
    term = plane.claim(run_id)
    phase = Phase.PREPARING
    for old, new in STEPS:
        to = Phase.MEASUREMENT if new is RunStatus.RUNNING else phase
        assert run_status.move(session, some, term, StatusChange(status=old, phase=phase, to=new, to_phase=to))
        phase = to
    run = run_status.read(session, run_id)
    assert run is not None
    assert run.start_time is not None
    own = window({name: tally(MANY, failed=2) for name in NAMES}, example=HOSTILE_NAME)
    stored = WindowRow.of(own, worker_id="worker-0", epoch=1)
    run_measurements.append_window(session, some, run_id, stored)
    for number, live in enumerate((None, live_text(own))):
        worker(plane, run_id, number, run.start_time, live)
    commands(plane, run_id, term, run.start_time)
    surroundings(plane, run_id, run.start_time)
    ends = tuple(
        WorkerResult(worker_id=f"worker-{number}", status=status, succeeded=1, failed=0, qps=1.0)
        for number, status in enumerate(("DONE", "DEAD"))
    )
    found = summary(merge([[own], [own]]), NAMES, run_id=run_id, workers=ends)
    result = result_row(
        run_id, created_at=run.created_at, total_operations=1, read_operations=1, summary=json.dumps(found)
    )
    test_results.append(session, some, result)
    return run_id


def worker(plane: ControlPlane, run_id: str, number: int, start: datetime, live: str | None) -> None:
    me = WorkerIdentity(
        run_id=run_id,
        worker_id=f"worker-{number}",
        worker_group_id=number,
        hostname="build-7",
        pid=4711 + number,
        version="0.1.0",
    )
    worker_heartbeats.register(plane.session, retries(), me, silent_ms=60_000)
    beat = WorkerHeartbeat(status=WorkerStatus.COMPLETED, phase=Phase.COOLDOWN, count=2, live_metrics=live)
    assert worker_heartbeats.beat(plane.session, me, beat)
    one = Tally(statements={"look": tally((5.0,) * 50)})
    interval = Interval(
        phase=Phase.MEASUREMENT,
        seconds=1.0,
        measured=MeasuredCounts(),
        qps=50.0,
        p50_ms=5.0,
        p95_ms=5.0,
        p99_ms=None,
        avg_ms=5.0,
        min_ms=5.0,
        max_ms=5.0,
        tally=one,
    )
    known: dict[str, Any] = {
        "run_id": run_id,
        "test_id": run_id,
        "worker_id": me.worker_id,
        "worker_group_id": number,
        "worker_group_count": 2,
        "phase": "MEASUREMENT",
        "total_queries": 50,
        "read_count": 50,
        "write_count": 0,
        "error_count": 0,
        "qps": 50.0,
        "p50_latency_ms": 5.0,
        "p95_latency_ms": 5.0,
        "p99_latency_ms": None,
        "avg_latency_ms": 5.0,
        "min_latency_ms": 5.0,
        "max_latency_ms": 5.0,
        "active_connections": 4,
        "target_connections": 4,
        "cpu_percent": 20.0,
        "memory_percent": 1.0,
        "custom_metrics": write_custom_metrics(interval),
    }
    rows = [
        MetricsSnapshot(timestamp=start + timedelta(seconds=at + 1), elapsed_seconds=at + 1.0, **known)
        for at in range(SECONDS)
    ]
    run_measurements.append_snapshots(plane.session, retries(), rows)


def commands(plane: ControlPlane, run_id: str, term: Any, start: datetime) -> None:
    emit(plane.session, retries(), term, NewEvent(command=Start(expected_workers=2)))
    moment = (start + timedelta(seconds=4)).isoformat(timespec="milliseconds")
    for number in range(2):
        address = Recipient(scope=EventScope.WORKER, worker_id=f"worker-{number}")
        target = SetWorkerTarget(target_connections=5 + number, effective_at=moment)
        emit(plane.session, retries(), term, NewEvent(command=target, address=address))


def surroundings(plane: ControlPlane, run_id: str, start: datetime) -> None:
    session, some = plane.session, retries()
    poll = WarehousePoll(
        run_id=run_id,
        timestamp=start + timedelta(seconds=5),
        running=8,
        queued=3,
        started_clusters=1,
        size="X-Small",
        raw="{}",
    )
    run_measurements.append_polls(session, some, [poll])
    step = step_row(
        run_id,
        target_connections=4,
        window_start_time=start,
        window_end_time=start + timedelta(seconds=600),
        succeeded=9,
        failed=1,
        qps=10.0,
        p50_latency_ms=2.0,
        p95_latency_ms=3.5,
        error_rate=0.1,
        outcome="STABLE",
        reason="held",
    )
    run_measurements.append_step(session, some, step)
    lines = [
        LogRow(
            run_id=run_id,
            test_id=run_id,
            worker_id="worker-0",
            level=level,
            message=f"said {level}",
            details=None,
            timestamp=start,
        )
        for level in ("INFO", "WARNING")
    ]
    test_logs.append(session, some, lines)


def test_everything_comes_back_from_the_tables(plane: ControlPlane, run_id: str) -> None:
    found = read_record(plane.session, retries(), run_id)

    assert found.merged is not None, found.merged_missing  # also what only the last beat of a worker had
    assert found.merged.counts.succeeded == found.summary["totals"]["succeeded"] == 2 * 2 * len(MANY)
    assert [second.counts.succeeded for second in found.seconds] == [100] * SECONDS
    assert found.seconds[3].response_ms(500) == pytest.approx(5.0, rel=0.02)
    events = {event.label: event for event in found.events}
    assert set(events) == {"START", "11 conn.", "✓", "worker-1 lost"}
    assert (round(events["11 conn."].at_s), round(events["✓"].at_s)) == (4, 600)
    assert [events[label].kind for label in ("START", "✓", "worker-1 lost")] == ["start", "held", "lost"]
    assert list(found.events) == sorted(found.events, key=lambda event: event.at_s)
    assert found.point_times[3, "MEASUREMENT"]["look"].count == 2 * 50
    assert found.summary["errors"][0]["statement"] in NAMES
    assert [(poll.at_s, poll.queued) for poll in found.polls] == [(5.0, 3)]
    assert [step.outcome for step in found.steps] == ["STABLE"]
    assert [line.message for line in found.logs] == ["said WARNING"]
    assert found.machines["worker-1"].hostname == "build-7"
    assert found.statement_names() == list(NAMES)


def test_two_readers_make_the_same_bytes(plane: ControlPlane, run_id: str, tmp_path: Path) -> None:
    page = tmp_path / "step_summary.md"
    page.write_text("before\n")
    write_reports(tmp_path, read_record(plane.session, retries(), run_id), {"GITHUB_STEP_SUMMARY": str(page)})

    other = read_record(plane.open("elsewhere"), retries(), run_id)
    for kind, name in FILES.items():
        assert (tmp_path / name).read_bytes() == RENDERERS[kind](other).encode(), name
    assert page.read_text("utf-8") == f"before\n{RENDERERS['md'](other)}"
    assert {path.name for path in tmp_path.iterdir()} == {*FILES.values(), page.name}  # no draft is left


@pytest.fixture
def command(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    for name, value in plane.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return ["-c", "embedded", "--database", plane.place.database]


def test_the_command_writes_the_format_of_the_file_name(
    command: list[str], run_id: str, tmp_path: Path, capsys: Any
) -> None:
    for name in ("report.html", "report.md", "junit.xml", "intervals.csv", "summary.json"):
        assert main(["report", run_id, "--out", name, *command]) == 0

    assert capsys.readouterr().out == ""
    assert (tmp_path / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().tag == "testsuites"
    assert len((tmp_path / "intervals.csv").read_text("utf-8").splitlines()) == SECONDS + 1
    assert json.loads((tmp_path / "summary.json").read_text("utf-8"))["run_id"] == run_id


def test_without_a_file_it_goes_to_stdout(command: list[str], run_id: str, capsys: Any) -> None:
    assert main(["report", run_id[:-4], "--format", "json", *command]) == 0  # a beginning is enough
    assert json.loads(capsys.readouterr().out)["run_id"] == run_id
    assert main(["report", "latest", *command]) == 0
    assert capsys.readouterr().out.startswith("PASSED  orders-mix")


def test_impossible_requests_are_errors_with_a_hint(
    command: list[str], plane: ControlPlane, run_id: str, capsys: Any
) -> None:
    unfinished = plane.new_run()
    for words, code, said in (
        ([run_id, "--out", "report.docx"], 2, "does not name a format"),
        ([run_id, "--out", "missing/report.html"], 2, "cannot write missing/report.html"),
        ([unfinished], 2, "has no result yet: it is PREPARED"),
        (["no-such-run"], 2, "there is no run no-such-run"),
    ):
        assert main(["report", *words, *command]) == code
        told = capsys.readouterr().err
        assert said in told
        assert "hint: " in told
    assert not os.path.lexists("report.docx")
