"""Limits on an arm's place and motion, for poses and for joint positions.

Both kinds share one interface for the guard and the limiter. A place is a pose (7,) in `PoseLimits`
and joint positions (n,) [rad] in `JointRanges`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError, did_you_mean
from robot_rl.safety import rotations
from robot_rl.safety.commands import checked_joints, checked_pose
from robot_rl.safety.rotations import Vector as Vector
from robot_rl.safety.state import ArmState, check_numbers, check_pose

Compliance = Literal["impedance", "force_mode", "position"]

# Rounding error of an angle at its limit [rad].
_SMALL_ANGLE = 1e-9
# No arm reaches farther [m]; larger numbers are in millimetres.
_FARTHEST = 10.0
MOST_TURNED = 1e3  # no joint turns farther [rad]
# Largest sensible target steps [m, rad].
_LONGEST_STEP = {"translation_step": 0.2, "rotation_step": 1.5}
# Limits that may be None, and limits with separate checks. All others are positive numbers.
_OPTIONAL = ("max_force", "max_torque")
_NUMBERS_OF_JOINTS = ("joint_low", "joint_high", "step")
_NO_POSITIVE_NUMBERS = (
    *("workspace_low", "workspace_high", "reference_orientation"),
    *("joint_low", "joint_high", "joint_margin"),
)


class ActionRefused(RobotRLError):
    """An action was rejected: wrong shape, not finite, or out of range."""


def bounded(default: float, description: str, low: float, high: float) -> Any:
    """Return a dataclass field that is also a node parameter with this description and range."""
    metadata = {"description": description, "low": low, "high": high}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class PoseLimits:
    """Workspace limits of a TCP in the base frame, and the lead of its target."""

    place_name: ClassVar[str] = "pose"
    # How far the arm may drift from the commanded pose, pushed or not, and the measurement noise of
    # an arm at rest (2,) [m, rad].
    strayed: ClassVar[Vector] = np.array([0.07, 0.5])
    noise: ClassVar[Vector] = np.array([0.002, 0.02])
    # A holding arm's target yields to a push this far beyond the lead.
    unpushed: ClassVar[Vector] = np.array([0.005, 0.04])

    workspace_low: tuple[float, float, float]  # lowest TCP position [m]
    workspace_high: tuple[float, float, float]  # highest TCP position [m]
    max_tilt: float = bounded(0.6, "largest angle of tool to reference axis, z [rad]", 0.01, 3.1416)
    # Relative to the reference.
    max_yaw: float = bounded(math.pi, "turn about the tool's axis; pi: any [rad]", 0.01, 3.1416)
    reference_orientation: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)  # xyzw
    # Relative to the measured pose. With stiffness k this also bounds the contact force to k times
    # the lead.
    max_lead_translation: float = bounded(0.02, "lead of the target per axis [m]", 1e-3, 0.2)
    max_lead_rotation: float = bounded(0.15, "lead of its rotation [rad]", 1e-3, 1.5)
    # Above this the arm may only back off. None if the arm measures no force.
    max_force: float | None = bounded(60.0, "force to yield at [N]; 0: unmeasured", 0.0, 500.0)
    # Includes pushes by a person. A faster change of the measured pose is treated as a fault.
    max_arm_speed: float = bounded(1.5, "fastest the arm can be, pushed or not [m/s]", 0.01, 10.0)
    max_arm_turning: float = bounded(6.0, "the same for its rotation [rad/s]", 0.01, 60.0)

    def __post_init__(self) -> None:
        check_workspace(self.workspace_low, self.workspace_high)
        for name in (each.name for each in fields(self)):
            absent = name in _OPTIONAL and getattr(self, name) is None
            if name not in _NO_POSITIVE_NUMBERS and not absent:
                check_positive(f"limit {name!r}", getattr(self, name))
        norm = math.sqrt(sum(value * value for value in self.reference_orientation))
        if len(self.reference_orientation) != 4 or not abs(norm - 1.0) < 1e-3:
            raise RobotRLError(
                "limit 'reference_orientation' is not a rotation",
                got=self.reference_orientation,
                expected="a quaternion xyzw of length 1",
            )

    def check_place(self, pose: Vector) -> None:
        """Raise `MeasurementRefused` if a measured pose (7,) is impossible."""
        check_pose(pose, "the measured pose")

    def admitted(self, anchor: Vector, wanted: Vector) -> tuple[Vector, frozenset[str]]:
        """Clamp the motion from pose `anchor` (7,) to `wanted` (7,) to the limits.

        If the anchor is outside a limit, that limit widens to the anchor: motion back inside is
        allowed, motion further out is not, and no motion is forced.

        Returns the pose (7,), and which of `workspace`, `tilt` and `yaw` clamped it.
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
            # Unwrap so that yaw is clamped to the end of the range on the anchor's side.
            yaw = anchor_yaw + rotations.wrapped(yaw - anchor_yaw)
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

    def check_inside(self, name: str, pose: Vector, slack: float = 0.0) -> None:
        """Raise `RobotRLError` if a pose (7,) exceeds a limit by more than `slack` [m, rad]."""
        inside, changed = self.admitted(self.middle, pose)
        if changed and max(self.apart(inside, pose)) > slack:
            tilt, yaw = self.tilt_and_yaw(pose[3:])
            low, high = list(self.workspace_low), list(self.workspace_high)
            parts = {  # got, expected
                "workspace": (f"{_rounded(pose[:3])} m", f"within {low} to {high} m"),
                "tilt": (f"{math.hypot(*tilt):.2f} rad", f"at most {self.max_tilt:g} rad"),
                "yaw": (f"{yaw:.2f} rad", f"at most {self.max_yaw:g} rad"),
            }
            got, expected = zip(*(parts[part] for part in sorted(changed)), strict=True)
            raise RobotRLError(
                f"{name} is outside the limits of {' and '.join(sorted(changed))}",
                got=", ".join(got),
                expected=", ".join(expected),
                hint="give metres and xyzw; robot-rl teach prints where a guided arm is",
            )

    def tilt_and_yaw(self, orientation: Vector) -> tuple[Vector, float]:
        """Split an orientation (4,) into the tilt of the tool's axis and the yaw about it.

        The tilt is a rotation vector (2,) about the reference's x and y [rad], whose length is the
        angle between the two axes; the yaw is in (-pi, pi] [rad].
        """
        turn = rotations.multiply(rotations.conjugate(self.reference), orientation)
        yaw = rotations.wrapped(2.0 * math.atan2(turn[2], turn[3]))
        tilt = rotations.multiply(turn, rotations.about_z(-yaw))
        return rotations.to_rotation_vector(tilt)[:2], yaw

    @cached_property
    def reference(self) -> Vector:
        """The reference orientation as a unit quaternion (4,)."""
        return rotations.normalize(np.array(self.reference_orientation, np.float64))

    @cached_property
    def middle(self) -> Vector:
        """The pose (7,) at the centre of the workspace, with the reference orientation."""
        centre = 0.5 * (np.array(self.workspace_low) + np.array(self.workspace_high))
        return np.concatenate([centre, self.reference])

    def led(
        self, target: Vector, measured: Vector, slack: Vector | None = None
    ) -> tuple[Vector, bool]:
        """Clamp a target (7,) to lead + `slack` (2,) of `measured`; also return whether clamped."""
        lead, lead_turn = self._lead if slack is None else self._lead + slack
        position = np.clip(target[:3], measured[:3] - lead, measured[:3] + lead)
        turn, turned = rotations.within_angle(target[3:], measured[3:], float(lead_turn))
        pulled = turned or bool((position != target[:3]).any())
        return np.concatenate([position, rotations.normalize(turn)]), pulled

    @cached_property
    def _lead(self) -> Vector:
        return np.array([self.max_lead_translation, self.max_lead_rotation])

    def median(self, places: Vector) -> Vector:
        """Return the median pose (7,) of several nearby poses (k, 7)."""
        pose: Vector = np.median(rotations.continuous(places), axis=0)
        pose[3:] = rotations.normalize(pose[3:])
        return pose

    @cached_property
    def fastest(self) -> Vector:
        """Largest possible speed of the arm, pushed or not (2,) [m/s, rad/s]."""
        return np.array([self.max_arm_speed, self.max_arm_turning])

    def between(self, start: Vector, end: Vector) -> Vector:
        """Return the motion (6,) between poses: translation [m] and rotation vector [rad]."""
        return rotations.between(start, end)

    def apart(self, start: Vector, end: Vector) -> Vector:
        """Return the distance and angle between two poses (2,) [m, rad]."""
        return np.array(rotations.apart(start, end))

    def towards(self, start: Vector, end: Vector, most: Vector) -> tuple[Vector, bool]:
        """Move at most `most` (2,) [m, rad] towards `end`; also return whether it stops short."""
        way = end[:3] - start[:3]
        length = math.hypot(*way)
        short = length > most[0]
        position = start[:3] + way * (most[0] / length) if short else end[:3]
        turn, turns_less = rotations.within_angle(end[3:], start[3:], float(most[1]))
        return np.concatenate([position, turn]), short or turns_less

    def distance_in_words(self, start: Vector, end: Vector) -> str:
        """Return the distance between two poses as text."""
        distance, angle = rotations.apart(start, end)
        return f"{1e3 * distance:.0f} mm and {math.degrees(angle):.0f} degrees"

    def shown(self, *poses: Vector) -> str:
        """Return the positions as text, in order."""
        return " to ".join(_rounded(pose[:3]) for pose in poses) + " m"

    def jump_in_words(self, part: int, last: Vector, pose: Vector) -> tuple[str, str, str, str]:
        """Return a jump's name, size, ends and top speed; `part` 0 is position, 1 orientation."""
        distance, angle = rotations.apart(last, pose)
        if part == 0:
            fastest = f"{self.max_arm_speed:g} m/s"
            return "position", f"{1e3 * distance:.0f} mm", self.shown(last, pose), fastest
        ends = f"{_rounded(last[3:])} to {_rounded(pose[3:])}"
        turned = f"{math.degrees(angle):.0f} degrees"
        return "orientation", turned, ends, f"{self.max_arm_turning:g} rad/s"


