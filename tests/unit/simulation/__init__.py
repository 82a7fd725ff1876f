"""A world in simulated time that runs the real orchestrator and the real workers.

scheduler   simulated time: every thread of the product is a task, and exactly one of them runs at a time
tables      the control plane in memory: the statements of schemas/queries with their guards and keys
wires       control sessions: statements that are slow, lost, late or answered
target      the system under test: logins, statements, and a record of what really happened
processes   worker and orchestrator processes, which are paused, asked to end, and killed
world       one run of a random scenario with random faults
truth       what was delivered, by the record of the target, and which verdicts that allows; search_truth: in a search
"""
