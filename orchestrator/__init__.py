"""The orchestrator: takes a run from PREPARED to its end, decides what happens next, and spawns the workers.

It talks to workers only through the control-plane tables; no Python is shared with them above `loadgen.control`.
"""
