"""Connections to Snowflake. Only this package uses the Python driver.

ident           names of database objects, quoted for use in statements
profile         one named connection: its options, and the source of each
profile_lookup  finds a profile in the same way as the Snowflake CLI: connections.toml, config.toml, variables
settings        the arguments of connect() for a profile and a purpose (load, control plane, probe)
driver          the only importer of snowflake.connector
driver_patches  changes to driver 5 that reduce the cost of a statement
connect         opens and closes connections: credentials, explanations of failed logins, the probe of a connection
session         a session that reconnects, and the retry policy
account_history  a session that reads a history of the account
failure         the meaning of a driver exception: category, retryable, session lost, outcome unknown
"""
