"""The embedded server: Snowflake's HTTP protocol in front of PostgreSQL, for use without a Snowflake account.

Of the project it imports only the base modules (`errors`, `clock`, `units`, `log`); other packages use it over loopback
HTTP. Only this package uses asyncio.

    client               finds or starts a server for a command; sends requests to `/__loadgen/…`; sets, checks and
                         removes the warehouse model of a run
    server               the process: options, signals, start and stop
    http_server          builds engine, warehouses and HTTP server; restarts PostgreSQL; the null engine
    datadir              the data directory and its owner
    postgres             PostgreSQL as a child process
    launch               starts a program as an unprivileged user; the program ends with its parent
    database_setup       roles, privileges, functions and initial objects in PostgreSQL

    app                  the ASGI application: routes, repeated requests, polling for results
    admin                endpoints below `/__loadgen/`, the warehouse models of runs, the request log, the stop of an
                         unused server
    http_exchange        an HTTP request and its answer, with limits; answers of injected faults
    fault_injection      fault rules
    wire                 the JSON of the protocol
    session              logins, the password file, sessions, their parameters and transactions
    event_loop           long work in threads beside the event loop; an exact timer

    engine               runs a statement, and converts PostgreSQL's records to a result
    transactions         running statements, transactions, locks
    warehouse            settings, slots, queues and credits of warehouses; WAREHOUSE_METERING_HISTORY
    performance_model    speed, resume, cold cache and scale-out of warehouses; distributions of service times
    statement_history    a record of every statement; QUERY_HISTORY, and the views of SNOWFLAKE.ACCOUNT_USAGE
    catalog              databases, schemas, tables and views

    backend_pool         connections to PostgreSQL
    result               results and the limits of their memory; Snowflake's data types
    sql_errors           Snowflake's errors
    postgres_names       identifiers of Snowflake and their names in PostgreSQL

    commands             statements that are not queries
    translate            Snowflake SQL to PostgreSQL
    functions            Snowflake's functions
"""
