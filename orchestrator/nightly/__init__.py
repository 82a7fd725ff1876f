"""Unattended runs: schedules fill a queue, and runners take runs from it.

scheduler      queues the runs of schedules when they are due; stores the time of the next necessary tick in a file;
               crontab lines and systemd units
queue          a scenario packed for the queue, what it may use on the host that runs it; abandoned runs; runs that no
               runner can take; deletes old runs
pool_service   one pool on this machine, in threads: manager, queue maintenance and schedules
pool           how many runners a pool needs; keeps that number of runner processes, each a child process
runner         takes queued runs one by one and executes them; renews its registration and the lease of its run
attempt        one attempt at a queued run: its files, and `loadgen run` as a process
process_guard  a program that runs a command, and ends it when its parent has ended
notify         sends the outcome of a run to webhooks and programs
baseline       compares a run that has just ended with an earlier run or the trend
"""
