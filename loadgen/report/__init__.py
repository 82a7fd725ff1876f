"""From results to what people and scripts read. Pure: nothing is connected, no file is opened. Decisions are in rules.

records            everything a report is made of; the seconds of a run, all workers together
summary            summary.json, the contract for scripts
formatting         how numbers are written; foreign text made safe for HTML, XML, Markdown and CSV
page               the frame, the style and the parts of HTML pages
svg                charts
run_page           report.html; the other tables of report.html
run_charts         charts over time; histogram, percentile curve, ranges
run_statements     statements, stages, find-max steps, user sessions
run_replay         a replay beside its recording
run_text           the result as text for a terminal
run_exports        junit.xml and intervals.csv; report.md
compare            a comparison as text and JSON
compare_page       a comparison as HTML
experiment         experiment.json, and an experiment as text; an experiment as Markdown and JUnit
experiment_progress  how far an experiment is, for the live view and for lines
experiment_page    an experiment as HTML, with its charts
trend              a trend as text and JSON
trend_page         a trend as HTML
"""
