"""What each check finds: without a connection (machine, versions, parameters, scenario), and with one (login, clock,
control plane, privileges, target warehouse, cost)."""

from __future__ import annotations

import platform
import resource
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession, NamedQuery
from loadgen.control.setup.grants import control_needs, control_statements, required_privileges
from loadgen.control.setup.installer import NO_HYBRID, Prerequisites, SchemaState, migrations
from loadgen.doctor.check_context import DoctorTarget, Finding, WarehouseDescription, failed, ok, warning
from loadgen.log import printable
from loadgen.model.warehouse import IDLE_POLL_S, RATES, WarehouseKind, look_credits_per_day
from loadgen.rules.price import worst_case_credits
from loadgen.rules.scenario_plan import CostEstimate, format_span
from loadgen.scenario.model import CONNECTIONS_PER_WORKER
from loadgen.snowflake import driver
from loadgen.snowflake.connect import ConnectionProbe
from loadgen.snowflake.ident import Identifier, InvalidIdentifier, QualifiedName
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.units import counted, format_duration_s
from loadgen.values import dataclass

# --- without a connection --------------------------------------------------------------------------------------------

# Measured with driver 5: a worker's process takes 70 MB, a connection one descriptor and 0.1 MB without TLS.
WORKER_MB, CONNECTION_MB = 100, 1
FILES_OF_A_PROCESS, FILES_PER_CONNECTION = 64, 2
FILES_FEW = 1_024
MEMORY_FEW_MB = 500
RELEASED = datetime(2026, 1, 1, tzinfo=UTC)  # a correct clock never shows an earlier time

_CGROUP = Path("/sys/fs/cgroup")


