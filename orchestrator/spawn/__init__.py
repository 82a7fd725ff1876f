"""Where workers run.

spawner            what every spawner does, and the order that starts a worker
local              processes of this machine: children, or separate programs; workers that the user starts, or that
                   another orchestrator has started
container_job      containers of one job elsewhere: what does not depend on the platform
containers         which platform it is
spcs               a job service in Snowpark Container Services; its specification and its statements
kubernetes         an Indexed Job in a Kubernetes cluster, by the official client
kubernetes_job     its manifest, and the rights that it needs; what the state of its pods means for each worker
"""
