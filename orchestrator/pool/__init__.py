"""A pool of runners: processes that take runs from the queue and do them.

manager    starts, pings, drains and replaces runners, as `decisions` says; looks after the queue (`upkeep`)
runner     claims a run, does it as a process of its own (`attempt`, behind a `leash`), says how it ended (`outcome`)
           the folders of attempts are pruned by `loadgen runs prune` (`attempt_folders`)
beats      keeps a runner in the registry, and its lease alive
"""
