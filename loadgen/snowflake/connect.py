"""Open and close a connection. Never on a main thread: inside the driver 5.x a Ctrl-C is lost."""

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
    """Arguments for connect() that hold secrets, for this authenticator and this driver. Never log them."""
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
        raise ConfigurationError(f"the token file {path} is empty", remedy="Write the token into it, and nothing else.")
    return {"token": Secret(token).reveal()}


def _private_key(profile: ConnectionProfile, environ: Mapping[str, str]) -> dict[str, Any]:
    path = profile.text("private_key_file")
    if path is not None:
        pem, where = _read(Path(path), "the private key", environ), f"the private key {path}"
    elif raw := profile.reveal("private_key_raw"):
        pem, where = raw.replace("\\n", "\n").encode(), f"private_key_raw ({profile.origin('private_key_raw')})"
    else:
        return {"private_key": profile.reveal("private_key")}  # base64 of DER, as both drivers take it
    Secret(pem.decode("utf-8", errors="replace"))
    if b"-----BEGIN" not in pem or b"PRIVATE KEY-----" not in pem:
        raise ConfigurationError(f"{where} is not a private key in PEM form", remedy="Is it the public key, or DER?")
    # A passphrase for a key that has none is an error in the driver; it may be meant for another connection.
    passphrase = profile.reveal("private_key_passphrase") if b"ENCRYPTED" in pem else None
    if b"ENCRYPTED" in pem and passphrase is None:
        raise ConfigurationError(
            f"{where} is encrypted, and there is no passphrase",
            remedy="Set the variable PRIVATE_KEY_PASSPHRASE, or private_key_passphrase in the section.",
        )
    # As an object: both drivers take one, and only so do both read encrypted PEM the same way.
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


_DETAIL_MAX = 300  # characters of the driver's own words
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


# Most telling first. {name} {user} {account} {address} {role} are filled in from the profile.
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
        "the network policies of {account} do not let {user} in from this machine",
        "Ask an administrator to admit this address. A service user with an access token must have a network policy.",
    ),
    _cause(
        (390120, 390123, 390126, 390127, 390129, 390197, 394508),
        r"multi-?factor|\bmfa\b|\bduo\b|passcode",
        "the log-in of {user} needs a second factor",
        "Use a key pair, a programmatic access token or workload identity: a factor cannot be entered each time.",
    ),
    _cause(
        (390144, *range(394300, 394310)),
        r"jwt|public key",
        "the key of {user} was refused",
        "Check that the user's RSA_PUBLIC_KEY belongs to this private key (DESCRIBE USER), and that user, account and"
        " this machine's clock are right.",
    ),
    _cause(
        (390303, 390318, 394400, 394401),
        r"oauth access token|programmatic access token|token .{0,40}(expired|invalid)",
        "the token was refused: invalid or expired",
        "Make a new one and put it where [{name}] finds it; access tokens live 15 days unless made for longer.",
    ),
    _cause(
        (390100, 390101, 390102),
        r"incorrect username or password",
        "user {user} and the password do not fit",
        "Check user and password of [{name}]. Passwords alone are refused for most users since 2026: use a key pair.",
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
        "Is a proxy opening the traffic? Then its root certificate must be trusted here (SSL_CERT_FILE,"
        " REQUESTS_CA_BUNDLE or custom_root_store_path). Certificates are always checked.",
    ),
    _cause(
        (),
        r"name or service not known|nodename nor servname|name ?resolution|lookup address|getaddrinfo|no such host",
        "the name {address} is not known",
        "Check account and host of [{name}], and that this machine resolves names of the internet.",
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
        "a proxy or a web server answered at {address}, not Snowflake",
        "Check host of [{name}]{proxies}.",
    ),
    _cause(
        (251012,),
        r"\b50\d (service|bad|gateway|internal)|http 5\d\d|last status 5|service is unavailable",
        "{address} is not available at the moment",
        "Try again; status.snowflake.com tells of disturbances.",
    ),
    _cause(
        (),
        r"timed? ?out|deadline",
        "no answer from {address} in time",
        "Check that this machine may reach it: firewall, VPN{proxies}.",
    ),
)


def diagnose(error: BaseException, profile: ConnectionProfile, environ: Mapping[str, str] = os.environ) -> LoadgenError:
    """The error to raise instead of the driver's."""
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
        remedy = "Is the embedded server still running? Start it with `loadgen embedded serve`."
    return kind(redact(f"connection {facts['name']!r}: {what} ({_detail(chain)})"), remedy=remedy)


def _detail(chain: list[BaseException]) -> str:
    """The driver's own words; 4.x puts a notice to itself in front of them."""
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


def connect(
    profile: ConnectionProfile, settings: ConnectionSettings, *, environ: Mapping[str, str] = os.environ
) -> Connection:
    """A new session, or ConnectFailed (PrivilegeMissing, ConfigurationError) with what to do about it."""
    module = driver.load()
    arguments = {**settings.arguments, **credentials(profile, major=driver.major(), environ=environ)}
    try:
        connection: Connection = module.connect(**arguments)
    except Exception as error:  # the driver leaks exceptions of its libraries
        translated = diagnose(error, profile, environ)
        event(log, logging.DEBUG, "connect_failed", connection=profile.name, code=classify(error).code)
        raise translated from error
    if settings.socket_timeout_s is not None:
        _set_socket_timeout(connection, settings.socket_timeout_s)
    return connection


def close(connection: Connection) -> None:
    """Log out and let go, in bounded time; a server that is gone is no error."""
    if driver.major() < 5:
        _set_socket_timeout(connection, LOGOUT_S)
    try:
        connection.close()
    except Exception as error:  # whatever it is, the connection is not used any more
        event(log, logging.DEBUG, "close_failed", code=classify(error).code)


def _set_socket_timeout(connection: Any, seconds: int) -> None:
    """Driver 4.x reads it at every request, but has no way to set it after connecting."""
    connection._socket_timeout = seconds
    if connection.socket_timeout != seconds:
        raise LoadgenError(
            f"the Snowflake driver {driver.version()} does not let its socket timeout be changed",
            remedy="Install snowflake-connector-python 5, or 4.8.",
        )


# --- Is a connection usable, who are we there, and how far away is it? -----------------------------------------------

ROUND_TRIPS = 5

# None of these needs a warehouse, a database or a schema.
_WHO = (
    "SELECT CURRENT_VERSION(), CURRENT_ACCOUNT(), CURRENT_REGION(), CURRENT_USER(), CURRENT_ROLE(),"
    " CURRENT_WAREHOUSE(), CURRENT_DATABASE(), CURRENT_SCHEMA()"
)
_NOTHING = "SELECT 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionProbe:
    """What a session says about itself. None: it has none."""

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
    """Connect once, ask, time a few empty statements, and log out. Never on a main thread."""
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
    # The embedded server's null engine answers everything with one value: reachable, and nothing more to say.
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
