"""Finds the embedded server for a command, or starts one that ends with the command.

    with embedded_server() as address: …     inside the block the connection `embedded` uses it

In this order:

    $LOADGEN_EMBEDDED_ADDRESS      if set: that server; _server_of_environment finds its password
    the data directory's server    if one runs
    a new server                   started by this process; it stops when it is unused after the block

The options of the server do not matter for a scenario with options under `embedded:`. They are a model of its
warehouse, which the run sets on the server while it measures (`warehouse_model`); runs on other warehouses and the
control plane are not affected. Without these options the server's own apply: `loadgen embedded serve --slots 4`.

No server process is left behind, for whatever reason this process ends: a server that was started here sees the end of
a pipe that only this process holds open, and a server that was running sees the end of a connection
(loadgen.embedded.admin). Child processes inherit neither.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from loadgen.clock import Clock, SystemClock
from loadgen.embedded.datadir import DATA_DIR_VARIABLE, PASSWORD_FILE, choose_data_dir, is_claimed, running_server
from loadgen.errors import Busy, ConnectFailed, EmbeddedServerError, LoadgenError
from loadgen.log import LINE_LIMIT, printable
from loadgen.snowflake import driver
from loadgen.snowflake.profile import EMBEDDED
from loadgen.snowflake.profile_lookup import (
    EMBEDDED_ADDRESS,
    EMBEDDED_FOUND,
    EMBEDDED_PASSWORD_FILE,
    embedded_password,
    find_profile,
)
from loadgen.values import dataclass

START_TIMEOUT_S = 240.0  # longer than the server's time limits for creating and starting a cluster
DATA_DIR_WAIT_S = 60.0  # time limit for a process that owns the data directory to start or stop
DATA_DIR_POLL_S = 0.05
REQUEST_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 15.0  # wait for the started server to stop; it continues if other commands use it
STOP_POLL_S = 0.5
PRELOADED_MODULES = ("loadgen.control.tables.run_status",)  # almost every command with a server imports them
STDERR_KEPT_MAX = 4_000

_READY = re.compile(r"listening on (?P<address>\S+)\n")
_PROGRAM = [sys.executable, "-P", "-c", "import sys; from loadgen.cli.main import main; sys.exit(main())"]
_log = logging.getLogger(__name__)


@contextmanager
def embedded_server(environ: MutableMapping[str, str] = os.environ, clock: Clock | None = None) -> Iterator[str]:
    """The address (`host:port`) of a server that runs until the end of the block; also set in `environ`.

    Raises EmbeddedServerError if no server can be started, Busy if another process owns the data directory, and
    ConnectFailed if the server of $LOADGEN_EMBEDDED_ADDRESS does not answer.
    """
    with ExitStack() as stack:
        if environ.get(EMBEDDED_ADDRESS):
            yield stack.enter_context(_server_of_environment(environ))
            return
        address, password_file = _find_or_start(stack, environ, clock or SystemClock())
        _set_until_end(stack, environ, EMBEDDED_ADDRESS, address)
        _set_until_end(stack, environ, EMBEDDED_FOUND, address)
        if password_file is not None:
            _set_until_end(stack, environ, EMBEDDED_PASSWORD_FILE, str(password_file))
        yield address


def server_line(address: str) -> str:
    """A line for users with the address and the data directory of the server."""
    try:
        options = json.loads(request(address, "GET", "/__loadgen/stats", _password_file_of_environment())[1])["options"]
        data_dir = options["data_dir"]
    except (ValueError, TypeError, KeyError):
        raise _not_an_embedded_server(address) from None
    return f"embedded server at {address}, data directory {printable(str(data_dir or 'none'), LINE_LIMIT)}"


def _password_file_of_environment(environ: Mapping[str, str] = os.environ) -> Path | None:
    path = environ.get(EMBEDDED_PASSWORD_FILE)
    return Path(path) if path else None


def _set_until_end(stack: ExitStack, environ: MutableMapping[str, str], name: str, value: str) -> None:
    environ[name] = value
    stack.callback(environ.pop, name, None)


def _find_or_start(stack: ExitStack, environ: Mapping[str, str], clock: Clock) -> tuple[str, Path | None]:
    """Use the data directory's server or start one; returns its address and its password file.

    Both fail while another server starts or stops; they are retried until a timeout.
    """
    data_dir = choose_data_dir(environ=environ)
    never = threading.Event()
    give_up_ns = clock.monotonic_ns() + round(DATA_DIR_WAIT_S * 1e9)
    while True:
        try:
            address = running_server(data_dir)
            if address is not None:
                password_file = _password_file(data_dir)
                found = stack.enter_context(_holding(f"{address.host}:{address.port}", password_file))
                return found, password_file
            if not is_claimed(data_dir):
                return stack.enter_context(_started_server(data_dir, environ, clock)), _password_file(data_dir)
            what = f"the data directory {data_dir} is in use by a process that is starting or stopping"
            obstacle = Busy(what, remedy=f"Try again, or set {DATA_DIR_VARIABLE} to another directory.")
        except (_Unreachable, _DataDirTaken) as error:
            obstacle = Busy(str(error), remedy=error.remedy)
        if clock.monotonic_ns() >= give_up_ns:
            raise obstacle
        clock.wait(never, DATA_DIR_POLL_S)


def _password_file(data_dir: Path) -> Path | None:
    """The password file of the data directory's server; None if it does not check passwords."""
    path = Path(os.path.realpath(data_dir)) / PASSWORD_FILE
    return path if os.path.lexists(path) else None


