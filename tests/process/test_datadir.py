"""The data directory: it has one owner, known by its lock only; errors contain a hint."""

import json
import os
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from loadgen.embedded.datadir import DataDir, ListenAddress, choose_data_dir, running_server
from loadgen.errors import Busy, EmbeddedServerError
from tests.processes import VARIANTS, reachable_directory, run_as, server_process, wait_ready

ADDRESS = ListenAddress(host="127.0.0.1", port=4711)
STARTED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

HOLDER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from loadgen.embedded.datadir import DataDir, ListenAddress

with DataDir.claim(Path(sys.argv[1])) as data_dir:
    data_dir.publish(ListenAddress(host="127.0.0.1", port=4711), started_at=datetime.now(UTC), version="1")
    print("ready", flush=True)
    sys.stdin.read()
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
not_as_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


@pytest.fixture
def scratch():
    with reachable_directory() as path:
        yield path


# --- one owner -------------------------------------------------------------------------------------------------------


def test_an_owner_is_found_when_it_is_ready_and_not_before_or_after(scratch):
    path = scratch / "data"
    assert running_server(path) is None

    with DataDir.claim(path) as data_dir:
        assert running_server(path) is None
        data_dir.publish(ADDRESS, started_at=STARTED_AT, version="1.2")
        assert running_server(path) == ADDRESS
        assert json.loads((path / "server.json").read_text()) == {
            "pid": os.getpid(),
            "host": "127.0.0.1",
            "port": 4711,
            "started_at": "2026-01-02T03:04:05.000+00:00",
            "version": "1.2",
        }

    assert running_server(path) is None
    assert not (path / "server.json").exists()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_second_owner_is_rejected_and_the_error_names_the_first(scratch, variant):
    path = scratch / "data"
    with server_process(HOLDER, path, run_as(variant, scratch)) as holder:
        wait_ready(holder)
        assert running_server(path) == ADDRESS

        if os.geteuid() != 0 or variant == "root":
            with pytest.raises(Busy, match="in use") as refusal:
                DataDir.claim(path)
            assert refusal.value.exit_code == 75
            assert f"Process {holder.pid} serves it at 127.0.0.1:4711" in refusal.value.remedy

        holder.communicate()
        assert holder.returncode == 0
    assert running_server(path) is None


def test_files_of_a_killed_owner_are_no_obstacle(scratch):
    path = scratch / "data"
    with server_process(HOLDER, path) as holder:
        wait_ready(holder)
        holder.send_signal(signal.SIGKILL)
        holder.wait()

    assert (path / "server.json").exists()
    assert running_server(path) is None
    with DataDir.claim(path):
        assert not (path / "server.json").exists()


def test_an_owner_that_is_still_starting_is_named_by_its_pid(scratch):
    with DataDir.claim(scratch / "data"), pytest.raises(Busy) as refusal:
        DataDir.claim(scratch / "data")

    assert f"Process {os.getpid()} owns it" in refusal.value.remedy


def test_the_record_of_an_earlier_owner_is_not_taken_for_this_ones(scratch):
    path = scratch / "data"
    with DataDir.claim(path):
        stale = {"pid": os.getpid() + 1, "host": "127.0.0.1", "port": 1}
        (path / "server.json").write_text(json.dumps(stale))

        assert running_server(path) is None


