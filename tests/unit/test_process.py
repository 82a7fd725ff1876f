"""This process and its machine."""

from loadgen.process import available_cores, user_and_host


def test_a_user_has_a_name_and_a_machine():
    name, _, machine = user_and_host().partition(" on ")

    assert name
    assert machine


def test_a_process_may_use_at_least_one_core():
    assert available_cores() >= 1
