"""The arm driver protocol: drivers accept an equilibrium pose and report measurements.

Also a Cartesian spring law, for arms driven by wrenches or pose errors.
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

_JOINTS_OF_A_POSE = 6  # with more joints, a pose leaves the elbow free
# Largest allowed differences between tool settings [m, rad, kg].
_SAME_PLACE, _SAME_ANGLE, _SAME_MASS = 0.001, 0.01, 0.05
_LONGEST_TOOL, _HEAVIEST = 1.0, 50.0  # m, kg
_REST_SECONDS = 0.5
_REST_SPEED = 0.002  # m/s
# According to UR's data sheets, measured forces are accurate to 3.5 to 5.5 N.
_STEADY_FORCE = 5.0  # N, peak to peak along an axis
_LARGEST_OFFSET = 20.0  # N: more is not drift but a contact or a wrong payload


class Arm(Protocol):
    """An arm under Cartesian control. `robot_rl.safety.ArmGuard` enforces limits, not the driver.

    The guard also checks every driver's measurements. Only one thread at a time uses a driver. Some
    drivers have additional methods and attributes:

    `command_joints(joints)`: for arms with joint targets; like `command`, with joint positions (n,)
    [rad]. It requires `joint_limits`. The pose may be unknown (NaN).

    `grip(position)`: for arms whose driver also runs the gripper; moves the fingers, 0 open to 1
    closed, with the next target. `gripper_position` is their position at the last `read`.

    `zero_ft()`: for arms whose force sensor drifts; zeroes the sensor; the arm then holds.

    `forward_kinematics(joints)`: returns the pose (7,) of the flange in the base frame at joint
    positions (n,) [rad] without delay. Required for resets to joint positions.

    `posture`: for arms with `forward_kinematics` and more than six joints; joint positions (n,)
    [rad] towards which the elbow is pulled as far as the target allows. None disables it.
    """

    # Response to contact: `impedance` (the target is the equilibrium of a spring), `force_mode`
    # (the same, built from measured forces), or `position` (does not yield).
    compliance: Compliance
    joint_names: tuple[str, ...]  # in the order of `ArmState`
    joint_limits: JointLimits  # both empty if left to the controller
    # The controller's fault or None; only `clear_errors` clears it.
    fault: str | None

    def connect(self) -> None:
        """Connect without moving the arm; may be called again after `close` or an error.

        Control starts with the first `command`. Raises `DriverTimeout` if the arm does not answer,
        `DriverError` if its address or settings are wrong, and `MissingExtra` if the vendor's SDK
        is not installed.
        """

    def read(self) -> ArmState:
        """Return the latest measurement, even during a fault; else `DriverTimeout` or `Stale`.

        Its stamp is the time it was measured or requested, not the time of this call; the same
        state always has the same stamp. See `StateClock`.
        """

    def command(self, target_pose: Vector) -> None:
        """Set the equilibrium pose (7,), base frame, without blocking.

        Raises `DriverFault`, sending nothing, if the arm has a fault or is stopped, and
        `DriverTimeout` if it does not answer.
        """

    def hold(self) -> None:
        """Hold the current position; no reads are needed until the arm moves again."""

    def stop(self) -> None:
        """Stop by the vendor's method, or `DriverError`; refuse motion until `clear_errors`."""

    def clear_errors(self) -> None:
        """Clear faults and a stop once a person has checked the arm, or `DriverFault`; it holds."""

    def close(self) -> None:
        """Hold and disconnect; safe to call repeatedly or if never connected."""


