"""loadgen puts a measured, controlled load on Snowflake and says truthfully what happened."""

__version__ = "0.1.0"
