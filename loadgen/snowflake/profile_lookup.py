"""Finds a connection in the same way as the Snowflake CLI.

    the name    -c  >  $SNOWFLAKE_DEFAULT_CONNECTION_NAME  >  default_connection_name in config.toml  >  "default"
    each field  override  >  $SNOWFLAKE_CONNECTIONS_<NAME>_<KEY>  >  section  >  $SNOWFLAKE_<KEY>

Three kinds of names need no section. `embedded` is the embedded server. `environment` consists of $SNOWFLAKE_<KEY>
variables, and is used when nothing else is configured; inside Snowpark Container Services it uses the token file that
Snowflake renews. The third kind is any name with a variable $SNOWFLAKE_CONNECTIONS_<NAME>_<KEY>.
"""

import os
import re
import shlex
import stat
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from loadgen.errors import ConfigurationError
from loadgen.log import Secret, printable
from loadgen.snowflake.profile import (
    BOOLEAN_OPTIONS,
    EMBEDDED,
    ENVIRONMENT,
    INTEGER_OPTIONS,
    INTERACTIVE,
    KEPT_OPTIONS,
    KNOWN_OPTIONS,
    OWNED_OPTIONS,
    SECRET_OPTIONS,
    VARIABLE_OPTIONS,
    ConnectionProfile,
    ProfileField,
    Value,
    canonical_option,
    is_loopback,
    nearest_name,
)
from loadgen.values import dataclass

# --- connections.toml and config.toml: location, permissions, content ------------------------------------------------
#
# The location is that of the driver and of the Snowflake CLI: the folder SNOWFLAKE_HOME (default ~/.snowflake) if it
# exists, otherwise the settings folder of the platform. loadgen reads and checks the files itself, because the driver
# does not report files that other users can read (5.x), or the position of a TOML error (4.x).

FILE_BYTES_MAX = 1_000_000

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH
# Set by users, and by Snowflake in its containers, to skip the check of the permissions.
_SKIP_READABLE_CHECK = ("SF_SKIP_TOKEN_FILE_PERMISSIONS_VERIFICATION", "SKIP_TOKEN_FILE_PERMISSIONS_VERIFICATION")


@dataclass(frozen=True, slots=True)
class ConnectionSection:
    """One connection as one source defines it."""

    name: str
    values: Mapping[str, Any]
    origin: str  # "/home/me/.snowflake/connections.toml [prod]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFiles:
    """The content of the files, or of the variable that replaces them."""

    folder: Path
    sections: Mapping[str, ConnectionSection]
    default_name: str | None
    default_origin: str
    warnings: tuple[str, ...]


def config_folder(environ: Mapping[str, str], *, platform: str = sys.platform) -> Path:
    """The folder that holds connections.toml and config.toml."""
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or "~").expanduser()
    chosen = environ.get("SNOWFLAKE_HOME") or "~/.snowflake"
    folder = home / chosen[2:] if chosen.startswith("~/") else Path(chosen)
    if folder.is_dir():
        return folder
    if platform == "darwin":
        return home / "Library" / "Application Support" / "snowflake"
    if platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "snowflake"
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "snowflake"


def read_config_files(environ: Mapping[str, str]) -> ConfigFiles:
    """Read the files that exist; none is required."""
    folder = config_folder(environ)
    warnings: list[str] = []
    config_path, connections_path = folder / "config.toml", folder / "connections.toml"
    config = _read_toml(config_path, environ, warnings) or {}
    connections = _read_toml(connections_path, environ, warnings)
    variable = environ.get("SNOWFLAKE_CONNECTIONS", "")

    raw: Any
    if variable.strip():
        raw, place, table = _parse(variable, "the variable SNOWFLAKE_CONNECTIONS"), "$SNOWFLAKE_CONNECTIONS", ""
    elif connections is not None:
        raw, place, table = connections, str(connections_path), ""
    else:
        raw, place, table = config.get("connections", {}), str(config_path), "connections."
    sections = {}
    for name, values in raw.items() if isinstance(raw, dict) else ():
        if isinstance(values, dict):
            sections[name] = ConnectionSection(name, values, f"{place} [{table}{printable(name, 80)}]")
        else:
            warnings.append(f"{place}: {printable(name, 60)} is outside of a section and is ignored")

    default = environ.get("SNOWFLAKE_DEFAULT_CONNECTION_NAME") or config.get("default_connection_name")
    from_variable = bool(environ.get("SNOWFLAKE_DEFAULT_CONNECTION_NAME"))
    return ConfigFiles(
        folder=folder,
        sections=sections,
        default_name=str(default) if default else None,
        default_origin="$SNOWFLAKE_DEFAULT_CONNECTION_NAME" if from_variable else str(config_path),
        warnings=tuple(warnings),
    )


