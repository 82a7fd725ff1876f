"""Runs without a person: a queue, runners that take runs from it, and schedules that fill it.

scheduler          queues the runs of schedules when they are due; when `schedule tick` must look at the tables again,
                   in a file
queued_scenario    a scenario in the queue: packed with its files, and what it may use on the host that runs it
pool               how many runners a pool needs; keeps that number of runner processes, each a child process
runner             takes queued runs one by one and executes them; keeps itself registered, and its claim on a run
process_guard      a program that runs a command, and ends it when the runner is gone
attempt            one attempt of a queued run: its files, and `loadgen run` as a process
queue_maintenance  ends abandoned runs and attempts, and finds runs that no runner can take
notify             sends the outcome of a run to webhooks and programs
baseline           compares a run that has just ended with an earlier run or the trend
"""
