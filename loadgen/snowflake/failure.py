"""The meaning of an exception of the driver.

It is decided by the error number, then by SQLSTATE, never by the class alone: the major versions of the driver raise
different classes for the same event, and 4.x lets exceptions of its HTTP library through. The number is the same in
both. Every row of the tables below is tested.
"""

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType

from loadgen.log import printable, redact
from loadgen.model.counts import ErrorCategory
from loadgen.values import dataclass

TEXT_MAX = 2_000  # characters of an error text; a server may send a megabyte

_DRIVER = "snowflake.connector"
_HTTP_LIBRARIES = ("requests", "urllib3", "http.client", f"{_DRIVER}.vendored")


class NotRetried(Exception):
    """The driver was about to send a request again. The context of this exception is the failure.

    Raised by the back-off policy for driver 4.x; see `settings`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The meaning of an exception for the counts, for the session and for retries."""

    category: ErrorCategory
    code: int | None = None  # the error number of the driver or the server
    sqlstate: str | None = None
    query_id: str | None = None
    retryable: bool = False  # the same statement may succeed later; measured statements are never retried
    unknown_outcome: bool = False  # it may have been executed: look up the effect before repeating it
    is_duplicate_key: bool = False  # a primary key or unique constraint rejected the row
    is_lock_conflict: bool = False  # lock timeout, too many waiters, or victim of a deadlock
    session_lost: bool = False  # the connection is not usable any more
    cancelled: bool = False  # by a request of another session
    cut_off: bool = False  # ended while it waited or executed: a success would have taken longer

    @property
    def is_missing_object(self) -> bool:
        """An object does not exist, or the role has no privilege on it; or no current database or schema is set."""
        return self.code in _MISSING_OBJECT or self.has_no_current_database

    @property
    def has_no_current_database(self) -> bool:
        """The session has no current database or schema. A login with a database that does not exist succeeds."""
        return self.code in _NO_DATABASE

    @property
    def is_timeout(self) -> bool:
        """The server ended the statement at its time limit. A repetition would take as long."""
        return self.category is ErrorCategory.QUERY_TIMEOUT

    @property
    def has_no_warehouse(self) -> bool:
        return self.code == _NO_WAREHOUSE

    @property
    def is_existing_object(self) -> bool:
        """CREATE found an object with this name."""
        return self.code == _EXISTING_OBJECT

    @property
    def is_missing_privilege(self) -> bool:
        return self.sqlstate == _NO_PRIVILEGE_STATE or self.code in _NO_PRIVILEGE

    @property
    def is_disk_full(self) -> bool:
        """The disk of the data directory of the embedded server is full."""
        return self.sqlstate == _DISK_FULL


_MISSING_OBJECT = (2003, 2043)
_EXISTING_OBJECT = 2002
_NO_PRIVILEGE, _NO_PRIVILEGE_STATE = range(3_000, 3_100), "42501"
_NO_WAREHOUSE = 606
_NO_DATABASE = (90105, 90106)  # no current database; no current schema
_DISK_FULL = "53100"  # sent with the number of an internal error

_C = ErrorCategory
_NO_ANSWER = Failure(category=_C.CONNECTION, retryable=True, unknown_outcome=True)
_NOT_SENT = Failure(category=_C.CONNECTION, retryable=True)
_SESSION_LOST = Failure(category=_C.CONNECTION, retryable=True, session_lost=True)
_BROKEN = Failure(category=_C.CONNECTION, retryable=True, unknown_outcome=True, session_lost=True)
_LOCKED = Failure(category=_C.SNOWFLAKE_ERROR, retryable=True, is_lock_conflict=True)
_DUPLICATE = Failure(category=_C.SNOWFLAKE_ERROR, is_duplicate_key=True)
_WAITED_FOR_LOCK = replace(_LOCKED, cut_off=True)  # lock timeout, or victim of a deadlock
_TIMED_OUT = Failure(category=_C.QUERY_TIMEOUT, retryable=True, cut_off=True)
_CANCELLED = Failure(category=_C.SNOWFLAKE_ERROR, cancelled=True, cut_off=True)
_CONFIGURATION = Failure(category=_C.CONFIGURATION)
_SERVER = Failure(category=_C.SNOWFLAKE_ERROR)
_INTERNAL = Failure(category=_C.SNOWFLAKE_ERROR, retryable=True, unknown_outcome=True)
_FATAL = Failure(category=_C.FATAL)

