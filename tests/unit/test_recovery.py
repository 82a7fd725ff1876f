"""`loadgen runs recover`: which runs are left, taken over or refused, and the exit code."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.tables import run_status
from loadgen.errors import Busy, ConnectFailed, RunFailed
from loadgen.model.run import RunStatus
from loadgen.snowflake.session import RetryPolicy
from orchestrator import recover
from orchestrator.experiment.warehouse_settings import RestoredWarehouse
from orchestrator.job import takeover_job
from orchestrator.leadership import SkippedRun
from orchestrator.recover import RecoveredRun, RecoveryOutcome, recover_all
from tests.fake_clock import FakeClock

ALIVE = tuple(SkippedRun(run_id=name, why="its workers are alive", living=True) for name in ("a", "b"))
LED = SkippedRun(run_id="c", why="it has a leader")
RESTORED = RestoredWarehouse(experiment_id="e", warehouse="W", restored=True)
LEFT = RestoredWarehouse(experiment_id="e", warehouse="W", restored=False, why="no right")
STILL_LED = RestoredWarehouse(experiment_id="e", warehouse="W", restored=False, is_led=True)


@pytest.fixture
def recovered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """recover_all() over these skipped runs, and the outcome of the warehouses."""

    def act(*left: SkippedRun, name: str | None = None, take_over: bool = True, settings: Any = ()) -> RecoveryOutcome:
        def restore(*_: object, **__: object) -> Any:
            if isinstance(settings, Exception):
                raise settings
            return settings

        monkeypatch.setattr(recover, "recover_runs", lambda *_, **__: ([], list(left)))
        monkeypatch.setattr(recover, "restore_left_settings", restore)
        monkeypatch.setattr(run_status, "find_run", lambda *_: LED)
        clock = FakeClock()
        retries: Any = RetryPolicy(stop=threading.Event(), clock=clock)
        control: Any = lambda action: action(None, retries)  # noqa: E731
        return recover_all(control, name, by="me", take_over=take_over, say=lambda _: None, clock=clock)

    return act


def test_runs_with_living_workers_can_be_taken_over_unless_runs_are_only_to_be_ended(recovered):
    assert (recovered(*ALIVE, LED).takeable, recovered(*ALIVE, LED).unchanged) == (ALIVE, (LED,))
    assert (recovered(*ALIVE, take_over=False).takeable, recovered(*ALIVE, take_over=False).unchanged) == ((), ALIVE)


def test_a_named_run_with_a_leader_is_refused(recovered):
    with pytest.raises(Busy, match="c was not changed: it has a leader"):
        recovered(LED, name="c")


def test_the_other_runs_are_left_after_a_takeover(recovered):
    outcome = recovered(*ALIVE, LED)

    taken, ended = outcome.with_takeover("a", has_ended=False), outcome.with_takeover("a", has_ended=True)

    assert [one.run_id for one in taken.unchanged] == ["c", "b"]
    assert [(one.run_id, one.has_ended) for one in ended.unchanged] == [("c", False), ("a", True), ("b", False)]
    assert taken.takeable == ended.takeable == ()


@pytest.mark.parametrize(
    ("settings", "taken", "code"),
    [
        ((), None, 0),
        ((RESTORED, STILL_LED), None, 0),
        ((RESTORED, LEFT), None, 4),
        (ConnectFailed("gone"), None, 4),
        ((), {"exit_code": 10}, 10),
    ],
)
def test_the_exit_code_is_that_of_the_run_or_of_the_warehouses(recovered, settings, taken, code):
    assert recovered(settings=settings).exit_code(taken) == code


def test_settings_are_restored_only_if_no_run_is_named(recovered):
    assert recovered(ALIVE[0], name="a", settings=(LEFT,)).settings == ()


def test_an_id_from_a_row_that_is_no_folder_name_is_not_taken_over(tmp_path):
    roles: Any = None

    with pytest.raises(RunFailed, match="not a valid folder name"):
        takeover_job(ControlPlaneLocation(), "../x", tmp_path, roles, clock=FakeClock())


def test_a_run_that_another_one_ends_is_told_in_a_sentence_and_not_as_a_log_line(monkeypatch, caplog):
    ended = RecoveredRun(run_id="r", status=RunStatus.FAILED, reason="its orchestrator was lost; ended by me")
    monkeypatch.setattr(recover, "recover_runs", lambda *_, **__: ([ended], []))
    nothing: Any = None
    shown: list[str] = []

    with caplog.at_level("WARNING"):
        again = recover.recover_orphans(nothing, nothing, by="me", show=shown.append)

    assert (again, caplog.records) == (False, [])
    assert shown == [
        "warning: run r had lost its orchestrator and was ended as FAILED: its orchestrator was lost; ended by me"
    ]
