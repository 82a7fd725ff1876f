"""Lightening the driver: tested versions only, while its names are what they were, unless it is switched off; and the
program that it would run at every login."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.rules.comparability import differences
from loadgen.snowflake import driver, driver_patches
from orchestrator.run_result import driver_lightened
from tests.unit.driver_builders import Connection, Core, Mixin, ReaderLog, SnowflakeCursor
from tests.unit.test_compare_settings import SETTING
from tests.unit.test_worker_rows import Measuring


@pytest.fixture
def internals(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Modules that look like those of the driver."""
    core = Core()
    mixin = type("CursorBaseMixin", (Mixin,), {})
    cursor = type("SnowflakeCursorBase", (mixin,), dict(vars(SnowflakeCursor)))
    found = SimpleNamespace(
        calls=SimpleNamespace(_TRACKING=ContextVar("tracking", default=True)),
        events=SimpleNamespace(_sf_core_level_to_python=lambda level: level),
        mixins=SimpleNamespace(CursorBaseMixin=mixin),
        cursors=SimpleNamespace(
            SnowflakeCursorBase=cursor, logger=SimpleNamespace(is_enabled_for=lambda level: level >= logging.WARNING)
        ),
        connections=SimpleNamespace(Connection=type("Connection", (Connection,), {})),
        core=SimpleNamespace(CoreDriver=Core, core_driver=core),
        reader=SimpleNamespace(NativeExtensionLogger=type("NativeExtensionLogger", (ReaderLog,), {})),
    )
    for name, module in {
        "_internal.decorators": found.calls,
        "_internal.api_client": found.events,
        "_internal.cursor.base": found.mixins,
        "cursor._base": found.cursors,
        "connection._connection": found.connections,
        "_internal.api_client.client_api": found.core,
        "_internal.logging.native_extension_logger": found.reader,
    }.items():
        monkeypatch.setitem(sys.modules, f"snowflake.connector.{name}", module)
    monkeypatch.setattr(driver, "version", lambda: "5.2.7")
    monkeypatch.setattr(driver, "_lightened", False)
    return found


@pytest.fixture
def cursor(internals: SimpleNamespace) -> Any:
    """One of a driver that was lightened."""
    assert driver.disable_telemetry_hooks({})
    connection = internals.connections.Connection(internals.core.core_driver)
    return internals.cursors.SnowflakeCursorBase(connection)


def test_a_tested_driver_is_lightened_and_reports_it(internals: SimpleNamespace) -> None:
    assert not driver.telemetry_hooks_disabled()
    assert driver.disable_telemetry_hooks({})
    assert driver.telemetry_hooks_disabled()
    assert internals.calls._TRACKING.get() is False
    assert internals.events._sf_core_level_to_python(5) is None
    reader = internals.reader.NativeExtensionLogger()
    for level in (logging.DEBUG, logging.WARNING, logging.ERROR):
        reader.log(level, f"{level}", path_name="reader.cpp")
    assert reader.said == ["30", "40"]
    assert driver.disable_telemetry_hooks({})  # again


@pytest.mark.parametrize("version", ["5.3.0", "5.20.0", "4.8.1", "6.0.0"])
def test_a_version_that_was_not_tested_is_left_as_it_is(
    internals: SimpleNamespace, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "version", lambda: version)

    assert not driver.disable_telemetry_hooks({})
    assert internals.calls._TRACKING.get() is True


@pytest.mark.parametrize("value", ["0", "false", "NO", "off"])
def test_lightening_can_be_disabled(internals: SimpleNamespace, value: str) -> None:
    assert not driver.disable_telemetry_hooks({"LOADGEN_DRIVER_LIGHTEN": value})
    assert internals.calls._TRACKING.get() is True


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("calls", "_TRACKING", True),
        ("events", "_sf_core_level_to_python", {}),
        ("mixins", "CursorBaseMixin", None),
        ("mixins", "CursorBaseMixin", type("Renamed", (), {"is_closed": lambda self: False})),
        ("mixins", "CursorBaseMixin", type("Other", (Mixin,), {"is_closed": property(lambda self: False)})),
        ("mixins", "CursorBaseMixin", type("More", (Mixin,), {"is_closed": lambda self, *, now: False})),
        ("cursors", "SnowflakeCursorBase", type("Other", (SnowflakeCursor,), {"_execute": lambda self: None})),
        ("cursors", "logger", None),
        ("connections", "Connection", type("More", (Connection,), {"close": lambda self, retry, now: None})),
        ("core", "CoreDriver", type("Less", (), {})),
        ("core", "core_driver", SimpleNamespace()),
    ],
)
def test_names_that_are_something_else_by_now_are_left_alone(
    internals: SimpleNamespace, module: str, name: str, value: object
) -> None:
    setattr(getattr(internals, module), name, value)

    assert not driver.disable_telemetry_hooks({})
    assert getattr(getattr(internals, module), name) is value
    assert module == "calls" or internals.calls._TRACKING.get() is True


def test_a_cursor_is_closed_with_its_connection_and_its_core_is_not_asked(cursor: Any) -> None:
    assert cursor.is_closed() is False
    cursor._connection.conn_handle = None
    assert cursor.is_closed() is True
    cursor._connection.conn_handle, cursor._closed = "a handle", True
    assert cursor.is_closed() is True


