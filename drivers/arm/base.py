"""What every arm driver does: take an equilibrium pose, and tell where the arm is.

And the law of a Cartesian spring, for arms that take a wrench or show a pose error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from drivers.errors import DriverError, DriverFault
from robot_rl.safety import Compliance, rotations

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ArmState:
    """One measurement of an arm, in its base frame; all arrays float64."""

    stamp_ns: int  # when it was measured, on the system clock [ns]
    joint_positions: Vector  # (n,) [rad]
    joint_velocities: Vector  # (n,) [rad/s]
    tcp_pose: Vector  # position [m] and quaternion xyzw (7,)
    # Linear [m/s] and angular [rad/s] velocity (6,); NaN while it is not known.
    tcp_velocity: Vector
    # Force [N] and torque about the TCP [Nm] that the environment exerts (6,); NaN where the arm
    # measures none.
    tcp_wrench: Vector
    frame: str = "base"  # name of the base frame


class Arm(Protocol):
    """An arm under Cartesian control. Limits are not its business: `robot_rl.safety.ArmGuard`'s.

    A driver is used by one thread at a time. Attributes:
        compliance: How it yields to contact: `impedance` (the target is the equilibrium of a
            spring), `force_mode` (the same, made of measured forces), or `position` (not at all).
        joint_names: Names of the joints, in the order of `ArmState`.
        joint_limits: Lowest and highest joint positions, each (n,) [rad]; both empty where they
            are left to the controller.
        fault: What the controller reports, None while it works; never cleared but by
            `clear_errors`.
    """

    compliance: Compliance
    joint_names: tuple[str, ...]
    joint_limits: tuple[tuple[float, ...], tuple[float, ...]]
    fault: str | None

    def connect(self) -> None:
        """Reach the arm, ready to hold where it is; after `close` or an error, once more.

        Raises:
            DriverTimeout: It does not answer.
            DriverError: Its address or settings are wrong.
            MissingExtra: The vendor's SDK is not installed.
        """

    def read(self) -> ArmState:
        """The newest measurement; a fault of the arm does not keep it from being read.

        Raises:
            DriverTimeout: The arm does not answer.
            Stale: The newest measurement is too old.
        """

    def command(self, target_pose: Vector) -> None:
        """Set the equilibrium pose (7,), base frame, and return at once.

        Raises:
            DriverFault: The arm has a fault, or is stopped; nothing was sent.
            DriverTimeout: The arm does not answer.
        """

    def hold(self) -> None:
        """Stand where the arm is; it may then be left unread, until it is read again."""

    def stop(self) -> None:
        """Stop as the vendor does it; motion is refused until `clear_errors`.

        Raises:
            DriverError: The arm did not take it; motion is refused all the same.
        """

    def clear_errors(self) -> None:
        """Clear faults and a stop after a person has looked; the arm then holds where it is.

        Raises:
            DriverFault: The fault is still there.
        """

    def close(self) -> None:
        """Hold, and let go of the arm; also when it was never reached, and again."""


def check_free(arm: str, fault: str | None, stopped: bool) -> None:
    """Check that an arm may be commanded.

    Raises:
        DriverFault: A fault or a stop holds it; nothing was sent.
    """
    if fault is not None or stopped:
        raise DriverFault(
            f"the {arm} does not move",
            got=fault or "stopped",
            hint="look at the arm, then clear_errors",
        )


def pose_of(position: Sequence[float], metre: float = 1.0) -> Vector:
    """The pose (7,) of a position and a rotation vector [rad] (6,); a metre has `metre` units."""
    values = np.array(position[:6], np.float64)
    turn = rotations.normalize(rotations.from_rotation_vector(values[3:]))
    return np.concatenate([values[:3] / metre, turn])


@dataclass(frozen=True)
class Spring:
    """A spring and damper between the TCP and its target, the same along and about all axes.

    Raises:
        DriverError: A number is not positive.
    """

    stiffness_translation: float = 1000.0  # [N/m]
    stiffness_rotation: float = 50.0  # [Nm/rad]
    damping_translation: float = 70.0  # [Ns/m]
    damping_rotation: float = 4.0  # [Nms/rad]
    max_force: float = 40.0  # largest force that it asks for [N]
    max_torque: float = 6.0  # largest torque that it asks for [Nm]

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value > 0.0):
                raise DriverError(
                    f"{name!r} of the impedance is not positive", got=value, expected="> 0"
                )

    def wrench(self, target: Vector, pose: Vector, velocity: Vector) -> Vector:
        """Force [N] and torque [Nm] (6,) on the TCP, base frame.

        Args:
            target: Equilibrium pose (7,).
            pose: Measured pose (7,).
            velocity: Measured velocity (6,).
        """
        way = rotations.between(pose, target)
        force = self.stiffness_translation * way[:3] - self.damping_translation * velocity[:3]
        torque = self.stiffness_rotation * way[3:] - self.damping_rotation * velocity[3:]
        return np.concatenate([at_most(force, self.max_force), at_most(torque, self.max_torque)])


def at_most(vector: Vector, limit: float) -> Vector:
    """The vector, shortened to a length of at most `limit`."""
    length = math.hypot(*vector)
    return vector if length <= limit else vector * (limit / length)
