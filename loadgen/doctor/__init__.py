"""Checks whether everything is ready for a run. Nothing is changed, and nothing is printed here.

checks         the list of all checks, and their execution: in order, each with a time limit; a check that depends on a
               failed one is skipped
check_context  what a check receives (connection, control plane, scenario, sessions, facts of earlier checks) and
               returns (findings)
findings       what each check finds. Without a connection: cores, memory, open files, versions, connection parameters;
               with one: login, round trip, clock offset, hybrid tables, tables of the control plane, privileges, the
               target warehouse, and the worst-case cost of a run
"""
