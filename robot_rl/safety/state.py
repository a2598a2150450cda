"""The measured state of an arm, and checks for impossible values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from robot_rl.errors import RobotRLError
from robot_rl.safety.rotations import Vector

_FARTHEST = 10.0  # no arm reaches farther [m]
_UNIT_TOLERANCE = 1e-2  # largest deviation of a quaternion's length from 1


class MeasurementRefused(RobotRLError):
    """A measured value is impossible, so no limit can be computed from it."""


@dataclass(frozen=True, eq=False)
class ArmState:
    """One measurement of an arm, in its base frame; all arrays float64."""

    # Time of measurement on the system clock [ns]; unique per measurement.
    stamp_ns: int
    joint_positions: Vector  # (n,) [rad]
    joint_velocities: Vector  # (n,) [rad/s]
    tcp_pose: Vector  # position [m] and quaternion xyzw (7,)
    # Linear [m/s] and angular [rad/s] velocity (6,); NaN while unknown.
    tcp_velocity: Vector
    # Force [N] and torque about the TCP [Nm] exerted by the environment (6,); NaN if the arm does
    # not measure them.
    tcp_wrench: Vector
    frame: str = "base"  # name of the base frame


def check_pose(pose: Vector, what: str = "the pose") -> None:
    """Raise `MeasurementRefused` unless `pose` is a pose (7,) that an arm can reach."""
    check_numbers(pose, what, 7, _FARTHEST)
    if not abs(math.hypot(*pose[3:]) - 1.0) <= _UNIT_TOLERANCE:
        length = f"{pose[3:].tolist()}, of length {math.hypot(*pose[3:]):g}"
        expected = "x, y, z, w of length 1"
        raise MeasurementRefused(
            f"{what}'s quaternion is no rotation", got=length, expected=expected
        )


def check_numbers(values: Vector, what: str, count: int, most: float) -> None:
    """Raise `MeasurementRefused` unless there are `count` finite numbers within +-`most`."""
    if values.shape != (count,):
        raise MeasurementRefused(
            f"{what} has another number of values", got=values.shape, expected=f"({count},)"
        )
    if not np.isfinite(values).all():
        problem, expected = f"{what} is not finite", "finite numbers"
    elif (np.abs(values) > most).any():
        problem, expected = f"{what} cannot be: no arm is there", f"at most {most:g}"
    else:
        return
    raise MeasurementRefused(
        problem,
        got=values.tolist(),
        expected=expected,
        hint="nothing is sent; look at the arm's sensors, or set no limit for what it does not"
        " measure",
    )