# Numbers of driver 5.x, for errors without an answer of the server. The server uses small numbers as well (8: statement
# count), so these apply only without a SQLSTATE of the server.
_BY_KIND = {
    2: _CONFIGURATION,  # not implemented
    3: _CONFIGURATION,  # invalid argument
    4: _NO_ANSWER,  # input or output: reset, refused, HTTP 429 and 5xx with the attempts used up
    5: _CANCELLED,
    6: _NO_ANSWER,  # an invalid answer: truncated, HTML, HTTP 403
    7: _CONFIGURATION,  # missing parameter
    14: _NO_ANSWER,  # no answer within query_timeout, although the limit on the server is shorter
    15: _NO_ANSWER,  # uploading binds to a stage
}

_BY_NUMBER = {
    603: _INTERNAL,  # internal error ("incident")
    604: _CANCELLED,
    _NO_WAREHOUSE: _CONFIGURATION,
    625: _WAITED_FOR_LOCK,  # see also _NOT_QUEUED
    630: _TIMED_OUT,
    **dict.fromkeys(_NO_DATABASE, _CONFIGURATION),
    200001: _DUPLICATE,
    250001: _SESSION_LOST,  # login failed, or a session could not be renewed
    250002: _SESSION_LOST,  # connection is closed
    250003: _NO_ANSWER,  # 4.x: request failed
    251001: _CONFIGURATION,  # no account
    251005: _CONFIGURATION,  # no user
    251006: _CONFIGURATION,  # no password
    251007: _CONFIGURATION,  # invalid value of an option
    251008: _CONFIGURATION,  # invalid private key
    251011: _NOT_SENT,  # 4.x: no connection while logging in
    251012: _NOT_SENT,  # 4.x: HTTP 5xx while logging in
    251013: _CONFIGURATION,  # no OAuth client id
    251017: _CONFIGURATION,  # workload identity settings
    251018: _CONFIGURATION,
    251020: _CONFIGURATION,  # no OAuth client secret
    251021: _CONFIGURATION,
    252006: _SESSION_LOST,  # cursor is closed, because its connection was closed
    252007: _SESSION_LOST,  # session could not be renewed
    252009: _FATAL,  # fetch before execute
    252010: _NO_ANSWER,  # a part of the result could not be downloaded
    252012: _CONFIGURATION,  # binds do not match the statement
    252013: Failure(category=_C.SNOWFLAKE_ERROR, retryable=True),  # result shorter than announced
    255001: _CONFIGURATION,  # a type that cannot be bound
    390110: _SESSION_LOST,
    390111: _SESSION_LOST,  # session does not exist any more
    390112: _SESSION_LOST,  # session expired
    390113: _SESSION_LOST,
    390114: _SESSION_LOST,  # master token expired, after four idle hours
    390115: _SESSION_LOST,
    390195: _SESSION_LOST,
    390400: _SESSION_LOST,
    540001: _SESSION_LOST,  # 4.x: login answered by HTTP 403 (250001 and 290000 added up)
}

_HTTP_NO_EFFECT = (400, 403, 405, 429)  # rejected before execution
_BY_RANGE: tuple[tuple[range, Failure], ...] = (
    (range(900, 3_000), _CONFIGURATION),  # SQL compilation: syntax, unknown object, types
    (_NO_PRIVILEGE, _CONFIGURATION),
    (range(250_000, 252_000), _NO_ANSWER),
    (range(290_000, 291_000), _NO_ANSWER),  # 4.x: 290000 + HTTP status
    (range(580_000, 581_000), _NO_ANSWER),  # 4.x: 290000 twice + HTTP status
    (range(390_000, 395_000), _CONFIGURATION),  # login refused: password, key, token, network policy
)

_BY_SQLSTATE = {
    "57014": _TIMED_OUT,
    "HYT00": _NO_ANSWER,
    "HYT01": _NO_ANSWER,
    "23505": _DUPLICATE,
    _NO_PRIVILEGE_STATE: _CONFIGURATION,
}
_BY_SQLSTATE_CLASS = {
    "08": _BROKEN,
    "28": _CONFIGURATION,
    "42": _CONFIGURATION,
    "0A": _CONFIGURATION,
    "40": _LOCKED,
    "XX": _INTERNAL,
}

