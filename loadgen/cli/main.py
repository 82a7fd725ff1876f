"""The `loadgen` program: finds sub-commands without importing them, and turns errors into text and exit codes.

A command prints its result to stdout and everything else to stderr. It ends by returning None or an exit code (a
verdict that is not an error, such as 10), by `ctx.exit(code)`, or by raising a LoadgenError. Errors become `error:` and
`hint:` lines here and nowhere else. With `--format json` an object with the only key `error` goes to stdout as well, so
a command that may still fail prints no JSON before its end.

`loadgen --help` imports everything that this file imports, so it must import nothing that takes long. The module of a
command is imported when the command is called.
"""

import atexit
import contextlib
import difflib
import importlib
import inspect
import itertools
import json
import logging
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

import loadgen
from loadgen.cli.common import OutputClosed, discard_output, echo, flush_output, output_failures
from loadgen.errors import LoadgenError, OutputFailed
from loadgen.log import LINE_LIMIT, configure, printable, redact
from loadgen.process import collect_less_often
from loadgen.values import dataclass

PROGRAM = "loadgen"
_log = logging.getLogger(__name__)

# --- the commands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A sub-command: where its code is, and what `loadgen --help` shows without importing it."""

    target: str
    summary: str
    example: str


COMMANDS = {
    "doctor": CommandEntry(
        "loadgen.cli.doctor:doctor",
        "Check the machine, the connection, the privileges and the tables.",
        "loadgen doctor -c prod my-benchmark/scenario.yaml",
    ),
    "setup": CommandEntry(
        "loadgen.cli.setup:setup",
        "Create or update the tables that store runs.",
        "loadgen setup -c prod",
    ),
    "grants": CommandEntry(
        "loadgen.cli.setup:grants",
        "Print the GRANT statements for loadgen's roles, offline.",
        "loadgen grants my-benchmark/scenario.yaml --user NIGHTLY > grants.sql",
    ),
    "connections": CommandEntry(
        "loadgen.cli.doctor:connections",
        "List the available Snowflake connections, and test one.",
        "loadgen connections test -c prod",
    ),
    "init": CommandEntry(
        "loadgen.cli.validate:init",
        "Write a commented scenario to start with, and its schema for editors.",
        "loadgen init my-benchmark",
    ),
    "validate": CommandEntry(
        "loadgen.cli.validate:validate",
        "Check scenario and experiment files, and show their plan, offline.",
        "loadgen validate examples/quickstart.yaml --plan",
    ),
    "prepare": CommandEntry(
        "loadgen.cli.prepare:prepare",
        "Create and fill the tables of a scenario; can be resumed.",
        "loadgen prepare examples/quickstart.yaml",
    ),
    "run": CommandEntry(
        "loadgen.cli.run:run",
        "Run a scenario: prepare, warm up, measure, report.",
        "loadgen run examples/quickstart.yaml",
    ),
    "capture": CommandEntry(
        "loadgen.cli.capture:capture",
        "Record the statements of a warehouse, pseudonymized, to replay them.",
        "loadgen capture -c prod --warehouse WH --from 2h --out captured",
    ),
    "watch": CommandEntry(
        "loadgen.cli.watch:watch",
        "Show a run live, on any machine, until it ends.",
        "loadgen watch latest",
    ),
    "status": CommandEntry(
        "loadgen.cli.runs:status",
        "Show the state of a run.",
        "loadgen status latest",
    ),
    "stop": CommandEntry(
        "loadgen.cli.watch:stop",
        "Ask a run to end gracefully, from any machine.",
        "loadgen stop 20261115-0200-orders-7f3a",
    ),
    "runs": CommandEntry(
        "loadgen.cli.runs:runs",
        "List runs, show one, print its log, recover lost runs.",
        "loadgen runs show latest",
    ),
    "compare": CommandEntry(
        "loadgen.cli.report:compare",
        "Compare two runs: changes with confidence intervals, and a verdict.",
        "loadgen compare latest~1 latest --html compare.html",
    ),
    "trend": CommandEntry(
        "loadgen.cli.report:trend",
        "Show the runs of a scenario over time: is the newest worse?",
        "loadgen trend orders-mix --html trend.html",
    ),
    "experiment": CommandEntry(
        "loadgen.cli.experiment:experiment",
        "Compare arms of a scenario in randomized blocks: which is better?",
        "loadgen experiment examples/experiments/two_queries.yaml --dry-run",
    ),
    "experiments": CommandEntry(
        "loadgen.cli.experiment:experiments",
        "List experiments, and show the result of one.",
        "loadgen experiments show latest",
    ),
    "report": CommandEntry(
        "loadgen.cli.report:report",
        "Make a report of a run from its tables.",
        "loadgen report latest --out report.html",
    ),
    "queue": CommandEntry(
        "loadgen.cli.queue:queue",
        "Queue runs: add, list, show, cancel and retry them.",
        "loadgen queue add nightly.yaml --priority 5",
    ),
    "pool": CommandEntry(
        "loadgen.cli.pool:pool",
        "Execute queued runs on this machine.",
        "loadgen pool run -c prod --max 4 --labels zone=eu",
    ),
    "workers": CommandEntry(
        "loadgen.cli.pool:workers",
        "List the runners of all pools; drain one, or mark it as offline.",
        "loadgen workers list -c prod --status ONLINE",
    ),
    "schedule": CommandEntry(
        "loadgen.cli.schedule:schedule",
        "Queue scenarios by cron expressions.",
        'loadgen schedule add nightly nightly.yaml --cron "0 2 * * *"',
    ),
    "schema": CommandEntry(
        "loadgen.cli.validate:schema",
        "Print the JSON Schema of scenario or experiment files.",
        "loadgen schema > scenario.schema.json",
    ),
    "completion": CommandEntry(
        "loadgen.cli.validate:completion",
        "Print the completion script for a shell.",
        "loadgen completion bash",
    ),
    "worker": CommandEntry(
        "loadgen.cli.worker:worker",
        "Run one worker process of a run; spawners start it.",
        "loadgen worker --run-id RUN --worker-group-id 0 --worker-group-count 1",
    ),
    "upload": CommandEntry(
        "loadgen.cli.enrich:upload",
        "Store results that workers could not store.",
        "loadgen upload 20261115-0200-orders-7f3a",
    ),
    "enrich": CommandEntry(
        "loadgen.cli.enrich:enrich",
        "Add server-side times from the query history to logged statements.",
        "loadgen enrich latest -c prod",
    ),
    "embedded": CommandEntry(
        "loadgen.cli.embedded:embedded",
        "Run the local Snowflake-compatible server; no account is needed.",
        "loadgen embedded serve --port 8085",
    ),
}

