"""Logins and sessions: the password file, login requests, session parameters, and the transaction of a session."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import secrets
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson

from loadgen.embedded.backend_pool import Backend
from loadgen.embedded.datadir import PASSWORD_FILE, read_private
from loadgen.embedded.result import is_number
from loadgen.embedded.sql_errors import SqlError, compilation
from loadgen.embedded.statement_history import StatementContext
from loadgen.embedded.translate.parser import TokenReader, tokens_of
from loadgen.errors import EmbeddedServerError
from loadgen.files import open_private
from loadgen.log import Secret
from loadgen.values import dataclass

# --- parameters -------------------------------------------------------------------------------------------------------

Value = bool | int | str


@dataclass(frozen=True, slots=True)
class SessionParameter:
    name: str
    default: Value
    low: int = 0
    high: int = 2**31
    description: str = ""


_WEEK_S = 604_800

_LIST = (
    SessionParameter(
        "ABORT_DETACHED_QUERY", False, description="abort statements of a disconnected client after 5 minutes"
    ),
    SessionParameter("AUTOCOMMIT", True, description="each statement is its own transaction"),
    SessionParameter("BINARY_INPUT_FORMAT", "HEX"),
    SessionParameter("BINARY_OUTPUT_FORMAT", "HEX"),
    SessionParameter("CLIENT_METADATA_REQUEST_USE_CONNECTION_CTX", False),
    SessionParameter("CLIENT_PREFETCH_THREADS", 4, 1, 10),
    SessionParameter("CLIENT_RESULT_CHUNK_SIZE", 160, 16, 160),
    SessionParameter("CLIENT_RESULT_PREFETCH_SLOTS", 2, 1, 100),
    SessionParameter("CLIENT_RESULT_PREFETCH_THREADS", 1, 1, 100),
    SessionParameter("CLIENT_SESSION_CLONE", False),
    SessionParameter("CLIENT_SESSION_KEEP_ALIVE", False),
    SessionParameter("CLIENT_SESSION_KEEP_ALIVE_HEARTBEAT_FREQUENCY", 3600, 900, 3600),
    SessionParameter("CLIENT_STAGE_ARRAY_BINDING_THRESHOLD", 0, description="0: array binds never go through a stage"),
    SessionParameter("CLIENT_TELEMETRY_ENABLED", True),
    SessionParameter("CLIENT_TELEMETRY_SESSIONLESS_ENABLED", False),
    SessionParameter("CLIENT_TIMESTAMP_TYPE_MAPPING", "TIMESTAMP_LTZ"),
    SessionParameter("DATE_INPUT_FORMAT", "AUTO"),
    SessionParameter("DATE_OUTPUT_FORMAT", "YYYY-MM-DD"),
    SessionParameter("ENABLE_UNLOAD_PHYSICAL_TYPE_OPTIMIZATION", True),
    SessionParameter("ERROR_ON_NONDETERMINISTIC_MERGE", True),
    SessionParameter("ERROR_ON_NONDETERMINISTIC_UPDATE", False),
    SessionParameter("GEOGRAPHY_OUTPUT_FORMAT", "GeoJSON"),
    SessionParameter("HYBRID_TABLE_LOCK_TIMEOUT", 3600, 0, _WEEK_S, "seconds a statement waits for a row lock"),
    SessionParameter("JDBC_QUERY_RESULT_FORMAT", "JSON"),
    SessionParameter("JSON_INDENT", 2, 0, 16),
    SessionParameter("LOCK_TIMEOUT", 43_200, 0, _WEEK_S, "seconds a statement waits for a table lock"),
    SessionParameter("MULTI_STATEMENT_COUNT", 1, 0, 1),
    SessionParameter("ODBC_QUERY_RESULT_FORMAT", "JSON"),
    SessionParameter("PYTHON_CONNECTOR_QUERY_RESULT_FORMAT", "JSON"),
    SessionParameter("PYTHON_CONNECTOR_USE_NANOARROW", True),
    SessionParameter("QUERY_TAG", "", 0, 2000),
    SessionParameter("QUOTED_IDENTIFIERS_IGNORE_CASE", False),
    SessionParameter("READ_LATEST_WRITES", False),
    SessionParameter("ROWS_PER_RESULTSET", 0),
    SessionParameter("STATEMENT_QUEUED_TIMEOUT_IN_SECONDS", 0, 0, _WEEK_S),
    SessionParameter("STATEMENT_TIMEOUT_IN_SECONDS", 172_800, 0, _WEEK_S),
    SessionParameter("STRICT_JSON_OUTPUT", False),
    SessionParameter("TIMESTAMP_DAY_IS_ALWAYS_24H", False),
    SessionParameter("TIMESTAMP_INPUT_FORMAT", "AUTO"),
    SessionParameter("TIMESTAMP_LTZ_OUTPUT_FORMAT", ""),
    SessionParameter("TIMESTAMP_NTZ_OUTPUT_FORMAT", "YYYY-MM-DD HH24:MI:SS.FF3"),
    SessionParameter("TIMESTAMP_OUTPUT_FORMAT", "YYYY-MM-DD HH24:MI:SS.FF3 TZHTZM"),
    SessionParameter("TIMESTAMP_TYPE_MAPPING", "TIMESTAMP_NTZ"),
    SessionParameter("TIMESTAMP_TZ_OUTPUT_FORMAT", ""),
    SessionParameter("TIMEZONE", "America/Los_Angeles"),
    SessionParameter("TIME_INPUT_FORMAT", "AUTO"),
    SessionParameter("TIME_OUTPUT_FORMAT", "HH24:MI:SS"),
    SessionParameter("TRANSACTION_ABORT_ON_ERROR", False),
    SessionParameter("TRANSACTION_DEFAULT_ISOLATION_LEVEL", "READ COMMITTED"),
    SessionParameter("TWO_DIGIT_CENTURY_START", 1970, 1900, 2100),
    SessionParameter("UNSUPPORTED_DDL_ACTION", "ignore"),
    SessionParameter("USE_CACHED_RESULT", True),
    SessionParameter("WEEK_OF_YEAR_POLICY", 0, 0, 1),
    SessionParameter("WEEK_START", 0, 0, 7),
)
PARAMETERS: dict[str, SessionParameter] = {parameter.name: parameter for parameter in _LIST}
DEFAULTS: dict[str, Value] = {parameter.name: parameter.default for parameter in _LIST}
# Parameters that change the formats of input or output; this server supports their defaults only.
_FIXED = {
    "BINARY_OUTPUT_FORMAT", "BINARY_INPUT_FORMAT", "MULTI_STATEMENT_COUNT", "TIMESTAMP_TYPE_MAPPING",
    "QUOTED_IDENTIFIERS_IGNORE_CASE", "ROWS_PER_RESULTSET", "TRANSACTION_DEFAULT_ISOLATION_LEVEL",
    "CLIENT_STAGE_ARRAY_BINDING_THRESHOLD", "PYTHON_CONNECTOR_QUERY_RESULT_FORMAT", "JDBC_QUERY_RESULT_FORMAT",
    "ODBC_QUERY_RESULT_FORMAT",
}  # fmt: skip


def checked(name: str, value: Any) -> Value:
    """The value converted to the parameter's type. Raises Snowflake's error for an invalid name or value."""
    parameter = PARAMETERS.get(name)
    if parameter is None:
        raise compilation(1006, "22023", f"invalid parameter '{name}'")
    typed = _typed(parameter, value)
    if name == "TIMEZONE":
        typed = _zone(str(typed))
    if name in _FIXED and typed != parameter.default:
        raise SqlError(2, "0A000", f"SQL compilation error:\nUnsupported feature '{name} = {value}'.")
    return typed


def _typed(parameter: SessionParameter, value: Any) -> Value:
    text = str(value).strip()
    if isinstance(parameter.default, bool):
        if text.upper() in ("TRUE", "ON", "1", "YES"):
            return True
        if text.upper() in ("FALSE", "OFF", "0", "NO"):
            return False
    elif isinstance(parameter.default, int):
        if is_number(text) and parameter.low <= int(text) <= parameter.high:
            return int(text)
    elif parameter.name != "QUERY_TAG" or len(str(value)) <= parameter.high:
        return str(value)
    raise compilation(1008, "22023", f"invalid value [{text[:100]}] for parameter '{parameter.name}'")


def _zone(text: str) -> str:
    try:
        return str(ZoneInfo(text).key)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise compilation(1008, "22023", f"invalid value ['{text[:100]}'] for parameter 'TIMEZONE'") from None


# --- passwords --------------------------------------------------------------------------------------------------------

PASSWORD_BYTES = 32  # random bytes, stored in hexadecimal


class Authenticator:
    """Checks passwords; without a password every login is accepted."""

    def __init__(self, password: Secret | None = None) -> None:
        self._password = password.reveal().encode() if password is not None else None

    def accepts(self, *credentials: object) -> bool:
        """Whether one of the credentials of a login is the password."""
        given = [text for text in credentials if isinstance(text, str)]
        return self._password is None or any(self._is_password(text) for text in given)

    def accepts_basic(self, token: str) -> bool:
        """Whether a request to `/__loadgen/…` is authorized; `token` is the text after `Basic`."""
        if self._password is None:
            return True
        try:
            pair = base64.b64decode(token, validate=True).decode()
        except (binascii.Error, ValueError):
            return False
        return self._is_password(pair.partition(":")[2])

    @property
    def is_enabled(self) -> bool:
        return self._password is not None

    def _is_password(self, text: str) -> bool:
        assert self._password is not None
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._password)


def load_or_create_password(folder: Path) -> Secret:
    """The password in the folder's file, which is created if missing. This process owns the folder."""
    path = folder / PASSWORD_FILE
    with suppress(FileExistsError), open(path, "x", encoding="ascii", opener=open_private) as file:
        file.write(secrets.token_hex(PASSWORD_BYTES) + "\n")
    return _read_password(path)


