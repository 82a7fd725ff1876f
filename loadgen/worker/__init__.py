"""The load-making process. Start with `worker`.

main, arguments, process     the entry point; who this worker is; its core, name and signals
worker, parts                one life from start to exit code; putting its parts together
ready, drain                 before the load: every connection open; after it: every statement accounted for
board, agenda                what threads know of each other; what the leader has announced
heartbeat, control_loop      the two threads that talk to the leader, through tables
silence, predecessor         how long it has been cut off, from them or the target; whether an ended one is replaced
conductor, pool              windows, targets, and the number of clients
client, bench, statements    the hot loop; what clients share; statements made ready
users                        the logical users of each slot, and their sessions
load_sessions, arrivals      sessions to the target; due times of an open loop
flush, rows                  what is written during the run
query_log, upload            executed statements, kept in a file, uploaded at the end
gauges                       CPU, memory, and how late threads wake up
"""
