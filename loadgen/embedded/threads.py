"""Waiting for long work, in a thread or a task, so that the event loop serves others meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

T = TypeVar("T")


async def in_thread(work: Callable[[], T], name: str) -> T:
    """The result of `work`. A daemon thread: a stopping server does not wait for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(T, value))

    def target() -> None:
        value, error = None, None
        try:
            value = work()
        except Exception as problem:  # raised in the waiting task
            error = problem
        with suppress(RuntimeError):  # the loop was closed first: a signal stopped the server
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=target, name=name, daemon=True).start()
    return await done


async def within(task: asyncio.Task[bytes], seconds: float) -> bool:
    """Whether the task ends in time; it continues if not. Cheaper than asyncio.wait, and every statement calls it."""
    if task.done():
        return True
    loop = asyncio.get_running_loop()
    gate: asyncio.Future[bool] = loop.create_future()

    def open_gate(ended: bool) -> None:
        if not gate.done():
            gate.set_result(ended)

    task.add_done_callback(lambda _: open_gate(True))
    timer = loop.call_later(seconds, open_gate, False)
    try:
        return await gate
    finally:
        timer.cancel()
