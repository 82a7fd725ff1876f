"""The life of a run: which steps there are, that every life ends, and that nothing follows the end."""

import re
from importlib.resources import files
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.control.session import load_queries
from loadgen.errors import UsageError
from loadgen.model.run import (
    PHASES,
    RUN_TRANSITIONS,
    InvalidTransition,
    Phase,
    RunStatus,
    check_transition,
    chosen_id,
    error_hint,
)

# As the design draws it, written down a second time.
ALLOWED = {
    "PREPARED": "STARTING CANCELLING FAILED",
    "STARTING": "RUNNING STOPPING CANCELLING FAILED",
    "RUNNING": "STOPPING CANCELLING FAILED",
    "STOPPING": "COMPLETED FAILED",
    "CANCELLING": "CANCELLED FAILED",
    "COMPLETED": "",
    "CANCELLED": "",
    "FAILED": "",
}
TERMINAL = {"COMPLETED", "CANCELLED", "FAILED"}
ORDER = ["PREPARING", "WARMUP", "MEASUREMENT", "COOLDOWN", "PROCESSING"]


def is_allowed(status: RunStatus, phase: Phase, to: RunStatus, to_phase: Phase) -> bool:
    stays_or_steps = status == to or to in ALLOWED[status].split()
    return status not in TERMINAL and stays_or_steps and ORDER.index(phase) <= ORDER.index(to_phase)


@pytest.mark.parametrize("status", list(RunStatus))
def test_every_step_is_either_in_the_design_or_refused(status):
    for phase, to, to_phase in product(Phase, RunStatus, Phase):
        if is_allowed(status, phase, to, to_phase):
            check_transition(status, phase, to, to_phase)
        else:
            with pytest.raises(InvalidTransition):
                check_transition(status, phase, to, to_phase)


def test_every_status_has_its_steps_and_terminal_means_none():
    assert set(RUN_TRANSITIONS) == set(RunStatus)
    assert {status for status in RunStatus if status.is_terminal} == TERMINAL
    assert [phase.value for phase in PHASES] == ORDER


@given(st.lists(st.sampled_from(list(RunStatus)), max_size=30), st.lists(st.sampled_from(list(Phase)), max_size=30))
def test_every_sequence_of_steps_goes_forward_and_ends_once(wanted, phases):
    status, phase = RunStatus.PREPARED, Phase.PREPARING
    lived = [status]
    for to, to_phase in zip(wanted, phases, strict=False):
        try:
            check_transition(status, phase, to, to_phase)
        except InvalidTransition:
            continue
        assert not status.is_terminal
        assert PHASES.index(to_phase) >= PHASES.index(phase)
        if to is not status:
            lived.append(to)
        status, phase = to, to_phase
    assert len(lived) == len(set(lived)), "a state came back"
    assert not any(state.is_terminal for state in lived[:-1])


@pytest.mark.parametrize("status", [status for status in RunStatus if status not in TERMINAL])
def test_every_state_that_is_not_terminal_can_fail(status):
    check_transition(status, Phase.PREPARING, RunStatus.FAILED, Phase.PREPARING)


def test_a_rejected_step_names_both_states():
    with pytest.raises(InvalidTransition, match="COMPLETED cannot become RUNNING"):
        check_transition(RunStatus.COMPLETED, Phase.PROCESSING, RunStatus.RUNNING, Phase.PROCESSING)
    with pytest.raises(InvalidTransition, match="COOLDOWN cannot go back to WARMUP"):
        check_transition(RunStatus.RUNNING, Phase.COOLDOWN, RunStatus.RUNNING, Phase.WARMUP)


# --- the tables agree ------------------------------------------------------------------------------------------------


def test_a_user_may_cancel_exactly_where_the_life_of_a_run_allows_it():
    sql = load_queries("run_status")["cancel"].sql

    cancellable = set(re.findall(r"STATUS = '(\w+)'", sql.split("WHERE")[1]))

    assert cancellable == {status.value for status, steps in RUN_TRANSITIONS.items() if RunStatus.CANCELLING in steps}


def test_the_tables_name_the_same_states_and_have_room_for_them():
    ddl = (files("schemas") / "control_plane" / "0001_control_plane.sql").read_text("utf-8")

    said = re.search(r"-- One row per run\. STATUS: (.+)\.", ddl)

    assert said is not None
    assert set(re.findall(r"\w+", said[1])) == {status.value for status in RunStatus}
    assert max(len(name) for name in [*RunStatus, *Phase]) <= 20


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("worker-0 exited with code 1: statement pay: no such table: T", "Check the SQL of statement pay."),
        ("worker-12 ended: statement pay: SQL compilation error", "Check the SQL of statement pay."),
        ("worker-0 was killed by signal 9", None),
        ("", None),
    ],
)
def test_a_refused_statement_has_a_hint_that_names_it(reason, hint):
    assert error_hint(reason) == hint


@pytest.mark.parametrize(("noun", "said"), [("run", "of a run is"), ("experiment", "of an experiment is")])
def test_an_empty_name_is_rejected(noun, said):
    with pytest.raises(UsageError, match=said):
        chosen_id("", (), noun=noun, remedy="Write it.")
