"""Plays the orchestrator to real worker processes: one `Led` is a run, with everything its leader does to it.

A `Stage` is an embedded server with the tables of a control plane and a target; many runs share it. Nothing here sleeps
for a fixed time: everything waits for a state, with a bound that only a hang reaches.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from loadgen.control.tables import (
    run_control_events,
    run_measurements,
    run_status,
    test_logs,
    test_results,
    worker_heartbeats,
)
from loadgen.control.tables.run_leases import Lease
from loadgen.control.tables.run_status import ConnectionTarget, RunRollup, StatusChange
from loadgen.control.tables.test_results import ResultRow
from loadgen.control.tables.worker_heartbeats import WorkerHeartbeat
from loadgen.metrics.live_metrics import read_live
from loadgen.metrics.window import WindowResult
from loadgen.model.counts import Counts
from loadgen.model.event import ALL_WORKERS, KnownCommand, Recipient, Start, Stop
from loadgen.model.run import Phase, RunStatus
from loadgen.scenario.frozen import freeze, template_id
from loadgen.scenario.model import with_workers
from loadgen.scenario.read import read_scenario
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.control_plane import ControlPlane, retries, stored_executions
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, ROOT, wait_until

QUICK = {
    "heartbeat": "200ms",
    "status_poll": "150ms",
    "events_poll": "600ms",
    "flush": "500ms",
    "drain_interrupt": "20s",
}
GET = {
    "name": "get",
    "kind": "read",
    "sql": "SELECT V FROM KV WHERE ID = ?",
    "params": [{"uniform": {"min": 1, "max": 50}}],
}
NAP = {"name": "nap", "kind": "read", "sql": "SELECT SYSTEM$WAIT(20, 'MILLISECONDS')"}

WAREHOUSE = "STAGE_WH"

_numbers = itertools.count(1)


class WorkerHarness:
    """Where runs are played. `close()` when done."""

    def __init__(self, server: EmbeddedServer, *, control_server: EmbeddedServer | None = None) -> None:
        """With `control_server` the control plane is apart from the target, as it should be."""
        self.server = server
        self.plane = ControlPlane(control_server or server)
        self.database = f"BENCH_{next(_numbers)}"
        self.folder = Path(tempfile.mkdtemp(prefix="loadgen-worker-"))
        self.connection = server.connect(database=self.database, schema="PUBLIC")
        self.sql("CREATE HYBRID TABLE KV (ID NUMBER(38,0) PRIMARY KEY, V VARCHAR)")
        self.sql("INSERT INTO KV SELECT SEQ4() + 1, 'v' FROM TABLE(GENERATOR(ROWCOUNT => 50))")
        self.environ = {EMBEDDED_ADDRESS: server.address}
        if control_server is not None:
            self.environ |= self._two_connections(server, control_server)
        self._workers: list[Worker] = []

    def sql(self, text: str) -> list[Any]:
        cursor = self.connection.cursor()
        try:
            return list(cursor.execute(text).fetchall())
        finally:
            cursor.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self.connection.close()
        self.plane.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, load: Mapping[str, Any] | None = None, *, workers: int = 1, **more: Any) -> Led:
        """A new run of a scenario with this load; `more` are other sections."""
        given = dict(load or {})
        number = {} if given.get("mode") == "rate" else {"connections": 2}
        return Led(self, {**number, "warmup": "0s", "duration": "60s", **given}, workers, more)

    def spawn(self, arguments: list[str], environ: Mapping[str, str], **options: Any) -> Worker:
        worker = Worker(arguments, {**self._own_environ(), **environ}, self.folder, options)
        self._workers.append(worker)
        return worker

    def loadgen(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command, in the environment of the workers."""
        command = [str(ROOT / "bin" / "loadgen"), *arguments]
        return subprocess.run(command, env=self._own_environ(), capture_output=True, text=True, timeout=PATIENCE_S)

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    def _own_environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOADGEN_", "SNOWFLAKE_"))}
        place = replace(self.plane.place, connection=self.environ.get("LOADGEN_CONTROL_CONNECTION", "embedded"))
        return {**kept, **place.to_environment(), **self.environ, "LOADGEN_SPOOL_DIR": str(self.spool)}

    def _two_connections(self, server: EmbeddedServer, control: EmbeddedServer) -> dict[str, str]:
        home = self.folder / "snowflake"
        home.mkdir(mode=0o700)
        path = home / "connections.toml"
        for name, one in (("target", server), ("control", control)):
            with path.open("a") as file:
                file.write(
                    f'[{name}]\nhost = "{one.host}"\nport = {one.port}\nprotocol = "http"\naccount = "embedded"\n'
                    f'user = "tester"\npassword = "any"\n'
                )
        path.chmod(0o600)
        return {
            "SNOWFLAKE_HOME": str(home),
            "LOADGEN_CONNECTION": "target",
            "LOADGEN_CONTROL_CONNECTION": "control",
        }


