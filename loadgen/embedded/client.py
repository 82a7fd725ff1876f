"""Finds the embedded server for a command, or starts one that ends with the command.

    with embedded_server() as address: …     inside the block the connection `embedded` uses it

In this order:

    $LOADGEN_EMBEDDED_ADDRESS      is set: that server; its password: see _named
    the data directory's server    one runs: that one
    a new server                   started here; it ends after the block, or this process, when it is unused

Any server will do. What a scenario says under `embedded:` is a model of its warehouse, which its run sets there for as
long as it measures (`loadgen.embedded.client`): runs on other warehouses and the control plane are not affected.
A scenario that says nothing gets what the server was started with: `loadgen embedded serve --slots 4`.

No process remains, however this one ends: a server started here sees the end of a pipe that only this process holds
open, and a server that was joined sees the end of a connection (loadgen.embedded.admin). Child processes inherit
neither.
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
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE, embedded_password, find_profile
from loadgen.values import dataclass

START_TIMEOUT_S = 240.0  # more than the server allows PostgreSQL for making a cluster and starting it
DATA_DIR_WAIT_S = 60.0  # how long a process may own the data directory without serving: it starts or stops
DATA_DIR_POLL_S = 0.05
REQUEST_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 15.0  # for the started server to stop; it continues when others use it
STOP_POLL_S = 0.5
PRELOADED_MODULES = ("loadgen.control.tables.run_status",)  # modules that almost every command with a server imports
STDERR_KEPT_MAX = 4_000

_READY = re.compile(r"listening on (?P<address>\S+)\n")
_PROGRAM = [sys.executable, "-P", "-c", "import sys; from loadgen.cli.main import main; sys.exit(main())"]
_log = logging.getLogger(__name__)


@contextmanager
def embedded_server(environ: MutableMapping[str, str] = os.environ, clock: Clock | None = None) -> Iterator[str]:
    """The address (`host:port`) of a server that serves at least until the block ends, also put into `environ`.

    Raises EmbeddedServerError when none can be started, Busy when another process owns the data directory, and
    ConnectFailed when $LOADGEN_EMBEDDED_ADDRESS does not answer.
    """
    with ExitStack() as stack:
        if environ.get(EMBEDDED_ADDRESS):
            yield stack.enter_context(_named(environ))
            return
        address, password_file = _find_or_start(stack, environ, clock or SystemClock())
        _tell(stack, environ, EMBEDDED_ADDRESS, address)
        if password_file is not None:
            _tell(stack, environ, EMBEDDED_PASSWORD_FILE, str(password_file))
        yield address


def server_line(address: str) -> str:
    """Which server this is and where its data is, as text for users."""
    told = os.environ.get(EMBEDDED_PASSWORD_FILE)
    try:
        options = json.loads(request(address, "GET", "/__loadgen/stats", Path(told) if told else None)[1])["options"]
        where = options["data_dir"]
    except (ValueError, TypeError, KeyError):
        raise not_ours(address) from None
    return f"embedded server at {address}, data directory {printable(str(where or 'none'), LINE_LIMIT)}"


def _tell(stack: ExitStack, environ: MutableMapping[str, str], name: str, value: str) -> None:
    environ[name] = value
    stack.callback(environ.pop, name, None)


def _find_or_start(stack: ExitStack, environ: Mapping[str, str], clock: Clock) -> tuple[str, Path | None]:
    """Join the data directory's server or start one: its address and its password file.

    Both may fail while another server starts or stops.
    """
    data_dir = choose_data_dir(environ=environ)
    never = threading.Event()
    give_up_ns = clock.monotonic_ns() + round(DATA_DIR_WAIT_S * 1e9)
    while True:
        try:
            address = running_server(data_dir)
            if address is not None:
                password_file = _password_file(data_dir)
                found = stack.enter_context(_joined(f"{address.host}:{address.port}", password_file))
                return found, password_file
            if not is_claimed(data_dir):
                return stack.enter_context(_own_server(data_dir, environ, clock)), _password_file(data_dir)
            what = f"the data directory {data_dir} is in use by a process that is starting or stopping"
            obstacle = Busy(what, remedy=f"Try again, or set {DATA_DIR_VARIABLE} to another directory.")
        except (_Unreachable, _Overtaken) as error:
            obstacle = Busy(str(error), remedy=error.remedy)
        if clock.monotonic_ns() >= give_up_ns:
            raise obstacle
        clock.wait(never, DATA_DIR_POLL_S)


def _password_file(data_dir: Path) -> Path | None:
    """Where the password of the data directory's server is; None: it checks none."""
    path = Path(os.path.realpath(data_dir)) / PASSWORD_FILE
    return path if os.path.lexists(path) else None


# --- a server that runs already --------------------------------------------------------------------------------------


class _Unreachable(LoadgenError):
    """The server has stopped, is stopping, or does not answer."""

    remedy = f"Try again; or stop it, or set {DATA_DIR_VARIABLE} to another directory."


