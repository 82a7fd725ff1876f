"""Everything that knows Snowflake's Python driver; no other package imports it.

ident        names of objects, safe to put into a statement
keys         which settings of a connection there are, and who decides them
configfile   connections.toml and config.toml: where they lie, who may touch them, what they say
profile      one named connection, and where each of its fields came from
lookup       finds a profile, as the Snowflake CLI does
credential   what proves who we are, read at the moment of connecting
settings     a profile and a purpose, turned into arguments for connect()
driver       the one door to snowflake.connector
connect      open and close a connection
diagnosis    why connecting failed, and what to do about it
failure      what kind of failure an exception is
probe        is a connection usable, and who are we there?
"""
