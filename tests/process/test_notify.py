"""Notifications: over real HTTP to a server of this machine, and to real programs."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ConnectFailed
from loadgen.scenario.frozen import freeze, template_id
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import parse_scenario
from loadgen.scenario.settings import Notification, NotifyEvent
from orchestrator.nightly.notify import notification_reasons, notify_when_done, send_notifications

ALWAYS = (NotifyEvent.ALWAYS,)
SUMMARY: dict[str, Any] = {
    "run_id": "20261116-0200-orders-aaaa",
    "scenario": "orders",
    "verdict": "failed",
    "exit_code": 11,
    "exit_reason": "trend: regression: p95 +25.0 %",
    "started_at": "2026-11-16T02:00:00.000Z",
    "totals": {"qps": 100.0, "error_rate": 0.0},
    "latency_ms": {"p50": 20.0, "p95": 50.0},
    "errors": [{"example": "near 'secret SQL'"}],
}


@dataclass
class Receiver:
    """Keeps what it is sent; answers with `status`."""

    server: ThreadingHTTPServer
    got: list[tuple[str, str, str | None, bytes]] = field(default_factory=list)
    status: int = 204
    location: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook/s3cr3t-path"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            made.got.append((self.command, self.path, self.headers.get("Content-Type"), body))
            self.send_response(made.status)
            self.send_header("Content-Length", "0")
            if made.location is not None:
                self.send_header("Location", made.location)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    made = Receiver(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    thread = threading.Thread(target=made.server.serve_forever, args=(0.02,), name="receiver")
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def scenario_with(notify: str, environ: dict[str, str]) -> Scenario:
    text = f"version: 1\nname: orders\nworkload: {{statements: [{{name: a, sql: SELECT 1}}]}}\nnotify: {notify}\n"
    return parse_scenario(text, source="f.yaml", environ=environ).scenario


def test_a_webhook_gets_the_verdict_and_a_ping_gets_a_get(receiver: Receiver, tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "told.json"
    program = "import shutil, sys; shutil.copyfileobj(sys.stdin, open(sys.argv[1], 'w')); print('not on our stdout')"
    scenario = scenario_with(
        json.dumps(
            [
                {"webhook": "${HOOK}"},
                {"ping": "${HOOK}", "on": ["always"]},
                {"command": [sys.executable, "-c", program, str(file)], "on": ["regression"]},
                {"webhook": "${HOOK}", "on": ["invalid"]},
            ]
        ),
        {"HOOK": receiver.url},
    )

    with notify_when_done(scenario, said.append) as told:
        told.summary = SUMMARY

    assert said == []
    (method, path, kind, body), ping = receiver.got
    assert (method, path, kind) == ("POST", "/hook/s3cr3t-path", "application/json")
    assert ping == ("GET", "/hook/s3cr3t-path", None, b"")
    document = json.loads(body)
    assert document == json.loads(file.read_text())
    assert document["text"] == "loadgen: orders missed (20261116-0200-orders-aaaa): trend: regression: p95 +25.0 %"
    assert (document["verdict"], document["exit_code"], document["p95_ms"]) == ("failed", 11, 50.0)
    assert b"SQL" not in body


def test_a_failed_notification_is_a_warning_that_does_not_reveal_the_address(receiver: Receiver) -> None:
    said: list[str] = []
    receiver.status = 500
    closed = "http://127.0.0.1:9/hook/s3cr3t-path"
    notify = (
        Notification(webhook=receiver.url, on=ALWAYS),
        Notification(ping=closed, on=ALWAYS),
        Notification(webhook="http://[s3cr3t-path", on=ALWAYS),
        Notification(command=("/no/such/program",), on=ALWAYS),
        Notification(command=(sys.executable, "-c", "raise SystemExit(3)"), on=ALWAYS),
    )

    send_notifications(notify, {"exit_code": 0}, said.append)

    assert [line.partition(":")[0] for line in said] == [f"notify.{number}" for number in range(5)]
    assert said[0] == "notify.0: the answer was 500 Internal Server Error"
    assert said[1].startswith("notify.1: not reachable: ")
    assert said[3] == "notify.3: /no/such/program could not be started: No such file or directory"
    assert said[4] == f"notify.4: {sys.executable} ended with 3"
    assert "s3cr3t" not in "".join(said)


def test_no_redirection_to_another_host_is_followed(receiver: Receiver) -> None:
    said: list[str] = []
    receiver.status, receiver.location = 302, "http://127.0.0.2:9/elsewhere"

    send_notifications((Notification(ping=receiver.url, on=ALWAYS),), {"exit_code": 0}, said.append)

    assert said == ["notify.0: the answer was 302 and leads to another host"]


def test_a_run_without_a_result_is_notified_too(receiver: Receiver) -> None:
    scenario = scenario_with('[{webhook: "${HOOK}"}]', {"HOOK": receiver.url})

    with pytest.raises(ConnectFailed), notify_when_done(scenario, pytest.fail):
        raise ConnectFailed("no answer from the account")

    (_, _, _, body) = receiver.got[0]
    document = json.loads(body)
    assert (document["verdict"], document["exit_code"], document["run_id"]) == ("error", 3, None)


@pytest.mark.parametrize(
    ("exit_code", "what"),
    [(0, None), (75, None), (130, None), (4, "failed"), (10, "failed"), (5, "invalid"), (11, "regression")],
)
def test_exit_codes_decide_which_notifications_are_sent(exit_code: int, what: str | None) -> None:
    assert notification_reasons(exit_code) == {NotifyEvent.ALWAYS, *([NotifyEvent(what)] if what else [])}


def test_addresses_are_not_stored_with_the_run_nor_part_of_what_is_measured() -> None:
    scenario = scenario_with('[{webhook: "${HOOK}"}]', {"HOOK": "https://chat.example/s3cr3t"})
    silent = scenario_with("[]", {})

    assert "HOOK" not in freeze(scenario)
    assert template_id(scenario) == template_id(silent)
    assert "s3cr3t" not in repr(scenario)
