"""The process that generates load. Start reading with `worker`.

main             the entry point; signals, CPU affinity, process name
arguments        which worker of which run this process is
worker           one life from start to exit code: its threads, its parts, its drain
startup          before the load: statements described, every connection open
worker_state     what the threads know of each other; each field has one writer
commands         what the leader ordered, and when it takes effect
control_loop     the thread that polls RUN_STATUS and reads events
heartbeat        the thread that updates this worker's row every second
ramp_controller  the thread that opens and closes windows and moves the number of clients
client_pool      starts and ends clients
client           the hot loop: one thread, one connection
client_context   what all clients share
users            the logical users of each slot, and their sessions
sessions         sessions to the target: opened, tagged, cancelled; statements of the mix, ready to execute
collector        once a second: samples into tallies, final windows, the next heartbeat's metrics
self_monitor     CPU, memory, and how late threads wake up
flush            what is not stored yet, on disk, and how it gets into the tables; the thread that writes results and
                 logs during the run
query_log        executed statements in a file, uploaded at the end
"""
