"""The live view of a run in a terminal. Frozen values in, rich text out; only `terminal` does input and output.

snapshot        one observation of a run, from the leader or from the tables
history         the last minutes, from the seconds that workers report and store: the same in every view
presenter       snapshots → ScreenState; what changed from one snapshot to the next, in words
screen_state    ScreenState: everything that is on the screen
screen          ScreenState → lines of text, for any size; throughput and latency over time
panels          the parts of the page: totals, thresholds, statements, workers, warnings, the log; the search for the
                maximum, the experiment that a run belongs to
draw            cells, bars and numbers that panels share
terminal        the terminal itself: alternate screen, keys, size, captured stderr; it never blocks; when to draw, and
                what keys do
"""
