"""A fuzz run over the SQL entrance of the embedded server: hostile statements to a real process, for some minutes.

    python -m tests.security.fuzz_sql --minutes 60 --seed 1

Each answer, the processes, the canaries and PostgreSQL's own state are checked; what is wrong is printed once per kind,
with a statement that shows it. Ends with 1 when there are findings.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import re
import resource
import secrets
import sys
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from sqlglot.dialects.snowflake import Snowflake
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType

from loadgen.embedded.postgres import STATEMENT_ROLE, SUPERUSER
from tests.contract.refused_builders import FOREIGN_WORDS, FURNITURE
from tests.process.served import Refused, Server, Wire
from tests.processes import ROOT, reachable_directory
from tests.security.fuzz_texts import ROWS_TABLE, TOKEN, Texts
from tests.security.raw_postgres import RawPostgres

SESSIONS = 3
REFURNISH = 150  # statements of a session
TIMEOUT_S = 10  # each statement asks for it
SLOW_S, SLOW_CPU_S = 20.0, 5.0  # a machine that is busy otherwise makes answers slow, but uses no processor time here
FROZEN_S, FROZEN_CPU_S = 5.0, 3.0
BEAT_S = 0.5
STATE_S = 120.0  # between two polls of PostgreSQL's state
MEMORY_BYTES, ADDRESS_BYTES = 3 << 30, 6 << 30  # a finding; the limit of one process
EXAMPLES = 5
TRIALS = 60  # statements to make one example short
GONE = ("390100", "390111", "390112", "390104")
RESOURCES = "needs more memory or temporary files"  # an error that users can cause, reported as such
BIND_TYPES = ("TEXT", "FIXED", "REAL", "BOOLEAN", "DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_TZ", "BINARY", "x'; --")
_NAMES = re.compile(r'"[^"]*"|[0-9]+')
STATE = {
    "roles": "SELECT rolname::text, rolsuper, rolcreaterole, rolcreatedb, rolcanlogin FROM pg_roles",
    "members": "SELECT roleid::regrole::text, member::regrole::text FROM pg_auth_members",
    "role settings": "SELECT setdatabase::text, setrole::text, setconfig::text FROM pg_db_role_setting",
    "settings": "SELECT name, setting FROM pg_settings",
    "databases": "SELECT datname::text FROM pg_database",
    "functions": "SELECT oid::regprocedure::text, prosecdef FROM pg_proc WHERE pronamespace::regnamespace::text"
    " IN ('pg_catalog', 'public', 'meta', 'sf')",
    "tables": "SELECT oid::regclass::text FROM pg_class WHERE relnamespace::regnamespace::text"
    " IN ('public', 'meta', 'sf') AND relkind IN ('r', 'v')",
    "large objects": "SELECT oid::text FROM pg_largeobject_metadata",
    "canary": "SELECT secret FROM public.fuzz_canary",
    "guard": 'SELECT "ID"::text FROM "FUZZ_CANARY.PUBLIC"."GUARD"',
}


class Findings:
    """What was wrong, by kind; a few examples of each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def add(self, kind: str, text: str, detail: str) -> bool:
        """True when an example of this kind is wanted still."""
        with self._lock:
            self.counts[kind] += 1
            shown = self.examples.setdefault(kind, [])
            if len(shown) >= EXAMPLES or text in shown:
                return False
            shown.append(text)
        say(f"finding: {kind}\n  {detail[:400]!r}\n  {text[:1_500]!r}")
        return True


def say(text: str) -> None:
    sys.stdout.write(f"[{time.strftime('%H:%M:%S')}] {text}\n".encode("utf-8", "replace").decode())
    sys.stdout.flush()


