"""`loadgen prepare` where it needs no server: --dry-run, wrong usage, what it shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.segment import Segment

from loadgen.cli.display import ECHO_COLUMNS, PREPARATION_LINE_S, Bars, ProgressLines, progress_line
from loadgen.cli.main import main
from loadgen.prepare.prepare import PreparationProgress, PreparationStep
from tests import SCENARIO_EXAMPLES
from tests.fake_clock import FakeClock

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = str(ROOT / "examples" / "quickstart.yaml")


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    """Any attempt to connect fails."""
    monkeypatch.setenv("LOADGEN_EMBEDDED_ADDRESS", "127.0.0.1:1")


@pytest.mark.parametrize("path", SCENARIO_EXAMPLES, ids=lambda path: path.stem)
def test_a_dry_run_shows_every_statement_and_connects_to_nothing(path, capsys):
    code = main(["prepare", str(path), "--dry-run"])

    text = capsys.readouterr().out
    assert code == 0
    assert "IF NOT EXISTS" in text
    assert all(statement.rstrip().endswith(";") for statement in text.split("\n\n"))


def test_a_dry_run_prints_the_number_of_rows_and_the_first_statement(capsys):
    main(["prepare", QUICKSTART, "--dry-run", "--set", "prepare.tables.0.rows=1m"])

    text = capsys.readouterr().out
    assert "1,000,000 rows, made by the server, in statements of up to 200,000, 5 or more" in text
    assert "GENERATOR(ROWCOUNT => 1000)" in text
    assert "DROP TABLE" not in text


def test_a_dry_run_of_drop_shows_what_would_be_dropped(capsys):
    main(["prepare", QUICKSTART, "--dry-run", "--drop"])

    assert capsys.readouterr().out.startswith(
        '-- drop BENCH.PUBLIC.QUICKSTART_ORDERS if loadgen has created it\nDROP TABLE IF EXISTS "BENCH"."PUBLIC"'
    )


def test_a_dry_run_as_json(capsys):
    main(["prepare", QUICKSTART, "--dry-run", "--format", "json"])

    data = json.loads(capsys.readouterr().out)
    assert data["dry_run"]
    assert [re.split(r"\W", one["sql"])[0] for one in data["statements"]] == ["CREATE", "INSERT", "SELECT"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([QUICKSTART, "--force"], "--force works with --drop only"),
        (["nowhere.yaml"], "nowhere.yaml"),
        ([QUICKSTART, "--set", "prepare.tables.0.rows=many"], "--set prepare.tables.0.rows=many"),
    ],
)
def test_wrong_usage_is_an_error_with_a_hint_and_exit_code_2(arguments, said, capsys):
    code = main(["prepare", *arguments])

    shown = capsys.readouterr().err
    assert code == 2
    assert shown.startswith("error: ")
    assert said in shown
    assert "\nhint: " in shown


def test_the_engine_without_tables_is_refused(tmp_path, capsys):
    text = Path(QUICKSTART).read_text("utf-8").replace("embedded: {", 'embedded: {engine: "null", ')
    (tmp_path / "null.yaml").write_text(text, "utf-8")

    assert main(["prepare", str(tmp_path / "null.yaml")]) == 2

    assert "has no tables to prepare" in capsys.readouterr().err


def test_a_missing_server_is_an_error_with_exit_code_3(capsys):
    assert main(["prepare", QUICKSTART, "--format", "json"]) == 3

    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["exit_code"] == 3
    assert "hint: " in err


def test_looking_for_the_command_imports_nothing_heavy():
    code = (
        "import sys, loadgen.cli.prepare; heavy = {'ruamel', 'numpy', 'rich', 'snowflake'}; "
        "sys.exit(not heavy.isdisjoint(name.split('.')[0] for name in sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# --- lines -----------------------------------------------------------------------------------------------------------


def filling(rows: int, table: str = "T") -> PreparationProgress:
    return PreparationProgress(step=PreparationStep.FILLING, table=table, rows_there=rows, rows=1_000_000)


def test_a_line_shows_progress_and_remaining_time():
    assert progress_line(filling(0), 0, 0.0) == "T: 0 of 1,000,000 rows"
    assert progress_line(filling(250_000), 50_000, 5.0) == "T: 250,000 of 1,000,000 rows, 10,000 rows/s, 75 s left"


def test_lines_come_at_once_for_each_table_and_then_every_ten_seconds(capsys):
    clock = FakeClock()
    lines = ProgressLines(clock)

    for _ in range(25):
        lines.show(filling(round(clock.monotonic_ns() / 1e9 * 1000)))
        clock.advance(1)
    lines.show(filling(0, table="U"))

    shown = capsys.readouterr().err.splitlines()
    assert PREPARATION_LINE_S == 10
    assert shown == [
        "T: 0 of 1,000,000 rows",
        "T: 10,000 of 1,000,000 rows, 1,000 rows/s, 990 s left",
        "T: 20,000 of 1,000,000 rows, 1,000 rows/s, 980 s left",
        "U: 0 of 1,000,000 rows",
    ]


@pytest.mark.parametrize("width", [50, 60, 80, 200])
def test_progress_bars_leave_room_for_the_echo_of_ctrl_c(width):
    """In the last column the echo begins a new line, and the bars before it would stay on the screen."""
    console = Console(file=StringIO(), force_terminal=True, width=width)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("1,000 of 2,000 rows"),
        TextColumn("0:07"),
    )
    bars = Bars(*columns, console=console)

    bars.add_task("A_TABLE_WITH_A_LONG_NAME", total=1_000)
    lines = console.render_lines(bars.get_renderable(), pad=False)

    assert all(Segment.get_line_length(line) <= width - ECHO_COLUMNS for line in lines)
