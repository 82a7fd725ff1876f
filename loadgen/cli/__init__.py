"""The command line: one file per command, which parses, calls and prints.

main              finds commands, and turns errors into text and exit codes
commands          the commands, their order and where they are, without importing them
common            printing, signals, threads, and texts that several commands share
options           options of several commands, and the control plane that they name
run               `loadgen run`: follows the job, passes on signals, writes the files
run_screen        the display of `run` and `watch`: the live view, or lines
capture           `loadgen capture`
watch             `loadgen watch`; `loadgen stop`
runs              `loadgen runs`, with `runs recover`
status            `loadgen status`, and how a run is shown
report            `loadgen report`, and the files of a run
compare           `loadgen compare`; `loadgen trend`
experiment        `loadgen experiment`; `loadgen experiments`
enrich            `loadgen enrich`; `loadgen upload`
queue             `loadgen queue`
schedule          `loadgen schedule`
schedule_view     schedules as text, JSON and systemd units
pool              `loadgen pool`
workers           `loadgen workers`
worker            `loadgen worker`, and the entry point of local workers
prepare           `loadgen prepare`
prepare_progress  its progress
validate          `loadgen validate`; `loadgen init`; `loadgen schema`; `loadgen completion`
setup             `loadgen setup`; `loadgen grants`
doctor            `loadgen doctor`; `loadgen connections`
embedded          `loadgen embedded`
"""
