"""The limits that an arm's node enforces, whoever sends the commands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from robot_rl.env import rotations
from robot_rl.errors import RobotRLError
from robot_rl.safety.limits import Vector, check_positive, check_workspace

Compliance = Literal["impedance", "force_mode", "position"]

_ALWAYS_POSITIVE = (
    "max_tilt",
    "max_lead_translation",
    "max_lead_rotation",
    "max_step_translation",
    "max_step_rotation",
    "max_speed_translation",
    "max_speed_rotation",
    "max_joint_speed",
    "command_deadline",
    "max_stamp_age",
)
_POSITIVE_OR_NONE = ("max_force", "max_torque")


@dataclass(frozen=True)
class ArmLimits:
    """Limits of one arm, in its base frame.

    Attributes:
        workspace_low: Lowest target position (3,) [m].
        workspace_high: Highest target position (3,) [m].
        max_tilt: Largest angle between a target and the reference orientation [rad].
        reference_orientation: Quaternion xyzw (4,) that `max_tilt` is measured from.
        max_lead_translation: Largest lead of the target over the measured pose, per axis [m].
            With a stiffness k this also bounds the contact force to k times the lead.
        max_lead_rotation: The same for the rotation angle [rad].
        max_step_translation: Farthest that one command may move the target [m].
        max_step_rotation: Farthest that one command may turn it [rad].
        max_speed_translation: Speed at which the target moves to where it was commanded [m/s].
        max_speed_rotation: The same for its rotation [rad/s].
        max_force: Measured contact force above which the arm yields and holds [N]; None for an
            arm that measures no wrench.
        max_torque: The same for the contact torque about the TCP [Nm].
        joint_low: Lowest joint positions (n,) [rad]; empty leaves them to the arm's controller.
        joint_high: Highest joint positions (n,) [rad].
        joint_margin: Distance to a limit within which a joint may not move towards it [rad].
        max_joint_speed: Largest measured joint speed [rad/s].
        command_deadline: Time after a command until the arm holds [s].
        max_stamp_age: Difference between a command's stamp and the system clock [s].
    """

    workspace_low: tuple[float, float, float]
    workspace_high: tuple[float, float, float]
    max_tilt: float = 0.6
    reference_orientation: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    max_lead_translation: float = 0.02
    max_lead_rotation: float = 0.15
    max_step_translation: float = 0.03
    max_step_rotation: float = 0.15
    max_speed_translation: float = 0.25
    max_speed_rotation: float = 1.0
    max_force: float | None = 60.0
    max_torque: float | None = 15.0
    joint_low: tuple[float, ...] = ()
    joint_high: tuple[float, ...] = ()
    joint_margin: float = 0.05
    max_joint_speed: float = 2.0
    command_deadline: float = 0.2
    max_stamp_age: float = 0.5

    def __post_init__(self) -> None:
        """Refuse limits that could not hold.

        Raises:
            RobotRLError: Names the limit.
        """
        check_workspace(self.workspace_low, self.workspace_high)
        for name in _ALWAYS_POSITIVE:
            check_positive(name, getattr(self, name))
        for name in _POSITIVE_OR_NONE:
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        norm = math.sqrt(sum(value * value for value in self.reference_orientation))
        if len(self.reference_orientation) != 4 or not abs(norm - 1.0) < 1e-3:
            raise RobotRLError(
                "limit 'reference_orientation' is not a rotation",
                got=self.reference_orientation,
                expected="a quaternion xyzw of length 1",
            )
        _check_joints(self.joint_low, self.joint_high, self.joint_margin)

    @property
    def reference(self) -> Vector:
        """The reference orientation as a unit quaternion (4,)."""
        return rotations.normalize(np.array(self.reference_orientation, np.float64))


def refuse_stiff_contact(compliance: Compliance, limits: ArmLimits) -> None:
    """Refuse a contact task on an arm that neither yields nor notices that it pushes.

    Raises:
        RobotRLError: The arm is position controlled and no wrench limit is set.
    """
    if compliance == "position" and limits.max_force is None:
        raise RobotRLError(
            "a contact task on a position-controlled arm needs a wrench limit",
            got="compliance position, max_force none",
            expected="compliance impedance or force_mode, or a limit max_force [N]",
            hint="set limits.max_force with a force-torque sensor, or contact_task false "
            "for a task in free space",
        )


def _check_joints(low: Sequence[float], high: Sequence[float], margin: float) -> None:
    if len(low) != len(high):
        raise RobotRLError(
            "'joint_low' and 'joint_high' differ in length", got=(len(low), len(high))
        )
    if not margin >= 0.0:
        raise RobotRLError("limit 'joint_margin' is negative", got=margin, expected=">= 0 [rad]")
    for joint, (least, most) in enumerate(zip(low, high, strict=True)):
        if not least + 2.0 * margin < most:
            raise RobotRLError(
                f"the range of joint {joint} is empty",
                got=(least, most),
                expected=f"low + twice the margin of {margin} < high [rad]",
            )
