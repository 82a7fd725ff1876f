"""Everything that knows Snowflake's Python driver; no other package imports it.

ident               names of objects, safe to put into a statement
connection_options  the options of a connection, and which of them loadgen decides
profile             one named connection, and where each of its fields came from
profile_lookup      finds a profile, as the Snowflake CLI does; connections.toml and config.toml: location, file
                    modes, content
settings            a profile and a purpose, turned into arguments for connect()
driver              the only importer of snowflake.connector
lighten             what is changed in driver 5, so that a statement costs less
connect             opens and closes a connection; credentials; why connecting failed, and what to do; whether a
                    connection is usable, as whom, and its round-trip time
session             one reconnecting session, and the retry policy
failure             what an exception of the driver means: category, session lost, outcome unknown
"""
