"""`loadgen watch` where there is nothing to watch; the rest needs a run, and is in tests/process/test_screen.py."""

import json

from loadgen.cli.main import main
from tests.unit.test_runs_cli import accepted


def test_help_has_examples_that_the_command_accepts(capsys):
    assert main(["watch", "--help"]) == 0

    text = capsys.readouterr().out
    examples = [line.split()[1:] for line in text.partition("Example:")[2].splitlines() if line.strip()]
    assert len(examples) == 2
    for words in examples:
        accepted(words)


def test_an_unreachable_server_is_reported_in_text_and_json_with_exit_code_3(capsys, monkeypatch):
    monkeypatch.setenv("LOADGEN_EMBEDDED_ADDRESS", "127.0.0.1:1")

    code = main(["watch", "-c", "embedded", "--format", "json"])

    out, errors = capsys.readouterr()
    assert code == json.loads(out)["error"]["exit_code"] == 3
    assert errors.startswith("error: no embedded server answers at 127.0.0.1:1")


def test_an_invalid_database_name_is_rejected(capsys):
    assert main(["watch", "--database", "a b", "-c", "embedded"]) == 2

    assert "hint: " in capsys.readouterr().err
