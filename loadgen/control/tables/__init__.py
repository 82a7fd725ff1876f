"""Statements on the tables of the control plane. A module owns the tables that belong together.

run_status          RUN_STATUS: the state of a run. STOP_REQUESTS: a request to end it
run_leases          RUN_LEASES: which process leads a run
run_control_events  RUN_CONTROL_EVENTS: commands of the leader to the workers
worker_heartbeats   WORKER_HEARTBEATS: the state of each worker, written every second
run_measurements    WINDOW_RESULTS, WORKER_METRICS_SNAPSHOTS, FIND_MAX_STEP_HISTORY, WAREHOUSE_POLL_SNAPSHOTS
query_executions    QUERY_EXECUTIONS: the query log, and its enrichment from QUERY_HISTORY
test_results        TEST_RESULTS: the result of a run, and of each worker
test_logs           TEST_LOGS: the log of a run
value_pools         VALUE_POOLS: parameter values of a run

run_queue           RUN_QUEUE: queued runs; users add and cancel them, runners claim and end them
run_attempts        RUN_ATTEMPTS, RUN_ATTEMPT_ENDS: the turns of a queued run
pool_workers        POOL_WORKERS: the registry of runners
schedules           SCHEDULES, SCHEDULE_PROGRESS, SCHEDULE_FIRES
experiments         EXPERIMENTS and the six other tables of experiments

prune               deletes the rows of old runs from all tables

State is in hybrid tables, whose keys are enforced. Results, logs and value pools are in standard tables.
"""