SECTIONS = {
    "Scenarios and runs": ("init", "validate", "prepare", "run", "watch", "status", "stop", "schema", "completion"),
    "Results": ("runs", "report", "compare", "experiment", "experiments", "trend", "enrich", "upload"),
    "Snowflake account": ("connections", "doctor", "grants", "setup", "capture", "embedded"),
    "Nightly benchmarks": ("schedule", "queue", "pool", "workers"),
    "Started by loadgen": ("worker",),
}
FIRST_STEPS = ("run", "init", "validate", "runs", "doctor")  # `loadgen --help` shows their examples

COMMAND_HINTS = {  # words that users may type, and the command that they mean
    "plan": "validate --plan",
    "list": "runs list",
    "ls": "runs list",
    "show": "runs show",
    "logs": "runs logs",
    "log": "runs logs",
    "recover": "runs recover",
    "prune": "runs prune",
    "serve": "embedded serve",
    "server": "embedded serve",
    "test": "connections test",
    "cancel": "stop",
    "help": "--help",
}


# --- the program -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class GlobalOptions:
    """Options that every command accepts, before or after its name."""

    debug: bool = False
    log_level: str = "warning"
    log_file: Path | None = None

    def apply(self) -> None:
        """Configure logging."""
        level = logging.DEBUG if self.debug else logging.getLevelNamesMapping()[self.log_level.upper()]
        configure(level=level, file=self.log_file, tracebacks=self.debug)


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value not in (None, False):
        options = ctx.ensure_object(GlobalOptions)
        setattr(options, str(param.name), value)
        options.apply()


