"""The real orchestrator and the real workers in simulated time.

scheduler   simulated time: every thread of the product is a task, and exactly one of them runs at a time
tables      the control plane in memory: the statements of schemas/queries with their guards and keys
wires       control sessions: statements that are slow, lost, late or answered in time
target      the system under test: logins, statements, and a record of what was executed
processes   worker and orchestrator processes, which are paused, asked to end, and killed
world       one run of a random scenario with random faults
truth       the delivered load by the record of the target, and the verdicts that it allows; search_truth: in a search
"""
