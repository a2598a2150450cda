"""Segments of a reset path: straight tool motions and joint motions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from robot_rl.safety import rotations
from robot_rl.safety.limits import PoseLimits, Vector, bounded, check_positive

# Maps joint positions (n,) [rad] to the flange pose (7,) in the base frame.
ForwardKinematics = Callable[[Vector], Vector]

# Duration of the speed and acceleration ramps [s].
_SPEED_RAMP, _ACCELERATION_RAMP = 0.4, 0.2
# Points of a joint motion that are checked against the limits in advance.
_SAMPLES = 32
# Largest change of the tool's pose on the flange before the kinematics count as wrong [m, rad]. One
# arm's kinematics are some millimetres off its data sheet.
_NOT_RIGID = (0.02, 0.1)


@dataclass(frozen=True)
class ResetOptions:
    """Options of the reset motion."""

    # Along the tool's -z axis.
    retract_distance: float = bounded(0.08, "how far the tool is drawn back first [m]", 1e-3, 0.5)
    speed_translation: float = bounded(0.08, "largest speed of a reset [m/s]", 1e-3, 0.25)
    speed_rotation: float = bounded(0.4, "largest speed of its rotation [rad/s]", 1e-3, 1.0)
    speed_joints: float = bounded(0.4, "the same of a joint, to reset.joints [rad/s]", 1e-2, 1.5)
    tolerance_translation: float = bounded(0.005, "distance that counts as there [m]", 5e-4, 0.1)
    tolerance_rotation: float = bounded(0.05, "angle that counts as there [rad]", 5e-3, 0.5)
    tolerance_joints: float = bounded(0.05, "the same of a joint, to reset.joints [rad]", 5e-3, 0.5)

    pause_s: float = bounded(1.0, "pause before a second attempt [s]", 0.01, 10.0)
    # Added to twice the duration at full speed.
    patience_s: float = bounded(3.0, "patience with a part of the way [s]", 0.1, 60.0)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_positive(f"limit {name!r}", value)


def share_of_way(elapsed: float, seconds: float) -> float:
    """Return the fraction of a rest-to-rest motion that is done after `elapsed` seconds.

    The motion takes `seconds` at its largest speed v. The acceleration is at most v / 0.4 s and the
    jerk at most 2 v / (0.4 s 0.2 s): a constant speed, averaged over both ramps, ending 0.6 s
    later.
    """
    spans = (max(seconds, 1e-3), _SPEED_RAMP, _ACCELERATION_RAMP)
    if elapsed >= sum(spans):
        return 1.0
    total = 0.0
    for chosen in itertools.product((False, True), repeat=3):
        since = elapsed - sum(itertools.compress(spans, chosen))
        total += (-1) ** sum(chosen) * max(since, 0.0) ** 3
    return min(max(total / (6.0 * math.prod(spans)), 0.0), 1.0)


@dataclass(frozen=True, eq=False)
class StraightWay:
    """A straight segment from one pose (7,) to another."""

    start: Vector
    end: Vector

    def seconds(self, options: ResetOptions) -> float:
        """Return the duration at the largest speed [s]."""
        distance, angle = rotations.apart(self.start, self.end)
        return max(distance / options.speed_translation, angle / options.speed_rotation)

    def at(self, share: float, pose: Vector, joints: Vector) -> Vector:
        """Return the pose (7,) at fraction `share`; measured `pose` and `joints` are not used."""
        way = share * rotations.between(self.start, self.end)
        turn = rotations.from_rotation_vector(way[3:])
        return _unit(rotations.displaced(self.start, way[:3], turn))

    def left(self, pose: Vector, joints: Vector, options: ResetOptions) -> str | None:
        """Return the remaining motion as text, or None at the end."""
        distance, angle = rotations.apart(pose, self.end)
        if distance <= options.tolerance_translation and angle <= options.tolerance_rotation:
            return None
        return f"{1e3 * distance:.0f} mm and {angle:.2f} rad are left"


@dataclass(frozen=True, eq=False)
class JointWay:
    """A segment on which all joints (n,) move together.

    The tool's pose on the flange is computed from each measurement, so an unknown tool, or an arm
    that differs from its data sheet, does not matter.
    """

    forward: ForwardKinematics
    start: Vector
    end: Vector
    tool: Vector  # the tool's pose (7,) on the flange at the start
    name: str  # name of the end
    is_last: bool  # whether all joints must arrive: an elbow follows slowly

    def seconds(self, options: ResetOptions) -> float:
        """Return the duration at the largest speed of the TCP or of a joint [s]."""
        joints = float(np.abs(self.end - self.start).max()) / options.speed_joints
        steps = (StraightWay(*ends).seconds(options) for ends in itertools.pairwise(self._poses))
        return max(joints, _SAMPLES * max(steps))

    def at(self, share: float, pose: Vector, joints: Vector) -> Vector:
        """Return the tool's pose (7,) with the joints at fraction `share`."""
        return self._pose(share, tool_pose(self.forward, pose, joints))

    def left(self, pose: Vector, joints: Vector, options: ResetOptions) -> str | None:
        """Return a joint that has not arrived (last segment only), else the tool's remainder."""
        away = _joint_away(self.end, joints, self.name, options)
        if self.is_last and away is not None:
            return away
        return StraightWay(pose, self.at(1.0, pose, joints)).left(pose, joints, options)

    def beyond(self, limits: PoseLimits, options: ResetOptions) -> str | None:
        """Return where the path leaves a limit, or goes farther out than the arm is; else None."""
        poses = self._poses
        for anchor, pose in [*((poses[0], pose) for pose in poses), (limits.middle, poses[-1])]:
            admitted, changed = limits.admitted(anchor, pose)
            if StraightWay(admitted, pose).left(admitted, self.end, options) is not None:
                return (
                    f"the way to {self.name} leads out of the limits ({', '.join(sorted(changed))})"
                    f" at {[round(float(value), 3) for value in pose[:3]]} m; move the arm, teach"
                    " another way, or widen the limits"
                )
        return None

    def problem(self, pose: Vector, joints: Vector) -> str | None:
        """Return how the arm's motion contradicts its kinematics, or None."""
        distance, angle = rotations.apart(tool_pose(self.forward, pose, joints), self.tool)
        if distance <= _NOT_RIGID[0] and angle <= _NOT_RIGID[1]:
            return None
        return (
            f"the arm does not move as its kinematics say, by {1e3 * distance:.0f} mm and"
            f" {angle:.2f} rad; see that its driver has the right type of arm"
        )

    @cached_property
    def _poses(self) -> list[Vector]:
        return [self._pose(share, self.tool) for share in np.linspace(0.0, 1.0, _SAMPLES + 1)]

    def _pose(self, share: float, tool: Vector) -> Vector:
        flange = self.forward(self.start + share * (self.end - self.start))
        return _unit(rotations.compose(flange, tool))


