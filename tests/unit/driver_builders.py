"""Classes that look like those of driver 5: they note what a statement asks of the core."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Core:
    """Of a driver: it notes what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fails = False

    def statement_new(self, conn_handle: Any) -> Any:
        self.calls.append(("new", conn_handle))
        return SimpleNamespace(stmt_handle=f"statement {len(self.calls)}")

    def statement_set_query(self, stmt_handle: Any, query: str) -> None:
        self.calls.append(("text", query))

    def statement_release(self, stmt_handle: Any) -> None:
        self.calls.append(("release", stmt_handle))

    def took(self) -> list[tuple[str, Any]]:
        taken, self.calls = self.calls, []
        return taken

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.took()]


class Mixin:
    """As the driver has it: what a statement asks of the core."""

    def __init__(self, connection: Any) -> None:
        self._closed, self._connection, self._statement_parameters = False, connection, dict[str, Any]()
        self._rownumber = 0
        self.asked = 0

    def is_closed(self) -> bool:
        raise AssertionError("asks the core")

    def _stage_binding_threshold(self) -> int:
        self.asked += 1
        return 4

    def _should_use_csv_binding(self, parameters: Any, threshold: int, query: str = "") -> bool:
        return query.startswith("INSERT") and len(parameters[0]) >= threshold

    def _prepare_query(self, operation: str, parameters: Any, _force_qmark_paramstyle: bool = False) -> Any:
        return operation, parameters

    def _build_query_bindings(self, parameters: Any, query: str = "", *, force_json: bool = False) -> Any:
        return repr(parameters)

    def _apply_statement_parameters(self, stmt_handle: Any, statement_parameters: Any = None) -> None:
        self._connection.core.calls.append(("options", statement_parameters))


class SnowflakeCursor(Mixin):
    def execute(
        self,
        operation: str,
        parameters: Any = None,
        *,
        _force_qmark_paramstyle: bool = False,
        _statement_params: Any = None,
        file_stream: Any = None,
    ) -> Any:
        options = {"_force_qmark_paramstyle": _force_qmark_paramstyle, "file_stream": file_stream}
        return self._execute(operation, parameters, None, statement_parameters=_statement_params, **options)

    def _execute(
        self,
        operation: str,
        parameters: Any = None,
        _is_put_get: Any = None,
        *,
        statement_parameters: Any = None,
        _force_qmark_paramstyle: bool = False,
        file_stream: Any = None,
        **kwargs: Any,
    ) -> Any:
        self._connection.core.calls.append(("as it comes", operation))
        return self

    def _execute_query(self, stmt_handle: Any, bindings: Any) -> Any:
        self._connection.core.calls.append(("execute", (stmt_handle, bindings)))
        if self._connection.core.fails:
            raise ValueError("refused")
        return SimpleNamespace(request_id="", single="rows", multi="several", HasField=lambda name: False)

    def _handle_multi_statement_response(self, result: Any, query: Any, request_id: Any) -> None: ...

    def _apply_result_set(self, rs_response: Any, query: Any, request_id: Any = None) -> None: ...


class Connection:
    def __init__(self, core: Core) -> None:
        self.core = core
        self.conn_handle: str | None = "a handle"

    def close(self, retry: bool = True) -> None:
        self.core.calls.append(("close", retry))


class ReaderLog:
    """Of the reader of rows."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def log(
        self,
        level: int,
        msg: str,
        *args: Any,
        path_name: str = "",
        func_name: str = "",
        line_num: int = 0,
        **kwargs: Any,
    ) -> None:
        self.said.append(msg)
