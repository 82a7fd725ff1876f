"""Commands about runs where they need no server, and what they show."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import timedelta

import click
import pytest

from loadgen.cli import runs
from loadgen.cli.main import cli, main
from loadgen.cli.watch import _as_json, _as_text
from loadgen.control.session import ParsedRows
from loadgen.control.tables.run_leases import LeaseHolder
from loadgen.control.tables.run_status import Run, RunFigures
from loadgen.control.tables.test_logs import LogRow
from loadgen.control.tables.test_results import ScenarioResult
from loadgen.model.run import RunStatus
from loadgen.report.formatting import verdict_of_word
from loadgen.results.comparisons import _left_out
from loadgen.results.run_details import RunDetails, lasted, outcome, run_details_as_json, run_details_lines
from loadgen.rules.validity import RunVerdict
from orchestrator.leadership import StopRequest
from tests.processes import ROOT
from tests.unit.run_builders import RUN, T0, WORKER

ENDED = replace(
    RUN, status=RunStatus.FAILED, end_time=T0 + timedelta(seconds=75), reason="a\x1b[31m reason", verdict="error"
)
HOLDER = LeaseHolder(epoch=1, owner="build-7:4711:abc", remaining_ms=20_000)
LOOK = RunDetails(run=RUN, holder=HOLDER, workers=ParsedRows([WORKER]), now=T0 + timedelta(seconds=65))
QUICKSTART = str(ROOT / "examples" / "quickstart.yaml")
COMMANDS = [["status"], ["stop"], *(["runs", name] for name in ("list", "show", "logs", "recover", "prune"))]


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_the_command_accepts(words, capsys):
    assert main([*words, "--help"]) == 0

    text = capsys.readouterr().out
    examples = [line.strip() for line in text.partition("Example:")[2].splitlines() if line.strip()]
    assert examples
    for example in examples:
        accepted(shlex.split(example)[1:])


def accepted(words: list[str]) -> None:
    """The words make a context of the command: nothing is run."""
    context = click.Context(cli)
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    command.make_context(None, list(words))


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["stop", "latest"],
        ["runs", "list"],
        ["runs", "show", "x"],
        ["runs", "logs", "x"],
        ["runs", "recover"],
        ["runs", "prune", "--older-than", "1d"],
    ],
    ids=" ".join,
)
def test_an_unreachable_server_is_reported_in_text_and_json_with_exit_code_3(words, capsys, monkeypatch):
    monkeypatch.setenv("LOADGEN_EMBEDDED_ADDRESS", "127.0.0.1:1")

    code = main([*words, "-c", "embedded", "--format", "json"])

    out, errors = capsys.readouterr()
    assert code == json.loads(out)["error"]["exit_code"] == 3
    assert errors.startswith("error: no embedded server answers at 127.0.0.1:1")
    assert "\nhint: " in errors


@pytest.mark.parametrize(
    "words",
    [
        ["stop"],
        ["runs", "show"],
        ["runs", "list", "-n", "0"],
        ["runs", "list", "--status", "SLEEPING"],
        ["runs", "list", "--verdict", "FAILED"],
        ["runs", "list", "--within", "soon"],
        ["runs", "logs", "x", "-n", "many"],
        ["runs", "prune"],
        ["runs", "prune", "--older-than", "long"],
        ["runs", "prune", "--older-than", "99999999999999999999d"],
        ["runs", "list", "--within", "36501d"],
        ["run", QUICKSTART, "--wait", "--share-warehouse"],
        ["run", QUICKSTART, "--confirm"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_in_text_and_json(words, capsys):
    code = main([*words, "--format", "json"])

    out, errors = capsys.readouterr()
    assert code == json.loads(out)["error"]["exit_code"] == 2
    assert errors.startswith("error: ")
    assert "\nhint: " in errors


# --- what is shown ---------------------------------------------------------------------------------------------------


def as_text(seen: RunDetails, width: int | None = None) -> str:
    return "\n".join(line.text for line in run_details_lines(seen, width, result=True))


def test_a_verdict_that_is_the_status_is_shown_once():
    ended = replace(ENDED, status=RunStatus.CANCELLED, verdict="cancelled")
    seen = RunDetails(run=ended, holder=None, workers=ParsedRows([]), now=T0)
    missed = replace(seen, run=replace(ended, status=RunStatus.COMPLETED, verdict="failed"))

    assert run_details_lines(seen, None, result=False)[0].text == f"{RUN.run_id}  CANCELLED"
    assert run_details_lines(missed, None, result=False)[0].text == f"{RUN.run_id}  COMPLETED, missed"


def test_a_running_run_as_text():
    assert as_text(LOOK) == (
        "20261116-0600-orders-7f3a9c  RUNNING MEASUREMENT\n"
        "  scenario orders, started 2026-11-16 06:00:00 UTC, running for 1:05\n"
        "  led by build-7:4711:abc in epoch 1\n"
        "  12,345 statements, 6 errors, 789.5/s now\n"
        "  worker-0  RUNNING MEASUREMENT, 4 of 8 connections, 3 busy, heartbeat 0.4 s ago, CPU 42 %\n"
        "            last error: it␛[2J hurt"
    )


def test_an_ended_run_as_text_has_its_reason_and_no_leader():
    text = as_text(replace(LOOK, run=ENDED, workers=ParsedRows(())))

    assert text == (
        "20261116-0600-orders-7f3a9c  FAILED, error\n"
        "  scenario orders, started 2026-11-16 06:00:00 UTC, took 1:15\n"
        "  reason: a␛[31m reason\n"
        "  12,345 statements, 6 errors"
    )


def test_a_run_without_a_leader_has_a_hint():
    assert "no process leads it yet" in as_text(replace(LOOK, holder=None))
    text = as_text(replace(LOOK, holder=replace(HOLDER, remaining_ms=-42_000)))
    assert "no process has led it for 42 s" in text
    assert "`loadgen runs recover`" in text


@pytest.mark.parametrize(
    ("stored", "shown"),
    [('["disk=ssd","zone=eu"]', ["disk=ssd", "zone=eu"]), (None, []), ("{}", []), ("[1]", []), ("no JSON", [])],
)
def test_labels_of_workers_are_shown_where_they_have_some(stored, shown):
    labelled = replace(WORKER, identity=replace(WORKER.identity, labels=stored))
    look = replace(LOOK, workers=ParsedRows([labelled]))

    assert run_details_as_json(look)["workers"][0]["labels"] == shown
    assert ("labels disk=ssd zone=eu" in as_text(look)) == bool(shown)


def test_a_run_as_json():
    shown = json.loads(json.dumps(run_details_as_json(LOOK)))

    assert shown["leader"] == {"owner": "build-7:4711:abc", "epoch": 1, "term": 1, "lease_left_ms": 20_000}
    assert shown["run"]["started_at"] == "2026-11-16T06:00:00.000Z"
    assert shown["run"]["ended_at"] is None
    assert shown["run"]["find_max"] == {"step": 2}
    assert shown["run"]["workers"] == {"expected": 2, "registered": 2, "active": 2, "completed": 0}
    assert (shown["workers"][0]["worker_id"], shown["workers"][0]["beat_age_ms"]) == ("worker-0", 412)


SUMMARY = {
    "totals": {"succeeded": 12_990, "failed": 10, "qps": 216.5},
    "latency_ms": {"p95": 38.25},
}
FIGURES = RunFigures(operations=13_000, errors=10, qps=216.5, p95_ms=38.25)


def test_once_there_is_a_result_its_counts_are_shown_everywhere():
    seen = replace(LOOK, run=ENDED, summary=SUMMARY)
    state = "\n".join(line.text for line in run_details_lines(seen, None, result=False))

    assert seen.figures == FIGURES
    assert "13,000 statements, 10 errors, 216.5/s" in state
    shown = run_details_as_json(seen)["run"]
    assert [shown[key] for key in ("operations", "errors", "qps", "p95_ms", "duration_s")] == [
        13_000, 10, 216.5, 38.25, 75.0
    ]  # fmt: skip


def listed(width: int | None, *found: tuple[Run, RunFigures | None]) -> list[str]:
    return [line.text for line in runs._table(found, LOOK.now, width)]


def test_the_list_of_runs_has_start_duration_throughput_p95_and_verdict():
    assert listed(80, (RUN, None), (ENDED, FIGURES)) == [
        "RUN                          START (UTC)  LASTED    QPS  P95 MS  VERDICT",
        "20261116-0600-orders-7f3a9c  11-16 06:00    1:05  789.5       -  running",
        "20261116-0600-orders-7f3a9c  11-16 06:00    1:15  216.5    38.2  error",
    ]
    assert lasted(replace(RUN, start_time=None), LOOK.now) == "-"
    assert lasted(replace(RUN, start_time=T0 - timedelta(hours=2)), LOOK.now) == "2:01:05"


def test_a_wide_terminal_and_a_pipe_show_more_of_each_run():
    everything = [
        "RUN                          SCENARIO  START (UTC)  LASTED    QPS  P95 MS  STATEMENTS  ERRORS  VERDICT",
        "20261116-0600-orders-7f3a9c  orders    11-16 06:00    1:15  216.5    38.2      13,000      10  error",
    ]

    assert listed(None, (ENDED, FIGURES)) == listed(120, (ENDED, FIGURES)) == everything
    assert "SCENARIO" not in listed(95, (ENDED, FIGURES))[0]
    assert "ERRORS" in listed(95, (ENDED, FIGURES))[0]


def test_the_list_of_the_longest_names_and_numbers_fits_80_columns():
    longest = replace(
        RUN,
        run_id="20261116-0600-payments-for-al-7f3a9c",
        status=RunStatus.COMPLETED,
        verdict="cancelled",
        start_time=T0 - timedelta(hours=9, minutes=59),
        end_time=T0,
    )
    huge = RunFigures(operations=10**12, errors=10**9, qps=99_999.0, p95_ms=99_999.0)

    lines = listed(80, (longest, huge), (replace(RUN, status=RunStatus.CANCELLING), None))

    assert len(longest.run_id) == 36
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == [longest.run_id, "11-15", "20:01", "9:59:00", "99,999", "99,999", "cancelled"]
    assert lines[2].endswith(" stopping")


def test_the_state_of_a_run_fits_80_columns():
    seen = replace(LOOK, run=replace(RUN, reason="a long reason " * 20, test_name="orders " * 10))

    assert max(len(line.text) for line in run_details_lines(seen, 80, result=True)) <= 80


def test_the_outcome_of_a_run_without_a_verdict_is_its_status():
    assert outcome(replace(ENDED, verdict=None)) == "error"
    assert outcome(replace(RUN, status=RunStatus.STARTING)) == "starting"


def test_every_verdict_that_the_list_shows_can_be_asked_for():
    shown = {outcome(replace(ENDED, status=RunStatus.COMPLETED, verdict=verdict)) for verdict in RunVerdict}

    assert shown == set(runs.VERDICTS)
    assert {verdict_of_word(word) for word in runs.VERDICTS} == set(RunVerdict)


def test_a_line_of_the_log_is_safe_to_print():
    row = LogRow(
        run_id="r", test_id=None, worker_id=None, level="INFO", message="a\x1b[31m\nb", details={"n": 1}, timestamp=T0
    )

    assert runs._line(row) == '2026-11-16 06:00:00.000  orchestrator  INFO     a␛[31m␊b  {"n": 1}'


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            StopRequest(run=replace(RUN, status=RunStatus.CANCELLING, reason="by me"), by_us=True, holder=HOLDER),
            f"run {RUN.run_id} was asked to end: CANCELLING, by me\nits `loadgen run` ends with exit code 130",
        ),
        (
            StopRequest(run=replace(RUN, status=RunStatus.CANCELLING, reason="by her"), by_us=False, holder=HOLDER),
            f"run {RUN.run_id} is already ending: CANCELLING, by her\nits `loadgen run` ends with exit code 130",
        ),
        (
            StopRequest(run=replace(RUN, status=RunStatus.CANCELLING, reason="by me"), by_us=True, holder=None),
            f"run {RUN.run_id} was asked to end: CANCELLING, by me\n"
            "no process leads it: its workers will end without one; then `loadgen runs recover` ends the run",
        ),
        (StopRequest(run=ENDED, by_us=False, holder=None), f"nothing to stop: run {RUN.run_id} is FAILED"),
    ],
    ids=["asked", "ending", "not led", "ended"],
)
def test_the_output_of_stop(asked, said):
    assert _as_text(asked) == said
    assert _as_json(asked)["asked"] is asked.by_us


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.RUNNING])
def test_trend_leaves_a_run_out_with_the_word_of_the_list(status):
    found = ScenarioResult(
        run_id="r", template_id="t", status=status.value, created_at=T0, summary=None, scenario_config="{}"
    )

    assert _left_out(found, None).endswith(f" {outcome(replace(RUN, status=status))}")
