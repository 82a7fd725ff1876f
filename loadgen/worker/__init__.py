"""The process that generates load. Start reading with `worker`.

main             the entry point: signals, CPU affinity, process name
arguments        which worker of which run this process is
worker           a worker process from start to exit code: its threads, its components, its drain
startup          before the load: compiles the statements, opens the connections
worker_state     the state that the threads share; each field has one writer
commands         the commands of the leader, and when they take effect
control_loop     the thread that polls RUN_STATUS and reads events
heartbeat        the thread that updates this worker's row every second
ramp_controller  the thread that opens and closes windows and changes the number of clients
client           the hot loop: one thread, one connection; the pool that starts and ends clients
client_context   the state that all clients share
sessions         sessions to the target: opened, tagged, cancelled; statements, ready to execute; logical users
collector        once a second: samples into tallies, final windows, the metrics of the next heartbeat
self_monitor     CPU, memory, and how late threads wake up
flush            the thread that writes results and logs during the run; the spool for rows that are not stored yet
query_log        executed statements in a file, uploaded at the end
"""