def _read_password(path: Path) -> Secret:
    remedy = f"Remove {path}: the next start creates a new one."
    text = read_private(path, "password file", 1_000, remedy).strip()
    if len(text) != 2 * PASSWORD_BYTES or not text.isalnum():
        raise EmbeddedServerError(f"the password file {path} contains no password", remedy=remedy)
    return Secret(text.decode("ascii"))


# --- login requests ---------------------------------------------------------------------------------------------------

DEFAULT_ROLE = "ACCOUNTADMIN"
DEFAULT_WAREHOUSE = "COMPUTE_WH"
LOGIN_REJECTED = SqlError(390100, "08001", "Incorrect username or password was specified.")
_CREDENTIALS = ("PASSWORD", "TOKEN", "RAW_SAML_RESPONSE", "PASSCODE")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRequest:
    """A parsed login request."""

    user: str
    role: str
    database: str | None
    schema: str | None
    warehouse: str | None
    session_parameters: dict[str, Value] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)


def read_login_request(
    message: dict[str, Any], query: dict[str, list[str]], authenticator: Authenticator
) -> LoginRequest:
    """Parse and authenticate a login. One without credentials is rejected even if passwords are not checked."""
    data = message.get("data") or {}
    if not isinstance(data, dict):
        raise LOGIN_REJECTED
    user = str(data.get("LOGIN_NAME") or "")
    oauth = str(data.get("AUTHENTICATOR") or "").upper() in ("OAUTH", "WORKLOAD_IDENTITY")
    if not any(data.get(name) for name in _CREDENTIALS) or not (user or oauth):
        raise LOGIN_REJECTED
    if not authenticator.accepts(data.get("PASSWORD"), data.get("TOKEN")):
        raise LOGIN_REJECTED
    given = data.get("SESSION_PARAMETERS") or {}
    if not isinstance(given, dict):
        raise SqlError(390101, "08001", "SESSION_PARAMETERS is not an object.")
    return LoginRequest(
        user=(user or "SERVICE").upper(),
        role=_name(query, "roleName") or DEFAULT_ROLE,
        database=_name(query, "databaseName"),
        schema=_name(query, "schemaName"),
        warehouse=_name(query, "warehouse"),
        session_parameters=_known_parameters(given),
        client={"app": data.get("CLIENT_APP_ID"), "version": data.get("CLIENT_APP_VERSION")},
    )


