"""Logical users of a real run, against the server's own history and a table in which they leave their names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import Program, run_harness

USERS = 5
RECYCLED_AFTER = 4  # statements of a connection
COLUMNS = [
    {"name": "ID", "type": "NUMBER(38,0)", "primary_key": True},
    {"name": "WHO", "type": "VARCHAR"},
    {"name": "VIA", "type": "NUMBER(38,0)"},
]
SIGN = {
    "name": "sign",
    "kind": "write",
    "weight": 3,
    "session": True,
    "sql": "INSERT INTO GUESTS SELECT ?, ?, CURRENT_SESSION()",
    "params": [{"sequence": {"start": 1}}, {"remembered": "who", "of": {"uuid": {}}}],
}
LOOK = {
    "name": "look",
    "kind": "read",
    "session": True,
    "transaction": [{"sql": "SELECT COUNT(*) FROM GUESTS WHERE WHO = ?", "params": [{"remembered": "who"}]}],
}
PLAIN = {"name": "plain", "sql": "SELECT 1"}


@dataclass(frozen=True, slots=True)
class SessionRun:
    """One run with strict affinity, whose connections are replaced again and again."""

    program: Program
    lines: list[dict[str, Any]]  # of the server's history, without the switching of tags
    guests: list[tuple[str, int]]  # who signed, over which connection

    @property
    def in_session(self) -> list[tuple[int, int, str]]:
        """Of every statement in a session: its number, the connection, the text."""
        tags = [(json.loads(line["query_tag"]), line) for line in self.lines]
        return [(tag["session"], line["session_id"], line["sql_text"]) for tag, line in tags if "session" in tag]


@pytest.fixture(scope="module")
def session_run(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionRun]:
    with run_harness(server, tmp_path_factory.mktemp("sessions"), embedded={"service_time": "100ms"}) as harness:
        program = harness.run(
            prepare={"tables": [{"name": "GUESTS", "type": "hybrid", "columns": COLUMNS}]},
            workload={"statements": [SIGN, LOOK, PLAIN]},
            sessions={"count": USERS, "affinity": "strict", "metadata": {"team": "checkout"}},
            load={"workers": 2, "warmup": "0s", "duration": "2s"},
            connections={"max_statements": RECYCLED_AFTER},
            query_log={"mode": "none"},
        )
        assert program.ended() == 0, program.said
        lines = server.ask(f"/__loadgen/history?tag={program.run_id}")
        with server.connect(database="BENCH", schema="PUBLIC") as connection:
            guests = connection.cursor().execute("SELECT WHO, VIA FROM GUESTS").fetchall()
        yield SessionRun(
            program,
            lines,
            [(who, int(via)) for who, via in guests],
        )


def test_every_statement_is_counted_in_a_session_or_not(session_run: SessionRun) -> None:
    totals, texts = session_run.program.summary["totals"], Counter(line["sql_text"] for line in session_run.lines)
    in_session = Counter(text for _, _, text in session_run.in_session)

    assert in_session == texts - Counter({"SELECT 1": texts["SELECT 1"]})
    assert texts["BEGIN"] == texts["COMMIT"] == texts[LOOK["transaction"][0]["sql"]] > 0  # type: ignore[index]
    assert totals["succeeded"] == texts[str(SIGN["sql"])] + texts["BEGIN"] + texts["SELECT 1"]
    assert totals["failed"] == 0


def test_tags_begin_with_the_run_and_end_with_whose_statement_it_is(session_run: SessionRun) -> None:
    tags = [json.loads(line["query_tag"]) for line in session_run.lines if "session" in json.loads(line["query_tag"])]

    assert {tuple(tag) for tag in tags} == {("app", "run", "worker", "phase", "step", "session", "metadata")}
    assert {tag["phase"] for tag in tags} == {"MEASUREMENT"}
    assert all(tag["metadata"] == {"team": "checkout"} for tag in tags)
    owners = {(tag["session"] % USERS, tag["worker"]) for tag in tags}
    assert sorted(user for user, _ in owners) == list(range(USERS)), "each user belongs to one worker"


def test_a_session_has_one_connection_and_remembers_one_value(session_run: SessionRun) -> None:
    connections: dict[int, set[int]] = {}
    signed: Counter[tuple[int, int]] = Counter()
    for session, connection, text in session_run.in_session:
        connections.setdefault(session, set()).add(connection)
        signed[session, connection] += text == SIGN["sql"]

    assert all(len(used) == 1 for used in connections.values())
    assert len({next(iter(used)) for used in connections.values()}) > 2, "connections were replaced"
    # Each session signs with its one name: over each connection, names occur as often as sessions do.
    by_name = Counter(session_run.guests)
    assert sorted((via, times) for (_, via), times in by_name.items()) == sorted(
        (via, times) for (_, via), times in signed.items() if times
    )
    assert len({who for who, _ in session_run.guests}) == len(by_name), "no name over two connections"


def test_the_summary_counts_what_the_server_saw(session_run: SessionRun) -> None:
    sessions = session_run.program.summary["sessions"]

    assert sessions["created"] == len({session for session, _, _ in session_run.in_session}) > USERS
    assert sessions["created"] == sessions["expired"] + sessions["current"]
    one_each = [line for line in session_run.lines if line["sql_text"] in (SIGN["sql"], "BEGIN", "SELECT 1")]
    executed = Counter(line["session_id"] for line in one_each)
    assert max(executed.values()) == RECYCLED_AFTER
    still_open = {session for session, connection, _ in session_run.in_session if executed[connection] < RECYCLED_AFTER}
    assert sessions["current"] == len(still_open) <= USERS, "the end of the load ends no session"


def test_every_report_shows_them(session_run: SessionRun) -> None:
    (folder,) = session_run.program.folder.glob("runs/*")
    sessions = session_run.program.summary["sessions"]
    said = ", ".join(f"{sessions[name]:,} {name}" for name in ("created", "expired", "current"))

    assert f"User sessions: {said}." in (folder / "report.md").read_text("utf-8")
    page = (folder / "report.html").read_text("utf-8")
    assert 'id="sessions"' in page
    assert f'<data value="{sessions["created"]}">' in page
