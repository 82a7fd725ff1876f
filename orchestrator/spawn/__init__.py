"""Where workers run.

spawner         the interface of all spawners, the order that starts a worker, and the end of a worker process
local           processes of this machine: children, or separate programs; workers that the user starts, or that
                another orchestrator has started
containers      workers in the containers of one job; chooses the platform of a scenario
spcs            a job service in Snowpark Container Services: its specification and its statements
kubernetes      an Indexed Job in a Kubernetes cluster, created through the official client
kubernetes_job  the manifest of the Job and the rights that it needs; what the state of its pods means for each worker
"""
