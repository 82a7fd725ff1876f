"""What only a real Snowflake account can show: `LOADGEN_LIVE_CONNECTION=name ./bin/test -m live`."""
