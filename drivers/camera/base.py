"""What every camera driver gives: stamped frames, the newest first, and intrinsics."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from drivers.errors import DriverError, DriverTimeout
from robot_rl.calibration.board import Intrinsics

Image = npt.NDArray[np.uint8]
Depth = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Frame:
    """One picture."""

    # When it was taken, on the system clock [ns]; where the device cannot tell, when it arrived.
    stamp_ns: int
    sequence: int  # number that the device gave it; a gap is a frame that was not delivered
    color: Image  # uint8 (H, W, 3) RGB
    # uint16 (H, W) in millimetres along the optical axis, seen from the colour camera; 0 where
    # there is none. None where depth was not asked for.
    depth: Depth | None = None


class Camera(Protocol):
    """A camera that gives its newest frame.

    `connect`, `read` and `close` are called by one thread.
    """

    def connect(self) -> None:
        """Find the device and start it; after `close` or an error, once more.

        Raises:
            DriverError: It is not there, or does not have the size or rate that was asked for.
            MissingExtra: The library for it is not installed.
        """

    def read(self, timeout_s: float) -> Frame:
        """Wait for a frame that was not read before; of several, the newest.

        Args:
            timeout_s: How long to wait at most [s].

        Raises:
            DriverTimeout: There was none.
            DriverError: A frame has another size or encoding than configured.
        """

    def intrinsics(self) -> Intrinsics | None:
        """How it projects; None where neither the device nor the configuration says so."""

    def close(self) -> None:
        """Stop the device, also when it was never reached."""


def check_color(what: str, color: Image, width: int, height: int) -> None:
    """Check the size of a picture.

    Args:
        what: The device or topic that it comes from.
        color: The picture.
        width: Expected width [pixels].
        height: Expected height [pixels].

    Raises:
        DriverError: It has another size, or is no uint8 RGB.
    """
    if color.dtype != np.uint8 or color.shape != (height, width, 3):
        shape = "×".join(map(str, color.shape[1::-1])) if color.ndim == 3 else color.shape
        raise DriverError(
            f"{what} gives pictures of another size or kind",
            got=f"{shape} {color.dtype}",
            expected=f"{width}×{height} uint8 RGB",
            hint="set width and height in its configuration to what it gives, or set the camera",
        )


class NewestFrame:
    """A place for one frame: a newer one replaces it, and each is taken at most once.

    Args:
        what: The device or topic, for errors.
    """

    def __init__(self, what: str) -> None:
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
