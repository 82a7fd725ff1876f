"""Clients that are not ours: the Node driver and the `snow` command against the embedded server. All slow."""
