"""Keeps a device connected: connects in the background, and again for ever after a failure."""

from __future__ import annotations

import threading
import time
from typing import Any

from robot_rl.errors import RobotRLError, described

CLOSED, CONNECTING, CONNECTED, WAITING = "closed", "connecting", "connected", "waiting"
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 10.0
_CLOSE_S = 5.0  # how long a connecting that is going on may hold up the end


class Connection:
    """A driver and whether its device answers.

    All methods but the driver's `connect` run in the caller's thread.

    Args:
        driver: Has `connect` and `close`.
        patience_s: How long the device may fail before it is connected anew [s].

    Attributes:
        driver: The driver.
        state: `closed`, `connecting`, `connected` or `waiting` (to connect again).
        fault: What is wrong, None while nothing is.
        news: What should be logged once, until the caller takes it.
    """

    def __init__(self, driver: Any, patience_s: float) -> None:
        """See the class."""
        self.driver = driver
        self.state = CLOSED
        self.fault: str | None = None
        self.news: str | None = None
        self._patience = patience_s
        self._thread: threading.Thread | None = None
        self._handing_over = threading.Lock()
        self._connecting = False
        self._left = False  # whether the connecting thread is to close the driver itself
        self._problem: BaseException | None = None
        self._delay = _FIRST_DELAY
        self._next = 0.0
        self._failing_since: float | None = None

    def begin(self) -> None:
        """Begin to connect in a thread of its own."""
        self._problem = None
        self._connecting = True
        self.state = CONNECTING
        self._thread = threading.Thread(target=self._connect, name="connect", daemon=True)
        self._thread.start()

    def update(self) -> bool:
        """Look how the connecting goes on; returns whether the device is connected.

        Raises:
            Exception: What `connect` raised, where that is no `RobotRLError`: an error in the
                driver, which trying again does not mend.
        """
        if self.state == CONNECTING and self._thread is not None and not self._thread.is_alive():
            self._thread.join()
            self._thread = None
            self._conclude()
        if self.state == WAITING and time.monotonic() >= self._next:
            self.begin()
        return self.state == CONNECTED

    def failed(self, error: RobotRLError) -> None:
        """Note that the connected device failed; too long, and it is connected anew."""
        now = time.monotonic()
        self._note(str(error))
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._patience:
            self._close_driver()
            self._wait()

    def succeeded(self) -> None:
        """Note that the device works."""
        self.fault, self._failing_since, self._delay = None, None, _FIRST_DELAY

    def close(self) -> None:
        """Close the device, for good; a connecting that is going on is waited for, for 5 s.

        One that hangs, as in the opening of a device that does not answer, closes the device itself
        should it ever end.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_CLOSE_S)
            with self._handing_over:
                self._left = self._connecting
        if self._left:
            self._note(f"still connecting {_CLOSE_S:g} s later, left alone; see cable and power")
        else:
            self._close_driver()
        self.state = CLOSED

    def _connect(self) -> None:
        try:
            self.driver.connect()
        except BaseException as problem:  # raised or reported by the owner's next update
            self._problem = problem
        with self._handing_over:
            self._connecting = False
        if self._left:
            self._close_driver()

    def _conclude(self) -> None:
        if self._problem is None:
            self.state, self._failing_since = CONNECTED, None
            return
        if not isinstance(self._problem, RobotRLError):
            raise self._problem
        self._note(str(self._problem))
        self._close_driver()
        self._wait()

    def _wait(self) -> None:
        self.state, self._failing_since = WAITING, None
        self._next = time.monotonic() + self._delay
        self._delay = min(2.0 * self._delay, _LONGEST_DELAY)

    def _close_driver(self) -> None:
        try:
            self.driver.close()
        except Exception as error:  # whatever a vendor's library raises: it is let go of
            self._note(f"while closing: {described(error)}")

    def _note(self, fault: str) -> None:
        if fault != self.fault:
            self.news = fault
        self.fault = fault
