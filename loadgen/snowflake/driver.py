"""The only module that imports snowflake.connector.

The driver is imported on first use, because the import takes a fifth of a second. It is imported once, because its
loggers and variables are per process. It is never used in a forked child: driver 5.x has threads, which a child does
not inherit, so that its first connect hangs. Processes are started by spawn.
"""

import importlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from loadgen.errors import ConfigurationError, LoadgenError
from loadgen.snowflake import driver_patches

DISTRIBUTION = "snowflake-connector-python"
VERSION_MIN, VERSION_BELOW = (4, 8), (6, 0)

_MODULE = "snowflake.connector"
# These loggers write lines per request or connection, some with a traceback, for errors that are also raised, counted
# and shown once. All other loggers of the driver stay at WARNING: below it 4.x logs SQL and binds.
_CHATTY = ("_core", "network", "vendored", "ocsp_snowflake", "result_batch", "auth")
_LOOPBACK = "127.0.0.1,localhost,::1"
_PROGRAMS = Path(__file__).with_name("programs")  # replacements of system programs

LIGHTEN_VARIABLE = "LOADGEN_DRIVER_LIGHTEN"
_LIGHTENED_VERSIONS = (("5", "2"),)
_lightened = False
_import_lock = threading.Lock()
_forked = False  # this process was forked from one that had imported the driver


class Cursor(Protocol):
    """The part of a cursor that loadgen uses, the same in both major versions."""

    @property
    def sfqid(self) -> str | None: ...
    @property
    def rowcount(self) -> int | None: ...
    @property
    def description(self) -> Sequence[Any] | None: ...
    def execute(self, command: str, params: Sequence[Any] | None = None, /, **options: Any) -> Any: ...
    def describe(self, command: str, params: Sequence[Any] | None = None, /) -> Any: ...
    def executemany(self, command: str, seqparams: Sequence[Sequence[Any]], /) -> Any: ...
    def fetchone(self) -> Any: ...
    def fetchmany(self, size: int = ..., /) -> list[Any]: ...
    def fetchall(self) -> list[Any]: ...
    def close(self) -> Any: ...


class Connection(Protocol):
    """The part of a connection that loadgen uses. One thread uses one connection."""

    @property
    def session_id(self) -> int: ...
    def cursor(self) -> Cursor: ...
    def is_closed(self) -> bool: ...
    def close(self) -> None: ...


@cache
def version() -> str:
    """The version of the installed driver, read without importing it."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise ConfigurationError(
            f"{DISTRIBUTION} is not installed", remedy=f"Install it: pip install '{DISTRIBUTION}>=4.8,<6'"
        ) from None


@cache
def major() -> int:
    """The major version, 4 or 5: option names and error numbers depend on it."""
    parts = tuple(int(part) for part in version().split(".")[:2])
    if not VERSION_MIN <= parts < VERSION_BELOW:
        raise ConfigurationError(
            f"{DISTRIBUTION} {version()} is installed; loadgen works with 4.8 up to 5.x",
            remedy=f"Install another: pip install '{DISTRIBUTION}>=4.8,<6'",
        )
    return parts[0]


def load() -> Any:
    """The module of the driver. The first call imports it."""
    if _forked:
        raise LoadgenError(
            "this process was forked from one that had imported the Snowflake driver, which does not work in a fork",
            remedy='Start processes with multiprocessing.get_context("spawn").',
        )
    major()
    with _import_lock:
        if _MODULE not in sys.modules:
            prepare_environment(os.environ)
            limit_driver_logging()  # the import itself logs
        with _without_numpy():
            module = importlib.import_module(_MODULE)
        disable_telemetry_hooks()
        return module


@contextmanager
def _without_numpy() -> Iterator[None]:
    """Prevent that this thread imports numpy. numpy is optional for the driver, loadgen does not use that option, and
    the import takes longer than that of the driver. Other threads may import numpy meanwhile."""
    finder = _Absent("numpy", threading.get_ident())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Absent(MetaPathFinder):
    """A finder that makes the import of one module fail in one thread."""

    def __init__(self, name: str, thread: int) -> None:
        self._name, self._thread = name, thread

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is not imported for the driver", name=fullname)


def spare_lsb_release(environ: MutableMapping[str, str]) -> None:
    """Put a replacement of `lsb_release` first in PATH. At every login driver 5 runs this shell script to report the
    name of the operating system, which takes four fifths of the CPU time of a login. The replacement prints nothing."""
    environ["PATH"] = os.pathsep.join([str(_PROGRAMS), user_environment(environ).get("PATH") or os.defpath])


def user_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for programs of the user, without the replacement of `lsb_release`."""
    paths = environ.get("PATH", "").split(os.pathsep)
    return {**environ, "PATH": os.pathsep.join(path for path in paths if path != str(_PROGRAMS))}


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Set variables that the driver reads and that no option replaces. Must run before the import."""
    # At its first connect the driver requests the metadata address of the cloud, to report where it runs. Outside of a
    # cloud these requests hang, and 5.x has no option against them.
    environ.setdefault("SNOWFLAKE_DISABLE_PLATFORM_DETECTION", "true")
    spare_lsb_release(environ)
    if any(name in environ for name in _proxy_variables(environ)):
        # 4.x ignores its option no_proxy for proxies from the environment, and would connect to the embedded server by
        # the proxy.
        for name in ("NO_PROXY", "no_proxy"):
            known = environ.get(name) or environ.get("no_proxy") or environ.get("NO_PROXY") or ""
            missing = [host for host in _LOOPBACK.split(",") if host not in known.split(",")]
            environ[name] = ",".join([*filter(None, [known]), *missing])


def limit_driver_logging() -> None:
    """Limit the log of the driver to warnings, at any log level of loadgen."""
    logging.getLogger(_MODULE).setLevel(logging.WARNING)
    for name in _CHATTY:
        logging.getLogger(f"{_MODULE}.{name}").setLevel(logging.CRITICAL)
    # A notice about the next release of the driver, issued when a session expires.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"snowflake\.connector")


def disable_telemetry_hooks(environ: Mapping[str, str] = os.environ) -> bool:
    """Apply the changes of `driver_patches` to driver 5, which reduce the work per statement. True: they are applied.

    They replace internal names of the driver, so they are applied only to tested versions in which all these names have
    the expected types and parameters. LOADGEN_DRIVER_LIGHTEN=0 disables them. Runs with and without them are not
    compared.
    """
    global _lightened
    wanted = environ.get(LIGHTEN_VARIABLE, "1").strip().lower() not in ("0", "false", "no", "off")
    tested = tuple(version().split(".")[:2]) in _LIGHTENED_VERSIONS
    if wanted and tested and not _lightened:
        patches = driver_patches.known_patches(sys.modules)
        driver_patches.apply(patches)
        _lightened = bool(patches)
    return _lightened


def telemetry_hooks_disabled() -> bool:
    """Whether the changes are applied in this process. False before the driver is imported."""
    return _lightened


def _proxy_variables(environ: Mapping[str, str]) -> list[str]:
    return [name for name in environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]


def _note_fork() -> None:
    global _forked
    _forked = _MODULE in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
