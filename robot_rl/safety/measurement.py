"""Check an arm's measurements: impossible jumps, straying, pushes and excess values."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from robot_rl.safety.limits import (
    MOST_TURNED,
    ArmLimits,
    JointArmLimits,
    JointRanges,
    PoseLimits,
)
from robot_rl.safety.rotations import Vector
from robot_rl.safety.state import ArmState, check_numbers, check_pose

# Speed towards a joint limit that counts as motion [rad/s].
_STILL = 0.01
# After a longer gap in measurements, allow only the motion possible in this time [s].
_LONGEST_GAP = 0.05
# Measurements may arrive in bursts, late by up to this [s].
_JITTER = 0.02
# Motion is also checked over this time [s].
_WINDOW = 0.1
# Consecutive measurements that must agree before the arm's place is trusted.
_AGREEING = 3
# A holding arm's place is the median of this many measurements; two of them may be wrong.
_NEWEST = 5
# Beyond the speed and strength of any arm [m/s, rad/s; N, Nm].
_FASTEST, _STRONGEST = 1e4, 1e4


class Plausibility:
    """Checks each measured place against the previous ones and the arm's largest speed."""

    def __init__(self, limits: PoseLimits | JointRanges) -> None:
        self._limits = limits
        self._pose: Vector | None = None
        self._stamp_ns = 0
        self._taken = -math.inf
        self._agreeing = 0
        self._past: deque[tuple[float, Vector]] = deque()

    @property
    def settled(self) -> bool:
        """Whether enough consecutive measurements agree to trust the arm's place."""
        return self._agreeing >= _AGREEING

    def forget(self) -> None:
        """Reset, so that the next measurement may be anywhere."""
        self._pose, self._agreeing = None, 0
        self._past.clear()

    def problem(self, pose: Vector, stamp_ns: int, now: float) -> str | None:
        """Add a measured place; return why the motion is impossible, or None.

        The place is a pose (7,) in the base frame, or joint positions (n,) [rad], measured at
        `stamp_ns` [ns]. A repeated stamp is not a new measurement. `now` is steady time [s].
        """
        last = self._pose
        if last is not None and stamp_ns == self._stamp_ns and np.array_equal(pose, last):
            return None
        # Use the larger of both clocks' intervals: a message may have been delayed.
        elapsed = max(now - self._taken, 1e-9 * (stamp_ns - self._stamp_ns))
        elapsed = min(max(elapsed, 0.0), _LONGEST_GAP)
        self._pose, self._stamp_ns, self._taken = pose.copy(), stamp_ns, now
        found = None if last is None else self._jump(last, pose, elapsed)
        while self._past and now - self._past[0][0] > _WINDOW:
            self._past.popleft()
        if found is None and self._past:  # small jumps can add up to a large one
            found = self._jump(self._past[0][1], pose, now - self._past[0][0])
        if found is not None:
            self._past.clear()
        self._past.append((now, self._pose))
        self._agreeing = self._agreeing + 1 if found is None else 1
        return found

    def _jump(self, last: Vector, place: Vector, elapsed: float) -> str | None:
        limits = self._limits
        most = limits.noise + limits.fastest * (elapsed + _JITTER)
        beyond = limits.apart(last, place) > most
        if not beyond.any():
            return None
        what, way, ends, fastest = limits.jump_in_words(int(np.argmax(beyond)), last, place)
        return (
            f"the measured {what} jumped by {way} in {1e3 * elapsed:.0f} ms, from {ends}; an arm"
            f" moves at {fastest} at most"
        )


