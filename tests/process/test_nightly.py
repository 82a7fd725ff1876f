"""The nightly example for real: its crontab's entries as cron starts them, in an environment that is nearly empty."""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.model.nightly import parse_cron
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from orchestrator.nightly.scheduler import program
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, ROOT, wait_until

NIGHTLY = ROOT / "examples" / "nightly"
SERVICE_TIME = "lognormal(100ms,0.3)"  # what the scenarios ask for
SETTING = re.compile(r"([A-Z_]+)=(.*)")
ENTRY = re.compile(r"((?:\S+\s+){5})(\S.*)")


@dataclass(frozen=True)
class Crontab:
    settings: dict[str, str]
    entries: dict[str, str]  # expression: command


def read_crontab(path: Path) -> Crontab:
    """As cron reads it: settings, and five fields with a command."""
    settings, entries = {}, {}
    for line in path.read_text("utf-8").splitlines():
        if setting := SETTING.fullmatch(line):
            settings[setting[1]] = setting[2]
        elif line and not line.startswith("#"):
            entry = ENTRY.fullmatch(line)
            assert entry is not None, line
            entries[" ".join(entry[1].split())] = entry[2].replace("\\%", "%")
    return Crontab(settings, entries)


class Cron:
    """Starts the commands of a crontab as cron does: /bin/sh, and no environment but this."""

    def __init__(self, crontab: Crontab, home: Path, **settings: str) -> None:
        self.commands, self.home = list(crontab.entries.values()), home
        cron_gives = {"HOME": str(home), "LOGNAME": "nightly", "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
        self.environ = cron_gives | crontab.settings | settings

    def start(self, command: str) -> subprocess.Popen[str]:
        words = [f"{name}={value}" for name, value in self.environ.items()]
        shell = ["/usr/bin/env", "-i", *words, "/bin/sh", "-c", command]
        return subprocess.Popen(shell, cwd=self.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, command: str) -> tuple[int, str]:
        """Exit code, and what cron would mail."""
        job = self.start(command)
        said = "".join(job.communicate(timeout=PATIENCE_S))
        return job.returncode, said


@pytest.fixture
def cron(server: EmbeddedServer, tmp_path: Path) -> Cron:
    """The example's crontab with this checkout, this Python, and short nights."""
    program = tmp_path / "loadgen"
    code = "import sys; from loadgen.cli.main import main; sys.exit(main())"
    words = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-P", "-c", code]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    return Cron(
        read_crontab(NIGHTLY / "crontab"),
        tmp_path,
        LOADGEN_HOME=str(ROOT),
        LOADGEN_PROGRAM=str(program),
        NIGHTLY_WARMUP="0s",
        NIGHTLY_DURATION="2s",
        **{EMBEDDED_ADDRESS: server.address},
    )


def summaries(home: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text("utf-8")) for file in sorted(home.glob("loadgen-nights/runs/*/summary.json"))]


def test_the_entries_are_schedules_of_cron():
    crontab = read_crontab(NIGHTLY / "crontab")

    assert len(crontab.entries) == 2
    for expression in crontab.entries:
        parse_cron(expression)


@pytest.mark.slow
def test_three_nights_by_cron_and_one_that_overlaps(cron):
    weekday, sunday = cron.commands

    friday = cron.run(weekday)
    saturday = cron.start(weekday)
    wait_until(lambda: len(list(cron.home.glob("loadgen-nights/runs/*"))) == 2, "the second night is under way")
    overlapping = cron.run(weekday)
    saturday_said = "".join(saturday.communicate(timeout=PATIENCE_S))
    last = cron.run(sunday)

    assert overlapping == (75, "skipped: the last night has not ended\n")
    for code, said in (friday, (saturday.returncode, saturday_said), last):
        assert (code, said) == (0, "")
    found = summaries(cron.home)
    names = ["nightly-payments", "nightly-point-reads", "nightly-point-reads"]
    assert sorted(str(summary["scenario"]) for summary in found) == names
    assert {summary["status"] for summary in found} == {"COMPLETED"}
    assert len({summary["run_id"] for summary in found}) == 3
    judged = [summary["baseline"] for summary in found if "baseline" in summary]
    assert len(judged) == sum(code != 5 for code in (friday[0], saturday.returncode, last[0]))  # an INVALID run is not
    assert all((one["kind"], one["verdict"]) == ("trend", "learning") for one in judged)


def test_schedules_by_the_commands_of_a_user(server, capsys, monkeypatch):
    monkeypatch.setenv(EMBEDDED_ADDRESS, server.address)
    database = ["--database", "SCHEDULES_BY_HAND"]

    def ask(*words: str, code: int = 0) -> tuple[str, str]:
        assert main(["schedule", *words, *database]) == code
        out, err = capsys.readouterr()
        return out, err

    def ask_json(*words: str) -> Any:
        return json.loads(ask(*words, "-c", "embedded", "--format", "json")[0])

    file = str(NIGHTLY / "point_reads.yaml")
    ask("add", "reads", file, "--cron", "* * * * * *", "--overlap", "queue", "--requires", "zone=eu")
    ask("add", "payments", file, "--cron", "0 2 * * *", "--tz", "Europe/Berlin")
    assert "schedule 'reads' exists already" in ask("add", "reads", file, "--cron", "0 2 * * *", code=2)[1]
    fired: list[dict[str, str]] = []

    def ticked() -> bool:
        fired.extend(ask_json("tick")["fired"])
        return bool(fired)

    wait_until(ticked, "a second passes, and something is due")

    assert {fire["schedule"] for fire in fired} == {"reads"}
    shown = ask_json("show", "reads")
    assert {fire["queue_id"] for fire in fired} <= {fire["queue_id"] for fire in shown["fires"]}
    assert [row["name"] for row in ask_json("list")["schedules"]] == ["payments", "reads"]
    assert len(ask_json("next", "payments", "-n", "3")["schedules"][0]["next"]) == 3
    assert ask("disable", "reads", "-c", "embedded")[0] == "schedule reads is disabled\n"
    assert ask_json("tick")["fired"] == []
    assert ask("tick", "--quiet", "-c", "embedded") == ("", "")
    assert ask("enable", "payments", "-c", "embedded")[0].startswith("schedule payments was already enabled; next ")
    assert ask_json("enable", "reads", "--catch-up")["enabled"]
    assert ask_json("remove", "reads") == {"removed": "reads"}
    assert "there is no schedule 'reads'" in ask("show", "reads", "-c", "embedded", code=2)[1]


def test_a_printed_line_is_silent_and_ticks_one_at_a_time(cron, capsys):
    assert main(["schedule", "print", "--cron", "-c", "embedded"]) == 0
    command = capsys.readouterr().out.splitlines()[-1].split(maxsplit=5)[5]
    command = command.replace(program(), '"$LOADGEN_PROGRAM"')
    setup = cron.run('"$LOADGEN_PROGRAM" setup -c embedded >/dev/null')

    alone = cron.run(command)
    with (cron.home / ".loadgen-schedule.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        beside_another = cron.run(command)

    assert setup[0] == 0, setup
    assert alone == (0, "")
    assert beside_another == (75, "")


def test_a_night_that_fails_reports_it_for_each_scenario(cron):
    cron.environ["NIGHTLY_DURATION"] = "soon"

    code, said = cron.run('"$LOADGEN_HOME/examples/nightly/night"')

    assert code == 2
    failed = re.findall(r"^(\w+) ended with exit code 2:$", said, re.MULTILINE)
    assert failed == sorted(path.stem for path in NIGHTLY.glob("*.yaml")) == ["payments", "point_reads"]
    assert said.count("load.duration") == 2