class Worker:
    """One `bin/run_worker` process."""

    def __init__(
        self, arguments: list[str], environ: Mapping[str, str], folder: Path, options: Mapping[str, Any]
    ) -> None:
        self._said = folder / f"stderr-{next(_numbers)}.txt"
        with self._said.open("wb") as errors:
            self.process = subprocess.Popen(
                [str(ROOT / "bin" / "run_worker"), *arguments],
                env=dict(environ),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                **options,
            )

    @property
    def said(self) -> str:
        return self._said.read_text("utf-8", "replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        """Once it has ended by itself."""
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(PATIENCE_S)

    def gone(self) -> str | None:
        code = self.process.poll()
        return None if code is None else f"the worker ended with {code}: {self.said}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a worker left in the tables."""

    windows: list[WindowResult]
    results: list[ResultRow]

    @property
    def result(self) -> ResultRow:
        """Its row in TEST_RESULTS."""
        (row,) = self.results
        return row

    @property
    def logins(self) -> dict[str, Any]:
        return dict(json.loads(self.result.summary or "{}")["logins"])

    def of(self, phase: Phase) -> WindowResult:
        """The one window of this phase."""
        (window,) = [window for window in self.windows if window.phase is phase]
        return window


class Led:
    """One run, and what its leader does."""

    def __init__(self, harness: WorkerHarness, load: Mapping[str, Any], workers: int, more: Mapping[str, Any]) -> None:
        self.harness, self.plane = harness, harness.plane
        self.run_id = f"run-{os.getpid()}-{next(_numbers)}"
        self.workers = workers
        sections = dict(more)
        document = {
            "version": 1,
            "name": "t",
            "connection": "embedded",
            "target": {
                "warehouse": WAREHOUSE,
                "database": harness.database,
                "schema": "PUBLIC",
                **sections.pop("target", {}),
            },
            "prepare": {"tables": [{"name": "KV", "type": "existing"}]},
            "workload": {"statements": sections.pop("statements", [NAP])},
            "load": {"workers": workers, **load},
            "query_log": sections.pop("query_log", {"mode": "none"}),
            "timing": QUICK | sections.pop("timing", {}),
            **sections,
        }
        path = harness.folder / f"{self.run_id}.yaml"
        path.write_text(json.dumps(document))
        self.scenario = with_workers(read_scenario(path, environ=os.environ).scenario, 2)
        run_status.create(
            self.plane.session,
            retries(),
            run_status.NewRun(
                run_id=self.run_id,
                template_id=template_id(self.scenario),
                test_name="t",
                scenario_config=freeze(self.scenario),
                workers=workers,
            ),
        )
        self.term: Lease = self.plane.claim(self.run_id, ttl_s=600)
        self.status, self.phase = RunStatus.PREPARED, Phase.PREPARING
        self.targets: dict[str, ConnectionTarget] = {}
        self.next_sequence_id = 1

    # --- processes ---------------------------------------------------------------------------------------------------

    def spawn(
        self, group: int = 0, *, worker_id: str | None = None, environ: Mapping[str, str] | None = None, **options: Any
    ) -> Worker:
        place = ["--worker-group-id", str(group), "--worker-group-count", str(self.workers)]
        name = ["--worker-id", worker_id or f"worker-{group}"]
        return self.harness.spawn(["--run-id", self.run_id, *name, *place], environ or {}, **options)

    def started(self, **options: Any) -> Worker:
        """A worker that is RUNNING."""
        worker = self.spawn(**options)
        self.move(RunStatus.STARTING)
        self.wait_status("WAITING", worker)
        self.start()
        self.wait_status("RUNNING", worker)
        return worker

    # --- events of the leader -----------------------------------------------------------------------------------------

    def move(self, to: RunStatus, phase: Phase | None = None) -> None:
        to_phase = phase or self.phase
        step = StatusChange(status=self.status, phase=self.phase, to=to, to_phase=to_phase, reason="test")
        assert run_status.move(self.plane.session, retries(), self.term, step)
        self.status, self.phase = to, to_phase

    def start(self, phase: Phase | None = None) -> None:
        first = Phase.WARMUP if self.scenario.load.warmup_s else Phase.MEASUREMENT
        self.move(RunStatus.RUNNING, phase or first)
        self.emit(Start(expected_workers=self.workers))

    def emit(self, command: KnownCommand, address: Recipient = ALL_WORKERS) -> int:
        new = run_control_events.NewEvent(command=command, address=address)
        number = run_control_events.emit(self.plane.session, retries(), self.term, new)
        self.next_sequence_id = number + 1
        self.publish()
        return number

    def publish(self) -> None:
        rollup = RunRollup(targets=self.targets, next_sequence_id=self.next_sequence_id)
        assert run_status.publish(self.plane.session, self.term, rollup)

    def stop(self, drain_s: float = 20.0) -> None:
        self.emit(Stop(reason="done", drain_timeout_s=drain_s))

    def stopped(self, worker: Worker) -> None:
        self.stop()
        assert worker.exit_code() == 0, worker.said

    def soon(self, seconds: float) -> str:
        """A moment of the server's clock."""
        return (run_status.server_time(self.plane.session) + timedelta(seconds=seconds)).isoformat()

    # --- what can be seen --------------------------------------------------------------------------------------------

    def beat(self, worker_id: str = "worker-0") -> WorkerHeartbeat:
        beat = self._beat(worker_id)
        assert beat is not None, f"{worker_id} has not registered"
        return beat

    def _beat(self, worker_id: str) -> WorkerHeartbeat | None:
        row = worker_heartbeats.find(self.plane.session, self.run_id, worker_id)
        return None if row is None else row.beat

    def totals(self, worker_id: str = "worker-0") -> Counts:
        """Of all windows, as the last beat has them."""
        said = self.beat(worker_id).live_metrics
        return Counts() if said is None else read_live(said).totals

    def wait_beat(
        self,
        condition: Callable[[WorkerHeartbeat], bool],
        what: str,
        worker: Worker | None = None,
        worker_id: str = "worker-0",
    ) -> WorkerHeartbeat:
        def look() -> WorkerHeartbeat | None:
            beat = self._beat(worker_id)
            return beat if beat is not None and condition(beat) else None

        return wait_until(look, what, unless=None if worker is None else worker.gone)

    def wait_status(self, status: str, worker: Worker | None = None, worker_id: str = "worker-0") -> WorkerHeartbeat:
        return self.wait_beat(lambda beat: beat.status == status, f"{worker_id} is {status}", worker, worker_id)

    def wait_dead(self) -> str:
        """Its last heartbeat."""
        return self.wait_status("DEAD").last_error or ""

    def wait_ended(self, statements: int, worker: Worker | None = None, worker_id: str = "worker-0") -> None:
        """Until this many more statements have ended."""
        before = self.totals(worker_id).ended
        wait_until(
            lambda: self.totals(worker_id).ended >= before + statements,
            f"{statements} statements have ended",
            unless=None if worker is None else worker.gone,
        )

    def seen(self, worker_id: str = "worker-0") -> Seen:
        """What was stored, read by the code that a report is made with; each row must be there once."""
        both = "SELECT COUNT(*), COUNT(DISTINCT WORKER_ID || ' ' || WINDOW_ID) FROM WINDOW_RESULTS WHERE RUN_ID = ?"
        ((rows, windows_stored),) = self.plane.rows(both, self.run_id)
        assert rows == windows_stored, "a window was stored twice"
        stored = run_measurements.read_windows(self.plane.session, self.run_id)
        windows = [row.result() for row in stored if row.worker_id == worker_id]
        results = [row for row, _ in test_results.read(self.plane.session, self.run_id) if row.worker_id == worker_id]
        return Seen(windows, results)

    def executions(self, worker_id: str = "worker-0") -> int:
        ((rows,),) = self.plane.rows("SELECT COUNT(*) FROM QUERY_EXECUTIONS WHERE RUN_ID = ?", self.run_id)
        stored = stored_executions(self.plane.session, self.run_id)
        distinct = sum(one.worker_id == worker_id for one, _ in stored)
        assert int(rows) == distinct, "an execution was stored twice"
        return distinct

    def logs(self, level: str | None = None) -> list[str]:
        rows = test_logs.newest(self.plane.session, self.run_id, 1_000)
        return [row.message for row in rows if level is None or row.level == level]

    def history(self, phase: Phase, *, step: int | None = None) -> list[dict[str, Any]]:
        """What the server executed under the tag of this run and phase."""
        lines = self.harness.server.ask(f"/__loadgen/history?tag={self.run_id}")
        return [
            line
            for line in lines
            if (tag := json.loads(line["query_tag"]))["phase"] == phase.value and tag["step"] == step
        ]


def adds_up(window: WindowResult) -> bool:
    counts = window.counts
    return counts.scheduled == counts.skipped + counts.succeeded + counts.failed + counts.cancelled


def worker_harness(server: EmbeddedServer, **more: Any) -> Iterator[WorkerHarness]:
    """For a fixture. Statements take 20 ms: clients that wait for answers leave the processor to others."""
    server.model(WAREHOUSE, service_time="20ms")
    harness = WorkerHarness(server, **more)
    try:
        yield harness
    finally:
        harness.close()
