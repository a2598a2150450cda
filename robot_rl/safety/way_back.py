"""The way that an arm came, for it to go back along when it presses too hard."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from robot_rl.safety import rotations

Vector = npt.NDArray[np.float64]

# A turn of 1 rad counts as much of a way as this [m].
_METRES_PER_RADIAN = 0.1
_SCALE = np.array([1.0] * 3 + [_METRES_PER_RADIAN] * 3)
# Distance between two points that are kept, and how many [m].
_SPACING = 0.001
_POINTS = 200
# An arm that is suddenly this far away did not come along the way [m].
_ELSEWHERE = 0.1
# What leads back: at most 60 degrees away from the way.
_ALONG = 0.5


class WayBack:
    """Keeps the last measured poses at which an arm pressed on nothing too hard.

    Args:
        reach: How far ahead of the arm the way back is aimed at [m].
    """

    def __init__(self, reach: float) -> None:
        self._reach = reach
        self._points: deque[Vector] = deque(maxlen=_POINTS)

    @property
    def is_known(self) -> bool:
        """Whether the arm came from anywhere."""
        return bool(self._points)

    def forget(self) -> None:
        """It is not known any more how the arm came to where it is."""
        self._points.clear()

    def came_by(self, pose: Vector) -> None:
        """The arm is at `pose` (7,), and its contact force is allowed."""
        if self._points:
            apart = _length(_way(self._points[-1], pose))
            if apart > _ELSEWHERE:
                self._points.clear()
            elif apart < _SPACING:
                return
        self._points.append(pose.copy())

    def back(self, pose: Vector, wanted: Vector, force: Vector) -> Vector | None:
        """Where a command may lead an arm that presses too hard.

        Args:
            pose: Where the arm is (7,).
            wanted: Where it is asked to go (7,).
            force: What presses on its tool (3,) [N].

        Returns:
            A pose (7,) between the arm and where it came from, no further than `wanted` is; None
            for a command that leads elsewhere. An arm that did not come from anywhere yet may go
            where the force pushes it.
        """
        goal = self._behind(pose)
        if goal is None:
            size = math.hypot(*force)
            goal = pose.copy()
            goal[:3] += self._reach * force / size if size > 0.0 else 0.0
        way, asked = _way(pose, goal), _way(pose, wanted)
        length, size = _length(way), _length(asked)
        if length == 0.0 or way @ asked < _ALONG * length * size or size == 0.0:
            return None
        part = min(1.0, size / length, self._reach / length)
        step = rotations.from_rotation_vector(way[3:] * (part / _METRES_PER_RADIAN))
        turn = rotations.normalize(rotations.multiply(step, pose[3:]))
        return np.concatenate([pose[:3] + part * way[:3], turn])

    def _behind(self, pose: Vector) -> Vector | None:
        """The farthest point of the newest part of the way that is within reach.

        What the arm has come back to is forgotten.
        """
        while self._points and _length(_way(pose, self._points[-1])) < _SPACING:
            self._points.pop()
        if self._points and _length(_way(pose, self._points[-1])) > _ELSEWHERE:
            self._points.clear()
        found: Vector | None = None
        farthest = 0.0
        for point in reversed(self._points):
            distance = _length(_way(pose, point))
            if found is not None and distance > self._reach:
                break
            if distance > farthest:
                found, farthest = point, distance
        return found


def _way(start: Vector, end: Vector) -> Vector:
    """From one pose (7,) to another, as a translation and a scaled rotation vector (6,) [m]."""
    return np.asarray(rotations.between(start, end) * _SCALE)


def _length(way: Vector) -> float:
    return math.hypot(*way)