def read_private_file(
    path: Path, what: str, environ: Mapping[str, str], warnings: list[str], *, follow: bool = True
) -> bytes:
    """The content of a file that other users must not be able to change, and should not be able to read.

    `follow`: the path may be a symbolic link.
    """
    try:
        with open(os.open(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW)), "rb") as file:
            _check(
                path, what, os.fstat(file.fileno()), environ, warnings
            )  # the status of the open file: the path may change
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {what} {path}: {error.strerror or error}",
            remedy="Check that the file exists and belongs to you.",
        ) from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{what} {path} is larger than {FILE_BYTES_MAX} bytes", remedy="Check the path.")
    return content


def _check(path: Path, what: str, status: os.stat_result, environ: Mapping[str, str], warnings: list[str]) -> None:
    if os.name == "nt":
        return
    mode, quoted = stat.S_IMODE(status.st_mode), shlex.quote(str(path))
    if not stat.S_ISREG(status.st_mode):
        return  # a pipe or a device: its mode does not protect its content
    if mode & _WRITABLE_BY_OTHERS:
        raise ConfigurationError(
            f"{what} {path} is writable by other users (mode {mode:04o})", remedy=f"Run: chmod 600 {quoted}"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            f"{what} {path} belongs to another user (id {status.st_uid})",
            remedy=f"Use a file that belongs to you, or run: chown {os.geteuid()} {quoted}",
        )
    skipped = any(environ.get(name, "").lower() == "true" for name in _SKIP_READABLE_CHECK)
    if mode & _READABLE_BY_OTHERS and not skipped:
        warnings.append(f"{what} {path} is readable by other users (mode {mode:04o}); run: chmod 600 {quoted}")


def _read_toml(path: Path, environ: Mapping[str, str], warnings: list[str]) -> dict[str, Any] | None:
    try:
        if not path.is_file():
            return None
    except OSError:  # the folder is not accessible, so the file cannot be used
        return None
    content = read_private_file(path, "the connections file", environ, warnings)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigurationError(f"{path} is not UTF-8 text (line {line})", remedy="Save it as UTF-8.") from None
    return _parse(text, str(path))


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # The message contains a position and at most a key. The line itself may contain a password and is not shown.
        raise ConfigurationError(
            f"{where} is not valid TOML: {printable(str(error), 200)}",
            remedy='Correct it. Texts need quotes: account = "myorg-myaccount".',
        ) from None


EMBEDDED_ADDRESS = "LOADGEN_EMBEDDED_ADDRESS"  # host:port of a running embedded server
EMBEDDED_FOUND = "LOADGEN_EMBEDDED_FOUND"  # set with the address if loadgen has found or started that server itself
EMBEDDED_PASSWORD_FILE = "LOADGEN_EMBEDDED_PASSWORD_FILE"  # contains its password, if it requires one
SPCS_TOKEN_FILE = Path("/snowflake/session/token")

_SPECIFIC = "SNOWFLAKE_CONNECTIONS_"
_ADDRESS_KEYS = ("host", "port", "protocol")
_PATH_KEYS = ("private_key_file", "token_file_path")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def find_profile(
    name: str | None,
    *,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, str | None] | None = None,
    spcs_token_file: Path = SPCS_TOKEN_FILE,
) -> ConnectionProfile:
    """The connection with this name, or the default one, checked."""
    if name == EMBEDDED:  # before any file is read: the embedded server must work in spite of a damaged file
        profile = _embedded(environ)
    else:
        profile = _find(name, read_config_files(environ), environ, spcs_token_file)
    return profile.with_fields("override", **dict(overrides or {})).check()


