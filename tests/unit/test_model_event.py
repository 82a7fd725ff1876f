"""Commands on their way through JSON: what is written is read, and nothing that is read stops a worker."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.model.event import (
    AHEAD_MAX_MS,
    ALL_WORKERS,
    WHY_MAX,
    EventScope,
    EventType,
    PlannedCommand,
    Recipient,
    SetPhase,
    SetRunTarget,
    SetWorkerTarget,
    Start,
    Stop,
    UnknownCommand,
    decode_command,
    encode_command,
)
from loadgen.model.run import Phase

texts = st.text(max_size=30)  # with NUL, surrogates, quotes, marks that turn the reading direction
counts = st.integers(0, 2**53 - 1)
spans = st.floats(0, 1e11)
maybe_step = st.none() | counts
maybe_text = st.none() | texts

leads = st.none() | st.integers(0, AHEAD_MAX_MS - 1)
planned = st.builds(
    PlannedCommand,
    at_ms=st.integers(0, AHEAD_MAX_MS - 1),
    command=st.builds(SetPhase, phase=st.sampled_from(Phase), step_id=maybe_step, duration_ms=st.none() | spans)
    | st.builds(SetRunTarget, total_connections=counts, ramp_s=spans),
)
for_all = st.builds(
    SetRunTarget, total_connections=counts, step_id=maybe_step, ramp_s=spans, lead_ms=leads, reason=texts
)
commands = st.one_of(
    st.builds(Start, expected_workers=counts, lead_ms=leads, plan=st.lists(planned, max_size=4).map(tuple)),
    st.builds(Stop, reason=texts, drain_timeout_s=spans),
    st.builds(
        SetPhase,
        phase=st.sampled_from(Phase),
        step_id=maybe_step,
        duration_ms=st.none() | spans,
        effective_at=maybe_text,
    ),
    st.builds(
        SetWorkerTarget,
        target_connections=counts,
        step_id=maybe_step,
        ramp_s=spans,
        effective_at=maybe_text,
        reason=texts,
    ),
)
addresses = st.one_of(
    st.just(ALL_WORKERS),
    st.builds(Recipient, scope=st.just(EventScope.WORKER), worker_id=texts),
    st.builds(Recipient, scope=st.just(EventScope.WORKER_GROUP), worker_group_id=counts),
)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = [
    "scope",
    "worker_id",
    "worker_group_id",
    "expected_workers",
    "reason",
    "drain_timeout_seconds",
    "phase",
    "step_id",
    "duration_ms",
    "effective_at",
    "target_connections",
    "ramp_seconds",
    "total_connections",
    "lead_ms",
    "plan",
]


@given(commands, addresses)
def test_events_are_read_as_they_were_written(command, address):
    kind, data = encode_command(command, address)

    assert decode_command(kind, data) == (command, address)
    assert data.isascii()
    assert None not in json.loads(data).values()


@given(for_all)
def test_a_target_for_the_whole_run_is_read_as_it_was_written(command):
    kind, data = encode_command(command)

    assert kind is EventType.SET_WORKER_TARGET
    assert decode_command(kind, data) == (command, ALL_WORKERS)


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_the_shares_of_a_target_add_up(total, workers):
    command = SetRunTarget(total_connections=total, step_id=3, ramp_s=1.5, reason="find_max")

    parts = [command.share_of(number, workers) for number in range(workers)]

    connections = [part.target_connections for part in parts]
    assert sum(connections) == total
    assert max(connections) - min(connections) <= 1
    assert {(part.step_id, part.ramp_s, part.reason) for part in parts} == {(3, 1.5, "find_max")}


@given(st.text(max_size=50) | st.sampled_from(EventType), st.text(max_size=200))
@example("STOP", "null")
@example("STOP", "[1]")
@example("STOP", "1" * 10_000)
@example("STOP", "[" * 100_000)
@example("STOP", '{"scope":' + "{" * 5_000)
@example("START", '{"expected_workers": 1e999}')
def test_no_text_stops_a_worker_from_seeing_the_next_event(event_type, data):
    command, address = decode_command(event_type, data)

    assert isinstance(command, UnknownCommand) or event_type in EventType.__members__
    assert isinstance(address, Recipient)


@given(st.sampled_from(EventType), st.dictionaries(st.sampled_from(KEYS), json_values))
def test_no_value_of_a_known_key_does_either(event_type, data):
    command, address = decode_command(event_type, json.dumps(data))

    if isinstance(command, UnknownCommand):
        assert (command.event_type, address) == (event_type, ALL_WORKERS)
        assert len(command.why) <= WHY_MAX
    else:
        assert decode_command(*encode_command(command, address)) == (command, address)


@given(commands, addresses, st.dictionaries(st.text(max_size=5).map(lambda name: f"new_{name}"), json_values))
def test_fields_of_a_later_version_are_ignored(command, address, more):
    kind, data = encode_command(command, address)

    assert decode_command(kind, json.dumps({**more, **json.loads(data)})) == (command, address)


@pytest.mark.parametrize(
    ("event_type", "data", "why"),
    [
        ("REBOOT", "{}", "REBOOT"),
        ("STOP", "{", "Expecting"),
        ("STOP", "7", "not an object"),
        ("STOP", '{"drain_timeout_seconds": true}', "drain_timeout_seconds"),
        ("STOP", '{"drain_timeout_seconds": NaN}', "drain_timeout_seconds"),
        ("STOP", '{"drain_timeout_seconds": "5"}', "drain_timeout_seconds"),
        ("START", "{}", "expected_workers"),
        ("START", '{"expected_workers": -1}', "expected_workers"),
        ("START", '{"expected_workers": 2.0}', "expected_workers"),
        ("START", '{"expected_workers": true}', "expected_workers"),
        ("START", '{"expected_workers": 1, "lead_ms": -1}', "lead_ms"),
        ("START", '{"expected_workers": 1, "lead_ms": 1e300}', "lead_ms"),
        ("START", '{"expected_workers": 1, "lead_ms": 100000000000}', "lead_ms"),
        ("START", '{"expected_workers": 1, "lead_ms": "3000"}', "lead_ms"),
        ("START", '{"expected_workers": 1, "plan": {"at_ms": 0}}', "plan is not a list"),
        ("START", '{"expected_workers": 1, "plan": [7]}', "not an object"),
        ("START", '{"expected_workers": 1, "plan": [{"at_ms": 0}]}', "None"),
        ("START", '{"expected_workers": 1, "plan": [{"at_ms": 0, "event_type": "STOP"}]}', "STOP cannot be"),
        ("START", '{"expected_workers": 1, "plan": [{"event_type": "SET_PHASE", "phase": "WARMUP"}]}', "at_ms"),
        ("SET_WORKER_TARGET", '{"total_connections": 8, "scope": "WORKER", "worker_id": "w"}', "scope RUN"),
        ("SET_WORKER_TARGET", '{"total_connections": -8}', "total_connections"),
        ("SET_PHASE", '{"phase": "LUNCH"}', "LUNCH"),
        ("SET_PHASE", '{"phase": ["WARMUP"]}', "WARMUP"),
        ("SET_WORKER_TARGET", '{"target_connections": 5, "step_id": "1"}', "step_id"),
        ("SET_WORKER_TARGET", '{"target_connections": 9007199254740992}', "target_connections"),
        ("STOP", '{"scope": "PLANET"}', "PLANET"),
        ("STOP", '{"scope": "WORKER", "worker_id": 5}', "worker_id"),
        ("STOP", '{"scope": "WORKER_GROUP", "worker_group_id": "5"}', "worker_group_id"),
    ],
)
def test_an_invalid_command_is_unknown_and_has_a_reason(event_type, data, why):
    command, address = decode_command(event_type, data)

    assert isinstance(command, UnknownCommand)
    assert command.event_type == event_type
    assert why in command.why
    assert address == ALL_WORKERS


def test_the_reason_of_an_unknown_event_is_short_and_safe_to_print():
    command, _ = decode_command("SET_PHASE", json.dumps({"phase": "\x1b[2J" + "x" * 1_000_000}))

    assert isinstance(command, UnknownCommand)
    assert len(command.why) <= WHY_MAX
    assert command.why.isprintable()


def test_a_command_without_a_scope_is_for_all_workers():
    assert decode_command("STOP", '{"reason": "done"}') == (Stop(reason="done", drain_timeout_s=120.0), ALL_WORKERS)


@pytest.mark.parametrize("seconds", [float("inf"), float("-inf"), float("nan")])
def test_an_unreadable_command_is_not_written(seconds):
    with pytest.raises(ValueError):
        encode_command(Stop(reason="", drain_timeout_s=seconds))


@given(addresses, texts, counts)
def test_an_address_means_exactly_those_it_names(address, worker_id, group):
    included = address.includes(worker_id, group)

    match address.scope:
        case EventScope.RUN:
            assert included
        case EventScope.WORKER:
            assert included is (worker_id == address.worker_id)
            assert address.includes(address.worker_id, group)
        case EventScope.WORKER_GROUP:
            assert included is (group == address.worker_group_id)
            assert address.includes(worker_id, address.worker_group_id)


def test_types_fit_their_column():
    assert max(map(len, EventType)) <= 50