@contextmanager
def _named(environ: MutableMapping[str, str]) -> Iterator[str]:
    """The server that the environment names. Its password: that of the file the environment names, else of the data
    directory, if this is the server that owns it."""
    fields = find_profile(EMBEDDED, environ=environ).fields  # refuses what is no address of this machine
    with ExitStack() as stack:
        there = f"{fields['host'].value}:{fields['port'].value}"
        if not environ.get(EMBEDDED_PASSWORD_FILE):
            data_dir = choose_data_dir(environ=environ)
            with suppress(EmbeddedServerError):  # a directory that cannot be used is not needed here
                owner = running_server(data_dir)
                if owner is not None and f"{owner.host}:{owner.port}" == there and (found := _password_file(data_dir)):
                    _tell(stack, environ, EMBEDDED_PASSWORD_FILE, str(found))
        told = environ.get(EMBEDDED_PASSWORD_FILE)
        try:
            stack.enter_context(_joined(there, Path(told) if told else None))
        except _Unreachable as error:
            remedy = f"Start it there, or unset {EMBEDDED_ADDRESS}: then a server is found or started by itself."
            raise ConnectFailed(f"{error} (its address is from {EMBEDDED_ADDRESS})", remedy=remedy) from error
        yield environ[EMBEDDED_ADDRESS]


@contextmanager
def _joined(address: str, password_file: Path | None) -> Iterator[str]:
    """Hold the server: it does not stop while this connection is open."""
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
            raise not_ours(address)
        yield address


def not_ours(address: str) -> EmbeddedServerError:
    what = f"what answers at {address} is no embedded server of this version of loadgen"
    remedy = f"Stop it; or set {DATA_DIR_VARIABLE} to another directory, and unset {EMBEDDED_ADDRESS}."
    return EmbeddedServerError(what, remedy=remedy)


# --- requests ---------------------------------------------------------------------------------------------------------


def request(
    address: str, method: str, path: str, password_file: Path | None, message: Mapping[str, Any] | None = None
) -> tuple[int, bytes]:
    """One request: status and body. Raises a LoadgenError when there is no answer."""
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
    """The authorization header for `/__loadgen/…` of a server that checks passwords."""
    password = embedded_password({EMBEDDED_PASSWORD_FILE: str(password_file or "")})
    if password is None:
        return {}
    return {"Authorization": f"Basic {b64encode(f'loadgen:{password.reveal()}'.encode()).decode()}"}


def _unreachable(address: str, error: Exception) -> _Unreachable:
    return _Unreachable(f"no embedded server answers at {address} ({str(error) or type(error).__name__})")


# --- starting a server -----------------------------------------------------------------------------------------------


class _Overtaken(LoadgenError):
    """Another process claimed the data directory before the started server did."""


@contextmanager
def _own_server(data_dir: Path, environ: Mapping[str, str], clock: Clock) -> Iterator[str]:
    """Start a server that checks a password; it ends when the pipe to its stdin does.

    It is in another process session, so that this process handles Ctrl-C.
    """
    reading, writing = os.pipe()
    with ExitStack() as stack:
        lifeline = stack.enter_context(open(writing, "wb", buffering=0))
        said = stack.enter_context(tempfile.TemporaryFile())
        try:
            process = subprocess.Popen(
                [*_PROGRAM, "embedded", "serve", "--port=0", "--auth", "--until-eof", f"--data-dir={data_dir}"],
                stdin=reading,
                stdout=subprocess.PIPE,
                stderr=said,
                env=dict(environ),
                start_new_session=True,
            )
        finally:
            os.close(reading)
        assert process.stdout is not None
        stack.enter_context(process.stdout)  # ends with the process: see _part
        address = None
        try:
            _import_meanwhile()
            address = _wait_ready(process, process.stdout, said)
            yield address
        finally:
            lifeline.close()
            _part(process, process.stdout, lambda: address is not None and _holders(address, data_dir) > 0, clock)
            if address is not None and process.poll() is not None:
                _pass_on(process, said)


def _import_meanwhile() -> None:
    """Import the driver and other slow modules while the server starts. Their users report import errors."""
    with suppress(ImportError, LoadgenError):
        driver.load()
        for module in PRELOADED_MODULES:
            importlib.import_module(module)


def _wait_ready(process: subprocess.Popen[bytes], stdout: IO[bytes], said: IO[bytes]) -> str:
    """Its address, once it listens. Raises the error that it printed when it does not start."""
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
        process.kill()  # not in use: its address is not known yet
        raise EmbeddedServerError(f"the embedded server was not ready after {START_TIMEOUT_S:.0f} s") from None
    raise _why(code, _text(said))


