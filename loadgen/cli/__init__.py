"""The command line: each file has the commands of one subject. A command parses its arguments, calls, and prints.

main        the commands, found without importing them; turns errors into text and exit codes
common      printing, tables, durations and times that several commands share
signals     what Ctrl-C and other signals do while a command works
options     options of several commands, and the control plane that they name
run         `loadgen run`: follows the job, passes on signals, writes the files
display     what `run`, `watch` and `prepare` show while they work: the live view, bars or lines
watch       `loadgen watch`; `loadgen stop`
runs        `loadgen runs`; `loadgen status`
report      `loadgen report`; `loadgen compare`; `loadgen trend`
experiment  `loadgen experiment`; `loadgen experiments`
enrich      `loadgen enrich`; `loadgen upload`
capture     `loadgen capture`
queue       `loadgen queue`
schedule    `loadgen schedule`
pool        `loadgen pool`; `loadgen workers`
worker      `loadgen worker`, and the entry point of local workers
prepare     `loadgen prepare`
validate    `loadgen validate`; `loadgen init`; `loadgen schema`; `loadgen completion`
setup       `loadgen setup`; `loadgen grants`
doctor      `loadgen doctor`; `loadgen connections`
embedded    `loadgen embedded`
"""