# Errors whose numbers Snowflake does not document; used only if number and SQLSTATE are unknown.
_BY_TEXT = (
    ("violates unique constraint", _DUPLICATE),
    ("unaware of concurrent ddl", _LOCKED),
    ("deadlock", _WAITED_FOR_LOCK),
)
_NOT_QUEUED = ("number of waiters", "too many transactions")  # number 625: refused instead of waiting for the lock
_CLIENT_TIMER = "cancelled by the client due to a timeout"  # 4.x, with number 604


def classify(error: BaseException) -> Failure:
    """The meaning of the exception of a statement, connect or fetch."""
    raised, error = error, _real(error)
    if not _is_driver_error(error):
        return _foreign(error) if error is raised else _NO_ANSWER
    number = _number(error)
    sqlstate = _sqlstate(error)
    kind = _kind(number, sqlstate, str(error))
    return replace(kind, code=number, sqlstate=sqlstate, query_id=getattr(error, "sfqid", None))


def describe(error: BaseException) -> str:
    """The error as one line of limited length, without secrets and control characters."""
    error = _real(error)
    text = str(getattr(error, "raw_msg", None) or error)[: 4 * TEXT_MAX]
    if not _is_driver_error(error):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return printable(" ".join(redact(text).split()), TEXT_MAX)  # messages may contain line breaks


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, the nearest first."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        wrapped = current.args[0] if current.args else None  # 4.x's RetryRequest carries its cause as an argument
        waiting += [wrapped, current.__cause__, current.__context__]


def _kind(number: int | None, sqlstate: str | None, text: str) -> Failure:
    if sqlstate == _DISK_FULL:
        return _SERVER  # a retry does not free disk space
    if number == 604 and _CLIENT_TIMER in text:
        return replace(_TIMED_OUT, cancelled=True)
    lowered = text[:TEXT_MAX].lower()
    if number == 625 and any(fragment in lowered for fragment in _NOT_QUEUED):
        return _LOCKED
    if number is not None:
        if number in _BY_KIND and sqlstate in (None, "HYT00"):
            return _BY_KIND[number]
        if number in _BY_NUMBER:
            return _BY_NUMBER[number]
        for numbers, kind in _BY_RANGE:
            if number in numbers:
                refused = numbers.start in (290_000, 580_000) and number - numbers.start in _HTTP_NO_EFFECT
                return _NOT_SENT if refused else kind
    if sqlstate in _BY_SQLSTATE:
        return _BY_SQLSTATE[sqlstate]
    if sqlstate and sqlstate[:2] in _BY_SQLSTATE_CLASS:
        return _BY_SQLSTATE_CLASS[sqlstate[:2]]
    return next((kind for fragment, kind in _BY_TEXT if fragment in lowered), _SERVER)


def _foreign(error: BaseException) -> Failure:
    """The meaning of exceptions that are not classes of the driver."""
    modules = tuple(base.__module__ for base in type(error).__mro__)
    if isinstance(error, OSError) or any(module.startswith(_HTTP_LIBRARIES) for module in modules):
        return _NO_ANSWER
    if isinstance(error, Exception) and not isinstance(error, MemoryError) and _raised_in_driver(error.__traceback__):
        return _NO_ANSWER  # the driver failed on an unexpected answer
    return _FATAL


def _real(error: BaseException) -> BaseException:
    """The failure that was not retried, if the error is NotRetried; else the error."""
    if not isinstance(error, NotRetried):
        return error
    behind = [cause for cause in causes(error) if type(cause).__name__ not in ("NotRetried", "RetryRequest")]
    return behind[0] if behind else error


def _is_driver_error(error: BaseException) -> bool:
    return any(base.__module__ == f"{_DRIVER}.errors" for base in type(error).__mro__)


def _number(error: BaseException) -> int | None:
    number = getattr(error, "errno", None)
    return number if isinstance(number, int) and number >= 0 else None


def _sqlstate(error: BaseException) -> str | None:
    sqlstate = getattr(error, "sqlstate", None)
    return sqlstate if isinstance(sqlstate, str) and sqlstate not in ("", "n/a") else None


def _raised_in_driver(traceback: TracebackType | None) -> bool:
    if traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return str(traceback.tb_frame.f_globals.get("__name__", "")).startswith(_DRIVER)
