"""`loadgen capture`: record the statements of a warehouse from Snowflake's query history, or from a CSV file of it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loadgen.cli.common import duration_s, echo, warn
from loadgen.cli.options import embedded_server_if_needed, format_option
from loadgen.errors import ConfigurationError, UsageError, cannot_write
from loadgen.log import printable
from loadgen.threads import run_in_thread
from loadgen.units import counted

if TYPE_CHECKING:
    from loadgen.capture.history import HistoryRow, WarehouseHistory
    from loadgen.capture.recorder import CaptureFilter, CaptureRecorder
    from loadgen.model.capture import CaptureManifest

Command = TypeVar("Command", bound=Callable[..., Any])

ATTEMPTS = 5  # to read one page
IMPORT_ROWS, PROGRESS_ROWS = 10_000, 100_000  # per batch, and between two lines of progress


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
    with embedded_server_if_needed(given["connection"]):
        try:
            manifest = run_in_thread(lambda: _capture(given), name="capture")
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
    from loadgen.capture.history import read_csv

    batches = _batches(read_csv(file))
    batch = next(batches, [])  # before the recorder, so that an unreadable file leaves no folder
    recorder = _recorder(out, "a CSV file", given, start=None, end=None)
    number = 0
    while batch:
        recorder.add(batch)
        number += len(batch)
        if not number % PROGRESS_ROWS:
            echo(f"read {counted(number, 'statement')}", err=True)
        batch = next(batches, [])
    _print(recorder.finish(None, "a CSV file does not contain this"), out, given["output"])


def _batches(rows: Iterator[HistoryRow]) -> Iterator[list[HistoryRow]]:
    while batch := list(islice(rows, IMPORT_ROWS)):
        yield batch


def _derive(capture: Path, out: Path) -> None:
    """Write scenario.yaml and its value files."""
    from loadgen.capture.derive import derive
    from loadgen.model.capture import MANIFEST_FILE, CaptureManifest
    from loadgen.prepare.prepare import read_statements

    shown = printable(str(capture), 200)
    try:
        manifest = CaptureManifest.of_text((capture / MANIFEST_FILE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{shown} is not a capture: {error}", remedy="Name a folder that `loadgen capture` wrote."
        ) from error
    derived = derive(manifest, read_statements(capture), capture.resolve().name)
    path = out / "scenario.yaml"
    if path.exists():
        raise UsageError(f"{printable(str(path), 200)} already exists", remedy="Name another folder with --out.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in (*derived.files.items(), (path.name, derived.text)):
            (out / name).write_text(text, "utf-8")
    except OSError as error:
        raise cannot_write(printable(str(out), 200), error, "Name another folder with --out.") from error
    echo(f"wrote {path}: set its target, then run `loadgen validate {path} --plan`")
    if "sessions.yaml" in derived.files:
        echo(f"wrote {out / 'sessions.yaml'}: the same statements in a closed loop with the recorded think time")


def _capture(given: dict[str, Any]) -> CaptureManifest:
    from loadgen.capture.history import WarehouseHistory
    from loadgen.snowflake.profile_lookup import find_profile
    from loadgen.snowflake.session import RetryPolicy

    profile = find_profile(given["connection"], environ=os.environ, overrides={})
    stop = threading.Event()
    history = WarehouseHistory(profile, given["warehouse"], RetryPolicy(stop=stop, attempts=ATTEMPTS, note=_note_retry))
    try:
        now = history.now()
        start, end = _span(given, now)
        source = f"the history of warehouse {printable(given['warehouse'], 100)}"
        recorder = _recorder(given["out"], source, given, start=start, end=end)
        start, end = recorder.options.start or start, recorder.options.end or end
        if recorder.left_until is not None:
            end = recorder.left_until
            echo(f"continuing at {_shown(end)}, with {counted(recorder.taken, 'statement')}", err=True)
        for part in history.parts(start, end):
            recorder.add(part.rows)
            if part.left_until is None or part.left_until < end:
                end = part.left_until or start
                recorder.save(end)
            echo(f"{counted(recorder.taken, 'statement')}, back to {_shown(end)}", err=True)
        return recorder.finish(*_unrecorded(history, start, recorder.options.end or now, now))
    finally:
        stop.set()
        history.close()


def _unrecorded(history: WarehouseHistory, start: datetime, end: datetime, now: datetime) -> tuple[int | None, str]:
    """The number of statements that the history lacks, and a remark on it."""
    from loadgen.capture.history import AGGREGATE_LATE, HistoryUnreadable

    try:
        found = history.unrecorded(start, end)
    except HistoryUnreadable as error:
        warn(f"statements that are missing in the history were not counted: {error}")
        return None, "SNOWFLAKE.ACCOUNT_USAGE.AGGREGATE_QUERY_HISTORY could not be read with this role"
    late = end > now - AGGREGATE_LATE
    return found, "AGGREGATE_QUERY_HISTORY is up to 3 hours late, so there may be more" if late else ""


def _recorder(
    out: Path, source: str, given: dict[str, Any], *, start: datetime | None, end: datetime | None
) -> CaptureRecorder:
    try:
        from loadgen.capture.recorder import CaptureOptions, CaptureRecorder
    except ModuleNotFoundError as error:
        remedy = "Install loadgen with its extra `capture`: pip install 'loadgen[capture]'."
        raise ConfigurationError(f"the package {error.name} is not installed", remedy=remedy) from error

    options = CaptureOptions(
        source=source,
        filters=_filter(given),
        keep_values=given["keep_values"],
        hide_names=given["hide_names"],
        start=start,
        end=end,
    )
    unrelated = ("output", "out", "connection")
    arguments = {name: str(value) for name, value in given.items() if name not in unrelated and value is not None}
    return CaptureRecorder(out, options, arguments)


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


def _span(given: dict[str, Any], now: datetime) -> tuple[datetime, datetime]:
    """Start and end in naive UTC, between the reach of the history and now."""
    from loadgen.capture.history import OLDEST

    start, end = _moment(given["since"], "--from", now), min(now, _moment(given["until"] or "0s", "--to", now))
    if start >= end:
        what = f"--from ({_shown(start)}) is not before --to ({_shown(end)})"
        raise UsageError(what, remedy="Write times in UTC, or for example --from 4h --to 2h.")
    if start < now - OLDEST:
        raise UsageError(
            f"--from ({_shown(start)}) is more than {OLDEST.days} days ago",
            remedy="Choose a later --from: QUERY_HISTORY has no older statements.",
        )
    return start, end


def _moment(text: str, option: str, now: datetime) -> datetime:
    """A time, or a duration before now, as naive UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now - timedelta(seconds=duration_s(text, option))
        except (UsageError, OverflowError) as error:
            remedy = f"Write {option} 2026-11-15T08:00 (UTC), or 2h for two hours ago."
            raise UsageError(f"{option} {printable(text, 40)!r} is not a time", remedy=remedy) from error
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _shown(moment: datetime) -> str:
    return f"{moment.isoformat(sep=' ', timespec='seconds')} UTC"


def _note_retry(error: BaseException) -> None:
    warn(f"{error}; trying again")


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