def test_a_reader_that_polls_permanently_never_keeps_an_owner_out(scratch):
    path = scratch / "data"
    DataDir.claim(path).release()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            running_server(path)

    readers = [threading.Thread(target=look, name=f"reader-{number}") for number in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(50):
            DataDir.claim(path).release()
    finally:
        done.set()
        for reader in readers:
            reader.join()


def test_giving_back_twice_is_harmless_and_others_may_have_it(scratch):
    first = DataDir.claim(scratch / "data")
    first.release()

    with DataDir.claim(scratch / "data") as second:
        first.release()
        assert second.held
        assert not first.held


# --- where it lies ---------------------------------------------------------------------------------------------------


def test_an_option_has_priority_over_the_environment():
    environ = {"LOADGEN_EMBEDDED_DATA_DIR": "/from/environment", "XDG_DATA_HOME": "/xdg"}

    assert choose_data_dir(Path("asked"), environ) == Path("asked")
    assert choose_data_dir(None, environ) == Path("/from/environment")


@pytest.mark.parametrize(
    ("uid", "environ", "expected"),
    [
        (0, {"XDG_DATA_HOME": "/xdg"}, "/var/lib/loadgen/embedded"),
        (1000, {"XDG_DATA_HOME": "/xdg"}, "/xdg/loadgen/embedded"),
        (1000, {"XDG_DATA_HOME": "relative is ignored"}, "/home/ann/.local/share/loadgen/embedded"),
        (1000, {"LOADGEN_EMBEDDED_DATA_DIR": ""}, "/home/ann/.local/share/loadgen/embedded"),
    ],
)
def test_the_default_is_the_users_own_or_the_systems_for_root(monkeypatch, uid, environ, expected):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setenv("HOME", "/home/ann")

    assert choose_data_dir(None, environ) == Path(expected)


def test_missing_parents_are_made_with_any_umask(scratch):
    before = os.umask(0o077)
    try:
        DataDir.claim(scratch / "a" / "b" / "data").release()
    finally:
        os.umask(before)

    modes = {(scratch / part).stat().st_mode & 0o777 for part in ("a", "a/b")}
    assert modes == ({0o755} if os.geteuid() == 0 else {0o700})


def test_a_symlink_and_its_target_are_one_directory(scratch):
    (scratch / "link").symlink_to(scratch / "target")

    with DataDir.claim(scratch / "link"), pytest.raises(Busy):
        DataDir.claim(scratch / "target")


# --- what cannot be used ---------------------------------------------------------------------------------------------


def refusal_of(path: Path) -> EmbeddedServerError:
    with pytest.raises(EmbeddedServerError) as refusal:
        DataDir.claim(path)
    assert "--data-dir" in refusal.value.remedy or "chown" in refusal.value.remedy
    return refusal.value


@pytest.mark.parametrize("below", ["", "deeper", "much/deeper"])
def test_a_file_is_no_directory(scratch, below):
    (scratch / "file").write_text("mine")

    assert "is a file" in str(refusal_of(scratch / "file" / below))
    assert running_server(scratch / "file" / below) is None


@pytest.mark.parametrize("path", ["x" * 300, "/".join(["deep"] * 300)])
def test_a_path_that_is_too_long_is_refused(scratch, path):
    refusal = refusal_of(scratch / path)

    assert "too long" in str(refusal)
    assert len(str(refusal)) < 500
    assert os.listdir(scratch) == []


def test_a_directory_with_other_content_is_left_alone(scratch):
    (scratch / "thesis.tex").write_text("years of work")

    assert "'thesis.tex'" in str(refusal_of(scratch))
    assert os.listdir(scratch) == ["thesis.tex"]


def test_the_root_of_a_file_system_counts_as_empty(scratch):
    (scratch / "lost+found").mkdir()

    DataDir.claim(scratch).release()


def test_a_directory_of_another_layout_is_refused(scratch):
    DataDir.claim(scratch).release()
    (scratch / "loadgen-embedded").write_text("99\n")

    assert "another version of loadgen (layout '99')" in str(refusal_of(scratch))


@not_as_root
def test_a_directory_one_may_not_write_to_is_refused(scratch):
    scratch.chmod(0o555)

    assert "permission denied" in str(refusal_of(scratch))
    assert "permission denied" in str(refusal_of(scratch / "data"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_file_system_that_takes_no_files_is_refused():
    refusal_of(Path("/proc/loadgen-data"))


@needs_root
def test_root_gets_the_name_of_the_directory_that_postgresql_cannot_enter(scratch):
    (scratch / "private").mkdir(mode=0o700)

    refusal = refusal_of(scratch / "private" / "data")

    assert f"{scratch / 'private'} denies access" in str(refusal)
    assert os.listdir(scratch / "private") == []


@needs_root
def test_a_closed_directory_of_roots_own_is_opened_just_enough(scratch):
    (scratch / "data").mkdir(mode=0o700)

    DataDir.claim(scratch / "data").release()

    assert (scratch / "data").stat().st_mode & 0o777 == 0o711


@needs_root
def test_root_does_not_work_in_a_directory_that_another_user_controls(scratch):
    (scratch / "data").mkdir()
    os.chown(scratch / "data", 12345, 12345)

    assert "belongs to user id 12345" in str(refusal_of(scratch / "data"))
    assert os.listdir(scratch / "data") == []
