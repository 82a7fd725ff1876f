"""The packages of the image install alone, and are all that a worker needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.environment import environment_of
from tests.embedded_server import EmbeddedServer
from tests.kubernetes_cluster import IMAGE, Cluster, login_secret
from tests.process.container_bench import ContainerBench, result
from tests.processes import PROGRAM, ROOT

SPAWNER = f'{{kind: kubernetes, image: "{IMAGE}", secret: snowflake}}'

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_workers_run_with_the_packages_of_the_image_and_no_others(server: EmbeddedServer, tmp_path: Path) -> None:
    secrets = {"snowflake": login_secret(server.host, server.port)}
    with (
        environment_of(ROOT / "requirements-image.lock") as programs,
        Cluster(tmp_path, secrets=secrets) as cluster,
    ):
        cluster.program = [str(programs / "python"), *PROGRAM[1:]]
        bench = ContainerBench(server, tmp_path, SPAWNER, KUBECONFIG=str(cluster.kubeconfig))
        try:
            ended = result(bench.run("bench", warehouse="IMAGE_WH", duration="2s"))
        finally:
            bench.close()

    assert (ended["code"], ended["status"]) == (0, "COMPLETED"), ended
    assert ended["totals"]["succeeded"] > 0
