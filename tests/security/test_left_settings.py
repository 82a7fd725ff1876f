"""`runs recover` alters warehouses by rows of a table: no content of these rows can add another statement."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest

from loadgen.clock import SystemClock
from loadgen.control.tables import experiments
from loadgen.control.tables.experiments import ChangedWarehouse
from loadgen.model.warehouse import WarehouseValue
from loadgen.snowflake.profile_lookup import find_profile
from orchestrator.experiment.warehouse_settings import RestoredWarehouse, restore_left_settings
from orchestrator.warehouse import TargetWarehouse
from tests.control_plane import ControlPlane, retries
from tests.embedded_server import EmbeddedServer

pytestmark = pytest.mark.any_driver

SETTINGS: dict[str, WarehouseValue] = {
    "size": "X-Small",
    "scaling_policy": "STANDARD",
    "max_clusters": 1,
    "min_clusters": 1,
}
ALTERS = re.compile(
    r'ALTER WAREHOUSE "[A-Z0-9_]+" SET'
    r"(?: (?:WAREHOUSE_SIZE = '[A-Za-z0-9-]+'|SCALING_POLICY = '[A-Z]+'|M(?:IN|AX)_CLUSTER_COUNT = -?\d+))+"
)
QUOTES = ("x' COMMENT = 'y", "\\' COMMENT = \\'y", "x'; DROP TABLE RUN_STATUS; --", '"', "", "\x00\x1b[2J", "A" * 200)
OTHERS: tuple[Any, ...] = (None, [], {}, -1, 1e300)
BAD: dict[str, tuple[Any, ...]] = {
    "SETTINGS": (
        *(json.dumps(SETTINGS | {key: text}) for key in SETTINGS for text in QUOTES if "\x00" not in text),
        *(json.dumps(SETTINGS | {key: other}) for key in SETTINGS for other in OTHERS),
        json.dumps({"COMMENT": "x"}),
        "[]",
        "{}",
        "{",
    ),
    "WAREHOUSE": (*(text for text in QUOTES if "\x00" not in text), "W SET COMMENT = 'x'", '"W" SET X = 1 --', "A.B"),
    "WAREHOUSE_KEY": ("warehouse:OTHER/W", "", "x' OR 1=1 --"),
    "CONNECTION": ("other", "x'; --", "../../etc/passwd", ""),
}


@pytest.fixture
def left(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> ChangedWarehouse:
    """A warehouse that an experiment without a process has left changed."""
    for name, value in plane.environ.items():
        monkeypatch.setenv(name, value)
    plane.change("DELETE FROM EXPERIMENT_WAREHOUSES")
    name = f"LEFT_{uuid.uuid4().hex.upper()}"
    plane.change(f"CREATE WAREHOUSE {name} WAREHOUSE_SIZE = 'Large' MAX_CLUSTER_COUNT = 3")
    profile = find_profile("embedded", environ=plane.environ).with_fields("the test", warehouse=f'"{name}"')
    made = ChangedWarehouse(
        experiment_id=uuid.uuid4().hex,
        epoch=1,
        warehouse_key=TargetWarehouse.of_profile(profile).key,
        warehouse=f'"{name}"',
        connection=profile.name,
        settings=SETTINGS,
    )
    experiments.record_warehouse(plane.session, retries(), made)
    return made


def restore(plane: ControlPlane) -> RestoredWarehouse:
    (done,) = restore_left_settings(plane.session, retries(), clock=SystemClock())
    return done


def altered(server: EmbeddedServer, since_ms: float) -> list[str]:
    texts = [line["sql_text"] for line in server.history(since_ms=since_ms)]
    return [text for text in texts if not text.startswith(("SELECT", "SHOW", "INSERT", "UPDATE", "BEGIN", "COMMIT"))]


def test_recorded_settings_are_restored(plane: ControlPlane, left: ChangedWarehouse) -> None:
    done = restore(plane)

    assert done.restored, done.why
    ((size,),) = [[row[3]] for row in plane.rows(f"SHOW WAREHOUSES LIKE '{left.warehouse[1:-1]}'")]
    assert size == "X-Small"


@pytest.mark.parametrize("column", BAD)
def test_no_text_of_a_row_becomes_another_statement(
    plane: ControlPlane, server: EmbeddedServer, left: ChangedWarehouse, column: str
) -> None:
    for text in BAD[column]:
        plane.change(f"UPDATE EXPERIMENT_WAREHOUSES SET {column} = ?", text)
        since_ms = server.ask("/__loadgen/stats")["now_ms"]

        done = restore(plane)

        assert not done.restored, text
        assert done.why
        for sql in altered(server, since_ms):
            assert ALTERS.fullmatch(sql), sql
