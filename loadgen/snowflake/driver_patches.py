"""Changes to driver 5 that reduce the CPU time of a statement without changing its result.

They replace internal names of the driver. `driver` applies them to tested versions only, and known_patches() returns
them only if all names have the expected types and parameters. `./bin/bench statement --steps` measures each step.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from inspect import signature
from types import FunctionType
from typing import Any

from loadgen.log import event
from loadgen.values import dataclass

log = logging.getLogger(__name__)

KEPT_STATEMENTS = 16  # per connection; the number of texts in a replay is unlimited

_UNTRACKED = ContextVar("loadgen_untracked", default=False)
_CORE_LEVELS = {0: logging.ERROR, 1: logging.WARNING}
_TAG = "QUERY_TAG"
_KEPT = "_loadgen_statements"  # attribute of a connection
_REPEATED = re.compile(r"(?:SELECT|WITH|INSERT|UPDATE|DELETE|MERGE|BEGIN|COMMIT|ROLLBACK)\b", re.IGNORECASE)
_DRIVER = "snowflake.connector"
_CALLS, _EVENTS = f"{_DRIVER}._internal.decorators", f"{_DRIVER}._internal.api_client"
_MIXIN = (f"{_DRIVER}._internal.cursor.base", "CursorBaseMixin")
_CURSOR = (f"{_DRIVER}.cursor._base", "SnowflakeCursorBase")
_CONNECTION = (f"{_DRIVER}.connection._connection", "Connection")
_CORE = (f"{_DRIVER}._internal.api_client.client_api", "CoreDriver")
_READER_LOG = (f"{_DRIVER}._internal.logging.native_extension_logger", "NativeExtensionLogger")
_METHODS: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    _MIXIN: {
        "is_closed": ("self",),
        "_stage_binding_threshold": ("self",),
        "_should_use_csv_binding": ("self", "parameters", "threshold", "query"),
        "_prepare_query": ("self", "operation", "parameters", "_force_qmark_paramstyle"),
        "_build_query_bindings": ("self", "parameters", "query", "force_json"),
        "_apply_statement_parameters": ("self", "stmt_handle", "statement_parameters"),
    },
    _CURSOR: {
        "_execute": (
            *("self", "operation", "parameters", "_is_put_get"),
            *("statement_parameters", "_force_qmark_paramstyle", "file_stream", "kwargs"),
        ),
        "_execute_query": ("self", "stmt_handle", "bindings"),
        "_handle_multi_statement_response": ("self", "result", "query", "request_id"),
        "_apply_result_set": ("self", "rs_response", "query", "request_id"),
    },
    _CONNECTION: {"close": ("self", "retry")},
    _READER_LOG: {"log": ("self", "level", "msg", "args", "path_name", "func_name", "line_num", "kwargs")},
    _CORE: {
        "statement_new": ("self", "conn_handle"),
        "statement_set_query": ("self", "stmt_handle", "query"),
        "statement_release": ("self", "stmt_handle"),
    },
}


@dataclass(frozen=True, slots=True)
class DriverPatch:
    """A name of the driver, and its new value."""

    owner: Any
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class PatchGroup:
    """Patches that belong together."""

    title: str
    patches: tuple[DriverPatch, ...]


def apply(groups: Sequence[PatchGroup]) -> None:
    for group in groups:
        for patch in group.patches:
            setattr(patch.owner, patch.name, patch.value)


def known_patches(modules: Mapping[str, Any]) -> tuple[PatchGroup, ...]:
    """All patches for an unchanged driver; none if a name has an unexpected type or parameters."""
    found = {place: getattr(modules.get(place[0]), place[1], None) for place in _METHODS}
    calls, events, cursors = (modules.get(name) for name in (_CALLS, _EVENTS, _CURSOR[0]))
    core, texts = getattr(modules.get(_CORE[0]), "core_driver", None), getattr(cursors, "logger", None)
    tracking, level = getattr(calls, "_TRACKING", None), getattr(events, "_sf_core_level_to_python", None)
    if (
        not isinstance(tracking, ContextVar)
        or not isinstance(level, FunctionType)
        or not all(_has_methods(owner, _METHODS[place]) for place, owner in found.items())
        or not isinstance(core, found[_CORE])  # type: ignore[arg-type]
        or not callable(getattr(texts, "is_enabled_for", None))
    ):
        return ()
    mixin, cursor, connection = found[_MIXIN], found[_CURSOR], found[_CONNECTION]
    return (
        PatchGroup(
            "telemetry and events that are not read",
            # The level None drops an event.
            (
                DriverPatch(calls, "_TRACKING", _UNTRACKED),
                DriverPatch(events, "_sf_core_level_to_python", _CORE_LEVELS.get),
                _warnings_only(found[_READER_LOG]),
            ),
        ),
        PatchGroup("the question whether the connection is closed", (DriverPatch(mixin, "is_closed", _is_closed),)),
        PatchGroup("the limit for arrays of values, where there is none", _limit_for_arrays_only(mixin)),
        PatchGroup("statements of the core used again", _statements_used_again(cursor, connection, core, texts)),
    )


def _has_methods(owner: object, methods: Mapping[str, tuple[str, ...]]) -> bool:
    found = {name: getattr(owner, name, None) for name in methods}
    return isinstance(owner, type) and all(
        isinstance(one, FunctionType) and tuple(signature(one).parameters) == methods[name]
        for name, one in found.items()
    )


def _warnings_only(reader_log: Any) -> DriverPatch:
    """The reader of rows logs four debug messages per result, which driver.limit_driver_logging() would drop."""
    log_any = reader_log.log

    def log_warnings(self: Any, level: Any, *arguments: Any, **options: Any) -> None:
        if type(level) is not int or level >= logging.WARNING:
            log_any(self, level, *arguments, **options)

    return DriverPatch(reader_log, "log", log_warnings)


def _is_closed(self: Any) -> bool:
    # Only Connection.close() closes a connection in the core, after it has removed the handle.
    return bool(self._closed) or self._connection.conn_handle is None


def _limit_for_arrays_only(mixin: Any) -> tuple[DriverPatch, ...]:
    threshold_of, uses_csv = mixin._stage_binding_threshold, mixin._should_use_csv_binding

    def no_threshold(self: Any) -> int:
        return 0

    def should_use_csv_binding(self: Any, parameters: Any, threshold: int, query: str = "") -> bool:
        if isinstance(parameters, (tuple, list)) and not any(isinstance(value, list) for value in parameters):
            return False
        return bool(uses_csv(self, parameters, threshold_of(self), query))

    return (
        DriverPatch(mixin, "_stage_binding_threshold", no_threshold),
        DriverPatch(mixin, "_should_use_csv_binding", should_use_csv_binding),
    )


class StatementReuse:
    """Statement objects of the core that a connection reuses, by text and QUERY_TAG.

    take() removes an object during an execution, and keep() returns it, so two threads never execute the same one. Each
    operation on the dictionary is atomic.
    """

    __slots__ = ("_closed", "_kept", "_release")

    def __init__(self, release: Callable[..., Any]) -> None:
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._release = release
        self._closed = False

    def take(self, text: str, tag: str) -> Any:
        return self._kept.pop((text, tag), None)

    def keep(self, text: str, tag: str, handle: Any) -> None:
        same = self._kept.pop((text, tag), None)  # returned by another thread
        self._kept[text, tag] = handle
        if same is not None:
            self._release(stmt_handle=same)
        if len(self._kept) > KEPT_STATEMENTS:
            self._drop_oldest()
        if self._closed:
            self.close()

    def close(self) -> None:
        """Release all objects, also those that are returned later."""
        self._closed = True
        while self._kept:
            try:
                self._drop_oldest()
            except Exception as error:  # a failed release must not prevent the close
                event(log, logging.DEBUG, "release_failed", what=type(error).__name__)

    def _drop_oldest(self) -> None:
        try:
            _, handle = self._kept.popitem(last=False)
        except KeyError:  # another thread was faster
            return
        self._release(stmt_handle=handle)


def _statements_used_again(cursor: Any, connection: Any, core: Any, texts: Any) -> tuple[DriverPatch, ...]:
    """A statement object of the core contains the text and options, but no state of an execution: bind values, limits,
    tokens and results are elsewhere. So it is kept for the next execution, unless it failed."""
    execute_once, close_connection = cursor._execute, connection.close

    def _execute(self: Any, operation: Any, parameters: Any = None, _is_put_get: Any = None, **options: Any) -> Any:
        tag = _tag_alone(self, options)
        text = operation.strip(" \t\n\r") if type(operation) is str else ""
        if tag is None or not _REPEATED.match(text) or _is_array(parameters) or texts.is_enabled_for(logging.INFO):
            return execute_once(self, operation, parameters, _is_put_get, **options)
        text, values = self._prepare_query(text, parameters)
        response = _executed(self, core, text, tag, values)
        request_id = response.request_id or None
        if response.HasField("multi"):
            self._handle_multi_statement_response(response.multi, text, request_id)
        else:
            self._apply_result_set(response.single, text, request_id)
        self._rownumber = -1
        return self

    def close(self: Any, *arguments: Any, **options: Any) -> Any:
        kept = vars(self).get(_KEPT)
        if kept is not None:
            kept.close()
        return close_connection(self, *arguments, **options)

    return DriverPatch(cursor, "_execute", _execute), DriverPatch(connection, "close", close)


def _executed(cursor: Any, core: Any, text: str, tag: str, values: Any) -> Any:
    connection = cursor._connection
    kept: StatementReuse = vars(connection).get(_KEPT) or vars(connection).setdefault(
        _KEPT, StatementReuse(core.statement_release)
    )
    handle = kept.take(text, tag)
    used_before = handle is not None
    if not used_before:
        handle = core.statement_new(conn_handle=connection.conn_handle).stmt_handle
    try:
        if not used_before:
            core.statement_set_query(stmt_handle=handle, query=text)
            cursor._apply_statement_parameters(handle, {_TAG: tag} if tag else None)
        bindings = cursor._build_query_bindings(values, text) if values is not None else None
        response = cursor._execute_query(handle, bindings)
    except BaseException:
        core.statement_release(stmt_handle=handle)
        raise
    kept.keep(text, tag, handle)
    return response


def _tag_alone(cursor: Any, options: dict[str, Any]) -> str | None:
    """The QUERY_TAG, or "" without one; None if there is any other option."""
    parameters = options.get("statement_parameters") or {}
    others = any(value for name, value in options.items() if name != "statement_parameters")
    if others or cursor._statement_parameters or len(parameters) > 1:
        return None
    tag = parameters.get(_TAG) if parameters else ""
    return tag if type(tag) is str and (tag or not parameters) else None


def _is_array(parameters: Any) -> bool:
    """Values for several rows, or of a type that only the driver handles."""
    return parameters is not None and (type(parameters) not in (tuple, list) or list in map(type, parameters))
