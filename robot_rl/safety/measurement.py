"""What is measured of an arm, and what of it is too large."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from robot_rl.safety.arm_limits import ArmLimits
from robot_rl.safety.limits import MeasurementRefused, Vector

# Speed towards a joint limit that counts as motion [rad/s].
_STILL = 0.01


class Measured(Protocol):
    """What the guard needs to know of the arm, base frame."""

    @property
    def tcp_pose(self) -> Vector:
        """Pose (7,)."""

    @property
    def tcp_wrench(self) -> Vector:
        """Contact force and torque (6,) [N, Nm]; NaN where the arm measures none."""

    @property
    def joint_positions(self) -> Vector:
        """(n,) [rad]."""

    @property
    def joint_velocities(self) -> Vector:
        """(n,) [rad/s]."""


def check_measured(measured: Measured, limits: ArmLimits) -> None:
    """Refuse a measurement that no limit can be computed from.

    Raises:
        MeasurementRefused: Something that is needed is not finite, or the number of joints is
            another than that of their limits. A wrench is needed where it is limited.
    """
    needed = [
        ("pose", measured.tcp_pose),
        ("joint positions", measured.joint_positions),
        ("joint velocities", measured.joint_velocities),
    ]
    if limits.max_force is not None:
        needed.append(("force", measured.tcp_wrench[:3]))
    if limits.max_torque is not None:
        needed.append(("torque", measured.tcp_wrench[3:]))
    for name, values in needed:
        if not np.isfinite(values).all():
            raise MeasurementRefused(
                f"the measured {name} of the arm is not finite",
                got=np.asarray(values).tolist(),
                expected="finite numbers",
                hint="nothing is sent; look at the arm's sensors, or set no limit for what "
                "it does not measure",
            )
    joints = len(measured.joint_positions)
    if limits.joint_low and joints != len(limits.joint_low):
        raise MeasurementRefused(
            "the arm has another number of joints than its limits",
            got=joints,
            expected=len(limits.joint_low),
        )


def excesses(measured: Measured, limits: ArmLimits) -> dict[str, str]:
    """What is too large at this moment, for the arm to hold.

    Returns:
        From `force`, `joint_speed` or `joint` to an explanation in words. A joint within its margin
        may stand, or move away from its limit.
    """
    found = {}
    for name, part, limit, unit in (
        ("force", measured.tcp_wrench[:3], limits.max_force, "N"),
        ("torque", measured.tcp_wrench[3:], limits.max_torque, "Nm"),
    ):
        if limit is not None and (size := math.hypot(*part)) > limit:
            found["force"] = f"{name} {size:.1f} {unit} over its limit of {limit} {unit}"
    speed = float(np.abs(measured.joint_velocities).max(initial=0.0))
    if speed > limits.max_joint_speed:
        found["joint_speed"] = f"a joint moves at {speed:.2f} rad/s"
    joint = _joint_moving_to_its_limit(measured, limits)
    if joint is not None:
        angle = measured.joint_positions[joint]
        found["joint"] = f"joint {joint} at {angle:.3f} rad moves to its limit"
    return found


def _joint_moving_to_its_limit(measured: Measured, limits: ArmLimits) -> int | None:
    if not limits.joint_low:
        return None
    positions, velocities = measured.joint_positions, measured.joint_velocities
    low = np.array(limits.joint_low) + limits.joint_margin
    high = np.array(limits.joint_high) - limits.joint_margin
    outward = (positions < low) & (velocities < -_STILL)
    outward |= (positions > high) & (velocities > _STILL)
    return int(np.argmax(outward)) if outward.any() else None