@dataclass(frozen=True, eq=False)
class JointTargetWay:
    """A segment between joint positions (n,) for an arm with joint targets."""

    start: Vector
    end: Vector
    name: str  # name of the end

    def seconds(self, options: ResetOptions) -> float:
        """Return the duration at the largest joint speed [s]."""
        return float(np.abs(self.end - self.start).max()) / options.speed_joints

    def at(self, share: float, place: Vector, joints: Vector) -> Vector:
        """Return the joint targets (n,) at fraction `share`."""
        return self.start + share * (self.end - self.start)

    def left(self, place: Vector, joints: Vector, options: ResetOptions) -> str | None:
        """Return the joint that has not arrived yet, or None."""
        return _joint_away(self.end, joints, self.name, options)


def tool_pose(forward: ForwardKinematics, pose: Vector, joints: Vector) -> Vector:
    """Return the tool's pose (7,) on the flange, from a measured pose and joints."""
    return rotations.relative(forward(joints), pose)


def _joint_away(end: Vector, joints: Vector, name: str, options: ResetOptions) -> str | None:
    away = np.abs(end - joints)
    joint = int(np.argmax(away))
    if away[joint] <= options.tolerance_joints:
        return None
    return f"joint {joint} is {away[joint]:.2f} rad away from {name}"


def _unit(pose: Vector) -> Vector:
    return np.concatenate([pose[:3], rotations.normalize(pose[3:])])
