"""One browser for all pages, and the widths they are looked at in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    started = Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(params=[1280, 390])
def width(browser: Chromium, request: pytest.FixtureRequest) -> Iterator[int]:
    chosen: int = request.param
    browser.call("Emulation.setDeviceMetricsOverride", width=chosen, height=900, deviceScaleFactor=1, mobile=False)
    yield chosen
    browser.call("Emulation.clearDeviceMetricsOverride")


@pytest.fixture(params=["light", "dark"])
def scheme(browser: Chromium, request: pytest.FixtureRequest) -> Iterator[str]:
    chosen: str = request.param
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": chosen}])
    yield chosen
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
