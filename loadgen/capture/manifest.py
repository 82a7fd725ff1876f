"""The totals of a capture: counts, templates, and its README.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from loadgen.model.capture import CapturedTemplate, CaptureManifest, LeftOutReason, RecordedStatement, StatementRole

TEMPLATES_COUNTED, TEMPLATES_LISTED = 200_000, 500
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  naive UTC, as the history's rows are read
_OBJECT = re.compile(r"(?i:\b(?:from|into|update|merge\s+into)\s+)([\w.$\"]+)")


def epoch_ms(moment: datetime) -> float:
    return round((moment - _EPOCH) / timedelta(milliseconds=1), 3)


def moment_text(milliseconds: float) -> str:
    return (_EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds") + "Z"


def template_name(sql: str, template_id: str) -> str:
    """For reports and thresholds: select_orders_1a2b3c."""
    found = _OBJECT.search(sql)
    words = [
        sql.split(None, 1)[0] if sql.split() else "",
        found[1].rsplit(".", 1)[-1] if found else "",
        template_id[:6],
    ]
    return "_".join(word for part in words if (word := re.sub(r"\W+", "", part).lower()))[:60]


class CaptureTotals:
    """Numbers sessions by their first statements, and counts statements, which must come in order of start."""

    def __init__(self) -> None:
        self.start_ms: float | None = None  # of the first statement; later times are relative to it
        self.end_ms = 0.0
        self.statements = 0
        self.sessions: list[tuple[float, float]] = []  # start of the first and end of the last statement of each
        self.roles: Counter[str] = Counter()
        self.templates: dict[str, tuple[StatementRole, int, float]] = {}  # role, count, total milliseconds
        self._numbers: dict[int, int] = {}  # by the id that the history has

    def counted(self, one: RecordedStatement) -> RecordedStatement:
        """The same statement with the number of its session, and its time since the first statement."""
        ends_ms = one.at_ms + one.ms
        self.start_ms = one.at_ms if self.start_ms is None else self.start_ms
        self.end_ms = max(self.end_ms, ends_ms)
        number = self._numbers.setdefault(one.session, len(self._numbers))
        if number == len(self.sessions):
            self.sessions.append((one.at_ms, ends_ms))
        first_ms, last_ms = self.sessions[number]
        self.sessions[number] = (first_ms, max(last_ms, ends_ms))
        self.statements += 1
        self.roles[one.role.value] += 1
        role, count, total_ms = self.templates.get(one.template, (one.role, 0, 0.0))
        if count or len(self.templates) < TEMPLATES_COUNTED:
            self.templates[one.template] = (role, count + 1, total_ms + one.ms)
        return replace(one, session=number, at_ms=round(one.at_ms - self.start_ms, 3))

    def overlap(self) -> int:
        """The most sessions at one moment."""
        moves = sorted(move for first, last in self.sessions for move in ((first, 1), (last, -1)))
        most = now = 0
        for _, change in moves:
            now += change
            most = max(most, now)
        return most

    def listed(self, texts: Mapping[str, str]) -> tuple[CapturedTemplate, ...]:
        """The most frequent templates."""
        ranked = sorted(self.templates.items(), key=lambda item: (-item[1][1], item[0]))
        known = [(key, totals, texts[key]) for key, totals in ranked if key in texts][:TEMPLATES_LISTED]
        return tuple(
            CapturedTemplate(
                id=key, name=template_name(text, key), role=role, count=count, total_ms=round(total_ms, 3), sql=text
            )
            for key, (role, count, total_ms), text in known
        )


def readme_text(manifest: CaptureManifest) -> str:
    """README.md of a capture."""
    left = {LeftOutReason[name.upper()]: count for name, count in manifest.left_out.items() if count}
    total = manifest.statements + sum(left.values())
    values = (
        "Values are pseudonyms: literals and binds were replaced consistently. The key is deleted."
        if manifest.pseudonyms
        else "Values are the real ones (`--keep-values`), except for those that look like an e-mail, password or token."
    )
    lines = [
        "# A capture of loadgen",
        "",
        f"Statements from {manifest.span_from} to {manifest.span_to}, from {manifest.source}.",
        "",
        f"- {manifest.statements:,} statements of {manifest.sessions:,} sessions",
        f"- {manifest.templates_total:,} templates: statements that differ in values only",
        f"- coverage: {manifest.statements:,} of {total:,} statements of the history",
        f"- {values}",
        f"- names of objects: {'replaced; this capture cannot be executed' if manifest.names_hidden else 'kept'}",
        "- comments are removed and user names replaced, always; failed statements, DDL and calls are never captured",
        "- Snowflake records only some of the short statements on hybrid tables: those are missing without a count",
        "",
        "| left out because | statements |",
        "|---|---|",
        *(f"| {reason.value} | {count:,} |" for reason, count in left.items()),
        "",
        "| most frequent | role | count | mean ms |",
        "|---|---|---|---|",
        *(
            f"| {one.name} | {one.role} | {one.count:,} | {one.total_ms / one.count:,.1f} |"
            for one in manifest.templates[:20]
        ),
        "",
        "Replay it with `load: {mode: replay, capture: DIR}` in a scenario; see docs/capture.md of loadgen.",
        "",
    ]
    return "\n".join(lines)
