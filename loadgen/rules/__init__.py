"""Pure decisions that more than one role takes, each written once. No table, clock or file is read here.

plan                  windows and targets of a run, and the load that they plan
scenario_plan         what `validate --plan` and `doctor` show before a run: phases, shares, workers, cost, and
                      the origin of each value
find_max              the search for the largest number of connections without a failed step: its cap, the next level,
                      the answer
find_max_step         the verdict of one step of the search
thresholds            thresholds against what was measured
client_health         whether the client, not the server, limited the result
validity              whether a run is valid, and its verdict and exit code; how much of the planned load was delivered;
                      whether windows and warm-ups were at the planned times
enrichment            how many logged statements have server times, and why not all
comparability         which differences between two runs forbid a comparison, in the keys of their files; metrics and
                      limits
confidence_intervals  of two runs, from resampled seconds; of an experiment, checked after every block
comparison            two runs: change, interval, verdict
experiment            blocks, decisions about arms, when to stop, frontier; what `experiment --dry-run` shows
measurement           the figures of one measurement of an experiment
scaling               throughput over connections: the Universal Scalability Law
price                 credits of a warehouse: in the worst case, estimated, and as Snowflake metered them; the price of
                      1,000 statements
trend                 levels of a series of nightly values, and where they change; the runs of a scenario over time:
                      steady, suspected, regression, improved
"""
