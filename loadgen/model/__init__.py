"""Frozen values and the rules between them: without I/O and without the driver.

run         states and phases of a run, and the transitions between them; states of a worker process and its end; how a
            total is divided among workers
event       commands of the leader, and their JSON in RUN_CONTROL_EVENTS
workload    statements, parameters, pools and sharding of a scenario; first words, binds and number of statements of
            an SQL text
capture     statements that were recorded, the description of a capture, what a replay sends
threshold   `p95 < 50ms`: parsed, and compared with a value
counts      scheduled = skipped + succeeded + failed + cancelled + in flight; error categories
nightly     states of a queued run, attempts, schedules
experiment  metrics, decisions and endings of experiments
warehouse   settings of a warehouse: their SQL, and how SHOW tells them; credits per hour of warehouses, in a dated
            table
"""
