"""`loadgen worker`: one worker process of a run. Spawners start it; users may start it on any machine."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from loadgen.errors import LoadgenError
from loadgen.files import open_private
from loadgen.model.run import WorkerExit
from loadgen.process import collect_less_often, raise_priority
from loadgen.worker.arguments import InvalidWorkerArguments, WorkerArguments
from orchestrator.spawn.spawner import WorkerOrder


class WorkerCommand(click.Command):
    """Ends with the exit codes of a worker: every error before its start is code 1, usage errors too."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise InvalidWorkerArguments(error.format_message()) from error


@click.command(
    cls=WorkerCommand,
    epilog="\b\nExample:\n  loadgen worker --run-id 20261115-0200-orders-7f3a \\\n"
    "    --worker-group-id 1 --worker-group-count 2",
)
@click.option("--run-id", metavar="RUN", help="The run.  [default: $LOADGEN_RUN_ID]")
@click.option("--worker-id", metavar="NAME", help="Unique name of the worker.  [default: worker-<group id>]")
@click.option(
    "--worker-group-id",
    type=int,
    metavar="N",
    help="Index of the worker, from 0.  [default: $SNOWFLAKE_JOB_INDEX or $JOB_COMPLETION_INDEX]",
)
@click.option(
    "--worker-group-count", type=int, metavar="N", help="Number of workers.  [default: $SNOWFLAKE_JOBS_COUNT]"
)
def worker(
    run_id: str | None, worker_id: str | None, worker_group_id: int | None, worker_group_count: int | None
) -> None:
    """Run one worker process of a run. Spawners start it; with `spawner: {kind: external}` the user starts it.

    LOADGEN_CONTROL_CONNECTION, LOADGEN_CONTROL_DATABASE, LOADGEN_CONTROL_SCHEMA and LOADGEN_CONTROL_WAREHOUSE name the
    control plane. The worker reads everything else from its run.

    Exit codes: 0 success, 1 configuration, 2 no control plane for 60 s, 3 no START in time, 4 fatal error.
    """
    arguments = WorkerArguments.of(run_id, worker_id, worker_group_id, worker_group_count)
    from loadgen.worker.main import main

    raise_priority()
    try:
        main(arguments)
    except LoadgenError as error:
        error.exit_code = WorkerExit.CONFIGURATION  # 2 to 4 have other meanings than in other commands
        raise


def run_child(order: WorkerOrder, environment: Mapping[str, str], log_path: str) -> NoReturn:
    """Run a worker in a child process: with a separate session and log file. It ends when the parent ends."""
    os.setsid()  # the parent alone handles Ctrl-C at the terminal
    raise_priority()
    collect_less_often()
    _redirect(log_path)
    os.environ.update(environment)
    from loadgen.log import configure
    from loadgen.worker.arguments import WorkerArguments
    from loadgen.worker.main import PARENT_VARIABLE, main

    configure()
    parent = multiprocessing.parent_process()
    if parent is not None:
        os.environ[PARENT_VARIABLE] = str(parent.sentinel)  # becomes readable when the parent ends
    main(
        WorkerArguments(
            run_id=order.run_id,
            worker_id=order.worker_id,
            worker_group_id=order.worker_group_id,
            worker_group_count=order.worker_group_count,
        )
    )


def _redirect(log_path: str) -> None:
    """Redirect all output to the log file, including fatal errors of the interpreter."""
    fd = open_private(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # the parent may have been started without it
            stream.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    if fd > 2:
        os.close(fd)
