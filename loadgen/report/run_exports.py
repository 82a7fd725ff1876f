"""junit.xml: one test case for the run, one for its validity, one for each threshold. Pure."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from loadgen.log import printable
from loadgen.model.counts import Counts
from loadgen.report import formatting
from loadgen.report.records import RunRecord
from loadgen.report.timeline import RunSecond
from loadgen.units import NS_PER_MS


def junit_xml(record: RunRecord) -> str:
    """A run that failed or was stopped is an error; one that is INVALID, or missed a threshold, is a failure."""
    summary = record.summary
    name = f"loadgen.{formatting.xml(str(summary['scenario']), 200)}"
    suite = ElementTree.Element("testsuite", name=name)
    _properties(suite, record)
    cases = [_run_case(summary), _validity_case(summary), *map(_threshold_case, summary["thresholds"])]
    for case in cases:
        case.set("classname", name)
        suite.append(case)
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", "0")
    suite.set("time", formatting.exact(summary["measured_seconds"]))
    if summary["started_at"]:
        suite.set("timestamp", formatting.xml(str(summary["started_at"]).removesuffix("Z"), 40))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _properties(suite: ElementTree.Element, record: RunRecord) -> None:
    summary = record.summary
    values = {
        "run_id": summary["run_id"],
        "verdict": summary["verdict"],
        "template_id": record.template_id,
        "qps": formatting.exact(summary["totals"]["qps"]),
        **{f"latency_{name}_ms": formatting.exact(summary["latency_ms"].get(name)) for name in formatting.PERCENTILES},
    }
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=formatting.xml(str(value)))


def _run_case(summary: Mapping[str, Any]) -> ElementTree.Element:
    case = ElementTree.Element("testcase", name="the run was carried through")
    case.set("time", formatting.exact(summary["measured_seconds"]))
    if summary["verdict"] in ("error", "cancelled"):
        _say(case, "error", summary["status"], summary["exit_reason"])
    return case


def _validity_case(summary: Mapping[str, Any]) -> ElementTree.Element:
    case = ElementTree.Element("testcase", name="its numbers are valid", time="0")
    if not summary["validity"]["valid"]:
        _say(case, "failure", "INVALID", "\n".join(summary["validity"]["reasons"]))
    return case


def _threshold_case(threshold: Mapping[str, Any]) -> ElementTree.Element:
    case = ElementTree.Element("testcase", name=formatting.xml(threshold["check"]), time="0")
    if not threshold["passed"]:
        _say(case, "failure", "threshold", f"measured {formatting.judged(threshold)}")
    return case


def _say(case: ElementTree.Element, kind: str, category: str, text: str) -> None:
    said = ElementTree.SubElement(
        case, kind, type=formatting.xml(category), message=printable(text, formatting.LINE_MAX)
    )
    said.text = formatting.xml(text, formatting.BLOCK_MAX)


COLUMNS = (
    *("second", "time", "phase", "workers", "qps", "succeeded", "failed", "skipped", "cancelled"),
    *("p50_ms", "p90_ms", "p95_ms", "p99_ms", "mean_ms", "min_ms", "max_ms", "lag_p99_ms"),
    *("executing", "target_connections", "cpu_percent_of_core", "memory_percent"),
)


def intervals_csv(record: RunRecord) -> str:
    """An empty cell: not known, or not enough samples to say. Each statement adds two columns at the end."""
    names = record.statement_names()
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(
        [*COLUMNS, *(formatting.csv(f"{name} {kind}") for name in names for kind in ("succeeded", "failed"))],
    )
    for second in record.seconds:
        writer.writerow([*_cells(record, second), *_statements(second, names)])
    return written.getvalue()


def _cells(record: RunRecord, second: RunSecond) -> Iterator[object]:
    assert record.started is not None, "there are no seconds before the start"
    counts, times = second.counts, second.every_response
    moment = record.started + timedelta(seconds=second.at_s)
    yield second.at_s
    yield f"{moment.isoformat(timespec='milliseconds')}Z"
    yield second.phase or ""
    yield second.workers
    yield _number(second.qps)
    yield from (counts.succeeded, counts.failed, counts.skipped, counts.cancelled)
    yield from (_number(second.response_ms(per_mille)) for per_mille in (500, 900, 950, 990))
    some = bool(times.count)
    yield _number(times.sum_ns / times.count / NS_PER_MS if some else None)
    yield _number(times.min_ns / NS_PER_MS if some else None)
    yield _number(times.max_ns / NS_PER_MS if some else None)
    yield _number(second.lag_ms(990))
    yield from (second.executing, second.target, _number(second.cpu_percent), _number(second.memory_percent))


def _statements(second: RunSecond, names: list[str]) -> Iterator[int]:
    for name in names:
        counts = second.statements.get(name, Counts())
        yield from (counts.succeeded, counts.failed)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