def leads_to_embedded(connection: str | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the connection, or the default connection for None, is the embedded server."""
    if connection is not None:
        return connection == EMBEDDED
    try:
        return read_config_files(environ).default_name == EMBEDDED
    except ConfigurationError:  # reported when the connection itself is looked up
        return False


def only_connection(environ: Mapping[str, str] = os.environ) -> str | None:
    """The embedded server if no connection is configured, as after the first run of an example; else None."""
    try:
        found = [profile.name for profile in known_profiles(environ)[0]]
    except ConfigurationError:  # reported when the connection itself is looked up
        return None
    return EMBEDDED if found == [EMBEDDED] else None


def known_profiles(
    environ: Mapping[str, str] = os.environ,
    *,
    embedded: str | None = None,
    embedded_origin: str = "starts when needed",
    spcs_token_file: Path = SPCS_TOKEN_FILE,
) -> tuple[tuple[ConnectionProfile, ...], str | None, tuple[str, ...]]:
    """All connections, unchecked; the name of the default, if it is among them; warnings.

    `embedded` is the address of a running embedded server, and `embedded_origin` the source of that address.
    """
    files = read_config_files(environ)
    named = [name for name in files.sections if name != EMBEDDED] + _names_in_variables(files, environ)
    found = [_listed_profile(name, files, environ) for name in named]
    if ENVIRONMENT not in files.sections and environ.get("SNOWFLAKE_ACCOUNT"):
        found.append(_from_environment(environ, spcs_token_file))
    if environ.get(EMBEDDED_ADDRESS):
        found.append(_embedded(environ))
    else:
        at = _embedded_but_not_running(embedded_origin) if embedded is None else _embedded_at(embedded, embedded_origin)
        found.append(at)
    names = [profile.name for profile in found]
    default = files.default_name or ("default" if "default" in names else ENVIRONMENT)
    return tuple(found), default if default in names else None, files.warnings


# --- The kinds of profiles -------------------------------------------------------------------------------------------


def _find(name: str | None, files: ConfigFiles, environ: Mapping[str, str], spcs_token_file: Path) -> ConnectionProfile:
    chosen = name or files.default_name or "default"
    if chosen == EMBEDDED:
        return _embedded(environ)
    if chosen in files.sections or chosen in _names_in_variables(files, environ):
        return _from_section(chosen, files.sections.get(chosen), files, environ)
    unnamed = name is None and files.default_name is None
    if environ.get("SNOWFLAKE_ACCOUNT") and (unnamed or chosen == ENVIRONMENT):
        return _from_environment(environ, spcs_token_file)
    raise _unknown(chosen, files, environ, unnamed=unnamed)


def _from_section(
    name: str, section: ConnectionSection | None, files: ConfigFiles, environ: Mapping[str, str]
) -> ConnectionProfile:
    reader = _Reader(environ)
    for key in VARIABLE_OPTIONS:
        reader.add(key, environ.get(f"SNOWFLAKE_{key.upper()}", ""), f"$SNOWFLAKE_{key.upper()}")
    reader.add(
        "private_key_passphrase", environ.get("PRIVATE_KEY_PASSPHRASE", ""), "$PRIVATE_KEY_PASSPHRASE", weak=True
    )
    if section is not None:
        reader.add_section(section)
    for key, variable in _specific_variables(name, files, environ):
        reader.add(key, environ[variable], f"${variable}")
    return reader.profile(name, files.warnings)


def _listed_profile(name: str, files: ConfigFiles, environ: Mapping[str, str]) -> ConnectionProfile:
    """The profile of a section; without fields if it is invalid, so that a list still has the others."""
    try:
        return _from_section(name, files.sections.get(name), files, environ)
    except ConfigurationError as error:
        return ConnectionProfile(name=name, fields=MappingProxyType({}), warnings=(*files.warnings, str(error)))


def _from_environment(environ: Mapping[str, str], spcs_token_file: Path) -> ConnectionProfile:
    reader = _Reader(environ)
    for key in (*VARIABLE_OPTIONS, *_ADDRESS_KEYS):
        reader.add(key, environ.get(f"SNOWFLAKE_{key.upper()}", ""), f"$SNOWFLAKE_{key.upper()}")
    reader.add(
        "private_key_passphrase", environ.get("PRIVATE_KEY_PASSPHRASE", ""), "$PRIVATE_KEY_PASSPHRASE", weak=True
    )
    credentials = {"password", "token", "token_file_path", "private_key_file", "private_key_raw", "authenticator"}
    if "host" in reader.fields and not credentials & reader.fields.keys() and spcs_token_file.is_file():
        reader.add("authenticator", "OAUTH", "Snowpark Container Services")
        reader.add("token_file_path", str(spcs_token_file), "Snowpark Container Services")
    return reader.profile(ENVIRONMENT, ())


def _embedded(environ: Mapping[str, str]) -> ConnectionProfile:
    address, origin = environ.get(EMBEDDED_ADDRESS, ""), f"${EMBEDDED_ADDRESS}"
    if environ.get(EMBEDDED_FOUND) == address:
        origin = "the embedded server"
    if not address:
        raise ConfigurationError(
            f"connection {EMBEDDED!r}: no embedded server is known ({EMBEDDED_ADDRESS} is not set)",
            remedy=f"Start one with `loadgen embedded serve`, and set {EMBEDDED_ADDRESS} to the address it prints.",
        )
    return _embedded_at(address, origin, embedded_password(environ))


def embedded_password(environ: Mapping[str, str]) -> Secret | None:
    """The password of the embedded server that the environment names; None: it requires none."""
    path = environ.get(EMBEDDED_PASSWORD_FILE)
    if not path:
        return None
    content = read_private_file(Path(path), "the password file", environ, [], follow=False)
    return Secret(content.decode("utf-8", "replace").strip())


def _embedded_at(address: str, origin: str, password: Secret | None = None) -> ConnectionProfile:
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdigit() and is_loopback(host)):
        raise ConfigurationError(
            f"{EMBEDDED_ADDRESS} is {printable(address, 60)!r}, not an address on this machine",
            remedy="Set it to the address that `loadgen embedded serve` prints, such as 127.0.0.1:8080.",
        )
    # Without a password file the server accepts any password. A Secret would mask the word "embedded" in all output.
    values: dict[str, Value] = {"account": "embedded", "user": "loadgen", "password": password or "embedded"}
    values |= {"host": host.strip("[]"), "port": int(port), "protocol": "http"}
    return ConnectionProfile(
        name=EMBEDDED, fields=MappingProxyType({key: ProfileField(value, origin) for key, value in values.items()})
    )


def _embedded_but_not_running(where: str) -> ConnectionProfile:
    fields = {"account": ProfileField("embedded", where), "user": ProfileField("loadgen", where)}
    return ConnectionProfile(name=EMBEDDED, fields=MappingProxyType(fields))


# --- Merging the sources ---------------------------------------------------------------------------------------------


class _Reader:
    """Collects the fields of one profile. Sources are added in order of increasing precedence."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._home = environ.get("HOME") or environ.get("USERPROFILE") or "~"
        self._session: dict[str, Value] = {}
        self._warnings: list[str] = []
        self._unused: list[str] = []
        self.fields: dict[str, ProfileField] = {}

    def add_section(self, section: ConnectionSection) -> None:
        # Aliases first, so that the canonical name of an option has precedence over its aliases.
        for key, value in sorted(section.values.items(), key=lambda item: canonical_option(item[0]) == item[0]):
            if canonical_option(key) == "session_parameters" and isinstance(value, dict):
                self._session |= {str(name).upper(): _scalar(name, item) for name, item in value.items()}
            else:
                self.add(key, value, section.origin)

    def add(self, key: str, value: Any, origin: str, *, weak: bool = False) -> None:
        """Set a field. An empty value means unset; `weak` sets only a field that has no value yet."""
        name = canonical_option(key)
        if value in ("", None) or (weak and name in self.fields):
            return
        if name in KEPT_OPTIONS and name != "session_parameters":
            self.fields[name] = ProfileField(self._convert(name, value, origin), origin)
        elif name in OWNED_OPTIONS:
            self._unused.append(f"{key} ({origin})")
        else:
            guess = nearest_name(key, KNOWN_OPTIONS)
            hint = f"; did you mean {guess}?" if guess else ""
            self._warnings.append(
                f"{origin}: {printable(key, 60)} is not an option of a connection and is ignored{hint}"
            )

    def profile(self, name: str, warnings: tuple[str, ...]) -> ConnectionProfile:
        for key in ("private_key_file", "private_key_raw", "private_key"):
            if key in self.fields and "password" not in self.fields:
                self.fields.setdefault("authenticator", ProfileField("SNOWFLAKE_JWT", f"derived from {key}"))
        authenticator = self.fields.get("authenticator")
        if authenticator is not None and str(authenticator.value).upper() in INTERACTIVE:
            self._warnings.append(
                f"connection {printable(name, 80)!r}: authenticator {authenticator.value} may prompt at every"
                " connection; unattended runs need a key pair, an access token or workload identity"
            )
        return ConnectionProfile(
            name=name,
            fields=MappingProxyType(self.fields),
            session_parameters=MappingProxyType(self._session),
            warnings=(*warnings, *self._warnings),
            unused=tuple(self._unused),
        )

    def _convert(self, key: str, value: Any, origin: str) -> Value:
        """The value in the type of the option; secrets become `Secret`s."""
        if key in SECRET_OPTIONS:
            return Secret(str(value))
        if key in INTEGER_OPTIONS and isinstance(value, str):
            if not re.fullmatch(r"[0-9]{1,18}", value.strip()):
                raise ConfigurationError(f"{origin}: {key} is {printable(value, 60)!r}, not a whole number")
            return int(value)
        if key in BOOLEAN_OPTIONS and isinstance(value, str):
            if value.strip().lower() not in _TRUE + _FALSE:
                raise ConfigurationError(f"{origin}: {key} is {printable(value, 60)!r}, neither true nor false")
            return value.strip().lower() in _TRUE
        if key in _PATH_KEYS and str(value).startswith("~/"):
            return str(Path(self._home).expanduser() / str(value)[2:])
        return _scalar(key, value)


def _scalar(key: str, value: Any) -> Value:
    if isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value) if key == "no_proxy" else tuple(value)
    raise ConfigurationError(f"{printable(key, 60)} is a {type(value).__name__}, not a single value")


