"""connections.toml and config.toml: where they lie, who may touch them, and what they say.

The places are the driver's and the Snowflake CLI's: the folder SNOWFLAKE_HOME names (~/.snowflake when unset), if it
exists; otherwise the platform's folder for settings. The driver is silent about files that others can read (5.x) and
hides where a TOML error is (4.x), so loadgen reads and checks the files itself.
"""

import os
import shlex
import stat
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.errors import ConfigurationError
from loadgen.log import printable

FILE_BYTES_MAX = 1_000_000

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH
# Set by people, and by Snowflake in its own containers, to say that the modes are as they must be.
_SKIP_READABLE_CHECK = ("SF_SKIP_TOKEN_FILE_PERMISSIONS_VERIFICATION", "SKIP_TOKEN_FILE_PERMISSIONS_VERIFICATION")


@dataclass(frozen=True, slots=True)
class ConnectionSection:
    """One connection as written in one place."""

    name: str
    values: Mapping[str, Any]
    origin: str  # "/home/me/.snowflake/connections.toml [prod]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFiles:
    """All that the files, and the variable that replaces them, say."""

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
    """Read what is there; no file at all is fine."""
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
            warnings.append(f"{place}: {printable(name, 60)} stands outside a section and is not used")

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
    """The content of a file that others must not be able to change, and should not be able to read.

    `follow`: it may be a symbolic link.
    """
    try:
        with open(os.open(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW)), "rb") as file:
            _check(path, what, os.fstat(file.fileno()), environ, warnings)  # of what is open, not of the name
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {what} {path}: {error.strerror or error}", remedy="Check that the file exists and is yours."
        ) from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{what} {path} is larger than {FILE_BYTES_MAX} bytes", remedy="Is it the right file?")
    return content


def _check(path: Path, what: str, status: os.stat_result, environ: Mapping[str, str], warnings: list[str]) -> None:
    if os.name == "nt":
        return
    mode, quoted = stat.S_IMODE(status.st_mode), shlex.quote(str(path))
    if not stat.S_ISREG(status.st_mode):
        return  # a pipe or a device: its mode says nothing about its content
    if mode & _WRITABLE_BY_OTHERS:
        raise ConfigurationError(
            f"{what} {path} can be changed by others (mode {mode:04o})", remedy=f"Run: chmod 600 {quoted}"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            f"{what} {path} belongs to another user (id {status.st_uid})",
            remedy=f"Use a file of your own, or run: chown {os.geteuid()} {quoted}",
        )
    skipped = any(environ.get(name, "").lower() == "true" for name in _SKIP_READABLE_CHECK)
    if mode & _READABLE_BY_OTHERS and not skipped:
        warnings.append(f"{what} {path} can be read by others (mode {mode:04o}); run: chmod 600 {quoted}")


def _read_toml(path: Path, environ: Mapping[str, str], warnings: list[str]) -> dict[str, Any] | None:
    try:
        if not path.is_file():
            return None
    except OSError:  # a folder we may not look into: for us the file is not there
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
        # The message names a position and at most a key; the line itself could hold a password and is not shown.
        raise ConfigurationError(
            f"{where} is not valid TOML: {printable(str(error), 200)}",
            remedy='Correct it there. Texts are quoted: account = "myorg-myaccount".',
        ) from None
