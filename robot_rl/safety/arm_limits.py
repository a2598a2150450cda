"""The limits that an arm's node enforces, whoever sends the commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from robot_rl.errors import RobotRLError
from robot_rl.safety.limits import PoseLimits, check_positive

Compliance = Literal["impedance", "force_mode", "position"]

_ALWAYS_POSITIVE = (
    "max_step_translation",
    "max_step_rotation",
    "max_speed_translation",
    "max_speed_rotation",
    "max_joint_speed",
    "command_deadline",
    "max_stamp_age",
)


@dataclass(frozen=True, kw_only=True)
class ArmLimits(PoseLimits):
    """Limits of one arm, in its base frame.

    Attributes:
        max_step_translation: Farthest that one command may move the target [m].
        max_step_rotation: Farthest that one command may turn it [rad].
        max_speed_translation: Speed at which the target moves to where it was commanded [m/s].
        max_speed_rotation: The same for its rotation [rad/s].
        max_torque: As `max_force`, for the contact torque about the TCP [Nm].
        joint_low: Lowest joint positions (n,) [rad]; empty leaves them to the arm's controller.
        joint_high: Highest joint positions (n,) [rad].
        joint_margin: Distance to a limit within which a joint may not move towards it [rad].
        max_joint_speed: Largest measured joint speed [rad/s].
        command_deadline: Time after a command until the arm holds [s].
        max_stamp_age: Difference between a command's stamp and the system clock [s].
    """

    max_step_translation: float = 0.03
    max_step_rotation: float = 0.15
    max_speed_translation: float = 0.25
    max_speed_rotation: float = 1.0
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
        super().__post_init__()
        for name in _ALWAYS_POSITIVE:
            check_positive(name, getattr(self, name))
        if self.max_torque is not None:
            check_positive("max_torque", self.max_torque)
        for arm, target in (
            ("max_arm_speed", "max_speed_translation"),
            ("max_arm_turning", "max_speed_rotation"),
        ):
            if not getattr(self, arm) > getattr(self, target):
                raise RobotRLError(
                    f"limit {arm!r} would take the arm's own motion for a fault",
                    got=getattr(self, arm),
                    expected=f"more than {target}, which is {getattr(self, target)}",
                )
        _check_joints(self.joint_low, self.joint_high, self.joint_margin)


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
            "'joint_low' and 'joint_high' differ in length",
            got=(len(low), len(high)),
            expected="a number for each joint in both",
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
