"""Runs, pools, and directories for servers that tests start, stop and kill themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer
from tests.process.pool_harness import PoolHarness
from tests.process.run_harness import RunHarness, run_harness
from tests.process.served import copied_data
from tests.processes import reachable_directory


@pytest.fixture
def scratch() -> Iterator[Path]:
    with reachable_directory() as path:
        yield path


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """A data directory that has been served before; servers follow each other on it."""
    with reachable_directory() as path:
        yield copied_data(path / "data")


@pytest.fixture
def harness(request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path: Path) -> Iterator[RunHarness]:
    """Runs on the shared server. `pytest.mark.scenario(embedded={...})`: sections of every scenario."""
    marker = request.node.get_closest_marker("scenario")
    with run_harness(server, tmp_path, **(marker.kwargs if marker else {})) as made:
        yield made


@pytest.fixture
def pools(server: EmbeddedServer, tmp_path: Path) -> Iterator[PoolHarness]:
    """Pools with a separate queue."""
    plane = ControlPlane(server)
    harness = PoolHarness(plane, tmp_path)
    try:
        yield harness
    finally:
        harness.close()
        plane.close()