def _limit_memory() -> None:
    """A statement that needs more fails, and the machine goes on."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))


class FuzzHarness:
    """A server with canaries, started again when it dies."""

    def __init__(self, folder: Path, findings: Findings) -> None:
        self.findings = findings
        self.secret = secrets.token_hex(16)
        self.folder = folder
        self.lock = threading.Lock()
        self.log_file = folder / "server.log"
        self.server = self._started()
        self.canary_file = folder / "canary.txt"
        self.canary_file.write_text(self.secret)
        self.canary_file.chmod(0o600)
        owner = (folder / "data" / "postgres").stat() if (folder / "data" / "postgres").exists() else folder.stat()
        with suppress(PermissionError):
            os.chown(self.canary_file, owner.st_uid, owner.st_gid)
        self._plant()
        self.state = self.look()

    def _plant(self) -> None:
        wire = Wire(self.server, "planter")
        wire.sql("CREATE DATABASE FUZZ_CANARY")
        wire.sql("CREATE TABLE FUZZ_CANARY.PUBLIC.GUARD (ID NUMBER)")
        wire.sql("INSERT INTO FUZZ_CANARY.PUBLIC.GUARD SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 10))")
        with asyncio.Runner() as runner:
            raw = RawPostgres(runner, self.server.data_dir, SUPERUSER)
            raw.execute(f"CREATE TABLE public.fuzz_canary AS SELECT '{self.secret}'::text AS secret")
            # The log then contains PostgreSQL's message about a statement.
            raw.execute(f"ALTER ROLE {STATEMENT_ROLE} SET log_min_messages = 'error'")
            raw.execute(f"ALTER ROLE {STATEMENT_ROLE} SET log_error_verbosity = 'verbose'")
            raw.close()

    def look(self) -> dict[str, Any]:
        """All that no statement may change."""
        found: dict[str, Any] = {}
        with asyncio.Runner() as runner:
            raw = RawPostgres(runner, self.server.data_dir, SUPERUSER)
            for name, sql in STATE.items():
                found[name] = sorted(map(str, raw.rows(sql)))
            raw.close()
        outside = (path for path in self.folder.iterdir() if not path.name.startswith(("stderr-", "server.log")))
        found["files"] = sorted(f"{path.name} {path.stat().st_mode:o}" for path in outside)
        found["canary file"] = self.canary_file.read_text()
        return found

    def compare(self) -> None:
        now = self.look()
        for name, before in self.state.items():
            if now[name] != before:
                changes = [item for item in now[name] if item not in before] + [i for i in before if i not in now[name]]
                self.findings.add(f"changed: {name}", str(changes)[:500], "PostgreSQL's state changed")
        self.state = now

    def cpu_s(self) -> float:
        with suppress(psutil.Error):
            times = psutil.Process(self.server.process.pid).cpu_times()
            return float(times.user + times.system)
        return 0.0

    def memory(self) -> int:
        total = 0
        for pid in self.server.tree:
            with suppress(psutil.Error):
                total += psutil.Process(pid).memory_info().rss
        return total

    def crash(self) -> str:
        """Where the newest exception of the server was raised."""
        with self.log_file.open("rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - 100_000))
            tail = file.read().decode("utf-8", "replace")
        crashes = [line for line in tail.splitlines() if "statement_crashed" in line and '"traceback"' in line]
        places = re.findall(r'/(loadgen/[^\\"]+)\\", line (\d+), in (\w+)', crashes[-1]) if crashes else []
        return " ".join(places[-1]) if places else "no traceback"

    def sqlstate(self) -> str:
        """PostgreSQL's newest error that has no translation."""
        for path in self.server.data_dir.rglob("postgres.log"):
            found = re.findall(r"ERROR:  (\w{5}): (.*)", path.read_text("utf-8", "replace"))
            untold = [(state, text) for state, text in found if state[:2] not in ("22", "23", "0A", "SF", "21")]
            untold = [(s, t) for s, t in untold if s[:2] != "42" or s in ("42501", "42939", "42P17", "42P16", "42P19")]
            if untold:
                state, text = untold[-1]
                return f"{state} {_NAMES.sub('…', text)[:80]}"
        return ""

    def alive(self) -> bool:
        return self.server.process.poll() is None

    def revive(self) -> None:
        with self.lock:
            if not self.alive():
                self.server = self._started()

    def _started(self) -> Server:
        return Server(self.folder / "data", log_file=self.log_file, preexec_fn=_limit_memory).wait_ready()


