"""Reports of results, for people and scripts. Pure: no connection, no files. Decisions are in loadgen/rules.

records          everything a report is made of; the seconds of a run, all workers together
summary          summary.json, the contract for scripts
formatting       how numbers are written; foreign text made safe for HTML, XML, Markdown and CSV
html_page        the frame, the style and the parts of HTML pages
svg              charts
run_page         report.html of a run
run_charts       its charts over time, with the planned load
distribution     percentile curve, histogram, and ranges of response times
run_statements   its statements, stages, find-max steps and user sessions
run_replay       a replay compared with its recording
run_text         the result of a run as text for a terminal
exports          junit.xml and report.md of runs and experiments, intervals.csv; the list of all files
compare          a comparison as text, JSON and HTML
trend            a trend as text, JSON and HTML
experiment       experiment.json; an experiment as text; its progress while it runs
experiment_page  an experiment as HTML, with its charts
"""
