"""Who types a command: for the reasons that others read in the tables."""

from __future__ import annotations

import getpass
import os
import socket

from loadgen.log import printable


def user_and_host() -> str:
    """`alice on build-7`."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # no such variable, and no account of that number
        name = f"user {os.getuid()}"
    return f"{printable(name, 60)} on {printable(socket.gethostname(), 60)}"