def _part(process: subprocess.Popen[bytes], stdout: IO[bytes], others: Callable[[], bool], clock: Clock) -> None:
    """Wait until the started server has stopped, unless other commands hold it.

    The end of its stdout is the end of the process: no other process has it open.
    """
    give_up_ns = clock.monotonic_ns() + round(STOP_TIMEOUT_S * 1e9)
    ended = select.poll()
    ended.register(stdout, 0)  # POLLHUP, which is always reported
    while clock.monotonic_ns() < give_up_ns:
        if ended.poll(STOP_POLL_S * 1000):
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            return
        if others():
            return


def _holders(address: str, data_dir: Path) -> int:
    try:
        stats: dict[str, Any] = json.loads(request(address, "GET", "/__loadgen/stats", _password_file(data_dir))[1])
        return int(stats["holders"])
    except (LoadgenError, ValueError, KeyError):  # it no longer listens: it is stopping
        return 0


def _pass_on(process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
    """Log what the server printed, and its exit status when it failed."""
    text = _text(said)
    if text or process.returncode:
        _log.warning("embedded_server_ended status=%s %s", process.returncode, text)


def _why(code: int, text: str) -> LoadgenError:
    """The error that the server's own error and hint lines make; below them may be the end of PostgreSQL's log."""
    found = re.search(r"(?:\A|.*\n)error: (?P<what>.*?)(?:\nhint: (?P<hint>[^\n]*))?\Z", text, re.DOTALL)
    what = found["what"] if found else f"{text.rpartition(chr(10))[2] or 'it said nothing'} (status {code})"
    hint = found["hint"] if found else None
    if code == Busy.exit_code:
        return _Overtaken(what, remedy=hint)
    return EmbeddedServerError(f"the embedded server did not start: {what}", remedy=hint)


def _text(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read().decode("utf-8", "replace").strip()[-STDERR_KEPT_MAX:]


# --- The model of a run's warehouse on the embedded server: set for the run, and checked at its end ------------------
#
# A run measures by one model. The server keeps it over restarts; but it may be restarted with another data directory
# or other options, and any client may delete a model. So the answer to the first request, which carries the id of the
# model, is compared with the model in force at the end of the measurement. So is the moment of the last change of the
# warehouse's settings, from which slots and speed may follow.

PATH = "/__loadgen/warehouses"


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """What the server says of a warehouse."""

    name: str
    id: str | None  # None: no model was set
    slots: int
    service_time: str | None
    altered_ms: float  # when the warehouse's settings were last changed; 0: never since it was made

    def __str__(self) -> str:
        slots = self.slots or "as the warehouse's settings say"
        return f"slots {slots}, service time {printable(self.service_time or 'none', 100)}"


@contextmanager
def warehouse_model(
    address: str, warehouse: str | None, model: Mapping[str, Any], *, begun: bool = False
) -> Iterator[Callable[[], str | None]]:
    """Set the slots and the service time of a warehouse until the block ends; without a name, of the default one.

    The block gets a function that returns why the model may not have been in force all the time; None: it was. With
    `begun` that covers the time since the start of a run that this process has taken over.

    An empty model is the one the server was started with, whatever a killed run has left behind.
    Raises Busy when another process measures there with another model.
    """
    whose: dict[str, Any] = {"name": warehouse, "pid": os.getpid()}
    before = _look(address, warehouse) if begun else None
    first = _ask(address, "POST", PATH, {**whose, **model})
    try:
        yield lambda: _changed(address, warehouse, before or first)
    finally:
        with suppress(LoadgenError):  # the server is gone: it forgets the model of a process that has ended
            _ask(address, "DELETE", PATH, whose)


def _changed(address: str, warehouse: str | None, first: InForce) -> str | None:
    """Why it is not known that the model was in force all the time."""
    try:
        now = _look(address, warehouse)
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


def _look(address: str, warehouse: str | None) -> InForce:
    return _ask(address, "GET", PATH if warehouse is None else f"{PATH}?name={quote(warehouse, safe='')}")


def _ask(address: str, method: str, path: str, message: Mapping[str, Any] | None = None) -> InForce:
    told = os.environ.get(EMBEDDED_PASSWORD_FILE)
    status, body = request(address, method, path, Path(told) if told else None, message)
    try:
        answer = json.loads(body)
        if status == 200:
            return _read(answer)
        why = printable(str(answer["error"]))
    except (ValueError, TypeError, KeyError):
        raise not_ours(address) from None
    if status == 409:
        remedy = "Wait for it; or give the scenario another target.warehouse, or the same options under embedded."
        raise Busy(f"the embedded server serves by one model per warehouse: {why}", remedy=remedy)
    raise EmbeddedServerError(f"the embedded server refused the options under embedded: {why}")


def _read(answer: dict[str, Any]) -> InForce:
    """Raises KeyError or TypeError when it is not what the server says."""
    kinds: dict[str, Any] = {
        "name": str,
        "id": str | None,
        "slots": int,
        "service_time": str | None,
        "altered_ms": float,
    }
    if not all(isinstance(answer[name], kind) for name, kind in kinds.items()):
        raise TypeError("a field is of another type")
    return InForce(**{name: answer[name] for name in kinds})
