"""The tables of a scenario: created, filled, checked, and reset to a known state. Nothing is printed here.

table_definition   the wanted columns of a table, and the marker in its comment that identifies tables of loadgen; a
                   column's generator as an SQL expression, so that the server creates the rows; every SQL text that is
                   sent
session            the connection to the target, opened again when it is lost; retries
fill               the missing rows of one table, in chunks; which tables are missing, foreign, different, incomplete
                   or ready
prepare            all steps for one scenario, also in a thread: `prepare_scenario`, `dry_run`, `PreparationJob`; value
                   pools; mode replay: a capture, read and dealt to the workers

How rows are counted. A table is filled from row 0 on, one statement per chunk, so the existing rows are always a prefix
without gaps. Where a column is a sequence, only rows with a number in the prepared range count; rows that a run has
inserted are neither counted nor changed. Without a sequence all rows count: a table with at least the wanted number is
complete. In both cases missing rows are added, and a gap or a duplicate is an error.

Every value depends on the seed and the row number only, never on the chunk. So an interrupted preparation, or one that
two programs do together, gives the same rows as any other.
"""
