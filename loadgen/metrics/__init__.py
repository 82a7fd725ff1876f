"""What was measured: recorded by clients, collected by the worker, merged and judged by the orchestrator. Pure.

recorder          the client's part: begin a statement, append one tuple when it has ended; mode replay: when statements
                  were sent, and their rows; how a statement can end, as a number
window            the spans that samples are grouped by (OPEN, CLOSED, FINAL), and the results of one; CPU and
                  lateness of the worker itself, in a window; JSON of histograms, tallies and windows: the columns of
                  WINDOW_RESULTS
sample_collector  takes the recorded tuples every second, and keeps the tally of every window

histogram         fixed buckets of time, each 2 % wide; histograms add; by rank, from a histogram: when it may be
                  stated, and its confidence interval
tally             outcome → times, per statement; errors; tallies add
connections       connection time against its plan; logins, and why connections were opened again
stalls            spans in which everything in flight was overdue
interval          one second of a worker: percentiles, and tallies for sliding thresholds

live_metrics      JSON of a heartbeat: LIVE_METRICS, at most 64 KB
json_fields       strict reading of JSON

No clock and no I/O: the caller says what time it is. Only counts and buckets leave a process, because only they can be
added; percentiles are computed last, from sums. A figure that the samples do not support is None, never a guess.
"""
