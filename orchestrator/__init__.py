"""The orchestrator: takes a run from its scenario to its result. Start reading with `job`, then `service` and `leader`.

It talks to workers through the tables of the control plane only.

job                  one run from its scenario to its report, in a thread; also a run that is taken over
watch                a run as its tables show it, in a thread
service              creates, leads, stops and finishes runs
leader               every second: observe, decide, apply
lifecycle            pure: what to do next with a run
leadership           the lease of a run: claimed, renewed, lost, released; which process holds it; requests to stop
event_publisher      events for workers, and how long ahead they are announced
worker_health        which workers are alive, ready, finished or lost
aggregation          the measurements of all workers so far, in windows and in seconds
guardrails           thresholds, guardrails and cost while the run measures
find_max_controller  leads a search for the maximum
warehouse            polls the target warehouse, and counts credits; one run at a time on a warehouse
run_environment      machine, versions, warnings, and load of other users on the target warehouse
run_facts            judges a run that has ended: by the same rules for its leader, a successor and the recovery
run_result           parts of the result of a run, from the rows of its workers
enrich               joins the times in the query history to the logged statements
query_history        reads Snowflake's query history: times of statements, use of a warehouse
recover              ends runs whose orchestrator was lost
upload               the spool: rows that could not be stored, and storing them later
run_folder           the files of runs and experiments on this machine
spawn/               where workers run
experiment/          arms of a scenario, measured block by block
nightly/             queue runners, pool, scheduler, notifications, baselines
"""
