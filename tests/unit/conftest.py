"""Fixtures that several files of this folder share."""

from __future__ import annotations

import pytest

from tests.unit.profile_builders import Home


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)
