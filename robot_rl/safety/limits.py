"""Cartesian limits: from an action in [-1, 1] to a target pose that the arm may be given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations
from robot_rl.safety.way_back import WayBack

Vector = npt.NDArray[np.float64]


_ALWAYS_POSITIVE = (
    "max_tilt",
    "max_yaw",
    "max_lead_translation",
    "max_lead_rotation",
    "max_arm_speed",
    "max_arm_turning",
)
# What rounding makes of an angle at its limit [rad].
_SMALL_ANGLE = 1e-9


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


@dataclass(frozen=True, kw_only=True)
class PoseLimits:
    """Where a TCP may be, in the base frame, and how far its target may lead it.

    Attributes:
        workspace_low: Lowest TCP position (3,) [m].
        workspace_high: Highest TCP position (3,) [m].
        max_tilt: Largest angle between the tool's axis (its z) and the one of the reference [rad].
        max_yaw: Largest turn about the tool's axis, away from the reference [rad]; from pi on
            every turn is allowed.
        reference_orientation: Quaternion xyzw (4,) that tilt and yaw are measured from.
        max_lead_translation: Largest lead of the target over the measured pose, per axis [m].
            With a stiffness k this also bounds the contact force to k times the lead.
        max_lead_rotation: The same for the rotation angle [rad].
        max_force: Measured contact force [N] above which the arm may only back off; None for an
            arm that measures none.
        max_arm_speed: Largest speed that the arm itself can have, also when a person pushes it
            [m/s]. A measured pose that is farther from the one before is not believed.
        max_arm_turning: The same for its rotation [rad/s].
    """

    workspace_low: tuple[float, float, float]
    workspace_high: tuple[float, float, float]
    max_tilt: float = 0.6
    max_yaw: float = math.pi
    reference_orientation: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    max_lead_translation: float = 0.02
    max_lead_rotation: float = 0.15
    max_force: float | None = 60.0
    max_arm_speed: float = 1.5
    max_arm_turning: float = 6.0

    def __post_init__(self) -> None:
        """Refuse limits that could not hold.

        Raises:
            RobotRLError: Names the limit.
        """
        check_workspace(self.workspace_low, self.workspace_high)
        for name in _ALWAYS_POSITIVE:
            check_positive(name, getattr(self, name))
        if self.max_force is not None:
            check_positive("max_force", self.max_force)
        norm = math.sqrt(sum(value * value for value in self.reference_orientation))
        if len(self.reference_orientation) != 4 or not abs(norm - 1.0) < 1e-3:
            raise RobotRLError(
                "limit 'reference_orientation' is not a rotation",
                got=self.reference_orientation,
                expected="a quaternion xyzw of length 1",
            )

    def admitted(self, anchor: Vector, wanted: Vector) -> tuple[Vector, frozenset[str]]:
        """The part of the way from `anchor` to `wanted` that no limit forbids.

        Where the anchor is outside a limit, that limit is as wide as the anchor is out: what leads
        back is followed, what leads further out is not, and nothing has to move.

        Args:
            anchor: Where the target is (7,).
            wanted: Where it is asked to go (7,).

        Returns:
            The pose (7,), and which of `workspace`, `tilt` and `yaw` kept it from `wanted`.
        """
        low = np.minimum(self.workspace_low, anchor[:3])
        high = np.maximum(self.workspace_high, anchor[:3])
        position = np.clip(wanted[:3], low, high)
        changed = {"workspace"} if (position != wanted[:3]).any() else set()
        swing, yaw = self.tilt_and_yaw(wanted[3:])
        anchor_swing, anchor_yaw = self.tilt_and_yaw(anchor[3:])
        tilt = math.hypot(*swing)
        most = max(self.max_tilt, math.hypot(*anchor_swing))
        if tilt > most + _SMALL_ANGLE:
            swing = swing * (most / tilt)
            changed.add("tilt")
        if self.max_yaw < math.pi:
            # Unwrapped, so that the nearer end of the range is the one on the anchor's side.
            yaw = anchor_yaw + _wrapped(yaw - anchor_yaw)
            nearer = min(max(yaw, min(-self.max_yaw, anchor_yaw)), max(self.max_yaw, anchor_yaw))
            if abs(nearer - yaw) > _SMALL_ANGLE:
                yaw = nearer
                changed.add("yaw")
        if not changed - {"workspace"}:
            return np.concatenate([position, wanted[3:]]), frozenset(changed)
        tilted = rotations.from_rotation_vector(np.array([swing[0], swing[1], 0.0]))
        turn = rotations.multiply(tilted, rotations.about_z(yaw))
        orientation = rotations.normalize(rotations.multiply(self.reference, turn))
        return np.concatenate([position, orientation]), frozenset(changed)

    def tilt_and_yaw(self, orientation: Vector) -> tuple[Vector, float]:
        """Split an orientation (4,) into the tilt of the tool's axis and the yaw about it.

        Returns:
            The tilt as a rotation vector (2,) about the reference's x and y [rad], whose length is
            the angle between the two axes; and the yaw in (-pi, pi] [rad].
        """
        turn = rotations.multiply(rotations.conjugate(self.reference), orientation)
        yaw = _wrapped(2.0 * math.atan2(turn[2], turn[3]))
        tilt = rotations.multiply(turn, rotations.about_z(-yaw))
        return rotations.to_rotation_vector(tilt)[:2], yaw

    @cached_property
    def reference(self) -> Vector:
        """The reference orientation as a unit quaternion (4,)."""
        return rotations.normalize(np.array(self.reference_orientation, np.float64))

    def led(self, target: Vector, measured: Vector) -> tuple[Vector, bool]:
        """A target (7,), pulled to within the largest lead over `measured` (7,); whether it was."""
        lead = self.max_lead_translation
        position = np.clip(target[:3], measured[:3] - lead, measured[:3] + lead)
        turn, turned = within_angle(target[3:], measured[3:], self.max_lead_rotation)
        pulled = turned or bool((position != target[:3]).any())
        return np.concatenate([position, rotations.normalize(turn)]), pulled


@dataclass(frozen=True, kw_only=True)
class CartesianLimits(PoseLimits):
    """Limits of Cartesian motion, in the base frame.

    Attributes:
        translation_step: Motion of the target for an action of 1 [m per control period].
        rotation_step: Rotation of the target for an action of 1 [rad per control period].
    """

    translation_step: float
    rotation_step: float

    def __post_init__(self) -> None:
        """See `PoseLimits`."""
        super().__post_init__()
        check_positive("translation_step", self.translation_step)
        check_positive("rotation_step", self.rotation_step)


class CartesianLimiter:
    """Integrates actions into a target pose and keeps it within the limits.

    The target leads the measured pose by a bounded amount (anti-wind-up): an arm that is held
    back by contact does not store up motion that would be released at once.

    Args:
        limits: See `CartesianLimits`.
    """

    def __init__(self, limits: CartesianLimits) -> None:
        self.limits = limits
        self.counts = {"workspace": 0, "tilt": 0, "yaw": 0, "force": 0}
        middle = 0.5 * (np.array(limits.workspace_low) + np.array(limits.workspace_high))
        self.target = np.concatenate([middle, limits.reference])
        self._way = WayBack(limits.max_lead_translation)

    def reset(self, measured_pose: Vector) -> Vector:
        """Hold: the target becomes the measured pose (7,)."""
        self.target = np.array(measured_pose, np.float64)
        return self.target

    def advance(
        self, motion: Vector, measured_pose: Vector, measured_force: Vector | None
    ) -> tuple[Vector, bool]:
        """Apply one action's motion to the target.

        Args:
            motion: Translation and rotation vector (6,) in [-1, 1], in the base frame.
            measured_pose: TCP pose (7,).
            measured_force: Contact force (3,) on the tool [N]; None where it is not measured.

        Returns:
            The new target pose (7,), and whether a safety limit changed what was asked for; the
            bounded lead is part of normal motion in contact and does not count. Above the force
            limit the target is the measured pose, or leads back along the way that the arm came.

        Raises:
            MeasurementRefused: A measurement is not finite, or the force is limited and not
                measured; the target stays as it was.
        """
        limits, force, most = self.limits, measured_force, self.limits.max_force
        unknown = most is not None if force is None else not np.isfinite(force).all()
        if unknown or not np.isfinite(measured_pose).all():
            raise MeasurementRefused(
                "the measured pose or force is not finite",
                got=f"pose {np.asarray(measured_pose).tolist()}, force {force}",
                expected="finite numbers",
                hint="check the robot's state; the target stays as it was",
            )
        wanted = np.empty(7)
        wanted[:3] = self.target[:3] + limits.translation_step * motion[:3]
        turn = rotations.from_rotation_vector(limits.rotation_step * motion[3:6])
        wanted[3:] = rotations.multiply(turn, self.target[3:])
        if force is not None and most is not None and math.hypot(*force) > most:
            self.counts["force"] += 1
            back = self._way.back(measured_pose, wanted, force)
            self.target, _ = limits.led(measured_pose if back is None else back, measured_pose)
            return self.target, True
        self._way.came_by(measured_pose)
        admitted, changed = limits.admitted(self.target, wanted)
        for name in changed:
            self.counts[name] += 1
        self.target, _ = limits.led(admitted, measured_pose)
        return self.target, bool(changed)


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


def _wrapped(angle: float) -> float:
    """The same angle in (-pi, pi]."""
    return math.pi - (math.pi - angle) % math.tau
