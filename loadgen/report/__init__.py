"""From results to what people and scripts read. Pure: nothing is connected, no file is opened. Decisions are in rules.

records            everything a report is made of
timeline           the seconds of a run, all workers together
summary            summary.json, the contract for scripts
formatting         how numbers are written; foreign text made safe for HTML, XML, Markdown and CSV
page               the frame, the style and the parts of HTML pages
svg                charts
run_page           report.html
run_charts         charts over time
run_statements     statements, stages, find-max steps, user sessions
run_distribution   histogram, percentile curve, ranges
run_replay         a replay beside its recording
run_tables         the other tables of report.html
run_text           the result as text for a terminal
run_markdown       report.md
run_exports        junit.xml and intervals.csv
compare            a comparison as text and JSON
compare_page       a comparison as HTML
experiment         experiment.json, and an experiment as text
experiment_page    an experiment as HTML
experiment_exports  an experiment as Markdown and JUnit
trend              a trend as text and JSON
trend_page         a trend as HTML
"""