@dataclass(frozen=True, kw_only=True)
class CartesianLimits(PoseLimits):
    """Limits of Cartesian actions, in the base frame."""

    translation_step: float  # motion of the target for an action of 1 [m per control period]
    rotation_step: float  # rotation of the target for an action of 1 [rad per control period]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in _LONGEST_STEP.items():
            if (step := getattr(self, name)) > most:
                raise RobotRLError(f"limit {name!r} is too large", got=step, expected=f"<= {most}")

    def moved(self, target: Vector, motion: Vector) -> Vector:
        """Return the target (7,) moved by an action's motion (6,) in [-1, 1]."""
        turn = rotations.from_rotation_vector(self.rotation_step * motion[3:6])
        return rotations.displaced(target, self.translation_step * motion[:3], turn)


@dataclass(frozen=True, kw_only=True)
class ArmLimits(PoseLimits):
    """Limits of one arm in its base frame, enforced by its node."""

    max_step_translation: float = bounded(0.03, "way of the target in one command [m]", 1e-3, 0.2)
    max_step_rotation: float = bounded(0.15, "turn of the target in one command [rad]", 1e-3, 1.5)
    max_speed_translation: float = bounded(0.25, "speed of the target [m/s]", 1e-3, 3.0)
    max_speed_rotation: float = bounded(1.0, "speed of its rotation [rad/s]", 1e-3, 10.0)
    # Like `max_force`, about the TCP.
    max_torque: float | None = bounded(15.0, "torque to yield at [Nm]; 0: unmeasured", 0.0, 100.0)
    joint_low: tuple[float, ...] = ()  # lowest positions (n,) [rad]; empty: up to the controller
    joint_high: tuple[float, ...] = ()  # highest joint positions (n,) [rad]
    joint_margin: float = bounded(0.05, "distance kept from the joints' limits [rad]", 0.0, 1.0)
    max_joint_speed: float = bounded(2.0, "largest speed of a joint [rad/s]", 0.01, 10.0)
    command_deadline: float = bounded(0.2, "time without a command until it holds [s]", 0.01, 2.0)
    # Also the longest silence of a client during its reset.
    max_stamp_age: float = bounded(0.5, "of a command's stamp to the clock here [s]", 0.01, 10.0)

    @classmethod
    def of_parameters(cls, given: Mapping[str, Any], **of_arm: Any) -> ArmLimits:
        """Build from the `limits.*` parameters of an arm's node; 0 means no force limit."""
        values = {key: given[key] or None for key in _OPTIONAL if key in given}
        return cls(**{**given, **values}, **of_arm)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_beyond_own(self, "max_arm_speed", "max_speed_translation")
        check_beyond_own(self, "max_arm_turning", "max_speed_rotation")
        check_joint_ranges(self.joint_low, self.joint_high, self.joint_margin)

    @cached_property
    def max_step(self) -> Vector:
        """Largest step of the target in one command (2,) [m, rad]."""
        return np.array([self.max_step_translation, self.max_step_rotation])

    @cached_property
    def speed(self) -> Vector:
        """Largest speed of the target (2,) [m/s, rad/s]."""
        return np.array([self.max_speed_translation, self.max_speed_rotation])

    def checked(self, target: npt.ArrayLike) -> Vector:
        """Return the pose (7,) of a command, or raise `CommandRefused`."""
        return checked_pose(target)

    def place(self, measured: ArmState) -> Vector:
        """Return the measured pose (7,) with a unit quaternion."""
        pose = np.array(measured.tcp_pose, np.float64)
        pose[3:] = rotations.normalize(pose[3:])
        return pose


