"""The control plane: the state of every run, in tables.

    place       where the tables are            queries   the SQL, by name, from schemas/queries
    session     one connection, one attempt     retry     patience, and what to do when an answer was lost
    migrations  making and updating the tables  batch     appending to standard tables, once
    lease       keeping a term: its own thread  storable  foreign texts and JSON, so that any can be written
    process_identity  which process holds something, and whether it has ended
    records     rows as checked records, one unreadable row by itself

One module per table:

    run_status  run_leases  run_control_events  worker_heartbeats                                   hybrid
    window_results  value_pools  worker_metrics_snapshots  query_executions  test_results           standard
    test_logs  find_max_step_history  warehouse_poll_snapshots

Calls raise: an error is never an empty list. Times are compared by the server's clock, in SQL.
"""
