"""The orchestrator: takes a run from PREPARED to its end, decides what happens next, and spawns the workers.

It talks to workers only through the control-plane tables; no Python is shared with them above `loadgen.control`.

decides   plan (windows and targets), course (what next), find_max and find_max_observation (leading a search), limits
          (thresholds and guardrails, over progress and sliding), crew (who lives), commands (events of a plan),
          enrichment, foreign_load (statements of others on the warehouse), run_ownership (who leads a run, or led it)
acts      service (makes and ends runs), leader (observe, decide, apply) with office (its term), voice (its events) and
          tick (what is shown), warehouse (looks at it, with meter), warehouse_lease, enrich and query_history, recover
spawn/    workers as local processes, programs, container replicas, adopted, or started by others
pool/     runners that take queued runs; scheduler fills the queue
"""
