"""One module per table of the control plane, and `prune`, which deletes old rows from all of them.

run_status run_leases run_control_events worker_heartbeats            a run: hybrid tables
run_queue run_queue_claims run_attempts pool_workers                  the queue and its runners
schedules schedule_fires                                              what is queued, and when
experiments experiment_warehouses                                     experiments: hybrid tables
window_results test_results worker_metrics_snapshots query_executions find_max_step_history     results: standard tables
test_logs warehouse_poll_snapshots value_pools                        the rest: standard tables
prune                                                                 rows of runs that ended long ago
"""
