"""From results to what people and scripts read. Pure: nothing is connected, no file is opened here.

verdict     validity and thresholds; delivered: the load that was there, against its plan
summary     summary.json, the contract; enrichment is a part of it
text        the same for people, as plain text
records     everything a report is made of (timeline: second by second)
html        report.html: html_parts, html_style, html_charts (over time), html_statements, html_steps (stages and
            find-max), html_spread, html_tables, html_sessions, over svg
markdown, junit, intervals   the same for pull requests, CI, spreadsheets
foreign     text of others, made harmless for each of these; figures: how numbers are written
compare     two runs: change, interval, verdict (bootstrap, limits, likeness, seconds; compare_text, _json, _html)
trend       many runs of one scenario: stable segments, suspected and confirmed changes
"""
