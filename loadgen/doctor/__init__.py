"""Is everything ready for a run? Looks and judges; changes nothing. No terminal is known here.

finding        what a check found: a mark, a sentence, a remedy
lane           a thread in which checks run one after another, each in bounded time
examine        checks in order; what needs a failed one is skipped
subject        what is examined: a connection, a control plane, perhaps a scenario; and its sessions
machine        cores, memory, open files, versions, the wall clock
configuration  the connections, field by field, with their origin
service        log-in, round trip, clock offset, hybrid tables
control_plane  ground, tables, version, and the rights on them
warehouse      the target's warehouse, and what a run on it may cost
checks         all of them, in order
"""
