"""Runs and experiments, read from their tables: the input of reports, comparisons and trends.

run_record      one finished run, for reports
run_details     one run at this moment: state, leader, workers and result, as JSON and text
comparisons     two runs, or why they are not comparable; the runs of a scenario over time; experiments
run_snapshot    one observation of a run and its workers, made by the leader or from the tables, for the live view
stored_summary  the stored summary of a run, checked
"""