# --- a running server ------------------------------------------------------------------------------------------------


class _Unreachable(LoadgenError):
    """The server has stopped, is stopping, or does not answer."""

    remedy = f"Try again, stop it, or set {DATA_DIR_VARIABLE} to another directory."


@contextmanager
def _server_of_environment(environ: MutableMapping[str, str]) -> Iterator[str]:
    """The server at $LOADGEN_EMBEDDED_ADDRESS.

    Its password file is that of the environment, else that of the data directory if the server owns it.
    """
    fields = find_profile(EMBEDDED, environ=environ).fields  # rejects addresses of other machines
    with ExitStack() as stack:
        address = f"{fields['host'].value}:{fields['port'].value}"
        if not environ.get(EMBEDDED_PASSWORD_FILE):
            data_dir = choose_data_dir(environ=environ)
            with suppress(EmbeddedServerError):  # an unusable data directory does not matter here
                owner = running_server(data_dir)
                is_owner = owner is not None and f"{owner.host}:{owner.port}" == address
                if is_owner and (found := _password_file(data_dir)):
                    _set_until_end(stack, environ, EMBEDDED_PASSWORD_FILE, str(found))
        try:
            stack.enter_context(_holding(address, _password_file_of_environment(environ)))
        except _Unreachable as error:
            remedy = f"Start the server, or unset {EMBEDDED_ADDRESS} to find or start one automatically."
            raise ConnectFailed(f"{error} (the address is from {EMBEDDED_ADDRESS})", remedy=remedy) from error
        yield environ[EMBEDDED_ADDRESS]


@contextmanager
def _holding(address: str, password_file: Path | None) -> Iterator[str]:
    """Keep a connection to the server open: the server does not stop meanwhile."""
    from http.client import HTTPConnection, HTTPException

    host, _, port = address.rpartition(":")
    with closing(HTTPConnection(host, int(port), timeout=REQUEST_TIMEOUT_S)) as connection:
        try:
            connection.request("GET", "/__loadgen/hold", headers=_authorization(password_file))
            response = connection.getresponse()
            line = response.readline()
        except (OSError, HTTPException) as error:
            raise _unreachable(address, error) from error
        if response.status == 503:
            raise _Unreachable(f"the embedded server at {address} is stopping")
        if response.status == 401:
            what = f"the embedded server at {address} checks passwords and rejected this one"
            remedy = f"Set {EMBEDDED_PASSWORD_FILE} to the file `password` of its data directory."
            raise EmbeddedServerError(what, remedy=remedy)
        if response.status != 200 or not line.startswith(b"{"):
            raise _not_an_embedded_server(address)
        yield address


def _not_an_embedded_server(address: str) -> EmbeddedServerError:
    what = f"the program at {address} is not an embedded server of this version of loadgen"
    remedy = f"Stop it, or set {DATA_DIR_VARIABLE} to another directory, and unset {EMBEDDED_ADDRESS}."
    return EmbeddedServerError(what, remedy=remedy)


# --- requests ---------------------------------------------------------------------------------------------------------


def request(
    address: str, method: str, path: str, password_file: Path | None, message: Mapping[str, Any] | None = None
) -> tuple[int, bytes]:
    """Send a request; returns status and body. Raises a LoadgenError if there is no answer."""
    from http.client import HTTPConnection, HTTPException

    host, _, port = address.rpartition(":")
    with closing(HTTPConnection(host, int(port), timeout=REQUEST_TIMEOUT_S)) as connection:
        try:
            body = None if message is None else json.dumps(message)
            connection.request(method, path, body, _authorization(password_file))
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException) as error:
            raise _unreachable(address, error) from error