class Straying:
    """Detects an arm that moves away from its commanded place.

    A target yields to a pushed arm. If the measured pose is off by more than the largest lead (the
    tool centre was changed, or the controller moves another frame), the target would yield at each
    tick to an arm that only follows it, and both would run away.
    """

    def __init__(self, limits: PoseLimits | JointRanges) -> None:
        self._limits = limits
        self._asked: Vector | None = None
        self._nearest: Vector = np.zeros(1)

    def ask(self, pose: Vector, *, forget: bool = False) -> None:
        """Record the commanded pose (7,), or joint positions (n,).

        The allowed distance grows by the step from the previous place. With `forget` the arm may be
        anywhere.
        """
        if forget or self._asked is None:
            self._nearest = np.array([math.inf])
        else:
            self._nearest = self._nearest + self._limits.apart(self._asked, pose)
        self._asked = pose.copy()

    def problem(self, measured: Vector) -> str | None:
        """Return why the target must not follow the measured place any farther, or None."""
        if self._asked is None:
            return None
        limits = self._limits
        away = limits.apart(self._asked, measured)
        self._nearest = np.minimum(self._nearest, away)
        if (away <= self._nearest + limits.strayed).all():
            return None
        return (
            "the arm has gone away from where it was asked to be: by "
            f"{limits.distance_in_words(self._asked, measured)}, from "
            f"{limits.shown(self._asked, measured)}; it was pushed, or what is measured is not what"
            " its controller moves"
        )


class Pushes:
    """Distinguishes a push on a holding arm from measurement noise.

    A single measurement may be off by more than the lead although the arm is at rest. So the target
    yields only if the median of the latest ones is farther away, and then to within the lead.
    """

    def __init__(self, limits: PoseLimits | JointRanges) -> None:
        self._limits = limits
        self._newest: deque[tuple[int, Vector]] = deque(maxlen=_NEWEST)

    def forget(self) -> None:
        """Clear the measurements: the arm is not holding."""
        self._newest.clear()

    def yielded(self, target: Vector, place: Vector, stamp_ns: int) -> tuple[Vector, bool]:
        """Return the place to hold, and whether it differs from `target`.

        `place` was measured at `stamp_ns` [ns]; a repeated stamp is not a new measurement.
        """
        limits, newest = self._limits, self._newest
        if not newest or newest[-1][0] != stamp_ns:
            newest.append((stamp_ns, place))
        if len(newest) < _NEWEST or not limits.led(target, place, limits.unpushed)[1]:
            return target, False
        middle = limits.median(np.array([each for _, each in newest]))
        if not limits.led(target, middle, limits.unpushed)[1]:
            return target, False
        return limits.led(target, middle)


def check_measured(measured: ArmState, limits: ArmLimits | JointArmLimits) -> None:
    """Raise `MeasurementRefused` for a wrong shape, or a non-finite or impossible number.

    Values that the arm does not measure are all NaN. Its place and joints are required, and its
    force and torque if they are limited.
    """
    count = len(limits.joint_low) or np.size(measured.joint_positions)
    force, torque = limits.max_force is not None, limits.max_torque is not None
    if isinstance(limits, ArmLimits) or not np.isnan(measured.tcp_pose).all():
        check_pose(measured.tcp_pose, "the measured pose")
    for name, values, size, most, is_needed in (
        ("joint positions", measured.joint_positions, count, MOST_TURNED, True),
        ("joint velocities", measured.joint_velocities, count, _FASTEST, True),
        ("velocity", measured.tcp_velocity, 6, _FASTEST, False),
        ("force", measured.tcp_wrench[:3], 3, _STRONGEST, force),
        ("torque", measured.tcp_wrench[3:], 3, _STRONGEST, torque),
    ):
        if is_needed or not np.isnan(values).all():
            check_numbers(values, f"the measured {name}", size, most)


def excesses(measured: ArmState, limits: ArmLimits | JointArmLimits) -> dict[str, str]:
    """Return the exceeded limits: `force`, `joint_speed` or `joint`, each with the reason.

    A joint within its margin may stand still or move away from its limit.
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
    if limits.joint_low:
        positions, velocities = measured.joint_positions, measured.joint_velocities
        low = np.array(limits.joint_low) + limits.joint_margin
        high = np.array(limits.joint_high) - limits.joint_margin
        outward = (positions < low) & (velocities < -_STILL)
        outward |= (positions > high) & (velocities > _STILL)
        if outward.any():
            joint = int(np.argmax(outward))
            found["joint"] = f"joint {joint} at {positions[joint]:.3f} rad moves to its limit"
    return found
