"""`python -m loadgen`, and what bin/loadgen starts."""

import _signal  # type: ignore[import-not-found]  # `signal` imports enum, which takes long enough to be interrupted
import sys


def run() -> int:
    """Run the program. During the imports, Ctrl-C ends it silently, without a traceback."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # not ignored, as in the background
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from loadgen.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