def processor(cores_here: int, connections: int | None) -> Finding:
    text = counted(cores_here, "core")
    if connections is None:
        return ok(text)
    wanted = -(-connections // CONNECTIONS_PER_WORKER)
    if wanted > cores_here:
        return warning(
            f"{text} for {counted(connections, 'connection')}: one core drives about {CONNECTIONS_PER_WORKER}",
            f"Check the client CPU of the run; fast statements need {counted(wanted, 'core')}, or fewer connections.",
        )
    return ok(f"{text} for {counted(connections, 'connection')}")


def memory(free_mb: int, workers: int, connections: int | None) -> Finding:
    wanted = workers * WORKER_MB + (connections or 0) * CONNECTION_MB
    text = f"{free_mb:,} MB free"
    if connections is not None and free_mb < wanted:
        return failed(
            f"{text}; {counted(workers, 'worker')} with {counted(connections, 'connection')} need about {wanted:,} MB",
            "Close other programs, or use fewer workers (load.workers) or connections.",
        )
    if free_mb < MEMORY_FEW_MB:
        return warning(text, "Close other programs: swapping distorts the measured times.")
    return ok(text)


def free_mb() -> int:
    """Memory that this process may still allocate, in MB. The limit of a container counts."""
    free = psutil.virtual_memory().available
    try:
        limit = (_CGROUP / "memory.max").read_text("ascii").strip()
        if limit.isdigit():
            free = min(free, int(limit) - int((_CGROUP / "memory.current").read_text("ascii")))
    except (OSError, ValueError):  # no cgroup files: no limit
        return int(free // 1_000_000)
    return int(max(free, 0) // 1_000_000)


def open_files(limit: int, connections_per_worker: int | None) -> Finding:
    text = "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit:,} per process"
    wanted = FILES_OF_A_PROCESS + FILES_PER_CONNECTION * (connections_per_worker or 0)
    is_enough = limit == resource.RLIM_INFINITY or limit >= wanted
    if not is_enough:
        return failed(
            f"{text}; a worker with {counted(connections_per_worker or 0, 'connection')} needs about {wanted:,}",
            f"Raise the limit (ulimit -n {max(4_096, wanted)}), or use more workers (load.workers).",
        )
    if connections_per_worker is None and limit != resource.RLIM_INFINITY and limit < FILES_FEW:
        return warning(text, "Raise the limit before a run with many connections: ulimit -n 4096.")
    return ok(text)


def open_files_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def versions() -> Finding:
    """Raises ConfigurationError when the driver is missing or its version is not supported."""
    driver.major()
    return ok(f"Python {platform.python_version()}, {driver.DISTRIBUTION} {driver.version()}")


def wall_clock(now: datetime) -> Finding:
    text = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < RELEASED:
        return failed(
            f"the clock of this machine is wrong: it shows {text}",
            "Set it: certificates and keys are checked against it.",
        )
    return ok(text)


def connection(profile: ConnectionProfile) -> Sequence[Finding]:
    """The parameters of a connection, and the warnings about its files and variables."""
    found = [ok(f"{printable(profile.name, 80)}: {printable(profile.address, 120)}", *_fields(profile))]
    remedy = "Correct the file or variable; `loadgen connections list` shows which files are read."
    found += [warning(printable(text), remedy) for text in profile.warnings]
    if profile.unused:
        found.append(
            warning(
                f"ignored, because loadgen sets these options itself: {printable(', '.join(profile.unused), 500)}",
                "No action is needed. Remove them if only loadgen uses this connection.",
            )
        )
    return found


def _fields(profile: ConnectionProfile) -> list[str]:
    rows = [
        (key, printable(profile.text(key) or "", 120), printable(profile.origin(key) or "", 300))
        for key in sorted(profile.fields)
    ]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:2]] if rows else [0, 0]
    return [f"{key.ljust(widths[0])}  {value.ljust(widths[1])}  {origin}".rstrip() for key, value, origin in rows]


def scenario(subject: DoctorTarget) -> Sequence[Finding]:
    """The warnings about the scenario, and whether load and control plane share a warehouse or a database."""
    assert subject.loaded is not None
    found = [
        warning(printable(str(each)), "`loadgen validate FILE --plan` shows what it means.")
        for each in subject.loaded.warnings
    ]
    control = subject.loaded.scenario.control
    if not subject.is_apart and not control.share_warehouse and _same(subject.warehouse(), control.warehouse):
        found.append(
            warning(
                f"the control plane uses the target warehouse, {printable(control.warehouse, 80)}",
                "Set control.warehouse to another warehouse: heartbeats would wait behind the load and add to it.",
            )
        )
    database = subject.target_profile().text("database") if subject.loaded.scenario.target.database is None else None
    if not subject.is_apart and not subject.target_profile().is_embedded and _same(database, subject.place.database):
        found.append(
            warning(
                f"the database of the connection, {printable(database or '', 80)}, is also that of the control plane,"
                " and the hybrid tables of a database share one limit of operations",
                "Set target.database or control.database to another database.",
            )
        )
    return found or [ok(printable(subject.loaded.scenario.name, 80))]


def _same(first: str | None, second: str) -> bool:
    try:
        return first is not None and Identifier.parse(first) == Identifier.parse(second)
    except InvalidIdentifier:
        return False


# --- with a connection -----------------------------------------------------------------------------------------------

FAR_MS = 50.0
OFFSET_S = 2.0
TRIES = 5
RATE_NAMES = {
    WarehouseKind.GEN1: "generation 1",
    WarehouseKind.GEN2: "generation 2",
    WarehouseKind.SNOWPARK_OPTIMIZED: "Snowpark-optimized warehouses with MEMORY_16X",
}
ADMINISTRATORS = ("ACCOUNTADMIN", "SECURITYADMIN", "ORGADMIN", "GLOBALORGADMIN")


def log_in(probe: ConnectionProbe) -> Finding:
    where = f"{probe.account or '-'} ({probe.region or 'unknown region'}), version {probe.server_version or '-'}"
    return ok(f"user {probe.user or '-'}, role {probe.role or '-'}, account {where}")


def round_trip(probe: ConnectionProbe) -> Finding:
    text = f"p50 {probe.round_trip_ms_p50:.1f} ms of {len(probe.round_trips_ms)} tries"
    if probe.round_trip_ms_p50 > FAR_MS:
        return warning(
            f"{text}: every measured time includes it",
            "Run loadgen in the region of the account to avoid the network delay.",
        )
    return ok(text)


def role(probe: ConnectionProbe, profile: ConnectionProfile) -> Finding:
    name = probe.role or "PUBLIC"
    if name in ADMINISTRATORS and not profile.is_embedded:
        return warning(
            f"{name} has all privileges, and so does every statement of a scenario",
            "Use a role with fewer privileges: `loadgen grants` prints one.",
        )
    return ok(name)


def hybrid_tables(region: str | None, *, is_embedded: bool, hybrid_here: int) -> Finding:
    """Whether hybrid tables can be created. In a trial account only an attempt shows it."""
    text = (region or "").upper().rpartition(".")[2]  # in an organisation with region groups: PUBLIC.AWS_US_WEST_2
    if is_embedded:
        return ok("supported by the embedded server")
    if hybrid_here:
        return ok(f"the control plane has {hybrid_here}")
    if text.startswith("GCP") or "GOV" in text:
        return failed(f"region {text} has no hybrid tables", NO_HYBRID)
    return ok(f"supported in region {text or 'unknown'}, except in trial accounts; `loadgen setup` shows it")


# --- the clock -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """How far the clock of the server is ahead of the local clock, and the possible error."""

    seconds: float
    error_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    before: datetime
    server: datetime
    trip_s: float


def offset(readings: Sequence[ClockReading]) -> ClockOffset:
    """The offset from the fastest reading: the server read its clock at some time during the round trip."""
    best = min(readings, key=lambda reading: reading.trip_s)
    ahead_s = (best.server - best.before).total_seconds()
    return ClockOffset(seconds=ahead_s - best.trip_s / 2, error_s=best.trip_s / 2)


def clock_offset(found: ClockOffset) -> Finding:
    direction = "ahead of" if found.seconds >= 0 else "behind"
    seconds = abs(found.seconds)
    text = f"the server clock is {seconds:.3f} s {direction} the local clock, to within {found.error_s:.3f} s"
    if abs(found.seconds) - found.error_s > OFFSET_S:
        return warning(
            text,
            "Set the clock of this machine (NTP). Runs are timed by the server, but log lines would have wrong times,"
            " and a login with a key pair fails when the clock is a minute wrong.",
        )
    return ok(text)


def read_clock(ask: Clock, server_time: datetime, before: datetime, began_ns: int) -> ClockReading:
    """One reading. SYSDATE() is in UTC, without a time zone."""
    return ClockReading(
        before=before,
        server=server_time.replace(tzinfo=UTC),
        trip_s=(ask.monotonic_ns() - began_ns) / 1e9,
    )


# --- The control plane: does it exist, has it the right version, and has the role the privileges? --------------------


def prerequisites(found: Prerequisites, place: ControlPlaneLocation, *, is_embedded: bool) -> Finding:
    parts = {
        f"warehouse {Identifier.parse(place.warehouse)}": found.warehouse,
        f"database {Identifier.parse(place.database)}": found.database,
        f"schema {place.schema_name}": found.schema,
    }
    absent = [name for name, is_there in parts.items() if not is_there]
    if not absent:
        per_day = look_credits_per_day(IDLE_POLL_S)
        pool = f"an idle `loadgen pool run` starts the warehouse every {format_duration_s(IDLE_POLL_S)}"
        return ok(", ".join(parts), *([] if is_embedded else [f"{pool}: about {per_day:.1f} credits a day"]))
    remedy = "`loadgen setup` creates them, or prints what an administrator must do."
    return failed(f"missing, or not accessible to this role: {', '.join(absent)}", remedy)


def tables(state: SchemaState, *, is_embedded: bool) -> Finding:
    newest = migrations()[-1].title
    if not state.pending:
        return ok(f"complete, version {newest}")
    if state.applied:
        return failed(
            f"older than this loadgen: {', '.join(each.title for each in state.pending)} is missing",
            "Run `loadgen setup`.",
        )
    if is_embedded:
        return warning("not created yet", "Run `loadgen setup -c embedded`.")
    return failed("not created yet", "Run `loadgen setup`.")


def hybrid_count(state: SchemaState) -> int:
    """The number of hybrid tables that the applied migrations created."""
    return sum(
        hybrid for migration in migrations() if migration.version in state.applied for _, hybrid in migration.tables
    )


def may_read(session: ControlSession) -> Sequence[Finding]:
    """Select from each table, with a condition that is never true."""
    return _tried("SELECT", lambda name: _try(session, f"SELECT COUNT(*) FROM {name} WHERE 1 = 0", 0))


def may_write(session: ControlSession) -> Sequence[Finding]:
    """Execute INSERT and UPDATE statements that affect no row: executing them checks the privileges."""
    inserted = _tried("INSERT", lambda name: _try(session, f"INSERT INTO {name} SELECT * FROM {name} WHERE 1 = 0", 0))
    updates = {name: query for query in control_statements() for name in _updated(query)}
    # Every UPDATE has the condition `RUN_ID = ?`, which is true for no row when the value is NULL.
    changed = _tried("UPDATE", lambda name: _try(session, updates[name].sql, updates[name].binds))
    return [each for each in (*inserted, *changed) if each.remedy] or [*inserted, *changed][:1]


def _updated(query: NamedQuery) -> list[QualifiedName]:
    return [name for name, privileges in required_privileges(query.sql).items() if "UPDATE" in privileges]


def _tried(privilege: str, attempt: Callable[[QualifiedName], bool]) -> list[Finding]:
    names = sorted((name for name, needed in control_needs().items() if privilege in needed), key=str)
    refused = [str(name) for name in names if not attempt(name)]
    if refused:
        remedy = "`loadgen grants` prints the missing grants; have an administrator execute them."
        return [failed(f"{privilege} is refused on {', '.join(refused)}", remedy)]
    return [ok(f"all {len(names)} tables")]


def _try(session: ControlSession, sql: str, binds: int) -> bool:
    query = NamedQuery(name="doctor", sql=sql, binds=binds)
    try:
        if sql.startswith("SELECT"):
            session.fetch(query)
        else:
            session.execute(query, *[None] * binds)
    except ControlFailed as error:
        if error.failure.is_missing_object or error.failure.is_missing_privilege:
            return False
        raise
    return True


# --- The target warehouse: its settings, what may disturb a measurement, and the cost of a run ------------------------


def absent(name: Identifier, role: str) -> Finding:
    return failed(
        f"{name} does not exist, or role {role} has no privilege on it",
        "Create it, or have an administrator run:"
        f" GRANT USAGE, MONITOR ON WAREHOUSE {name} TO ROLE {Identifier(role)};",
    )


def judge(found: WarehouseDescription, *, is_embedded: bool, connections: int | None) -> Sequence[Finding]:
    """The description of the warehouse, followed by the settings that may disturb a measurement."""
    name = Identifier(found.name)
    if found.state == "SUSPENDED" and not found.auto_resume:
        return [
            failed(
                f"{name} is suspended, and AUTO_RESUME is off",
                f"ALTER WAREHOUSE {name} RESUME, or SET AUTO_RESUME = TRUE.",
            )
        ]
    findings = [ok(_described(found), *_notes(found, connections))]
    if found.auto_suspend_s is None and not is_embedded:
        remedy = f"ALTER WAREHOUSE {name} SET AUTO_SUSPEND = 60, unless it should run all the time."
        findings.append(warning(f"{name} never suspends: it consumes credits while it is idle", remedy))
    if found.query_acceleration and not is_embedded:
        remedy = f"ALTER WAREHOUSE {name} SET ENABLE_QUERY_ACCELERATION = FALSE, unless you want to measure it."
        findings.append(warning("query acceleration is on: its effect depends on the load of other users", remedy))
    if found.clusters_min != found.clusters_max:
        remedy = "Set MIN_CLUSTER_COUNT = MAX_CLUSTER_COUNT, unless you want to measure scaling."
        findings.append(warning(f"clusters may start during the run: {_clusters(found)}", remedy))
    return findings


def _described(found: WarehouseDescription) -> str:
    generation = f", generation {found.generation}" if found.generation else ""
    suspend = f"suspends after {found.auto_suspend_s} s" if found.auto_suspend_s else "never suspends"
    kind = "" if found.type == "STANDARD" else f"{found.type.lower()}, "
    name, state = Identifier(found.name), found.state.lower()
    return f"{name}: {kind}{found.size}{generation}, {_clusters(found)}, {suspend}, {state}"


def _clusters(found: WarehouseDescription) -> str:
    if found.clusters_min == found.clusters_max:
        return counted(found.clusters_max, "cluster")
    return f"{found.clusters_min} to {found.clusters_max} clusters"


def _notes(found: WarehouseDescription, connections: int | None) -> list[str]:
    notes = []
    if found.max_concurrency is not None:
        slots = found.max_concurrency * found.clusters_max
        notes.append(
            f"MAX_CONCURRENCY_LEVEL {found.max_concurrency} per cluster: about {counted(slots, 'statement')} at once"
        )
        if connections is not None and connections > slots:
            notes.append(f"the scenario has {counted(connections, 'connection')}: statements may be queued")
    if found.state == "SUSPENDED":
        notes.append("the first statement resumes it: make the warm-up long enough")
    return notes


# --- cost ------------------------------------------------------------------------------------------------------------


def cost(planned: CostEstimate | None, found: WarehouseDescription | None, max_credits: float | None) -> Finding:
    """The worst-case cost: every cluster runs for the longest possible duration of the run."""
    if planned is None:
        return ok("none: the embedded server consumes no credits")
    warehouse = found.planned if found is not None else None
    credits = worst_case_credits(warehouse, planned.longest_s, RATES)
    if found is None or warehouse is None or credits is None:
        sizes = ", ".join(f"{size} {credits:.2f}" for size, credits in planned.by_size)
        return ok(f"at most, in credits by size: {sizes}; plus {planned.control:.2f} for the control warehouse")
    total = credits + planned.control
    text = (
        f"at most {total:.2f} credits: {credits:.2f} for {found.size}, {_clusters(found)}, and {planned.control:.2f}"
        f" for the control warehouse, running for {format_span(planned.longest_s)}"
    )
    note = f"at the rate of {RATE_NAMES[warehouse.kinds[0]]}. Preparation, and idle time before suspension, are extra"
    if max_credits is not None and total > max_credits:
        remedy = "Shorten the run, use a smaller warehouse, or raise guardrails.max_credits."
        return warning(f"{text}; guardrails.max_credits is {max_credits:g}", remedy, note)
    return ok(text, note)
