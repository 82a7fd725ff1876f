"""The folder of runs that a user names."""

from __future__ import annotations

import pytest

from loadgen.errors import ConfigurationError
from orchestrator.run_folder import make_runs_folder


def test_a_file_in_place_of_the_folder_of_runs_is_named(tmp_path):
    (tmp_path / "runs").write_text("", "utf-8")

    with pytest.raises(ConfigurationError, match="runs is not a directory"):
        make_runs_folder(tmp_path / "runs")
