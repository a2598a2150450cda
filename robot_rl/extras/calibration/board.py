"""ChArUco calibration board, and estimation of camera intrinsics.

The board is a chessboard with markers in its white squares. A partial view is enough, and its
orientation is unambiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from drivers.camera.base import Intrinsics
from robot_rl.errors import RobotRLError, require

_LEAST_CORNERS = 6
_LEAST_VIEWS = 8
# Largest accepted residual [pixels]. Frontal views alone do not determine the focal length.
_LARGEST_RESIDUAL = 2.0


class CalibrationError(RobotRLError):
    """A calibration that is impossible with the available data."""


class BoardNotFound(CalibrationError):
    """An image that does not show enough of the board."""


class Corners(NamedTuple):
    """Inner board corners in one image."""

    points: npt.NDArray[np.float64]  # (n, 3), on the board: along columns and rows, z = 0 [m]
    pixels: npt.NDArray[np.float64]  # (n, 2), in the image


@dataclass(frozen=True)
class Board:
    """A ChArUco board."""

    columns: int = 7  # squares along x
    rows: int = 5  # squares along y
    square: float = 0.03  # side of a square [m]; measure it after printing
    marker: float = 0.022  # side of a marker [m]
    dictionary: str = "DICT_5X5_100"  # OpenCV's name of the marker dictionary

    def __post_init__(self) -> None:
        if self.columns < 3 or self.rows < 3:
            raise CalibrationError(
                "the board is too small", got=f"{self.columns}×{self.rows}", expected="3×3 or more"
            )
        if not 0.0 < self.marker < self.square:
            raise CalibrationError(
                "a marker must fit into a square",
                got=f"marker {self.marker} m, square {self.square} m",
                expected="0 < marker < square",
            )

    @property
    def size(self) -> tuple[float, float]:
        """Width and height [m]."""
        return self.columns * self.square, self.rows * self.square

    def picture(self, pixels_per_metre: float) -> npt.NDArray[np.uint8]:
        """Render the board for printing: uint8 (H, W), without margin."""
        width, height = (round(side * pixels_per_metre) for side in self.size)
        image = self._charuco().generateImage((width, height), marginSize=0, borderBits=1)
        return np.asarray(image, np.uint8)

    def find(self, image: npt.NDArray[np.uint8]) -> Corners:
        """Find the board's corners in an image, uint8 (H, W, 3) RGB.

        Raises `BoardNotFound` if fewer than 6 corners are visible, or all are on one line.
        """
        cv2 = require("cv2", "calibrate")
        charuco = self._charuco()
        gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        corners, ids, _, markers = cv2.aruco.CharucoDetector(charuco).detectBoard(gray)
        count = 0 if ids is None else len(ids)
        if count >= _LEAST_CORNERS:
            points, pixels = charuco.matchImagePoints(corners, ids)
            found = Corners(
                np.asarray(points, np.float64).reshape(-1, 3),
                np.asarray(pixels, np.float64).reshape(-1, 2),
            )
            if np.linalg.matrix_rank(found.points - found.points[0], tol=self.square / 2) == 2:
                return found
        raise BoardNotFound(
            "the board is not seen well enough",
            got=f"{count} corners, {0 if markers is None else len(markers)} markers",
            expected=f"{_LEAST_CORNERS} or more of {(self.columns - 1) * (self.rows - 1)} corners,"
            " not all on one line",
            hint="look at focus, light, glare, distance, and that the board is the one described:"
            f" {self.columns}×{self.rows} squares, {self.dictionary}",
        )

    def _charuco(self) -> Any:
        aruco = require("cv2", "calibrate").aruco
        if not hasattr(aruco, self.dictionary):
            raise CalibrationError(
                "there is no such set of markers",
                got=self.dictionary,
                expected=[name for name in dir(aruco) if name.startswith("DICT_")],
            )
        dictionary = aruco.getPredefinedDictionary(getattr(aruco, self.dictionary))
        return aruco.CharucoBoard((self.columns, self.rows), self.square, self.marker, dictionary)


def estimate(views: Sequence[Corners], width: int, height: int) -> Intrinsics:
    """Estimate the intrinsics of a camera with this image size [pixels], with OpenCV.

    Needs at least 8 views with the board tilted and in all parts of the image. Raises
    `CalibrationError` if there are fewer, or if they do not determine the intrinsics.
    """
    if len(views) < _LEAST_VIEWS:
        raise CalibrationError(
            "there are too few views to estimate the camera's intrinsics",
            got=len(views),
            expected=f"{_LEAST_VIEWS} or more, better 20",
            hint="tilt the board by 20 to 40 degrees and bring it to all parts of the picture",
        )
    points = [view.points.astype(np.float32) for view in views]
    pixels = [view.pixels.astype(np.float32) for view in views]
    residual, matrix, distortion, _, _ = require("cv2", "calibrate").calibrateCamera(
        points, pixels, (width, height), None, None
    )
    k1, k2, p1, p2, k3 = (float(value) for value in distortion.ravel()[:5])
    inside = 0.0 <= matrix[0, 2] <= width and 0.0 <= matrix[1, 2] <= height
    if not (residual <= _LARGEST_RESIDUAL and inside):
        raise CalibrationError(
            "the camera's intrinsics do not follow from these views",
            got=f"residual {residual:.1f} pixels, centre {matrix[0, 2]:.0f}, {matrix[1, 2]:.0f}",
            expected=f"at most {_LARGEST_RESIDUAL} pixels, and a centre within {width}×{height}",
            hint="tilt the board more, bring it to all parts of the picture, keep it flat",
        )
    fx, fy, cx, cy = (float(matrix[i, j]) for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    return Intrinsics(width, height, fx, fy, cx, cy, (k1, k2, p1, p2, k3))
