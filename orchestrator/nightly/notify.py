"""Telling others how a run ended: a webhook, a program, a ping. Whatever becomes of it, the result stays what it is.

What is told is small: verdict, ids, exit code, the main numbers. No SQL, no errors of a server, no addresses.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loadgen.errors import Busy, LoadgenError
from loadgen.log import printable, redact, register_secret
from loadgen.rules.comparison import REGRESSION
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import Notification, NotifyEvent
from loadgen.snowflake.driver import user_environment
from loadgen.values import dataclass

if TYPE_CHECKING:
    pass


TIMEOUT_S = 10.0

_INVALID = 5
_SIGNALLED = 128  # above: a signal stopped it
_WHY_MAX = 300  # characters
Warn = Callable[[str], None]


@dataclass(slots=True)
class PendingNotification:
    """What others will be told, once it is known."""

    summary: Mapping[str, Any] | None = None


@contextmanager
def notify_when_done(scenario: Scenario, warn: Warn) -> Iterator[PendingNotification]:
    """Tell at the end, also of a run that came to nothing."""
    told = PendingNotification()
    try:
        yield told
    except LoadgenError as error:
        send_notifications(scenario.notify, _of_error(scenario.name, error), warn)
        raise
    if told.summary is not None:
        send_notifications(scenario.notify, notification_document(told.summary), warn)


def notify_not_started(scenario: Scenario, queue_id: str, why: str, warn: Warn) -> None:
    """A queued run does not begin: for those who are notified of failures."""
    document = {
        "text": f"loadgen: {scenario.name} has not run ({queue_id}): {why}",
        "verdict": "not_run",
        "scenario": scenario.name,
        "run_id": None,
        "queue_id": queue_id,
        "exit_code": None,
        "exit_reason": why,
    }
    _tell(scenario.notify, document, {NotifyEvent.ALWAYS, NotifyEvent.FAILED}, warn)


def send_notifications(notify: tuple[Notification, ...], document: Mapping[str, Any], warn: Warn) -> None:
    """Each that wants to know, one after another; what fails is a warning."""
    _tell(notify, document, notification_reasons(document["exit_code"]), warn)


def _tell(
    notify: tuple[Notification, ...], document: Mapping[str, Any], happened: set[NotifyEvent], warn: Warn
) -> None:
    body = json.dumps(document).encode()
    for number, one in enumerate(notify):
        if not happened.isdisjoint(one.on):
            why = _sent(one, body)
            if why:
                warn(f"notify.{number}: {printable(redact(why), _WHY_MAX)}")


def notification_reasons(exit_code: int) -> set[NotifyEvent]:
    """What an exit code is worth telling as. Skipped runs and runs that a user stopped are no failure."""
    happened = {NotifyEvent.ALWAYS}
    if exit_code == REGRESSION:
        happened.add(NotifyEvent.REGRESSION)
    elif exit_code == _INVALID:
        happened.add(NotifyEvent.INVALID)
    elif exit_code not in (0, Busy.exit_code) and exit_code <= _SIGNALLED:
        happened.add(NotifyEvent.FAILED)
    return happened


def notification_document(summary: Mapping[str, Any]) -> dict[str, Any]:
    """`text` is for chats that show nothing else."""
    totals, latency = summary["totals"], summary["latency_ms"]
    why = redact(summary["exit_reason"])[:_WHY_MAX]
    return {
        "text": f"loadgen: {summary['scenario']} {summary['verdict']} ({summary['run_id']}): {why}",
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


def _sent(one: Notification, body: bytes) -> str:
    """Why it could not be told; empty: it was."""
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
        """Follows no redirection to another host: an address that is allowed must not lead elsewhere."""

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
            stdout=subprocess.DEVNULL,  # ours is for the result
            env=user_environment(os.environ),
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{words[0]} was ended after {TIMEOUT_S:.0f} s"
    except (OSError, ValueError) as error:
        return f"{words[0]} could not be started: {getattr(error, 'strerror', None) or error}"
    return f"{words[0]} ended with {ended.returncode}" if ended.returncode else ""
