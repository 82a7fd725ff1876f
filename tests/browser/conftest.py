"""One browser for all pages, and the widths of their windows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import SCHEMES, WIDTHS, Chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    started = Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(params=WIDTHS)
def width(browser: Chromium, request: pytest.FixtureRequest) -> Iterator[int]:
    with browser.as_wide_as(request.param):
        yield request.param


@pytest.fixture(params=SCHEMES)
def scheme(browser: Chromium, request: pytest.FixtureRequest) -> Iterator[str]:
    with browser.preferring(request.param):
        yield request.param
