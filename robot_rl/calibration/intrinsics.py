"""How a camera projects: what drivers report, topics carry and calibration uses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Intrinsics:
    """How the colour camera projects: u = fx · x/z + cx, v = fy · y/z + cy, after distortion.

    Attributes:
        width: Pixels.
        height: Pixels.
        fx: Focal length [pixels].
        fy: Focal length [pixels].
        cx: Principal point [pixels].
        cy: Principal point [pixels].
        distortion: k1, k2, p1, p2, k3 of Brown and Conrady, as OpenCV and ROS's `plumb_bob` order
            them.
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    distortion: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)

    def matrix(self) -> npt.NDArray[np.float64]:
        """The camera matrix (3, 3)."""
        return np.array([[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]])