# --- Names in variables ----------------------------------------------------------------------------------------------


def _specific_variables(name: str, files: ConfigFiles, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(key, variable) of every $SNOWFLAKE_CONNECTIONS_<NAME>_<KEY> of this connection."""
    prefix = f"{_SPECIFIC}{name.upper()}_"
    longer = [
        f"{_SPECIFIC}{other.upper()}_" for other in files.sections if other.upper().startswith(f"{name.upper()}_")
    ]
    for variable in sorted(environ):
        if variable.startswith(prefix) and not any(variable.startswith(other) for other in longer):
            yield variable.removeprefix(prefix).lower(), variable


def _names_in_variables(files: ConfigFiles, environ: Mapping[str, str]) -> list[str]:
    """Connections that only variables define: SNOWFLAKE_CONNECTIONS_CI_ACCOUNT defines `ci`."""
    suffix = "_ACCOUNT"
    taken = {name.upper() for name in files.sections}
    found = {
        variable.removeprefix(_SPECIFIC).removesuffix(suffix)
        for variable in environ
        if variable.startswith(_SPECIFIC) and variable.endswith(suffix) and len(variable) > len(_SPECIFIC + suffix)
    }
    return sorted(name.lower() for name in found - taken)


def _unknown(chosen: str, files: ConfigFiles, environ: Mapping[str, str], *, unnamed: bool) -> ConfigurationError:
    configured = [name for name in (*files.sections, *_names_in_variables(files, environ)) if name != EMBEDDED]
    names = [*configured, EMBEDDED]
    if unnamed:
        what = "no connection was chosen, and no default is configured"
        remedy = (
            f"Name one with -c (-c {EMBEDDED} for runs on the embedded server), or set default_connection_name in"
            " config.toml."
        )
    else:
        via = "" if chosen != files.default_name else f" (the default, from {files.default_origin})"
        guess = nearest_name(chosen, names)
        what = f"there is no connection {printable(chosen, 80)!r}{via}"
        remedy = f"Did you mean {printable(guess, 80)!r}?" if guess else _where_to_add(printable(chosen, 80), files)
    known = ", ".join(printable(name, 80) for name in configured)
    where = f"configured in {files.folder}: {known}" if known else f"no connections are configured in {files.folder}"
    return ConfigurationError(f"{what}; {where}; built in: {EMBEDDED}", remedy=remedy)


def _where_to_add(name: str, files: ConfigFiles) -> str:
    """The file for a new connection. A new connections.toml would hide the connections of config.toml."""
    path, config = files.folder / "connections.toml", files.folder / "config.toml"
    if any(section.origin.startswith(f"{config} ") for section in files.sections.values()):
        return f"Add [connections.{name}] to {config}."
    if any(section.origin.startswith("$") for section in files.sections.values()):
        return f"Add [{name}] to the variable SNOWFLAKE_CONNECTIONS, which replaces the files."
    if path.exists():
        return f"Add [{name}] to {path}."
    return f"Create {path} with a section [{name}], readable only by you (chmod 600)."
