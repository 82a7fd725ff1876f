"""Attacks by name, and what stops each."""
