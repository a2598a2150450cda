"""The law of a Cartesian spring and damper, for arms that take a wrench or show a pose error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from drivers.arm.base import Vector
from drivers.errors import DriverError
from robot_rl.safety import rotations


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
        turn = rotations.to_rotation_vector(
            rotations.multiply(target[3:], rotations.conjugate(pose[3:]))
        )
        force = self.stiffness_translation * (target[:3] - pose[:3])
        force = force - self.damping_translation * velocity[:3]
        torque = self.stiffness_rotation * turn - self.damping_rotation * velocity[3:]
        return np.concatenate([at_most(force, self.max_force), at_most(torque, self.max_torque)])


def at_most(vector: Vector, limit: float) -> Vector:
    """The vector, shortened to a length of at most `limit`."""
    length = math.hypot(*vector)
    return vector if length <= limit else vector * (limit / length)