def test_the_limit_for_arrays_is_asked_for_arrays_only(cursor: Any) -> None:
    def uses_csv(parameters: Any, query: str = "INSERT") -> bool:
        return bool(cursor._should_use_csv_binding(parameters, cursor._stage_binding_threshold(), query))

    assert not uses_csv((1, "a"))
    assert cursor.asked == 0
    assert not uses_csv([[1, 2, 3]])
    assert uses_csv([[1, 2, 3, 4]])
    assert not uses_csv([[1, 2, 3, 4]], "UPDATE")
    assert cursor.asked == 3


def test_a_text_is_given_to_the_core_once_and_its_values_each_time(cursor: Any) -> None:
    core = cursor._connection.core
    for number in range(3):
        cursor.execute(" SELECT ?\n", (number,), _statement_params={"QUERY_TAG": "a"})

    executed = [("execute", ("statement 1", f"({number},)")) for number in range(3)]
    text, options = ("text", "SELECT ?"), ("options", {"QUERY_TAG": "a"})
    assert core.took() == [("new", "a handle"), text, options, *executed]

    cursor.execute("SELECT ?", (3,), _statement_params={"QUERY_TAG": "b"})
    cursor.execute("SELECT ?", (4,))
    assert core.names == ["new", "text", "options", "execute"] * 2


def test_a_statement_that_failed_is_released(cursor: Any) -> None:
    core = cursor._connection.core
    cursor.execute("SELECT 1")
    core.took()

    core.fails = True
    with pytest.raises(ValueError, match="refused"):
        cursor.execute("SELECT 1")
    assert core.names == ["execute", "release"]

    core.fails = False
    cursor.execute("SELECT 1")
    assert core.names == ["new", "text", "options", "execute"]


@pytest.mark.parametrize(
    ("text", "values", "options"),
    [
        ("PUT file://a @~", None, {}),
        ("GET @~ file://a", None, {}),
        ("ALTER SESSION SET TIMEZONE = 'UTC'", None, {}),
        ("INSERT INTO T VALUES (?)", ([1, 2],), {}),
        ("SELECT ?", {"a": 1}, {}),
        ("SELECT ?", (1,), {"_force_qmark_paramstyle": True}),
        ("SELECT 1", None, {"_statement_params": {"MULTI_STATEMENT_COUNT": 2}}),
        ("SELECT 1", None, {"_statement_params": {"QUERY_TAG": "a", "LOCK_TIMEOUT": 2}}),
        ("SELECT 1", None, {"_statement_params": {"QUERY_TAG": 7}}),
        ("SELECT 1", None, {"file_stream": object()}),
    ],
)
def test_anything_else_is_executed_as_it_comes(cursor: Any, text: str, values: Any, options: dict[str, Any]) -> None:
    for _ in range(2):
        cursor.execute(text, values, **options)

    assert cursor._connection.core.took() == [("as it comes", text)] * 2


def test_parameters_that_a_cursor_keeps_and_a_log_of_texts_too(cursor: Any, internals: SimpleNamespace) -> None:
    cursor._statement_parameters = {"MULTI_STATEMENT_COUNT": 2}
    cursor.execute("SELECT 1")
    cursor._statement_parameters = {}
    internals.cursors.logger.is_enabled_for = lambda level: True
    cursor.execute("SELECT 1")

    assert cursor._connection.core.names == ["as it comes"] * 2


def test_only_the_last_texts_are_kept_and_released_before_their_connection(cursor: Any) -> None:
    core, kept = cursor._connection.core, driver_patches.KEPT_STATEMENTS
    for number in range(kept + 3):
        cursor.execute(f"SELECT {number}")
    assert [name for name in core.names if name == "release"] == ["release"] * 3

    cursor.execute("SELECT 3")  # is there, and is the last one from now on
    cursor.execute("SELECT 0")
    cursor.execute("SELECT 3")
    assert core.names == ["execute", "new", "text", "options", "execute", "release", "execute"]

    cursor._connection.close()
    cursor._connection.close(retry=False)
    assert core.names == ["release"] * kept + ["close"] * 2


def test_a_statement_that_ends_after_its_connection_was_closed_is_released() -> None:
    released: list[str] = []
    statements = driver_patches.StatementReuse(lambda *, stmt_handle: released.append(stmt_handle))
    statements.keep("SELECT 1", "", "first")
    assert statements.take("SELECT 1", "") == "first"
    assert statements.take("SELECT 1", "") is None  # of another thread, which makes one for itself
    statements.keep("SELECT 1", "", "second")
    statements.keep("SELECT 1", "", "first")
    assert released == ["second"]

    assert statements.take("SELECT 1", "") == "first"
    statements.close()
    statements.keep("SELECT 1", "", "first")
    assert released == ["second", "first"]


def test_a_statement_that_cannot_be_released_keeps_no_connection_open() -> None:
    asked: list[str] = []

    def refuse(*, stmt_handle: str) -> None:
        asked.append(stmt_handle)
        raise ValueError(stmt_handle)

    statements = driver_patches.StatementReuse(refuse)
    for handle in ("first", "second"):
        statements.keep(f"SELECT {handle}", "", handle)
    statements.close()
    assert asked == ["first", "second"]


def test_workers_report_it_and_the_run_has_what_they_have_in_common() -> None:
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

    assert not differences(setting(), setting(driver_lightened=True))  # older runs do not report it
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
