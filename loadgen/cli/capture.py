"""`loadgen capture`: record the statements of a warehouse from Snowflake's query history, or from a CSV file of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loadgen.cli.common import duration_s, echo, warn
from loadgen.cli.options import embedded_server_if_needed, format_option
from loadgen.errors import ConfigurationError, UsageError
from loadgen.log import printable
from loadgen.threads import run_in_thread
from loadgen.units import counted

if TYPE_CHECKING:
    from loadgen.capture.job import CaptureJob
    from loadgen.capture.recorder import CaptureFilter
    from loadgen.model.capture import CaptureManifest

Command = TypeVar("Command", bound=Callable[..., Any])


def recording_options(command: Command) -> Command:
    """Options of a capture from either source."""
    options = (
        click.option("--user", metavar="NAME", help="Only statements of this user."),
        click.option("--role", metavar="NAME", help="Only statements that ran with this role."),
        click.option("--database", metavar="NAME", help="Only statements that ran in this database."),
        click.option("--tag", metavar="TEXT", help="Only statements whose QUERY_TAG contains this text."),
        click.option("--kind", type=click.Choice(["read", "write"]), help="Only reads, or only writes."),
        click.option("--min-duration", metavar="TIME", help="Only statements that took at least this time: 50ms."),
        click.option("--max-duration", metavar="TIME", help="Only statements that took at most this time: 1m."),
        click.option(
            "--keep-values", is_flag=True, help="Keep literals and bind values, except those that look like secrets."
        ),
        click.option(
            "--hide-names", is_flag=True, help="Also replace names of tables and columns, to share the capture."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return format_option(command)


@click.group(
    invoke_without_command=True,
    epilog="\b\nExample:\n  loadgen capture -c prod --warehouse WH --from 4h --to 2h --out captured",
)
@click.option("-c", "--connection", metavar="NAME", help="The Snowflake connection.")
@click.option("--warehouse", metavar="NAME", help="The warehouse whose history is read.")
@click.option(
    "--from", "since", metavar="TIME", help="Start of the span: 2026-11-15T08:00 (UTC), or 2h for two hours ago."
)
@click.option("--to", "until", metavar="TIME", help="End of the span.  [default: now]")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="A new folder for the capture.")
@click.option(
    "--scenario",
    metavar="CAPTURE",
    type=click.Path(path_type=Path),
    help="Derive a scenario from this capture into --out, instead of recording.",
)
@recording_options
@click.pass_context
def capture(context: click.Context, /, **given: Any) -> None:
    """Record the statements that a warehouse executed, to replay them as a load test.

    Reads Snowflake's query history: the last seven days from INFORMATION_SCHEMA, older statements from ACCOUNT_USAGE.
    Literals and bind values are replaced by consistent pseudonyms of the same type, and comments are removed.
    Statements that cannot be parsed are left out and counted. To continue an interrupted capture, repeat the command.
    `load: {mode: replay, capture: DIR}` in a scenario replays the capture; --scenario derives a mix with rates from it.
    """
    if context.invoked_subcommand is not None:
        return
    if given["scenario"] is not None and given["out"] is not None:
        _derive(given["scenario"], given["out"])
        return
    needed = (("warehouse", "--warehouse"), ("since", "--from"), ("out", "--out"))
    for name, option in needed if given["scenario"] is None else needed[2:]:
        if not given[name]:
            raise UsageError(f"the option {option} is missing", remedy="`loadgen capture --help` shows an example.")
    since, until = _moment(given["since"], "--from"), _moment(given["until"] or "0s", "--to")
    job = _job(given["out"], given)
    with embedded_server_if_needed(given["connection"]):
        try:
            manifest = run_in_thread(
                lambda: job.record_warehouse(given["connection"], given["warehouse"], since, until), name="capture"
            )
        except KeyboardInterrupt:
            echo("the capture is incomplete: repeat the command to continue it", err=True)
            raise
    _print(manifest, given["out"], given["output"])


@capture.command("import", epilog="\b\nExample:\n  loadgen capture import history.csv --out captured")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--out", metavar="DIR", type=click.Path(path_type=Path), required=True, help="A new folder for the capture."
)
@recording_options
def import_csv(file: Path, out: Path, **given: Any) -> None:
    """Make a capture from a CSV file with rows of QUERY_HISTORY.

    The file has a header. Required columns: QUERY_TEXT, SESSION_ID, START_TIME, and TOTAL_ELAPSED_TIME or END_TIME.
    Optional columns: DATABASE_NAME, SCHEMA_NAME, USER_NAME, ROLE_NAME, QUERY_TAG, EXECUTION_STATUS, ROWS_PRODUCED,
    BIND_VALUES.
    """
    _print(_job(out, given).record_file(file), out, given["output"])


def _derive(capture: Path, out: Path) -> None:
    """Write scenario.yaml and its value files."""
    from loadgen.capture.derive import SESSIONS, derive, read_manifest, write_scenario
    from loadgen.prepare.prepare import read_statements

    derived = derive(read_manifest(capture), read_statements(capture), capture.resolve().name)
    path = write_scenario(derived, out)
    echo(f"wrote {path}: set its target, then run `loadgen validate {path} --plan`")
    if SESSIONS in derived.files:
        echo(f"wrote {out / SESSIONS}: the same statements in a closed loop with the recorded think time")


def _job(out: Path, given: dict[str, Any]) -> CaptureJob:
    try:
        from loadgen.capture.job import CaptureJob
    except ModuleNotFoundError as error:
        remedy = "Install loadgen with its extra `capture`: pip install 'loadgen[capture]'."
        raise ConfigurationError(f"the package {error.name} is not installed", remedy=remedy) from error

    unrelated = ("output", "out", "connection")
    return CaptureJob(
        folder=out,
        filters=_filter(given),
        keep_values=given["keep_values"],
        hide_names=given["hide_names"],
        arguments={name: str(value) for name, value in given.items() if name not in unrelated and value is not None},
        tell=lambda line: echo(line, err=True),
        warn=warn,
    )


def _filter(given: dict[str, Any]) -> CaptureFilter:
    from loadgen.capture.recorder import CaptureFilter
    from loadgen.model.capture import StatementRole

    least, most = (
        None if given[name] is None else duration_s(given[name], f"--{name.replace('_', '-')}") * 1000
        for name in ("min_duration", "max_duration")
    )
    return CaptureFilter(
        user=given["user"],
        role=given["role"],
        database=given["database"],
        tag=given["tag"],
        kinds=frozenset([StatementRole(given["kind"])] if given["kind"] else []),
        min_ms=least,
        max_ms=most,
    )


def _moment(text: str, option: str) -> datetime | timedelta:
    """A time in naive UTC, or a duration before now."""
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        try:
            return timedelta(seconds=duration_s(text, option))
        except UsageError as error:
            remedy = f"Write {option} 2026-11-15T08:00 (UTC), or 2h for two hours ago."
            raise UsageError(f"{option} {printable(text, 40)!r} is not a time", remedy=remedy) from error


def _print(manifest: CaptureManifest, out: Path, output: str) -> None:
    if output == "json":
        echo(json.dumps({"folder": str(out), **json.loads(manifest.text())}, indent=2))
        return
    from loadgen.capture.recorder import unrecorded_text
    from loadgen.model.capture import LeftOutReason

    left = {LeftOutReason[name.upper()]: count for name, count in manifest.left_out.items() if count}
    echo(f"captured {counted(manifest.statements, 'statement')} of {counted(manifest.sessions, 'session')} in {out}")
    echo(f"  {manifest.span_from} to {manifest.span_to}, {counted(manifest.templates_total, 'template')}")
    echo(f"  values: {'pseudonyms' if manifest.pseudonyms else 'real'}")
    for reason, count in left.items():
        echo(f"  left out: {count:,} because {reason.value}")
    echo(f"  {unrecorded_text(manifest)}")
