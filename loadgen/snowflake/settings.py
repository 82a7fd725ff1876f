"""A profile and a purpose, turned into arguments for connect(). Pure; the secrets are added by `connect`.

    load      the measured sessions
    control   heartbeats, polls, leases
    probe     is it there? short limits

None of them lets the driver repeat a request. A measured time is then the time of one execution; and a write whose
answer was lost is looked up by its sender, where the driver would blindly do it twice.

Each limit has two halves: the server's (STATEMENT_TIMEOUT_IN_SECONDS), which ends the statement, and the client's, a
little later, for the server that does not answer at all. Names differ between the driver's major versions:

                            5.x                                    4.x
    attempts                retry_max_attempts                     only a back-off policy can say no
    one statement           query_timeout                          socket_timeout
    one request             request_timeout                        socket_timeout
    connecting              connect_timeout                        socket_timeout
    logout                  logout_total_timeout_seconds, …        socket_timeout
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from loadgen.snowflake import connection_options
from loadgen.snowflake.failure import NotRetried
from loadgen.snowflake.profile import ConnectionProfile, Value
from loadgen.values import dataclass

APPLICATION = "loadgen"
CONTROL_TAG = f'{{"app":"{APPLICATION}","control":'  # how it begins
QUERY_TAG_MAX = 2_000  # characters; Snowflake's limit

LOGIN_S = 15
CONNECT_S = 5
REQUEST_S = 10  # everything that is neither log-in nor a statement
LOGOUT_S = 2
CONTROL_STATEMENT_S = 8
CONTROL_MARGIN_S = 2
LOAD_MARGIN_S = 5
LOCK_S = 5

# Scenarios may set session parameters, but not these: results and their ground truth depend on them.
_SESSION = {"TIMEZONE": "UTC", "AUTOCOMMIT": True, "ABORT_DETACHED_QUERY": True, "CLIENT_TELEMETRY_ENABLED": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Arguments for connect() without the secrets, and what has to be done by hand around it."""

    arguments: Mapping[str, Any]
    # Driver 4.x has one limit for every request. Log-in gets LOGIN_S, after it statements get this.
    socket_timeout_s: int | None = None


def query_tag(*, run: str, worker: str, phase: str | None = None, step: int | None = None) -> str:
    """The QUERY_TAG of a load session: how the server's history is joined to our counts."""
    tag = json.dumps(
        {"app": APPLICATION, "run": run, "worker": worker, "phase": phase, "step": step},
        separators=(",", ":"),
    )
    assert len(tag) <= QUERY_TAG_MAX, f"query tag of {len(tag)} characters"
    return tag


def control_tag(role: str) -> str:
    """The QUERY_TAG of loadgen's own sessions, which are no load."""
    return f"{CONTROL_TAG}{json.dumps(role)}}}"


def session_tag(session: int, metadata: Mapping[str, str]) -> str:
    """What a user session adds to the QUERY_TAG of its connection: it takes the place of the closing brace."""
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
    """For a measured session."""
    own: dict[str, Value] = {
        # TRUE would answer a repeated SELECT from yesterday's result, without a warehouse.
        "USE_CACHED_RESULT": use_cached_result,
        "STATEMENT_TIMEOUT_IN_SECONDS": statement_limit_s,
        "QUERY_TAG": tag,
    }
    client_limit_s = statement_limit_s + LOAD_MARGIN_S
    return _settings(profile, major, client_limit_s, {**(session or {}), **own})


def control_settings(
    profile: ConnectionProfile, *, major: int, tag: str, statement_limit_s: int = CONTROL_STATEMENT_S
) -> ConnectionSettings:
    """For a session of the control plane."""
    own: dict[str, Value] = {
        "STATEMENT_TIMEOUT_IN_SECONDS": statement_limit_s,
        "QUERY_TAG": tag,
        # Without it a hybrid table may show another session's write 100 ms late. Costs a few ms: not for load.
        "READ_LATEST_WRITES": True,
        # The default is an hour, in which a dead session's row lock would stop all heartbeats.
        "HYBRID_TABLE_LOCK_TIMEOUT": min(LOCK_S, statement_limit_s),
    }
    return _settings(profile, major, statement_limit_s + CONTROL_MARGIN_S, own)


