"""Lightening the driver: tested versions only, while its names are what they were, unless it is switched off; and the
program that it would run at every login."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from loadgen.rules.comparability import differences
from loadgen.snowflake import driver
from orchestrator.run_result import driver_lightened
from tests.unit.test_compare_settings import SETTING
from tests.unit.test_worker_rows import Measuring


class Cursors:
    """As the driver has it: what a statement asks of the core."""

    def __init__(self, handle: object) -> None:
        self._closed, self._connection = False, SimpleNamespace(conn_handle=handle)
        self.asked = 0

    def is_closed(self) -> bool:
        raise AssertionError("asks the core")

    def _stage_binding_threshold(self) -> int:
        self.asked += 1
        return 4

    def _should_use_csv_binding(self, parameters: Any, threshold: int, query: str = "") -> bool:
        return query.startswith("INSERT") and len(parameters[0]) >= threshold


@pytest.fixture
def internals(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType, ModuleType]:
    """Modules that look like those of the driver."""
    calls, events, cursors = ModuleType("decorators"), ModuleType("api_client"), ModuleType("base")
    cursors.CursorBaseMixin = type("CursorBaseMixin", (), dict(vars(Cursors)))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "snowflake.connector._internal.cursor.base", cursors)
    calls._TRACKING = ContextVar("tracking", default=True)  # type: ignore[attr-defined]
    events._sf_core_level_to_python = lambda level: level  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "snowflake.connector._internal.decorators", calls)
    monkeypatch.setitem(sys.modules, "snowflake.connector._internal.api_client", events)
    monkeypatch.setattr(driver, "version", lambda: "5.2.7")
    monkeypatch.setattr(driver, "_lightened", False)
    return calls, events, cursors


def test_a_tested_driver_is_lightened_and_says_so(internals: tuple[Any, Any, Any]) -> None:
    calls, events, _ = internals

    assert not driver.telemetry_hooks_disabled()
    assert driver.disable_telemetry_hooks({})
    assert driver.telemetry_hooks_disabled()
    assert calls._TRACKING.get() is False
    assert events._sf_core_level_to_python(5) is None
    assert driver.disable_telemetry_hooks({})  # again


@pytest.mark.parametrize("version", ["5.3.0", "5.20.0", "4.8.1", "6.0.0"])
def test_a_version_that_was_not_tested_is_left_as_it_is(
    internals: tuple[Any, Any, Any], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "version", lambda: version)

    assert not driver.disable_telemetry_hooks({})
    assert internals[0]._TRACKING.get() is True


@pytest.mark.parametrize("value", ["0", "false", "NO", "off"])
def test_it_can_be_switched_off(internals: tuple[Any, Any, Any], value: str) -> None:
    assert not driver.disable_telemetry_hooks({"LOADGEN_DRIVER_LIGHTEN": value})
    assert internals[0]._TRACKING.get() is True


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (0, "_TRACKING", True),
        (0, "_TRACKING", None),
        (1, "_sf_core_level_to_python", {}),
        (1, "_sf_core_level_to_python", 7),
        (2, "CursorBaseMixin", None),
        (2, "CursorBaseMixin", type("Renamed", (), {"is_closed": lambda self: False})),
        (2, "CursorBaseMixin", type("Other", (Cursors,), {"is_closed": property(lambda self: False)})),
        (2, "CursorBaseMixin", type("More", (Cursors,), {"is_closed": lambda self, *, now: False})),
    ],
)
def test_names_that_are_something_else_by_now_are_left_alone(
    internals: tuple[Any, Any, Any], module: int, name: str, value: object
) -> None:
    setattr(internals[module], name, value)

    assert not driver.disable_telemetry_hooks({})
    assert getattr(internals[module], name) is value
    assert module == 0 or internals[0]._TRACKING.get() is True


def test_a_cursor_is_closed_with_its_connection_and_its_core_is_not_asked(internals: tuple[Any, Any, Any]) -> None:
    driver.disable_telemetry_hooks({})
    cursor = internals[2].CursorBaseMixin(handle="a handle")

    assert cursor.is_closed() is False
    cursor._connection.conn_handle = None
    assert cursor.is_closed() is True
    other = internals[2].CursorBaseMixin(handle="a handle")
    other._closed = True
    assert other.is_closed() is True


def test_the_limit_for_arrays_is_asked_for_arrays_only(internals: tuple[Any, Any, Any]) -> None:
    driver.disable_telemetry_hooks({})
    cursor = internals[2].CursorBaseMixin(handle="a handle")

    def uses_csv(parameters: Any, query: str = "INSERT") -> bool:
        return bool(cursor._should_use_csv_binding(parameters, cursor._stage_binding_threshold(), query))

    assert not uses_csv((1, "a"))
    assert cursor.asked == 0
    assert not uses_csv([[1, 2, 3]])
    assert uses_csv([[1, 2, 3, 4]])
    assert not uses_csv([[1, 2, 3, 4]], "UPDATE")
    assert cursor.asked == 3


def test_workers_tell_and_the_run_says_what_they_have_in_common() -> None:
    measuring = Measuring()
    row = measuring.result()
    assert json.loads(row.summary)["driver_lightened"] is driver.telemetry_hooks_disabled()

    def rows(*told: object) -> list[Any]:
        return [type(row)(**{**_fields(row), "summary": json.dumps({"driver_lightened": one})}) for one in told]

    assert driver_lightened(rows(True, True)) is True
    assert driver_lightened(rows(False)) is False
    assert driver_lightened(rows(True, False)) == "mixed"
    assert driver_lightened(rows(None)) is None


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in type(row).__slots__}


def test_runs_with_and_without_it_are_not_compared() -> None:
    def setting(**environment: object) -> Any:
        return type(SETTING)(
            config=SETTING.config,
            environment={**SETTING.environment, "driver": "5.2.0", **environment},
            workers=SETTING.workers,
            warehouse_sizes=SETTING.warehouse_sizes,
        )

    assert not differences(setting(), setting(driver_lightened=True))  # older runs do not say so
    (found,) = differences(setting(), setting(driver_lightened=False))
    assert (found.key, found.forbids) == ("environment.driver_lightened", True)


def test_programs_are_found_as_before_but_for_lsb_release() -> None:
    before = driver.user_environment(os.environ)["PATH"]
    environ = {"PATH": before}

    driver.spare_lsb_release(environ)
    driver.spare_lsb_release(environ)

    assert environ["PATH"].endswith(f"{os.pathsep}{before}")
    assert environ["PATH"].count("programs") == before.count("programs") + 1
    assert subprocess.run(["lsb_release", "-a"], env=environ, capture_output=True).returncode == 1
    assert shutil.which("sh", path=environ["PATH"]) == shutil.which("sh", path=before)
    assert driver.user_environment(environ) == {"PATH": before}
