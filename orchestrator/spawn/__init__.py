"""Where workers run: as children of this process, as programs of their own, in containers, or where you start them."""
