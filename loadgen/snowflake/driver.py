"""The only module that imports snowflake.connector.

It is imported late, because it costs a fifth of a second and the command line must not wait for it; once, because what
goes with it (loggers, variables) is per process; and never in a forked child: driver 5.x keeps threads, and
a child that inherits it without them hangs at its first connect. Processes are started by spawn.
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
from loadgen.snowflake import lighten

DISTRIBUTION = "snowflake-connector-python"
VERSION_MIN, VERSION_BELOW = (4, 8), (6, 0)

_MODULE = "snowflake.connector"
# What these say returns to us as an exception, which is counted and shown once; their lines come per request or per
# connection, some with a traceback. Everything else of the driver stays at WARNING: below it 4.x logs SQL and binds.
_CHATTY = ("_core", "network", "vendored", "ocsp_snowflake", "result_batch", "auth")
_LOOPBACK = "127.0.0.1,localhost,::1"
_PROGRAMS = Path(__file__).with_name("programs")  # that take the place of others

LIGHTEN_VARIABLE = "LOADGEN_DRIVER_LIGHTEN"
_LIGHTENED_VERSIONS = (("5", "2"),)
_lightened = False
_import_lock = threading.Lock()
_forked = False  # this process is a fork of one that had the driver


class Cursor(Protocol):
    """What loadgen uses of a cursor; both major versions have it."""

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
    """What loadgen uses of a connection: one thread, one connection."""

    @property
    def session_id(self) -> int: ...
    def cursor(self) -> Cursor: ...
    def is_closed(self) -> bool: ...
    def close(self) -> None: ...


@cache
def version() -> str:
    """The installed driver's version; the driver itself is not imported."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise ConfigurationError(
            f"{DISTRIBUTION} is not installed", remedy=f"Install it: pip install '{DISTRIBUTION}>=4.8,<6'"
        ) from None


@cache
def major() -> int:
    """4 or 5: option names and error numbers differ between them."""
    parts = tuple(int(part) for part in version().split(".")[:2])
    if not VERSION_MIN <= parts < VERSION_BELOW:
        raise ConfigurationError(
            f"{DISTRIBUTION} {version()} is installed; loadgen works with 4.8 up to 5.x",
            remedy=f"Install another: pip install '{DISTRIBUTION}>=4.8,<6'",
        )
    return parts[0]


def load() -> Any:
    """The driver's module, ready for use. The first call imports it."""
    if _forked:
        raise LoadgenError(
            "this process was forked from one that had imported the Snowflake driver, which does not survive that",
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
    """Let this thread import nothing of numpy that is not there yet. It is an option of the driver, which loadgen does
    not use, and importing it takes longer than the rest of the driver. Other threads may import it meanwhile."""
    finder = _Absent("numpy", threading.get_ident())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Absent(MetaPathFinder):
    """Finds nothing, and for one name in one thread says that there is nothing to find."""

    def __init__(self, name: str, thread: int) -> None:
        self._name, self._thread = name, thread

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is not imported for the driver", name=fullname)


def spare_lsb_release(environ: MutableMapping[str, str]) -> None:
    """At every login driver 5 runs `lsb_release` for the name of the operating system, to report it. That is a shell
    script, and takes four fifths of a login's processor time. Ours, found first, knows nothing."""
    environ["PATH"] = os.pathsep.join([str(_PROGRAMS), user_environment(environ).get("PATH") or os.defpath])


def user_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The same for programs of the user, who finds the real `lsb_release`."""
    paths = environ.get("PATH", "").split(os.pathsep)
    return {**environ, "PATH": os.pathsep.join(path for path in paths if path != str(_PROGRAMS))}


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Variables the driver reads and has no working option for. Must run before it is imported."""
    # At its first connect the driver would ask the cloud's metadata address where it runs, only to report it; off the
    # cloud those requests hang, and 5.x has no option against them.
    environ.setdefault("SNOWFLAKE_DISABLE_PLATFORM_DETECTION", "true")
    spare_lsb_release(environ)
    if any(name in environ for name in _proxy_variables(environ)):
        # 4.x ignores its own no_proxy option for proxies from the environment, so that the embedded server would be
        # looked for at the proxy.
        for name in ("NO_PROXY", "no_proxy"):
            known = environ.get(name) or environ.get("no_proxy") or environ.get("NO_PROXY") or ""
            missing = [host for host in _LOOPBACK.split(",") if host not in known.split(",")]
            environ[name] = ",".join([*filter(None, [known]), *missing])


def limit_driver_logging() -> None:
    """Keep the driver's log at warnings, whatever the level of everything else."""
    logging.getLogger(_MODULE).setLevel(logging.WARNING)
    for name in _CHATTY:
        logging.getLogger(f"{_MODULE}.{name}").setLevel(logging.CRITICAL)
    # Advice about the next release of the driver, given when a session expires.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"snowflake\.connector")


def disable_telemetry_hooks(environ: Mapping[str, str] = os.environ) -> bool:
    """Leave out what a statement of driver 5 does for telemetry only, asks its core needlessly, or makes anew each time
    (see `lighten`); True: it was done.

    The names are the driver's own: they are changed in tested versions only, and only while all have the expected types
    and parameters. LOADGEN_DRIVER_LIGHTEN=0 leaves the driver as it is. Runs with and without it are not compared.
    """
    global _lightened
    wanted = environ.get(LIGHTEN_VARIABLE, "1").strip().lower() not in ("0", "false", "no", "off")
    tested = tuple(version().split(".")[:2]) in _LIGHTENED_VERSIONS
    if wanted and tested and not _lightened:
        steps = lighten.known_steps(sys.modules)
        lighten.apply(steps)
        _lightened = bool(steps)
    return _lightened


def telemetry_hooks_disabled() -> bool:
    """Was the driver of this process lightened? False before it was loaded."""
    return _lightened


def _proxy_variables(environ: Mapping[str, str]) -> list[str]:
    return [name for name in environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]


def _note_fork() -> None:
    global _forked
    _forked = _MODULE in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
