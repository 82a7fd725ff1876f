"""Pure decisions that more than one part of loadgen takes. Nothing here reads a table, a clock or a file.

find_max         the search for the largest number of connections that holds: its cap, what comes next, the answer
find_max_step    the verdict of one step of it
"""
