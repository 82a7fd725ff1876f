"""The arguments of a worker process: four options or, in a container, environment variables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Self

from loadgen.errors import LoadgenError
from loadgen.model.run import RUN_ID_MAX, is_id
from loadgen.values import dataclass

WORKER_ID_MAX = 100
WORKERS_MAX = 10_000
INDEXES = ("SNOWFLAKE_JOB_INDEX", "JOB_COMPLETION_INDEX")  # of Snowpark Container Services, of Kubernetes


class InvalidWorkerArguments(LoadgenError):
    """A worker was started with invalid arguments."""

    exit_code = 1
    remedy = (
        "loadgen worker --run-id RUN --worker-id worker-0 --worker-group-id 0 --worker-group-count 1;"
        " in a container LOADGEN_RUN_ID, SNOWFLAKE_JOB_INDEX (or JOB_COMPLETION_INDEX) and SNOWFLAKE_JOBS_COUNT have"
        " the same meaning."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArguments:
    run_id: str
    worker_id: str
    worker_group_id: int
    worker_group_count: int

    def __post_init__(self) -> None:
        for name, value, longest in (("run-id", self.run_id, RUN_ID_MAX), ("worker-id", self.worker_id, WORKER_ID_MAX)):
            if not is_id(value, longest):
                raise InvalidWorkerArguments(
                    f"--{name} is {value[:120]!r}: it needs 1 to {longest} letters, digits, dots, dashes or underscores"
                )
        if not 1 <= self.worker_group_count <= WORKERS_MAX:
            raise InvalidWorkerArguments(
                f"--worker-group-count is {self.worker_group_count}, not a number from 1 to {WORKERS_MAX}"
            )
        if not 0 <= self.worker_group_id < self.worker_group_count:
            raise InvalidWorkerArguments(
                f"--worker-group-id is {self.worker_group_id}: of {self.worker_group_count} workers the last one is"
                f" {self.worker_group_count - 1}"
            )

    @classmethod
    def of(
        cls,
        run_id: str | None,
        worker_id: str | None,
        worker_group_id: int | None,
        worker_group_count: int | None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """The given values; missing ones are taken from the environment that containers of a job have."""
        index = next((name for name in INDEXES if name in environ), INDEXES[0])
        group = _number(environ, index) if worker_group_id is None else worker_group_id
        count = _number(environ, "SNOWFLAKE_JOBS_COUNT") if worker_group_count is None else worker_group_count
        run_id = environ.get("LOADGEN_RUN_ID") if run_id is None else run_id
        missing = [
            name
            for name, value in (("--run-id", run_id), ("--worker-group-id", group), ("--worker-group-count", count))
            if value is None
        ]
        if missing or run_id is None or group is None or count is None:
            raise InvalidWorkerArguments(f"missing: {', '.join(missing)}")
        return cls(
            run_id=run_id,
            worker_id=f"worker-{group}" if worker_id is None else worker_id,
            worker_group_id=group,
            worker_group_count=count,
        )


def labels_of(environ: Mapping[str, str] = os.environ) -> str | None:
    """LOADGEN_LABELS (zone=eu,disk=ssd) as a JSON list, the form of the labels of runners. None: no labels."""
    words = {word.strip() for word in environ.get("LOADGEN_LABELS", "").split(",")} - {""}
    return json.dumps(sorted(words), separators=(",", ":")) if words else None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise InvalidWorkerArguments(f"{name} is {text[:60]!r}, not a number")
    return int(text)
