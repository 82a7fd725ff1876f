"""Checks whether everything is ready for a run. It reads and judges, changes nothing, and prints nothing.

finding        the result of a check: a level, a sentence, a remedy
subject        what is checked: connection, control plane, scenario; and the sessions for it
offline        checks without a connection: cores, memory, open files, versions, connection parameters
server         login, round trip, clock offset, hybrid tables; prerequisites, tables, schema version, privileges; the
               target warehouse, and what a run on it may cost
checks         all checks, in order; runs checks in order, in threads with a time limit; skips those that depend on a
               failed one
"""
