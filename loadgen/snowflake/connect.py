"""Opens, closes and probes connections. Never on a main thread: driver 5.x loses a Ctrl-C during a call."""

import logging
import os
import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loadgen.clock import Clock, SystemClock
from loadgen.errors import ConfigurationError, ConnectFailed, LoadgenError, PrivilegeMissing
from loadgen.log import Secret, event, printable, redact
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake import driver
from loadgen.snowflake.driver import Connection
from loadgen.snowflake.failure import causes, classify, describe
from loadgen.snowflake.profile import CREDENTIAL_OPTIONS, PASSED_OPTIONS, SECRET_OPTIONS, ConnectionProfile
from loadgen.snowflake.profile_lookup import read_private_file
from loadgen.snowflake.settings import LOGOUT_S, ConnectionSettings, probe_settings
from loadgen.values import dataclass

log = logging.getLogger(__name__)

_KEY_PAIR = "SNOWFLAKE_JWT"
_TOKEN_USERS = ("OAUTH", "PROGRAMMATIC_ACCESS_TOKEN", "WORKLOAD_IDENTITY")
_FILES_AND_KEYS = frozenset(
    {"token", "token_file_path", "private_key", "private_key_raw", "private_key_file", "private_key_passphrase"}
)


def credentials(profile: ConnectionProfile, *, major: int, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The arguments of connect() with secrets, for this authenticator and driver version. Never log them."""
    arguments: dict[str, Any] = {}
    proxies = SECRET_OPTIONS & PASSED_OPTIONS[major]
    for key in CREDENTIAL_OPTIONS - _FILES_AND_KEYS - {"client_store_temporary_credential"} | proxies:
        if key in profile.fields:
            value = profile.fields[key].value
            arguments[key] = value.reveal() if isinstance(value, Secret) else value
    if profile.authenticator not in ("SNOWFLAKE", "USERNAME_PASSWORD_MFA", "OKTA"):
        arguments.pop("password", None)
    if isinstance(path := arguments.get("workload_identity_impersonation_path"), tuple):
        arguments["workload_identity_impersonation_path"] = list(path)
    if major >= 5 and "workload_identity_host" in arguments:
        arguments["wif_host"] = arguments.pop("workload_identity_host")
    if major < 5:
        arguments.pop("okta_username", None)
    if profile.authenticator == _KEY_PAIR:
        arguments |= _private_key(profile, environ)
    elif profile.authenticator in _TOKEN_USERS:
        arguments |= _token(profile, environ)
    return arguments


def _token(profile: ConnectionProfile, environ: Mapping[str, str]) -> dict[str, Any]:
    path = profile.text("token_file_path")
    if path is None:
        token = profile.reveal("token")
        return {} if token is None else {"token": token}
    content = _read(Path(path), "the token file", environ)
    token = content.decode("utf-8", errors="replace").strip()
    if not token:
        raise ConfigurationError(f"the token file {path} is empty", remedy="Write only the token into it.")
    return {"token": Secret(token).reveal()}


def _private_key(profile: ConnectionProfile, environ: Mapping[str, str]) -> dict[str, Any]:
    path = profile.text("private_key_file")
    if path is not None:
        pem, where = _read(Path(path), "the private key", environ), f"the private key {path}"
    elif raw := profile.reveal("private_key_raw"):
        pem, where = raw.replace("\\n", "\n").encode(), f"private_key_raw ({profile.origin('private_key_raw')})"
    else:
        return {"private_key": profile.reveal("private_key")}  # base64 of DER, which both driver versions accept
    Secret(pem.decode("utf-8", errors="replace"))
    if b"-----BEGIN" not in pem or b"PRIVATE KEY-----" not in pem:
        raise ConfigurationError(
            f"{where} is not a private key in PEM form",
            remedy="A public key and DER are not accepted.",
        )
    # The driver rejects a passphrase for an unencrypted key. A passphrase variable may belong to another connection.
    passphrase = profile.reveal("private_key_passphrase") if b"ENCRYPTED" in pem else None
    if b"ENCRYPTED" in pem and passphrase is None:
        raise ConfigurationError(
            f"{where} is encrypted, and no passphrase is set",
            remedy="Set the variable PRIVATE_KEY_PASSPHRASE, or private_key_passphrase in the section.",
        )
    # As an object, because the driver versions read encrypted PEM differently.
    return {"private_key": _key_object(pem, passphrase, where)}


def _key_object(pem: bytes, passphrase: str | None, where: str) -> object:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # comes with the driver

    try:
        return load_pem_private_key(pem, passphrase.encode() if passphrase is not None else None)
    except (ValueError, TypeError):
        pass  # not chained: the exception could quote the key
    raise ConfigurationError(f"{where} cannot be read", remedy="Check its passphrase, and that the file is complete.")


def _read(path: Path, what: str, environ: Mapping[str, str]) -> bytes:
    warnings: list[str] = []
    content = read_private_file(path, what, environ, warnings)
    for warning in warnings:
        event(log, logging.WARNING, "file_too_open", path=path, what=warning)
    return content


_DETAIL_MAX = 300  # characters of the message of the driver
_TEXT_MAX = 20_000  # characters searched


@dataclass(frozen=True, slots=True)
class _Cause:
    numbers: frozenset[int]
    text: re.Pattern[str] | None
    what: str
    remedy: str
    error: type[LoadgenError] = ConnectFailed


def _cause(
    numbers: tuple[int, ...], text: str | None, what: str, remedy: str, error: type[LoadgenError] = ConnectFailed
) -> _Cause:
    return _Cause(frozenset(numbers), re.compile(text, re.IGNORECASE) if text else None, what, remedy, error)


# The most specific cause first. {name} {user} {account} {address} {role} come from the profile.
_CAUSES = (
    _cause(
        (),
        r"temporarily locked|user is locked|user access disabled|locked from duo",
        "user {user} is locked or disabled",
        "Wait 15 minutes without trying, or ask an administrator for ALTER USER … SET MINS_TO_UNLOCK = 0.",
    ),
    _cause(
        (390422,),
        r"is not allowed to access snowflake|network policy|not allowed by network",
        "the network policies of {account} refuse logins of {user} from this machine",
        "Ask an administrator to allow this address. A service user with an access token must have a network policy.",
    ),
    _cause(
        (390120, 390123, 390126, 390127, 390129, 390197, 394508),
        r"multi-?factor|\bmfa\b|\bduo\b|passcode",
        "the login of {user} needs a second factor",
        "Use a key pair, a programmatic access token or workload identity: loadgen cannot prompt for a factor.",
    ),
    _cause(
        (390144, *range(394300, 394310)),
        r"jwt|public key",
        "the key of {user} was rejected",
        "Check that the user's RSA_PUBLIC_KEY belongs to this private key (DESCRIBE USER), and that user, account and"
        " this machine's clock are correct.",
    ),
    _cause(
        (390303, 390318, 394400, 394401),
        r"oauth access token|programmatic access token|token .{0,40}(expired|invalid)",
        "the token was rejected: it is invalid or expired",
        "Create a new token for [{name}]; access tokens are valid for 15 days by default.",
    ),
    _cause(
        (390100, 390101, 390102),
        r"incorrect username or password",
        "user name {user} or password is wrong",
        "Check user and password of [{name}]. Most users need a key pair or a second factor since 2026.",
    ),
    _cause(
        (390186, 390189),
        r"role .{0,300}(not granted|does not exist)",
        "role {role} is not granted to {user}",
        "Choose another role for [{name}], or ask for: GRANT ROLE {role} TO USER {user}.",
        PrivilegeMissing,
    ),
    _cause(
        (),
        r"certificate|sslerror|ssl: |\btls\b|unknownissuer|handshake|corrupt message",
        "no trusted TLS connection to {address}",
        "If a proxy decrypts the traffic, this machine must trust its root certificate (SSL_CERT_FILE,"
        " REQUESTS_CA_BUNDLE or custom_root_store_path). Certificates are always checked.",
    ),
    _cause(
        (),
        r"name or service not known|nodename nor servname|name ?resolution|lookup address|getaddrinfo|no such host",
        "the host name {address} cannot be resolved",
        "Check account and host of [{name}], and the DNS settings of this machine.",
    ),
    _cause(
        (),
        r"connection refused|actively refused",
        "nothing listens at {address}",
        "Check host and port of [{name}]{proxies}.",
    ),
    _cause(
        (540001, 290403, 290404),
        r"\b40[34] (forbidden|not found)|http 40[34]",
        "{address} does not know account {account}",
        "Check account of [{name}]; with private connectivity or a proxy, check host too{proxies}.",
    ),
    _cause(
        (),
        r"jsondecodeerror|expecting value|expected value at line|missing response field|<html",
        "the answer from {address} is not from Snowflake, but from a proxy or a web server",
        "Check host of [{name}]{proxies}.",
    ),
    _cause(
        (251012,),
        r"\b50\d (service|bad|gateway|internal)|http 5\d\d|last status 5|service is unavailable",
        "{address} is not available at the moment",
        "Try again; status.snowflake.com shows incidents.",
    ),
    _cause(
        (),
        r"timed? ?out|deadline",
        "no answer from {address} in time",
        "Check the network: firewall, VPN{proxies}.",
    ),
)


def diagnose(error: BaseException, profile: ConnectionProfile, environ: Mapping[str, str] = os.environ) -> LoadgenError:
    """The error to raise instead of the exception of the driver."""
    chain = list(causes(error))
    numbers = {number for cause in chain if (number := classify(cause).code) is not None}
    text = " ".join(f"{type(cause).__name__}: {str(cause)[:_TEXT_MAX]}" for cause in chain)[:_TEXT_MAX]
    facts = _facts(profile, environ)
    for cause in _CAUSES:
        if cause.numbers & numbers or (cause.text is not None and cause.text.search(text)):
            kind, what, remedy = cause.error, cause.what.format(**facts), cause.remedy.format(**facts)
            break
    else:
        hopeless = classify(error).category is ErrorCategory.CONFIGURATION
        kind = ConfigurationError if hopeless else ConnectFailed
        what, remedy = "connecting failed", f"Check the settings of [{facts['name']}]."
    if profile.is_embedded:
        remedy = "Check that the embedded server is running; start it with `loadgen embedded serve`."
    return kind(redact(f"connection {facts['name']!r}: {what} ({_detail(chain)})"), remedy=remedy)


def _detail(chain: list[BaseException]) -> str:
    """The message of the driver; 4.x puts an internal notice in front of it."""
    texts = [describe(cause).replace("\n", " ") for cause in chain]
    telling = (text for text in texts if "Will be handled by authenticator" not in text)
    return printable(next(telling, texts[0]), _DETAIL_MAX)


def _facts(profile: ConnectionProfile, environ: Mapping[str, str]) -> dict[str, str]:
    proxies = sorted(name for name in environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy"))
    return {
        "name": printable(profile.name, 80),
        "user": printable(profile.text("user") or "(no user)", 80),
        "account": printable(profile.text("account") or "", 80),
        "role": printable(profile.text("role") or "(default)", 80),
        "address": printable(profile.address, 120),
        "proxies": f", and the proxy that {proxies[0]} names" if proxies and not profile.is_local else "",
    }


LOGIN_ERRORS = (ConnectFailed, PrivilegeMissing, ConfigurationError)  # raised by connect()


def connect(
    profile: ConnectionProfile, settings: ConnectionSettings, *, environ: Mapping[str, str] = os.environ
) -> Connection:
    """Open a session. Raises ConnectFailed, PrivilegeMissing or ConfigurationError, with a remedy."""
    module = driver.load()
    arguments = {**settings.arguments, **credentials(profile, major=driver.major(), environ=environ)}
    try:
        connection: Connection = module.connect(**arguments)
    except Exception as error:  # the driver also raises exceptions of its libraries
        translated = diagnose(error, profile, environ)
        event(log, logging.DEBUG, "connect_failed", connection=profile.name, code=classify(error).code)
        raise translated from error
    if settings.socket_timeout_s is not None:
        _set_socket_timeout(connection, settings.socket_timeout_s)
    return connection


def close(connection: Connection) -> None:
    """Log out and close, in bounded time. A server that does not answer is not an error."""
    if driver.major() < 5:
        _set_socket_timeout(connection, LOGOUT_S)
    try:
        connection.close()
    except Exception as error:  # the connection is not used any more in any case
        event(log, logging.DEBUG, "close_failed", code=classify(error).code)


def _set_socket_timeout(connection: Any, seconds: int) -> None:
    """Driver 4.x reads the timeout at every request, but has no method to set it after connecting."""
    connection._socket_timeout = seconds
    if connection.socket_timeout != seconds:
        raise LoadgenError(
            f"the socket timeout of the Snowflake driver {driver.version()} cannot be changed",
            remedy="Install snowflake-connector-python 5, or 4.8.",
        )


# --- The probe of a connection: user, role, location, round-trip time ------------------------------------------------

ROUND_TRIPS = 5

# None of these needs a warehouse, a database or a schema.
_WHO = (
    "SELECT CURRENT_VERSION(), CURRENT_ACCOUNT(), CURRENT_REGION(), CURRENT_USER(), CURRENT_ROLE(),"
    " CURRENT_WAREHOUSE(), CURRENT_DATABASE(), CURRENT_SCHEMA()"
)
_NOTHING = "SELECT 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionProbe:
    """The context of a session. None: not set."""

    server_version: str | None
    account: str | None
    region: str | None
    user: str | None
    role: str | None
    warehouse: str | None
    database: str | None
    schema: str | None
    round_trips_ms: tuple[float, ...]

    @property
    def round_trip_ms_p50(self) -> float:
        return statistics.median(self.round_trips_ms)


def probe(profile: ConnectionProfile, *, clock: Clock | None = None) -> ConnectionProbe:
    """Connect once, read the context, measure round trips of empty statements, and log out. Never on a main thread."""
    connection = connect(profile, probe_settings(profile, major=driver.major()))
    try:
        return _ask(connection, clock or SystemClock())
    except Exception as error:
        if classify(error).category is ErrorCategory.FATAL:
            raise
        raise ConnectFailed(
            f"connection {printable(profile.name, 80)!r}: logged in, but the first statement failed: {describe(error)}",
            remedy="Check the role of the connection, and that the host is a Snowflake server.",
        ) from error
    finally:
        close(connection)


def _ask(connection: Connection, clock: Clock) -> ConnectionProbe:
    cursor = connection.cursor()
    cursor.execute(_WHO)
    row = cursor.fetchone() or ()
    # The null engine of the embedded server answers every statement with one value: it has no context.
    said = [_text(value) for value in row] if len(row) == 8 else [None] * 8
    version, account, region, user, role, warehouse, database, schema = said
    return ConnectionProbe(
        server_version=version,
        account=account,
        region=region,
        user=user,
        role=role,
        warehouse=warehouse,
        database=database,
        schema=schema,
        round_trips_ms=tuple(_timed_ms(clock, lambda: cursor.execute(_NOTHING).fetchall()) for _ in range(ROUND_TRIPS)),
    )


def _timed_ms(clock: Clock, action: Callable[[], object]) -> float:
    began_ns = clock.monotonic_ns()
    action()
    return (clock.monotonic_ns() - began_ns) / 1e6


def _text(value: Any) -> str | None:
    return None if value is None else printable(str(value), 200)
