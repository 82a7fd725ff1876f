"""Tests of our pages in a real browser: Chromium, controlled through its debugging pipe."""