def _global_options(*, hidden: bool) -> list[click.Parameter]:
    """Visible for the program; hidden, but accepted, after a sub-command, where users add --debug."""
    levels = click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)
    writable = click.Path(dir_okay=False, path_type=Path)

    def option(name: str, help_text: str, **kind: Any) -> click.Option:
        variable = None if hidden else f"LOADGEN_{name.upper().replace('-', '_')}"
        return click.Option(
            [f"--{name}"],
            envvar=variable,
            help=help_text,
            expose_value=False,
            callback=_remember,
            hidden=hidden,
            **kind,
        )

    return [
        option("debug", "Log everything, and show tracebacks of errors.", is_flag=True),
        option("log-level", "Least important level to log on stderr.  [default: warning]", type=levels),
        option("log-file", "Append the log to this file too, as JSON lines.", type=writable),
    ]


_GLOBAL_NAMES = {name for option in _global_options(hidden=True) for name in option.opts}


class LazyGroup(click.Group):
    """Finds sub-commands in a table, and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        command.short_help = entry.summary
        command.epilog = command.epilog or _examples([entry])
        _complete(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in COMMANDS or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        near = COMMAND_HINTS.get(args[0]) or _near(args[0], COMMANDS)
        suggestion = f" Did you mean {near!r}?" if near else ""
        raise click.UsageError(f"No such command {args[0]!r}.{suggestion}", ctx)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with output_failures():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with output_failures():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{widest}}", COMMANDS[name].summary) for name in names])


def _near(word: str, known: Collection[str]) -> str | None:
    """The only known word that begins with `word`, or else a known word that differs in at most two letters."""
    longer = [candidate for candidate in known if candidate.startswith(word)]
    if len(longer) == 1:
        return longer[0]
    for candidate in difflib.get_close_matches(word, known):
        letters, others = Counter(word), Counter(candidate)
        if ((letters - others) + (others - letters)).total() <= 2:
            return candidate
    return None


def _complete(command: click.Command) -> None:
    """Accept global options after the command, show whole sentences in the list of a group, where click would cut them,
    and call a number N instead of INTEGER RANGE."""
    for param in command.params:
        if isinstance(param, click.Option) and isinstance(param.type, (click.IntRange, click.types.IntParamType)):
            param.metavar = param.metavar or "N"
    if isinstance(command, click.Group):
        for child in command.commands.values():
            child.short_help = child.short_help or _first_sentence(child.help or "")
            _complete(child)
    taken = {name for param in command.params for name in param.opts}
    command.params += [option for option in _global_options(hidden=True) if taken.isdisjoint(option.opts)]


def _first_sentence(text: str) -> str:
    paragraph = " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
    sentence, dot, _ = paragraph.partition(". ")
    return sentence + dot.rstrip()


def _examples(entries: Sequence[CommandEntry]) -> str:
    title = "Example:" if len(entries) == 1 else "Examples:"
    return "\n".join(["\b", title, *(f"  {entry.example}" for entry in entries)])


@click.group(
    cls=LazyGroup,
    params=_global_options(hidden=False),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_examples([COMMANDS[name] for name in FIRST_STEPS]),
)
@click.version_option(loadgen.__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Generate load on Snowflake, measure response times, and report the results."""


# --- errors become text and exit codes -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error as it is shown: exit code, message and hint."""

    exit_code: int
    what: str
    hint: str | None = None


def _fill_closed_streams() -> None:
    """Open /dev/null for closed standard streams (`>&-`): the next file or socket would get their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program, and return its exit code. Without `argv`, it ends the process. Raises nothing but SystemExit."""
    if argv is None:
        collect_less_often()
    code = _run(argv)
    if argv is None and not any(thread.is_alive() and not thread.daemon for thread in _other_threads()):
        atexit._run_exitfuncs()
        _leave(code)
    return code


def _other_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread is not threading.main_thread()]


