"""A run, its workers and what is to be done next."""

from __future__ import annotations

from loadgen.model.run import Phase, RunStatus, WorkerStatus
from loadgen.results.run_snapshot import WorkerHealth
from loadgen.rules.plan import plan_run
from loadgen.scenario.model import Load, OnWorkerLoss
from loadgen.scenario.settings import TimingSettings
from orchestrator.lifecycle import RunEnding, RunPolicy
from tests.unit.orchestrator_builders import end, view

TIMING = TimingSettings()
RULES = RunPolicy(plan=plan_run(Load(connections=8)), timing=TIMING, on_worker_loss=OnWorkerLoss.FAIL)
R, P, W, H = RunStatus, Phase, WorkerStatus, WorkerHealth
MISSING = view(H.MISSING, None)
CONNECTING = view(H.ALIVE, W.STARTING)
WAITING = view(H.ALIVE, W.WAITING)
RUNNING = view(H.ALIVE, W.RUNNING)
STALE = view(H.STALE, W.RUNNING)
DRAINING = view(H.ALIVE, W.DRAINING, active_connections=1)
STORING = view(H.ALIVE, W.DRAINING)
DONE = view(H.DONE, W.COMPLETED)
KILLED = view(H.DEAD, W.RUNNING, ended=end())
SILENT = view(H.DEAD, W.RUNNING, silent_s=61)
SAID_DEAD = view(H.DEAD, W.DEAD, last_error="no control plane")
WISH = RunEnding(status=R.COMPLETED, reason="p95 < 5ms was not met", stop="threshold", drain_s=120.0)
DONE_BY_PLAN = RunEnding(status=R.COMPLETED, reason="the plan is complete", stop="duration", drain_s=120.0)
