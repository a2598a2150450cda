"""From an action in [-1, 1] to an allowed target, and the retreat from too much force."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from robot_rl.safety import rotations
from robot_rl.safety.limits import (
    ActionRefused,
    CartesianLimits,
    JointActionLimits,
    JointRanges,
    PoseLimits,
    Vector,
)
from robot_rl.safety.measurement import Straying
from robot_rl.safety.state import MeasurementRefused

# A turn of 1 rad counts as much of a way as this [m].
_METRES_PER_RADIAN = 0.1
_SCALE = np.array([1.0] * 3 + [_METRES_PER_RADIAN] * 3)
# Distance between two points that are kept, and how many [m].
_SPACING = 0.001
_POINTS = 200
# An arm that is suddenly this far away did not come along the way [m].
_ELSEWHERE = 0.1
# Cosine of the largest angle between a command and the way back: 60 degrees.
_ALONG = 0.5


def check_action(action: npt.ArrayLike, names: Sequence[str]) -> npt.NDArray[np.float32]:
    """An action (d,) in [-1, 1], whose columns have these names, as float32, checked first.

    The `ActionRefused` names the column, what it got and what it expected.
    """
    expected = f"numbers of shape ({len(names)},): {', '.join(names)}"
    try:
        values = np.asarray(action)
    except ValueError as error:  # a list of lists of several lengths
        raise ActionRefused("the action is no array", got=action, expected=expected) from error
    if values.shape != (len(names),) or values.dtype.kind not in "fiu":
        problem = "the action has another shape or dtype"
        raise ActionRefused(problem, got=f"{values.dtype} {values.shape}", expected=expected)
    if values.dtype.kind != "f":  # the smallest integer of a dtype is its own absolute value
        values = values.astype(np.float64)
    # One fused test for the good case: comparisons with NaN are false.
    if not (np.abs(values) <= 1.0).all():
        column = int(np.argmin(np.abs(values) <= 1.0))
        raise ActionRefused(
            f"the action's column {names[column]!r} is not finite or out of range",
            got=values[column],
            expected="a number in [-1, 1]",
            hint="nothing was sent; the robot keeps its last target",
        )
    return values.astype(np.float32)


class RetreatPath:
    """The measured poses without too much force, along which an arm retreats by `reach` [m]."""

    def __init__(self, reach: float) -> None:
        self._reach = reach
        self._points: deque[Vector] = deque(maxlen=_POINTS)

    @property
    def is_known(self) -> bool:
        """Whether a way back is known."""
        return bool(self._points)

    def forget(self) -> None:
        """Forget the way."""
        self._points.clear()

    def record(self, pose: Vector) -> None:
        """Keep a pose (7,) at which the contact force is allowed."""
        if self._points:
            apart = _length(_way(self._points[-1], pose))
            if apart > _ELSEWHERE:
                self._points.clear()
            elif apart < _SPACING:
                return
        self._points.append(pose.copy())

    def target(self, pose: Vector, wanted: Vector, force: Vector) -> Vector | None:
        """The allowed target of an arm at `pose` (7,) that presses too hard.

        Args:
            pose: The measured pose.
            wanted: The commanded pose (7,).
            force: Contact force on the tool (3,) [N].

        Returns:
            A pose (7,) between the arm and where it came from, no further than `wanted` is; None
            for a command that leads elsewhere. Without a known path the arm may go where the force
            pushes it.
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
        """The farthest kept pose within reach, along the newest part of the path.

        Poses that the arm has come back to are dropped.
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


class ActionLimiter:
    """Integrates actions into a target and keeps it within the limits: a pose, or joint positions.

    The target leads what is measured by a bounded amount (anti-wind-up): an arm that is held back
    by contact does not store up motion that would be released at once.

    Attributes:
        target: The target: a pose (7,), or joint positions (n,) [rad].
        straying: Notices an arm that goes away from where the actions lead.
    """

    def __init__(self, limits: CartesianLimits | JointActionLimits) -> None:
        self.limits = limits
        self.straying = Straying(limits)
        self.target = self._asked = limits.middle.copy()
        self._retreat = retreat_path(limits)

    def reset(self, measured: Vector) -> Vector:
        """Hold: the target becomes what is measured."""
        self.target = np.array(measured, np.float64)
        self._asked = self.target
        self.straying.ask(self._asked, forget=True)
        return self.target

    def advance(
        self, motion: Vector, measured: Vector, measured_force: Vector | None
    ) -> tuple[Vector, bool]:
        """Apply one action's motion to the target.

        Args:
            motion: In [-1, 1]: translation and rotation vector (6,) in the base frame; or one
                number for each joint (n,).
            measured: TCP pose (7,), or joint positions (n,).
            measured_force: Contact force (3,) on the tool [N]; None where it is not measured.

        Returns:
            The new target, and whether a safety limit changed what was asked for; the bounded lead
            is part of normal motion in contact and does not count. Above the force limit the target
            is what is measured, or leads back along the way that the arm came.

        Raises:
            MeasurementRefused: No arm can be where it is measured, or the force is not finite, or
                is limited and not measured; the target stays as it was.
        """
        limits, force, most = self.limits, measured_force, self.limits.max_force
        limits.check_place(measured)
        if most is not None if force is None else not np.isfinite(force).all():
            raise MeasurementRefused(
                "the measured force of the arm is not finite",
                got=f"force {force}",
                expected="finite numbers",
                hint="check the robot's state; the target stays as it was",
            )
        wanted = limits.moved(self.target, motion)
        self._asked = limits.moved(self._asked, motion)
        self.straying.ask(self._asked)
        if self._retreat is not None:
            if force is not None and most is not None and math.hypot(*force) > most:
                back = self._retreat.target(measured, wanted, force)
                self.target, _ = limits.led(measured if back is None else back, measured)
                return self.target, True
            self._retreat.record(measured)
        admitted, changed = limits.admitted(self.target, wanted)
        self.target, _ = limits.led(admitted, measured)
        return self.target, bool(changed)


def retreat_path(limits: PoseLimits | JointRanges) -> RetreatPath | None:
    """The way back of an arm that presses too hard; None where no force is limited."""
    return RetreatPath(limits.max_lead_translation) if isinstance(limits, PoseLimits) else None
