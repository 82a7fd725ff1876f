"""The arguments of connect() for a profile and a purpose. Pure; `connect` adds the secrets.

    load      measured sessions
    control   sessions of the control plane
    probe     tests of a connection, with short limits

With these settings the driver never repeats a request. So a measured time is the time of one execution, and a write
whose answer was lost is looked up before it is sent again, where the driver would execute it twice.

Each limit exists twice: on the server (STATEMENT_TIMEOUT_IN_SECONDS), which ends the statement, and on the client, a
little later, for a server that does not answer. The names of the options depend on the major version of the driver:

                            5.x                                    4.x
    attempts                retry_max_attempts                     only by a back-off policy that raises
    one statement           query_timeout                          socket_timeout
    one request             request_timeout                        socket_timeout
    connecting              connect_timeout                        socket_timeout
    logout                  logout_total_timeout_seconds, …        socket_timeout
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from loadgen.snowflake.failure import NotRetried
from loadgen.snowflake.profile import IDENTITY_OPTIONS, PASSED_OPTIONS, SECRET_OPTIONS, ConnectionProfile, Value
from loadgen.values import dataclass

APPLICATION = "loadgen"
CONTROL_TAG = f'{{"app":"{APPLICATION}","control":'  # beginning of the QUERY_TAG of control sessions
QUERY_TAG_MAX = 2_000  # characters; Snowflake's limit

LOGIN_S = 15
CONNECT_S = 5
REQUEST_S = 10  # requests other than logins and statements
LOGOUT_S = 2
CONTROL_STATEMENT_S = 8
CONTROL_MARGIN_S = 2
LOAD_MARGIN_S = 5
LOCK_S = 5

# Session parameters that a scenario cannot set: the results depend on them.
_SESSION = {"TIMEZONE": "UTC", "AUTOCOMMIT": True, "ABORT_DETACHED_QUERY": True, "CLIENT_TELEMETRY_ENABLED": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Arguments of connect() without the secrets, and a limit that is set after the login."""

    arguments: Mapping[str, Any]
    # Driver 4.x has one limit for all requests: LOGIN_S during the login, then this one.
    socket_timeout_s: int | None = None


def query_tag(*, run: str, worker: str, phase: str | None = None, step: int | None = None) -> str:
    """The QUERY_TAG of a load session. It connects rows of QUERY_HISTORY to a run."""
    tag = json.dumps(
        {"app": APPLICATION, "run": run, "worker": worker, "phase": phase, "step": step},
        separators=(",", ":"),
    )
    assert len(tag) <= QUERY_TAG_MAX, f"query tag of {len(tag)} characters"
    return tag


def control_tag(role: str) -> str:
    """The QUERY_TAG of a control session: its statements are not part of the load."""
    return f"{CONTROL_TAG}{json.dumps(role)}}}"


def session_tag(session: int, metadata: Mapping[str, str]) -> str:
    """What a user session adds to the QUERY_TAG of its connection, in place of the closing brace."""
    added = json.dumps({"session": session, "metadata": dict(metadata)}, separators=(",", ":"))
    return "," + added[1:]


def load_settings(
    profile: ConnectionProfile,
    *,
    major: int,
    statement_limit_s: int,
    tag: str,
    use_cached_result: bool = False,
    session: Mapping[str, Value] | None = None,
) -> ConnectionSettings:
    """Settings of a measured session."""
    own: dict[str, Value] = {
        # TRUE would answer a repeated SELECT from the result cache, without a warehouse.
        "USE_CACHED_RESULT": use_cached_result,
        "STATEMENT_TIMEOUT_IN_SECONDS": statement_limit_s,
        "QUERY_TAG": tag,
    }
    client_limit_s = statement_limit_s + LOAD_MARGIN_S
    return _settings(profile, major, client_limit_s, {**(session or {}), **own})


def control_settings(
    profile: ConnectionProfile, *, major: int, tag: str, statement_limit_s: int = CONTROL_STATEMENT_S
) -> ConnectionSettings:
    """Settings of a session of the control plane."""
    own: dict[str, Value] = {
        "STATEMENT_TIMEOUT_IN_SECONDS": statement_limit_s,
        "QUERY_TAG": tag,
        # FALSE may show a write of another session 100 ms late. TRUE costs a few ms, so load sessions do not set it.
        "READ_LATEST_WRITES": True,
        # The default is an hour: the row lock of a dead session would block heartbeats for that long.
        "HYBRID_TABLE_LOCK_TIMEOUT": min(LOCK_S, statement_limit_s),
    }
    return _settings(profile, major, statement_limit_s + CONTROL_MARGIN_S, own)


