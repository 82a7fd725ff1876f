"""A load generator and benchmark for Snowflake: controlled load, checked results."""

__version__ = "0.1.0"