class Attacker(threading.Thread):
    """One session that sends statements until the end, and judges the answers."""

    def __init__(self, harness: FuzzHarness, number: int, seed: int, end_s: float) -> None:
        super().__init__(name=f"attacker-{number}")
        self.harness, self.number, self.end_s = harness, number, end_s
        self.findings = harness.findings
        self.texts = Texts(seed * 1_000 + number, str(harness.canary_file))
        self.rng = random.Random(seed * 1_000 + number)
        self.outcomes: Counter[str] = Counter()
        self.current = ""
        self.began_s = 0.0
        self.wire: Wire | None = None

    def run(self) -> None:
        while time.monotonic() < self.end_s:
            try:
                self._furnish()
                for _ in range(REFURNISH):
                    if time.monotonic() >= self.end_s:
                        return
                    self._attack()
            except (OSError, http.client.HTTPException, Refused) as error:
                if not self.harness.alive():
                    self.findings.add("server died", self.current, repr(error))
                    self.harness.revive()
                self.wire = None

    def _furnish(self) -> None:
        if self.wire is not None:
            self.wire.post("/session?delete=true", {})
            self.wire.close()
        self.wire = Wire(self.harness.server, f"attacker{self.number}")
        for statement in (*FURNITURE, *ROWS_TABLE):
            self.wire.sql(statement.replace("DATABASE REFUSED", f"DATABASE FUZZ{self.number}"))

    def _attack(self) -> None:
        text = self.texts.next()
        body: dict[str, Any] = {"parameters": {"STATEMENT_TIMEOUT_IN_SECONDS": TIMEOUT_S, "LOCK_TIMEOUT": 3}}
        if marks := text.count("?"):
            count = min(40, marks + self.rng.choice((0, 0, 0, 0, 1, -1)))
            body["bindings"] = {str(number): self._bind() for number in range(1, count + 1)}
        if self.rng.random() < 0.04:
            body["describeOnly"] = True
        kind, detail = self._judged(text, body)
        if kind and self.findings.add(kind, text, detail) and not kind.startswith(("slow", "dropped")):
            self._shorten(kind, text, body)

    def _bind(self) -> dict[str, Any]:
        value = self.rng.choice((self.texts.literal(), "1", "2024-01-01", "1700000000.5", "true", None))
        return {"type": self.rng.choice(BIND_TYPES), "value": [value, "2"] if self.rng.random() < 0.05 else value}

    def _judged(self, text: str, body: dict[str, Any]) -> tuple[str, str]:
        """The kind of the finding, or nothing; and what was answered."""
        assert self.wire is not None
        self.current, self.began_s = text, time.monotonic()
        cpu_s = self.harness.cpu_s()
        try:
            path = f"/queries/v1/query-request?requestId={uuid.uuid4()}"
            status, answer = self.wire.post(path, {"sqlText": text} | body)
        except (OSError, http.client.HTTPException) as error:
            if not self.harness.alive():
                raise
            self.wire = Wire(self.harness.server, f"attacker{self.number}")
            return f"dropped: {type(error).__name__}", repr(error)
        took_s, used_s = time.monotonic() - self.began_s, self.harness.cpu_s() - cpu_s
        shown = answer.decode("utf-8", "replace")
        if status != 200:
            self.outcomes[f"HTTP {status}"] += 1
            return ("" if status == 400 and "\\ud800" in json.dumps([text, body]) else f"HTTP {status}"), shown
        if took_s > SLOW_S and used_s > SLOW_CPU_S:
            return "slow", f"{took_s:.1f} s, {used_s:.1f} s of them computing: {shown[:200]}"
        return self._wrong(text, body, json.loads(shown), shown)

    def _wrong(self, text: str, body: dict[str, Any], reply: dict[str, Any], shown: str) -> tuple[str, str]:
        sent = (text + json.dumps(body)).lower()
        for word in (self.harness.secret, "root:x:0:", STATEMENT_ROLE):
            if word in shown and word not in sent:
                return f"leaked: {word}", shown
        if reply.get("success"):
            self.outcomes["accepted"] += 1
            return ("several statements" if self._several(text) else ""), shown
        code, message = str(reply.get("code")), str(reply.get("message"))
        self.outcomes[code] += 1
        if code in GONE:
            raise Refused(code)
        if code == "000603" and RESOURCES not in message:
            where = self.harness.crash() if re.search(r"error: \w+\.$", message) else self.harness.sqlstate()
            return f"internal error: {message.rpartition(': ')[2]} {where}", message
        for pattern in FOREIGN_WORDS:
            found = re.search(pattern, message)
            if found is not None and found.group().lower() not in sent:
                return f"foreign word: {pattern}", message
        return "", ""

    def _several(self, text: str) -> bool:
        try:
            tokens = Snowflake().tokenize(text.rstrip("; \n\t"))
        except TokenError:
            return False
        return any(token.token_type is TokenType.SEMICOLON for token in tokens[:-1])

    def _shorten(self, kind: str, text: str, body: dict[str, Any]) -> None:
        """Leave out tokens as long as the finding stays."""
        tokens, trials = TOKEN.findall(text), 0
        size = max(1, len(tokens) // 2)
        while size and trials < TRIALS and time.monotonic() < self.end_s:
            place = 0
            while place < len(tokens) and trials < TRIALS:
                rest = tokens[:place] + tokens[place + size :]
                trials += 1
                if self._judged("".join(rest), body)[0] == kind:
                    tokens = rest
                else:
                    place += size
            size //= 2
        if "".join(tokens) != text:
            say(f"shorter: {kind}\n  {''.join(tokens)[:1_500]!r}")


class Watch(threading.Thread):
    """A session with cheap statements, which must be answered soon; and the polls of processes and memory."""

    def __init__(self, harness: FuzzHarness, attackers: list[Attacker], end_s: float) -> None:
        super().__init__(name="watch")
        self.harness, self.attackers, self.end_s = harness, attackers, end_s
        self.longest_s = 0.0
        self.most_memory = 0

    def run(self) -> None:
        wire, postmaster, looked_s = None, 0, time.monotonic()
        never = threading.Event()
        while time.monotonic() < self.end_s:
            never.wait(BEAT_S)
            try:
                wire = wire or Wire(self.harness.server, "heartbeat")
                self._beat(wire)
                now = self.harness.server.postmaster
                if postmaster not in (0, now):
                    self._found("PostgreSQL died", f"process {now} after {postmaster}")
                postmaster = now
                if time.monotonic() - looked_s > STATE_S:
                    looked_s = time.monotonic()
                    self.harness.compare()
                    say(f"{sum(a.outcomes.total() for a in self.attackers)} statements")
            except (OSError, http.client.HTTPException, ValueError, psutil.Error, Refused) as error:
                wire, postmaster = None, 0
                if self.harness.alive():
                    self._found(f"heartbeat: {type(error).__name__}", repr(error))
                else:
                    never.wait(5)

    def _beat(self, wire: Wire) -> None:
        began_s, cpu_s = time.monotonic(), self.harness.cpu_s()
        wire.sql("SELECT 1")
        took_s, used_s = time.monotonic() - began_s, self.harness.cpu_s() - cpu_s
        self.longest_s = max(self.longest_s, took_s)
        if took_s > FROZEN_S and used_s > FROZEN_CPU_S:
            self._found("frozen", f"{took_s:.1f} s, {used_s:.1f} s of them computing")
        memory = self.harness.memory()
        self.most_memory = max(self.most_memory, memory)
        if memory > MEMORY_BYTES:
            self._found("memory", f"{memory >> 20} MB")

    def _found(self, kind: str, detail: str) -> None:
        oldest = sorted(self.attackers, key=lambda attacker: attacker.began_s)
        self.harness.findings.add(kind, " /// ".join(attacker.current[:700] for attacker in oldest), detail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    findings = Findings()
    began_s = time.monotonic()
    with reachable_directory() as folder:
        harness = FuzzHarness(folder, findings)
        say(f"serving from {folder}, process {harness.server.process.pid}, PostgreSQL {harness.server.postmaster}")
        end_s = time.monotonic() + 60 * options.minutes
        attackers = [Attacker(harness, number, options.seed, end_s) for number in range(SESSIONS)]
        watch = Watch(harness, attackers, end_s)
        for thread in (*attackers, watch):
            thread.start()
        for thread in (*attackers, watch):
            thread.join()
        harness.compare()
        harness.server.stop()
    outcomes = sum((attacker.outcomes for attacker in attackers), Counter[str]())
    say(f"{(time.monotonic() - began_s) / 60:.1f} minutes, {outcomes.total()} statements, seed {options.seed}")
    say(f"longest heartbeat {watch.longest_s:.1f} s, most memory {watch.most_memory >> 20} MB")
    for name, count in outcomes.most_common():
        say(f"  {name}: {count}")
    for kind, count in findings.counts.most_common():
        say(f"finding {kind}: {count}")
    return 1 if findings.counts else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
