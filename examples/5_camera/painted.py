"""A camera of one's own, without hardware: it paints a square that wanders with the time."""

from __future__ import annotations

import time

import numpy as np

from drivers.base import DriverError
from drivers.camera.base import Frame


class PaintedCamera:
    """A plain class without any ROS; the camera's node publishes what it gives.

    Args:
        width: Pixels.
        height: Pixels.
        rate_hz: Pictures per second.
    """

    def __init__(self, width: int, height: int, rate_hz: float) -> None:
        self._size = (height, width)
        self._period = 1.0 / rate_hz
        self._number = -1
        self._began: float | None = None

    def connect(self) -> None:
        """Find the device and start it."""
        self._began, self._number = time.monotonic(), -1

    def read(self, timeout_s: float) -> Frame:
        """Wait for a new picture; of several, the newest."""
        if self._began is None:
            raise DriverError("the camera is not connected", hint="call connect first")
        self._number = max(self._number + 1, int((time.monotonic() - self._began) / self._period))
        time.sleep(max(0.0, self._began + self._number * self._period - time.monotonic()))
        picture = np.zeros((*self._size, 3), np.uint8)
        left = self._number % (self._size[1] - 8)
        picture[8:16, left : left + 8] = (255, 128, 0)  # RGB
        return Frame(time.time_ns(), self._number, picture)

    def intrinsics(self) -> None:
        """It looks at nothing."""

    def close(self) -> None:
        """Stop the device."""
        self._began = None
