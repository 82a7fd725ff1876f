"""Which worker of which run: by arguments, or by the environment of a container."""

import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.model.run import RUN_ID_MAX
from loadgen.worker.arguments import (
    WORKER_ID_MAX,
    WORKERS_MAX,
    InvalidWorkerArguments,
    WorkerArguments,
    labels_of,
)
from loadgen.worker.heartbeat import identity_of

SPCS = {"LOADGEN_RUN_ID": "20261115-0200-orders-7f3a", "SNOWFLAKE_JOB_INDEX": "3", "SNOWFLAKE_JOBS_COUNT": "8"}


def of(
    run_id: str | None = "run",
    worker_id: str | None = None,
    group: int | None = 0,
    count: int | None = 1,
    environ: dict[str, str] | None = None,
) -> WorkerArguments:
    return WorkerArguments.of(run_id, worker_id, group, count, environ or {})


def test_four_arguments_are_sufficient():
    found = of("run-1", "worker-x", 2, 3)

    assert found == WorkerArguments(run_id="run-1", worker_id="worker-x", worker_group_id=2, worker_group_count=3)


def test_a_worker_without_a_name_is_called_after_its_number():
    assert of(group=7, count=8).worker_id == "worker-7"


def test_a_container_knows_from_its_environment():
    found = of(None, None, None, None, SPCS)

    assert (found.run_id, found.worker_id) == (SPCS["LOADGEN_RUN_ID"], "worker-3")
    assert (found.worker_group_id, found.worker_group_count) == (3, 8)


def test_arguments_have_priority_over_the_environment_one_by_one():
    assert of("mine", None, None, None, SPCS).run_id == "mine"
    assert of(None, "me", None, None, SPCS).worker_id == "me"
    assert of(None, None, 0, None, SPCS).worker_group_id == 0
    assert of(None, None, None, 4, SPCS).worker_group_count == 4


def test_in_a_pod_the_index_of_the_job_is_the_worker():
    pod = {"LOADGEN_RUN_ID": "run", "JOB_COMPLETION_INDEX": "2"}

    found = of(None, None, None, 3, pod)

    assert (found.worker_id, found.worker_group_id) == ("worker-2", 2)
    with pytest.raises(InvalidWorkerArguments, match="JOB_COMPLETION_INDEX"):
        of(None, None, None, 3, {**pod, "JOB_COMPLETION_INDEX": "x"})


def test_a_worker_in_a_pod_is_identified_by_the_name_of_its_pod():
    """Two pods of one index have the same host name, and their workers the same process id."""
    assert identity_of(of(), {"LOADGEN_HOSTNAME": "loadgen-run-0-abcde"}).hostname == "loadgen-run-0-abcde"
    assert identity_of(of(), {}).hostname == socket.gethostname()


def test_an_invalid_environment_is_ignored_when_it_is_not_needed():
    assert of(environ={"SNOWFLAKE_JOB_INDEX": "x", "SNOWFLAKE_JOBS_COUNT": ""}).worker_group_count == 1


@pytest.mark.parametrize("missing", [*SPCS])
def test_a_missing_argument_is_named(missing):
    environ = {name: value for name, value in SPCS.items() if name != missing}
    option = {
        "LOADGEN_RUN_ID": "--run-id",
        "SNOWFLAKE_JOB_INDEX": "--worker-group-id",
        "SNOWFLAKE_JOBS_COUNT": "--worker-group-count",
    }[missing]

    with pytest.raises(InvalidWorkerArguments, match=option) as caught:
        of(None, None, None, None, environ)

    assert caught.value.exit_code == 1
    assert "--worker-group-count" in caught.value.remedy


def test_all_missing_arguments_are_named_at_once():
    with pytest.raises(InvalidWorkerArguments, match="--run-id, --worker-group-id, --worker-group-count"):
        of(None, None, None, None)


@pytest.mark.parametrize("text", ["", " 3", "3 ", "-1", "+1", "1e3", "0x3", "٣", "3\n", "1" * 10, "None"])
@pytest.mark.parametrize("name", ["SNOWFLAKE_JOB_INDEX", "SNOWFLAKE_JOBS_COUNT"])
def test_a_number_in_the_environment_is_digits_and_nothing_else(name, text):
    with pytest.raises(InvalidWorkerArguments, match=name):
        of(None, None, None, None, {**SPCS, name: text})


HOSTILE = [
    "",
    ".",
    "..",
    "../../etc/passwd",
    "a/b",
    "a\\b",
    "/tmp/x",
    "-rf",
    "a b",
    "a\nb",
    "a\n",
    "\x00",
    "a\x00",
    "a;DROP TABLE T",
    "a'b",
    'a"b',
    "${HOME}",
    "$(id)",
    "ärger",
    "a\u202eb",
    "🦆",
    "*",
    "~",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_an_id_is_a_name_and_nothing_else(text):
    for arguments in ((text, "w"), ("r", text)):
        with pytest.raises(InvalidWorkerArguments) as caught:
            of(*arguments)
        assert "\n" not in str(caught.value)
        assert "\x00" not in str(caught.value)
    with pytest.raises(InvalidWorkerArguments):
        of(None, None, None, None, {**SPCS, "LOADGEN_RUN_ID": text})


def test_an_empty_id_is_not_silently_replaced():
    with pytest.raises(InvalidWorkerArguments, match="run-id"):
        of("", None, None, None, SPCS)
    with pytest.raises(InvalidWorkerArguments, match="worker-id"):
        of(None, "", None, None, SPCS)


@pytest.mark.parametrize(("name", "longest"), [("run_id", RUN_ID_MAX), ("worker_id", WORKER_ID_MAX)])
def test_an_id_has_a_longest_length(name, longest):
    assert getattr(of(**{name: "x" * longest}), name) == "x" * longest
    for length in (longest + 1, 10_000_000):
        fields: dict[str, Any] = {name: "x" * length}
        with pytest.raises(InvalidWorkerArguments, match=str(longest)) as caught:
            of(**fields)
        assert len(str(caught.value)) < 400


@given(st.integers(-5, WORKERS_MAX + 5), st.integers(-5, WORKERS_MAX + 5))
def test_a_group_number_must_be_less_than_the_number_of_workers(group, count):
    if 1 <= count <= WORKERS_MAX and 0 <= group < count:
        assert of(group=group, count=count).worker_group_id == group
    else:
        with pytest.raises(InvalidWorkerArguments, match="worker-group"):
            of(group=group, count=count)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({}, None),
        ({"LOADGEN_LABELS": " ,"}, None),
        ({"LOADGEN_LABELS": "zone=eu"}, '["zone=eu"]'),
        ({"LOADGEN_LABELS": 'zone=eu, disk="ssd",zone=eu'}, '["disk=\\"ssd\\"","zone=eu"]'),
    ],
)
def test_labels_are_stored_as_one_list(given, stored):
    assert labels_of(given) == stored
