"""Options of several commands, the control plane that a command uses, and its embedded server if it needs one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loadgen.cli.common import warn
from loadgen.errors import ScenarioInvalid, UsageError
from loadgen.model.warehouse import IDLE_POLL_S
from loadgen.threads import run_in_thread
from loadgen.units import format_duration_s

if TYPE_CHECKING:
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.control.session import ControlSession
    from loadgen.model.nightly import BaselineCheck
    from loadgen.scenario.read import LoadedScenario
    from loadgen.snowflake.session import RetryPolicy


Command = TypeVar("Command", bound=Callable[..., Any])


def scenario_options(command: Command) -> Command:
    """FILE and -c."""
    command = click.option("-c", "--connection", metavar="NAME", help="Use this connection instead of the scenario's.")(
        command
    )
    return click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))(command)


def location_options(command: Command) -> Command:
    """--database, --schema and --warehouse of the control plane."""
    for name, default in (("warehouse", "LOADGEN_CONTROL_WH"), ("schema", "CONTROL"), ("database", "LOADGEN")):
        command = click.option(
            f"--{name}", metavar="NAME", help=f"The control plane's {name}.  [default: the scenario's, or {default}]"
        )(command)
    return command


def format_option(command: Command) -> Command:
    choice = click.Choice(["text", "json"])
    return click.option("--format", "output", type=choice, default="text", show_default=True, help="Output format.")(
        command
    )


def connection_option(command: Command) -> Command:
    """-c, for commands that read a scenario."""
    return click.option("-c", "--connection", metavar="NAME", help="Use this connection instead of the scenario's.")(
        command
    )


def count_option(
    *names: str, default: int, maximum: int, help_text: str, minimum: int = 1
) -> Callable[[Command], Command]:
    """An option with a whole number between two limits, such as -n."""
    limits = click.IntRange(minimum, maximum)
    return click.option(*names, type=limits, default=default, show_default=True, metavar="N", help=help_text)


def override_option(example: str) -> Callable[[Command], Command]:
    """--set."""
    help_text = f"Use this value instead of the file's: --set {example}. May be repeated."
    return click.option("--set", "overrides", metavar="PATH=VALUE", multiple=True, help=help_text)


def output_dir_option(help_text: str) -> Callable[[Command], Command]:
    """--output-dir, the folder of runs on this machine."""
    folder = click.Path(path_type=Path, file_okay=False)
    return click.option(
        "--output-dir", type=folder, default=Path("runs"), show_default=True, metavar="DIR", help=help_text
    )


def idle_poll_option(help_text: str) -> Callable[[Command], Command]:
    """--idle-poll, the interval of polls that start the warehouse of the control plane although nothing is due."""
    default = format_duration_s(IDLE_POLL_S)
    return click.option("--idle-poll", default=default, show_default=True, metavar="TIME", help=help_text)


def html_option(help_text: str) -> Callable[[Command], Command]:
    """--html, the file of an HTML page."""
    file = click.Path(path_type=Path, dir_okay=False)
    return click.option("--html", "html_file", type=file, metavar="FILE", help=help_text)


@contextmanager
def experiment_remedy(remedy: str) -> Iterator[None]:
    """What to do if the file that the block reads is an experiment."""
    try:
        yield
    except ScenarioInvalid as error:
        from loadgen.scenario.read import ExperimentGiven

        if isinstance(error, ExperimentGiven):
            error.remedy = remedy
        raise


ONLY_SCENARIOS = "The queue takes scenarios; `loadgen experiment FILE` runs the experiment here."


def print_scenario_warnings(loaded: LoadedScenario | None) -> None:
    """Print the warnings of a scenario."""
    for warning in loaded.warnings if loaded is not None else ():
        warn(str(warning))


@contextmanager
def embedded_server_if_needed(*connections: str | None) -> Iterator[str | None]:
    """Keep the embedded server running while one of the connections leads to it, and yield its address. Any running
    server is used, because the command measures nothing."""
    from loadgen.snowflake.profile_lookup import leads_to_embedded

    if not any(map(leads_to_embedded, connections)):
        yield None
        return
    from loadgen.embedded.client import embedded_server

    with embedded_server() as address:
        yield address


def queue_options(command: Command) -> Command:
    """Options of a run that is queued, now or by a schedule."""
    priority = click.option(
        "--priority",
        type=click.IntRange(-1000, 1000),
        default=0,
        show_default=True,
        metavar="N",
        help="Runs with a higher priority are executed first.",
    )
    requires = click.option(
        "--requires",
        metavar="KEY=VALUE",
        multiple=True,
        help="Only runners with this capability execute the run: a label, or host=, os=, python=, driver=, loadgen=."
        " May be repeated.",
    )
    return priority(requires(connection_option(baseline_options(location_options(format_option(command))))))


def baseline_options(command: Command) -> Command:
    baseline = click.option(
        "--baseline",
        metavar="RUN|trend",
        help="Compare with this run, or with the trend of the same scenario; exit code 11 if the run is worse.",
    )
    confirm = click.option(
        "--confirm", is_flag=True, help="With --baseline trend: run once more if a regression is suspected."
    )
    return baseline(confirm(command))


def check_confirm(baseline: str | None, confirm: bool) -> None:
    from orchestrator.nightly.baseline import TREND

    if confirm and baseline != TREND:
        raise UsageError("--confirm needs --baseline trend", remedy="Add --baseline trend.")


def baseline_check_of(baseline: str | None, confirm: bool, place: ControlPlaneLocation) -> BaselineCheck:
    """The baseline of a run that is executed later. Raises if it cannot serve as a baseline now."""
    from loadgen.model.nightly import BaselineCheck
    from orchestrator.nightly.baseline import check_baseline

    check_confirm(baseline, confirm)
    return BaselineCheck(
        baseline=None if baseline is None else check_baseline(baseline, control_access(place, "baseline")),
        confirm=confirm,
    )


_KINDS = {
    "variable": "Variable that queued scenarios may read: ${NAME}. May be repeated.",
    "webhook": "Host that queued scenarios may notify. May be repeated.",
    "connection": "Connection that queued scenarios may use, in addition to the pool's. May be repeated.",
    "command": "Program that queued scenarios may start as notify.command, exactly as they name it. May be repeated.",
    "cluster": "Kubernetes context in which queued scenarios may start workers. May be repeated.",
}


def allow_options(*, hidden: bool = False) -> Callable[[Command], Command]:
    """--allow-variable, --allow-webhook, --allow-connection, --allow-command, --allow-cluster."""

    def add(command: Command) -> Command:
        for kind, help_text in reversed(_KINDS.items()):
            metavar = "HOST" if kind == "webhook" else "NAME"
            command = click.option(f"--allow-{kind}", metavar=metavar, multiple=True, help=help_text, hidden=hidden)(
                command
            )
        return command

    return add


Result = TypeVar("Result")

INTERACTIVE_ATTEMPTS = 5  # half a minute of pauses, because a user waits


def control_options(command: Command) -> Command:
    """-c and location_options, for commands without a scenario."""
    return click.option("-c", "--connection", metavar="NAME", help="The control plane's connection.")(
        location_options(command)
    )


def location_arguments(options: Mapping[str, str | None]) -> dict[str, str | None]:
    """The values of control_options."""
    return {name: options[name] for name in ("connection", "database", "schema", "warehouse")}


def with_interactive_retries(connection: str | None, action: Callable[[RetryPolicy], Result], *, name: str) -> Result:
    """Call `action` in a thread, with retries for a command that a user waits for: each failed attempt is a warning."""
    from loadgen.snowflake.session import RetryPolicy

    stop = threading.Event()

    def note(error: BaseException) -> None:
        if not stop.is_set():
            warn(f"{error}; trying again")

    try:
        with embedded_server_if_needed(connection):
            return run_in_thread(
                lambda: action(RetryPolicy(stop=stop, attempts=INTERACTIVE_ATTEMPTS, note=note)), name=name
            )
    finally:
        stop.set()  # after Ctrl-C the thread still runs, and must not print any more


def with_control_session(
    action: Callable[[ControlSession, RetryPolicy], Result],
    *,
    name: str,
    connection: str | None,
    database: str | None,
    schema: str | None,
    warehouse: str | None,
) -> Result:
    """Call `action` in a thread, with a session of the control plane and a retry policy, and return its result."""
    from loadgen.control.location import resolve_target

    place = resolve_target(None, connection, database=database, schema=schema, warehouse=warehouse).place

    def act(retries: RetryPolicy) -> Result:
        from loadgen.control.setup.installer import call_with_tables

        return call_with_tables(place, name, action, retries)

    return with_interactive_retries(place.connection, act, name=name)


def control_access(
    place: ControlPlaneLocation, name: str
) -> Callable[[Callable[[ControlSession, RetryPolicy], Result]], Result]:
    """with_control_session for this control plane, as a value for code that calls it later."""
    return lambda action: with_control_session(
        action,
        name=name,
        connection=place.connection,
        database=place.database,
        schema=place.schema,
        warehouse=place.warehouse,
    )
