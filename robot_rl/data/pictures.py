"""Images as other formats store them, and as our rows do: RGB in uint8, or depth in mm.

The meaning of a numeric column follows from its shape, dtype and bounds. An image is converted or
refused; it never becomes a row of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Array
from robot_rl.errors import RobotRLError

FARTHEST = 65.535  # m, the largest depth in uint16 millimetres
_CHANNELS = (1, 3, 4)  # gray or depth, RGB, RGBA
# Float arrays with sides shorter than this are numbers, such as rotation matrices or objects by
# features. Minimum side of an image with channels, and of one without.
_LEAST_SIDE, _LEAST_PLAIN_SIDE = 8, 32
_TOLERANCE = 1e-3  # of the largest value: allowed rounding beyond it
_EXPECTED = (
    "colour: uint8, or floats from 0 to 1 or 0 to 255, (height, width) or with 1, 3 or 4 channels"
    " first or last; depth: uint16 millimetres, (height, width) or with 1 channel"
)


class PictureError(RobotRLError):
    """An image that cannot be turned into RGB or depth without guessing."""


@dataclass(frozen=True)
class PictureForm:
    """How an image is stored, and its form in a row.

    Attributes:
        shape: As stored: (H, W), (H, W, c) or (c, H, W), with c of 1, 3 or 4.
        stored: Its dtype as stored, as NumPy's name.
        channel_axis: Axis of `shape` with the channels, -3 or -1; None if there is none.
        largest: The value of full brightness, 1 or 255; 0 for depth, in millimetres.
    """

    shape: tuple[int, ...]
    stored: str
    channel_axis: int | None
    largest: float

    @property
    def is_depth(self) -> bool:
        """Whether it is depth; otherwise it is a colour image."""
        return not self.largest

    @property
    def row_dtype(self) -> str:
        """Dtype of its column: uint8, or uint16 for depth [mm]."""
        return "uint16" if self.is_depth else "uint8"

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of its column: (H, W, 3), or (H, W, 1) for depth."""
        sides = [n for axis, n in enumerate(self.shape, -len(self.shape)) if axis != self._axis]
        return (*sides, 1 if self.is_depth else 3)

    @property
    def _axis(self) -> int:
        return 0 if self.channel_axis is None else self.channel_axis  # axes here are negative

    def to_row(self, given: npt.ArrayLike) -> Array:
        """Convert one or more images (..., *shape) to (..., *row_shape).

        Raises:
            PictureError: Another shape or dtype, a value outside its range, including NaN, or a
                fourth channel that is not opaque, so that the image is not RGBA.
        """
        values = np.asarray(given)
        if values.shape[-len(self.shape) :] != self.shape or not np.can_cast(
            values.dtype, self.stored, "same_kind"
        ):
            raise PictureError(
                "the picture is not what was declared",
                got=f"{values.dtype} {values.shape}",
                expected=f"{self.stored} {self.shape}",
            )
        if self.is_depth:
            return np.ascontiguousarray(self._channels_last(values))
        if values.dtype != np.uint8 and values.size:
            low, high, slack = values.min(), values.max(), _TOLERANCE * self.largest
            if not (low >= -slack and high <= self.largest + slack):  # false for NaN too
                raise PictureError(
                    "the picture has values outside its range",
                    got=f"{low:g} to {high:g}",
                    expected=f"0 to {self.largest:g}",
                )
        pictures = self._channels_last(values)
        channels = pictures.shape[-1]
        if channels == 4:
            if (pictures[..., 3] < (1.0 - _TOLERANCE) * self.largest).any():
                raise PictureError(
                    "the fourth channel of the picture is not opaque",
                    got=f"{self.stored} {self.shape}",
                    expected="RGBA that is opaque everywhere, or RGB",
                    hint="give each picture of a stack a name of its own",
                )
            pictures = pictures[..., :3]
        if pictures.dtype != np.uint8:
            scaled = np.rint(pictures * np.float32(255.0 / self.largest))
            pictures = scaled.clip(0.0, 255.0).astype(np.uint8)
        return np.ascontiguousarray(pictures if channels > 1 else np.repeat(pictures, 3, axis=-1))

    def _channels_last(self, values: Array) -> Array:
        if self.channel_axis is None:
            return values[..., np.newaxis]
        return np.moveaxis(values, self.channel_axis, -1)


def picture_form(
    shape: Sequence[int], dtype: npt.DTypeLike, low: npt.ArrayLike, high: npt.ArrayLike
) -> PictureForm | None:
    """Return the form of a column's images; None if it holds numbers.

    Args:
        shape: Shape of one observation, without the time axis.
        dtype: Its dtype.
        low: Lowest possible value, a scalar or of this shape; float images range from 0 to 1 or
            from 0 to 255.
        high: Highest possible value, likewise.

    Raises:
        PictureError: It looks like an image, but its format is ambiguous.
    """
    shape, kind = tuple(int(n) for n in shape), np.dtype(dtype)
    if not _looks_like_picture(shape, kind):
        return None
    axis = _channel_axis(shape)
    channels = 1 if axis is None else shape[axis]
    supported = len(shape) == 2 or axis is not None
    lowest, highest = float(np.min(low)), float(np.max(high))
    largest = None
    if kind == np.uint16:
        largest = 0.0 if channels == 1 else None
    elif kind == np.uint8:
        largest = 255.0
    elif lowest == 0.0 and highest in (1.0, 255.0):
        largest = highest
    if not supported or largest is None:
        raise PictureError(
            "a picture that cannot be read",
            got=f"{kind} {shape} from {lowest:g} to {highest:g}",
            expected=_EXPECTED,
            hint="if these are numbers and no picture, give them as one flat row",
        )
    return PictureForm(shape, kind.name, axis, largest)


def millimetres(metres: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Convert depth from floats [m] to a row's uint16 [mm], 0 beyond 65.535 m."""
    near = np.where(metres > FARTHEST, 0.0, metres)
    return (near * 1000.0).round().astype(np.uint16)


def _looks_like_picture(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    if len(shape) < 2:
        return False
    if dtype in (np.uint8, np.uint16):
        return True
    sides = sorted(shape)[-2:]
    return min(sides) >= _LEAST_PLAIN_SIDE or (
        len(shape) == 3 and _channel_axis(shape) is not None and min(sides) >= _LEAST_SIDE
    )


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """The axis with the channels, -1 or -3; None if no axis can be."""
    return next((a for a in (-1, -3) if len(shape) == 3 and shape[a] in _CHANNELS), None)
