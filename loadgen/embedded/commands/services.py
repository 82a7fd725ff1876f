"""Jobs of Snowpark Container Services: EXECUTE JOB SERVICE, DESCRIBE SERVICE, SHOW SERVICES, cancelling and logs.

Jobs are accepted and recorded, not run. A test reads `GET /__loadgen/services`, starts the replicas as local processes
and reports on them with a POST:

    {"name": "DB.SCHEMA.JOB", "logs": {"0/worker": "…"},
     "instances": {"0": {"container": "worker", "status": "FAILED", "exit_code": 137, "message": "…"}}}

`status` sets the status of the whole job; without it the status follows from its instances.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, field
from typing import Any

from loadgen.embedded import postgres_names, sql_errors
from loadgen.embedded.commands.objects import full_path
from loadgen.embedded.commands.registry import CommandCall, command
from loadgen.embedded.result import TEXT, StatementResult, is_number, status, table
from loadgen.embedded.result import columns as columns_of
from loadgen.embedded.translate.parser import TokenReader
from loadgen.embedded.wire import BadRequest
from loadgen.values import dataclass

POLL_S = 0.1
SHOW_TYPE, DESCRIBE_TYPE, SELECT_TYPE = 0x4400, 0x4500, 0x1000
LOG_BYTES_MAX = 100_000
JOBS_MAX = 1_000
FINAL = frozenset({"DONE", "FAILED", "CANCELLED"})
STATUSES = FINAL | {"PENDING", "RUNNING", "CANCELLING"}
CONTAINER_STATUSES = frozenset({"PENDING", "READY", "DONE", "FAILED", "UNKNOWN"})


@dataclass(slots=True, kw_only=True)
class ContainerInstance:
    """A replica, which has one container."""

    container: str
    status: str
    message: str = ""
    exit_code: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ("DONE", "FAILED")


@dataclass(slots=True, kw_only=True)
class ContainerJob:
    """One EXECUTE JOB SERVICE."""

    name: str  # qualified
    compute_pool: str
    replicas: int
    query_warehouse: str | None
    asynchronous: bool
    specification: str
    created_ms: float
    status: str = "PENDING"  # PENDING RUNNING DONE FAILED CANCELLING CANCELLED
    logs: dict[str, str] = field(default_factory=dict)  # "instance/container" → text
    instances: dict[str, ContainerInstance] = field(default_factory=dict)  # by number

    def settle(self) -> None:
        """Set the job's status from its instances; a cancelled job ends with its last instance."""
        ended = [instance for instance in self.instances.values() if instance.has_ended]
        if self.status in FINAL or not self.instances:
            return
        if len(ended) < self.replicas:
            self.status = "CANCELLING" if self.status == "CANCELLING" else "RUNNING"
        elif self.status == "CANCELLING":
            self.status = "CANCELLED"
        else:
            self.status = "FAILED" if any(one.status == "FAILED" for one in ended) else "DONE"


class ContainerServices:
    """The jobs of the account, newest last."""

    def __init__(self) -> None:
        self.jobs: dict[str, ContainerJob] = {}

    def add(self, job: ContainerJob) -> None:
        self.jobs.pop(job.name, None)
        self.jobs[job.name] = job
        while len(self.jobs) > JOBS_MAX:
            self.jobs.pop(next(iter(self.jobs)))

    def cancel(self, job: ContainerJob) -> None:
        """Cancel a job: immediately if it has not started, else when its instances have ended."""
        if job.status not in FINAL:
            job.status = "CANCELLED" if job.status == "PENDING" else "CANCELLING"

    def report(self, message: dict[str, Any]) -> bool:
        """Record a report on the processes of a job; False for an unknown job."""
        job = self.jobs.get(str(message.get("name") or ""))
        status, logs = message.get("status"), _objects(message, "logs")
        if status is not None and not _is_one_of(status, STATUSES):
            raise BadRequest(f"status is not one of {', '.join(sorted(STATUSES))}")
        instances = {_number(key): _instance(given) for key, given in _objects(message, "instances").items()}
        if job is None:
            return False
        if status is not None and job.status not in FINAL:
            job.status = status
        job.logs |= {key: str(text)[-LOG_BYTES_MAX:] for key, text in logs.items()}
        job.instances |= instances
        job.settle()
        return True

    def listing(self) -> list[dict[str, Any]]:
        return [asdict(job) for job in self.jobs.values()]


def _objects(message: dict[str, Any], key: str) -> dict[str, Any]:
    given = message.get(key) or {}
    if not isinstance(given, dict):
        raise BadRequest(f"{key} is not an object")
    return given


def _is_one_of(given: Any, known: frozenset[str]) -> bool:
    return isinstance(given, str) and given in known


