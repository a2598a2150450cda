"""Camera driver protocol: stamped frames, latest first, and intrinsics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image as Picture

from drivers.base import DriverError

# Lowest and highest frame rates [Hz].
RATES = (0.1, 1000.0)

Image = npt.NDArray[np.uint8]
Depth = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Frame:
    """One image."""

    # Capture time on the system clock [ns]; arrival time if the device does not report one.
    stamp_ns: int
    sequence: int  # frame number from the device; a gap means a lost frame
    color: Image  # uint8 (H, W, 3) RGB
    # uint16 (H, W) [mm] along the optical axis, aligned to the colour camera; 0 means no
    # measurement. None if depth was not requested.
    depth: Depth | None = None


@dataclass(frozen=True)
class Intrinsics:
    """Colour camera projection: u = fx · x/z + cx, v = fy · y/z + cy, after distortion."""

    width: int  # pixels
    height: int  # pixels
    fx: float  # focal length [pixels]
    fy: float  # focal length [pixels]
    cx: float  # principal point [pixels]
    cy: float  # principal point [pixels]
    # Brown-Conrady k1, k2, p1, p2, k3, in the order of OpenCV and ROS's `plumb_bob`.
    distortion: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str) -> Intrinsics:
        """Build from a mapping of field names; `where` names its source in the `DriverError`."""
        try:
            return cls(**{**values, "distortion": tuple(values.get("distortion", (0.0,) * 5))})
        except TypeError as error:
            raise DriverError(
                f"{where} does not hold a camera's intrinsics",
                got=error,
                expected=[field.name for field in fields(cls)],
            ) from error

    def matrix(self) -> npt.NDArray[np.float64]:
        """Return the camera matrix (3, 3)."""
        return np.array([[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]])


class Camera(Protocol):
    """A camera that returns its latest frame; one thread calls `connect`, `read` and `close`."""

    def connect(self) -> None:
        """Find and start the device; can be called again after `close` or an error.

        Raises `DriverError` if the device is missing or does not support the requested size or
        rate, and `MissingExtra` if its library is not installed.
        """

    def read(self, timeout_s: float) -> Frame:
        """Wait up to `timeout_s` [s] for the latest unread frame.

        Raises `DriverTimeout` if no frame arrives, and `DriverError` if its size differs from the
        configuration.
        """

    def intrinsics(self) -> Intrinsics | None:
        """Return the intrinsics; None if neither the device nor the configuration has them."""

    def close(self) -> None:
        """Stop the device; safe if it was never connected."""


class Crop:
    """Crop and resize camera images before publishing.

    `crop` is left, top, width and height of the region in the device's images [pixels]; `size` is
    the output width and height. If empty, the full image and the original size are used. Colour is
    averaged, depth takes the nearest value.
    """

    def __init__(self, crop: Sequence[int] = (), size: Sequence[int] = ()) -> None:
        numbers = min((*crop[:2], 0)) >= 0 and min((*crop[2:], *size, 1)) > 0
        if len(crop) not in (0, 4) or len(size) not in (0, 2) or not numbers:
            raise DriverError(
                "this part of a camera's pictures is impossible",
                got=f"crop {list(crop)}, size {list(size)}",
                expected="crop: [left, top, width, height], size: [width, height], in pixels",
            )
        self._crop, self._size = tuple(crop), list(size)

    def of(self, frame: Frame) -> Frame:
        """Crop and resize the frame; `DriverError` if the region exceeds the image."""
        height, width = frame.color.shape[:2]
        left, top, wide, high = self._crop or (0, 0, width, height)
        if left + wide > width or top + high > height:
            raise DriverError(
                "the part to show is not within the camera's pictures",
                got=f"{wide}×{high} from ({left}, {top})",
                expected=f"a part of {width}×{height}",
                hint="correct the parameter crop of the camera's node",
            )
        if not self._crop and not self._size:
            return frame

        def shown(picture: npt.NDArray[Any], how: Picture.Resampling) -> npt.NDArray[Any]:
            part = Picture.fromarray(picture[top : top + high, left : left + wide])
            return np.asarray(part.resize(self._size or part.size, how))

        depth = frame.depth
        return replace(
            frame,
            color=shown(frame.color, Picture.Resampling.BOX),
            depth=None if depth is None else shown(depth, Picture.Resampling.NEAREST),
        )

    def intrinsics(self, of: Intrinsics) -> Intrinsics:
        """Return the intrinsics of the cropped, resized image; pixel centres are at integers."""
        left, top, wide, high = self._crop or (0, 0, of.width, of.height)
        width, height = self._size or (wide, high)
        across, down = width / wide, height / high
        return replace(
            of,
            width=width,
            height=height,
            fx=of.fx * across,
            fy=of.fy * down,
            cx=(of.cx - left + 0.5) * across - 0.5,
            cy=(of.cy - top + 0.5) * down - 0.5,
        )


def check_color(what: str, color: Image, width: int, height: int) -> None:
    """Check that an image from the device or topic `what` is uint8 RGB of this size [pixels]."""
    if color.dtype != np.uint8 or color.shape != (height, width, 3):
        shape = "×".join(map(str, color.shape[1::-1])) if color.ndim == 3 else color.shape
        raise DriverError(
            f"{what} gives pictures of another size or kind",
            got=f"{shape} {color.dtype}",
            expected=f"{width}×{height} uint8 RGB",
            hint="set width and height in its configuration to what it gives, or set the camera",
        )
