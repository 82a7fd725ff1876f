"""Tests that look at our pages with a real browser: Chromium, spoken to through its debugging pipe."""
