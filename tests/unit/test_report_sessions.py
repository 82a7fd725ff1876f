"""User sessions, from the rows of workers to every report; and nothing of them where there are none."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from loadgen.control.tables.test_results import ResultRow
from loadgen.metrics.interval import MeasuredCounts
from loadgen.model.counts import UserSessionCounts
from loadgen.report.exports import report_markdown
from loadgen.report.run_page import report_html
from loadgen.report.run_text import summary_text
from loadgen.report.summary import in_order
from loadgen.scenario.settings import SessionAffinity, UserSessionSettings
from loadgen.worker.flush import result_row
from orchestrator.run_result import session_counts
from tests.unit.report_builders import record, scenario
from tests.unit.worker_builders import ME

COUNTS = UserSessionCounts(created=1_234, expired=34)
MOMENT = datetime(2026, 11, 15, 2)  # noqa: DTZ001  as the tables have it


def row(sessions: UserSessionCounts | None) -> ResultRow:
    return result_row(
        [],
        MeasuredCounts(),
        ME,
        sessions=sessions,
        test_id="t",
        template_id="m",
        status="COMPLETED",
        created_at=MOMENT,
    )


def test_counts_of_all_workers_are_added() -> None:
    told = [row(UserSessionCounts(created=5, expired=2)), row(UserSessionCounts(created=7)), row(None)]

    assert session_counts(told) == UserSessionCounts(created=12, expired=2)


@pytest.mark.parametrize(
    "said",
    [
        "{",
        "[]",
        '{"sessions": 5}',
        '{"sessions": {"created": "x"}}',
        '{"sessions": {"created": 1, "expired": 5, "current": 0}}',
        '{"sessions": {"created": 5, "expired": 1, "current": 5}}',
    ],
)
def test_what_does_not_add_up_is_not_counted(said: str) -> None:
    broken = ResultRow(**{**{name: getattr(row(None), name) for name in ResultRow.__slots__}, "summary": said})

    assert session_counts([broken, row(UserSessionCounts(created=1))]) == UserSessionCounts(created=1)


def shown(**facts: Any) -> tuple[str, str, str]:
    run = record(
        facts=facts,
        scenario=scenario(
            sessions=UserSessionSettings(count=2_000, affinity=SessionAffinity.STRICT, metadata={"team": "<b>"})
        ),
    )
    return summary_text(run.summary), report_markdown(run), report_html(run)


def test_every_report_shows_the_number_of_sessions() -> None:
    text, markdown, html = shown(sessions=COUNTS)

    assert "user sessions: 1,234 created, 34 expired, 1,200 current" in text
    assert "User sessions: 1,234 created, 34 expired, 1,200 current." in markdown
    assert '<data value="1234">1,234</data>' in html
    assert "team=&lt;b&gt;" in html
    assert "strict" in html


def test_without_sessions_no_report_speaks_of_them() -> None:
    for said in shown():
        assert "user session" not in said.lower()


def test_the_document_keeps_its_order_through_a_table() -> None:
    run = record(facts={"sessions": COUNTS})

    again = in_order(json.loads(json.dumps(run.summary, sort_keys=True)), run.statement_names())

    assert json.dumps(again) == json.dumps(run.summary)
    assert list(again["sessions"]) == ["created", "expired", "current"]
