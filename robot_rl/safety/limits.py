"""Cartesian limits: from an action in [-1, 1] to a target pose that the arm may be given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robot_rl.env import rotations
from robot_rl.errors import RobotRLError

Vector = npt.NDArray[np.float64]


class ActionRefused(RobotRLError):
    """An action that must not reach the robot: wrong shape, not finite, or out of range."""


class MeasurementRefused(RobotRLError):
    """A measured pose or force that no limit can be computed from: it is not finite."""


def check_action(action: npt.ArrayLike, names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Check an action before anything is sent.

    Args:
        action: Shape (d,), each in [-1, 1].
        names: The d names of the action columns.

    Returns:
        The action as float32 (d,).

    Raises:
        ActionRefused: Names the column, what it got and what it expected.
    """
    expected = f"numbers of shape ({len(names)},): {', '.join(names)}"
    try:
        values = np.asarray(action)
    except ValueError as error:  # a list of lists of several lengths
        raise ActionRefused("the action is no array", got=action, expected=expected) from error
    if values.shape != (len(names),) or values.dtype.kind not in "fiu":
        raise ActionRefused(
            "the action has another shape or dtype",
            got=f"{values.dtype} {values.shape}",
            expected=expected,
        )
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


@dataclass(frozen=True)
class CartesianLimits:
    """Limits of Cartesian motion, in the base frame.

    Attributes:
        workspace_low: Lowest TCP position (3,) [m].
        workspace_high: Highest TCP position (3,) [m].
        max_tilt: Largest angle between the TCP and its reference orientation [rad].
        translation_step: Motion of the target for an action of 1 [m per control period].
        rotation_step: Rotation of the target for an action of 1 [rad per control period].
        max_lead_translation: Largest lead of the target over the measured pose, per axis [m].
            With a stiffness k this also bounds the contact force to k times the lead.
        max_lead_rotation: The same for the rotation angle [rad].
        max_force: Measured contact force at which the arm holds instead of moving on [N]; None for
            an arm that measures none.
    """

    workspace_low: tuple[float, float, float]
    workspace_high: tuple[float, float, float]
    max_tilt: float
    translation_step: float
    rotation_step: float
    max_lead_translation: float
    max_lead_rotation: float
    max_force: float | None

    def __post_init__(self) -> None:
        """Refuse limits that could not hold.

        Raises:
            RobotRLError: Names the limit.
        """
        check_workspace(self.workspace_low, self.workspace_high)
        for name in (
            "max_tilt",
            "translation_step",
            "rotation_step",
            "max_lead_translation",
            "max_lead_rotation",
        ):
            check_positive(name, getattr(self, name))
        if self.max_force is not None:
            check_positive("max_force", self.max_force)


class CartesianLimiter:
    """Integrates actions into a target pose and keeps it within the limits.

    The target leads the measured pose by a bounded amount (anti-wind-up): an arm that is held
    back by contact does not store up motion that would be released at once.

    Args:
        limits: See `CartesianLimits`.
        reference_orientation: Quaternion xyzw (4,) that `max_tilt` is measured from.
    """

    def __init__(self, limits: CartesianLimits, reference_orientation: Vector) -> None:
        """See the class."""
        self.limits = limits
        self.counts = {"workspace": 0, "tilt": 0, "force": 0}
        self._reference = rotations.normalize(np.asarray(reference_orientation, np.float64))
        self._low = np.array(limits.workspace_low)
        self._high = np.array(limits.workspace_high)
        self.target = np.concatenate([0.5 * (self._low + self._high), self._reference])

    def reset(self, measured_pose: Vector) -> Vector:
        """Hold: the target becomes the measured pose (7,)."""
        self.target = np.array(measured_pose, np.float64)
        return self.target

    def advance(
        self, motion: Vector, measured_pose: Vector, measured_force: float | None
    ) -> tuple[Vector, bool]:
        """Apply one action's motion to the target.

        Args:
            motion: Translation and rotation vector (6,) in [-1, 1], in the base frame.
            measured_pose: TCP pose (7,).
            measured_force: Norm of the contact force [N]; None where it is not measured.

        Returns:
            The new target pose (7,), and whether a safety limit changed what was asked for;
            the bounded lead is part of normal motion in contact and does not count. Above the
            force limit the target is the measured pose, even where that is outside the workspace.

        Raises:
            MeasurementRefused: A measurement is not finite, or the force is limited and not
                measured; the target stays as it was.
        """
        limits, force, most = self.limits, measured_force, self.limits.max_force
        unknown = most is not None if force is None else not math.isfinite(force)
        if unknown or not np.isfinite(measured_pose).all():
            raise MeasurementRefused(
                "the measured pose or force is not finite",
                got=f"pose {np.asarray(measured_pose).tolist()}, force {force}",
                expected="finite numbers",
                hint="check the robot's state; the target stays as it was",
            )
        if force is not None and most is not None and force > most:
            self.counts["force"] += 1
            return self.reset(measured_pose), True
        lead = limits.max_lead_translation
        position = self.target[:3] + limits.translation_step * motion[:3]
        position = np.clip(position, measured_pose[:3] - lead, measured_pose[:3] + lead)
        inside = np.clip(position, self._low, self._high)
        outside = bool((inside != position).any())
        self.counts["workspace"] += outside

        turn = rotations.from_rotation_vector(limits.rotation_step * motion[3:6])
        orientation = rotations.multiply(turn, self.target[3:])
        orientation, _ = within_angle(orientation, measured_pose[3:], limits.max_lead_rotation)
        orientation, tilted = within_angle(orientation, self._reference, limits.max_tilt)
        self.counts["tilt"] += tilted
        self.target = np.concatenate([inside, rotations.normalize(orientation)])
        return self.target, outside or tilted


def check_workspace(low: Sequence[float], high: Sequence[float]) -> None:
    """Refuse corners that are no positions, or enclose nothing.

    Raises:
        RobotRLError: Names the corner or the axis.
    """
    for name, corner in (("workspace_low", low), ("workspace_high", high)):
        if len(corner) != 3 or not all(math.isfinite(value) for value in corner):
            raise RobotRLError(
                f"limit {name!r} is not a position", got=corner, expected="3 finite numbers [m]"
            )
    for least, most, axis in zip(low, high, "xyz", strict=True):
        if not least < most:
            raise RobotRLError(
                f"the workspace is empty along {axis}", got=(least, most), expected="low < high"
            )


def check_positive(name: str, value: float) -> None:
    """Refuse a limit that is not a finite number above zero.

    Raises:
        RobotRLError: Names the limit.
    """
    if not (math.isfinite(value) and value > 0.0):
        raise RobotRLError(
            f"limit {name!r} is not a positive number",
            got=value,
            expected="a finite number > 0",
        )


def within_angle(orientation: Vector, centre: Vector, max_angle: float) -> tuple[Vector, bool]:
    """Pull an orientation back to at most `max_angle` from `centre`, along the shortest way.

    Returns:
        The orientation (4,), and whether it had been further away.
    """
    difference = rotations.to_rotation_vector(
        rotations.multiply(orientation, rotations.conjugate(centre))
    )
    angle = math.sqrt(float(difference @ difference))
    if angle <= max_angle:
        return orientation, False
    turn = rotations.from_rotation_vector(difference * (max_angle / angle))
    return rotations.multiply(turn, centre), True
