"""What was measured: recorded by clients, collected by the worker, merged and read by whoever judges. Pure.

    outcome     how a statement can end, as a number
    recorder    what a client does: begin a statement, append one tuple when it has ended
    windows     the spans that samples are grouped by: OPEN, CLOSED, FINAL
    harvester   takes the tuples every second; tallies of all windows; what is final; what the next beat says

    edges       the fixed buckets of time, each 2 % wide
    histogram   times of many samples; histograms add
    percentile  by rank, from a histogram: when it may be stated, and how sure it is
    tally       outcome → times, per statement; errors; tallies add
    batch       tuples → columns of numbers → tallies
    errors      failures by category and code, with an example
    connections connection time against its plan; logins
    client_effect  CPU and lateness of the worker itself, in a window
    stalls      spans in which everything in flight was overdue
    interval    one second of a worker, with exact percentiles
    result      a window in one worker; many merged
    judged      seconds of a worker for thresholds over a span, counted from the run's common zero

    document    JSON of windows: the columns of WINDOW_RESULTS
    live        JSON of a beat: LIVE_METRICS, at most 64 KB
    fields      strict reading of JSON

No clock and no I/O: whoever calls says what time it is. Only counts and buckets leave a process, because only they can
be added; percentiles are made last, of sums. A number that the samples do not support is None, and never a guess.
"""
