"""Replaces `loadgen run` in a pool: does what the scenario text specifies, quickly, and records it.

The text is JSON: {"ms": duration, or "until": a file that ends it, "exit": its exit code, "fails": how many attempts
end with 4 before, "deaf": it ignores signals}. It accepts the arguments that a runner passes to `loadgen run`, leaves a
folder as a run does, and ends with 143 after SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

LEDGER = "POOL_LEDGER"


def main(words: list[str]) -> int:
    assert words[0] == "run", words
    options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
    labels = dict(word.removeprefix("--label=").split("=", 1) for word in words if word.startswith("--label="))
    with open(words[1], encoding="utf-8") as file:
        asked = json.load(file)
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if asked.get("deaf") else stop)
    attempt = int(labels["attempt"])
    os.mkdir(os.path.join(options["output-dir"], f"run-{labels['queue_id'][-16:]}-{attempt}"))
    note("begin", labels["queue_id"], attempt)
    if waited(stopped, asked):
        return 143
    code = 4 if attempt <= asked.get("fails", 0) else asked.get("exit", 0)
    note(f"exit {code}", labels["queue_id"], attempt)
    print(json.dumps({"exit_code": code, "exit_reason": f"stood in with {code}"}))
    return code


def waited(stopped: threading.Event, asked: dict[str, Any]) -> bool:
    """True: it was stopped before its end."""
    if "ms" in asked:
        return stopped.wait(asked["ms"] / 1000)
    while not os.path.exists(asked["until"]):
        if stopped.wait(0.05):
            return True
    return False


def note(what: str, queue_id: str, attempt: int) -> None:
    """One line, at once and whole: several of us write there."""
    line = json.dumps({"what": what, "queue_id": queue_id, "attempt": attempt, "pid": os.getpid()}) + "\n"
    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