def _known_parameters(given: dict[str, Any]) -> dict[str, Value]:
    """The parameters that the server has, checked; other settings of drivers are ignored."""
    found: dict[str, Value] = {}
    for key, value in given.items():
        name = str(key).upper()
        if name in PARAMETERS and value is not None:
            found[name] = checked(name, value)
    return found


def _name(query: dict[str, list[str]], parameter: str) -> str | None:
    values = query.get(parameter)
    return stored_name(values[0]) if values and values[0] else None


def stored_name(text: str) -> str:
    """An identifier of a login or a warehouse model, upper-cased unless quoted. Raises SqlError."""
    if not (text.startswith('"') or text.replace("_", "a").replace("$", "a").isalnum()):
        return text  # a name with special characters is used as it is
    return TokenReader(text, tokens_of(text)).name()


# --- sessions ---------------------------------------------------------------------------------------------------------

SESSIONS_MAX = 5_000
IDLE_TRANSACTION_S = 300.0
CROWDED_TRANSACTION_S = 30.0  # if other transactions wait for a backend
REPLIES_KEPT = 16  # per session: a repeated request gets the first answer and is not executed again
REPLY_BYTES_KEPT = 1 << 16  # maximum size of one
REPLIES_BYTES_KEPT = 1 << 17  # of all replies of a session
SENT_PARAMETERS = (
    "TIMEZONE", "AUTOCOMMIT", "TIMESTAMP_OUTPUT_FORMAT", "TIMESTAMP_NTZ_OUTPUT_FORMAT", "TIMESTAMP_LTZ_OUTPUT_FORMAT",
    "TIMESTAMP_TZ_OUTPUT_FORMAT", "DATE_OUTPUT_FORMAT", "TIME_OUTPUT_FORMAT", "BINARY_OUTPUT_FORMAT",
)  # fmt: skip


