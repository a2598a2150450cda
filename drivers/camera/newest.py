"""Hands the newest frame from the thread that receives it to the one that reads it."""

from __future__ import annotations

import threading

from drivers.camera.base import Frame
from drivers.errors import DriverError, DriverTimeout


class NewestFrame:
    """A place for one frame: a newer one replaces it, and each is taken at most once.

    Args:
        what: The device or topic, for errors.
    """

    def __init__(self, what: str) -> None:
        """See the class."""
        self._what = what
        self._changed = threading.Condition()
        self._frame: Frame | None = None
        self._failure: DriverError | None = None

    def put(self, frame: Frame) -> None:
        """Leave a frame."""
        with self._changed:
            self._frame = frame
            self._changed.notify_all()

    def fail(self, failure: DriverError) -> None:
        """Let every `take` from now on raise what ended the receiving."""
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def take(self, timeout_s: float) -> Frame:
        """Wait for a frame that was not taken before.

        Raises:
            DriverTimeout: None came in time.
            DriverError: What ended the receiving.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._frame or self._failure, timeout_s)
            if self._failure is not None:
                raise self._failure
            if self._frame is None:
                raise DriverTimeout(
                    f"{self._what} gave no picture",
                    got=f"none within {timeout_s:g} s",
                    hint="is it plugged in and running?",
                )
            frame, self._frame = self._frame, None
            return frame
