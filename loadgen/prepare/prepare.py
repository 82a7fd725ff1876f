"""Prepares a scenario: creates, fills and checks its tables, then executes its statements. The entry point."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import threading
import zlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TextIO

from loadgen.clock import Clock
from loadgen.errors import ConfigurationError, LoadgenError, RunFailed, ScenarioInvalid
from loadgen.model.capture import (
    MANIFEST_FILE,
    STATEMENTS_FILE,
    CaptureManifest,
    InvalidCapture,
    LeftOutReason,
    RecordedStatement,
    Replay,
    StatementRole,
    check_header,
)
from loadgen.prepare import table_definition
from loadgen.prepare.fill import (
    ROWS_FIRST,
    ROWS_MAX,
    TableFiller,
    TableState,
    TableStatus,
    rows_per_statement_max,
    survey,
    table_status,
    tables_of,
)
from loadgen.prepare.session import PreparationStopped, PrepareSession, cancel_running
from loadgen.prepare.table_definition import TableDefinition, shown
from loadgen.scenario.document import ScenarioProblems
from loadgen.scenario.file import read_manifest, require_inside
from loadgen.scenario.model import FilePool, QueryPool, Scenario, TableType, with_workers
from loadgen.snowflake.failure import classify, describe
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.session import OpenConnection
from loadgen.units import NS_PER_S, counted
from loadgen.values import dataclass
from loadgen.workload.pools import Pool, pool_from_rows, read_csv_column
from loadgen.workload.replay import CaptureUnusable, UserStatement, as_recorded, replay_pools

if TYPE_CHECKING:
    from loadgen.capture.statement_text import FreshValues, StatementRoles
    from loadgen.scenario.read import LoadedScenario


class TableOutcome(StrEnum):
    CREATED = "created"
    RESUMED = "resumed"  # it existed with fewer rows
    READY = "already there"
    EXISTING = "existing"  # of type existing, readable


class PreparationStep(StrEnum):
    LOOKING = "looking"
    FILLING = "filling"
    VERIFYING = "verifying"
    STATEMENTS = "statements"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationProgress:
    """The progress of a preparation. `table` is empty in steps that concern no table."""

    step: PreparationStep
    table: str = ""
    rows_there: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTable:
    name: str
    type: TableType
    outcome: TableOutcome
    dropped: bool
    rows: int
    rows_added: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationResult:
    tables: tuple[PreparedTable, ...]
    statements: int
    seconds: float


class TableConflict(ConfigurationError):
    """A table with this name exists and differs from the scenario."""


def prepare_scenario(
    session: PrepareSession,
    scenario: Scenario,
    *,
    drop: bool = False,
    force: bool = False,
    progress: Callable[[PreparationProgress], None],
    stop: threading.Event,
    clock: Clock,
) -> PreparationResult:
    """Create everything that is missing. Safe to repeat; a repetition continues an interrupted preparation.

    With `drop` the scenario's own tables are dropped first; with `force` too, also tables that loadgen has not made.
    Raises PreparationStopped when `stop` is set before the end, and other LoadgenErrors. `progress` is called by the
    calling thread.
    """
    started_ns = clock.monotonic_ns()
    progress(PreparationProgress(step=PreparationStep.LOOKING))
    try:
        found = survey(session, scenario)
        _refuse(found, drop=drop, force=force)
        work = _Work(session, progress=progress, stop=stop, clock=clock)
        dropped = _drop(session, found) if drop else set()
        tables = [work.prepare(standing, dropped=standing.name.sql in dropped) for standing in found]
        work.run_statements(scenario.prepare.statements)
    except LoadgenError as error:
        if stop.is_set() and not isinstance(error, PreparationStopped):
            raise PreparationStopped(f"stopped; the running statement ended with: {error}") from error
        raise
    seconds = (clock.monotonic_ns() - started_ns) / NS_PER_S
    return PreparationResult(tables=tuple(tables), statements=len(scenario.prepare.statements), seconds=seconds)


def _refuse(found: list[TableStatus], *, drop: bool, force: bool) -> None:
    """Raise TableConflict or TableDamaged before anything is changed."""
    for standing in found:
        if standing.state is TableState.FOREIGN and not (drop and force):
            more = "" if drop else " --drop --force drops it and creates it again."
            raise TableConflict(
                f"table {shown(standing.name)} exists, and was not created by loadgen",
                remedy="Rename the table in the scenario, or write type: existing to use it as it is."
                + (" Add --force to drop it." if drop else more),
            )
        if standing.damage is not None and not drop:
            raise standing.damage
        if standing.state is TableState.DIFFERENT and not drop:
            raise TableConflict(
                f"table {shown(standing.name)} was created from another definition: {'; '.join(standing.differences)}",
                remedy="--drop drops it and creates it again; or rename the table in the scenario.",
            )


def _drop(session: PrepareSession, found: list[TableStatus]) -> set[str]:
    """Drop the tables that loadgen creates; never tables of type existing."""
    dropped = set()
    for standing in found:
        if standing.definition is not None and standing.state is not TableState.MISSING:
            session.change(table_definition.drop_table(standing.name))
            dropped.add(standing.name.sql)
    return dropped


class _Work:
    """One preparation, table by table."""

    def __init__(
        self,
        session: PrepareSession,
        *,
        progress: Callable[[PreparationProgress], None],
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        self._session = session
        self._progress = progress
        self._stop = stop
        self._clock = clock

    def prepare(self, standing: TableStatus, *, dropped: bool) -> PreparedTable:
        started_ns = self._clock.monotonic_ns()
        definition = standing.definition
        if definition is None:
            return _result(standing, TableType.EXISTING, TableOutcome.EXISTING, started_ns, self._clock)
        outcome = TableOutcome.READY if standing.state is TableState.READY else TableOutcome.RESUMED
        if dropped or standing.state is TableState.MISSING:
            self._check_stop(definition, 0)
            standing, outcome = self._create(definition), TableOutcome.CREATED
        if standing.state is not TableState.READY:
            self._fill(definition, standing.rows_there)
        return _result(
            standing, definition.table.type, outcome, started_ns, self._clock, dropped=dropped, rows=definition.rows
        )

    def _create(self, definition: TableDefinition) -> TableStatus:
        self._session.change(table_definition.create_table(definition))
        standing = table_status(self._session, definition)
        if standing.damage is not None:
            raise standing.damage
        if standing.state not in (TableState.INCOMPLETE, TableState.READY):
            raise TableConflict(
                f"table {shown(definition.name)} was created by another program at the same time, and differs",
                remedy="Repeat the same command to see the differences.",
            )
        return standing

    def _fill(self, definition: TableDefinition, there: int) -> None:
        name = shown(definition.name)
        filler = TableFiller(self._session, definition, there, self._clock)

        def tell(rows_there: int, step: PreparationStep = PreparationStep.FILLING) -> None:
            self._progress(PreparationProgress(step=step, table=name, rows_there=rows_there, rows=definition.rows))

        try:
            filler.fill(self._stop, tell)
        except LoadgenError as error:
            if self._stop.is_set():
                raise self._stopped(definition, filler.there, at_least=True) from error
            raise
        self._check_stop(definition, filler.there)
        tell(filler.there, PreparationStep.VERIFYING)
        filler.verify()

    def run_statements(self, texts: tuple[str, ...]) -> None:
        """Execute prepare.statements, in every preparation: they restore a known state of the tables."""
        for number, sql in enumerate(texts):
            if self._stop.is_set():
                raise PreparationStopped(f"stopped: all tables are complete, prepare.statements[{number}] did not run")
            self._progress(PreparationProgress(step=PreparationStep.STATEMENTS, rows_there=number, rows=len(texts)))
            what = f"prepare.statements[{number}]: {sql}"
            self._session.retried(partial(self._execute, sql, what), what)

    def _execute(self, sql: str, what: str) -> None:
        """Execute a statement of the user. It is not sent again if it may have been executed."""
        try:
            self._session.execute_once(sql)
        except Exception as error:
            if classify(error).unknown_outcome:
                raise RunFailed(
                    f"{what}: no answer, so the statement may have been executed: {describe(error)}",
                    remedy="Repeat the same command; statements of prepare must be idempotent.",
                ) from error
            raise

    def _check_stop(self, definition: TableDefinition, there: int) -> None:
        if self._stop.is_set() and there < definition.rows:
            raise self._stopped(definition, there)

    def _stopped(self, definition: TableDefinition, there: int, *, at_least: bool = False) -> PreparationStopped:
        number = f"{'at least ' if at_least else ''}{there:,}"
        return PreparationStopped(f"stopped: {shown(definition.name)} has {number} of {definition.rows:,} rows")


def _result(
    standing: TableStatus,
    kind: TableType,
    outcome: TableOutcome,
    started_ns: int,
    clock: Clock,
    *,
    dropped: bool = False,
    rows: int = 0,
) -> PreparedTable:
    return PreparedTable(
        name=shown(standing.name),
        type=kind,
        outcome=outcome,
        dropped=dropped,
        rows=rows,
        rows_added=rows - standing.rows_there,
        seconds=(clock.monotonic_ns() - started_ns) / NS_PER_S,
    )


def read_pools(session: PrepareSession, scenario: Scenario, folder: Path) -> dict[str, Pool]:
    """All value pools by name. `folder` is the folder of the scenario and its files."""
    return {
        pool.name: _from_query(session, pool) if isinstance(pool, QueryPool) else _from_file(pool, folder)
        for pool in scenario.pools
    }


def _from_query(session: PrepareSession, pool: QueryPool) -> Pool:
    """Rows are read one by one, so a query with too many rows is abandoned early."""
    return session.retried(
        lambda: pool_from_rows(pool.name, session.batches(pool.query)), f"value pool {pool.name}: {pool.query}"
    )


def _from_file(pool: FilePool, folder: Path) -> Pool:
    try:
        require_inside(folder, pool.file)
        with (folder / pool.file).open("rb") as file:
            return read_csv_column(file, pool.column, name=pool.name, source=pool.file)
    except OSError as error:
        raise ScenarioInvalid(
            f"value pool {pool.name}: {pool.file} cannot be read: {error.strerror}",
            remedy="Put the file into the folder of the scenario.",
        ) from error


# --- dry run: nothing is known of what is already there --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStatement:
    """One SQL text with a note."""

    note: str
    sql: str


def dry_run(scenario: Scenario, *, drop: bool) -> list[PlannedStatement]:
    """The statements of a preparation for an empty target, in order. Needs no connection."""
    target = scenario.target
    outer = [None if part is None else Identifier.parse(part) for part in (target.database, target.schema)]
    planned: list[PlannedStatement] = []
    tables = tables_of(scenario, *outer)
    if drop:
        planned += [
            PlannedStatement(
                note=f"drop {shown(name)} if loadgen has created it", sql=table_definition.drop_table(name)
            )
            for name, definition in tables
            if definition is not None
        ]
    for name, definition in tables:
        if definition is None:
            planned.append(PlannedStatement(note=f"{shown(name)} must exist", sql=table_definition.read_one_row(name)))
            continue
        planned.append(
            PlannedStatement(
                note=f"create {shown(name)} unless it exists", sql=table_definition.create_table(definition)
            )
        )
        if definition.rows:
            planned += [_planned_insert(definition), _planned_count(definition)]
    for number, sql in enumerate(scenario.prepare.statements):
        planned.append(PlannedStatement(note=f"prepare.statements[{number}], each time", sql=sql))
    return planned


def _planned_insert(definition: TableDefinition) -> PlannedStatement:
    made_here = definition.values is None
    most = min(ROWS_MAX, rows_per_statement_max(definition) if made_here else ROWS_MAX)
    count = min(ROWS_FIRST, most, definition.rows)
    fewest = max(1, -(-definition.rows // most))
    where = "made here and bound" if made_here else "made by the server"
    number = "1 statement" if definition.rows <= count else f"statements of up to {most:,}, {fewest:,} or more"
    note = f"{definition.rows:,} rows, {where}, in {number}, each of a second or two; the first has {count:,}"
    if made_here:
        return PlannedStatement(note=note, sql=table_definition.insert_bound(definition))
    return PlannedStatement(note=note, sql=table_definition.insert_generated(definition, 0, count))


def _planned_count(definition: TableDefinition) -> PlannedStatement:
    sql, binds = table_definition.count_rows(definition)
    values = f" with {' and '.join(map(str, binds))}" if binds else ""
    return PlannedStatement(note=f"before and after: the number of rows{values}", sql=sql)


# --- Mode replay: a capture is read once, before the run, and dealt to the workers as value pools --------------------


LINE_CHARACTERS_MAX = 64_000_000  # of a statement with all bind values
CHECKED_STATEMENTS_MAX = 100_000  # reading more statements would take too long for a check


def deal_replay(scenario: Scenario, folder: Path, stop: Event | None = None) -> tuple[Scenario, dict[str, Pool]]:
    """Mode replay: the scenario with the plan of each worker, and the statements of each. The number of workers must be
    known."""
    replay = scenario.load.replay
    if replay is None:
        return scenario, {}
    manifest = _described_manifest(folder, replay)
    dealt = replay_pools(
        _until(stop, read_statements(folder / replay.folder)),
        manifest,
        scenario.workload.statements,
        scenario.load,
        own_database=scenario.target.database is not None,
        of_user=_fresh_values(replay) if replay.users > 1 and replay.pseudonyms else as_recorded,
    )
    load = dataclasses.replace(
        scenario.load, replay=dataclasses.replace(replay, planned=dealt.planned, recorded=dealt.recorded)
    )
    return dataclasses.replace(scenario, load=load), {pool.name: pool for pool in dealt.pools}


def _fresh_values(replay: Replay) -> UserStatement:
    """Replaces the recorded pseudonyms by values of each user."""
    _, fresh_values = _text_readers()
    return fresh_values(replay.capture, replay.users).of_user


def _text_readers() -> tuple[type[StatementRoles], type[FreshValues]]:
    """Imported late: the import of the parser is slow, and only replays need it."""
    try:
        from loadgen.capture.statement_text import FreshValues, StatementRoles
    except ModuleNotFoundError as error:
        raise CaptureUnusable(
            f"a replay needs a package that is not installed: {error.name}",
            remedy="Install loadgen with its extra `capture`: pip install 'loadgen[capture]'.",
        ) from error
    return StatementRoles, FreshValues


def _until(stop: Event | None, statements: Iterator[RecordedStatement]) -> Iterator[RecordedStatement]:
    for one in statements:
        if stop is not None and stop.is_set():
            raise PreparationStopped("stopped while the capture was read")
        yield one


def _described_manifest(folder: Path, replay: Replay) -> CaptureManifest:
    """The manifest of the capture, checked against its statements."""
    try:
        manifest = read_manifest(folder, replay.folder)
    except (OSError, ValueError) as error:
        why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else f"is not a capture: {error}"
        raise CaptureUnusable(f"{replay.folder} {why}") from error
    if manifest.statements_sha256 != replay.capture:
        raise CaptureUnusable(f"{replay.folder} has changed since the scenario was read", remedy="Run it again.")
    path = folder / replay.folder / STATEMENTS_FILE
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CaptureUnusable(f"{path} cannot be read: {error.strerror}") from error
    if found != manifest.statements_sha256:
        raise CaptureUnusable(f"{path} is damaged or was changed: {MANIFEST_FILE} describes another file")
    return manifest


def check_capture(scenario: Scenario, folder: Path, cores: int) -> None:
    """Check a capture as a run does; of a large capture only the checksum. Raises CaptureUnusable."""
    replay = scenario.load.replay
    if replay is None:
        return
    if sum(one.weight for one in scenario.workload.statements) <= CHECKED_STATEMENTS_MAX:
        deal_replay(with_workers(scenario, cores), folder)
    else:
        _described_manifest(folder, replay)


def require_capture(loaded: LoadedScenario, folder: Path, cores: int) -> None:
    """check_capture(), whose error becomes a problem of the scenario file. Raises ScenarioProblems."""
    try:
        check_capture(loaded.scenario, folder, cores)
    except CaptureUnusable as error:
        document = loaded.document
        hint = f"{error.remedy[:1].lower()}{error.remedy[1:]}".removesuffix(".")  # it follows inside of a sentence
        document.problem(("load", "capture"), str(error), hint, at_key=True)
        raise ScenarioProblems(document.source, document.problems) from error


def read_statements(folder: Path) -> Iterator[RecordedStatement]:
    """The statements of a capture, in order."""
    path = folder / STATEMENTS_FILE
    roles, number = _text_readers()[0](), 1
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            check_header(file.readline(LINE_CHARACTERS_MAX))
            for line in _lines(file):
                number += 1
                one = RecordedStatement.of_line(line)
                if roles.of(one.sql) is not one.role:
                    raise InvalidCapture(_wrong_role(one, roles.of(one.sql), number))
                yield one
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, InvalidCapture) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CaptureUnusable(f"{path} cannot be read: {reason}") from error


def _lines(file: TextIO) -> Iterator[str]:
    """The lines of the file. Raises for a line that is too long: it would fill the memory."""
    while line := file.readline(LINE_CHARACTERS_MAX):
        if len(line) >= LINE_CHARACTERS_MAX:
            raise InvalidCapture(f"it has a line of more than {LINE_CHARACTERS_MAX:,} characters")
        yield line


def _wrong_role(one: RecordedStatement, found: StatementRole | LeftOutReason, line: int) -> str:
    """Check the label of a statement against its text: the label decides whether it is sent."""
    text = f"is a {found}" if isinstance(found, StatementRole) else f"must not be in a capture: {found}"
    return f'line {line} has the role "{one.role}", and its text {text}'


# --- A preparation in a thread, so that the main thread of a command can display, stop and abandon it -----------------
#
# thread            does                                                            owns
# prepare           everything that talks to the server                             its session
# prepare-cancel    only after a stop that takes too long: cancels the statement    a separate session


class PreparationJob:
    """One preparation in a thread. `progress` is the newest progress. Call `result()` only after `done` is set."""

    def __init__(
        self, scenario: Scenario, open_connection: OpenConnection, *, drop: bool, force: bool, clock: Clock
    ) -> None:
        self.stop = threading.Event()
        self.done = threading.Event()
        self.progress = PreparationProgress(step=PreparationStep.LOOKING)
        self._scenario = scenario
        self._open = open_connection
        self._drop, self._force = drop, force
        self._clock = clock
        self._session: PrepareSession | None = None
        self._prepared: PreparationResult | None = None
        self._error: BaseException | None = None
        self._cancelling: threading.Thread | None = None

    def start(self) -> None:
        # A daemon thread: if it is abandoned, the program must not wait for the time limits of the driver.
        threading.Thread(target=self._run, name="prepare", daemon=True).start()

    def cancel(self) -> None:
        """Cancel the running statement on the server, once."""
        if self._cancelling is None:
            self._cancelling = threading.Thread(target=self._cancel, name="prepare-cancel", daemon=True)
            self._cancelling.start()

    def abandon(self) -> None:
        """Abandon the preparation."""
        seen = self.progress
        rows = f"at least {seen.rows_there:,} of {counted(seen.rows, 'row')} of {seen.table} exist"
        where = f": {rows}" if seen.table else ""
        self._error = PreparationStopped(f"stopped before the running statement ended{where}")

    def result(self) -> PreparationResult:
        if self._error is not None:
            raise self._error
        assert self._prepared is not None, "asked before the end"
        return self._prepared

    def _run(self) -> None:
        try:
            self._session = PrepareSession(self._open, stop=self.stop, clock=self._clock)
            try:
                self._prepared = prepare_scenario(
                    self._session,
                    self._scenario,
                    drop=self._drop,
                    force=self._force,
                    progress=self._tell,
                    stop=self.stop,
                    clock=self._clock,
                )
            finally:
                self._session.close()
        except BaseException as error:  # raised again in the main thread
            self._error = self._error or error
        finally:
            self.done.set()

    def _tell(self, progress: PreparationProgress) -> None:
        self.progress = progress

    def _cancel(self) -> None:
        if self._session is not None:
            cancel_running(self._session, self._open)
