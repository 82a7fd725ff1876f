"""Notifications of the end of a run, by webhook, program or ping. A failed notification never changes the result.

A notification contains verdict, ids, exit code and the main figures; no SQL, no errors of a server, no addresses.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from loadgen.errors import Busy, LoadgenError
from loadgen.log import printable, redact, register_secret
from loadgen.report.formatting import verdict_word
from loadgen.rules.comparison import REGRESSION
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import Notification, NotifyEvent
from loadgen.snowflake.driver import user_environment
from loadgen.values import dataclass

TIMEOUT_S = 10.0

_INVALID = 5
_SIGNALLED = 128  # higher exit codes: a signal has stopped the run
_WHY_MAX = 300  # characters
Warn = Callable[[str], None]


@dataclass(slots=True)
class PendingNotification:
    """The summary to send when the block ends."""

    summary: Mapping[str, Any] | None = None


@contextmanager
def notify_when_done(scenario: Scenario, warn: Warn) -> Iterator[PendingNotification]:
    """Send notifications when the block ends: with the summary that it sets, or with its error."""
    pending = PendingNotification()
    try:
        yield pending
    except LoadgenError as error:
        send_notifications(scenario.notify, _of_error(scenario.name, error), warn)
        raise
    if pending.summary is not None:
        send_notifications(scenario.notify, notification_document(pending.summary), warn)


def notify_not_started(scenario: Scenario, queue_id: str, why: str, warn: Warn) -> None:
    """Send the notifications for failures because a queued run does not begin."""
    document = {
        "text": f"loadgen: {scenario.name} has not run ({queue_id}): {why}",
        "verdict": "not_run",
        "scenario": scenario.name,
        "run_id": None,
        "queue_id": queue_id,
        "exit_code": None,
        "exit_reason": why,
    }
    _send(scenario.notify, document, {NotifyEvent.ALWAYS, NotifyEvent.FAILED}, warn)


def send_notifications(notify: tuple[Notification, ...], document: Mapping[str, Any], warn: Warn) -> None:
    """Send the notifications for this exit code, one after another. A failure is a warning."""
    _send(notify, document, notification_reasons(document["exit_code"]), warn)


def _send(
    notify: tuple[Notification, ...], document: Mapping[str, Any], happened: set[NotifyEvent], warn: Warn
) -> None:
    body = json.dumps(document).encode()
    for number, one in enumerate(notify):
        if not happened.isdisjoint(one.on):
            why = _failure(one, body)
            if why:
                warn(f"notify.{number}: {printable(redact(why), _WHY_MAX)}")


def notification_reasons(exit_code: int) -> set[NotifyEvent]:
    """The events that an exit code stands for. Skipped runs and runs that a user stopped are no failures."""
    happened = {NotifyEvent.ALWAYS}
    if exit_code == REGRESSION:
        happened.add(NotifyEvent.REGRESSION)
    elif exit_code == _INVALID:
        happened.add(NotifyEvent.INVALID)
    elif exit_code not in (0, Busy.exit_code) and exit_code <= _SIGNALLED:
        happened.add(NotifyEvent.FAILED)
    return happened


def notification_document(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The notification of a run with a summary. `text` is for chats that show only this key."""
    totals, latency = summary["totals"], summary["latency_ms"]
    why = redact(summary["exit_reason"])[:_WHY_MAX]
    return {
        "text": f"loadgen: {summary['scenario']} {verdict_word(str(summary['verdict']))} ({summary['run_id']}): {why}",
        "verdict": summary["verdict"],
        "scenario": summary["scenario"],
        "run_id": summary["run_id"],
        "exit_code": summary["exit_code"],
        "exit_reason": why,
        "started_at": summary["started_at"],
        "qps": totals["qps"],
        "error_rate": totals["error_rate"],
        "p50_ms": latency["p50"],
        "p95_ms": latency["p95"],
        "baseline": summary.get("baseline"),
    }


def _of_error(scenario: str, error: LoadgenError) -> dict[str, Any]:
    why = redact(str(error))[:_WHY_MAX]
    return {
        "text": f"loadgen: {scenario} error: {why}",
        "verdict": "error",
        "scenario": scenario,
        "run_id": None,
        "exit_code": error.exit_code,
        "exit_reason": why,
    }


def _failure(one: Notification, body: bytes) -> str:
    """Send one notification. Returns why that failed; empty: it was sent."""
    if one.command:
        return _run(one.command, body)
    if one.webhook is not None:
        return _request(str(one.webhook), body)
    assert one.ping is not None
    return _request(str(one.ping), None)


def _request(url: str, body: bytes | None) -> str:
    import http.client
    import urllib.error
    import urllib.request

    class SameHost(urllib.request.HTTPRedirectHandler):
        """Follows no redirection to another host: only allowed hosts may be contacted."""

        def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> Any:
            if urllib.request.Request(newurl).host != req.host:
                raise urllib.error.HTTPError(newurl, code, "and leads to another host", headers, fp)
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    register_secret(url)
    headers = {"User-Agent": "loadgen"} | ({"Content-Type": "application/json"} if body is not None else {})
    try:
        request = urllib.request.Request(url, data=body, headers=headers)
        with urllib.request.build_opener(SameHost).open(request, timeout=TIMEOUT_S) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        return f"the answer was {error.code} {error.reason}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"not reachable: {reason or type(error).__name__}"
    return ""


def _run(command: tuple[str, ...], body: bytes) -> str:
    words = [str(word) for word in command]
    try:
        ended = subprocess.run(
            words,
            input=body,
            stdout=subprocess.DEVNULL,  # the standard output of this process is for the result
            env=user_environment(os.environ),
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{words[0]} was ended after {TIMEOUT_S:.0f} s"
    except (OSError, ValueError) as error:
        return f"{words[0]} could not be started: {getattr(error, 'strerror', None) or error}"
    return f"{words[0]} ended with {ended.returncode}" if ended.returncode else ""
