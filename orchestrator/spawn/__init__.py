"""Where workers run.

spawner       what every spawner does, and the order that starts a worker
local         processes of this machine: children, or separate programs
spcs          replicas of a job service in Snowpark Container Services
spcs_service  the job service: its specification and its statements
external      workers that the user starts, or that another orchestrator has started
"""
