"""The live view of a run in a terminal, from its snapshots (`loadgen.results.run_snapshot`). All values are
frozen; only `terminal` does input and output.

history           the last minutes of a run, from the seconds that workers report and store
presenter         snapshots → ScreenState; log entries for the changes between two snapshots
screen_state      ScreenState: the content of the screen
screen            ScreenState → lines of text, for any size; throughput and latency over time
panels            the parts of the page: totals, statements, workers, warnings, the log; the search for the maximum
experiment_panel  the experiment that the run belongs to
threshold_panel   the thresholds, missed ones first
draw              cells, bars and numbers that panels share
terminal          the terminal without blocking: alternate screen, keys, size, captured stderr; when to draw
"""
