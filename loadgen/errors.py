"""The errors that loadgen raises, and the exit codes of the program.

    LoadgenError            1
    ├── UsageError          2   the command line is invalid
    ├── ScenarioInvalid     2   the scenario is invalid
    ├── ConfigurationError  2   a connections file, setting or path cannot be used
    ├── ConnectFailed       3   no connection, or the login was refused
    ├── PrivilegeMissing    3   the role lacks a privilege
    ├── RunFailed           4   the run started and could not be completed
    ├── EmbeddedServerError 4   the embedded server could not start or stay up
    ├── OutputFailed        4   the result could not be written to stdout
    └── Busy               75   another process or run holds a required resource

Exit codes of the program:

      0  done, and every threshold passed
      1  a bug, or an unexpected error
      2  bad usage or a bad scenario
      3  cannot connect, log in, or a privilege is missing
      4  the run failed
      5  the run finished but is INVALID
     10  a threshold failed
     11  a regression is confirmed
     12  an experiment is undecided
     75  skipped: another process or run holds a required resource
    129  stopped by SIGHUP
    130  stopped by SIGINT
    131  stopped by SIGQUIT
    141  the reader of the output was closed
    143  stopped by SIGTERM

If several apply, the program ends with the first of 1, 2, 3, 4, the code of a signal, 5, 10, 11. Codes 0, 5, 10, 11 and
12 are verdicts of finished runs and experiments, not errors, and have no class here.
"""

import errno

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class LoadgenError(Exception):
    """The base class: a message that says what failed, and a remedy that says what to do."""

    exit_code = 1
    remedy = "Run again with --debug, and look at the log."

    def __init__(self, what: str, *, remedy: str | None = None) -> None:
        super().__init__(what)
        self.remedy = remedy or type(self).remedy


class UsageError(LoadgenError):
    """The command line is invalid."""

    exit_code = 2
    remedy = "Add --help to the command to see what it accepts."


class ScenarioInvalid(LoadgenError):
    """The scenario is invalid."""

    exit_code = 2
    remedy = "Fix the lines named above; `loadgen validate FILE` checks without connecting."


class ConfigurationError(LoadgenError):
    """A connections file, a setting or a path cannot be used as it is."""

    exit_code = 2
    remedy = "Correct the file or setting named above; `loadgen connections list` shows which files are read."


class ConnectFailed(LoadgenError):
    """No connection could be opened, or the login was refused."""

    exit_code = 3
    remedy = "Check the connection with `loadgen connections test -c NAME`."


class PrivilegeMissing(LoadgenError):
    """The login succeeded, but the role lacks a privilege."""

    exit_code = 3
    remedy = "Ask an administrator for the missing grant, or choose another role for the connection."


class RunFailed(LoadgenError):
    """The run started and could not be completed. Recorded results are kept."""

    exit_code = 4
    remedy = "Find the first error in the log of the run."


class EmbeddedServerError(LoadgenError):
    """The embedded server could not start, or did not stay up."""

    exit_code = 4
    remedy = "Run `loadgen embedded serve` separately to see its messages."


class OutputFailed(LoadgenError):
    """The result could not be written to stdout."""

    exit_code = 4
    remedy = "Send the output elsewhere, and run the command again."


class Busy(LoadgenError):
    """Another process or run holds a resource that this one needs."""

    exit_code = 75
    remedy = "Wait for the other to finish, then try again."


def cannot_write(path: object, error: OSError, remedy: str) -> ConfigurationError:
    """The error for a file or folder that could not be written. A full disk has a separate remedy."""
    if error.errno in DISK_FULL:
        remedy = f"The disk is full: free space there (`df {path}`), then try again."
    return ConfigurationError(f"cannot write {path}: {error.strerror or error}", remedy=remedy)