def reset_waypoints(
    driver: Any, joints: Sequence[float], limits: ArmLimits | JointArmLimits
) -> Vector:
    """Return the waypoints (k, n) stored flat in the parameter `reset.joints`; (0, n) if empty.

    A driver with a `posture` gets the last waypoint as its posture. Raises `DriverError` if the
    driver cannot move to joint positions, and `CommandRefused` for malformed waypoints.
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
    """Raise `DriverError` if an arm with pose targets cannot be reset to joint positions."""
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
    """Raise `DriverFault` if the arm has a fault or is stopped; called before each command."""
    if fault is not None or stopped:
        hint = "look at the arm, then clear_errors"
        raise DriverFault(f"the {arm} does not move", got=fault or "stopped", hint=hint)


def pose_of(position: Sequence[float], metre: float = 1.0) -> Vector:
    """Convert position and rotation vector [rad] (6,) to a pose (7,); `metre`: units per metre."""
    values = np.array(position[:6], np.float64)
    turn = rotations.normalize(rotations.from_rotation_vector(values[3:]))
    return np.concatenate([values[:3] / metre, turn])


def dh_pose(rows: Sequence[tuple[float, float, float]], joints: Vector) -> Vector:
    """Return the flange pose (7,), base frame, at joint positions (n,) [rad].

    Each joint's Denavit-Hartenberg row is a [m], d [m] and alpha [rad].
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
    """The tool on an arm's flange, as it must be set on the arm's controller."""

    tcp: Sequence[float]  # pose of the TCP on the flange (7,) [m, xyzw]
    payload_kg: float  # total mass on the flange

    def __post_init__(self) -> None:
        place = checked_pose(self.tcp, "tool.tcp")[:3].tolist()
        if math.hypot(*place) > _LONGEST_TOOL:
            expected = f"at most {_LONGEST_TOOL:g} m from the flange: m, not mm"
            raise DriverError("tool.tcp is too far away", got=place, expected=expected)
        if not 0.0 < self.payload_kg < _HEAVIEST:
            problem, expected = "tool.payload_kg cannot be", f"more than 0, below {_HEAVIEST:g} kg"
            raise DriverError(problem, got=self.payload_kg, expected=expected)

    def check(self, tcp: Vector, payload_kg: float) -> None:
        """Raise `DriverError` if the controller has a different TCP (7,) or payload.

        A wrong TCP applies the limits to a different point. A wrong payload makes a
        force-controlled arm drift.
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
    """A spring and damper between the TCP and its target, equal along and about all axes."""

    stiffness_translation: float = 1000.0  # [N/m]
    stiffness_rotation: float = 50.0  # [Nm/rad]
    damping_translation: float = 70.0  # [Ns/m]
    damping_rotation: float = 4.0  # [Nms/rad]
    max_force: float = 40.0  # largest force it commands [N]
    max_torque: float = 6.0  # largest torque it commands [Nm]

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_positive(f"{name!r} of the impedance", value)

    def wrench(self, target: Vector, pose: Vector, velocity: Vector) -> Vector:
        """Return force [N] and torque [Nm] (6,) on the TCP; all in the base frame."""
        way = rotations.between(pose, target)
        force = self.stiffness_translation * way[:3] - self.damping_translation * velocity[:3]
        torque = self.stiffness_rotation * way[3:] - self.damping_rotation * velocity[3:]
        return np.concatenate([at_most(force, self.max_force), at_most(torque, self.max_torque)])


def at_most(vector: Vector, limit: float) -> Vector:
    """Return the vector, shortened to at most `limit`."""
    length = math.hypot(*vector)
    return vector if length <= limit else vector * (limit / length)


class StateClock:
    """Stamps the states of a controller with its own clock when each is first seen."""

    def __init__(self) -> None:
        self._seconds = math.nan
        self._seen = -math.inf
        self.stamp_ns = 0  # of the latest state, system clock

    def take(self, seconds: float) -> bool:
        """Register a state's controller time [s]; returns whether the state is new."""
        if seconds == self._seconds or not math.isfinite(seconds):
            return False
        self._seconds, self._seen, self.stamp_ns = seconds, time.monotonic(), time.time_ns()
        return True

    def check(self, what: str, limit_s: float) -> None:
        """Raise `Stale` if `what` has not changed for longer than `limit_s` [s]."""
        if (age := time.monotonic() - self._seen) > limit_s:
            raise Stale(what, age, limit_s)


class Rest:
    """Recent arm measurements, used to check that the arm rests before zeroing its force sensor."""

    def __init__(self, rate_hz: float) -> None:
        self._states: deque[ArmState] = deque(maxlen=max(2, round(_REST_SECONDS * rate_hz)))

    def take(self, state: ArmState) -> None:
        """Add a measurement."""
        self._states.append(state)

    def forget(self) -> None:
        """Discard the measurements."""
        self._states.clear()

    def force(self) -> float:
        """Return the mean force that zeroing would remove [N], or `DriverFault` if it is not drift.

        A light, steady contact looks like sensor drift.
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
        # Written so that NaN fails the check.
        if not (force <= _LARGEST_OFFSET and change <= _STEADY_FORCE and speed <= _REST_SPEED):
            raise DriverFault(
                "the force sensor is not zeroed",
                got=f"{force:.1f} N that changed by {change:.1f} N, at {speed * 1e3:.1f} mm/s",
                expected=f"at most {_LARGEST_OFFSET:g} N, {_STEADY_FORCE:g} N and"
                f" {_REST_SPEED * 1e3:g} mm/s for {_REST_SECONDS:g} s",
                hint="let nothing touch the tool, and see that its payload is set right",
            )
        return force
