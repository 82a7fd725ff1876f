"""This process and its machine; which process holds a lease: it has ended only if it certainly ran here, and ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import loadgen.process
from loadgen.control.tables import pool_workers, run_leases
from loadgen.process import MARK_LENGTH, available_cores, has_ended, is_running, process_mark, user_and_host
from tests.processes import wait_until


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made
        made.kill()


def owner_of(pid: int, mark: str) -> str:
    """The owner of a lease, as that process would have named itself."""
    host, _, _ = run_leases.new_owner().split(":")
    return f"{host}:{pid}:{mark}{'0' * 12} its scenario"


def runner_of(pid: int, mark: str) -> str:
    return f"build-7-{pid}-{mark}{'0' * 8}"


def test_a_process_has_ended_once_it_was_killed(child):
    mark = process_mark(child.pid)
    owner, runner = owner_of(child.pid, mark), runner_of(child.pid, mark)
    before = has_ended(child.pid, mark), run_leases.is_owner_dead(owner), pool_workers.is_gone(runner)

    child.kill()
    wait_until(lambda: not is_running(child.pid), "it has ended, and was not reaped yet")
    unnoticed = has_ended(child.pid, mark)
    child.wait()

    assert len(mark) == MARK_LENGTH
    assert before == (False, False, False)
    assert unnoticed
    assert (has_ended(child.pid, mark), run_leases.is_owner_dead(owner), pool_workers.is_gone(runner)) == (
        True,
        True,
        True,
    )


def test_the_next_process_with_the_same_id_is_another_one():
    mine = process_mark(os.getpid())
    before = f"{int(mine, 16) - 1:0{MARK_LENGTH}x}"  # as after a start one tick earlier

    assert not has_ended(os.getpid(), mine)
    assert has_ended(os.getpid(), before)


@pytest.mark.parametrize("changed", ["boot_id", "pid namespace", "host"])
def test_of_another_machine_or_container_nothing_is_known(child, monkeypatch, changed):
    """Containers may have the same host name and process ids; so may the same machine after a restart."""
    real = loadgen.process._place.__wrapped__
    if changed == "boot_id":
        monkeypatch.setattr(Path, "read_text", lambda *_: "another")
    elif changed == "pid namespace":
        monkeypatch.setattr(os, "readlink", lambda _: "pid:[1]")
    else:
        monkeypatch.setattr(socket, "gethostname", lambda: "another")
    elsewhere = real()
    monkeypatch.undo()
    mark = process_mark(child.pid)
    child.kill()
    child.wait()

    assert elsewhere != mark[: len(elsewhere)]
    assert not has_ended(child.pid, f"{elsewhere}{mark[len(elsewhere) :]}")
    assert not run_leases.is_owner_dead(owner_of(child.pid, f"{elsewhere}{mark[len(elsewhere) :]}"))


def test_where_nothing_can_be_known_no_process_counts_as_ended(child, monkeypatch):
    mark = process_mark(child.pid)
    child.kill()
    child.wait()
    monkeypatch.setattr(loadgen.process, "_place", lambda: "")

    assert process_mark(os.getpid()) == ""
    assert not has_ended(child.pid, mark)
    assert not has_ended(child.pid, "")


@pytest.mark.parametrize(
    "owner", ["", "x", "host:pid:token", "host:12:", f"host:{10**30}:{'0' * 30}", ":::", "a b:1:c"]
)
def test_an_invalid_owner_does_not_count_as_ended(owner):
    assert not run_leases.is_owner_dead(owner)
    assert not pool_workers.is_gone(owner)


def test_names_are_different_each_time():
    assert run_leases.new_owner() != run_leases.new_owner()
    assert pool_workers.new_worker_id() != pool_workers.new_worker_id()
    assert len(pool_workers.new_worker_id()) <= 100


def test_a_user_has_a_name_and_a_machine():
    name, _, machine = user_and_host().partition(" on ")

    assert name
    assert machine


def test_a_process_may_use_at_least_one_core():
    assert available_cores() >= 1
