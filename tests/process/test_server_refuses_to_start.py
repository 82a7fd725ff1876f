"""What keeps the embedded server from starting is named, and nothing is touched."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.cli.main import main
from loadgen.embedded.datadir import SYSTEM_DIR
from tests.process.served import Wire, refused, serve, serving
from tests.processes import process_of_owner, run_as


def test_a_second_server_on_the_same_directory_gets_the_name_of_the_owner(home):
    with serving(home) as server:
        code, error, hint = refused(home)

        assert code == 75
        assert str(home) in error
        assert f"Process {server.process.pid} serves it at {server.address}" in hint
        assert Wire(server).answers()


def test_a_port_in_use_is_named_and_nothing_is_touched(scratch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        code, error, hint = refused(scratch / "data", "--port", str(port))

    assert code == 4
    assert f"127.0.0.1:{port}" in error
    assert "another port" in hint
    assert not (scratch / "data").exists()


@pytest.fixture
def refused_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """As `refused`, in this process: what is wrong with options is known before a server is begun."""
    monkeypatch.setattr("loadgen.cli.embedded.raise_priority", lambda: pytest.fail("it would serve"))

    def refused_in_this_process(data_dir: Path, *arguments: str) -> tuple[int, str, str]:
        code = main(serve(data_dir, *arguments))
        said = capsys.readouterr()
        assert said.out == ""
        error, hint = said.err.splitlines()
        assert (error[:7], hint[:6]) == ("error: ", "hint: ")
        return code, error, hint

    return refused_in_this_process


def test_its_port_is_free_again_at_once(home):
    with serving(home) as server:
        port = server.port
        Wire(server).answers()  # a connection the server closes first lingers in TIME_WAIT

    with serving(home, "--port", str(port)) as server:
        assert server.port == port


@pytest.mark.parametrize(
    "arguments",
    [
        ("--service-time", "fast"),
        ("--service-time", "20"),
        ("--service-time", " "),
        ("--service-time", "-5ms"),
        ("--service-time", "lognormal(20ms)"),
        ("--service-time", "lognormal(0ms,0.3)"),
        ("--service-time", "pareto(20ms,1)"),
        ("--service-time", "uniform(30ms,10ms)"),
        ("--control-latency", "slow"),
        ("--control-latency", "lognormal(300ms)"),
        ("--control-schema", "CONTROL"),
        ("--slots", "-1"),
        ("--slots", "many"),
        ("--port", "65536"),
        ("--engine", "oracle"),
    ],
    ids=" ".join,
)
def test_an_option_that_makes_no_sense_is_refused_before_anything_is_made(scratch, refused_here, arguments):
    code, error, hint = refused_here(scratch / "data", *arguments)

    assert code == 2
    assert arguments[1].split("(")[0] in error
    assert arguments[0] in hint or "--help" in hint
    assert not (scratch / "data").exists()


@pytest.mark.parametrize("option", [("--control-latency", "300ms"), ("--strict-hybrid",)], ids=" ".join)
def test_the_null_engine_has_no_tables_to_be_strict_about(scratch, refused_here, option):
    code, error, hint = refused_here(scratch / "data", "--engine", "null", *option)

    assert code == 2
    assert option[0] in error
    assert "--engine null" in hint


def a_file(parent: Path) -> Path:
    path = parent / "file"
    path.write_text("mine\n")
    return path


def below_a_file(parent: Path) -> Path:
    return a_file(parent) / "data"


def directory_of_another_user(parent: Path) -> Path:
    path = parent / "mine"
    path.mkdir()
    (path / "letter.txt").write_text("mine\n")
    return path


def too_long_a_path(parent: Path) -> Path:
    return parent.joinpath(*["long" * 50] * 6)


@pytest.mark.parametrize("place", [a_file, below_a_file, directory_of_another_user, too_long_a_path])
def test_a_directory_it_cannot_use_is_named_and_left_alone(scratch, place):
    path = place(scratch)
    before = sorted(str(entry) for entry in scratch.rglob("*"))

    code, error, hint = refused(path)

    assert code == 4
    assert str(path)[:100] in error
    assert "--data-dir" in hint
    assert sorted(str(entry) for entry in scratch.rglob("*")) == before


def test_a_directory_closed_to_the_user_is_named(scratch):
    prefix = run_as("ordinary user", scratch)
    closed = scratch / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    if os.geteuid() == 0:
        os.chown(closed, 0, 0)

    code, error, hint = refused(closed / "data", prefix=prefix)

    assert code == 4
    assert "permission denied" in error
    assert "--data-dir" in hint


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others run PostgreSQL as themselves")
def test_root_gets_an_error_for_a_directory_that_the_user_of_postgresql_cannot_reach(scratch):
    closed = scratch / "closed"
    closed.mkdir(mode=0o700)

    code, error, hint = refused(closed / "data")

    assert code == 4
    assert f"{closed} denies access" in error
    assert str(SYSTEM_DIR) in hint
    assert list(closed.iterdir()) == []


def test_files_that_a_dead_owner_left_are_no_obstacle(home):
    with process_of_owner(home / "postgres", "sleep", "600") as stranger:
        record = {"pid": stranger.pid, "host": "127.0.0.1", "port": 1, "started_at": "2020-01-01", "version": "0"}
        (home / "server.json").write_text(json.dumps(record))
        (home / "lock").write_text(str(stranger.pid))

        with serving(home) as server:
            assert Wire(server).answers()
            assert json.loads((home / "server.json").read_text())["pid"] == server.process.pid
        assert stranger.poll() is None
