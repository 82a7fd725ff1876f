"""The control plane: the state of every run, in tables.

location          where the tables are
sql               the SQL, by name, from schemas/queries
session           statements by name on one reconnecting session
rows              rows as checked records; foreign texts and JSON made storable
batch             appending to standard tables, once
lease             keeping a lease, in a dedicated thread
process_identity  which process holds something, and whether it has ended
run_lookup        a run by id, unique prefix or `latest`
tables/           one module per table
setup/            creating and updating the tables; grants

Calls raise: an error is never an empty list. Times are compared by the server's clock, in SQL.
"""
