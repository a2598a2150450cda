"""Where an arm that takes joint targets may be and how it may move: as `limits`, but of joints.

A place is joint positions (n,) [rad] here. The same guard and limiter keep these limits, by the
same methods.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError
from robot_rl.safety.commands import checked_joints
from robot_rl.safety.limits import (
    Vector,
    bounded,
    check_beyond_own,
    check_joint_ranges,
    check_positive,
)

if TYPE_CHECKING:
    from robot_rl.safety.measurement import ArmState

_NUMBERS_OF_JOINTS = ("joint_low", "joint_high", "step")


@dataclass(frozen=True, kw_only=True)
class JointRanges:
    """Where the joints of an arm may be, and how far their targets may lead them."""

    place_name: ClassVar[str] = "joints"
    # Farther from where it was asked to be no joint may come by itself, or by being pushed; and by
    # how much it may be off although the arm stands (1,) [rad].
    strayed: ClassVar[Vector] = np.array([0.5])
    noise: ClassVar[Vector] = np.array([0.02])
    # By so much more than its lead an arm that holds is pushed before its target yields.
    unpushed: ClassVar[Vector] = np.array([0.05])
    # No force is limited: where an arm measures one, let it take poses.
    max_force: ClassVar[None] = None
    max_torque: ClassVar[None] = None
    joint_low: tuple[float, ...]  # lowest positions (n,) [rad]
    joint_high: tuple[float, ...]  # highest positions (n,) [rad]
    joint_margin: float = bounded(0.05, "distance kept from the joints' limits [rad]", 0.0, 1.0)
    # With a stiffness k of a joint this also bounds its torque to k times the lead.
    max_lead_joints: float = bounded(0.15, "lead of a joint's target [rad]", 1e-3, 1.5)
    # Also when a person pushes it. Measured joints that are farther from the ones before are not
    # believed.
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
        """How fast joints can be, pushed or not (1,) [rad/s]."""
        return np.array([self.max_arm_joints])

    @cached_property
    def middle(self) -> Vector:
        """The middle of all ranges (n,)."""
        low, high = np.array([self.joint_low, self.joint_high])
        return np.asarray(0.5 * (low + high))

    def admitted(self, anchor: Vector, wanted: Vector) -> tuple[Vector, frozenset[str]]:
        """The part of the way from `anchor` (n,) to `wanted` (n,) that no limit forbids.

        As `PoseLimits.admitted`: a joint that is outside its range may come back, and nothing has
        to move. Returns the positions (n,), and `range` where that kept them from `wanted`.
        """
        low = np.minimum(np.array(self.joint_low) + self.joint_margin, anchor)
        high = np.maximum(np.array(self.joint_high) - self.joint_margin, anchor)
        positions = np.clip(wanted, low, high)
        return positions, frozenset({"range"} if (positions != wanted).any() else ())

    def led(
        self, target: Vector, measured: Vector, slack: Vector | None = None
    ) -> tuple[Vector, bool]:
        """A target (n,), pulled to within the lead, and `slack` (1,), of `measured`; whether so."""
        lead = self.max_lead_joints if slack is None else self.max_lead_joints + slack
        positions = np.clip(target, measured - lead, measured + lead)
        return positions, bool((positions != target).any())

    def median(self, places: Vector) -> Vector:
        """The place (n,) in the middle of several (k, n)."""
        return np.asarray(np.median(places, axis=0))

    def between(self, start: Vector, end: Vector) -> Vector:
        """The way (n,) from one place to another [rad]."""
        return end - start

    def apart(self, start: Vector, end: Vector) -> Vector:
        """How far each joint is from another place (n,) [rad]."""
        return np.abs(end - start)

    def towards(self, start: Vector, end: Vector, most: Vector) -> tuple[Vector, bool]:
        """The place on the straight way to `end` that no joint is farther than `most` (1,) from."""
        way = end - start
        longest, limit = float(np.abs(way).max()), float(most[0])
        if longest <= limit:
            return end, False
        return start + way * (limit / longest), True

    def distance_in_words(self, start: Vector, end: Vector) -> str:
        """How far apart two places are, by the joint that is farthest."""
        joint = int(np.argmax(self.apart(start, end)))
        return f"{abs(end[joint] - start[joint]):.2f} rad at joint {joint}"

    def shown(self, *places: Vector) -> str:
        """Where they are, from the one to the other."""
        return " to ".join(str([round(float(v), 3) for v in place]) for place in places) + " rad"

    def jump_in_words(self, part: int, last: Vector, place: Vector) -> tuple[str, str, str, str]:
        """As `PoseLimits.jump_in_words`, of the joint of this number, `part`."""
        ends = f"{last[part]:.3f} to {place[part]:.3f} rad"
        way = f"{abs(place[part] - last[part]):.2f} rad"
        return f"joint {part}", way, ends, f"{self.max_arm_joints:g} rad/s"


@dataclass(frozen=True, kw_only=True)
class JointActionLimits(JointRanges):
    """Limits of motion by actions, one number for each joint."""

    # Motion of each joint's target for an action of 1 (n,) [rad per control period].
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
        """A target (n,), moved by an action's motion (n,) in [-1, 1]."""
        return target + np.array(self.step) * motion


@dataclass(frozen=True, kw_only=True)
class JointArmLimits(JointRanges):
    """Limits of one arm that takes joint targets, which its node enforces."""

    max_step_joints: float = bounded(0.15, "way of a joint in one command [rad]", 1e-3, 1.5)
    max_speed_joints: float = bounded(1.0, "speed of a joint's target [rad/s]", 1e-2, 10.0)
    max_joint_speed: float = bounded(2.0, "largest speed of a joint [rad/s]", 0.01, 10.0)
    command_deadline: float = bounded(0.2, "time without a command until it holds [s]", 0.01, 2.0)
    # Also between commands, or signs of life, of whoever accompanies a reset.
    max_stamp_age: float = bounded(0.5, "of a command's stamp to the clock here [s]", 0.01, 10.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_beyond_own(self, "max_arm_joints", "max_speed_joints")

    @cached_property
    def max_step(self) -> Vector:
        """Of the target in one command (1,) [rad]."""
        return np.array([self.max_step_joints])

    @cached_property
    def speed(self) -> Vector:
        """Of the target (1,) [rad/s]."""
        return np.array([self.max_speed_joints])

    def checked(self, target: npt.ArrayLike) -> Vector:
        """The joint positions (n,) of a command, or `CommandRefused`."""
        return checked_joints(target, len(self.joint_low))

    def place(self, measured: ArmState) -> Vector:
        """The measured joint positions (n,)."""
        return np.array(measured.joint_positions, np.float64)
