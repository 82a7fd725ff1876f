"""Runs as real processes, for tests of faults: started as a user would, killed and interrupted. The history of the
server is the truth about what was executed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, PROGRAM, ROOT, alive, wait_until

MEASURES = "RUNNING MEASUREMENT"
ONE = {"statements": [{"name": "one", "sql": "SELECT 1"}]}
TIMING = {
    **dict.fromkeys(("tick", "heartbeat", "status_poll"), "400ms"),  # each costs statements, of every process
    **dict.fromkeys(("flush", "events_poll"), "1s"),
    **dict.fromkeys(("terminate_after", "kill_after"), "500ms"),
    "announce": "1s",  # a worker that reads START late on a busy machine delivers less than the plan
    "drain_interrupt": "1s",
}
# Longer ago than a successor has to wait, and not so long that workers give their leader up.
EXPIRE = "UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(second, -12, SYSDATE()) WHERE "
_numbers = itertools.count()  # of runs: no two use the same warehouse


@dataclass
class Program:
    """One process. Everything it started is known by its id, so that nothing of it can be left unseen."""

    process: subprocess.Popen[bytes]
    folder: Path
    pids: set[int] = field(default_factory=set)

    @property
    def said(self) -> str:
        return (self.folder / "stderr.txt").read_text("utf-8")

    @property
    def out(self) -> str:
        return (self.folder / "stdout.txt").read_text("utf-8")

    @property
    def printed(self) -> Any:
        return json.loads(self.out)

    @property
    def run_id(self) -> str:
        (folder,) = self.folder.glob("runs/*")
        return folder.name

    @property
    def summary(self) -> dict[str, Any]:
        (file,) = self.folder.glob("runs/*/summary.json")
        found: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return found

    def look(self) -> set[int]:
        """The processes it has started that still run."""
        with suppress(psutil.NoSuchProcess):
            self.pids |= {child.pid for child in psutil.Process(self.process.pid).children(recursive=True)}
        return alive(self.pids)

    def worker(self, name: str) -> psutil.Process:
        return next(one for one in map(psutil.Process, self.look()) if one.name() == name)

    def wait_for(self, text: str) -> None:
        def there() -> bool:
            self.look()
            found = text in self.said
            assert found or self.process.poll() is None, f"it ended with {self.process.returncode}: {self.said}"
            return found

        wait_until(there, f"it says {text!r}")

    def send(self, number: int) -> None:
        self.look()
        self.process.send_signal(number)

    def kill(self) -> None:
        self.look()
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def ended(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_S)

    def wait_alone(self) -> None:
        """Nothing that it started is left."""
        wait_until(lambda: not alive(self.pids), f"its children end: {self.said}")


class RunHarness:
    """A separate home, a server behind `connection: embedded`, and others by the names of their connections."""

    def __init__(
        self, server: EmbeddedServer, home: Path, others: Mapping[str, EmbeddedServer] | None, sections: dict[str, Any]
    ) -> None:
        self.server, self.home, self.sections = server, home, sections
        self.programs: list[Program] = []
        home.mkdir(exist_ok=True)
        if others:
            write_connections(home, others)
        self.environ = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            EMBEDDED_ADDRESS: server.address,
        }

    def start(self, *words: object) -> Program:
        folder = self.home / str(len(self.programs))
        folder.mkdir()
        with (folder / "stderr.txt").open("wb") as errors, (folder / "stdout.txt").open("wb") as out:
            process = subprocess.Popen(
                [*PROGRAM, *map(str, words)],
                env=self.environ,
                cwd=folder,
                stdout=out,
                stderr=errors,
                start_new_session=True,  # its own, so that it may raise the priority of it
            )
        self.programs.append(Program(process, folder))
        return self.programs[-1]

    def run(self, *words: object, **sections: Any) -> Program:
        """`loadgen run` of a scenario with these sections beside the usual ones."""
        number = next(_numbers)
        path = self.home / f"scenario-{number}.yaml"
        path.write_text(self.text(number, **sections), "utf-8")
        return self.start("run", path, "--format", "json", *words)

    def text(self, number: int, **sections: Any) -> str:
        """Of a scenario; JSON is YAML."""
        return json.dumps(scenario(number, **(self.sections | sections)))

    def recover(self, *words: object) -> Program:
        return self.start("runs", "recover", "-c", "embedded", "--format", "json", *words)

    def worker(self, line: str) -> Program:
        """A worker, started with the command that was printed for the user."""
        words = line.split()
        self_told = dict(word.split("=", 1) for word in words[1 : words.index("loadgen")])
        before, self.environ = self.environ, self.environ | self_told
        try:
            return self.start(*words[words.index("loadgen") + 1 :])
        finally:
            self.environ = before

    def rows(self, sql: str, *binds: object) -> list[tuple[Any, ...]]:
        with self.server.connect(database="LOADGEN", schema="CONTROL") as connection:
            found: list[tuple[Any, ...]] = connection.cursor().execute(sql, binds).fetchall()
            return found

    def state(self, run_id: str) -> tuple[str, str, str]:
        """Status, phase, reason."""
        ((status, phase, reason),) = self.rows("SELECT STATUS, PHASE, REASON FROM RUN_STATUS WHERE RUN_ID = ?", run_id)
        return status, phase, reason or ""

    def expire(self, *run_ids: str) -> None:
        """Let the leases of these runs, and those of all warehouses, expire: their leaders are dead."""
        with self.server.connect(database="LOADGEN", schema="CONTROL") as connection:
            connection.cursor().execute(f"{EXPIRE} STARTSWITH(RUN_ID, 'warehouse:')")
            for run_id in run_ids:
                connection.cursor().execute(f"{EXPIRE} RUN_ID = ?", (run_id,))

    def close(self) -> None:
        for program in self.programs:
            program.look()
            for pid in (program.process.pid, *program.pids):
                with suppress(psutil.NoSuchProcess):
                    if program.process.poll() is None or pid != program.process.pid:
                        psutil.Process(pid).kill()
            program.process.wait()


@contextmanager
def run_harness(
    server: EmbeddedServer, home: Path, others: Mapping[str, EmbeddedServer] | None = None, **sections: Any
) -> Iterator[RunHarness]:
    """`sections` are those of every scenario there."""
    harness = RunHarness(server, home, others, sections)
    try:
        yield harness
    finally:
        harness.close()
        with suppress(OSError):  # it may have ended
            server.clear_faults()


def scenario(number: int, **sections: Any) -> dict[str, Any]:
    """Two connections on a separate warehouse. A section is merged with the default one of its name."""
    usual: dict[str, Any] = {
        "version": 1,
        "name": f"fault-{number}",
        "connection": "embedded",
        "target": {"warehouse": f"FAULT_{number}_WH", "database": "BENCH", "schema": "PUBLIC"},
        "workload": ONE,
        "load": {"connections": 2, "workers": 1, "warmup": "1s", "duration": "60s"},
        "timing": TIMING,
    }
    for name, section in sections.items():
        usual[name] = _merged(usual.get(name, {}), section) if isinstance(section, dict) else section
    return usual


def history(server: EmbeddedServer, run_id: str, phase: str = "MEASUREMENT") -> Counter[int | None]:
    """How many statements the server executed for a phase of a run, by step."""
    tags = [json.loads(line["query_tag"]) for line in server.ask(f"/__loadgen/history?tag={run_id}")]
    return Counter(tag.get("step") for tag in tags if tag.get("phase") == phase)


def write_connections(home: Path, servers: Mapping[str, EmbeddedServer]) -> None:
    folder = home / ".snowflake"
    folder.mkdir()
    file = folder / "connections.toml"
    text = "".join(
        f'[{name}]\naccount = "{name}"\nuser = "tester"\npassword = "any"\nhost = "{server.host}"\n'
        f'port = {server.port}\nprotocol = "http"\n'
        for name, server in servers.items()
    )
    file.write_text(text, "utf-8")
    file.chmod(0o600)


def _merged(usual: dict[str, Any], section: dict[str, Any]) -> dict[str, Any]:
    """None takes a key away."""
    return {key: value for key, value in (usual | section).items() if value is not None}
