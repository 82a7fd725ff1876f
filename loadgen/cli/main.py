"""The `loadgen` program: finds sub-commands without importing them, and turns errors into text and exit codes.

A command prints its result to stdout and everything else to stderr. It ends by returning None or an exit code (a
verdict that is not an error, such as 10), by `ctx.exit(code)`, or by raising a LoadgenError. Errors become `error:` and
`hint:` lines here and nowhere else. With `--format json` an object with the only key `error` goes to stdout as well, so
a command that may still fail prints no JSON before its end.

`loadgen --help` imports everything that this file imports, so it must import nothing that takes long; see COMMANDS.
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
from loadgen.cli.commands import COMMAND_HINTS, COMMANDS, FIRST_STEPS, SECTIONS, CommandEntry
from loadgen.cli.common import OutputClosed, discard_output, echo, flush_output, output_failures
from loadgen.errors import LoadgenError, OutputFailed
from loadgen.log import LINE_LIMIT, configure, printable, redact
from loadgen.process import collect_less_often
from loadgen.values import dataclass

PROGRAM = "loadgen"
_log = logging.getLogger(__name__)


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
        suggestion = f"; did you mean {near!r}?" if near else ""
        raise click.UsageError(f"no such command {args[0]!r}{suggestion}", ctx)

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
            return ErrorReport(error.exit_code, error.format_message(), f"`{command} --help` shows what it accepts.")
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


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--format json` was given. It is read from the arguments, because a usage error prevents parsing."""
    return "--format=json" in arguments or ("--format", "json") in itertools.pairwise(arguments)


def _tolerate_any_encoding() -> None:
    """Print characters that the encoding of the terminal lacks as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
