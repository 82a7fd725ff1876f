"""Which worker that ended may be replaced."""

from __future__ import annotations

import pytest

from loadgen.control.tables.worker_heartbeats import WorkerHeartbeat
from loadgen.model.run import Phase, RunStatus, WorkerStatus
from loadgen.model.workload import (
    Parameter,
    Query,
    Remembered,
    Sequence,
    Statement,
    StatementKind,
    Uniform,
    Uuid,
    Workload,
)
from loadgen.scenario.model import Load, Scenario
from loadgen.scenario.settings import SessionAffinity, UserSessionSettings
from loadgen.worker.heartbeat import first_unrepeatable_statement, may_have_sent_load

W, R = WorkerStatus, RunStatus


@pytest.mark.parametrize(
    ("status", "phase", "run", "drawn"),
    [
        (W.RUNNING, Phase.WARMUP, R.RUNNING, True),
        (W.DEAD, Phase.COOLDOWN, R.RUNNING, True),
        (W.COMPLETED, Phase.COOLDOWN, R.RUNNING, True),
        (W.DEAD, None, R.RUNNING, False),  # for example, it could not log in
        (W.WAITING, None, R.STARTING, False),
        (W.WAITING, None, R.RUNNING, True),  # its later beats may be lost
        (W.STARTING, None, R.STOPPING, True),
    ],
)
def test_whether_it_may_have_executed_statements(
    status: WorkerStatus, phase: Phase | None, run: RunStatus, drawn: bool
) -> None:
    assert may_have_sent_load(WorkerHeartbeat(status=status, phase=phase, count=7), run) is drawn


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ((), None),
        ((Uniform(keys=None),), None),
        ((Uniform(keys=None), Sequence()), "put"),
        ((Uuid(),), "put"),
        ((Remembered(name="customer", of=Uniform(keys=None)),), None),
        ((Remembered(name="customer", of=Sequence()),), "put"),
    ],
)
def test_statements_with_values_that_must_not_repeat(parameters: tuple[Parameter, ...], name: str) -> None:
    queries = (Query(sql="SELECT 1"), Query(sql="SELECT ?", parameters=parameters))
    put = Statement(name="put", kind=StatementKind.WRITE, weight=1, queries=queries)
    assert first_unrepeatable_statement(scenario(put, SessionAffinity.STRICT)) == name


@pytest.mark.parametrize(("affinity", "name"), [(SessionAffinity.STRICT, "own"), (SessionAffinity.HINT, None)])
def test_a_strict_session_does_not_continue_over_the_connection_of_another_process(
    affinity: SessionAffinity, name: str
) -> None:
    own = Statement(name="own", kind=StatementKind.READ, weight=1, queries=(Query(sql="SELECT 1"),), session=True)
    assert first_unrepeatable_statement(scenario(own, affinity)) == name


def scenario(statement: Statement, affinity: SessionAffinity) -> Scenario:
    workload, sessions = Workload(statements=(statement,), seed=1), UserSessionSettings(count=2, affinity=affinity)
    return Scenario(name="s", workload=workload, load=Load(connections=1), sessions=sessions)
