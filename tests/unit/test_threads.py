"""Threads whose death is noticed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.model.run import WorkerExit
from loadgen.snowflake.driver import Cursor
from loadgen.threads import Service, ThreadDied
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.worker import Worker
from tests.processes import wait_until


class PanicException(BaseException):
    """As the driver's Rust core raises it: no Exception."""


def panic() -> None:
    raise PanicException("called `Option::unwrap()` on a `None` value")


@pytest.mark.parametrize("error", [PanicException("unwrap"), ValueError("unwrap"), SystemExit("unwrap")])
def test_the_end_of_a_thread_by_any_exception_is_reported_to_its_owner(error):
    told: list[ThreadDied] = []

    def work() -> None:
        raise error

    service = Service("polls", work, died=told.append)
    service.check()
    service.start()

    assert service.join(10)
    with pytest.raises(ThreadDied, match=f"thread polls: {type(error).__name__}: unwrap") as raised:
        service.check()
    assert told == [raised.value]
    assert raised.value.__cause__ is error
    assert raised.value.exit_code == 1


def test_a_thread_that_ends_as_it_should_is_no_death():
    service = Service("polls", lambda: service.stopping.wait())
    service.start()
    assert not service.join(0.0)

    service.stop()

    assert service.join(10)
    service.check()


def test_a_service_that_was_never_started_can_be_stopped_and_joined():
    service = Service("polls", panic)

    service.stop()

    assert service.join(10)


def test_services_can_share_the_event_that_stops_them():
    stopping = threading.Event()
    services = [Service(name, stopping.wait, stopping=stopping) for name in ("a", "b")]
    for service in services:
        service.start()

    services[0].stop()

    wait_until(lambda: all(service.join(0.0) for service in services), "both have ended")


class PanickingSession(ControlSession):
    """Each statement meets a bug of the driver's Rust core."""

    @contextmanager
    def cursor(self) -> Iterator[Cursor]:
        panic()
        yield super().open().cursor()


def test_a_worker_whose_thread_panics_ends_with_the_code_of_a_bug_and_a_message(capsys):
    place = ControlPlaneLocation(connection="embedded")
    me = WorkerArguments(run_id="r", worker_id="worker-0", worker_group_id=0, worker_group_count=1)
    worker = Worker(me, place, environ={}, open_session=lambda role: PanickingSession(place, role=role))

    assert worker.run() == WorkerExit.FATAL

    assert "error: worker-0: thread " in capsys.readouterr().err
