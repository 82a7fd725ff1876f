"""One preparation in a thread, so that the main thread of a command can display, stop and abandon it.

thread            does                                                            owns
prepare           everything that talks to the server                             its session
prepare-cancel    only after a stop that takes too long: cancels the statement    a separate session
"""

from __future__ import annotations

import threading

from loadgen.clock import Clock
from loadgen.prepare.prepare import (
    PreparationProgress,
    PreparationResult,
    PreparationStep,
    PreparationStopped,
    prepare_scenario,
)
from loadgen.prepare.session import PrepareSession, cancel_running
from loadgen.scenario.model import Scenario
from loadgen.snowflake.session import OpenConnection
from loadgen.units import counted


class PreparationJob:
    """One preparation in a thread. `progress` is the newest progress. Call `result()` only after `done` is set."""

    def __init__(
        self, scenario: Scenario, open_connection: OpenConnection, *, drop: bool, force: bool, clock: Clock
    ) -> None:
        self.stop = threading.Event()
        self.done = threading.Event()
        self.progress = PreparationProgress(step=PreparationStep.LOOKING)
        self._scenario = scenario
        self._open = open_connection
        self._drop, self._force = drop, force
        self._clock = clock
        self._session: PrepareSession | None = None
        self._prepared: PreparationResult | None = None
        self._error: BaseException | None = None
        self._cancelling: threading.Thread | None = None

    def start(self) -> None:
        # A daemon thread: if it is abandoned, the program must not wait for the time limits of the driver.
        threading.Thread(target=self._run, name="prepare", daemon=True).start()

    def cancel(self) -> None:
        """Cancel the running statement on the server, once."""
        if self._cancelling is None:
            self._cancelling = threading.Thread(target=self._cancel, name="prepare-cancel", daemon=True)
            self._cancelling.start()

    def abandon(self) -> None:
        """Abandon the preparation."""
        there = self.progress
        rows = f"at least {there.rows_there:,} of {counted(there.rows, 'row')} of {there.table} exist"
        where = f": {rows}" if there.table else ""
        self._error = PreparationStopped(f"stopped before the running statement ended{where}")

    def result(self) -> PreparationResult:
        if self._error is not None:
            raise self._error
        assert self._prepared is not None, "asked before the end"
        return self._prepared

    def _run(self) -> None:
        try:
            self._session = PrepareSession(self._open, stop=self.stop, clock=self._clock)
            try:
                self._prepared = prepare_scenario(
                    self._session,
                    self._scenario,
                    drop=self._drop,
                    force=self._force,
                    progress=self._tell,
                    stop=self.stop,
                    clock=self._clock,
                )
            finally:
                self._session.close()
        except BaseException as error:  # raised again in the main thread
            self._error = self._error or error
        finally:
            self.done.set()

    def _tell(self, progress: PreparationProgress) -> None:
        self.progress = progress

    def _cancel(self) -> None:
        if self._session is not None:
            cancel_running(self._session, self._open)
