"""Intrinsics of a camera that does not know its own, from views of the board."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.extras import require
from robot_rl.calibration.board import CalibrationError, Corners
from robot_rl.calibration.intrinsics import Intrinsics

LEAST_VIEWS = 8
# Views in which the board is seen from the front say nothing of the focal length [pixels].
_LARGEST_RESIDUAL = 2.0


def estimate(views: Sequence[Corners], width: int, height: int) -> Intrinsics:
    """Estimate how a camera projects, with OpenCV's calibrateCamera.

    Args:
        views: At least 8, the board tilted and all over the picture.
        width: Of the pictures [pixels].
        height: Of the pictures [pixels].

    Raises:
        CalibrationError: Too few views, or none that determine it.
    """
    if len(views) < LEAST_VIEWS:
        raise CalibrationError(
            "there are too few views to estimate the camera's intrinsics",
            got=len(views),
            expected=f"{LEAST_VIEWS} or more, better 20",
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
