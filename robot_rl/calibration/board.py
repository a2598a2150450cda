"""The calibration board: ChArUco, a chessboard whose white squares hold markers.

A part of it is enough, and it cannot be taken for itself turned round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from policies.extras import require
from robot_rl.errors import RobotRLError

_LEAST_CORNERS = 6


class CalibrationError(RobotRLError):
    """A calibration that cannot be done from what there is."""


class BoardNotFound(CalibrationError):
    """A picture that does not show enough of the board."""


class Corners(NamedTuple):
    """Where inner corners of the board were seen.

    Attributes:
        points: float64 (n, 3), on the board: x along its columns, y along its rows, z = 0 [m].
        pixels: float64 (n, 2), in the picture.
    """

    points: npt.NDArray[np.float64]
    pixels: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Board:
    """A ChArUco board.

    Attributes:
        columns: Squares along x.
        rows: Squares along y.
        square: Side of a square [m]; measure it after printing.
        marker: Side of a marker [m].
        dictionary: OpenCV's name of the set of markers.
    """

    columns: int = 7
    rows: int = 5
    square: float = 0.03
    marker: float = 0.022
    dictionary: str = "DICT_5X5_100"

    def __post_init__(self) -> None:
        """Check the measures."""
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
        """The board to print: uint8 (H, W), without margin."""
        width, height = (round(side * pixels_per_metre) for side in self.size)
        image = self._charuco().generateImage((width, height), marginSize=0, borderBits=1)
        return np.asarray(image, np.uint8)

    def find(self, image: npt.NDArray[np.uint8]) -> Corners:
        """Find the board's corners.

        Args:
            image: uint8 (H, W, 3) RGB.

        Raises:
            BoardNotFound: Fewer than 6 corners are seen, or all on one line.
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
