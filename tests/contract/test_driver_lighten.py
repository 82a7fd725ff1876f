"""Both majors of the driver answer the same with what loadgen changes in it, and as they come."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

from loadgen.snowflake import driver
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, ROOT

POINTER = re.compile(r"0x[0-9a-f]+")
REQUEST = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def answers(server: EmbeddedServer, database: str, lighten: str) -> dict[str, Any]:
    """What tests.contract.lightened_statements prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.contract.lightened_statements", server.address, database],
        env=os.environ | {"PYTHONPATH": str(ROOT), driver.LIGHTEN_VARIABLE: lighten},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(REQUEST.sub("ID", POINTER.sub("POINTER", done.stdout)))
    return found


def test_answers_errors_counts_and_query_ids_are_those_of_the_unchanged_driver(
    server: EmbeddedServer, database: str
) -> None:
    as_it_comes = answers(server, f"{database}_PLAIN", "0")
    lightened = answers(server, f"{database}_LIGHT", "1")

    assert as_it_comes["lightened"] is False
    assert lightened["lightened"] is (driver.major() == 5)
    plain, light = (
        {name: json.dumps(one).replace(suffix, "") for name, one in found["said"].items()}
        for found, suffix in ((as_it_comes, "_PLAIN"), (lightened, "_LIGHT"))
    )
    assert light == plain
    assert plain["query ids"] == "11"
    assert plain["open"] == "[false, false]"
    assert plain["closed cursor"].startswith("[true, ")
    assert plain["closed connection"].startswith("[true, ")
