"""What was measured: recorded by clients, collected by the worker, merged and judged by the orchestrator. Pure.

outcome           how a statement can end, as a number
recorder          the client's part: begin a statement, append one tuple when it has ended
window            the spans that samples are grouped by (OPEN, CLOSED, FINAL), and the results of one
sample_collector  takes the recorded tuples every second, and keeps the tally of every window

histogram         fixed buckets of time, each 2 % wide; histograms add
percentile        by rank, from a histogram: when it may be stated, and its confidence interval
tally             outcome → times, per statement; errors; tallies add
connections       connection time against its plan; logins
client_resources  CPU and lateness of the worker itself, in a window
stalls            spans in which everything in flight was overdue
replayed          mode replay: when statements were sent, and their rows
interval          one second of a worker: percentiles, and tallies for sliding thresholds

window_codec      JSON of histograms, tallies and windows: the columns of WINDOW_RESULTS
live_metrics      JSON of a heartbeat: LIVE_METRICS, at most 64 KB
json_fields       strict reading of JSON

No clock and no I/O: the caller says what time it is. Only counts and buckets leave a process, because only they can be
added; percentiles are computed last, from sums. A figure that the samples do not support is None, never a guess.
"""
