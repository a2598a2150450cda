"""The protocol of camera drivers: stamped frames, the newest first, and intrinsics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image as Picture

from drivers.base import DriverError

# Lowest and highest rates of pictures [Hz].
RATES = (0.1, 1000.0)

Image = npt.NDArray[np.uint8]
Depth = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Frame:
    """One picture."""

    # When it was taken, on the system clock [ns]; of arrival, if the device does not tell.
    stamp_ns: int
    sequence: int  # number that the device gave it; a gap is a frame that was not delivered
    color: Image  # uint8 (H, W, 3) RGB
    # uint16 (H, W) in millimetres along the optical axis, seen from the colour camera; 0 where
    # there is none. None where depth was not asked for.
    depth: Depth | None = None


@dataclass(frozen=True)
class Intrinsics:
    """How the colour camera projects: u = fx · x/z + cx, v = fy · y/z + cy, after distortion."""

    width: int  # pixels
    height: int  # pixels
    fx: float  # focal length [pixels]
    fy: float  # focal length [pixels]
    cx: float  # principal point [pixels]
    cy: float  # principal point [pixels]
    # k1, k2, p1, p2, k3 of Brown and Conrady, as OpenCV and ROS's `plumb_bob` order them.
    distortion: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str) -> Intrinsics:
        """Take the fields by name from a mapping; the `DriverError` says `where` that came from."""
        try:
            return cls(**{**values, "distortion": tuple(values.get("distortion", (0.0,) * 5))})
        except TypeError as error:
            raise DriverError(
                f"{where} does not hold a camera's intrinsics",
                got=error,
                expected=[field.name for field in fields(cls)],
            ) from error

    def matrix(self) -> npt.NDArray[np.float64]:
        """The camera matrix (3, 3)."""
        return np.array([[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]])


class Camera(Protocol):
    """A camera that gives its newest frame; one thread calls `connect`, `read` and `close`."""

    def connect(self) -> None:
        """Find the device and start it; may be called again after `close` or an error.

        Raises `DriverError` where it is not there, or does not have the size or rate that was asked
        for, and `MissingExtra` where its library is not installed.
        """

    def read(self, timeout_s: float) -> Frame:
        """Wait up to `timeout_s` [s] for a frame that was not read before; of several, the newest.

        Raises `DriverTimeout` without one, `DriverError` for another size than configured.
        """

    def intrinsics(self) -> Intrinsics | None:
        """The camera's intrinsics; None if neither device nor configuration has them."""

    def close(self) -> None:
        """Stop the device, even if it was never reached."""


class Crop:
    """The part of a camera's pictures that is published, and its size.

    `crop` is left, top, width and height of that part in the device's pictures [pixels]; `size` is
    the width and height that it gets. Empty, each is what the device gives. Colours are averaged,
    as a smaller picture from far away would look; of depth the nearest value is taken.
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
        """The frame as it is shown; `DriverError` where the part is not within the picture."""
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
        """How the camera projects into what is shown; pixels have their centre at whole numbers."""
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
    """Check that a picture of the device or topic `what` is uint8 RGB of this size [pixels]."""
    if color.dtype != np.uint8 or color.shape != (height, width, 3):
        shape = "×".join(map(str, color.shape[1::-1])) if color.ndim == 3 else color.shape
        raise DriverError(
            f"{what} gives pictures of another size or kind",
            got=f"{shape} {color.dtype}",
            expected=f"{width}×{height} uint8 RGB",
            hint="set width and height in its configuration to what it gives, or set the camera",
        )
