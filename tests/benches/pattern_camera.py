"""A camera without any hardware whose pictures carry their number, to test the way of pictures."""

from __future__ import annotations

import time

import numpy as np

from drivers.base import DriverError, DriverTimeout
from drivers.camera.base import Frame, Intrinsics

_NUMBER_BYTES = 8


class PatternCamera:
    """Gives noise at a constant rate; the first 8 bytes of a picture are its number, little-endian.

    A picture that nobody reads in time is left out, and its number with it.
    """

    def __init__(
        self, width: int = 640, height: int = 480, rate_hz: float = 30.0, camera: str = ""
    ) -> None:
        noise = np.random.default_rng(0)
        self._picture = noise.integers(0, 256, (height, width, 3), np.uint8)
        self._period = 1.0 / rate_hz
        self._began: float | None = None
        self._next = 0

    def connect(self) -> None:
        """Begin with the first picture."""
        self._began, self._next = time.monotonic(), 0

    def read(self, timeout_s: float) -> Frame:
        """Wait for the next picture."""
        if self._began is None:
            raise DriverError("the camera is not connected", hint="call connect first")
        deadline = time.monotonic() + timeout_s
        due = self._began + self._next * self._period
        time.sleep(max(0.0, min(due, deadline) - time.monotonic()))
        if due > deadline:
            raise DriverTimeout("no picture is due yet")
        number = int((time.monotonic() - self._began) / self._period)
        self._next = number + 1
        self._picture.reshape(-1)[:_NUMBER_BYTES] = np.frombuffer(
            number.to_bytes(_NUMBER_BYTES, "little"), np.uint8
        )
        return Frame(time.time_ns(), number, self._picture.copy())

    def intrinsics(self) -> Intrinsics | None:
        """None: it looks at nothing."""
        return None

    def close(self) -> None:
        """Stop."""
        self._began = None
