"""Files and folders that other users could have prepared: rejected where they may write, links not followed, nothing of
a run readable for others."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.cli.main import main
from loadgen.embedded.datadir import LOCK, DataDir, running_server
from loadgen.errors import ConfigurationError, EmbeddedServerError, ScenarioInvalid
from loadgen.log import logged_to
from loadgen.prepare.prepare import read_pools
from loadgen.scenario.read import read_scenario
from orchestrator.run_folder import LOGS, SCENARIO, make_run_folder, make_runs_folder, write_file
from tests.contract.test_queue_cli import SCENARIO as WITH_VALUE_FILE

pytestmark = pytest.mark.any_driver


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Where also the account of PostgreSQL may pass: a test's own folder is closed to it."""
    with tempfile.TemporaryDirectory(prefix="loadgen-test-") as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "data"
        DataDir.claim(path).release()
        yield path


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
def test_a_data_directory_that_others_may_write_is_refused(data_dir: Path, mode: int) -> None:
    data_dir.chmod(mode)

    for use in (DataDir.claim, running_server):
        with pytest.raises(EmbeddedServerError, match=f"can be changed by others \\(mode {mode:04o}\\)") as refused:
            use(data_dir)
        assert refused.value.remedy == f"Run: chmod go-w {data_dir}"


def test_a_data_directory_that_others_could_replace_is_refused(data_dir: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(data_dir)
    data_dir.parent.chmod(0o777)

    for use in (DataDir.claim, running_server):
        for path in (data_dir, link):
            with pytest.raises(EmbeddedServerError, match="could be replaced by others") as refused:
                use(path)
            assert refused.value.remedy == f"Run: chmod o-w {data_dir.parent}"
    data_dir.parent.chmod(0o1777)
    DataDir.claim(data_dir).release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_a_data_directory_behind_a_link_of_another_user_is_refused(data_dir: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(data_dir)
    DataDir.claim(link).release()
    os.lchown(link, 65_534, 65_534)

    for use in (DataDir.claim, running_server):
        with pytest.raises(EmbeddedServerError, match="is a link of user id 65534"):
            use(link)


def test_a_link_in_place_of_the_lock_of_a_data_directory_is_not_followed(data_dir: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    (data_dir / LOCK).unlink()
    (data_dir / LOCK).symlink_to(victim)

    for use in (DataDir.claim, running_server):
        with pytest.raises(EmbeddedServerError):
            use(data_dir)
    assert victim.read_text() == "as it was"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o757])
def test_a_folder_of_runs_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    folder.chmod(mode)

    with pytest.raises(ConfigurationError, match="can be changed by others") as refused:
        make_runs_folder(folder)

    assert f"chmod go-w {folder}" in (refused.value.remedy or "")
    assert list(folder.iterdir()) == []


def test_a_sticky_folder_is_no_danger(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    folder.chmod(0o1777)

    make_runs_folder(folder)


def test_nothing_of_a_run_is_readable_for_others_with_any_umask(tmp_path: Path) -> None:
    runs, before = tmp_path / "runs", os.umask(0)
    try:
        make_runs_folder(runs)
        make_run_folder(runs / "one", "version: 1\n")
        write_file(runs / "one" / "summary.json", "{}")
        with logged_to(runs / "one" / "loadgen.log"):
            logging.getLogger("loadgen.test").warning("said")
    finally:
        os.umask(before)

    made = {path.relative_to(runs / "one").as_posix(): mode_of(path) for path in (runs / "one").rglob("*")}
    assert mode_of(runs) == 0o755
    assert mode_of(runs / "one") == 0o700
    assert made == {LOGS: 0o700, SCENARIO: 0o600, "summary.json": 0o600, "loadgen.log": 0o600}


def test_a_report_that_was_published_stays_published(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("of yesterday")
    page.chmod(0o644)

    write_file(page, "of today")

    assert (mode_of(page), page.read_text()) == (0o644, "of today")


@pytest.mark.parametrize("name", [".report.html.{pid}.tmp", "report.html"])
def test_a_link_in_place_of_a_report_is_not_written_through(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name.format(pid=os.getpid())).symlink_to(victim)

    write_file(folder / "report.html", "a report")

    assert victim.read_text() == "as it was"
    assert (folder / "report.html").read_text() == "a report"
    assert not (folder / "report.html").is_symlink()


def test_a_link_in_place_of_a_scenario_copy_or_of_a_log_is_not_followed(tmp_path: Path) -> None:
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.write_text("as it was")
    run.mkdir()
    for name in (SCENARIO, "loadgen.log"):
        (run / name).symlink_to(victim)

    make_run_folder(run, "version: 1\n")
    with pytest.raises(ConfigurationError, match="cannot write the log file"), logged_to(run / "loadgen.log"):
        pass

    assert victim.read_text() == "as it was"


class TestValueFiles:
    """`values: {keys: {file: data/keys.csv}}` of a scenario that came from elsewhere."""

    @pytest.fixture
    def scenario(self, tmp_path: Path) -> Path:
        folder = tmp_path / "scenario"
        (folder / "data").mkdir(parents=True)
        (tmp_path / "private.csv").write_text("K\nsecret\n", "utf-8")
        file = folder / "night.yaml"
        file.write_text(WITH_VALUE_FILE, "utf-8")
        return file

    @pytest.mark.parametrize("link", ["data/keys.csv", "data"])
    def test_a_link_out_of_the_folder_is_refused(self, scenario: Path, link: str, capsys: pytest.CaptureFixture[str]):
        outside = scenario.parent.parent / "private.csv"
        if link == "data":
            (scenario.parent / "data").rmdir()
            outside = outside.rename(outside.with_name("keys.csv")).parent
        (scenario.parent / link).symlink_to(outside)

        assert main(["validate", str(scenario)]) == 2

        said = capsys.readouterr()
        assert "a link leads out of the scenario's folder" in said.out + said.err
        assert "secret" not in said.out + said.err

    def test_a_link_that_is_planted_after_the_check_is_refused_as_well(self, scenario: Path) -> None:
        values = scenario.parent / "data" / "keys.csv"
        values.write_text("K\n1\n", "utf-8")
        loaded = read_scenario(scenario, environ={})
        values.unlink()
        values.symlink_to(scenario.parent.parent / "private.csv")

        with pytest.raises(ScenarioInvalid, match="a link leads out of the scenario's folder"):
            read_pools(None, loaded.scenario, scenario.parent)  # type: ignore[arg-type]  # it has no query

    def test_a_link_inside_the_folder_is_followed(self, scenario: Path) -> None:
        (scenario.parent / "all.csv").write_text("K\n1\n", "utf-8")
        (scenario.parent / "data" / "keys.csv").symlink_to("../all.csv")

        assert main(["validate", str(scenario)]) == 0
