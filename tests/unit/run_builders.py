"""A run, its holder and a worker, as they are shown."""

from __future__ import annotations

from datetime import datetime, timedelta

from loadgen.control.tables.run_status import Run
from loadgen.control.tables.worker_heartbeats import HeartbeatRow, WorkerHeartbeat, WorkerIdentity
from loadgen.model.run import Phase, RunStatus, WorkerStatus

T0 = datetime(2026, 11, 16, 6, 0, 0)  # noqa: DTZ001  naive UTC, as the tables have it
RUN = Run(
    run_id="20261116-0600-orders-7f3a9c",
    template_id="t",
    test_name="orders",
    status=RunStatus.RUNNING,
    phase=Phase.MEASUREMENT,
    start_time=T0,
    warmup_start_time=T0,
    warmup_end_time=T0 + timedelta(seconds=5),
    end_time=None,
    workers_expected=2,
    workers_registered=2,
    workers_active=2,
    workers_completed=0,
    total_ops=12_345,
    error_count=6,
    current_qps=789.5,
    find_max_state='{"step": 2}',
    worker_targets=None,
    next_sequence_id=4,
    lease_epoch=1,
    reason=None,
    verdict=None,
    enrichment_status=None,
    created_at=T0,
    updated_at=T0,
)
WORKER = HeartbeatRow(
    identity=WorkerIdentity(
        run_id=RUN.run_id, worker_id="worker-0", worker_group_id=0, hostname="build-7", pid=4712, version="1"
    ),
    beat=WorkerHeartbeat(
        status=WorkerStatus.RUNNING,
        phase=Phase.MEASUREMENT,
        count=9,
        active_connections=3,
        open_connections=4,
        target_connections=8,
        last_error="it\x1b[2J hurt",
        cpu_percent=41.6,
    ),
    age_ms=412,
)