@dataclass(frozen=True, kw_only=True)
class JointRanges:
    """Ranges of an arm's joints, and the lead of their targets."""

    place_name: ClassVar[str] = "joints"
    # How far a joint may drift from its commanded position, pushed or not, and the measurement
    # noise of a joint at rest (1,) [rad].
    strayed: ClassVar[Vector] = np.array([0.5])
    noise: ClassVar[Vector] = np.array([0.02])
    # A holding arm's target yields to a push this far beyond the lead.
    unpushed: ClassVar[Vector] = np.array([0.05])
    # No force limit. An arm that measures force should use pose targets.
    max_force: ClassVar[None] = None
    max_torque: ClassVar[None] = None
    joint_low: tuple[float, ...]  # lowest positions (n,) [rad]
    joint_high: tuple[float, ...]  # highest positions (n,) [rad]
    joint_margin: float = bounded(0.05, "distance kept from the joints' limits [rad]", 0.0, 1.0)
    # With joint stiffness k this also bounds the joint's torque to k times the lead.
    max_lead_joints: float = bounded(0.15, "lead of a joint's target [rad]", 1e-3, 1.5)
    # Includes pushes by a person. A faster change of the measured joints is treated as a fault.
    max_arm_joints: float = bounded(8.0, "fastest a joint can be, pushed or not [rad/s]", 0.1, 60.0)

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name not in (*_NUMBERS_OF_JOINTS, "joint_margin"):
                check_positive(f"limit {each.name!r}", getattr(self, each.name))
        if not self.joint_low:
            raise RobotRLError(
                "an arm that takes joint targets needs the range of each joint",
                got="no joint_low and joint_high",
                expected="a number for each joint [rad]",
            )
        check_joint_ranges(self.joint_low, self.joint_high, self.joint_margin)

    @cached_property
    def fastest(self) -> Vector:
        """Largest possible joint speed, pushed or not (1,) [rad/s]."""
        return np.array([self.max_arm_joints])

    @cached_property
    def middle(self) -> Vector:
        """Middle of each joint's range (n,)."""
        low, high = np.array([self.joint_low, self.joint_high])
        return np.asarray(0.5 * (low + high))

    def check_place(self, joints: Vector) -> None:
        """Raise `MeasurementRefused` if measured joints (n,) are impossible."""
        check_numbers(joints, "the measured joints", len(self.joint_low), MOST_TURNED)

    def admitted(self, anchor: Vector, wanted: Vector) -> tuple[Vector, frozenset[str]]:
        """Clamp the motion from `anchor` (n,) to `wanted` (n,) to the limits.

        Like `PoseLimits.admitted`: a joint outside its range may move back, and no motion is
        forced. Returns the positions (n,), and `range` if they were clamped.
        """
        low = np.minimum(np.array(self.joint_low) + self.joint_margin, anchor)
        high = np.maximum(np.array(self.joint_high) - self.joint_margin, anchor)
        positions = np.clip(wanted, low, high)
        return positions, frozenset({"range"} if (positions != wanted).any() else ())

    def led(
        self, target: Vector, measured: Vector, slack: Vector | None = None
    ) -> tuple[Vector, bool]:
        """Clamp a target (n,) to lead + `slack` (1,) of `measured`; also return whether clamped."""
        lead = self.max_lead_joints if slack is None else self.max_lead_joints + slack
        positions = np.clip(target, measured - lead, measured + lead)
        return positions, bool((positions != target).any())

    def median(self, places: Vector) -> Vector:
        """Return the median place (n,) of several (k, n)."""
        return np.asarray(np.median(places, axis=0))

    def between(self, start: Vector, end: Vector) -> Vector:
        """Return the motion (n,) from one place to another [rad]."""
        return end - start

    def apart(self, start: Vector, end: Vector) -> Vector:
        """Return each joint's distance between two places (n,) [rad]."""
        return np.abs(end - start)

    def towards(self, start: Vector, end: Vector, most: Vector) -> tuple[Vector, bool]:
        """Move joints at most `most` (1,) straight to `end`; also return whether it stops short."""
        way = end - start
        longest, limit = float(np.abs(way).max()), float(most[0])
        if longest <= limit:
            return end, False
        return start + way * (limit / longest), True

    def distance_in_words(self, start: Vector, end: Vector) -> str:
        """Return the distance between two places as text, for the joint that is farthest off."""
        joint = int(np.argmax(self.apart(start, end)))
        return f"{abs(end[joint] - start[joint]):.2f} rad at joint {joint}"

    def shown(self, *places: Vector) -> str:
        """Return the positions as text, in order."""
        return " to ".join(str([round(float(v), 3) for v in place]) for place in places) + " rad"

    def jump_in_words(self, part: int, last: Vector, place: Vector) -> tuple[str, str, str, str]:
        """Like `PoseLimits.jump_in_words`, for joint number `part`."""
        ends = f"{last[part]:.3f} to {place[part]:.3f} rad"
        way = f"{abs(place[part] - last[part]):.2f} rad"
        return f"joint {part}", way, ends, f"{self.max_arm_joints:g} rad/s"


