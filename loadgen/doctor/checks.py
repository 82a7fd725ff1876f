"""All checks in order, and their execution. The modules `offline` and `online` judge what is read here."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from loadgen.clock import Clock
from loadgen.control.session import load_queries
from loadgen.control.setup.installer import Prerequisites, check_prerequisites, read_schema_state
from loadgen.doctor import findings
from loadgen.doctor.check_context import (
    DoctorSessions,
    DoctorTarget,
    Finding,
    FindingLevel,
    WarehouseDescription,
    failed,
    ok,
    skipped,
)
from loadgen.errors import LoadgenError
from loadgen.log import printable, redact
from loadgen.process import available_cores
from loadgen.rules.scenario_plan import plan
from loadgen.scenario.model import Scenario, TableType, workers_of
from loadgen.snowflake.connect import ConnectionProbe, probe
from loadgen.snowflake.ident import Identifier, QualifiedName
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.session import RetryPolicy, StatementFailed, warehouse_row
from loadgen.values import dataclass

# --- Execution: each check has a time limit, and is skipped when a check that it needs has failed ---------------------


class Closable(Protocol):
    def close(self) -> None: ...


Resources = TypeVar("Resources", bound=Closable)
Result = TypeVar("Result")


class CheckTimeout(Exception):
    """The action did not end within the time limit."""


@dataclass(frozen=True, slots=True)
class _Lane(Generic[Resources]):
    """The current thread and its queue of jobs; None ends the thread."""

    thread: threading.Thread
    jobs: SimpleQueue[Callable[[Resources], None] | None]


class BoundedExecutor(Generic[Resources]):
    """Executes actions in a second thread, with a time limit. One thread, the main thread, calls `do` and `close`.

    After a timeout the thread is abandoned with its resources, and the next action gets a new thread.
    """

    def __init__(self, make: Callable[[], Resources], *, name: str) -> None:
        self._make = make
        self._name = name
        self._lane: _Lane[Resources] | None = None

    def do(self, action: Callable[[Resources], Result], *, limit_s: float) -> Result:
        """The result of the action. Raises the exception of the action, or CheckTimeout."""
        done = threading.Event()
        results: list[Result] = []
        errors: list[BaseException] = []

        def run(resources: Resources) -> None:
            try:
                results.append(action(resources))
            except BaseException as error:  # raised again in the waiting thread
                errors.append(error)
            finally:
                done.set()

        lane = self._lane = self._lane or self._start()
        lane.jobs.put(run)
        if not done.wait(limit_s):
            self.close(limit_s=0)
            raise CheckTimeout
        try:
            if errors:
                raise errors[0]
            return results[0]
        finally:
            errors.clear()  # breaks the cycle of error, traceback, frame and list, which would keep the sessions alive

    def close(self, *, limit_s: float) -> None:
        """Let the thread close its resources, and wait at most `limit_s` for it. Safe to call twice."""
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.jobs.put(None)
            lane.thread.join(limit_s)

    def _start(self) -> _Lane[Resources]:
        jobs: SimpleQueue[Callable[[Resources], None] | None] = SimpleQueue()

        def work() -> None:
            resources = self._make()
            while (job := jobs.get()) is not None:
                job(resources)
            resources.close()

        # A daemon thread: the program must not wait for a driver call that does not return.
        thread = threading.Thread(target=work, name=self._name, daemon=True)
        thread.start()
        return _Lane(thread, jobs)


LIMIT_S = 20.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """One check. `needs` names the checks that must succeed before it."""

    section: str
    name: str
    run: Callable[[DoctorSessions], Sequence[Finding]]
    needs: tuple[str, ...] = ()
    exit_code: int = 3  # when it fails


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFinding:
    check: DoctorCheck
    finding: Finding


def run_checks(
    checks: Iterable[DoctorCheck], lane: BoundedExecutor[DoctorSessions], *, limit_s: float = LIMIT_S
) -> Iterator[CheckedFinding]:
    """Execute the checks in order. Yields each finding as soon as it is known."""
    broken: dict[str, str] = {}  # check that failed or was skipped → the failed check that caused it
    for check in checks:
        obstacle = next((broken[name] for name in check.needs if name in broken), None)
        if obstacle is not None:
            broken[check.name] = obstacle
            yield CheckedFinding(check=check, finding=skipped(f"skipped, because check {obstacle!r} failed"))
            continue
        for finding in _found(check, lane, limit_s):
            if finding.level is FindingLevel.FAILED:
                broken[check.name] = check.name
            yield CheckedFinding(check=check, finding=finding)


def exit_code(examined: Iterable[CheckedFinding]) -> int:
    """0 when no check failed; 2 when a configuration check failed; else 3."""
    codes = {each.check.exit_code for each in examined if each.finding.level is FindingLevel.FAILED}
    return min(codes, default=0)


def _found(check: DoctorCheck, lane: BoundedExecutor[DoctorSessions], limit_s: float) -> Sequence[Finding]:
    try:
        return lane.do(check.run, limit_s=limit_s)
    except CheckTimeout:
        return [failed(f"no answer within {limit_s:g} s", "Check the network, and try again.")]
    except LoadgenError as error:
        return [failed(printable(" ".join(str(error).split())), printable(error.remedy))]
    except Exception as error:  # a bug in one check must not hide the findings of the others
        log.exception("check_failed check=%s", check.name)
        what = printable(redact(f"unexpected {type(error).__name__}: {error}"))
        return [failed(what, "This is a bug or an unforeseen situation. Add --debug to see where it happened.")]


_SERVER_TIME = load_queries("run_status")["server_time"]


def checks(
    subject: DoctorTarget, clock: Clock, server: str | None = None, server_trouble: LoadgenError | None = None
) -> list[DoctorCheck]:
    """All checks. `server` describes the embedded server in use, if any; `server_trouble` is why it did not start."""
    return [
        *_machine(subject.scenario, clock),
        *_configuration(subject, server, server_trouble),
        *_connection(subject, clock),
        *_control_plane(subject, clock),
        *_rights(subject),
        *_target(subject),
        *_cost(subject),
    ]


def once() -> RetryPolicy:
    """One attempt: a check reports the current state and does not retry."""
    return RetryPolicy(stop=threading.Event(), attempts=1)


def _machine(scenario: Scenario | None, clock: Clock) -> Iterator[DoctorCheck]:
    load = scenario.load if scenario is not None else None
    cores = available_cores()
    workers = workers_of(load, cores) if load is not None else 1
    connections = load.connections if load is not None else None
    per_worker = -(-connections // workers) if connections is not None else None
    simple: dict[str, Callable[[], Finding]] = {
        "processor": lambda: findings.processor(cores, connections),
        "memory": lambda: findings.memory(findings.free_mb(), workers, connections),
        "open files": lambda: findings.open_files(findings.open_files_limit(), per_worker),
        "clock": lambda: findings.wall_clock(clock.utc_now()),
    }
    for name, run in simple.items():
        yield DoctorCheck(section="machine", name=name, run=lambda _, run=run: [run()])  # type: ignore[misc]
    yield DoctorCheck(section="machine", name="versions", run=lambda _: [findings.versions()], exit_code=2)


def _configuration(
    subject: DoctorTarget, server: str | None, server_trouble: LoadgenError | None
) -> Iterator[DoctorCheck]:
    section = "configuration"
    needs: tuple[str, ...] = ("versions",)
    if server_trouble is not None:
        found = [failed(printable(str(server_trouble)), printable(server_trouble.remedy))]
        yield DoctorCheck(section=section, name="embedded server", run=lambda _: found)
        needs = ("embedded server",)
    elif server is not None:
        yield DoctorCheck(
            section=section, name="embedded server", run=lambda _: [ok(server.removeprefix("embedded server "))]
        )

    def profile_check(name: str, profile: Callable[[], ConnectionProfile]) -> DoctorCheck:
        return DoctorCheck(
            section=section, name=name, run=lambda _: findings.connection(profile()), needs=needs, exit_code=2
        )

    yield profile_check("connection", subject.target_profile)
    if subject.is_apart:
        yield profile_check("control connection", subject.control_profile)
    if subject.loaded is not None:
        yield DoctorCheck(
            section=section,
            name="scenario",
            run=lambda _: findings.scenario(subject),
            needs=("connection",),
            exit_code=2,
        )


def _connection(subject: DoctorTarget, clock: Clock) -> Iterator[DoctorCheck]:
    section = "connection"

    def log_in(sessions: DoctorSessions) -> Sequence[Finding]:
        sessions.facts.target = probe(subject.target_profile(), clock=clock)
        return [findings.log_in(sessions.facts.target)]

    def log_in_to_control(sessions: DoctorSessions) -> Sequence[Finding]:
        sessions.facts.control = probe(subject.control_profile(), clock=clock)
        return [findings.log_in(sessions.facts.control)]

    yield DoctorCheck(section=section, name="log-in", run=log_in, needs=("connection",))
    yield DoctorCheck(
        section=section,
        name="round trip",
        run=lambda sessions: [findings.round_trip(_known(sessions.facts.target))],
        needs=("log-in",),
    )
    if subject.is_apart:
        needs = ("control connection",)
        yield DoctorCheck(section=section, name="control log-in", run=log_in_to_control, needs=needs)


def _control_plane(subject: DoctorTarget, clock: Clock) -> Iterator[DoctorCheck]:
    section, log_in = "control plane", _control_log_in(subject)

    def prerequisites(sessions: DoctorSessions) -> Sequence[Finding]:
        found = check_prerequisites(sessions.control(Prerequisites()), once())
        sessions.facts.prerequisites = found
        return [findings.prerequisites(found, subject.place, is_embedded=subject.control_profile().is_embedded)]

    def tables(sessions: DoctorSessions) -> Sequence[Finding]:
        state = read_schema_state(sessions.control(sessions.facts.prerequisites), once())
        sessions.facts.hybrid_here = findings.hybrid_count(state)
        return [findings.tables(state, is_embedded=subject.control_profile().is_embedded)]

    def hybrid(sessions: DoctorSessions) -> Sequence[Finding]:
        facts = sessions.facts
        region = _known(facts.control if subject.is_apart else facts.target).region
        is_embedded = subject.control_profile().is_embedded
        return [findings.hybrid_tables(region, is_embedded=is_embedded, hybrid_here=facts.hybrid_here)]

    def offset(sessions: DoctorSessions) -> Sequence[Finding]:
        session = sessions.control(sessions.facts.prerequisites)
        readings = []
        for _ in range(findings.TRIES):
            before, began_ns = clock.utc_now(), clock.monotonic_ns()
            ((server_time,),) = session.fetch(_SERVER_TIME)
            if not isinstance(server_time, datetime):
                return [failed("SYSDATE() returned no timestamp", "Check that the host is a Snowflake server.")]
            readings.append(findings.read_clock(clock, server_time, before, began_ns))
        return [findings.clock_offset(findings.offset(readings))]

    yield DoctorCheck(section=section, name="place", run=prerequisites, needs=(log_in,))
    yield DoctorCheck(section=section, name="tables", run=tables, needs=("place",))
    yield DoctorCheck(section=section, name="hybrid tables", run=hybrid, needs=(log_in,))
    yield DoctorCheck(section=section, name="clock offset", run=offset, needs=(log_in,))


def _rights(subject: DoctorTarget) -> Iterator[DoctorCheck]:
    section = "rights"

    def role(sessions: DoctorSessions) -> Sequence[Finding]:
        return [findings.role(_known(sessions.facts.target), subject.target_profile())]

    def may_read(sessions: DoctorSessions) -> Sequence[Finding]:
        return findings.may_read(sessions.control(sessions.facts.prerequisites))

    def may_write(sessions: DoctorSessions) -> Sequence[Finding]:
        return findings.may_write(sessions.control(sessions.facts.prerequisites))

    yield DoctorCheck(section=section, name="role", run=role, needs=("log-in",))
    yield DoctorCheck(section=section, name="read control tables", run=_if_there(may_read), needs=("tables",))
    yield DoctorCheck(section=section, name="write control tables", run=_if_there(may_write), needs=("tables",))


def _control_log_in(subject: DoctorTarget) -> str:
    return "control log-in" if subject.is_apart else "log-in"


def _known(found: ConnectionProbe | None) -> ConnectionProbe:
    assert found is not None, "the check ran without the login that it needs"
    return found


def _if_there(run: Callable[[DoctorSessions], Sequence[Finding]]) -> Callable[[DoctorSessions], Sequence[Finding]]:
    """Skips a check of tables that do not exist. On the embedded server missing tables are no failure."""

    def run_if_there(sessions: DoctorSessions) -> Sequence[Finding]:
        if not sessions.facts.hybrid_here:
            return [skipped("skipped, because the tables are not created yet")]
        return run(sessions)

    return run_if_there


def _target(subject: DoctorTarget) -> Iterator[DoctorCheck]:
    def warehouse(sessions: DoctorSessions) -> Sequence[Finding]:
        who = _known(sessions.facts.target)
        written = subject.warehouse()
        name = Identifier.parse(written) if written else Identifier(who.warehouse) if who.warehouse else None
        if name is None:
            return [failed("no warehouse is set", "Set target.warehouse, or warehouse for the connection.")]
        row = warehouse_row(sessions.rows, name)
        if row is None:
            return [findings.absent(name, who.role or "PUBLIC")]
        told = sessions.rows(f"SHOW PARAMETERS LIKE 'MAX_CONCURRENCY_LEVEL' IN WAREHOUSE {name.sql}")
        level = str(told[0].get("value", "")) if told else ""
        found = WarehouseDescription.from_row(row, int(level) if level.isdigit() else None)
        sessions.facts.warehouse = found
        connections = subject.scenario.load.connections if subject.scenario is not None else None
        return findings.judge(found, is_embedded=subject.target_profile().is_embedded, connections=connections)

    yield DoctorCheck(section="target", name="warehouse", run=warehouse, needs=("log-in",))
    scenario = subject.scenario
    if scenario is None:
        return
    yield DoctorCheck(section="target", name="schema", run=_schema(scenario), needs=("log-in",))
    if subject.is_apart and any(table.type is TableType.HYBRID for table in scenario.prepare.tables):
        yield DoctorCheck(
            section="target", name="hybrid tables of the target", run=_hybrid_target(subject), needs=("log-in",)
        )


def _hybrid_target(subject: DoctorTarget) -> Callable[[DoctorSessions], Sequence[Finding]]:
    def run(sessions: DoctorSessions) -> Sequence[Finding]:
        region, is_embedded = _known(sessions.facts.target).region, subject.target_profile().is_embedded
        found = findings.hybrid_tables(region, is_embedded=is_embedded, hybrid_here=0)
        if found.remedy is not None:
            return [failed(found.message, "Use standard tables in the scenario: prepare.tables, type: standard.")]
        return [found]

    return run


def _schema(scenario: Scenario) -> Callable[[DoctorSessions], Sequence[Finding]]:
    def run(sessions: DoctorSessions) -> Sequence[Finding]:
        target, profile = scenario.target, sessions.subject.target_profile()
        parts = (target.database or profile.text("database"), target.schema or profile.text("schema"))
        if None in parts:
            remedy = "Set target.database and target.schema, or database and schema for the connection."
            return [failed("no database and schema are set", remedy)]
        name = QualifiedName(tuple(Identifier.parse(part) for part in parts if part is not None))
        try:
            sessions.rows(f"USE SCHEMA {name.sql}")
        except StatementFailed as error:
            if not error.failure.is_missing_object:
                raise
            to = f"TO ROLE {Identifier(_known(sessions.facts.target).role or 'PUBLIC')}"
            remedy = f"Create it, or have an administrator run: GRANT USAGE ON SCHEMA {name} {to};"
            if profile.is_embedded:
                return [ok(f"{name} is created by the first login that names it")]
            return [failed(f"{name} does not exist, or this role has no privilege on it", remedy)]
        return [ok(str(name))]

    return run


def _cost(subject: DoctorTarget) -> Iterator[DoctorCheck]:
    loaded = subject.loaded
    if loaded is None:
        return

    def run(sessions: DoctorSessions) -> Sequence[Finding]:
        planned = plan(loaded, cores=available_cores()).cost
        return [findings.cost(planned, sessions.facts.warehouse, loaded.scenario.guardrails.max_credits)]

    yield DoctorCheck(section="cost", name="worst case", run=run)
