"""Both majors of the driver answer the same with what loadgen changes in it, and as they come."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

from loadgen.snowflake import driver, driver_patches
from tests.contract.repeated_statements import TEXTS
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, ROOT

POINTER = re.compile(r"0x[0-9a-f]+")
REQUEST = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def answers(module: str, server: EmbeddedServer, database: str, lighten: str) -> dict[str, Any]:
    """What a module of this folder prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", f"tests.contract.{module}", server.address, database],
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
    as_it_comes = answers("lightened_statements", server, f"{database}_PLAIN", "0")
    lightened = answers("lightened_statements", server, f"{database}_LIGHT", "1")

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


def test_texts_that_are_executed_again_and_again_answer_as_in_the_unchanged_driver(
    server: EmbeddedServer, database: str
) -> None:
    as_it_comes = answers("repeated_statements", server, f"{database}_PLAIN", "0")
    lightened = answers("repeated_statements", server, f"{database}_LIGHT", "1")

    assert lightened["said"] == as_it_comes["said"]
    assert as_it_comes["said"]["tags: in history"] == [f"DATABASE{tag}" for tag in (" A", " B", " A", "", " B", " A")]
    assert as_it_comes["said"]["many_texts: 2"] == [[[number + 2]] for number in range(TEXTS)]
    assert max(as_it_comes["growth_kib"], lightened["growth_kib"]) < 100
    if driver.major() == 5:
        plain, light = as_it_comes["calls"], lightened["calls"]
        assert plain["statement_release"] == plain["statement_new"] > 800
        # All that were kept were released, with their connection at the latest; many texts do not fit.
        assert 3 * TEXTS < light["statement_release"] == light["statement_new"] < 3 * TEXTS + 100
        assert TEXTS > driver_patches.KEPT_STATEMENTS
