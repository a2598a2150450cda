"""What every camera driver gives: stamped frames, the newest first, and intrinsics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from drivers.errors import DriverError
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
    """A camera that gives its newest frame; one thread calls `connect`, `read` and `close`."""

    def connect(self) -> None:
        """Find the device and start it; after `close` or an error, once more.

        Raises `DriverError` where it is not there, or does not have the size or rate that was asked
        for, and `MissingExtra` where its library is not installed.
        """

    def read(self, timeout_s: float) -> Frame:
        """Wait up to `timeout_s` [s] for a frame that was not read before; of several, the newest.

        Raises `DriverTimeout` without one, `DriverError` for another size than configured.
        """

    def intrinsics(self) -> Intrinsics | None:
        """How it projects; None where neither the device nor the configuration says so."""

    def close(self) -> None:
        """Stop the device, also when it was never reached."""


def check_color(what: str, color: Image, width: int, height: int) -> None:
    """Check that a picture of the device or topic `what` is uint8 RGB of this size [pixels]."""
    if color.dtype != np.uint8 or color.shape != (height, width, 3):
        shape = "×".join(map(str, color.shape[1::-1])) if color.ndim == 3 else color.shape
        raise DriverError(
            f"{what} gives pictures of another size or kind",
            got=f"{shape} {color.dtype}",
            expected=f"{width}×{height} uint8 RGB",
            hint="set width and height in its configuration to what it gives, or set the camera",
        )
