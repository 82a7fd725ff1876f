"""Measurements: recorded by clients, collected by the worker, merged and judged by the orchestrator. Pure.

recorder          the part of a client: begin a statement, append one sample when it has ended; outcomes; windows (OPEN,
                  CLOSED, FINAL); the counts of mode replay
sample_collector  takes the recorded samples every second, and keeps a tally per window
tally             response and service times per statement and outcome; errors; tallies add
histogram         counts in fixed buckets, each 2 % wide; histograms add
percentile        percentiles by rank: when they may be stated, and their confidence intervals; means and maxima
window            the results of a window, and of many windows merged; CPU and lateness of the worker in a window; the
                  JSON of histograms, tallies and windows in WINDOW_RESULTS
connections       delivered and planned connection time; logins, and the reasons for reconnects
stalls            time spans in which all statements in flight were overdue
interval          one second of a worker: exact percentiles, and tallies for sliding thresholds
live_metrics      the JSON of a heartbeat, LIVE_METRICS, of at most 64 KB
json_fields       strict reading of JSON

No module here reads a clock or does I/O: the caller passes the time. Only counts and buckets leave a process, because
only they can be added; percentiles are computed last, from sums. A figure without enough samples is None.
"""
