"""The control plane: the state of every run, in tables.

location  database, schema and warehouse of the tables, and how the processes of a run receive them
session   sessions that execute named statements of schemas/queries; rows as checked records; text and JSON made
          storable; exactly-once appends to standard tables
lease     keeps a lease, in a dedicated thread
tables/   statements on the tables, one module per group of tables
setup/    creates and updates the tables; GRANT statements

Calls raise: an error is never returned as an empty list. Times are compared in SQL, by the clock of the server.
"""