@dataclass(slots=True)
class Transaction:
    """An open transaction and the backend that holds it."""

    number: int
    backend: Backend
    name: str
    started_ms: float
    touched_s: float  # monotonic time of the last use
    hybrid: bool = False
    lost: bool = False  # rolled back by the server; the session has to send ROLLBACK or COMMIT
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # serializes the statements of the transaction

    def is_abandoned(self, now_s: float, *, crowded: bool) -> bool:
        """Whether it has been idle too long while it blocks others: by row locks, or if `crowded` by its backend."""
        if self.lost or self.lock.locked():
            return False
        idle_s = now_s - self.touched_s
        return (self.hybrid and idle_s > IDLE_TRANSACTION_S) or (crowded and idle_s > CROWDED_TRANSACTION_S)


class ServerSession:
    """A session, from login to logout."""

    def __init__(self, number: int, user: str, role: str, client: dict[str, Any]) -> None:
        self.number = number
        self.user = user
        self.role = role
        self.client = client
        self.token = secrets.token_hex(32)
        self.master_token = secrets.token_hex(32)
        self.expired = False  # the client has to renew the session token with the master token
        self.database: str | None = None
        self.schema: str | None = None
        self.warehouse: str | None = None
        self.warehouse_size: str | None = None
        self.parameters: dict[str, Value] = {}
        self.transaction: Transaction | None = None
        self.last_query_id: str | None = None
        self.last_transaction = 0
        self.used_s = time.monotonic()
        self.executed = False  # whether the session has sent a statement
        self.replies: OrderedDict[str, bytes] = OrderedDict()
        self._reply_bytes = 0
        self._context: StatementContext | None = None
        self._shown: orjson.Fragment | None = None

    def get(self, name: str) -> Value:
        value = self.parameters.get(name)
        return DEFAULTS[name] if value is None else value

    @property
    def timezone(self) -> str:
        return str(self.parameters.get("TIMEZONE") or DEFAULTS["TIMEZONE"])

    @property
    def autocommit(self) -> bool:
        return bool(self.get("AUTOCOMMIT"))

    def changed(self) -> None:
        """To be called after USE and ALTER SESSION: the next statement gets a new context."""
        self._context = None
        self._shown = None

    @property
    def shown_parameters(self) -> orjson.Fragment:
        """The parameters of every answer: connector 4 drops parameters that an answer does not contain."""
        if self._shown is None:
            self._shown = orjson.Fragment(
                orjson.dumps([{"name": name, "value": self.get(name)} for name in SENT_PARAMETERS])
            )
        return self._shown

    @property
    def context(self) -> StatementContext:
        if self._context is None:
            self._context = StatementContext(
                session_id=self.number,
                user=self.user,
                role=self.role,
                database=self.database,
                schema=self.schema,
                warehouse=self.warehouse,
                warehouse_size=self.warehouse_size,
                warehouse_type="STANDARD",
                query_tag=str(self.get("QUERY_TAG")),
            )
        return self._context

    def remember(self, request_id: str, reply: bytes) -> None:
        """Keep the reply for a repeated request; the oldest replies are dropped."""
        if request_id and len(reply) <= REPLY_BYTES_KEPT:
            self.replies[request_id] = reply
            self._reply_bytes += len(reply)
            while len(self.replies) > REPLIES_KEPT or self._reply_bytes > REPLIES_BYTES_KEPT:
                self._reply_bytes -= len(self.replies.popitem(last=False)[1])