def _number(key: str) -> str:
    if not (key.isascii() and key.isdigit() and len(key) <= 6):
        raise BadRequest("the key of an instance is not its number")
    return key


def _instance(given: Any) -> ContainerInstance:
    if not isinstance(given, dict):
        raise BadRequest("an instance is not an object")
    container, status, code = given.get("container"), given.get("status"), given.get("exit_code")
    if not isinstance(container, str) or not _is_one_of(status, CONTAINER_STATUSES) or not isinstance(code, int | None):
        raise BadRequest("container, status or exit_code of an instance is missing or invalid")
    return ContainerInstance(
        container=container, status=str(status), message=str(given.get("message") or ""), exit_code=code
    )


# --- statements -------------------------------------------------------------------------------------------------------


@command("EXECUTE_JOB_SERVICE", "EXECUTE JOB SERVICE")
async def execute_job(call: CommandCall) -> StatementResult:
    cursor = call.cursor(3)
    cursor.expect("IN", "COMPUTE", "POOL")
    pool = cursor.name()
    name: list[str] = []
    asynchronous, replicas, warehouse = False, 1, None
    while not cursor.done and cursor.word() != "FROM":
        key = cursor.name()
        cursor.expect("=")
        if key == "NAME":
            name = cursor.path()
        elif key == "ASYNC":
            asynchronous = cursor.value().upper() == "TRUE"
        elif key == "REPLICAS":
            replicas = cursor.integer()
        elif key == "QUERY_WAREHOUSE":
            warehouse = cursor.name()
        elif key in ("COMMENT", "EXTERNAL_ACCESS_INTEGRATIONS"):
            cursor.value() if cursor.word() != "(" else cursor.skip_parentheses()
        else:
            raise sql_errors.compilation(1006, "22023", f"invalid property '{key}' for 'SERVICE'")
    cursor.expect("FROM", "SPECIFICATION")
    specification = cursor.string()
    cursor.end()
    if not name or replicas < 1:
        raise cursor.unexpected()
    path = full_path(call, name, "EXECUTE JOB SERVICE")
    call.engine.catalog.schema(path[0], path[1])
    job = ContainerJob(
        name=".".join(path), compute_pool=pool, replicas=replicas, query_warehouse=warehouse,
        asynchronous=asynchronous, specification=specification, created_ms=call.engine.now_ms(),
    )  # fmt: skip
    if job.name in call.engine.services.jobs and call.engine.services.jobs[job.name].status not in FINAL:
        raise sql_errors.already_exists(postgres_names.shown(path[2]))
    call.engine.services.add(job)
    if asynchronous:
        return status(f"Job {postgres_names.shown(path[2])} launched asynchronously.")
    await _finished(job)
    return status(f"Job {postgres_names.shown(path[2])} completed with status: {job.status}.")


async def _finished(job: ContainerJob) -> None:
    while job.status not in FINAL:
        await asyncio.sleep(POLL_S)


def _job(call: CommandCall, path: list[str]) -> ContainerJob:
    job = call.engine.services.jobs.get(".".join(full_path(call, path, "DESCRIBE SERVICE")))
    if job is None:
        raise sql_errors.missing_object("Service", ".".join(postgres_names.shown(part) for part in path))
    return job


_COLUMNS = columns_of(
    "name, status, database_name, schema_name, owner, compute_pool, spec, current_instances:number,"
    " target_instances:number, is_job, created_on:time, query_warehouse"
)


def _row(job: ContainerJob) -> list[str | None]:
    database, schema, name = job.name.split(".", 2)
    running = job.replicas if job.status in ("RUNNING", "CANCELLING") else 0
    return [
        name, job.status, database, schema, "ACCOUNTADMIN", job.compute_pool, job.specification, str(running),
        str(job.replicas), "true", f"{job.created_ms / 1000:.9f}", job.query_warehouse,
    ]  # fmt: skip


