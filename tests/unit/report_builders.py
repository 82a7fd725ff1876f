"""Records of runs for the tests of reports; valid by default, hostile where a test wants it; and their page, parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import numpy as np

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.window import MergedWindows
from loadgen.model.counts import Counts
from loadgen.model.workload import Query, Statement, StatementKind, Workload
from loadgen.report.records import (
    EventKind,
    FindMaxStepResult,
    RunEvent,
    RunRecord,
    StatementTimes,
    WarehousePollPoint,
    WorkerHost,
    WorkerSecond,
    WorkerWarning,
    merge_seconds,
    span_for,
)
from loadgen.report.run_page import report_html
from loadgen.report.summary import RunFacts, StageResult, WorkerResult, summarize
from loadgen.rules.client_health import ClientHealth
from loadgen.rules.thresholds import Checked
from loadgen.scenario.frozen import freeze
from loadgen.scenario.model import Load, Scenario
from tests.unit.orchestrator_builders import MS, merged, tally, times

START = datetime(2026, 11, 15, 2, 0, 0)  # noqa: DTZ001 (as the tables have it: naive UTC)
MANY = tuple(10.0 + number / 100 for number in range(2_000))

# As a statement's name, in a server's error, in a label: it must show literally, and do nothing.
HOSTILE_NAME = "</script><b>x"
HOSTILE_TEXT = (
    "=cmd|' /C calc'!A0 [/dim] </script><script>document.title='owned'</script><img src=x onerror=alert(1)>"
    " <!-- ]]> &amp; `tick` | pipe \\| @somebody **bold** [link](javascript:alert(1)) \x1b[31m red \x00 \u202e 😀"
)


def statements(*names: str) -> tuple[Statement, ...]:
    kinds = (StatementKind.READ, StatementKind.WRITE)
    return tuple(
        Statement(name=name, kind=kinds[number % 2], weight=1, queries=(Query(sql=f"SELECT {number} FROM ORDERS"),))
        for number, name in enumerate(names)
    )


def scenario(names: tuple[str, ...] = ("look", "pay"), **more: Any) -> Scenario:
    known: dict[str, Any] = {
        "name": "orders-mix",
        "workload": Workload(statements=statements(*names), seed=7),
        "load": Load(connections=8, workers=2, warmup_s=2.0, duration_s=10.0),
        "connection": "embedded",
    }
    return Scenario(**(known | more))


def worker_second(
    at_s: float, *, worker_id: str = "worker-0", ms: tuple[float, ...] = (10.0,) * 100, **more: Any
) -> WorkerSecond:
    """One that ended `at_s` after the start."""
    times = Histogram.of(np.array([round(value * MS) for value in ms], np.int64))
    known: dict[str, Any] = {
        "worker_id": worker_id,
        "ended_at": START + timedelta(seconds=at_s),
        "seconds": 1.0,
        "phase": "MEASUREMENT",
        "statements": {"look": Counts(succeeded=len(ms))},
        "response": times,
        "executing": 4,
        "target": 4,
        "cpu_percent": 20.0,
    }
    return WorkerSecond(**(known | more))


def seconds(count: int, names: tuple[str, ...] = ("look", "pay")) -> list[WorkerSecond]:
    """Two workers; the first two seconds are warm-up."""
    own = {name: times(*[20.0 + n + sample / 10 for sample in range(100 // len(names))])
           for n, name in enumerate(names[:20])}  # fmt: skip
    return [
        worker_second(
            at + 1.02 + 0.3 * number,
            worker_id=f"worker-{number}",
            ms=tuple(20.0 + 5 * np.sin(at / 7) + 0.1 * sample for sample in range(100)),
            phase="WARMUP" if at < 2 else "MEASUREMENT",
            statements={name: Counts(succeeded=100 // len(names) + (100 % len(names) if not n else 0), failed=at % 3)
                        for n, name in enumerate(names)},
            times=own,
        )
        for at in range(count)
        for number in range(2)
    ]  # fmt: skip


def timeline(count: int, names: tuple[str, ...] = ("look", "pay")) -> dict[str, Any]:
    """A run of this many seconds, as a record contains it."""
    kept = StatementTimes(span_for(count))
    merged_seconds = merge_seconds(START, seconds(count, names), kept)
    return {"seconds": merged_seconds, "span_s": kept.span_s, "point_times": kept.points}


def stages(**more: Any) -> tuple[StageResult, ...]:
    """A stage of 8 connections, and one of 100 statements a second in which two failed."""
    levels: tuple[dict[str, Any], ...] = (
        {"connections": 8, "rate_per_second": None, "merged": merged({"look": tally(MANY)}, seconds=20.0)},
        {"connections": None, "rate_per_second": 100.0, "merged": merged({"look": tally(MANY, failed=2)}, seconds=4.0)},
    )
    return tuple(
        StageResult(number=number, name=f"stage {number}", starts_s=20.0 * number - 10.0, **(level | more))
        for number, level in enumerate(levels, start=1)
    )


def summary(measured: MergedWindows, names: tuple[str, ...], **more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "run_id": "20261115-0200-orders-7f3a9c",
        "scenario": "orders-mix",
        "status": "COMPLETED",
        "started_at": "2026-11-15T02:00:00.000Z",
        "connections": 8,
        "statements": statements(*names),
        "merged": measured,
        "invalid": (),
        "checked": (Checked(check="p95 < 50ms", value=29.123456, passed=True),),
        "client": ClientHealth(cpu_percent_of_core=12.5, wakeup_p99_ms=0.25),
        "workers": tuple(
            WorkerResult(worker_id=f"worker-{number}", status="DONE", succeeded=2_000, failed=2, qps=200.0,
                         cpu_percent_of_core=12.5, wakeup_p99_ms=0.25)
            for number in range(2)
        ),
        "environment": {"loadgen": "0.1.0", "driver": "5.2.0"},
    }  # fmt: skip
    return summarize(RunFacts(**(known | more)))


def record(
    names: tuple[str, ...] = ("look", "pay"),
    *,
    length: int = 12,
    facts: dict[str, Any] | None = None,
    example: str = "it failed",
    **more: Any,
) -> RunRecord:
    measured = merged({name: tally(MANY, failed=2) for name in names}, example=example)
    run = scenario(names)
    known: dict[str, Any] = {
        "summary": summary(measured, names, **(facts or {})),
        "template_id": "5ba06c18b63ecb69f2da728229976947",
        "started": START,
        "ended": START + timedelta(seconds=length),
        "enrichment_status": None,
        "config": freeze(run),
        "scenario": run,
        **timeline(length, names),
        "merged": measured,
        "polls": tuple(
            WarehousePollPoint(at_s=at_s, running=8, queued=at_s // 5, started_clusters=1, size="X-Small")
            for at_s in range(0, length, 5)
        ),
        "machines": {"worker-0": WorkerHost(hostname="build-7", version="0.1.0")},
    }
    return RunRecord(**(known | more))


LONG_NAME = "point_lookup_of_an_order_by_its_primary_key"
FIND_MAX_STEPS = tuple(
    FindMaxStepResult(number=number, target=4 * number, succeeded=100, failed=0, qps=100.0 * number,
         latency_ms={"p50": 5.0, "p95": 9.0, "p99": None},
         error_rate=0.0, queue_seen=False, reason="p95 40.3 ms is more than 20 % above 29.4 ms",
         outcome="STABLE" if number < 3 else "DEGRADED")
    for number in (1, 2, 3)
)  # fmt: skip
FIND_MAX = {
    "max_concurrency": 8, "result": "TRUE_MAX", "reason": "12 did not hold", "failed_at": 12,
    "failed_outcome": "DEGRADED", "qps": 200.0, "p95_ms": 9.0, "confidence": "high", "steps": [],
}  # fmt: skip


def full(**more: Any) -> RunRecord:
    """A run with everything a report can show, long names among it, and nothing hostile."""
    names = (LONG_NAME, "pay", "orders_of_customer")
    found = {
        "stages": stages(),
        "checked": (
            Checked(check="p95 < 25ms", value=29.0, passed=False),
            Checked(check="p99 < 10s", value=29.0, passed=True),
            Checked(check="qps > 150", value=400.0, passed=True),
            Checked(check="error_rate < 1%", value=0.001, passed=True),
            Checked(check="pay.p95 < 24ms", value=29.0, passed=False),
        ),
        "environment": {"loadgen": "0.1.0", "shared_warehouse": False, "platform": "Linux-6.18-x86_64-with-glibc2.36"},
        "find_max": FIND_MAX,
    }
    events = (
        RunEvent(at_s=0.0, label="START", text="START: 2 workers", kind=EventKind.START),
        RunEvent(at_s=0.1, label="8 conn.", text="target 8 connections"),
        RunEvent(at_s=2.0, label="stage 1", text="stage 1 begins"),
        RunEvent(at_s=6.0, label="✓", text="step 1, 4 connections: STABLE, held", kind=EventKind.HELD),
        RunEvent(at_s=6.2, label="stage 2, 100 conn.", text="stage 2 begins, target 100 connections"),
        RunEvent(at_s=8.0, label="worker-1 lost", text="worker-1 was lost", kind=EventKind.LOST),
        RunEvent(at_s=12.4, label="STOP", text="STOP: duration", kind=EventKind.STOP),
    )
    return record(names, facts=found, **({"steps": FIND_MAX_STEPS, "events": events} | more))


def hostile(**more: Any) -> RunRecord:
    """Foreign text wherever there can be any; some of it a megabyte long."""
    long = f"{HOSTILE_TEXT} " * (1_000_000 // len(HOSTILE_TEXT))
    found = {
        "scenario": HOSTILE_TEXT[:100],
        "invalid": (HOSTILE_TEXT, long),
        "checked": (
            Checked(check=f"{HOSTILE_NAME}.p95 < 50ms", value=99.0, passed=False),
            Checked(check="p99 < 1ms", value=None, passed=False),
        ),
        "environment": {"loadgen": HOSTILE_NAME, HOSTILE_NAME: HOSTILE_TEXT},
        "logins": {
            "opened": 1, "reopened": {HOSTILE_NAME: 1}, "refused": 1,
            "last_refused": [
                {"worker_id": HOSTILE_NAME, "at": HOSTILE_TEXT, "second": 1.0, "code": 1, "text": long}
            ],
            "last_lost": [
                {"worker_id": HOSTILE_NAME, "at": HOSTILE_TEXT, "second": 1.0, "code": 1, "text": long, "reason": long}
            ],
        },
        "find_max": {
            "max_concurrency": 4, "result": HOSTILE_NAME, "reason": long, "failed_at": 8, "qps": 10.0, "p95_ms": 3.5,
            "failed_outcome": HOSTILE_NAME, "confidence": HOSTILE_NAME, "steps": [],
        },
    }  # fmt: skip
    run = scenario((HOSTILE_NAME, long), description=HOSTILE_TEXT, labels={HOSTILE_NAME: long}, connection=HOSTILE_NAME)
    step = FindMaxStepResult(number=1, target=4, succeeded=9, failed=1, qps=10.0,
             latency_ms={"p50": 2.0, "p95": 3.5, "p99": None},
             error_rate=0.1, queue_seen=False, outcome=HOSTILE_NAME, reason=HOSTILE_TEXT)  # fmt: skip
    known: dict[str, Any] = {
        "scenario": run,
        "config": freeze(run),
        "events": (RunEvent(at_s=5.0, label=HOSTILE_NAME, text=HOSTILE_TEXT),),
        "steps": (step,),
        "polls": (WarehousePollPoint(at_s=1.0, running=1, queued=0, started_clusters=1, size=HOSTILE_NAME),),
        "machines": {"worker-0": WorkerHost(hostname=HOSTILE_TEXT, version=HOSTILE_NAME, labels=(HOSTILE_TEXT,))},
        "logs": (WorkerWarning(moment=START, worker_id=HOSTILE_NAME, level="ERROR", message=long),),
        "enrichment_status": HOSTILE_NAME,
        "merged_missing": HOSTILE_TEXT,
    }
    return record((HOSTILE_NAME, long), facts=found, example=HOSTILE_TEXT, **(known | more))


SIZE_MAX = 400_000
VOID = {"meta", "wbr"}


@dataclass
class Page(HTMLParser):
    """The page as a browser's parser reads it, roughly: elements that do not match are an error."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)  # (element it is in, text), in order
    data: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self._value: float | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "data":
            self._value = float(dict(attrs)["value"] or "nan")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> does not match"

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        self.texts.append((inside, data))
        if inside == "data" and self._value is not None:
            self.data.append((self._value, data))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def charts(self) -> set[str | None]:
        return {attributes["id"] for attributes in self.named("svg") if "id" in attributes}

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(text for tag, text in self.texts if tag not in ("script", "style")))


def page(run: RunRecord) -> Page:
    read = Page()
    text = report_html(run)
    read.feed(text)
    read.close()
    assert not read._open, f"never closed: {read._open}"
    assert len(text.encode()) < SIZE_MAX
    return read
