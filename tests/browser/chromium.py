"""A headless Chromium, driven with the standard library: JSON messages through the pipe of --remote-debugging-pipe."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ANSWER_S = 60.0  # a busy machine may need that long for the first page
WIDTHS, SCHEMES = (1280, 390), ("light", "dark")
PIXEL = {"x": 0, "y": 0, "width": 1, "height": 1, "scale": 1}
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """LOADGEN_CHROMIUM, or what is on the path."""
    return os.environ.get("LOADGEN_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def program() -> str:
    found = find_browser()
    if found is None:
        # Continuous integration must not pass because the browser is missing.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "needs Chromium: `apt-get install chromium`, or name one in LOADGEN_CHROMIUM"
        )
    return found


class Chromium:
    """One browser with one page. Everything that happens on the page is in `events`."""

    def __init__(self, profile: Path) -> None:
        browser = program()
        to_browser, our_end = os.pipe()
        their_end, from_browser = os.pipe()[::-1]
        self._out, self._in = our_end, from_browser
        words = [browser, "--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu"]
        words += ["--disable-dev-shm-usage"]  # containers have little of it
        words += ["--no-first-run", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars"]
        words += ["--no-sandbox"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(  # the pipe must be its files 3 and 4
            ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{their_end}', "bash", *words],
            pass_fds=(to_browser, their_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(their_end)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        try:
            self._open_page()
        except BaseException:
            self._end()
            raise

    def _open_page(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(ANSWER_S)
        finally:
            self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait(ANSWER_S)
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, page: Path) -> None:
        """Load a page, and wait until it is drawn: animations that follow the scroll position begin with a frame."""
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not self.seen("Page.loadEventFired"):
            self.events.append(self._read())
        self.call("Page.captureScreenshot", clip=PIXEL)  # after the next frame, also without scripts

    def seen(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    @contextmanager
    def as_wide_as(self, width: int) -> Iterator[None]:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        try:
            yield
        finally:
            self.call("Emulation.clearDeviceMetricsOverride")

    @contextmanager
    def preferring(self, scheme: str) -> Iterator[None]:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        try:
            yield
        finally:
            self.call("Emulation.setEmulatedMedia", media="", features=[])

    def move_to(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], ANSWER_S)
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        read: dict[str, Any] = json.loads(message)
        return read