class ServerSessions:
    """All open sessions, by token and by number."""

    def __init__(self, limit: int = SESSIONS_MAX) -> None:
        self.limit = limit
        self.by_token: dict[str, ServerSession] = {}
        self.by_master: dict[str, ServerSession] = {}
        self.by_number: dict[int, ServerSession] = {}
        self._next = time.time_ns() // 1_000_000 * 1_000  # unique across restarts

    def open(self, user: str, role: str, client: dict[str, Any]) -> ServerSession:
        self._next += 1
        session = ServerSession(self._next, user, role, client)
        self.by_token[session.token] = session
        self.by_master[session.master_token] = session
        self.by_number[session.number] = session
        return session

    def renew(self, session: ServerSession) -> None:
        """Give the session a new token; the old one becomes invalid."""
        self.by_token.pop(session.token, None)
        session.token = secrets.token_hex(32)
        session.expired = False
        self.by_token[session.token] = session

    def close(self, session: ServerSession) -> None:
        self.by_token.pop(session.token, None)
        self.by_master.pop(session.master_token, None)
        self.by_number.pop(session.number, None)

    def idle(self, since_s: float) -> list[ServerSession]:
        """Sessions without a request since then. A killed client does not log out."""
        return [session for session in self.by_number.values() if session.used_s < since_s]

    def longest_unused(self) -> list[ServerSession]:
        """The longest idle session among those that have not sent a statement; empty if there is none."""
        unused = [session for session in self.by_number.values() if not session.executed]
        return [min(unused, key=lambda session: session.used_s)] if unused else []

    def __len__(self) -> int:
        return len(self.by_number)
