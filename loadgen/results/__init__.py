"""Runs and experiments as their tables have them: what reports, comparisons and trends are made from.

run_record      one finished run, for reports
compare_runs    two runs to compare with their measured seconds, or why they are not comparable; the runs of one
                scenario over time
experiments     the result of an experiment, or what is known of it
stored_summary  the summary of a run, checked
"""