@dataclass(frozen=True, kw_only=True)
class JointActionLimits(JointRanges):
    """Limits of joint actions, one number per joint."""

    # Motion of each joint's target per action of 1 (n,) [rad per control period].
    step: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.step) != len(self.joint_low):
            raise RobotRLError(
                "limit 'step' has another number of joints",
                got=len(self.step),
                expected=len(self.joint_low),
            )
        for joint, step in enumerate(self.step):
            check_positive(f"limit 'step' of joint {joint}", step)

    def moved(self, target: Vector, motion: Vector) -> Vector:
        """Return the target (n,) moved by an action's motion (n,) in [-1, 1]."""
        return target + np.array(self.step) * motion


@dataclass(frozen=True, kw_only=True)
class JointArmLimits(JointRanges):
    """Limits of one arm with joint targets, enforced by its node."""

    max_step_joints: float = bounded(0.15, "way of a joint in one command [rad]", 1e-3, 1.5)
    max_speed_joints: float = bounded(1.0, "speed of a joint's target [rad/s]", 1e-2, 10.0)
    max_joint_speed: float = bounded(2.0, "largest speed of a joint [rad/s]", 0.01, 10.0)
    command_deadline: float = bounded(0.2, "time without a command until it holds [s]", 0.01, 2.0)
    # Also the longest silence of a client during its reset.
    max_stamp_age: float = bounded(0.5, "of a command's stamp to the clock here [s]", 0.01, 10.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_beyond_own(self, "max_arm_joints", "max_speed_joints")

    @cached_property
    def max_step(self) -> Vector:
        """Largest step of a joint's target in one command (1,) [rad]."""
        return np.array([self.max_step_joints])

    @cached_property
    def speed(self) -> Vector:
        """Largest speed of a joint's target (1,) [rad/s]."""
        return np.array([self.max_speed_joints])

    def checked(self, target: npt.ArrayLike) -> Vector:
        """Return the joint positions (n,) of a command, or raise `CommandRefused`."""
        return checked_joints(target, len(self.joint_low))

    def place(self, measured: ArmState) -> Vector:
        """Return the measured joint positions (n,)."""
        return np.array(measured.joint_positions, np.float64)


def check_known(above: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse an unknown key under `above`."""
    for key in given:
        if key not in known:
            raise RobotRLError(
                f"unknown key {above}.{key}",
                expected=f"one of {', '.join(known)}",
                hint=did_you_mean(key, known, f"{above}."),
            )


def check_bounds(group: str, kinds: Sequence[type], given: Mapping[str, Any], *others: str) -> None:
    """Refuse an unknown node parameter, or a number out of its range.

    The known names are the `bounded` fields of `kinds`, and `others`.
    """
    ranges = {each.name: each.metadata for k in kinds for each in fields(k) if each.metadata}
    check_known(group, given, [*ranges, *others])
    for name, value in given.items():
        if name in ranges:
            low, high = ranges[name]["low"], ranges[name]["high"]
            if not (isinstance(value, int | float) and low <= value <= high):
                problem, expected = f"{group}.{name} is out of range", f"{low:g} to {high:g}"
                raise RobotRLError(problem, got=value, expected=expected)


def refuse_stiff_contact(compliance: Compliance, limits: ArmLimits | JointArmLimits) -> None:
    """Refuse a contact task on a position-controlled arm without a force limit."""
    if compliance == "position" and limits.max_force is None:
        raise RobotRLError(
            "a contact task on a position-controlled arm needs a wrench limit",
            got="compliance position, max_force none",
            expected="compliance impedance or force_mode, or a limit max_force [N]",
            hint="set limits.max_force with a force-torque sensor, or contact_task false "
            "for a task in free space",
        )


def check_workspace(low: Sequence[float], high: Sequence[float]) -> None:
    """Refuse invalid corners or an empty workspace; the error names the corner or axis."""
    for name, corner in (("workspace_low", low), ("workspace_high", high)):
        if len(corner) != 3 or not all(abs(value) <= _FARTHEST for value in corner):
            expected = f"3 finite numbers [m], at most {_FARTHEST:g} m from the base"
            raise RobotRLError(f"limit {name!r} is not a position", got=corner, expected=expected)
    for least, most, axis in zip(low, high, "xyz", strict=True):
        if not least < most:
            raise RobotRLError(
                f"the workspace is empty along {axis}", got=(least, most), expected="low < high"
            )


def check_joint_ranges(low: Sequence[float], high: Sequence[float], margin: float) -> None:
    """Refuse empty joint ranges [rad], or bounds with different numbers of joints."""
    if len(low) != len(high):
        raise RobotRLError(
            "'joint_low' and 'joint_high' differ in length",
            got=(len(low), len(high)),
            expected="a number for each joint in both",
        )
    if not margin >= 0.0:
        problem = "limit 'joint_margin' is negative"
        raise RobotRLError(problem, got=margin, expected=">= 0 [rad]")
    for joint, (least, most) in enumerate(zip(low, high, strict=True)):
        if not least + 2.0 * margin < most:
            raise RobotRLError(
                f"the range of joint {joint} is empty",
                got=(least, most),
                expected=f"low + twice the margin of {margin} < high [rad]",
            )


def check_beyond_own(limits: ArmLimits | JointArmLimits, arm: str, target: str) -> None:
    """Refuse a limit `arm` on possible motion that is not above the command limit `target`."""
    possible, asked = getattr(limits, arm), getattr(limits, target)
    if not possible > asked:
        problem = f"limit {arm!r} would take the arm's own motion for a fault"
        raise RobotRLError(problem, got=possible, expected=f"more than {target}, which is {asked}")


def check_positive(name: str, value: float) -> None:
    """Refuse a limit that is not a finite number above zero."""
    if not (math.isfinite(value) and value > 0.0):
        raise RobotRLError(f"{name} is not a positive number", got=value, expected="> 0")


def _rounded(values: Vector) -> str:
    return str([round(float(value), 3) for value in values])
