"""The protocol of arm drivers: they take an equilibrium pose, and measure the arm.

And the law of a Cartesian spring, for arms that take a wrench or show a pose error.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from drivers.base import DriverError, DriverFault, Stale
from robot_rl.safety import (
    ArmLimits,
    ArmState,
    Compliance,
    JointArmLimits,
    checked_reset_joints,
    rotations,
)
from robot_rl.safety.commands import checked_pose
from robot_rl.safety.limits import check_positive
from robot_rl.safety.rotations import Vector as Vector

# Lowest and highest joint positions, each (n,) [rad].
JointLimits = tuple[tuple[float, ...], tuple[float, ...]]

_JOINTS_OF_A_POSE = 6  # the pose of an arm with more leaves its elbow free
# Largest differences between a tool's settings [m, rad, kg].
_SAME_PLACE, _SAME_ANGLE, _SAME_MASS = 0.001, 0.01, 0.05
_LONGEST_TOOL, _HEAVIEST = 1.0, 50.0  # m, kg
_REST_SECONDS = 0.5
_REST_SPEED = 0.002  # m/s
# UR's data sheets: a measured force is good to 3.5 to 5.5 N.
_STEADY_FORCE = 5.0  # N, between the smallest and the largest along an axis
_LARGEST_OFFSET = 20.0  # N: more is no drift, but a contact or a wrong payload


class Arm(Protocol):
    """An arm under Cartesian control. `robot_rl.safety.ArmGuard` keeps its limits, not the driver.

    The guard also checks the measurements of all drivers. One thread at a time uses a driver. Some
    drivers have more methods:

    `command_joints(joints)`, of an arm that takes joint targets instead: as `command`, with joint
    positions (n,) [rad]. It needs `joint_limits`; its pose may be unknown, NaN.

    `grip(position)`, of an arm with a gripper on its own wire: the fingers go to a position, 0 open
    to 1 closed, with the next target; `gripper_position` is their position at the last `read`.

    `zero_ft()`, of an arm whose force sensor drifts: it reads zero from then on, and the arm holds.

    `forward_kinematics(joints)`, the pose (7,) of the flange in the base frame at joint positions
    (n,) [rad], computed at once: it allows resets to joint positions.

    `posture`, of such an arm with more than six joints: joint positions (n,) [rad] to which it
    draws its elbow as far as its target allows; None: it does not.
    """

    # How it yields to contact: `impedance` (the target is the equilibrium of a spring),
    # `force_mode` (the same, made of measured forces), or `position` (not at all).
    compliance: Compliance
    joint_names: tuple[str, ...]  # in the order of `ArmState`
    joint_limits: JointLimits  # both empty where they are left to the controller
    # The controller's fault, None without one; only `clear_errors` clears it.
    fault: str | None

    def connect(self) -> None:
        """Reach the arm, and leave it as it stands; may be called again after `close` or an error.

        Control begins with the first `command`. Raises `DriverTimeout` where it does not answer,
        `DriverError` where its address or settings are wrong, and `MissingExtra` where the vendor's
        SDK is not installed.
        """

    def read(self) -> ArmState:
        """The newest measurement, also with a fault; `DriverTimeout` or `Stale` without one.

        Its stamp is when it was measured, or asked for, not when it is read: the same state again
        has the same stamp. See `StateClock`.
        """

    def command(self, target_pose: Vector) -> None:
        """Set the equilibrium pose (7,), base frame, and return at once.

        Raises `DriverFault` where the arm has a fault, or is stopped, and nothing was sent; and
        `DriverTimeout` where it does not answer.
        """

    def hold(self) -> None:
        """Stand where the arm is; it need not be read until it moves again."""

    def stop(self) -> None:
        """Stop as the vendor does it, or `DriverError`; motion is refused until `clear_errors`."""

    def clear_errors(self) -> None:
        """Clear faults and a stop, after a person has looked, or `DriverFault`; the arm holds."""

    def close(self) -> None:
        """Hold, and let go of the arm; also when it was never reached, and again."""


def reset_waypoints(
    driver: Any, joints: Sequence[float], limits: ArmLimits | JointArmLimits
) -> Vector:
    """The waypoints (k, n) that the parameter `reset.joints` holds in a row; (0, n) without it.

    A driver with a `posture` draws its elbow to the last one. Raises `DriverError` where the
    driver cannot move by joints, and `CommandRefused` for malformed waypoints.
    """
    count = len(driver.joint_names)
    if not joints:
        return np.empty((0, count))
    if isinstance(limits, JointArmLimits):
        return checked_reset_joints(joints, count, limits)
    check_kinematics(driver)
    waypoints = checked_reset_joints(joints, count, limits)
    if hasattr(driver, "posture"):
        driver.posture = waypoints[-1]
    return waypoints


def check_kinematics(driver: Any) -> None:
    """Raise `DriverError` where an arm that takes poses cannot go to joint positions."""
    count, holds_elbow = len(driver.joint_names), hasattr(driver, "posture")
    if not hasattr(driver, "forward_kinematics") or (count > _JOINTS_OF_A_POSE and not holds_elbow):
        raise DriverError(
            "this arm cannot be reset to joint positions",
            got=f"reset.joints for {type(driver).__name__} with {count} joints",
            expected="a driver that knows the arm's kinematics and can hold its elbow",
            hint="use reset.pose, or give the driver of a UR arm its type, such as ur5e; see"
            " hardware/arms.md, section Resets",
        )


def check_free(arm: str, fault: str | None, stopped: bool) -> None:
    """Raise `DriverFault` if a fault or a stop holds the arm; called before each command."""
    if fault is not None or stopped:
        hint = "look at the arm, then clear_errors"
        raise DriverFault(f"the {arm} does not move", got=fault or "stopped", hint=hint)


def pose_of(position: Sequence[float], metre: float = 1.0) -> Vector:
    """The pose (7,) of a position and a rotation vector [rad] (6,); a metre has `metre` units."""
    values = np.array(position[:6], np.float64)
    turn = rotations.normalize(rotations.from_rotation_vector(values[3:]))
    return np.concatenate([values[:3] / metre, turn])


def dh_pose(rows: Sequence[tuple[float, float, float]], joints: Vector) -> Vector:
    """The flange's pose (7,), base frame, at joint positions (n,) [rad].

    Each joint's row of the Denavit-Hartenberg table is a [m], d [m] and alpha [rad].
    """
    pose = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    for (a, d, alpha), angle in zip(rows, joints.tolist(), strict=True):
        twist = np.array([math.sin(0.5 * alpha), 0.0, 0.0, math.cos(0.5 * alpha)])
        turn = rotations.multiply(rotations.about_z(angle), twist)
        link = np.array([a * math.cos(angle), a * math.sin(angle), d])
        pose = rotations.compose(pose, np.concatenate([link, turn]))
    return pose


@dataclass(frozen=True)
class Tool:
    """The tool on an arm's flange, as it must be set at the arm's controller."""

    tcp: Sequence[float]  # pose of the TCP on the flange (7,) [m, xyzw]
    payload_kg: float  # mass of all that the flange carries

    def __post_init__(self) -> None:
        place = checked_pose(self.tcp, "tool.tcp")[:3].tolist()
        if math.hypot(*place) > _LONGEST_TOOL:
            expected = f"at most {_LONGEST_TOOL:g} m from the flange: m, not mm"
            raise DriverError("tool.tcp is too far away", got=place, expected=expected)
        if not 0.0 < self.payload_kg < _HEAVIEST:
            problem, expected = "tool.payload_kg cannot be", f"more than 0, below {_HEAVIEST:g} kg"
            raise DriverError(problem, got=self.payload_kg, expected=expected)

    def check(self, tcp: Vector, payload_kg: float) -> None:
        """Raise `DriverError` where the controller has another TCP (7,) or payload set.

        With a wrong TCP the limits hold for another point; with a wrong payload an arm that is
        controlled by forces drifts.
        """
        distance, angle = rotations.apart(checked_pose(self.tcp), tcp)
        hint = "set it at the controller as it is mounted, or correct driver.tool"
        if distance > _SAME_PLACE or angle > _SAME_ANGLE:
            raise DriverError(
                "the arm's controller has another TCP than driver.tool",
                got=f"{np.round(tcp, 4).tolist()} [m, xyzw]",
                expected=list(self.tcp),
                hint=hint,
            )
        if not abs(payload_kg - self.payload_kg) <= _SAME_MASS:
            raise DriverError(
                "the arm's controller has another payload than driver.tool",
                got=f"{payload_kg:.2f} kg",
                expected=f"{self.payload_kg:.2f} kg",
                hint=hint,
            )


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


class StateClock:
    """Stamps the states of a controller that counts its own time, when each is first seen."""

    def __init__(self) -> None:
        self._seconds = math.nan
        self._seen = -math.inf
        self.stamp_ns = 0  # of the newest state, on the system clock

    def take(self, seconds: float) -> bool:
        """Take the controller's own time of a state [s]; returns whether it is a new one."""
        if seconds == self._seconds or not math.isfinite(seconds):
            return False
        self._seconds, self._seen, self.stamp_ns = seconds, time.monotonic(), time.time_ns()
        return True

    def check(self, what: str, limit_s: float) -> None:
        """Raise `Stale` where `what` has not changed for longer than `limit_s` [s]."""
        if (age := time.monotonic() - self._seen) > limit_s:
            raise Stale(what, age, limit_s)


class Rest:
    """The newest measurements of an arm, to see that it rests before its force sensor is zeroed."""

    def __init__(self, rate_hz: float) -> None:
        self._states: deque[ArmState] = deque(maxlen=max(2, round(_REST_SECONDS * rate_hz)))

    def take(self, state: ArmState) -> None:
        """Take a measurement in."""
        self._states.append(state)

    def forget(self) -> None:
        """Forget the measurements."""
        self._states.clear()

    def force(self) -> float:
        """The mean force that zeroing would remove [N]; `DriverFault` if it is no drift.

        A light, steady contact looks like a drift of the sensor.
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
        # Written so that a NaN fails it.
        if not (force <= _LARGEST_OFFSET and change <= _STEADY_FORCE and speed <= _REST_SPEED):
            raise DriverFault(
                "the force sensor is not zeroed",
                got=f"{force:.1f} N that changed by {change:.1f} N, at {speed * 1e3:.1f} mm/s",
                expected=f"at most {_LARGEST_OFFSET:g} N, {_STEADY_FORCE:g} N and"
                f" {_REST_SPEED * 1e3:g} mm/s for {_REST_SECONDS:g} s",
                hint="let nothing touch the tool, and see that its payload is set right",
            )
        return force
