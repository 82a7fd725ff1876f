"""Doing something away from the main thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def run_in_thread(action: Callable[[], Result], *, name: str) -> Result:
    """Run it in a thread and wait, so that Ctrl-C works: inside the driver's calls it would be lost."""
    done = threading.Event()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # handed to the main thread, which raises it
            errors.append(error)
        finally:
            done.set()

    # A daemon: after Ctrl-C the program must not wait for the driver's time limits.
    threading.Thread(target=run, name=name, daemon=True).start()
    done.wait()
    try:
        if errors:
            raise errors[0]
        return results[0]
    finally:
        errors.clear()  # else error, traceback, frame and list would keep one another and the driver's objects alive
