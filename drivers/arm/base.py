"""What every arm driver does: take an equilibrium pose, and tell where the arm is.

And the law of a Cartesian spring, for arms that take a wrench or show a pose error.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from drivers.errors import DriverFault
from robot_rl.safety import ArmState, Compliance, rotations
from robot_rl.safety.limits import check_positive

Vector = npt.NDArray[np.float64]
# Lowest and highest joint positions, each (n,) [rad].
JointLimits = tuple[tuple[float, ...], tuple[float, ...]]

_REST_SECONDS = 0.5
_REST_SPEED = 0.002  # m/s
# UR's data sheets: a measured force is good to 3.5 to 5.5 N.
_STEADY_FORCE = 5.0  # N, between the smallest and the largest along an axis
_LARGEST_OFFSET = 20.0  # N: more is no drift, but a contact or a wrong payload


class Arm(Protocol):
    """An arm under Cartesian control. Limits are not its business: `robot_rl.safety.ArmGuard`'s.

    A driver is used by one thread at a time. If its force sensor drifts, it also has `zero_ft`: the
    sensor reads zero from then on; the arm does not move, and holds where it is.
    """

    # How it yields to contact: `impedance` (the target is the equilibrium of a spring),
    # `force_mode` (the same, made of measured forces), or `position` (not at all).
    compliance: Compliance
    joint_names: tuple[str, ...]  # in the order of `ArmState`
    joint_limits: JointLimits  # both empty where they are left to the controller
    # What the controller reports, None while it works; never cleared but by `clear_errors`.
    fault: str | None

    def connect(self) -> None:
        """Reach the arm, ready to hold where it is; after `close` or an error, once more.

        Raises `DriverTimeout` where it does not answer, `DriverError` where its address or settings
        are wrong, and `MissingExtra` where the vendor's SDK is not installed.
        """

    def read(self) -> ArmState:
        """The newest measurement, also with a fault; `DriverTimeout` or `Stale` without one."""

    def command(self, target_pose: Vector) -> None:
        """Set the equilibrium pose (7,), base frame, and return at once.

        Raises `DriverFault` where the arm has a fault, or is stopped, and nothing was sent; and
        `DriverTimeout` where it does not answer.
        """

    def hold(self) -> None:
        """Stand where the arm is; it may then be left unread, until it is read again."""

    def stop(self) -> None:
        """Stop as the vendor does it, or `DriverError`; motion is refused until `clear_errors`."""

    def clear_errors(self) -> None:
        """Clear faults and a stop, after a person has looked, or `DriverFault`; the arm holds."""

    def close(self) -> None:
        """Hold, and let go of the arm; also when it was never reached, and again."""


def check_free(arm: str, fault: str | None, stopped: bool) -> None:
    """Check that neither a fault nor a stop holds an arm, before anything is sent to it."""
    if fault is not None or stopped:
        hint = "look at the arm, then clear_errors"
        raise DriverFault(f"the {arm} does not move", got=fault or "stopped", hint=hint)


def pose_of(position: Sequence[float], metre: float = 1.0) -> Vector:
    """The pose (7,) of a position and a rotation vector [rad] (6,); a metre has `metre` units."""
    values = np.array(position[:6], np.float64)
    turn = rotations.normalize(rotations.from_rotation_vector(values[3:]))
    return np.concatenate([values[:3] / metre, turn])


@dataclass(frozen=True)
class Spring:
    """A spring and damper between the TCP and its target, the same along and about all axes."""

    stiffness_translation: float = 1000.0  # [N/m]
    stiffness_rotation: float = 50.0  # [Nm/rad]
    damping_translation: float = 70.0  # [Ns/m]
    damping_rotation: float = 4.0  # [Nms/rad]
    max_force: float = 40.0  # largest force that it asks for [N]
    max_torque: float = 6.0  # largest torque that it asks for [Nm]

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_positive(f"{name!r} of the impedance", value)

    def wrench(self, target: Vector, pose: Vector, velocity: Vector) -> Vector:
        """Force [N] and torque [Nm] (6,) on the TCP; all in the base frame."""
        way = rotations.between(pose, target)
        force = self.stiffness_translation * way[:3] - self.damping_translation * velocity[:3]
        torque = self.stiffness_rotation * way[3:] - self.damping_rotation * velocity[3:]
        return np.concatenate([at_most(force, self.max_force), at_most(torque, self.max_torque)])


def at_most(vector: Vector, limit: float) -> Vector:
    """The vector, shortened to a length of at most `limit`."""
    length = math.hypot(*vector)
    return vector if length <= limit else vector * (limit / length)


class Rest:
    """The newest measurements of an arm; a force sensor may be zeroed only while it is at rest."""

    def __init__(self, rate_hz: float) -> None:
        self._states: deque[ArmState] = deque(maxlen=max(2, round(_REST_SECONDS * rate_hz)))

    def take(self, state: ArmState) -> None:
        """Take a measurement in."""
        self._states.append(state)

    def forget(self) -> None:
        """Nothing is known any more of how the arm stood."""
        self._states.clear()

    def force(self) -> float:
        """The mean force that a zeroing would take away [N]; `DriverFault` where it is no drift.

        A light, steady contact cannot be told from a sensor that has drifted.
        """
        if len(self._states) < (self._states.maxlen or 0):
            raise DriverFault(
                "the force sensor is not zeroed",
                got=f"{len(self._states)} measurements",
                expected=f"{_REST_SECONDS:g} s of them, {self._states.maxlen}",
                hint="call it again",
            )
        forces = np.array([state.tcp_wrench[:3] for state in self._states])
        speed = max(math.hypot(*state.tcp_velocity[:3]) for state in self._states)
        force, change = math.hypot(*forces.mean(axis=0)), float(np.ptp(forces, axis=0).max())
        # So, for one of them may be NaN.
        if not (force <= _LARGEST_OFFSET and change <= _STEADY_FORCE and speed <= _REST_SPEED):
            raise DriverFault(
                "the force sensor is not zeroed",
                got=f"{force:.1f} N that changed by {change:.1f} N, at {speed * 1e3:.1f} mm/s",
                expected=f"at most {_LARGEST_OFFSET:g} N, {_STEADY_FORCE:g} N and"
                f" {_REST_SPEED * 1e3:g} mm/s for {_REST_SECONDS:g} s",
                hint="let nothing touch the tool, and see that its payload is set right",
            )
        return force