@command("DESCRIBE", "DESCRIBE SERVICE", "DESC SERVICE")
async def describe_service(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    path = cursor.path()
    cursor.end()
    return table(_COLUMNS, [_row(_job(call, path))], DESCRIBE_TYPE)


@command("SHOW", "SHOW SERVICES", "SHOW JOB SERVICES")
async def show_services(call: CommandCall) -> StatementResult:
    return table(_COLUMNS, [_row(job) for job in call.engine.services.jobs.values()], SHOW_TYPE)


_OF_JOB = "database_name, schema_name, service_name, service_status, instance_id"
_INSTANCE_STATUS = {"PENDING": "PENDING", "READY": "READY", "DONE": "SUCCEEDED", "FAILED": "FAILED"}


def _named_job(call: CommandCall) -> ContainerJob:
    """SHOW SERVICE … IN SERVICE name."""
    cursor = call.cursor(3)
    cursor.expect("IN", "SERVICE")
    job = _job(call, cursor.path())
    cursor.end()
    return job


def _in_order(job: ContainerJob) -> list[tuple[str, ContainerInstance]]:
    return sorted(job.instances.items(), key=lambda item: int(item[0]))


def _head(job: ContainerJob) -> list[str | None]:
    return [*job.name.split(".", 2), job.status]


@command("SHOW", "SHOW SERVICE INSTANCES")
async def show_instances(call: CommandCall) -> StatementResult:
    job = _named_job(call)
    rows = [[*_head(job), number, _INSTANCE_STATUS.get(one.status, one.status)] for number, one in _in_order(job)]
    return table(columns_of(f"{_OF_JOB}, status"), rows, SHOW_TYPE)


@command("SHOW", "SHOW SERVICE CONTAINERS")
async def show_containers(call: CommandCall) -> StatementResult:
    """One row for each instance; without instances one row with NULLs."""
    job = _named_job(call)
    columns = "instance_status, container_name, status, message, restart_count:number, last_exit_code:number"
    rows = [
        [*_head(job), number, _INSTANCE_STATUS.get(one.status, one.status), one.container, one.status, one.message,
         "0", None if one.exit_code is None else str(one.exit_code)]
        for number, one in _in_order(job)
    ]  # fmt: skip
    return table(columns_of(f"{_OF_JOB}, {columns}"), rows or [[*_head(job), *[None] * 7]], SHOW_TYPE)


@command("DROP", "DROP SERVICE")
async def drop_service(call: CommandCall) -> StatementResult:
    cursor = call.cursor(2)
    present = cursor.accept("IF", "EXISTS")
    path = cursor.path()
    _ = cursor.accept("FORCE")
    cursor.end()
    try:
        job = _job(call, path)
    except sql_errors.SqlError:
        if present:
            return status("Drop statement executed successfully.")
        raise
    call.engine.services.cancel(job)
    call.engine.services.jobs.pop(job.name)
    return status(f"{postgres_names.shown(path[-1])} successfully dropped.")


@command("CALL", "!")
async def method(call: CommandCall) -> StatementResult:
    """SELECT n!SPCS_CANCEL_JOB(), CALL n!SPCS_WAIT_FOR('DONE', 120), SELECT * FROM TABLE(n!SPCS_GET_LOGS())."""
    mark = next(index for index, token in enumerate(call.tokens) if token.text == "!")
    first = mark - 1
    while first >= 2 and call.tokens[first - 1].text == ".":
        first -= 2
    cursor: TokenReader = call.cursor(first)
    job = _job(call, cursor.path())
    cursor.expect("!")
    verb = cursor.name()
    cursor.expect("(")
    if verb == "SPCS_CANCEL_JOB":
        cursor.expect(")")
        call.engine.services.cancel(job)
        return table([("SPCS_CANCEL_JOB", TEXT)], [[f"Job {job.name} cancellation requested."]], SELECT_TYPE)
    if verb == "SPCS_WAIT_FOR":
        cursor.string()
        cursor.expect(",")
        limit_s = cursor.integer()
        try:
            async with asyncio.timeout(limit_s):
                await _finished(job)
        except TimeoutError:
            raise sql_errors.SqlError(
                395000, "XX000", f"Job {job.name} did not reach the status within {limit_s} s."
            ) from None
        return table([("SPCS_WAIT_FOR", TEXT)], [[job.status]], SELECT_TYPE)
    if verb == "SPCS_GET_LOGS":
        rows = [
            [f"{job.created_ms / 1000:.9f}", *key.split("/", 1), line]
            for key, text in job.logs.items()
            for line in text.splitlines()
        ]
        columns = columns_of("TIMESTAMP:time, INSTANCE_ID, CONTAINER_NAME, LOG")
        return table(columns, rows, SELECT_TYPE)
    raise sql_errors.unknown_function(verb)


def service_logs(call: CommandCall, arguments: list[str | None]) -> str:
    """SYSTEM$GET_SERVICE_LOGS(service, instance, container [, lines])."""
    if not 3 <= len(arguments) <= 4:
        raise sql_errors.wrong_arity("SYSTEM$GET_SERVICE_LOGS", 3, 4, len(arguments))
    job = _job(call, [part.strip('"') for part in str(arguments[0]).split(".")])
    text = job.logs.get(f"{arguments[1]}/{arguments[2]}", "")
    lines = (arguments[3] if len(arguments) > 3 else None) or "500"
    if not is_number(lines):
        raise sql_errors.compilation(1008, "22023", f"invalid value [{lines[:100]}] for the lines of a log")
    return "\n".join(text.splitlines()[-int(lines) :])