def probe_settings(profile: ConnectionProfile, *, major: int) -> ConnectionSettings:
    """Settings of a session that tests a connection."""
    own: dict[str, Value] = {"STATEMENT_TIMEOUT_IN_SECONDS": REQUEST_S, "QUERY_TAG": json.dumps({"app": APPLICATION})}
    return _settings(profile, major, REQUEST_S + CONTROL_MARGIN_S, own)


def _settings(
    profile: ConnectionProfile, major: int, client_limit_s: int, session: Mapping[str, Value]
) -> ConnectionSettings:
    arguments: dict[str, Any] = {
        **_identity(profile, major),
        **_passed(profile, major),
        "application": APPLICATION,
        # Binds are sent to the server; the default inserts values into the text. Set per connection: the module-wide
        # setting would affect other users of the driver.
        "paramstyle": "qmark",
        "autocommit": True,  # hybrid tables have a fast path for it, and no transaction stays open
        "login_timeout": LOGIN_S,
        # Sessions expire four hours after their last statement. In 4.x keep-alive is a timer thread per connection.
        "client_session_keep_alive": False,
        # Off by default: tokens on disk would outlive the program. A profile may enable it to avoid prompts.
        "client_store_temporary_credential": profile.text("client_store_temporary_credential") == "True",
        "session_parameters": {
            **profile.session_parameters,
            **{name.upper(): value for name, value in session.items()},
            **_SESSION,
        },
    }
    if major >= 5:
        return ConnectionSettings(arguments=arguments | _limits_5(client_limit_s))
    return ConnectionSettings(arguments=arguments | _limits_4(client_limit_s), socket_timeout_s=client_limit_s)


def _limits_5(client_limit_s: int) -> dict[str, Any]:
    return {
        # The default is six attempts with back-off: a 503 would be measured as 3.6 s, a 429 as 12.6 s.
        "retry_max_attempts": 1,
        "query_timeout": client_limit_s,  # no limit by default; at the limit the driver cancels the statement
        "request_timeout": REQUEST_S,
        "connect_timeout": CONNECT_S,
        # By default, closing a connection waits 15 s for a server that does not answer.
        "logout_total_timeout_seconds": LOGOUT_S,
        "logout_max_attempts": 1,
        # loadgen closes its connections. With auto_cleanup a garbage-collected connection calls the driver; during
        # another call of the driver this has crashed Python 3.11.
        "auto_cleanup": False,
        # If unset, the driver warns at every connect; True sends a request before each logout.
        "enable_server_session_keep_alive_auto_detection": False,
    }


def _limits_4(client_limit_s: int) -> dict[str, Any]:
    return {
        # Also limits connecting, login and close, so `connect` changes it after the login and before the logout.
        "socket_timeout": min(LOGIN_S, client_limit_s),
        "platform_detection_timeout_seconds": 0.0,  # else each connect requests the metadata address of the cloud
        "log_imported_packages_in_telemetry": False,
        # network_timeout stays unset: it costs a timer thread per statement (+50 % CPU), and does not prevent the first
        # retry. Without it the driver retries without a limit; the policy raises before the second attempt.
        # `_no_retry=True` for execute() is no alternative: it turns a truncated answer into KeyError('success').
        "backoff_policy": _one_attempt,
    }


def _one_attempt() -> Iterator[int]:
    """A back-off policy that allows one attempt: it raises instead of giving the pause before a second one.

    The driver takes the first value when it begins a request, and the next value after a failure. Parts of large
    results are fetched by another loop, which takes its first value after a failure, so they are fetched at most twice.
    """
    yield 0
    raise NotRetried


def _identity(profile: ConnectionProfile, major: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {key: profile.fields[key].value for key in IDENTITY_OPTIONS if key in profile.fields}
    region = arguments.pop("region", None)
    if region and "." not in str(arguments.get("account", "")):
        arguments["account"] = f"{arguments.get('account', '')}.{region}"  # 5.x has no option `region`
    if "port" in arguments:
        arguments["port"] = int(str(arguments["port"]))
    if "authenticator" in arguments and not str(arguments["authenticator"]).lower().startswith("https://"):
        arguments["authenticator"] = profile.authenticator
    if major >= 5 and profile.is_local:
        arguments["use_proxy_env"] = False  # a server on this machine is not reached by a proxy
    return arguments


_PORT_TYPE: dict[int, Callable[[object], int | str]] = {4: str, 5: lambda port: int(str(port))}


def _passed(profile: ConnectionProfile, major: int) -> dict[str, Any]:
    arguments = {
        key: field.value
        for key, field in profile.fields.items()
        if key in PASSED_OPTIONS[major] and key not in SECRET_OPTIONS
    }
    if "proxy_port" in arguments:
        return {**arguments, "proxy_port": _PORT_TYPE[major](arguments["proxy_port"])}
    return dict(arguments)