def _authorization(password_file: Path | None) -> dict[str, str]:
    """The authorization header for `/__loadgen/…`; empty without a password."""
    password = embedded_password({EMBEDDED_PASSWORD_FILE: str(password_file or "")})
    if password is None:
        return {}
    return {"Authorization": f"Basic {b64encode(f'loadgen:{password.reveal()}'.encode()).decode()}"}


def _unreachable(address: str, error: Exception) -> _Unreachable:
    return _Unreachable(f"no embedded server answers at {address} ({str(error) or type(error).__name__})")


# --- starting a server -----------------------------------------------------------------------------------------------


class _DataDirTaken(LoadgenError):
    """Another process claimed the data directory before the started server."""


@contextmanager
def _started_server(data_dir: Path, environ: Mapping[str, str], clock: Clock) -> Iterator[str]:
    """Start a server that checks a password. It stops when the pipe to its stdin is closed.

    It has its own process session, so that Ctrl-C reaches this process only.
    """
    reading, writing = os.pipe()
    with ExitStack() as stack:
        stdin_pipe = stack.enter_context(open(writing, "wb", buffering=0))
        stderr = stack.enter_context(tempfile.TemporaryFile())
        try:
            process = subprocess.Popen(
                [*_PROGRAM, "embedded", "serve", "--port=0", "--auth", "--until-eof", f"--data-dir={data_dir}"],
                stdin=reading,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=dict(environ),
                start_new_session=True,
            )
        finally:
            os.close(reading)
        assert process.stdout is not None
        stack.enter_context(process.stdout)  # ends with the process: see _wait_exit
        address = None
        try:
            _preload_modules()
            address = _wait_ready(process, process.stdout, stderr)
            yield address
        finally:
            stdin_pipe.close()
            _wait_exit(process, process.stdout, lambda: address is not None and _holders(address, data_dir) > 0, clock)
            if address is not None and process.poll() is not None:
                _log_stderr(process, stderr)


def _preload_modules() -> None:
    """Import the driver and other slow modules while the server starts. Import errors are reported at their use."""
    with suppress(ImportError, LoadgenError):
        driver.load()
        for module in PRELOADED_MODULES:
            importlib.import_module(module)


