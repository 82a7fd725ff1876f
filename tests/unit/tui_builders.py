"""Views and snapshots for the tests of the live view; valid by default."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console

from loadgen.control.tables.run_status import Run
from loadgen.metrics.interval import MeasuredCounts
from loadgen.metrics.live_metrics import LiveMetrics, LiveSecond
from loadgen.metrics.percentile import Quantile
from loadgen.metrics.window import WindowResult
from loadgen.model.counts import Counts
from loadgen.model.run import Phase, RunStatus
from loadgen.model.workload import Query, Statement, StatementKind, Workload
from loadgen.results.run_snapshot import RunSnapshot, WorkerDisplayState, WorkerHealth, WorkerSnapshot
from loadgen.rules.thresholds import Checked
from loadgen.scenario.model import Load, Scenario
from loadgen.tui.history import HistorySecond, PeakThroughput, RecentFigures, StatementSecond
from loadgen.tui.screen import ScreenPage, render
from loadgen.tui.screen_state import (
    ErrorLine,
    FindMaxStepLine,
    LatencyDistribution,
    LoadStatus,
    LogEntry,
    ScreenState,
    StatementLine,
    WarehouseLine,
    WindowFigures,
    WorkerLine,
)
from loadgen.units import NS_PER_MS
from tests.unit.orchestrator_builders import row, tally

MOMENT = datetime.fromisoformat("2026-11-15T02:00:00")
NOW_S = 1_000.0


def seconds(count: int, *, warm: int = 10, level: float = 800.0) -> tuple[HistorySecond, ...]:
    """This many seconds from the start of the run, the first of them warm-up; always the same wave."""
    return tuple(
        HistorySecond(
            at_s=number,
            phase=Phase.WARMUP if number < warm else Phase.MEASUREMENT,
            qps=level * min(1.0, (number + 1) / 5) * (1 + 0.05 * math.sin(number)),
            p50_ms=40.0,
            p95_ms=70.0 + 8 * math.sin(number / 3),
            p99_ms=110.0 + 20 * math.sin(number / 2),
            statements=tuple(
                StatementSecond(
                    name=name, qps=level * share * (1 + 0.1 * math.sin(number + share)), p95_ms=60.0 + number % 17
                )
                for name, share in (("point_lookup", 0.8), ("pay", 0.15), ("report", 0.05))
            ),
        )
        for number in range(count)
    )


def cells(count: int, **more: Any) -> tuple[WorkerLine, ...]:
    fields: dict[str, Any] = {
        "state": WorkerDisplayState.RUNNING,
        "open": 16,
        "target": 16,
        "busy": 14,
        "heard_s": NOW_S - 0.4,
    }
    return tuple(
        WorkerLine(worker_id=f"worker-{number}", cpu_percent=11.0 + number, **(fields | more))
        for number in range(count)
    )


def quantile_of(ms: float, *, at_least: bool = False) -> Quantile:
    return Quantile(value_ns=round(ms * NS_PER_MS), at_least=at_least)


def statement(name: str, share: float, *, failed: int = 0) -> StatementLine:
    return StatementLine(
        name=name,
        qps=805.0 * share,
        p50=quantile_of(38.2),
        p95=quantile_of(70.4),
        p99=quantile_of(110.3),
        cut_off=0,
        succeeded=round(82_000 * share),
        failed=failed,
    )


SPREAD = LatencyDistribution(
    edges_ms=tuple(12.0 * 1.04**number for number in range(91)),
    counts=tuple(round(4_000 * math.exp(-(((number - 30) / 12) ** 2))) + number % 3 for number in range(90)),
    percentiles=(("p50", quantile_of(38.2)), ("p95", quantile_of(70.4)), ("p99", quantile_of(110.3))),
)

WARMUP = ScreenState(
    scenario="nightly",
    place="prod, BENCH_WH",
    doing="",
    seen_s=NOW_S - 0.5,
    run_id="20261115-0200-nightly-7f3a",
    status="RUNNING",
    phase=Phase.WARMUP,
    since_s=NOW_S - 6.0,
    until_s=NOW_S + 4.0,
    offered=LoadStatus(target=64, open=41, busy=38),
    window=WindowFigures(
        name="warm-up", seconds=5.0, qps=410.0, succeeded=2_050, statements=(statement("point_lookup", 0.8),)
    ),
    peak=PeakThroughput(qps=655.0, at_least=False),
    plan_s=310.0,
    recent=RecentFigures(qps=640.0, p50=quantile_of(40.1), p95=quantile_of(76.9), p99=None, most=quantile_of(131.0)),
    history=seconds(6),
    workers=cells(2),
    checked=(
        Checked(check="p95 < 250ms", value=None, passed=False),
        Checked(check="error_rate < 1%", value=None, passed=False),
    ),
    log=(
        LogEntry(moment=MOMENT, text="STARTING PREPARING"),
        LogEntry(moment=MOMENT + timedelta(seconds=4), text="RUNNING WARMUP"),
    ),
)

MEASUREMENT = replace(
    WARMUP,
    phase=Phase.MEASUREMENT,
    since_s=NOW_S - 102.0,
    until_s=NOW_S + 198.0,
    offered=LoadStatus(target=64, open=64, busy=58, rate_per_s=800.0),
    window=WindowFigures(
        name="measurement",
        seconds=101.5,
        qps=805.0,
        succeeded=82_000,
        failed=17,
        skipped=3,
        statements=(statement("point_lookup", 0.8), statement("pay", 0.15, failed=17), statement("report", 0.05)),
        spread=SPREAD,
    ),
    peak=PeakThroughput(qps=840.0, at_least=False),
    recent=RecentFigures(
        qps=812.0, p50=quantile_of(41.2), p95=quantile_of(77.4), p99=quantile_of(120.9), most=quantile_of(410.2)
    ),
    history=seconds(112),
    tried=82_017,
    failed=17,
    workers=cells(4),
    warehouse=WarehouseLine(
        name="BENCH_WH",
        size="X-Small",
        running=8,
        queue=2,
        clusters=1,
        polled_at=MOMENT + timedelta(seconds=118),
        queued=(0, 0, 1, 4, 2, 0, 0, 3, 2),
    ),
    checked=(
        Checked(check="p95 < 250ms", value=77.4, passed=True),
        Checked(check="error_rate < 0.01%", value=0.000207, passed=False),
    ),
    errors=(
        ErrorLine(
            category="SNOWFLAKE_ERROR",
            code=625,
            count=12,
            example="Transaction 1763172000 has locked table 'ORDERS' which has not yet been committed.",
        ),
        ErrorLine(category="QUERY_TIMEOUT", code=None, count=5, example="the statement took longer than 30 s"),
    ),
    log=(*WARMUP.log, LogEntry(moment=MOMENT + timedelta(seconds=14), text="RUNNING MEASUREMENT")),
)


def step(number: int, target: int, outcome: str = "STABLE", reason: str = "held") -> FindMaxStepLine:
    return FindMaxStepLine(
        number=number,
        target=target,
        held=outcome == "STABLE",
        outcome=outcome,
        qps=20.0 * target,
        p95_ms=40.0 + target / 10,
        reason=reason,
    )


STALE = replace(
    MEASUREMENT,
    seen_s=NOW_S - 12.0,
    workers=(
        *cells(2, heard_s=NOW_S - 12.6),
        WorkerLine(
            worker_id="worker-2",
            state=WorkerDisplayState.STALE,
            open=16,
            target=16,
            busy=16,
            cpu_percent=13.0,
            heard_s=NOW_S - 44.0,
        ),
        WorkerLine(
            worker_id="worker-3",
            state=WorkerDisplayState.DEAD,
            open=0,
            target=16,
            busy=0,
            cpu_percent=None,
            heard_s=NOW_S - 70.0,
            said="worker-3 was killed by signal 9",
        ),
    ),
    warnings=("worker-1 uses more than 60 % of its core: more workers would be safer",),
    log=(
        *MEASUREMENT.log,
        LogEntry(moment=MOMENT + timedelta(seconds=60), text="worker-3 was killed by signal 9", bad=True),
        LogEntry(moment=MOMENT + timedelta(seconds=90), text="worker-2 is stale", bad=True),
    ),
)


# --- snapshots --------------------------------------------------------------------------------------------------------


def scenario(**load: object) -> Scenario:
    fields: dict[str, object] = {"connections": 8, "duration_s": 60.0}
    statements = tuple(
        Statement(name=name, kind=StatementKind.READ, weight=weight, queries=(Query(sql="select 1"),))
        for name, weight in (("rare", 1), ("s", 9))
    )
    return Scenario(name="n", workload=Workload(statements=statements, seed=1), load=Load(**(fields | load)))  # type: ignore[arg-type]


def run_row(status: RunStatus = RunStatus.RUNNING, phase: Phase = Phase.MEASUREMENT, **more: Any) -> Run:
    fields: dict[str, Any] = dict.fromkeys(Run.__slots__)
    fields |= {"run_id": "r", "template_id": "t", "test_name": "n", "created_at": MOMENT, "updated_at": MOMENT}
    fields |= {"start_time": MOMENT}
    return Run(**(fields | {"status": status, "phase": phase} | more))


def worker(
    number: int = 0,
    *windows: WindowResult,
    elapsed_s: float = 1.0,
    succeeded: int = 0,
    health: WorkerHealth = WorkerHealth.ALIVE,
    measured: MeasuredCounts | None = None,
    seconds: tuple[LiveSecond, ...] = (),
    **said: Any,
) -> WorkerSnapshot:
    worker_id = f"worker-{number}"
    return WorkerSnapshot(
        worker_id=worker_id,
        health=health,
        row=replace(row(worker_id, **said), age_ms=500),
        live=LiveMetrics(
            elapsed_s=elapsed_s,
            totals=Counts(scheduled=succeeded, succeeded=succeeded),
            measured=measured or MeasuredCounts(),
            windows=windows,
            seconds=seconds,
        ),
        end=None,
        silent_s=0.5,
    )


def second(
    end_s: float, *times_ms: float, phase: Phase = Phase.MEASUREMENT, **statements: tuple[float, ...]
) -> LiveSecond:
    """An interval of a worker that ended so long after the start of the run, with these response times."""
    tallies = {name: tally(times) for name, times in (statements or {"s": times_ms}).items()}
    return LiveSecond(
        ended_at=MOMENT + timedelta(seconds=end_s),
        seconds=1.0,
        phase=phase,
        executing=8,
        statements={name: one.ended for name, one in tallies.items()},
        times={name: one.succeeded.response.coarse(3) for name, one in tallies.items() if one.succeeded.response.count},
    )


def snapshot(seen_s: float, *workers: WorkerSnapshot, **more: Any) -> RunSnapshot:
    fields: dict[str, Any] = {"run": run_row(), "moment": MOMENT + timedelta(seconds=seen_s)}
    return RunSnapshot(seen_s=seen_s, workers=workers, **(fields | more))


def drawn(
    view: ScreenState, width: int, height: int, *, now_s: float = NOW_S, page: ScreenPage = ScreenPage.RUN
) -> str:
    """As text, without what is at the end of lines."""
    console = Console(record=True, width=width, height=height, file=io.StringIO(), color_system=None)
    console.print(render(view, width, height, now_s, page), end="")
    return "\n".join(line.rstrip() for line in console.export_text().split("\n"))
