"""Frozen values and the rules between them: no I/O, nothing of the driver."""
