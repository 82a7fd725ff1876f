"""The control plane: the state of every run, in tables.

location          where the tables are
session           statements by name on one reconnecting session; appending to standard tables, once; rows as checked
                  records; foreign texts and JSON made storable; the SQL, by name, from schemas/queries
lease             keeping a lease, in a dedicated thread
process_identity  which process holds something, and whether it has ended
tables/           statements on the tables, one module per group of tables
setup/            creating and updating the tables; grants

Calls raise: an error is never an empty list. Times are compared by the server's clock, in SQL.
"""
