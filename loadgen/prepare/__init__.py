"""The tables of a scenario: made, filled, checked, and brought back to a known state. No terminal is known here.

definition   what a table is meant to be, and the marker in its comment by which we know our own
sqlvalue     a column's generator as an SQL expression, so that the server makes the rows
rows         rows made here, for generators that have no SQL form
statements   every SQL text that is sent
pace         how many rows the next statement makes
session      a connection that is opened again when it is lost, and what is tried again
target       the session's connection: the scenario's database, schema and warehouse
survey       what is there: which tables are missing, foreign, different, incomplete or ready
fill         the missing rows of one table, in chunks
prepare      all of it for one scenario: `prepare_scenario`, `check_scenario`
dry_run      what would be sent, without a connection
pools        the value pools of a scenario, from queries and files

How rows are counted. A table is filled from row 0 on; each chunk is one statement, so what is there is always a
beginning without gaps. Where a column is a sequence, only rows whose number lies among the prepared ones count, so rows
that a run has inserted are neither counted nor touched. Without a sequence all rows count: then a table with at least
the wanted number is complete. Either way fewer rows than wanted are filled up, and a gap or a duplicate is an error.

Every value depends on the seed and on the row's number alone, never on the chunk, so a preparation that was
interrupted, or that two programs made together, gives the same rows as one that was not.
"""
