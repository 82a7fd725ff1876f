"""The command line: one file per command, and `main.py`, which finds them and turns errors into exit codes."""