def _run(argv: Sequence[str] | None) -> int:
    if argv is None and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see loadgen/__main__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _fill_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    _tolerate_any_encoding()
    configure()
    try:
        result = cli.main(args=arguments, prog_name=PROGRAM, standalone_mode=False, obj=GlobalOptions())
        flush_output()
    except KeyboardInterrupt as error:
        code = _fail(error, json_wanted=_wants_json(arguments))
        if argv is None and threading.active_count() > 1:
            _leave(code)
        return code
    except Exception as error:
        return _fail(error, json_wanted=_wants_json(arguments))
    finally:
        _give_up_stderr()
    return result if isinstance(result, int) else 0


def _give_up_stderr() -> None:
    """Discard output that stderr does not accept: otherwise the interpreter would exit with 120, not with our code."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        discard_output(sys.stderr)


def _leave(code: int) -> NoReturn:
    """End the process at once. Finalizing the interpreter takes longer than many commands, and aborts if a thread has
    locked a standard stream."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or missing from the start
            stream.flush()
    os._exit(code)


def _fail(error: BaseException, *, json_wanted: bool) -> int:
    """Report the error, and return the exit code."""
    if isinstance(error, (OutputClosed, BrokenPipeError)):
        discard_output(sys.stdout)
        return 141
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        echo(error.format_message(), err=True)
        return error.exit_code
    if isinstance(error, OutputFailed):
        discard_output(sys.stdout)  # Python would try to write it again at exit
    failure = describe_error(error)
    if not isinstance(error, click.ClickException):
        _log.info("command_failed", exc_info=error)
    what, hint = (_safe_text(text or "") for text in (failure.what, failure.hint))
    try:
        if json_wanted:
            entry = {"message": what, "hint": hint or None, "exit_code": failure.exit_code}
            echo(json.dumps({"error": entry}))
        echo(f"error: {what}" + (f"\nhint: {hint}" if hint else ""), err=True)
    except OSError:  # stdout or stderr is closed: only the exit code remains
        discard_output(sys.stdout)
    return failure.exit_code


def _safe_text(text: str) -> str:
    """The text without secrets. Further lines are indented, so that none looks like a line of loadgen."""
    return re.sub(r"\n(?! )", "\n  ", printable(redact(text), LINE_LIMIT, multiline=True))


def describe_error(error: BaseException) -> ErrorReport:
    """The report of an error of any kind."""
    match error:
        case LoadgenError():
            return ErrorReport(error.exit_code, str(error), error.remedy)
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else PROGRAM
            return ErrorReport(error.exit_code, _usage_message(error), f"`{command} --help` shows what it accepts.")
        case click.ClickException():
            return ErrorReport(
                max(error.exit_code, 2), error.format_message()
            )  # 1, click's default, is our code for bugs
        case click.Abort() if isinstance(error.__cause__, EOFError):
            return ErrorReport(2, "cannot prompt: stdin is not a terminal", "Give the answer as an option.")
        case click.Abort() | KeyboardInterrupt():
            return ErrorReport(130, "stopped")
        case _:
            detail = f": {error}" if str(error) else ""
            hint = "This may be a bug in loadgen. Add --debug to see where it happened."
            return ErrorReport(1, f"unexpected {type(error).__name__}{detail}", hint)


def _usage_message(error: click.UsageError) -> str:
    """The message, without hidden options among the suggestions."""
    if isinstance(error, click.NoSuchOption) and error.possibilities and error.ctx is not None:
        params = error.ctx.command.params
        hidden = {name for one in params if isinstance(one, click.Option) and one.hidden for name in one.opts}
        shown = [name for name in error.possibilities if name not in hidden or name in _GLOBAL_NAMES]
        return click.NoSuchOption(error.option_name, possibilities=shown, ctx=error.ctx).format_message()
    return error.format_message()


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--format json` was given. It is read from the arguments, because a usage error prevents parsing."""
    return "--format=json" in arguments or ("--format", "json") in itertools.pairwise(arguments)


def _tolerate_any_encoding() -> None:
    """Print characters that the encoding of the terminal lacks as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
