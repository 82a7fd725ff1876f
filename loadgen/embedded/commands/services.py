"""EXECUTE JOB SERVICE, DESCRIBE SERVICE, SHOW SERVICES, cancel and logs of jobs."""

from __future__ import annotations

import asyncio

from loadgen.embedded import postgres_names, sql_errors
from loadgen.embedded.commands import CommandCall, command
from loadgen.embedded.commands.objects import full_path
from loadgen.embedded.container_services import FINAL, ContainerInstance, ContainerJob
from loadgen.embedded.result import TEXT, StatementResult, is_number, status, table
from loadgen.embedded.result import columns as columns_of
from loadgen.embedded.translate.token_reader import TokenReader

POLL_S = 0.1
SHOW_TYPE, DESCRIBE_TYPE, SELECT_TYPE = 0x4400, 0x4500, 0x1000


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
    """One row for each instance; one row without an instance while there is none."""
    job = _named_job(call)
    postgres_names = "instance_status, container_name, status, message, restart_count:number, last_exit_code:number"
    rows = [
        [*_head(job), number, _INSTANCE_STATUS.get(one.status, one.status), one.container, one.status, one.message,
         "0", None if one.exit_code is None else str(one.exit_code)]
        for number, one in _in_order(job)
    ]  # fmt: skip
    return table(columns_of(f"{_OF_JOB}, {postgres_names}"), rows or [[*_head(job), *[None] * 7]], SHOW_TYPE)


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
