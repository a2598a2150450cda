"""Connection state of a device, and freshness of its measurements."""

from __future__ import annotations

import time
from concurrent.futures import Future, InvalidStateError, wait
from threading import Thread
from typing import Any

from robot_rl.errors import RobotRLError, described

CLOSED, CONNECTING, CONNECTED, WAITING = "closed", "connecting", "connected", "waiting"
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 10.0
_SMOOTHING = 0.05
# A stamp that goes back further than this means that a clock was set.
_JUMP_NS = 1_000_000_000
_CLOSE_S = 5.0  # longest wait for a running `connect`


class DeviceConnection:
    """Keeps a driver's device connected: in the background, and again after each failure.

    Everything except the driver's `connect` runs in the caller's thread.

    Attributes:
        state: `closed`, `connecting`, `connected` or `waiting` (to reconnect).
        fault: The current problem, or None.
        news: A fault to log; the caller resets it to None.
    """

    def __init__(self, driver: Any, patience_s: float) -> None:
        self.driver = driver
        self.state = CLOSED
        self.fault: str | None = None
        self.news: str | None = None
        self._patience = patience_s
        # Result of the connecting thread; if cancelled, that thread must close the driver.
        self._attempt: Future[BaseException | None] | None = None
        self._delay = _FIRST_DELAY
        self._next = 0.0
        self._failing_since: float | None = None

    def begin(self) -> None:
        """Start connecting in a separate thread."""
        self._attempt = Future()
        self.state = CONNECTING
        Thread(target=self._connect, args=[self._attempt], name="connect", daemon=True).start()

    def update(self) -> bool:
        """Advance the connection; returns whether the device is connected.

        Raises any error of `connect` other than `RobotRLError`: a retry does not help against a
        driver bug.
        """
        if self._attempt is not None and self._attempt.done():
            problem, self._attempt = self._attempt.result(), None
            if problem is None:
                self.state, self._failing_since = CONNECTED, None
            elif isinstance(problem, RobotRLError):
                self._note(str(problem))
                self._wait()
            else:
                raise problem
        if self.state == WAITING and time.monotonic() >= self._next:
            self.begin()
        return self.state == CONNECTED

    def failed(self, error: RobotRLError) -> None:
        """Report a failure of the connected device; after `patience_s` it is reconnected."""
        now = time.monotonic()
        self._note(str(error))
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._patience:
            self._wait()

    def succeeded(self) -> None:
        """Report that the device works."""
        self.fault, self._failing_since, self._delay = None, None, _FIRST_DELAY

    def close(self) -> None:
        """Close the device; waits up to 5 s for a running `connect`.

        A `connect` that takes longer closes the device itself, if it ever returns.
        """
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            wait([attempt], _CLOSE_S)
        if attempt is not None and attempt.cancel():
            self._note(f"still connecting {_CLOSE_S:g} s later, left alone; see cable and power")
        else:
            self._close_driver()
        self.state = CLOSED

    def _connect(self, attempt: Future[BaseException | None]) -> None:
        problem: BaseException | None = None
        try:
            self.driver.connect()
        except BaseException as error:  # the owner's next update raises or reports it
            problem = error
        try:
            attempt.set_result(problem)
        except InvalidStateError:  # cancelled by `close`
            self._close_driver()

    def _wait(self) -> None:
        self._close_driver()
        self.state, self._failing_since = WAITING, None
        self._next = time.monotonic() + self._delay
        self._delay = min(2.0 * self._delay, _LONGEST_DELAY)

    def _close_driver(self) -> None:
        try:
            self.driver.close()
        except Exception as error:  # a vendor's library may raise anything
            self._note(f"while closing: {described(error)}")

    def _note(self, fault: str) -> None:
        if fault != self.fault:
            self.news = fault
        self.fault = fault


class Freshness:
    """Separates new measurements from repeated ones, and tracks their rate and age.

    Ages count from when a measurement was first seen, on the steady clock, so that setting the
    system clock does not make old data look new. A measurement older than `stale_after_s` [s] is
    stale. `warning` describes odd stamps, or is None.
    """

    def __init__(self, stale_after_s: float) -> None:
        self.warning: str | None = None
        self._stale_after = stale_after_s
        self._stamp: int | None = None
        self._seen = time.monotonic()
        self._interval = 0.0
        self._count = 0

    def is_new(self, stamp_ns: int) -> bool:
        """Whether a measurement differs from the previous one, which it then replaces.

        An earlier stamp also counts as new: a clock was set back. Raises `RobotRLError` without a
        stamp.
        """
        if stamp_ns <= 0:
            raise RobotRLError(
                "the device's measurement does not say when it was taken",
                got=f"the stamp {stamp_ns}",
                expected="ns of the system clock",
                hint="its driver must set header.stamp",
            )
        if stamp_ns == self._stamp:
            return False
        now = time.monotonic()
        if self._stamp is not None:
            weight = _SMOOTHING if self._count > 1 else 1.0
            self._interval += weight * (now - self._seen - self._interval)
            if stamp_ns < self._stamp - _JUMP_NS:
                back = 1e-9 * (self._stamp - stamp_ns)
                self.warning = f"the device's clock has jumped back by {back:.3f} s"
        self._stamp, self._seen = stamp_ns, now
        self._count += 1
        return True

    def staleness(self) -> str | None:
        """Describe the age of the latest measurement if it is too old, else return None."""
        age = time.monotonic() - self._seen
        if age <= self._stale_after:
            return None
        if self._count == 0:
            return f"no measurement yet, for {age:.3f} s"
        return f"the newest measurement is {age:.3f} s old"

    def facts(self) -> dict[str, object]:
        """Rate, age and counts for the diagnostics; the rate is smoothed, and 0 while stale."""
        rate = 0.0 if self.staleness() or self._interval <= 0.0 else 1.0 / self._interval
        return {
            "rate_hz": f"{rate:.1f}",
            "age_s": f"{time.monotonic() - self._seen:.3f}",
            "measurements": self._count,
        }