def probe_settings(profile: ConnectionProfile, *, major: int) -> ConnectionSettings:
    """For looking whether a connection works."""
    own: dict[str, Value] = {"STATEMENT_TIMEOUT_IN_SECONDS": REQUEST_S, "QUERY_TAG": json.dumps({"app": APPLICATION})}
    return _settings(profile, major, REQUEST_S + CONTROL_MARGIN_S, own)


def _settings(
    profile: ConnectionProfile, major: int, client_limit_s: int, session: Mapping[str, Value]
) -> ConnectionSettings:
    arguments: dict[str, Any] = {
        **_identity(profile, major),
        **_passed(profile, major),
        "application": APPLICATION,
        # Binds go to the server; the default pastes values into the text. Per connection: the module is shared.
        "paramstyle": "qmark",
        "autocommit": True,  # hybrid tables have a fast path for it; a lease must never hold a transaction open
        "login_timeout": LOGIN_S,
        # Sessions live four hours after their last statement. In 4.x keep-alive is a timer thread per connection.
        "client_session_keep_alive": False,
        # Tokens on disk would outlive the program; who must not be asked at each connection may choose it.
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
        "query_timeout": client_limit_s,  # the default is none; when it passes, the driver cancels on the server
        "request_timeout": REQUEST_S,
        "connect_timeout": CONNECT_S,
        # Closing waits 15 s for a server that is gone, per connection.
        "logout_total_timeout_seconds": LOGOUT_S,
        "logout_max_attempts": 1,
        # We close what we open. Left on, a connection that is collected asks itself whether it is closed, and when that
        # happens inside of another call of the driver, Python 3.11 has been seen to crash.
        "auto_cleanup": False,
        # Unset, it warns at every connect; True would ask the server before each logout.
        "enable_server_session_keep_alive_auto_detection": False,
    }


def _limits_4(client_limit_s: int) -> dict[str, Any]:
    return {
        # Covers connecting, log-in and close as well, which `connect` therefore bounds by setting it in between.
        "socket_timeout": min(LOGIN_S, client_limit_s),
        "platform_detection_timeout_seconds": 0.0,  # else it asks the cloud's metadata address at each connect
        "log_imported_packages_in_telemetry": False,
        # network_timeout stays unset: it costs a timer thread per statement (+50 % CPU), and cannot forbid the first
        # retry. Without it the driver retries for ever; the policy ends that before the second attempt.
        # `_no_retry=True` for execute() would not do: it turns a cut answer into KeyError('success').
        "backoff_policy": _one_attempt,
    }


def _one_attempt() -> Iterator[int]:
    """A back-off policy that does not: asked for the pause before a second attempt, it raises.

    The driver takes the first value when it begins a request and the next one after a failure. Parts of large results
    are fetched by another loop, which takes its first value after a failure: those are fetched twice at most.
    """
    yield 0
    raise NotRetried


def _identity(profile: ConnectionProfile, major: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        key: profile.fields[key].value for key in connection_options.IDENTITY if key in profile.fields
    }
    region = arguments.pop("region", None)
    if region and "." not in str(arguments.get("account", "")):
        arguments["account"] = f"{arguments.get('account', '')}.{region}"  # 5.x has no region; 4.x reads it here too
    if "port" in arguments:
        arguments["port"] = int(str(arguments["port"]))
    if "authenticator" in arguments and not str(arguments["authenticator"]).lower().startswith("https://"):
        arguments["authenticator"] = profile.authenticator
    if major >= 5 and profile.is_local:
        arguments["use_proxy_env"] = False  # no proxy leads to this machine
    return arguments


_PORT_TYPE: dict[int, Callable[[object], int | str]] = {4: str, 5: lambda port: int(str(port))}


def _passed(profile: ConnectionProfile, major: int) -> dict[str, Any]:
    arguments = {
        key: field.value
        for key, field in profile.fields.items()
        if key in connection_options.PASSED[major] and key not in connection_options.SECRET
    }
    if "proxy_port" in arguments:
        return {**arguments, "proxy_port": _PORT_TYPE[major](arguments["proxy_port"])}
    return dict(arguments)
