"""All checks, in order: each reads the facts, and the other modules judge them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from loadgen.clock import Clock
from loadgen.control.setup.installer import Prerequisites, check_prerequisites
from loadgen.control.setup.migrations import read_schema_state
from loadgen.control.sql import load_queries
from loadgen.doctor import control_plane, offline, server, warehouse
from loadgen.doctor.check_runner import DoctorCheck
from loadgen.doctor.finding import Finding, failed, ok, skipped
from loadgen.doctor.subject import DoctorSessions, DoctorTarget
from loadgen.errors import LoadgenError
from loadgen.log import printable
from loadgen.rules.scenario_plan import plan
from loadgen.scenario.load import workers_of
from loadgen.scenario.model import Scenario, TableType
from loadgen.snowflake.ident import Identifier, QualifiedName
from loadgen.snowflake.probe import ConnectionProbe, probe
from loadgen.snowflake.session import RetryPolicy, StatementFailed

_SERVER_TIME = load_queries("run_status")["server_time"]


def checks(
    subject: DoctorTarget, clock: Clock, server: str | None = None, server_trouble: LoadgenError | None = None
) -> list[DoctorCheck]:
    """`server` describes the embedded server that is used, if any; `server_trouble` why it could not be started."""
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
    """One attempt: a check reports the present state and does not wait for a better one."""
    return RetryPolicy(stop=threading.Event(), attempts=1)


def _machine(scenario: Scenario | None, clock: Clock) -> Iterator[DoctorCheck]:
    load = scenario.load if scenario is not None else None
    cores = offline.cores()
    workers = workers_of(load, cores) if load is not None else 1
    connections = load.connections if load is not None else None
    per_worker = -(-connections // workers) if connections is not None else None
    looks: dict[str, Callable[[], Finding]] = {
        "processor": lambda: offline.processor(cores, connections),
        "memory": lambda: offline.memory(offline.free_mb(), workers, connections),
        "open files": lambda: offline.open_files(offline.open_files_limit(), per_worker),
        "clock": lambda: offline.wall_clock(clock.utc_now()),
    }
    for name, look in looks.items():
        yield DoctorCheck(section="machine", name=name, look=lambda _, look=look: [look()])  # type: ignore[misc]
    yield DoctorCheck(section="machine", name="versions", look=lambda _: [offline.versions()], exit_code=2)


def _configuration(
    subject: DoctorTarget, server: str | None, server_trouble: LoadgenError | None
) -> Iterator[DoctorCheck]:
    section = "configuration"
    needs: tuple[str, ...] = ("versions",)
    if server_trouble is not None:
        found = [failed(printable(str(server_trouble)), printable(server_trouble.remedy))]
        yield DoctorCheck(section=section, name="embedded server", look=lambda _: found)
        needs = ("embedded server",)
    elif server is not None:
        yield DoctorCheck(section=section, name="embedded server", look=lambda _: [ok(server)])
    yield DoctorCheck(
        section=section,
        name="connection",
        look=lambda _: offline.connection(subject.target_profile()),
        needs=needs,
        exit_code=2,
    )
    if subject.is_apart:
        yield DoctorCheck(
            section=section,
            name="control connection",
            look=lambda _: offline.connection(subject.control_profile()),
            needs=needs,
            exit_code=2,
        )
    if subject.loaded is not None:
        yield DoctorCheck(
            section=section,
            name="scenario",
            look=lambda _: offline.scenario(subject),
            needs=("connection",),
            exit_code=2,
        )


def _connection(subject: DoctorTarget, clock: Clock) -> Iterator[DoctorCheck]:
    section = "connection"

    def log_in(sessions: DoctorSessions) -> Sequence[Finding]:
        sessions.facts.target = probe(subject.target_profile(), clock=clock)
        return [server.log_in(sessions.facts.target)]

    def log_in_to_control(sessions: DoctorSessions) -> Sequence[Finding]:
        sessions.facts.control = probe(subject.control_profile(), clock=clock)
        return [server.log_in(sessions.facts.control)]

    yield DoctorCheck(section=section, name="log-in", look=log_in, needs=("connection",))
    yield DoctorCheck(
        section=section,
        name="round trip",
        look=lambda sessions: [server.round_trip(_known(sessions.facts.target))],
        needs=("log-in",),
    )
    if subject.is_apart:
        needs = ("control connection",)
        yield DoctorCheck(section=section, name="control log-in", look=log_in_to_control, needs=needs)


def _control_plane(subject: DoctorTarget, clock: Clock) -> Iterator[DoctorCheck]:
    section, log_in = "control plane", _control_log_in(subject)

    def ground(sessions: DoctorSessions) -> Sequence[Finding]:
        found = check_prerequisites(sessions.control(Prerequisites()), once())
        sessions.facts.ground = found
        return [control_plane.ground(found, subject.place, is_embedded=subject.control_profile().is_embedded)]

    def tables(sessions: DoctorSessions) -> Sequence[Finding]:
        state = read_schema_state(sessions.control(sessions.facts.ground), once())
        sessions.facts.hybrid_here = control_plane.hybrid_count(state)
        return [control_plane.tables(state, is_embedded=subject.control_profile().is_embedded)]

    def hybrid(sessions: DoctorSessions) -> Sequence[Finding]:
        facts = sessions.facts
        region = _known(facts.control if subject.is_apart else facts.target).region
        is_embedded = subject.control_profile().is_embedded
        return [server.hybrid_tables(region, is_embedded=is_embedded, hybrid_here=facts.hybrid_here)]

    def offset(sessions: DoctorSessions) -> Sequence[Finding]:
        session = sessions.control(sessions.facts.ground)
        readings = []
        for _ in range(server.TRIES):
            before, began_ns = clock.utc_now(), clock.monotonic_ns()
            ((server_time,),) = session.fetch(_SERVER_TIME)
            if not isinstance(server_time, datetime):
                return [failed("SYSDATE() is no time there", "Is it a Snowflake server?")]
            readings.append(server.read_clock(clock, server_time, before, began_ns))
        return [server.clock_offset(server.offset(readings))]

    yield DoctorCheck(section=section, name="place", look=ground, needs=(log_in,))
    yield DoctorCheck(section=section, name="tables", look=tables, needs=("place",))
    yield DoctorCheck(section=section, name="hybrid tables", look=hybrid, needs=(log_in,))
    yield DoctorCheck(section=section, name="clock offset", look=offset, needs=(log_in,))


def _rights(subject: DoctorTarget) -> Iterator[DoctorCheck]:
    section = "rights"

    def role(sessions: DoctorSessions) -> Sequence[Finding]:
        return [server.role(_known(sessions.facts.target), subject.target_profile())]

    def may_read(sessions: DoctorSessions) -> Sequence[Finding]:
        return control_plane.may_read(sessions.control(sessions.facts.ground))

    def may_write(sessions: DoctorSessions) -> Sequence[Finding]:
        return control_plane.may_write(sessions.control(sessions.facts.ground))

    yield DoctorCheck(section=section, name="role", look=role, needs=("log-in",))
    yield DoctorCheck(section=section, name="read control tables", look=_if_there(may_read), needs=("tables",))
    yield DoctorCheck(section=section, name="write control tables", look=_if_there(may_write), needs=("tables",))


def _control_log_in(subject: DoctorTarget) -> str:
    return "control log-in" if subject.is_apart else "log-in"


def _known(found: ConnectionProbe | None) -> ConnectionProbe:
    assert found is not None, "a check that needs the log-in ran without it"
    return found


def _if_there(look: Callable[[DoctorSessions], Sequence[Finding]]) -> Callable[[DoctorSessions], Sequence[Finding]]:
    """On the embedded server tables that are missing are no failure; but there is nothing to try, either."""

    def look_if_there(sessions: DoctorSessions) -> Sequence[Finding]:
        if not sessions.facts.hybrid_here:
            return [skipped("not looked at, since the tables are not there yet")]
        return look(sessions)

    return look_if_there


def _target(subject: DoctorTarget) -> Iterator[DoctorCheck]:
    def look_at_warehouse(sessions: DoctorSessions) -> Sequence[Finding]:
        who = _known(sessions.facts.target)
        written = subject.warehouse()
        name = Identifier.parse(written) if written else Identifier(who.warehouse) if who.warehouse else None
        if name is None:
            return [failed("no warehouse is named", "Set target.warehouse, or warehouse for the connection.")]
        row = next((row for row in sessions.rows(f"SHOW WAREHOUSES{name.like}") if row.get("name") == name.name), None)
        if row is None:
            return [warehouse.absent(name, who.role or "PUBLIC")]
        told = sessions.rows(f"SHOW PARAMETERS LIKE 'MAX_CONCURRENCY_LEVEL' IN WAREHOUSE {name.sql}")
        level = str(told[0].get("value", "")) if told else ""
        found = warehouse.WarehouseDescription.from_row(row, int(level) if level.isdigit() else None)
        sessions.facts.warehouse = found
        connections = subject.scenario.load.connections if subject.scenario is not None else None
        return warehouse.judge(found, is_embedded=subject.target_profile().is_embedded, connections=connections)

    yield DoctorCheck(section="target", name="warehouse", look=look_at_warehouse, needs=("log-in",))
    scenario = subject.scenario
    if scenario is None:
        return
    yield DoctorCheck(section="target", name="schema", look=_schema_look(scenario), needs=("log-in",))
    if subject.is_apart and any(table.type is TableType.HYBRID for table in scenario.prepare.tables):
        yield DoctorCheck(
            section="target", name="hybrid tables of the target", look=_hybrid_target(subject), needs=("log-in",)
        )


def _hybrid_target(subject: DoctorTarget) -> Callable[[DoctorSessions], Sequence[Finding]]:
    def look(sessions: DoctorSessions) -> Sequence[Finding]:
        region, is_embedded = _known(sessions.facts.target).region, subject.target_profile().is_embedded
        found = server.hybrid_tables(region, is_embedded=is_embedded, hybrid_here=0)
        if found.remedy is not None:
            return [
                failed(found.said, "Make the tables of the scenario standard ones: prepare.tables, type: standard.")
            ]
        return [found]

    return look


def _schema_look(scenario: Scenario) -> Callable[[DoctorSessions], Sequence[Finding]]:
    def look(sessions: DoctorSessions) -> Sequence[Finding]:
        target, profile = scenario.target, sessions.subject.target_profile()
        parts = (target.database or profile.text("database"), target.schema or profile.text("schema"))
        if None in parts:
            remedy = "Set target.database and target.schema, or database and schema for the connection."
            return [failed("no database and schema are named", remedy)]
        name = QualifiedName(tuple(Identifier.parse(part) for part in parts if part is not None))
        try:
            sessions.rows(f"USE SCHEMA {name.sql}")
        except StatementFailed as error:
            if not error.failure.is_missing_object:
                raise
            to = f"TO ROLE {Identifier(_known(sessions.facts.target).role or 'PUBLIC')}"
            remedy = f"Create it, or have an administrator run: GRANT USAGE ON SCHEMA {name} {to};"
            if profile.is_embedded:
                return [ok(f"{name} is made by the first log-in that names it")]
            return [failed(f"{name} is not there, or not for this role", remedy)]
        return [ok(str(name))]

    return look


def _cost(subject: DoctorTarget) -> Iterator[DoctorCheck]:
    loaded = subject.loaded
    if loaded is None:
        return

    def look(sessions: DoctorSessions) -> Sequence[Finding]:
        planned = plan(loaded, cores=offline.cores()).cost
        return [warehouse.cost(planned, sessions.facts.warehouse, loaded.scenario.guardrails.max_credits)]

    yield DoctorCheck(section="cost", name="worst case", look=look)
