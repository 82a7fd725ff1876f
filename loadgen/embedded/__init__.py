"""The local Snowflake-compatible server: the real HTTP protocol in front of PostgreSQL, for use without an account.

It is a role of its own: it imports nothing of the project but the floor (`errors`, `clock`, `units`, `log`), and the
rest of the project reaches it over loopback HTTP only. asyncio lives here and nowhere else.
"""