def _wait_ready(process: subprocess.Popen[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> str:
    """Wait until the server listens; returns its address. Raises the error that it printed if it does not start."""
    arrival = select.poll()
    arrival.register(stdout, select.POLLIN)
    line = b""
    while b"\n" not in line and arrival.poll(START_TIMEOUT_S * 1000):
        piece = os.read(stdout.fileno(), 4_096)
        if not piece:
            break
        line += piece
    text = line.decode("utf-8", "replace")
    ready = _READY.match(text)
    if ready is not None:
        return ready["address"]
    try:
        code = process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # no client knows its address yet
        raise EmbeddedServerError(f"the embedded server was not ready after {START_TIMEOUT_S:.0f} s") from None
    raise _start_error(code, _text(stderr))


def _wait_exit(process: subprocess.Popen[bytes], stdout: IO[bytes], is_held: Callable[[], bool], clock: Clock) -> None:
    """Wait until the started server has stopped, unless other commands hold it.

    Its stdout ends with the process, because no other process has it open.
    """
    give_up_ns = clock.monotonic_ns() + round(STOP_TIMEOUT_S * 1e9)
    ended = select.poll()
    ended.register(stdout, 0)  # for POLLHUP, which is always reported
    while clock.monotonic_ns() < give_up_ns:
        if ended.poll(STOP_POLL_S * 1000):
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            return
        if is_held():
            return


def _holders(address: str, data_dir: Path) -> int:
    try:
        stats: dict[str, Any] = json.loads(request(address, "GET", "/__loadgen/stats", _password_file(data_dir))[1])
        return int(stats["holders"])
    except (LoadgenError, ValueError, KeyError):  # it is stopping
        return 0


def _log_stderr(process: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
    """Log the stderr of the server if it is not empty or the server failed."""
    text = _text(stderr)
    if text or process.returncode:
        _log.warning("embedded_server_ended status=%s %s", process.returncode, text)


def _start_error(code: int, text: str) -> LoadgenError:
    """The error of the server's `error:` and `hint:` lines; `error:` may include the end of PostgreSQL's log."""
    found = re.search(r"(?:\A|.*\n)error: (?P<what>.*?)(?:\nhint: (?P<hint>[^\n]*))?\Z", text, re.DOTALL)
    what = found["what"] if found else f"{text.rpartition(chr(10))[2] or 'it printed no message'} (status {code})"
    hint = found["hint"] if found else None
    if code == Busy.exit_code:
        return _DataDirTaken(what, remedy=hint)
    return EmbeddedServerError(f"the embedded server did not start: {what}", remedy=hint)


def _text(stderr: IO[bytes]) -> str:
    stderr.seek(0)
    return stderr.read().decode("utf-8", "replace").strip()[-STDERR_KEPT_MAX:]


# --- the warehouse model of a run, set for the run and checked at its end --------------------------------------------
#
# A run measures with one model. The server stores it, but it can be restarted with another data directory or other
# options, and any client can delete the model. So the answer to the first request, which contains the id of the model,
# is compared with the model in force at the end of the measurement. The time of the last change of the warehouse's
# settings is compared too, because slots and speed may depend on them.

PATH = "/__loadgen/warehouses"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInForce:
    """The model of a warehouse, as answered by the server."""

    name: str
    id: str | None  # None: the options of the server apply
    slots: int
    service_time: str | None
    altered_ms: float  # time of the last change of the warehouse's settings; 0: none since its creation

    def __str__(self) -> str:
        slots = self.slots or "of the warehouse's settings"
        return f"slots {slots}, service time {printable(self.service_time or 'none', 100)}"


@contextmanager
def warehouse_model(
    address: str, warehouse: str | None, model: Mapping[str, Any], *, begun: bool = False
) -> Iterator[Callable[[], str | None]]:
    """Set the slots and the service time of a warehouse until the end of the block; of the default one without a name.

    The block gets a function that returns why the model may not have been in force all the time, or None if it was. If
    this process has taken over a run (`begun`), the function covers the time since the run's start.

    An empty model stands for the options of the server, and replaces the model of a killed run.
    Raises Busy if another process measures on the warehouse with another model.
    """
    owner: dict[str, Any] = {"name": warehouse, "pid": os.getpid()}
    before = _get_model(address, warehouse) if begun else None
    first = _send_model(address, "POST", PATH, {**owner, **model})
    try:
        yield lambda: _change_since(address, warehouse, before or first)
    finally:
        with suppress(LoadgenError):  # the server is unreachable; it deletes the models of ended processes itself
            _send_model(address, "DELETE", PATH, owner)


def _change_since(address: str, warehouse: str | None, first: ModelInForce) -> str | None:
    """Why the model may not have been in force all the time; None if it was."""
    try:
        now = _get_model(address, warehouse)
    except LoadgenError as error:
        return f"the model of warehouse {printable(first.name, 100)} could not be checked: {error}"
    if now == first and first.id is not None:
        return None
    if now == replace(first, altered_ms=now.altered_ms) and first.id is not None:
        return f"the settings of warehouse {printable(first.name, 100)} were changed while the run measured"
    return (
        f"the model of warehouse {printable(first.name, 100)} was changed or lost while the run measured:"
        f" {first} at the beginning, {now} at the end"
    )


def _get_model(address: str, warehouse: str | None) -> ModelInForce:
    return _send_model(address, "GET", PATH if warehouse is None else f"{PATH}?name={quote(warehouse, safe='')}")


def _send_model(address: str, method: str, path: str, message: Mapping[str, Any] | None = None) -> ModelInForce:
    status, body = request(address, method, path, _password_file_of_environment(), message)
    try:
        answer = json.loads(body)
        if status == 200:
            return _parse_model(answer)
        why = printable(str(answer["error"]))
    except (ValueError, TypeError, KeyError):
        raise _not_an_embedded_server(address) from None
    if status == 409:
        remedy = "Wait for it, or give the scenario another target.warehouse or the same options under embedded."
        raise Busy(f"the embedded server has one model per warehouse: {why}", remedy=remedy)
    raise EmbeddedServerError(f"the embedded server rejected the options under embedded: {why}")


def _parse_model(answer: dict[str, Any]) -> ModelInForce:
    """Raises KeyError or TypeError for other answers."""
    kinds: dict[str, Any] = {
        "name": str,
        "id": str | None,
        "slots": int,
        "service_time": str | None,
        "altered_ms": float,
    }
    if not all(isinstance(answer[name], kind) for name, kind in kinds.items()):
        raise TypeError("a field has another type")
    return ModelInForce(**{name: answer[name] for name in kinds})
