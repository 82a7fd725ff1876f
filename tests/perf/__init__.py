"""Measurements, run by `bin/bench NAME`. They compare two things in one run and never judge an absolute time."""
