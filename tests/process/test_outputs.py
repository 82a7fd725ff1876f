"""What users and programs see of a run: foreign text stays text in every output, and all outputs agree."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import threading
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.report.exports import FILES
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import TIMING, scenario
from tests.processes import PATIENCE_S, PROGRAM, ROOT, wait_until

NAMES = ("</script><b>x", "=1+2|`x` [/dim] 🐍", "big")
MESSAGE = "[/dim] \x1b[31mred\x1b]0;own\x07\x00 😀 </script><script>alert(1)</script> | `x` \u202e ]]>"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
# What the live view sends: its own screen, places, and looks.
OF_THE_VIEW = re.compile(r"\x1b\[(?:\?(?:1049|25)[hl]|[HJK]|2J|[0-9;]*m)")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")


def write_scenario(folder: Path, number: int) -> Path:
    statements = [
        {"name": name, "sql": f"SELECT SYSTEM$WAIT({wait_ms}, 'MILLISECONDS')"}
        for wait_ms, name in enumerate(NAMES, start=200)
    ]
    made = scenario(
        number,
        workload={"statements": statements},
        load={"connections": 4, "duration": "8s"},
        thresholds=[f"{NAMES[0]}.p50 < 1ms", "error_rate < 100%"],
        timing=TIMING | {"tick": "200ms"},  # the last lines of a worker are read before its process is removed
    )
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(made), "utf-8")
    return path


def environ(server: EmbeddedServer, **more: str) -> dict[str, str]:
    """Nothing else, as cron has it."""
    return {"PYTHONPATH": str(ROOT), EMBEDDED_ADDRESS: server.address, **more}


def on_a_terminal(server: EmbeddedServer, folder: Path) -> tuple[int, str, str]:
    """A run whose statements fail from the warm-up on: exit code, stdout, and all output of the terminal."""
    master, slave = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(master, 65_536):
                seen.append(part)
        except OSError:  # no process has it open any more
            return

    words = [*PROGRAM, "run", str(write_scenario(folder, 9_001)), "--format", "json"]
    process = subprocess.Popen(
        words, cwd=folder, env=environ(server, TERM="xterm"), stdin=slave, stdout=subprocess.PIPE, stderr=slave,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    reader = threading.Thread(target=read, name="terminal")
    reader.start()
    try:
        wait_until(lambda: b"RUNNING WARMUP" in b"".join(seen), "it warms up")
        server.fault(match=r"WAIT\(200,", kind="error", errno=100051, message=MESSAGE, probability=0.5)
        server.fault(match=r"WAIT\(202,", kind="big_error", probability=0.5)
        printed, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        server.clear_faults()
        process.kill()
        process.wait()
        reader.join(PATIENCE_S)
        os.close(master)
    return process.returncode, printed.decode(), b"".join(seen).decode()


def test_foreign_text_is_harmless_and_all_outputs_agree(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, printed, screen = on_a_terminal(server, tmp_path)

    assert code == 10, screen
    (folder,) = tmp_path.glob("runs/*")
    summary = json.loads(printed)
    assert (folder / "summary.json").read_text("utf-8") == printed
    assert list(summary["statements"]) == list(NAMES)
    assert {error["code"] for error in summary["errors"]} == {100051, 603}
    check_screen(screen)
    check_files(folder, summary)
    monkeypatch.setenv(EMBEDDED_ADDRESS, server.address)
    for kind, name in {**FILES, "json": "summary.json"}.items():
        assert main(["report", folder.name, "-c", "embedded", "--format", kind]) == 0
        assert capfd.readouterr().out == (folder / name).read_bytes().decode(), kind
    for words in (["runs", "show"], ["report"]):
        assert main([*words, folder.name, "-c", "embedded"]) == 0
        shown = capfd.readouterr().out
        assert not UNSAFE.search(shown)
        assert all(name in shown for name in NAMES)


def check_screen(screen: str) -> None:
    shown = re.sub("\r+\n", "\n", OF_THE_VIEW.sub("", screen))
    assert not UNSAFE.search(shown)
    assert NAMES[0] in shown
    assert "[/dim] ␛[31mred␛]0;own" in shown
    assert max(map(len, shown.split("\n"))) <= 160  # the last line of a frame, and the first of the next


def check_files(folder: Path, summary: dict[str, Any]) -> None:
    for name in (*FILES.values(), "summary.json", "logs/worker-0.log"):
        content = (folder / name).read_text("utf-8")
        assert not UNSAFE.search(content), name
        assert len(content) < 400_000, name
    page = (folder / "report.html").read_text("utf-8")
    assert "&lt;/script&gt;&lt;b&gt;x" in page
    assert "</script><b>x" not in page
    assert "<script>alert" not in page
    totals = summary["totals"]
    said = (folder / "report.md").read_text("utf-8")
    assert f"`{NAMES[0]}`" in said
    assert "<script>" not in said
    assert f"| {totals['succeeded']:,} | {totals['failed']:,} |" in said
    suite = ElementTree.parse(folder / "junit.xml").getroot()[0]
    assert f"{NAMES[0]}.p50 < 1ms" in [case.get("name") for case in suite.iter("testcase")]
    (qps,) = [one.get("value") for one in suite.iter("property") if one.get("name") == "qps"]
    assert float(qps or 0) == totals["qps"]
    rows = list(csv.DictReader(io.StringIO((folder / "intervals.csv").read_text("utf-8"))))
    assert {f"{NAMES[0]} failed", f"'{NAMES[1]} failed"} <= set(
        rows[0]
    )  # the quote: no spreadsheet takes it for a formula
    for count in ("succeeded", "failed"):
        assert sum(int(row[count]) for row in rows if row["phase"] == "MEASUREMENT") == totals[count]


def test_a_failure_under_cron_is_printed_in_lines(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server.fault(match=r"WAIT\(200,", kind="error", errno=100051, message=MESSAGE)
    try:
        done = subprocess.run(
            [*PROGRAM, "run", str(write_scenario(tmp_path, 9_002)), "--format", "json"],
            cwd=tmp_path,
            env=environ(server),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
        )
    finally:
        server.clear_faults()

    said = done.stderr.decode()
    (folder,) = tmp_path.glob("runs/*")
    assert done.returncode == json.loads(done.stdout)["exit_code"] == 4, said
    assert not UNSAFE.search(said)
    assert all(MOMENT.match(line) for line in said.splitlines())
    verdict, hint = said.splitlines()[-2:]
    assert f"{folder.name} ERROR, exit code 4: worker-0 ended: statement {NAMES[0]}: [/dim] " in verdict
    assert f"hint: Check the SQL of statement {NAMES[0]}." in hint
    log = (folder / "logs" / "worker-0.log").read_text("utf-8")
    assert f"statement {NAMES[0]}: [/dim] " in log
    assert not UNSAFE.search(log)
    monkeypatch.setenv(EMBEDDED_ADDRESS, server.address)
    assert main(["runs", "logs", folder.name, "-c", "embedded"]) == 0
    logged = capfd.readouterr().out
    assert f"statement {NAMES[0]}: [/dim] " in logged
    assert not UNSAFE.search(logged)
