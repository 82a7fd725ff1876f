"""The local Snowflake-compatible server: the real HTTP protocol in front of PostgreSQL, for use without an account.

It imports nothing of the project but the floor (`errors`, `clock`, `units`, `log`); other packages reach it over
loopback HTTP only. Only this package uses asyncio.

    client               finds or starts a server for a command; requests to `/__loadgen/…`; a run's warehouse model:
                         set, compared, removed
    server               the process: options, signals, start and stop
    http_server          assembles engine, warehouses and HTTP; restarts PostgreSQL; the null engine
    datadir              the data directory and its owner
    postgres             PostgreSQL as a child process
    launch               starts a program as the unprivileged user, which ends with its parent
    database_setup       roles, rights, functions and first objects in PostgreSQL

    app                  the ASGI application: routes, repeated requests, polling for results
    admin                endpoints below `/__loadgen/`, the request log, the end of an unused server; models that runs
                         set for their warehouse
    http_exchange        one request and its answer, with limits; answers of injected faults
    fault_injection      fault rules
    wire                 the protocol's JSON
    session              logins, the password file, sessions, their parameters and transactions
    event_loop           long work in threads beside the event loop; an exact timer

    engine               runs a statement from its text to its result; PostgreSQL's records as a result
    transactions         running statements, transactions, locks
    warehouse            settings of warehouses, their slots and queues; credits, WAREHOUSE_METERING_HISTORY
    performance_model    speed, resume, cold cache and scale-out of warehouses; distributions of service times
    statement_history    the record of every statement, QUERY_HISTORY; QUERY_HISTORY and AGGREGATE_QUERY_HISTORY of
                         SNOWFLAKE.ACCOUNT_USAGE
    catalog              databases, schemas, tables and views

    backend_pool         connections to PostgreSQL
    result               results, and the memory that they take; Snowflake's data types
    sql_errors           Snowflake's errors
    postgres_names       Snowflake's names in PostgreSQL

    commands             statements that are not queries
    translate            Snowflake SQL to PostgreSQL
    functions            Snowflake's functions
"""
