"""User sessions in the HTML report; only for scenarios that have them."""

from __future__ import annotations

from loadgen.report import formatting
from loadgen.report.escaping import html
from loadgen.report.page_parts import facts, note, number, table
from loadgen.results.records import RunRecord
from loadgen.units import format_duration_s

COUNTS = ("created", "expired", "current")


def sessions(record: RunRecord) -> str:
    """created = expired + current, over all workers."""
    found = record.summary["sessions"]
    rows = [[number(found[name], formatting.count(found[name])) for name in COUNTS]]
    said = table("Sessions of logical users, over the whole run", COUNTS, rows, words=0)
    if record.scenario is not None:
        rules = record.scenario.sessions
        metadata = ", ".join(f"{key}={value}" for key, value in rules.metadata.items())
        said += facts(
            [
                ("users", formatting.count(rules.count)),
                ("affinity", rules.affinity.value),
                ("time to live", format_duration_s(rules.ttl_s)),
                ("metadata", html(metadata, 1_000)),
            ]
        )
    return said + note(
        "Expired: not used for the time to live, or its connection was lost. Current: when the load ended."
    )
