"""Tests with real processes and real signals. They wait for states, never for durations, and leave nothing."""
