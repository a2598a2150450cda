"""Convert actions in [-1, 1] to allowed targets, and retreat from excess force."""

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

# Distance equivalent to a rotation of 1 rad [m].
_METRES_PER_RADIAN = 0.1
_SCALE = np.array([1.0] * 3 + [_METRES_PER_RADIAN] * 3)
# Distance between stored points [m], and how many are stored.
_SPACING = 0.001
_POINTS = 200
# An arm suddenly this far away did not follow the path [m].
_ELSEWHERE = 0.1
# Cosine of the largest angle between a command and the path back: 60 degrees.
_ALONG = 0.5


def check_action(action: npt.ArrayLike, names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Check an action (d,) in [-1, 1] with columns `names`, and return it as float32.

    `ActionRefused` reports the column, the value and what was expected.
    """
    expected = f"numbers of shape ({len(names)},): {', '.join(names)}"
    try:
        values = np.asarray(action)
    except ValueError as error:  # nested lists of different lengths
        raise ActionRefused("the action is no array", got=action, expected=expected) from error
    if values.shape != (len(names),) or values.dtype.kind not in "fiu":
        problem = "the action has another shape or dtype"
        raise ActionRefused(problem, got=f"{values.dtype} {values.shape}", expected=expected)
    if values.dtype.kind != "f":  # abs() of the smallest integer overflows
        values = values.astype(np.float64)
    # One test for range and NaN: comparisons with NaN are false.
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
    """Past poses with an allowed force; an arm retreats along them by up to `reach` [m]."""

    def __init__(self, reach: float) -> None:
        self._reach = reach
        self._points: deque[Vector] = deque(maxlen=_POINTS)

    @property
    def is_known(self) -> bool:
        """Whether a path back is known."""
        return bool(self._points)

    def forget(self) -> None:
        """Clear the path."""
        self._points.clear()

    def record(self, pose: Vector) -> None:
        """Store a pose (7,) with an allowed contact force."""
        if self._points:
            apart = _length(_way(self._points[-1], pose))
            if apart > _ELSEWHERE:
                self._points.clear()
            elif apart < _SPACING:
                return
        self._points.append(pose.copy())

    def target(self, pose: Vector, wanted: Vector, force: Vector) -> Vector | None:
        """Return the allowed target of an arm at `pose` (7,) that presses too hard.

        Args:
            pose: The measured pose.
            wanted: The commanded pose (7,).
            force: Contact force on the tool (3,) [N].

        Returns:
            A pose (7,) on the path back, no farther away than `wanted`. None if the command leads
            elsewhere. Without a known path the arm may move in the direction of the force.
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
        """Return the farthest stored pose within reach along the latest part of the path.

        Drops poses that the arm has already returned to.
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
    """Return the motion between poses (7,): translation and scaled rotation vector (6,) [m]."""
    return np.asarray(rotations.between(start, end) * _SCALE)


def _length(way: Vector) -> float:
    return math.hypot(*way)


class ActionLimiter:
    """Integrates actions into a target (pose or joint positions) within the limits.

    The target leads the measured place by a bounded amount (anti-wind-up), so an arm blocked by
    contact does not build up motion that is released suddenly.

    Attributes:
        target: A pose (7,), or joint positions (n,) [rad].
        straying: Detects an arm that moves away from where the actions lead.
    """

    def __init__(self, limits: CartesianLimits | JointActionLimits) -> None:
        self.limits = limits
        self.straying = Straying(limits)
        self.target = self._asked = limits.middle.copy()
        self._retreat = retreat_path(limits)

    def reset(self, measured: Vector) -> Vector:
        """Hold: set the target to the measured place."""
        self.target = np.array(measured, np.float64)
        self._asked = self.target
        self.straying.ask(self._asked, forget=True)
        return self.target

    def advance(
        self, motion: Vector, measured: Vector, measured_force: Vector | None
    ) -> tuple[Vector, bool]:
        """Apply one action's motion to the target.

        Args:
            motion: In [-1, 1]: translation and rotation vector (6,) in the base frame, or one
                number per joint (n,).
            measured: TCP pose (7,), or joint positions (n,).
            measured_force: Contact force (3,) on the tool [N]; None if not measured.

        Returns:
            The new target, and whether a safety limit changed the request. The bounded lead is
            normal in contact and does not count. Above the force limit the target is the measured
            place, or a pose on the path back.

        Raises:
            MeasurementRefused: The measured place is impossible, or the force is not finite, or it
                is limited but not measured. The target is unchanged.
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
    """Return the retreat path of an arm that presses too hard; None without a force limit."""
    return RetreatPath(limits.max_lead_translation) if isinstance(limits, PoseLimits) else None
